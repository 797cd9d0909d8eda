"""The series: which faults are tried, by whom, and what the whole of it says.

Decides: the points of a scenario from its own fault-free run, their order, and whether anything was left out: a port's
method or a move that no scenario ever made fails the series. Does not: play cases (theatre does). The failure it can
cause: a boundary kept by hand goes stale; so none is.
"""

import asyncio
import inspect
import os
import random
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing import connection, get_context
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import asyncpg

from core import ports
from core.conversation import Model
from core.run import MOVES
from core.tools import Tool
from jobs.expire_suspensions import Expiry
from jobs.reap_orphans import Orphans
from jobs.remind import Reminders
from jobs.retention import Removal
from tests.chaos.boundary import EFFECTS, INSTANT, STORES, Call, Point
from tests.chaos.scenarios import BY_NAME, CROWDS, SCENARIOS
from tests.chaos.theatre import Report, play
from tests.invariants import watch

CASE_S = 180.0
# Clean shutdowns are tried in few scenarios; in a series that is cut short they must not crowd out the rest.
LEAVES_LATER = 8


# ---- what there is to try --------------------------------------------------------------------------------------------


# Nothing outside differs before, during and after these: a kill there is tried once.
READS = frozenset({
    "WorkerStore.load", "WorkerStore.to_be_alone", "WorkerStore.claims_of", "Desk.live_run", "Desk.last_ended",
    "Desk.suspension", "Desk.run", "Desk.runs", "Desk.thread_runs", "Desk.pending", "Desk.show",
    "Outbox.render_inputs", "Outbox.current_version", "Upkeep.to_remind",
})  # fmt: skip
# After the last call of somebody's request comes its acknowledgement; after any other comes the next call, and "after"
# the one is "before" the other.
ACKED = ("Desk.", "Inbox.", "Upkeep.")


def points_of(calls: Iterable[Call], faults: Sequence[str] = ("kill", "cut")) -> list[Point]:
    """Return every fault at every boundary of a run that made *calls*, each state of the world outside once."""
    return [point for call in calls for fault in faults for point in _points(call, fault)]


