"""Where the time of a resumption goes: ``python tests/benchmarks/stages.py [MESSAGES] [elsewhere]``.

Prints, as medians in milliseconds since the click, when each statement went out and came back between the engine's
``decide`` and the first line of the tool: the gaps are Python's. *elsewhere*: another process than the one that
suspended. Decides: nothing. The failure it can cause: it wraps the driver's own call, which costs a few microseconds
a statement.
"""

import asyncio
import statistics
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

import asyncpg
import uvloop

from core.engine import Engine
from tests.benchmarks import length
from tests.benchmarks.server import Server, started
from tests.benchmarks.subjects import subject, vacuum

RUNS = 80


class Stages:
    """What happened since the last click: (when it began, when it ended, its name), in seconds."""

    def __init__(self) -> None:
        self.now: list[tuple[float, float, str]] = []
        self.all: list[list[tuple[float, float, str]]] = []

    def mark(self, name: str) -> None:
        """Note a moment."""
        at = time.perf_counter()
        self.now.append((at, at, name))

    def watch(self) -> None:
        """Wrap the driver, the engine and the tool's first line."""
        driver: Any = asyncpg.Connection
        execute, decide, began = driver._execute, Engine.decide, length.Timed.__call__

        async def executed(connection: Any, query: str, *args: Any, **more: Any) -> Any:
            begun = time.perf_counter()
            try:
                return await execute(connection, query, *args, **more)
            finally:
                self.now.append((begun, time.perf_counter(), query.split()[1]))

        async def decided(*args: Any, **more: Any) -> Any:
            self.now = []
            self.mark("the click")
            return await decide(*args, **more)

        def first_line(timed: Any, run_id: str) -> None:
            self.mark("the tool's first line")
            self.all.append(sorted(self.now))
            began(timed, run_id)

        engine: Any = Engine
        tool: Any = length.Timed
        driver._execute, engine.decide, tool.__call__ = executed, decided, first_line

    def print(self) -> None:
        """Print the medians of the runs that went the usual way."""
        usual = [name for _, _, name in self.all[-1]]
        runs = [run for run in self.all if [name for _, _, name in run] == usual]
        print("| at ms | until ms | what |\n| --- | --- | --- |")
        for place, name in enumerate(usual):
            begun = 1e3 * statistics.median(run[place][0] - run[0][0] for run in runs)
            ended = 1e3 * statistics.median(run[place][1] - run[0][0] for run in runs)
            print(f"| {begun:.2f} | {ended:.2f} | {name} |")


async def main() -> None:
    """Start a server and measure on it."""
    messages = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    stages = Stages()
    async with started(1.0, None, print) as server:
        await measured(server, messages, stages, elsewhere="elsewhere" in sys.argv)
    stages.print()


async def measured(server: Server, messages: int, stages: Stages, *, elsewhere: bool) -> None:
    """Resume RUNS runs that wait after *messages* messages, one after another."""
    async with server.database() as dsn:
        opened = await subject(dsn)
        resuming = await subject(dsn) if elsewhere else opened
        runs = [(await length._suspended(opened, messages))[0] for _ in range(RUNS)]
        await vacuum(dsn)
        stages.watch()
        await length._resumed(server, resuming, runs)
        await opened.close()
        await resuming.close()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())
