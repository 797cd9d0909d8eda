"""Kill processes at every boundary of every scenario; the invariants must hold.

    make chaos                                         the whole series
    make chaos ARGS="--part ci"                        every scenario, every port method in every phase
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
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

sys.path.insert(0, str(Path(__file__).parents[2]))

import asyncpg

from storage.embedded import start_embedded
from storage.migrate import migrate
from tests.chaos.scenarios import BY_NAME, CROWDS, SCENARIOS
from tests.chaos.series import (
    Case,
    Row,
    frozen_of,
    in_order,
    never_made,
    pairs_of,
    part,
    play_all,
    points_of,
    rows_of,
    table,
)
from tests.chaos.theatre import Report

BEGIN, END = "<!-- figures -->", "<!-- end of figures -->"
# When time is limited: by when single faults, then pairs of kills, come to their end.
SINGLE, TWICE = 0.7, 0.85
# A clean shutdown is tried at every boundary of these.
DEPLOYED = ("read", "write without approval", "approved", "two writes")
# Targets that honour keys: what comes back may resend the one request that was in flight.
FROZEN = ("write without approval", "approved", "again with its key")
PAIRED = ("write without approval", "approved", "two writes", "it happened", "it did not happen", "again with its key")


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
    # Processes die here, the host does not, so nothing needs fsync.
    embedded = None if given else asyncio.run(start_embedded(directory, settings={"fsync": "off"}))
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


def cases_of(fault_free: list[Report]) -> list[Case]:
    """Return every single fault at every boundary."""
    cases: list[Case] = []
    for report in fault_free:
        faults = ("kill", "cut", "leave") if report.scenario in DEPLOYED else ("kill", "cut")
        cases += [(report.scenario, (point,)) for point in points_of(report.calls, faults)]
    return cases


def frozen_cases(fault_free: list[Report]) -> list[Case]:
    """Return every boundary at which a process is stopped and comes back when its work was done by another."""
    return [(r.scenario, (point,)) for r in fault_free if r.scenario in FROZEN for point in frozen_of(r.calls)]


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


def said(rows: list[Row], seed: int, wrong: list[str]) -> str:
    """Return the figures, with the date and the command."""
    command = shlex.join(["make", "chaos", *([f"ARGS={shlex.join(sys.argv[1:])}"] if sys.argv[1:] else [])])
    missed = sum(row.missed for row in rows)
    return "\n".join(
        [
            f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC, `{command}`, seed {seed}: {len(wrong)} violations.",
            f"{missed} faults found that their boundary did not come up again in their case.",
            "",
            table(rows),
        ]
    )


def put_into(page: Path, figures: str) -> None:
    """Put *figures* between the marks of *page*."""
    head, _, rest = page.read_text("utf-8").partition(BEGIN)
    _, _, tail = rest.partition(END)
    page.write_text(f"{head}{BEGIN}\n{figures}\n{END}{tail}", "utf-8")


def main() -> int:
    """Run what the command line asks for; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--scenario", action="append", choices=list(BY_NAME), help="only this one (may be repeated)")
    parser.add_argument("--part", choices=["ci"], help="ci: every scenario, every method in every phase")
    parser.add_argument("--seconds", type=float, help="begin no case after this many seconds")
    parser.add_argument("--seed", type=int, default=1, help="order of the cases")
    parser.add_argument("--only", help="only points whose description contains this text")
    parser.add_argument("--side-by-side", type=int, default=2, help="cases at once")
    parser.add_argument("--write", type=Path, help="put the figures between the marks of this file")
    asked = parser.parse_args()
    began = time.monotonic()
    names = asked.scenario or [scenario.name for scenario in SCENARIOS]
    with server() as (dsn, template):

        def played(cases: list[Case], share: float = 1.0) -> list[Report]:
            until = began + asked.seconds * share if asked.seconds else None
            told = Progress(len(cases))
            return play_all(dsn, template, cases, side_by_side=asked.side_by_side, until=until, told=told)

        fault_free = played([(name, ()) for name in names])
        cases = [case for case in cases_of(fault_free) if asked.only is None or asked.only in str(case[1][0])]
        cases = part(cases, asked.seed) if asked.part else in_order(cases, asked.seed)
        reports = played(cases, SINGLE)
        more: list[Case] = [] if asked.scenario else [(crowd.name, ()) for crowd in CROWDS]
        if not (asked.part or asked.only):
            pairs = in_order(pairs_of(r for r in reports if r.scenario in PAIRED), asked.seed)
            reports += played(pairs, TWICE)
            cases += pairs
            more += in_order(frozen_cases(fault_free), asked.seed)
        reports += played(more)
        cases += more
    rows = rows_of(fault_free, cases, reports)
    wrong = [line for row in rows for line in row.wrong]
    wrong += [f"{report.scenario}: no fault: {line}" for report in fault_free for line in report.wrong]
    if not asked.scenario:
        wrong += [f"never tried: {what}" for what in never_made(fault_free)]
    figures = said(rows, asked.seed, wrong)
    print(figures)
    if asked.write is not None:
        put_into(asked.write, figures)
    for line in wrong:
        print(f"BROKEN {line}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
