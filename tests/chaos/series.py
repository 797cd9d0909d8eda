"""The series: which faults are tried, by whom, and what the whole of it says.

Decides: who plays which case, and in which order. Does not: say what there is to try (places does) or play a case
(theatre does). The failure it can cause: a case that was given out and never came back would pass as played; so reports
are counted against cases.
"""

import asyncio
import os
import random
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from multiprocessing import connection, get_context
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import asyncpg

from tests.chaos.boundary import LOOKING
from tests.chaos.places import Case
from tests.chaos.scenarios import BY_NAME, CROWDS, SCENARIOS
from tests.chaos.theatre import House, Report, house, play
from tests.invariants import watch

CASE_S = 180.0
# In a series that is cut short, clean shutdowns must not crowd out the rest.
LEAVES_LATER = 8


# ---- playing it ------------------------------------------------------------------------------------------------------

# Cloning copies some 300 files, which costs more than a case; a clone is emptied between cases instead.


async def _clone(dsn: str, template: str, name: str) -> str:
    admin = await asyncpg.connect(dsn)
    try:
        strategy = "strategy file_copy" if admin.get_server_version().major > 14 else ""
        await admin.execute(f'create database "{name}" template "{template}" {strategy}')
    finally:
        await admin.close()
    clone = urlunsplit(urlsplit(dsn)._replace(path=f"/{name}"))
    await watch(clone)
    return clone


async def _played(where: House, case: Case) -> Report:
    scenario, plan = case
    try:
        async with asyncio.timeout(CASE_S):
            return await play(where, BY_NAME[scenario], plan)
    except Exception as error:  # noqa: BLE001  whatever breaks a case is what came of it
        why = "".join(traceback.format_exception(error)[-3:])
        return Report(scenario, plan, wrong=[f"the case broke: {type(error).__name__}: {error}: {why}"])


def _run_cases(line: "connection.Connection", dsn: str, template: str) -> None:
    """Play what comes down the line, one case at a time, until it closes."""

    async def work() -> None:
        case = line.recv()
        if case is None:
            return
        async with house(await _clone(dsn, template, f"{template}_{os.getpid()}")) as where:
            while case is not None:
                report = await _played(where, case)
                line.send(report)
                case = line.recv()

    asyncio.run(work())


def play_all(
    dsn: str,
    template: str,
    cases: Sequence[Case],
    *,
    side_by_side: int = 2,
    until: float | None = None,
    told: Callable[[Report], None] = lambda _: None,
) -> list[Report]:
    """Play *cases*, some side by side in processes of their own. *until*: begin none after this monotonic time."""
    forks = get_context("fork")
    waiting = list(reversed(cases))
    reports: list[Report] = []
    lines: dict[Any, Any] = {}
    for _ in range(min(side_by_side, len(cases))):
        ours, its = forks.Pipe()
        process = forks.Process(target=_run_cases, args=(its, dsn, template), daemon=True)
        process.start()
        its.close()
        lines[ours] = process

    def give(line: Any) -> bool:
        over = not waiting or (until is not None and time.monotonic() > until)
        line.send(None if over else waiting.pop())
        return not over

    busy = {line for line in lines if give(line)}
    while busy:
        ready: list[Any] = connection.wait(list(busy))
        for line in ready:
            report: Report = line.recv()
            reports.append(report)
            told(report)
            if not give(line):
                busy.discard(line)
    for process in lines.values():
        process.join()
    return reports


def in_order(cases: Sequence[Case], seed: int) -> list[Case]:
    """Return *cases* so that a series that is cut short has tried each kind of boundary first, shuffled by *seed*."""
    shuffled = list(cases)
    random.Random(seed).shuffle(shuffled)
    rounds: Counter[tuple[str, ...]] = Counter()
    ranked = []
    for case in shuffled:
        point = case[1][-1]
        kind = (point.call, point.phase, point.fault)
        rounds[kind] += 1
        ranked.append((rounds[kind] * (LEAVES_LATER if point.fault == "leave" else 1), case))
    return [case for _, case in sorted(ranked, key=lambda entry: entry[0])]


