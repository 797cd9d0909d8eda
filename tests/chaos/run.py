"""Kill processes at every boundary of every scenario; the invariants must hold.

    make chaos                                         the whole series
    make chaos ARGS="--part ci"                        every scenario, every port method in every phase
    make chaos ARGS="--part frozen"                    stopped and come back at every boundary of every scenario
    make chaos ARGS="--scenario approved --seconds 60" one scenario, no case begun after a minute
    make chaos ARGS="--seed 7 --only 'kill during WorkerStore.intend#1' --scenario approved"

Prints one table, and what was broken; exits 1 when anything was. Each case has a database of its own on a real
PostgreSQL (``DATABASE_URL``, else an embedded one), a simulated Slack, a target of its own, and processes that die.
"""

import argparse
import asyncio
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit
from xml.etree import ElementTree

sys.path.insert(0, str(Path(__file__).parents[2]))

import asyncpg

from storage.embedded import start_embedded
from storage.migrate import migrate
from tests.chaos.boundary import LOOKING
from tests.chaos.places import (
    Case,
    Place,
    distinct,
    frozen_cases,
    kinds_of,
    kinds_tried,
    never_made,
    pairs_of,
    places_of,
)
from tests.chaos.scenarios import BY_NAME, CROWDS, FROZEN, NEIGHBOURS, PAIRED, SCENARIOS
from tests.chaos.series import Row, broken, in_order, part, play_all, rows_of, table
from tests.chaos.theatre import Report

ROOT = Path(__file__).parents[2]
BEGIN, END = "<!-- figures -->", "<!-- end of figures -->"
# When time is limited: by when single faults, then pairs of kills, come to their end.
SINGLE, TWICE = 0.7, 0.85
# Processes die here, the host does not, so nothing needs to reach a disk; databases are cleared between cases.
SETTINGS = {
    "fsync": "off", "synchronous_commit": "off", "full_page_writes": "off", "wal_level": "minimal",
    "max_wal_senders": "0", "autovacuum": "off", "shared_buffers": "48MB", "max_wal_size": "4GB",
    "checkpoint_timeout": "1h", "jit": "off",
}  # fmt: skip
HISTORIES = 100
# Series whose cases are tests: their names, what to tell them.
TESTS: tuple[tuple[str, tuple[str, ...], dict[str, str], str], ...] = (
    ("4 races", ("tests/integration/test_store_races.py",), {}, "tests"),
    (
        "5 a host with 10,000 runs",
        ("tests/integration/test_chaos_part.py::test_all_runs_of_a_host_that_died_go_on_at_full_speed",), {}, "test",
    ),
    (
        "6 stateful search", ("tests/integration/test_stateful_search.py",),
        {"ATLAS_STATEFUL_EXAMPLES": str(HISTORIES)}, f"test, {HISTORIES} histories",
    ),
)  # fmt: skip


async def _statement(dsn: str, statement: str) -> None:
    opened = await asyncpg.connect(dsn)
    try:
        await opened.execute(statement)
    finally:
        await opened.close()


async def _clones(dsn: str, template: str) -> list[str]:
    opened = await asyncpg.connect(dsn)
    try:
        rows = await opened.fetch("select datname from pg_database where starts_with(datname, $1)", template)
        return [row["datname"] for row in rows]
    finally:
        await opened.close()


@contextmanager
def server() -> Iterator[tuple[str, str]]:
    """Lend (dsn, name of a migrated template)."""
    template = f"atlas_chaos_{os.getpid()}"
    given = os.environ.get("DATABASE_URL")
    directory = Path(tempfile.mkdtemp(prefix="atlas-chaos-", dir="/tmp"))
    directory.chmod(0o711)
    embedded = None if given else asyncio.run(start_embedded(directory, settings=SETTINGS))
    dsn = given or (embedded.dsn if embedded else "")
    try:
        asyncio.run(_statement(dsn, f'create database "{template}"'))
        asyncio.run(migrate(urlunsplit(urlsplit(dsn)._replace(path=f"/{template}"))))
        yield dsn, template
        for name in asyncio.run(_clones(dsn, template)):
            asyncio.run(_statement(dsn, f'drop database "{name}" with (force)'))
    finally:
        if embedded is not None:
            asyncio.run(embedded.stop())
        shutil.rmtree(directory)


