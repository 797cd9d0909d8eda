"""`python -m bot.simulator`: the workspace as a process of its own.

Prints one JSON line with its addresses when it listens; ends on SIGINT or SIGTERM with 0.
"""

import argparse
import asyncio
import json
import signal
import sys
from pathlib import Path

from bot.simulator.delivery import RETRY_SCHEDULE_S
from bot.simulator.server import Simulator
from bot.simulator.workspace import AppManifest, Workspace


def main(argv: list[str] | None = None) -> int:
    """Run the simulator; 2 for a file that cannot be used."""
    options = _parser().parse_args(argv)
    try:
        document = json.loads(options.config.read_text("utf-8")) if options.config else {}
        workspace = Workspace.from_document(document)
        manifest = AppManifest.load(options.manifest) if options.manifest else None
        schedule = tuple(float(gap) for gap in options.retry_schedule.split(",") if gap)
    except (OSError, ValueError) as error:
        print(f"simulator: {error}", file=sys.stderr)
        return 2
    simulator = Simulator(
        workspace,
        manifest,
        host=options.host,
        port=options.port,
        panel_url=options.panel_url,
        journal_path=options.journal,
        rate_tiers=options.rate_tiers,
        request_url=options.request_url,
        retry_schedule_s=schedule,
    )
    try:
        asyncio.run(_serve(simulator))
    except OSError as error:
        print(f"simulator: cannot listen: {error}", file=sys.stderr)
        return 1
    return 0


async def _serve(simulator: Simulator) -> None:
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
    async with simulator:
        print(json.dumps(simulator.addresses()), flush=True)
        await stopped.wait()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bot.simulator", description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="0: the system chooses")
    parser.add_argument("--config", type=Path, help="JSON with people, channels, user_groups, tokens")
    parser.add_argument("--manifest", type=Path, help="the app's manifest (YAML or JSON)")
    parser.add_argument("--panel-url", help="where /panel/... is forwarded")
    parser.add_argument("--journal", type=Path, help="file for the journal, one JSON line a record")
    parser.add_argument("--rate-tiers", action="store_true", help="enforce Slack's rate limits")
    parser.add_argument("--request-url", help="HTTP mode: post signed requests there")
    parser.add_argument(
        "--retry-schedule",
        default=",".join(str(gap) for gap in RETRY_SCHEDULE_S),
        help="seconds before each further delivery of an event that was not acked",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
