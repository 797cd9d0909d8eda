"""Our lines for the peers' harness: prints them in its format against the server at ``$PGDSN``, which it also needs.

One more entry of their ``run_all.py`` puts ours and theirs in one table of their ``summary.py``:

    SCRIPTS["atlas"] = "<this repository>/tests/benchmarks/beside_peers.py"    # and $PEERS_VENVS/atlas, our .venv

Decides: nothing; the same measurements as ``make bench``, one round, without those that need minutes.
"""

import asyncio
import json
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import uvloop

from tests.benchmarks import length, steps
from tests.benchmarks.server import started


def line_of_theirs(text: str) -> None:
    """Print a line without what their harness adds itself."""
    print(json.dumps({name: value for name, value in json.loads(text).items() if name != "round"}), flush=True)


async def main() -> None:
    """Measure and print."""
    dsn = os.environ.get("PGDSN") or sys.exit("set PGDSN, e.g. postgresql://user@127.0.0.1:5432/bench")
    counted = os.environ.get("COUNT_STATEMENTS") == "1"
    async with started(float(os.environ.get("BENCH_SCALE", "1")), dsn, line_of_theirs) as server:
        for clients in (1, 8, 32):
            await steps.step_path(server, clients, counted=counted)
            await steps.engine(server, clients, counted=counted)
        await length.growth(server, counted=counted)
        await length.resume(server)


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())
