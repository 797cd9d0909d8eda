"""A process of the benchmarks: ``child.py wait DSN RUNS`` or ``child.py drain DSN CONCURRENCY``.

Decides: nothing. ``wait`` carries runs whose model never answers and says so when all are at it, with its memory;
``drain`` works runs off until none is left and says when it began and ended. It runs until it is killed.
"""

import asyncio
import gc
import json
import os
import sys
import time
from typing import Any

import psutil
import uvloop

from bot import garbage
from bot.wiring import SystemClock
from core import Agent
from core.worker import Worker
from jobs.heartbeat import Heartbeat
from storage.pulse import Pulse
from tests.benchmarks.processes import Waiting
from tests.benchmarks.steps import STEPS
from tests.benchmarks.subjects import InstantModel, Look, Subject, scopes, subject


def say(**heard: Any) -> None:
    print(json.dumps(heard), flush=True)


async def wait(opened: Subject, dsn: str, runs: int) -> None:
    """Carry *runs* that wait on their model, until killed."""
    heartbeat = Heartbeat(Pulse(dsn, opened.worker_id, os.getpid(), "worker"), SystemClock(), 90.0)
    await heartbeat.beat()
    beating = asyncio.create_task(heartbeat.run())
    model, agent = Waiting(), Agent("", [Look()], scopes)
    loops = lambda fence: opened.loop(fence, agent, model)  # noqa: E731
    worker = Worker(opened.worker_id, opened.worker, loops, SystemClock(), capacity=runs)
    gc.collect()
    before = psutil.Process().memory_info().rss
    working = asyncio.create_task(worker.run())
    await model.until(runs)
    gc.collect()
    after = psutil.Process().memory_info().rss
    say(
        rss_before_mb=round(before / 1e6, 1),
        rss_mb=round(after / 1e6, 1),
        kb_per_run=round((after - before) / runs / 1e3, 1),
    )
    await asyncio.gather(beating, working)


async def drain(opened: Subject, clients: int) -> None:
    """Work off what there is."""
    model = InstantModel(STEPS)
    agent = Agent("", [Look()], scopes)
    loops = lambda fence: opened.loop(fence, agent, model)  # noqa: E731
    worker = Worker(opened.worker_id, opened.worker, loops, SystemClock(), capacity=clients)
    begin, used = time.perf_counter(), time.process_time()
    working = asyncio.create_task(worker.run())
    end = begin
    while await opened.pool.fetchval("select exists (select from runs where state = 'running')"):
        end = time.perf_counter()
        await asyncio.sleep(0.02)
    say(begin=begin, end=end, cpu_s=time.process_time() - used)
    await asyncio.gather(working)


async def main(role: str, dsn: str, number: str) -> None:
    opened = await subject(dsn)
    garbage.settle()
    if role == "wait":
        await wait(opened, dsn, int(number))
    else:
        await drain(opened, int(number))


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main(*sys.argv[1:4]))
