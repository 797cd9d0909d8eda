"""Where the time and the log of a step go: by package in this process, by statement in PostgreSQL, by WAL record.

    python tests/benchmarks/where.py [RUNS AT ONCE] [RUNS]

Decides: nothing. cProfile makes a Python call cost more than it does, so its shares say where to look, not how long
things take; ``client`` and ``server`` microseconds are of a pass without it. The whole engine is measured: ten steps a
run, trivial tool, instant model.
"""

import asyncio
import cProfile
import pstats
import re
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

import asyncpg
import uvloop

from core import Agent
from storage import sql
from tests.benchmarks.server import Meter, Server, started
from tests.benchmarks.steps import STEPS, Counted, drained
from tests.benchmarks.subjects import Look, scopes, subject

PACKAGES = {
    "/core/": "core",
    "/storage/": "storage",
    "/asyncpg/": "asyncpg",
    "/pydantic": "pydantic",
    "pydantic_core": "pydantic",
    "/asyncio/": "asyncio",
    "_asyncio": "asyncio",
    "orjson": "JSON",
    "json": "JSON",
    "rfc8785": "JSON",
    "/tests/": "the benchmark itself",
    "/bot/": "core",
}


async def where(server: Server, clients: int, runs: int) -> None:
    """Measure and print."""
    async with server.database(counted=True) as dsn:
        opened = await subject(dsn)
        for _ in range(3 * runs):
            await opened.start(claimed=False)
        model = Counted(STEPS)
        agent = Agent("", [Look()], scopes, model=model)
        await drained(opened, agent, model, clients, runs)
        steps = runs * STEPS
        admin = await asyncpg.connect(server.dsn)
        begin = await admin.fetchval("select pg_current_wal_insert_lsn()::text")
        begun = time.perf_counter()
        async with Meter(server, counted=True) as meter:
            await drained(opened, agent, model, clients, runs)
        took = time.perf_counter() - begun
        end = await admin.fetchval("select pg_current_wal_lsn()::text")
        print(f"\n{clients} runs at once, {steps} steps: {1e6 * took / steps:.0f} µs a step,")
        print(
            f"of which client {1e6 * meter.client_cpu / steps:.0f} µs, server {1e6 * meter.server_cpu / steps:.0f} µs\n"
        )
        await _statements(admin, steps)
        await _log(admin, begin, end, steps)
        profile = cProfile.Profile()
        profile.enable()
        await drained(opened, agent, model, clients, runs)
        profile.disable()
        _packages(profile, steps)
        await admin.close()
        await opened.close()


async def _statements(admin: Any, steps: int) -> None:
    rows = await admin.fetch(
        "select query, calls, mean_exec_time"
        " from pg_stat_statements s join pg_database d on d.oid = s.dbid where d.datname <> current_database()"
        " order by total_exec_time desc limit 8"
    )
    names = {_shape(statement.text): name for name, statement in sql.load_statements().items()}
    print("| statement | calls a step | ms a call | ms a step |\n| --- | --- | --- | --- |")
    for row in rows:
        name = names.get(_shape(row["query"]), " ".join(row["query"].split())[:40])
        share, mean = row["calls"] / steps, row["mean_exec_time"]
        print(f"| {name} | {share:.3f} | {mean:.3f} | {share * mean:.4f} |")


def _shape(query: str) -> str:
    """Return a statement without comments, spaces, constants and numbers of parameters, as both sides may write it."""
    query = re.sub(r"/\*.*?\*/|--[^\n]*", "", query, flags=re.DOTALL)
    return re.sub(r"'[^']*'|\$?\b\d+\b|\b(null|true|false)\b|\s", "", query).replace("$", "")


async def _log(admin: Any, begin: str, end: str, steps: int) -> None:
    rows = await admin.fetch(
        'select "resource_manager/record_type" as kind, count, combined_size'
        " from pg_get_wal_stats($1::text::pg_lsn, $2::text::pg_lsn, true) where count > 0"
        " order by combined_size desc limit 7",
        begin,
        end,
    )
    print("\n| WAL record | a step | bytes a step |\n| --- | --- | --- |")
    for row in rows:
        print(f"| {row['kind']} | {row['count'] / steps:.2f} | {float(row['combined_size']) / steps:.0f} |")


def _packages(profile: cProfile.Profile, steps: int) -> None:
    shares: dict[str, float] = defaultdict(float)
    calls: dict[str, int] = defaultdict(int)
    stats: Any = pstats.Stats(profile)
    for (file, _, name), (_, count, own, _, _) in stats.stats.items():
        place = f"{file} {name}"
        package = next((title for part, title in PACKAGES.items() if part in place), "built in")
        shares[package] += own
        calls[package] += count
    total = sum(shares.values())
    print("\n| package | share of the profile | calls a step |\n| --- | --- | --- |")
    for package, own in sorted(shares.items(), key=lambda one: -one[1]):
        print(f"| {package} | {own / total:.0%} | {calls[package] / steps:.0f} |")


async def main() -> None:
    """Start a server and measure on it."""
    clients, runs = map(int, [*sys.argv[1:3], "32", "200"][:2] if len(sys.argv) != 2 else [sys.argv[1], "200"])
    async with started(1.0, None, print) as server:
        await where(server, clients, runs)


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())