def places_in(fault_free: list[Report]) -> list[tuple[str, Place]]:
    """Return every single fault at every boundary, by scenario."""
    return [(r.scenario, place) for r in fault_free for place in places_of(r.calls, ("kill", "cut", "leave"))]


def tests_of(names: tuple[str, ...], **environment: str) -> tuple[int, list[str]]:
    """Run tests; return how many there were, and what was wrong."""
    with tempfile.NamedTemporaryFile(prefix="atlas-chaos-", suffix=".xml") as told:
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={told.name}", *names]
        ended = subprocess.run(
            command, cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True, check=False
        )
        found = list(ElementTree.parse(told.name).getroot().iter("testcase")) if ended.returncode in (0, 1) else []
    wrong = [f"{case.get('name')}: {case[0].tag} {case[0].get('message')}" for case in found if len(case)]
    return len(found), wrong or ([] if found and not ended.returncode else [ended.stdout[-2000:] + ended.stderr[-500:]])


class Progress:
    """A line on standard error now and then."""

    def __init__(self, cases: int) -> None:
        self.cases = cases
        self.done = 0
        self.wrong = 0
        self.began = time.monotonic()

    def __call__(self, report: Report) -> None:
        """Note a case."""
        self.done += 1
        self.wrong += bool(report.wrong)
        if report.wrong:
            print(f"{report.scenario}: {' then '.join(map(str, report.plan))}: {report.wrong}", file=sys.stderr)
        if self.done % 100 == 0:
            each = (time.monotonic() - self.began) / self.done
            print(f"{self.done} of {self.cases} cases, {each:.2f} s each, {self.wrong} wrong", file=sys.stderr)


def said(asked: argparse.Namespace, took_s: float, lines: list[str], rows: list[Row], wrong: list[str]) -> str:
    """Return the figures, with the date and the command."""
    command = shlex.join(["make", "chaos", *([f"ARGS={shlex.join(sys.argv[1:])}"] if sys.argv[1:] else [])])
    missed = sum(row.missed for row in rows)
    took = f"{took_s / 60:.0f} minutes on {os.cpu_count()} cores"
    return "\n".join(
        [
            f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC, `{command}`, seed {asked.seed}, {took}: {len(wrong)} violations.",
            f"{missed} faults found that their boundary did not come up again in their case.",
            "",
            *lines,
            "",
            table(rows),
        ]
    )


def put_into(page: Path, figures: str) -> None:
    """Put *figures* between the marks of *page*."""
    head, _, rest = page.read_text("utf-8").partition(BEGIN)
    _, _, tail = rest.partition(END)
    page.write_text(f"{head}{BEGIN}\n{figures}\n{END}{tail}", "utf-8")


def series_line(name: str, what: str, wrong: int) -> str:
    """Return a line of the table of series."""
    return f"| {name} | {what} | {wrong} |"


def _asked() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--scenario", action="append", choices=list(BY_NAME), help="only this one (may be repeated)")
    parser.add_argument("--part", choices=["ci", "frozen"], help="ci: every scenario, every method in every phase; "
                        "frozen: every scenario, a process stopped and coming back at every boundary")  # fmt: skip
    parser.add_argument("--seconds", type=float, help="begin no case after this many seconds")
    parser.add_argument("--seed", type=int, default=1, help="order of the cases, and which of equal places is tried")
    parser.add_argument("--only", help="only points whose description contains this text")
    parser.add_argument("--count", action="store_true", help="say how many single faults there are; try none")
    parser.add_argument("--side-by-side", type=int, default=3, help="cases at once")
    parser.add_argument("--write", type=Path, help="put the figures between the marks of this file")
    return parser.parse_args()


