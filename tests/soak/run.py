"""Run for long under bad weather, then let it clear: everything must come to its end, and nothing be broken.

    make soak                                   at most ten minutes, five of them bad weather
    make soak ARGS="--seconds 120 --seed 7"     two minutes of another weather

Three processes, a PostgreSQL of its own behind a wire that is cut, a simulated Slack and a CRM that break. Prints the
seed and one table; exits 1 when a promise was broken, saying which.
"""

import argparse
import asyncio
import io
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).parents[2]))

from storage.migrate import migrate
from tests.acceptance.stack import Stack, stack_of
from tests.acceptance.waiting import wait_until
from tests.invariants import watch
from tests.soak.cluster import Wire, running
from tests.soak.weather import DOWN, Crowd, Replicas, Weather

REPLICAS = 3
# Slack sends an event again for longer than any outage here lasts.
AGAIN_S = (0.5, 1.0, 2.0, 4.0, 8.0, 8.0, 8.0, 16.0, 16.0, 32.0)
HEALS_WITHIN_S = 240.0
STORM_S = 300.0
# Of the whole command. What is under way when it comes to this is judged as never having come to its end.
ENDS_WITHIN_S = 600.0
# To stop every process, and print.
LEAVES_WITHIN_S = 20.0
# A run takes two edits of Slack messages and more, and Slack takes 50 edits a minute of a whole workspace: what is
# asked more often than this is told at that rate, and all is at rest only long after the storm.
ASKED_EVERY_S = 1.7


@dataclass
class Outcome:
    """What came of it."""

    seed: int
    seconds: float = 0.0
    asked: int = 0
    runs: Counter[str] = field(default_factory=Counter)
    effects: int = 0
    told: Counter[str] = field(default_factory=Counter)
    recovered: int = 0
    weather: Counter[str] = field(default_factory=Counter)
    pressed: Counter[str] = field(default_factory=Counter)
    healed_s: float = 0.0
    wrong: list[str] = field(default_factory=list)

    def table(self) -> str:
        """Return it as one Markdown table."""
        rows = [("requests asked", self.asked), *((f"runs {state}", n) for state, n in sorted(self.runs.items()))]
        rows += [("effects in the CRM", self.effects), ("runs that were taken back and went on", self.recovered)]
        rows += [(f"{method} taken by Slack", n) for method, n in sorted(self.told.items())]
        rows += [(f"clicks {state}", n) for state, n in sorted(self.pressed.items())]
        rows += sorted(self.weather.items())
        rows += [("seconds until all was at rest again", round(self.healed_s)), ("violations", len(self.wrong))]
        return "\n".join(["| what | count |", "| --- | ---: |", *(f"| {name} | {n} |" for name, n in rows)])


async def soak(seconds: float, seed: int, *, ask_every_s: float = ASKED_EVERY_S, fault_every_s: float = 2.0) -> Outcome:
    """Let it storm for *seconds*, wait until all is at rest, judge; ENDS_WITHIN_S seconds at most, come what may."""
    outcome = Outcome(seed)
    began = time.monotonic()
    whole = asyncio.timeout(ENDS_WITHIN_S - LEAVES_WITHIN_S)
    try:
        async with whole:
            await _soak(seconds, outcome, ask_every_s, fault_every_s)
    except TimeoutError:
        if not whole.expired():
            raise
        outcome.wrong.append(f"not at its end after {ENDS_WITHIN_S - LEAVES_WITHIN_S:.0f} s")
    outcome.seconds = time.monotonic() - began
    return outcome


async def _soak(seconds: float, outcome: Outcome, ask_every_s: float, fault_every_s: float) -> None:
    with tempfile.TemporaryDirectory(prefix="atlas-soak-") as directory:
        async with running(fsync="off", max_connections="100") as cluster:
            await cluster.execute("create database atlas")
            dsn = cluster.dsn("atlas")
            await migrate(dsn)
            await watch(dsn)
            wire = Wire(cluster.port)
            await wire.start()
            try:
                async with stack_of(dsn, Path(directory)) as stack:
                    stack.slack.dispatch.retry_schedule_s = AGAIN_S
                    replicas = Replicas(stack, wire.leading(dsn), REPLICAS)
                    weather = Weather(random.Random(outcome.seed), stack, replicas, cluster, wire)
                    crowd = Crowd(random.Random(outcome.seed + 1), stack)
                    outcome.weather, outcome.pressed = weather.counts, crowd.pressed
                    await replicas.start()
                    await _storm(weather, crowd, seconds, ask_every_s, fault_every_s)
                    await _heal(stack, crowd, outcome)
                    outcome.asked = crowd.asked
                    await _judge(stack, outcome)
            finally:
                await wire.stop()


