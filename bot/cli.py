"""The command line: ``atlas`` and ``python -m bot``.

Decides: which command runs with which settings, and the exit code: 0 ok, 1 failed, 2 wrong usage or settings. Does
not: hold rules; acts of the command line go through the same engine as clicks, recorded as operator:<os user>.
The failure it can cause: a traceback where a sentence was due; so what is known is caught here, once.
"""

import argparse
import asyncio
import getpass
import json
import logging
import os
import sys
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from typing import Any

from bot import terminal
from bot.logs import Repeats
from bot.settings import Settings, read_settings
from core.approvals import Refusal, Via
from core.engine import Actor
from core.errors import AtlasError, Misconfigured, StoreUnavailable
from core.run import Run, RunState, SuspensionKind

ALONE = "work-alone"
Handler = Callable[[argparse.Namespace], Awaitable[int]]

REFUSALS: dict[Refusal, str] = {
    Refusal.DECIDED: "it is decided already",
    Refusal.EXPIRED: "it has expired; nothing was done",
    Refusal.REPLACED: "a newer version replaced it; decide on that one (atlas show RUN)",
    Refusal.NOT_AN_APPROVER: "its policy does not let operators approve; they may decline it, or stop the run",
    Refusal.OWN_REQUEST: "its policy does not let the requester approve",
    Refusal.COULD_NOT_CHECK: "it could not be checked; nothing was done, try again",
    Refusal.PRESS_AGAIN: "it was opened again meanwhile; look at it and decide again",
    Refusal.UNKNOWN: "there is no such suspension; atlas show RUN lists them",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return its exit code."""
    given = list(sys.argv[1:] if argv is None else argv)
    # The child that carries one run is started by a worker, never by a person: it is no command of the surface.
    options = _alone_parser().parse_args(given) if given[:1] == [ALONE] else _parser().parse_args(given)
    to_stderr = logging.StreamHandler(sys.stderr)
    to_stderr.addFilter(Repeats())
    logging.basicConfig(
        level=logging.DEBUG if options.verbose else logging.INFO,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        handlers=[to_stderr],
    )
    for chatty in ("apscheduler", "slack_bolt", "slack_sdk", "aiohttp.access", "asyncio"):
        logging.getLogger(chatty).setLevel(logging.DEBUG if options.verbose else logging.WARNING)
    handler: Handler = options.handler
    try:
        return _run(handler(options))
    except Misconfigured as error:
        print(f"atlas {options.command}: cannot start:", file=sys.stderr)
        for problem in error.problems:
            indented = problem.replace("\n", "\n    ")  # an agent's own module may raise several lines
            print(f"  - {indented}", file=sys.stderr)
        return 2
    except StoreUnavailable as error:
        print(f"atlas {options.command}: the database cannot be reached: {error}", file=sys.stderr)
        print("  Check DATABASE_URL, and that PostgreSQL is running and lets you in.", file=sys.stderr)
        return 2
    except AtlasError as error:
        print(f"atlas {options.command}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader of our output left (atlas runs | head): not a failure, and nothing more can be printed.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _run(work: Awaitable[int]) -> int:
    async def awaited() -> int:
        return await work

    try:
        import uvloop
    except ImportError:  # Windows, or left out: asyncio's own loop does the same, slower
        return asyncio.run(awaited())
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(awaited())


def _actor() -> Actor:
    return Actor("", f"operator:{getpass.getuser()}", Via.CLI)


def _print(document: Any) -> None:
    print(json.dumps(document, ensure_ascii=False, indent=2))


# -- commands ------------------------------------------------------------------------------------------------------


async def serve(options: argparse.Namespace) -> int:
    """Run listeners, workers and jobs until SIGTERM or Ctrl-C."""
    from bot.wiring import serve as serve_process

    return await serve_process(read_settings(), role=options.role)


async def work_alone(options: argparse.Namespace) -> int:
    """Carry one run that takes processes down, in a process of its own."""
    from bot.wiring import work_alone as carry

    return await carry(read_settings(), options.run)


async def migrate(options: argparse.Namespace) -> int:
    """Bring the database's schema up to date."""
    from bot.opening import migrate as bring_up

    applied = await bring_up(read_settings(slack=False))
    if options.json:
        _print({"applied": applied})
    else:
        print("\n".join(f"applied {name}" for name in applied) or "The schema is up to date.")
    return 0


async def doctor(options: argparse.Namespace) -> int:
    """Check everything that a start needs, and say what to do about the rest."""
    from bot.doctor import examine

    findings = await examine(read_settings())
    if options.json:
        _print([{"part": f.part, "ok": f.ok, "text": f.text} for f in findings])
    else:
        for finding in findings:
            print(f"{'ok  ' if finding.ok else 'FAIL'}  {finding.part}: {finding.text}")
    return 0 if all(finding.ok for finding in findings) else 1


async def runs(options: argparse.Namespace) -> int:
    """List runs, newest first."""
    from bot.opening import console

    async with console(_readonly()) as desk:
        found = await desk.engine.runs(_actor(), options.limit)
    if options.json:
        _print([terminal.run_document(run) for run in found])
    else:
        print(terminal.runs_table(found, datetime.now(UTC)))
    return 0


async def show(options: argparse.Namespace) -> int:
    """Show one run: what it is, what waits, what happened when."""
    from bot.opening import console

    async with console(_readonly()) as desk:
        view = await desk.engine.show(_actor(), options.run)
        timeline = await desk.timeline(view.run.id) if view else []
    if view is None:
        return _failed(options, f"there is no run {options.run}; atlas runs lists them")
    if options.json:
        _print(terminal.show_document(view, timeline))
    else:
        print(terminal.show_text(view, timeline, datetime.now(UTC)))
    return 0


async def decide(options: argparse.Namespace) -> int:
    """Approve, decline, or answer an outcome."""
    from bot.opening import console

    async with console(_readonly()) as desk:
        suspension = await desk.open_suspension(options.suspension)
        if suspension is None:
            return _failed(options, f"nothing open by that name: {options.suspension}; atlas show RUN lists them")
        outcome = suspension.kind is SuspensionKind.OUTCOME
        words = ("happened", "did_not_happen") if outcome else ("approve", "decline")
        if options.verdict not in words:
            asked = "asks whether it happened" if outcome else "waits for an approval"
            return _failed(options, f"nothing was decided: {suspension.tool} {asked}; say {' or '.join(words)}")
        approve = options.verdict == words[0]
        decided = await desk.engine.decide(
            _actor(),
            suspension.id,
            suspension.token,
            approve=approve,
            digest=suspension.digest,
            reason=options.reason,
        )
    if decided.refusal is not None:
        return _failed(options, f"nothing was decided: {REFUSALS[decided.refusal]}")
    text = f"{options.verdict}: recorded for {suspension.tool} ({suspension.digest[:8]})"
    if decided.pending_votes:
        text += f"; {decided.pending_votes} more approvals are needed"
    return _done(options, text, {"suspension": suspension.id, "pending_votes": decided.pending_votes})


async def continue_run(options: argparse.Namespace) -> int:
    """Continue a halted run, on record."""
    from bot.opening import console

    async with console(_readonly()) as desk:
        continued = await desk.engine.continue_run(_actor(), options.run, reason=options.reason)
        view = await desk.engine.show(_actor(), options.run) if continued.run is None else None
    if continued.run is None:
        return _failed(options, _why_not_continued(options, view.run if view else None))
    return _done(options, f"run {continued.run.id} goes on", terminal.run_document(continued.run))


def _why_not_continued(options: argparse.Namespace, run: Run | None) -> str:
    """Return the one reason that applies to *run* as it is now."""
    if run is None:
        return f"there is no run {options.run}; atlas runs lists them"
    if not options.reason:
        return "an operator continues a run only with a reason: --reason TEXT"
    if run.state is RunState.HALTED:
        return f"run {run.id} can't go on: its thread has a newer live run; wait for that one, or stop it"
    ended = run.state in (RunState.ANSWERED, RunState.FAILED)
    goes_on = "it has ended" if ended else "it is not halted, so it goes on by itself"
    return f"nothing to continue: run {run.id} is {terminal.why_of(run)}; {goes_on}"


async def stop(options: argparse.Namespace) -> int:
    """Stop a run."""
    from bot.opening import console

    async with console(_readonly()) as desk:
        stopped = await desk.engine.stop_run(_actor(), options.run)
    if stopped.run is None:
        return _failed(options, f"there is no run {options.run}; atlas runs lists them")
    if stopped.how == "ended":
        return _failed(options, f"nothing to stop: run {stopped.run.id} has ended ({terminal.why_of(stopped.run)})")
    words = {"halted": "is stopped", "requested": "stops at its next act"}
    text = f"run {stopped.run.id} {words[stopped.how]}"
    return _done(options, text, {"run": stopped.run.id, "how": stopped.how})


async def demo(options: argparse.Namespace) -> int:
    """Serve a workspace in the browser, with no account anywhere."""
    from bot.demo import play, show_page

    if options.script:
        return await play(options)
    return await show_page(options)


def _readonly() -> Settings:
    return read_settings(slack=False)


def _failed(options: argparse.Namespace, text: str) -> int:
    print(f"atlas {options.command}: {text}", file=sys.stderr)
    return 1


def _done(options: argparse.Namespace, text: str, document: dict[str, Any]) -> int:
    if options.json:
        _print(document)
    else:
        print(text)
    return 0


def _at_least_one(text: str) -> int:
    """Read a count of the command line; argparse says what is wrong."""
    if not text.isascii() or not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 on")
    return int(text)


def _port(text: str) -> int:
    """Read a port of the command line; argparse says what is wrong."""
    if not text.isascii() or not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port, 0 to 65535")
    return int(text)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="atlas",
        description="A Slack agent that is allowed to act: what needs approval waits for a person's click.",
    )
    parser.add_argument("--verbose", action="store_true", help="log more")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def add(name: str, handler: Handler, text: str, *, json_too: bool = True) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=text, description=text)
        command.set_defaults(handler=handler)
        if json_too:
            command.add_argument("--json", action="store_true", help="print JSON for programs")
        return command

    served = add("serve", serve, "run listeners, workers and jobs", json_too=False)
    served.add_argument("--role", choices=("all", "bot", "worker"), default="all", help="only a part of them")
    add("migrate", migrate, "bring the database's schema up to date")
    played = add("demo", demo, "a workspace in the browser, with no account anywhere", json_too=False)
    played.add_argument("--script", action="store_true", help="play the whole story without a person")
    played.add_argument("--no-browser", action="store_true", help="only print the address")
    played.add_argument("--port", type=_port, default=0, help="of the page (0: any free one)")
    add("doctor", doctor, "check settings, tokens, Slack, database and agent")
    listed = add("runs", runs, "list runs, newest first")
    listed.add_argument("--limit", type=_at_least_one, default=20, help="how many at most (20)")
    shown = add("show", show, "show one run with its timeline")
    shown.add_argument("run", metavar="RUN")
    decided = add("decide", decide, "approve or decline what waits, or say whether it happened")
    decided.add_argument("suspension", metavar="SUSPENSION", help="its id, or the run's when only one is open")
    decided.add_argument("verdict", choices=("approve", "decline", "happened", "did_not_happen"))
    decided.add_argument("--reason", default=None, help="why; when declining, the model is told")
    continued = add("continue", continue_run, "continue a halted run, on record")
    continued.add_argument("run", metavar="RUN")
    continued.add_argument("--reason", required=True, help="why, for the record")
    stopped = add("stop", stop, "stop a run")
    stopped.add_argument("run", metavar="RUN")
    return parser


def _alone_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="atlas")
    parser.add_argument("command")
    parser.add_argument("run")
    parser.set_defaults(handler=work_alone, verbose=False)
    return parser