def main() -> int:
    """Run what the command line asks for; return the exit code."""
    asked = _asked()
    began = time.monotonic()
    names = asked.scenario or [scenario.name for scenario in SCENARIOS]
    whole = not (asked.scenario or asked.part or asked.only)
    lines = ["| series | what was tried | violations |", "| --- | --- | --- |"]
    wrong: list[str] = []

    def note(name: str, what: str, broken: list[str]) -> None:
        lines.append(series_line(name, what, len(broken)))
        wrong.extend(broken)

    with server() as (dsn, template):

        def played(cases: list[Case], share: float = 1.0) -> list[Report]:
            until = began + asked.seconds * share if asked.seconds else None
            told = Progress(len(cases))
            return play_all(dsn, template, cases, side_by_side=asked.side_by_side, until=until, told=told)

        fault_free = played([(name, ()) for name in names])
        only_looked = played([(name, (LOOKING,)) for name in names])
        note("no fault, reads on connections that refuse writes", f"{len(fault_free)} scenarios, twice",
             broken([*fault_free, *only_looked]))  # fmt: skip
        if not asked.scenario:
            note("every port method, every move", "in a run without a fault", never_made(fault_free))
        places = [(name, place) for name, place in places_in(fault_free) if (asked.only or "") in str(place.point)]
        singles = distinct(places, asked.seed)
        if not asked.only and (lost := kinds_of(places) - kinds_tried(singles)):
            wrong.extend(f"never tried: {kind}" for kind in sorted(lost))
        cases = part(singles, asked.seed) if asked.part == "ci" else in_order(singles, asked.seed)
        if asked.count or asked.part == "frozen":
            cases = []
        reports = played(cases, SINGLE)
        same = f"{len(places)} faults, of which {len(places) - len(singles)} are one with another"
        note("1 single faults", f"{len(reports)} cases of {len(singles)}; {same}", broken(reports))
        if not (asked.part or asked.only or asked.count):
            pairs = in_order(pairs_of(r for r in reports if r.scenario in PAIRED), asked.seed)
            twice = played(pairs, TWICE)
            note("2 twice in a row", f"{len(twice)} pairs of kills of {len(pairs)}", broken(twice))
            cases, reports = [*cases, *pairs], [*reports, *twice]
        if asked.part != "ci" and not asked.count:
            whole_of = FROZEN if whole else BY_NAME
            frozen = in_order(frozen_cases(fault_free, whole_of, asked.seed), asked.seed)
            frozen = [case for case in frozen if (asked.only or "") in str(case[1][0])]
            back = played(frozen)
            late = sum(report.late_requests for report in back)
            given_up = f"{late} requests of writes that were given up meanwhile"
            note("3 come back late", f"{len(back)} cases of {len(frozen)}; {given_up}", broken(back))
            cases, reports = [*cases, *frozen], [*reports, *back]
        if not (asked.scenario or asked.count or asked.part == "frozen"):
            crowds: list[Case] = [(crowd.name, ()) for crowd in CROWDS]
            crowded = played(crowds)
            note("5 bystanders", f"{len(crowded)} crowds of {NEIGHBOURS} runs beside one that kills", broken(crowded))
            cases, reports = [*cases, *crowds], [*reports, *crowded]
    if whole and not asked.count:
        with ThreadPoolExecutor() as threads:
            ran = [threads.submit(tests_of, names, **more) for _, names, more, _ in TESTS]
        for (series, _, _, what), each in zip(TESTS, ran, strict=True):
            played_tests, failed = each.result()
            note(series, f"{played_tests} {what}", failed)
    points = Counter(name for name, _ in places)
    rows = rows_of(fault_free, points, Counter(name for name, _ in singles), cases, reports)
    figures = said(asked, time.monotonic() - began, lines, rows, wrong)
    print(figures)
    if asked.write is not None:
        put_into(asked.write, figures)
    for line in wrong:
        print(f"BROKEN {line}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