async def _storm(weather: Weather, crowd: Crowd, seconds: float, ask_every_s: float, fault_every_s: float) -> None:
    pressing = asyncio.get_running_loop().create_task(crowd.press())
    try:
        await asyncio.gather(weather.storm(seconds, fault_every_s), crowd.ask(seconds, ask_every_s))
    finally:
        pressing.cancel()
        with suppress(asyncio.CancelledError):
            await pressing
    await weather.clear()


async def _heal(stack: Stack, crowd: Crowd, outcome: Outcome) -> None:
    """Wait until no run works, no mail waits, nothing is owed and no card is left undecided."""
    began = time.monotonic()

    async def at_rest() -> bool:
        try:
            open_cards = await crowd.press_once()
            left = await stack.rows(
                "select (select count(*) from runs where state in ('running', 'suspended'))"
                " + (select count(*) from inbox where handled_at is null and parked_at is null)"
                " + (select count(*) from outbox where version > delivered_version and refused_at is null) as n"
            )
        except DOWN:
            return False
        return not open_cards and not left[0]["n"] and len(await _runs(stack)) > 0

    try:
        await wait_until(at_rest, "everything comes to its end", HEALS_WITHIN_S)
    except AssertionError as error:
        left = await stack.rows(
            "select id, state, doing, claimed_by, crashes, recovery_attempts, halt_reason from runs"
            " where state in ('running', 'suspended')"
        )
        owed = await stack.rows(
            "select place, attempts, last_error from outbox where version > delivered_version and refused_at is null"
        )
        mail = await stack.rows("select id, attempts, error from inbox where handled_at is null")
        number = f"{len(left)} runs, {len(owed)} messages, {len(mail)} letters"
        outcome.wrong.append(f"{error}; {number}; runs: {left[:5]}; owed: {owed[:5]}; mail: {mail[:5]}")
    outcome.healed_s = time.monotonic() - began


async def _runs(stack: Stack) -> list[dict[str, object]]:
    return await stack.rows("select state, halt_reason, recovery_attempts, crashes from runs")


async def _judge(stack: Stack, outcome: Outcome) -> None:
    for run in await _runs(stack):
        reason = f" ({run['halt_reason']})" if run["halt_reason"] else ""
        outcome.runs[f"{run['state']}{reason}"] += 1
    outcome.effects = len(stack.crm.books.effects())
    for method in ("chat.postMessage", "chat.update"):
        outcome.told[method] = len(stack.slack.journal.find({"kind": "request", "method": method}))
    outcome.recovered = await stack.value("select count(distinct run_id) from trace where kind = 'reaped'")
    lost = stack.slack.journal.find({"kind": "event_lost"})
    outcome.wrong += [f"Slack gave up on {record['event_id']}" for record in lost]
    if outcome.wrong:
        return
    try:
        await stack.check()
    except AssertionError as error:
        outcome.wrong += str(error).splitlines()


def _end_all(_signal: int, _frame: object) -> None:
    """The time of the command is up, and not even its own end came: kill all that it started."""
    for child in psutil.Process().children(recursive=True):
        child.kill()
    print(f"BROKEN not over after {ENDS_WITHIN_S:.0f} s", file=sys.stderr)
    os._exit(1)


def main() -> int:
    """Run what the command line asks for; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument(
        "--seconds",
        type=float,
        default=STORM_S,
        help=f"of bad weather; at most {STORM_S:.0f}, so that all ends in time",
    )
    parser.add_argument("--seed", type=int, default=1, help="which weather")
    asked = parser.parse_args()
    signal.signal(signal.SIGALRM, _end_all)
    signal.alarm(round(ENDS_WITHIN_S))
    said = io.StringIO()  # what the processes logged: of interest only when something is broken
    with redirect_stdout(said):
        outcome = asyncio.run(soak(min(asked.seconds, STORM_S), asked.seed))
    if outcome.wrong:
        print(said.getvalue(), file=sys.stderr)
    print(f"\nsoak: seed {outcome.seed}, {outcome.seconds:.0f} s\n\n{outcome.table()}")
    for line in outcome.wrong:
        print(f"BROKEN {line}")
    return 1 if outcome.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
