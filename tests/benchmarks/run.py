"""``make bench``: measure everything on this machine, beside a bare asyncpg INSERT loop on the same server.

    python tests/benchmarks/run.py [--rounds 3] [--only steps,growth] [--out bench.jsonl]

One JSON line a measurement in the format of the peers' scripts (to --out, else to out/bench.jsonl here), then a table.
``BENCH_SCALE=0.2`` makes a quick pass. The server is an embedded PostgreSQL of its own with fsync on, unless ``PGDSN``
names one (a role that may create databases; as superuser it also gets commit counts).
"""

import argparse
import asyncio
import json
import os
import platform
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import psutil
import uvloop

from tests.benchmarks import acks, crowd, idle, large, length, processes, steps
from tests.benchmarks.server import Server, started
from tests.benchmarks.table import table


async def steps_beside_bare(server: Server) -> None:
    """Step path and engine at each concurrency, each right after its bare loop."""
    for clients in steps.CONCURRENCY:
        # The peers' bare loop runs on asyncio's own event loop, which needs a thread here.
        await asyncio.to_thread(asyncio.run, steps.bare(server, clients, "asyncio"))
        await steps.bare(server, clients, "uvloop")
        await steps.step_path(server, clients)
        await steps.engine(server, clients)


async def counted(server: Server) -> None:
    """Count statements: slower, so apart from the rest."""
    for clients in (1, 8, 32):
        await steps.step_path(server, clients, counted=True)
        await steps.engine(server, clients, counted=True)
    await length.growth(server, counted=True)


GROUPS: dict[str, list[Callable[[Server], Awaitable[None]]]] = {
    "steps": [steps_beside_bare],
    "growth": [length.growth],
    "resume": [length.resume],
    "counted": [counted],
    "crowd": [crowd.suspended_beside_active, crowd.orphans, crowd.expiries],
    "large": [large.million, large.bloat, large.retention],
    "processes": [processes.start, processes.killed, processes.memory, processes.scale_out],
    "idle": [idle.idle],
    "acks": [acks.acks],
}
# Everything else is measured once: it is slow, and says its own spread.
EACH_ROUND = ("steps", "growth", "resume", "acks")


async def measure(server: Server, name: str) -> None:
    """Run one group."""
    for each in GROUPS[name]:
        await each(server)


def main() -> int:
    """Measure; 0 when every measurement came to an end."""
    parser = argparse.ArgumentParser(prog="bench")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default=",".join(GROUPS))
    parser.add_argument("--out", default=str(Path(__file__).parent / "out" / "bench.jsonl"))
    options = parser.parse_args()
    names = options.only.split(",")
    scale = float(os.environ.get("BENCH_SCALE", "1"))
    out = Path(options.out)
    machine = {
        "peer": "machine",
        "bench": "machine",
        "cores": psutil.cpu_count(),
        "memory_gb": round(psutil.virtual_memory().total / 1e9),
        "python": platform.python_version(),
        "scale": scale,
        "load_before": round(os.getloadavg()[0], 2),
    }

    def keep(text: str) -> None:
        print(text, flush=True)
        with out.open("a") as file:
            file.write(text + "\n")

    async def everything() -> None:
        async with started(scale, os.environ.get("PGDSN"), keep) as server:
            keep(json.dumps(machine | server.settings))
            for server.round in range(options.rounds):
                for name in names:
                    if not server.round or name in EACH_ROUND:
                        await measure(server, name)

    out.parent.mkdir(parents=True, exist_ok=True)
    out.unlink(missing_ok=True)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(everything())
    lines = [json.loads(line) for line in out.read_text().splitlines() if '"machine"' not in line]
    others = [line for line in lines if line["bench"] != "acks"]
    print("\n\n".join(part for part in (table(others) if others else "", acks.acks_table(lines)) if part))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
