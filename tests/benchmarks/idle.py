"""What a whole process of Atlas asks PostgreSQL for: while nobody wants anything, and with a hundred edits to pace.

Decides: nothing. Counted, not timed: statements per second by name, of a real process beside a workspace that enforces
Slack's rates; and how long that process takes from its start to ready.
"""

import asyncio
import random
import re
import tempfile
import time
from pathlib import Path
from typing import Any

import asyncpg
import psutil

from bot.simulator import AppManifest, Simulator
from storage.sql import load_statements
from tests.benchmarks.acks import PATIENCE_S, ROOT, Round, cast, cpu_of, served
from tests.benchmarks.server import Server

EDITS = 100
SECONDS = 20


async def idle(server: Server) -> None:
    """Measure one process: its start, 20 s with nothing to do, 20 s with 100 progress lines to edit."""
    async with server.database(counted=True) as dsn:
        manifest = AppManifest.load(ROOT / "manifest.yml")
        with tempfile.TemporaryDirectory() as directory:
            async with Simulator(cast(), manifest) as slack:
                begun = time.perf_counter()
                bot = served(slack, dsn, Path(directory))
                try:
                    await bot.ready(PATIENCE_S)
                    took = round(time.perf_counter() - begun, 2)
                    cpu = round(cpu_of(psutil.Process(bot.process.pid)), 2)
                    server.emit({"peer": "atlas", "bench": "ready", "median_s": took, "cpu_s": cpu})
                    await Round(slack, bot, dsn, random.Random(0)).prepare(EDITS, 0)
                    seconds = server.n(SECONDS, least=5)
                    admin = await asyncpg.connect(server.dsn)
                    process = psutil.Process(bot.process.pid)
                    server.emit({"peer": "atlas", "bench": "idle", **await _counted(admin, process, seconds)})
                    owner = await asyncpg.connect(dsn)
                    await owner.execute("update outbox set version = version + 1 where kind = 'progress'")
                    await owner.close()
                    slack.tiers.enabled = True
                    told = await _counted(admin, process, seconds)
                    server.emit({"peer": "atlas", "bench": "paced_edits", "edits": EDITS, **told})
                    await admin.close()
                finally:
                    bot.end()


async def _counted(admin: Any, process: psutil.Process, seconds: int) -> dict[str, Any]:
    """Return how many statements ran meanwhile, each second, and the ten most frequent ones."""
    await asyncio.sleep(2.0)
    await admin.execute("select pg_stat_statements_reset()")
    used = cpu_of(process)
    await asyncio.sleep(seconds)
    used = cpu_of(process) - used
    rows = await admin.fetch(
        "select query, calls from pg_stat_statements s join pg_database d on d.oid = s.dbid"
        " where d.datname <> current_database() order by calls desc"
    )
    most = {_name(row["query"]): round(row["calls"] / seconds, 2) for row in rows[:10]}
    return {
        "seconds": seconds,
        "statements_per_s": round(sum(row["calls"] for row in rows) / seconds, 1),
        "most": most,
        "cpu_share": round(used / seconds, 3),
    }


def _name(query: str) -> str:
    """Return the name of a statement of ours, else how it begins. PostgreSQL keeps it without the comment before it."""
    names = {_begin(re.sub(r"^/\*.*?\*/", "", each.text)): name for name, each in load_statements().items()}
    return names.get(_begin(query), " ".join(query.split())[:40])


def _begin(query: str) -> str:
    return re.sub(r"'[^']*'|\$?\b\d+\b|\b(true|false|null)\b", "?", " ".join(query.split()))[:100]
