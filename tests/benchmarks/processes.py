"""Measurements that need processes of their own: a killed one, several on one PostgreSQL, one with many waiting runs.

Decides: when a process counts as gone and its runs as going again: from SIGKILL to the moment at which the last of its
runs is at its model again in another process. The failure it can cause: children that outlive a measurement; so each is
killed when it ends.
"""

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg

from bot.wiring import QUICK_REAP_S, SystemClock
from core import Agent
from core.loop import Loop
from core.ports import Fence
from core.worker import Worker
from jobs.heartbeat import Heartbeat
from jobs.reap_orphans import ReapOrphans
from storage.pulse import Pulse
from tests.benchmarks.crowd import copies
from tests.benchmarks.server import Meter, Server
from tests.benchmarks.steps import STEPS
from tests.benchmarks.subjects import Look, scopes, subject, vacuum

ROOT = Path(__file__).parents[2]
PATIENCE_S = 180.0


class Waiting:
    """A model that never answers, as a slow provider; it says which runs are at it."""

    def __init__(self) -> None:
        self.asked = 0
        self.more = asyncio.Event()

    async def respond(self, *_: Any) -> Any:
        """Wait for ever."""
        self.asked += 1
        self.more.set()
        await asyncio.Event().wait()

    async def until(self, count: int) -> None:
        """Return when that many runs are here."""
        while self.asked < count:
            self.more.clear()
            async with asyncio.timeout(PATIENCE_S):
                await self.more.wait()


@asynccontextmanager
async def child(role: str, dsn: str, *arguments: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """Lend a child process that has been started; it is dead afterwards."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.benchmarks.child",
        role,
        dsn,
        *arguments,
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def told(process: asyncio.subprocess.Process) -> dict[str, Any]:
    """Return the next line of a child."""
    assert process.stdout is not None
    async with asyncio.timeout(PATIENCE_S):
        line = await process.stdout.readline()
    assert line, "the child ended"
    heard: dict[str, Any] = json.loads(line)
    return heard


async def killed(server: Server) -> None:
    """Measure from the SIGKILL of a process with 32 runs to all of them being at their model in another one."""
    async with server.database() as dsn:
        lat = [await _killed_once(dsn, 32) for _ in range(server.n(5, least=2))]
    server.emit(
        {
            "peer": "atlas",
            "bench": "killed_to_going",
            "runs": 32,
            "rounds": len(lat),
            "median_s": round(sorted(lat)[len(lat) // 2], 2),
            "max_s": round(max(lat), 2),
            "note": "SIGKILL to the last of its runs at its model in another process",
        }
    )


async def _killed_once(dsn: str, runs: int) -> float:
    opened = await subject(dsn)
    await opened.pool.execute("delete from runs")
    for _ in range(runs):
        await opened.start(claimed=False)
    model, agent, clock = Waiting(), Agent("", [Look()], scopes), SystemClock()

    def make_loop(fence: Fence) -> Loop:
        return opened.loop(fence, agent, model)

    heartbeat = Heartbeat(Pulse(dsn, opened.worker_id, os.getpid(), "worker"), clock, 90.0)
    worker = Worker(opened.worker_id, opened.worker, make_loop, clock)
    reaper = ReapOrphans(opened.upkeep, heartbeat, 90.0)

    async def look() -> None:
        while True:
            if (await reaper.run_once(quick=True)).reaped:
                worker.wake()
            await asyncio.sleep(QUICK_REAP_S)

    async with child("wait", dsn, str(runs)) as victim:
        await told(victim)
        tasks = [asyncio.create_task(work) for work in (heartbeat.run(), worker.run(), look())]
        while not heartbeat.may_judge:
            await asyncio.sleep(0.05)
        begun = time.perf_counter()
        victim.send_signal(signal.SIGKILL)
        await model.until(runs)
        took = time.perf_counter() - begun
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await worker.drain()
        await heartbeat.stop()
    await opened.close()
    return took


async def start(server: Server) -> None:
    """Measure from starting a process to its first run at its model."""
    lat: list[float] = []
    async with server.database() as dsn:
        opened = await subject(dsn)
        for _ in range(server.n(5, least=2)):
            await opened.start(claimed=False)
            begun = time.perf_counter()
            async with child("wait", dsn, "1") as process:
                await told(process)
                lat.append(time.perf_counter() - begun)
            await opened.pool.execute("delete from runs")
        await opened.close()
    median = round(sorted(lat)[len(lat) // 2], 2)
    server.emit(
        {
            "peer": "atlas",
            "bench": "start",
            "rounds": len(lat),
            "median_s": median,
            "note": "exec to first run at its model",
        }
    )


async def memory(server: Server) -> None:
    """Measure the memory of a process per run that waits on its model."""
    for runs in (1000, server.n(10_000, least=2000)):
        async with server.database() as dsn:
            opened = await subject(dsn)
            run_id = await opened.start(claimed=False)
            assert isinstance(run_id, str)
            await copies(dsn, run_id, runs - 1, "wait", "claimable_at = now()")
            await opened.close()
            await vacuum(dsn)
            async with child("wait", dsn, str(runs)) as process:
                heard = await told(process)
            server.emit({"peer": "atlas", "bench": "memory", "runs": runs, **heard})


async def scale_out(server: Server) -> None:
    """Measure 1, 2 and 4 worker processes on one PostgreSQL, and how many sessions ever wait for a row."""
    runs = server.n(1920, least=192)
    for processes in (1, 2, 4):
        async with server.database() as dsn:
            opened = await subject(dsn)
            for _ in range(runs):
                await opened.start(claimed=False)
            await opened.close()
            await vacuum(dsn)
            admin = await asyncpg.connect(dsn)
            waits = 0
            async with AsyncExitStack() as stack, Meter(server) as meter:
                begun = [await stack.enter_async_context(child("drain", dsn, "32")) for _ in range(processes)]
                spans = []
                for each in begun:
                    telling = asyncio.ensure_future(told(each))
                    while not telling.done():
                        waits += await admin.fetchval(
                            "select count(*) from pg_stat_activity where datname = current_database()"
                            " and wait_event_type = 'Lock' and wait_event in ('tuple', 'transactionid')"
                        )
                        await asyncio.wait({telling}, timeout=0.02)
                    spans.append(telling.result())
            left = await admin.fetchval("select count(*) from runs where state <> 'answered'")
            assert left == 0, left
            await admin.close()
            meter.seconds = max(span["end"] for span in spans) - min(span["begin"] for span in spans)
            meter.client_cpu = sum(span["cpu_s"] for span in spans)  # the clients are these processes, not this one
            meter.emit("scale_out", runs * STEPS, processes=processes, concurrency=32 * processes, row_waits_seen=waits)