def part(cases: Sequence[Case], seed: int) -> list[Case]:
    """Return a part that still has every scenario, and every method in every phase: killed; cut: every method once."""
    chosen: dict[tuple[str, ...], Case] = {}
    for case in in_order(cases, seed):
        point = case[1][-1]
        kinds: list[tuple[str, ...]] = [(case[0],)]
        kinds.append((point.call, point.phase) if point.fault == "kill" else (point.call, "cut"))
        for kind in kinds:
            chosen.setdefault(kind, case)
    return list(dict.fromkeys(chosen.values()))


def broken(reports: Iterable[Report]) -> list[str]:
    """Return one line for each broken promise."""
    return [
        f"{report.scenario}: {' then '.join(map(str, report.plan)) or 'no fault'}: {line}"
        for report in reports
        for line in report.wrong
    ]


# ---- what it says ----------------------------------------------------------------------------------------------------


@dataclass
class Row:
    """One scenario's line of the table."""

    name: str
    boundaries: int = 0
    points: int = 0
    same: int = 0
    of: int = 0
    tried: int = 0
    kills: int = 0
    cuts: int = 0
    leaves: int = 0
    freezes: int = 0
    missed: int = 0
    least: int = 0
    most: int = 0
    seen: int = 0
    wrong: list[str] = field(default_factory=list)

    def add(self, report: Report) -> None:
        """Count a case."""
        effects = BY_NAME[report.scenario].effects
        self.tried += 1
        self.missed += report.fired < len([point for point in report.plan if point != LOOKING])
        for point in report.plan[: report.fired]:
            self.kills += point.fault == "kill"
            self.cuts += point.fault == "cut"
            self.leaves += point.fault == "leave"
            self.freezes += point.fault == "freeze"
        self.least += min(effects)
        self.most += max(effects)
        self.seen += report.effects
        self.wrong += broken([report])


COLUMNS = (
    "scenario",
    "boundaries",
    "single faults",
    "one with another",
    "cases",
    "kills",
    "cuts",
    "leaves",
    "frozen",
    "effects expected",
    "seen",
    "violations",
)


def table(rows: Sequence[Row]) -> str:
    """Return the figures as a Markdown table with a line for all."""
    total = Row("all")
    for row in rows:
        for name in (
            "boundaries",
            "points",
            "same",
            "of",
            "tried",
            "kills",
            "cuts",
            "leaves",
            "freezes",
            "missed",
            "least",
            "most",
            "seen",
        ):
            setattr(total, name, getattr(total, name) + getattr(row, name))
        total.wrong += row.wrong
    lines = [f"| {' | '.join(COLUMNS)} |", f"|{' --- |' * len(COLUMNS)}"]
    for row in (*rows, total):
        tried = str(row.tried) if row.tried == row.of else f"{row.tried} of {row.of}"
        expected = str(row.least) if row.least == row.most else f"{row.least} to {row.most}"
        cells: tuple[object, ...] = (
            row.name, row.boundaries, row.points, row.same, tried, row.kills, row.cuts, row.leaves, row.freezes,
            expected, row.seen, len(row.wrong),
        )  # fmt: skip
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def rows_of(
    fault_free: Iterable[Report], points: Counter[str], distinct: Counter[str], cases: Iterable[Case],
    reports: Iterable[Report],
) -> list[Row]:  # fmt: skip
    """Return the table's rows. *points*: single faults by scenario; *distinct*: those that differ from each other."""
    rows = {scenario.name: Row(scenario.name) for scenario in (*SCENARIOS, *CROWDS)}
    for report in fault_free:
        row = rows[report.scenario]
        row.boundaries, row.points = len(report.calls), points[row.name]
        row.same = points[row.name] - distinct[row.name]
    for scenario, _ in cases:
        rows[scenario].of += 1
    for report in reports:
        rows[report.scenario].add(report)
    return [row for row in rows.values() if row.of]
