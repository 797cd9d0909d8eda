"""Our lines for the peers' harness: prints them in its format against the server at ``$PGDSN``, which it also needs.

One more entry of their ``run_all.py`` puts ours and theirs in one table of their ``summary.py``:

    SCRIPTS["atlas"] = "<this repository>/tests/benchmarks/beside_peers.py"    # and $PEERS_VENVS/atlas, our .venv

Lines that ``make bench`` has written already are printed for that table without measuring anew:

    python tests/benchmarks/beside_peers.py docs/bench/atlas.jsonl | cat docs/bench/peers.jsonl - >both.jsonl

Decides: nothing when it measures: the same as ``make bench``, one round, without what needs minutes. Of lines that are
there: those of a kind that the peers have too, each with the bare loop of its own round, which stays another round than
any of theirs, since they were measured in other minutes.
"""

import asyncio
import json
import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

import uvloop

from tests.benchmarks import length, steps
from tests.benchmarks.server import started

THEIR_KINDS = ("asyncpg", "steps", "step_path", "growth", "suspend_resume")


def line_of_theirs(text: str) -> None:
    """Print a line without what their harness adds itself."""
    print(json.dumps({name: value for name, value in json.loads(text).items() if name != "round"}), flush=True)


def lines_of_theirs(lines: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Return those lines of ``make bench`` that fit their table, as their harness would have kept them."""
    for line in lines:
        # Counting statements slows a measurement; their bare loop runs on asyncio's own event loop.
        if line["bench"] not in THEIR_KINDS or line.get("counted") or line.get("mode") == "uvloop":
            continue
        theirs = {name: value for name, value in line.items() if line["peer"] != "raw" or name != "mode"}
        yield theirs | {"round": f"atlas {line['round']}"}


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
    if sys.argv[1:]:
        for kept in lines_of_theirs(map(json.loads, Path(sys.argv[1]).read_text().splitlines())):
            print(json.dumps(kept))
    else:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(main())
