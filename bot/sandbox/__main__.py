"""Run the sandbox CRM by itself: prints one JSON line with its address, then serves.

SIGTERM and Ctrl-C end it with exit code 0. With --exit-on-crash a crash_after_commit fault really
ends the process, with exit code 70, so that a restart on the same --state can be tried.
"""

import argparse
import asyncio
import json
import os
import signal
import sys
from pathlib import Path

from bot.sandbox.service import Crm


async def _serve(host: str, port: int, state: Path | None, exit_on_crash: bool) -> None:
    crm = Crm(host, port, state, on_crash=(lambda: os._exit(70)) if exit_on_crash else None)
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, ended.set)
    print(json.dumps({"url": await crm.start()}), flush=True)
    await ended.wait()
    await crm.stop()


def main() -> int:
    """Parse the command line and serve; exit code 2 when the address or the file can't be used."""
    parser = argparse.ArgumentParser(prog="python -m bot.sandbox", description="The sandbox CRM.")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="0: any free one")
    parser.add_argument("--state", type=Path, help="SQLite file that outlives the process")
    parser.add_argument("--exit-on-crash", action="store_true")
    options = parser.parse_args()
    try:
        asyncio.run(_serve(options.host, options.port, options.state, options.exit_on_crash))
    except OSError as error:
        print(f"Can't listen on {options.host}:{options.port}: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