def _points(call: Call, fault: str) -> Iterator[Point]:
    def at(phase: str, send: int = 0) -> Point:
        return Point(call.name, call.number, phase, fault, send)

    yield at("before")
    looks = call.name in READS or (not call.name.startswith(STORES) and call.name not in EFFECTS)
    if looks and (fault != "cut" or call.name in INSTANT):
        return
    if call.name.startswith(STORES):
        if call.sends >= 3 and not looks:
            yield at("midway", (call.sends + 1) // 2)
        if call.sends:
            # The statement, or the commit, was sent; its answer has not come.
            yield at("during", call.sends)
    else:
        # A request took effect, its answer is lost; a question's answer is lost.
        yield at("during")
        if call.name == "Tool.execute":
            yield at("late")
    if call.name.startswith(ACKED) or (call.name in EFFECTS and fault == "cut"):
        yield at("after")


def _methods(port: str, protocol: type) -> set[str]:
    found = inspect.getmembers(protocol, inspect.iscoroutinefunction)
    return {f"{port}.{name}" for name, _ in found if not name.startswith("_")}


def every_method() -> set[str]:
    """Return every method of every port, as boundaries are named; from the protocols themselves."""
    return {
        *_methods("WorkerStore", ports.WorkerStore),
        *_methods("Desk", ports.Desk),
        *_methods("Outbox", ports.Outbox),
        *_methods("Inbox", ports.Inbox),
        *_methods("Directory", ports.Directory),
        *_methods("Upkeep", Orphans),
        *_methods("Upkeep", Expiry),
        *_methods("Upkeep", Removal),
        *_methods("Upkeep", Reminders),
        *_methods("Model", Model),
        *_methods("Tool", Tool),
        "Tool.permitted",
        "Scopes.resolve",
        "Slack.chat_postMessage",
        "Slack.chat_update",
    }


def never_made(reports: Iterable[Report]) -> list[str]:
    """Return the methods of ports and the moves that no fault-free run made."""
    calls = [call for report in reports for call in report.calls]
    methods = every_method() - {call.name for call in calls}
    moves = {move.name for move in MOVES} - {move for call in calls for move in call.moves}
    return [*sorted(f"port method {name}" for name in methods), *sorted(f"move {name}" for name in moves)]


def pairs_of(reports: Iterable[Report]) -> list[tuple[str, tuple[Point, ...]]]:
    """Return each distinct (next act after the first kill, boundary of its recovery) once, as two kills in a row."""
    seen: set[tuple[object, ...]] = set()
    found: list[tuple[str, tuple[Point, ...]]] = []
    for report in reports:
        if report.wrong or report.deaths != 1 or len(report.plan) != 1 or report.plan[0].fault != "kill":
            continue
        act = report.acts_after[0] if report.acts_after else "none"
        within: Counter[str] = Counter()
        for call in report.after_first_fault:
            within[call.name] += 1
            for point in points_of([call], ("kill",)):
                what = (act, call.name, within[call.name], point.phase)
                if what not in seen:
                    seen.add(what)
                    found.append((report.scenario, (*report.plan, point)))
    return found


def frozen_of(calls: Iterable[Call]) -> list[Point]:
    """Return every boundary at which a process may be stopped and come back late.

    Not at Slack: a post that was on its way cannot be taken back, and Slack knows no keys.
    """
    return [
        point
        for point in points_of(calls, ("freeze",))
        if not point.call.startswith("Slack.") and point.phase != "late"
    ]


# ---- playing it ------------------------------------------------------------------------------------------------------

Case = tuple[str, tuple[Point, ...]]


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


async def _played(dsn: str, case: Case) -> Report:
    scenario, plan = case
    try:
        async with asyncio.timeout(CASE_S):
            return await play(dsn, BY_NAME[scenario], plan)
    except Exception as error:  # noqa: BLE001  whatever breaks a case is what came of it
        why = "".join(traceback.format_exception(error)[-3:])
        return Report(scenario, plan, wrong=[f"the case broke: {type(error).__name__}: {error}: {why}"])


def _run_cases(line: "connection.Connection", dsn: str, template: str) -> None:
    """Play what comes down the line, one case at a time, until it closes."""
    clone = ""
    while (case := line.recv()) is not None:
        clone = clone or asyncio.run(_clone(dsn, template, f"{template}_{os.getpid()}"))
        line.send(asyncio.run(_played(clone, case)))


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


# ---- what it says ----------------------------------------------------------------------------------------------------


@dataclass
class Row:
    """One scenario's line of the table."""

    name: str
    boundaries: int = 0
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
        for point in report.plan[: report.fired]:
            self.kills += point.fault == "kill"
            self.cuts += point.fault == "cut"
            self.leaves += point.fault == "leave"
            self.freezes += point.fault == "freeze"
        self.missed += report.fired < len(report.plan)
        self.least += min(effects)
        self.most += max(effects)
        self.seen += report.effects
        plan = " then ".join(map(str, report.plan)) or "no fault"
        self.wrong += [f"{self.name}: {plan}: {line}" for line in report.wrong]


COLUMNS = (
    "scenario",
    "boundaries",
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
            row.name, row.boundaries, tried, row.kills, row.cuts, row.leaves, row.freezes, expected, row.seen,
            len(row.wrong),
        )  # fmt: skip
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def rows_of(fault_free: Iterable[Report], cases: Iterable[Case], reports: Iterable[Report]) -> list[Row]:
    """Return the table's rows."""
    rows = {scenario.name: Row(scenario.name) for scenario in (*SCENARIOS, *CROWDS)}
    for report in fault_free:
        rows[report.scenario].boundaries = len(report.calls)
    for scenario, _ in cases:
        rows[scenario].of += 1
    for report in reports:
        rows[report.scenario].add(report)
    return [row for row in rows.values() if row.of]
