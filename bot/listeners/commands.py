"""`/atlas`: help, pending, runs, show, continue, stop. Every answer is private.

Decides: what each word does. Moves are committed before the ack, lists are read after it. Does not: work inside
threads (Slack refuses slash commands there); "@Atlas …" does.
"""

from collections.abc import Sequence

from slack_bolt.async_app import AsyncApp
from slack_bolt.kwargs_injection.async_args import AsyncArgs

from bot import texts
from bot.blocks.offers import offers
from bot.lines import Line, clip, unescape, visible
from bot.listeners.service import Service, whisper, whisper_lines
from core.approvals import Via
from core.engine import Actor
from core.errors import CouldNotCheck, StoreUnavailable
from core.words import Command, command_of

MOVES = ("continue", "stop")


def register(app: AsyncApp, service: Service) -> None:
    """Add the slash command to *app*."""

    @service.listener
    async def atlas(args: AsyncArgs) -> None:
        text = unescape(str(args.body.get("text") or "")).strip()
        command = command_of(text) if text else Command("help")
        if command is not None and command.name in MOVES:
            await _move(args, service, command)
            return
        await args.ack()
        if command is not None and command.name == "help":
            await whisper_lines(args, texts.help_lines(service.examples), offers(service.examples))
            return
        try:
            lines = await _read(args, service, command, text)
        except (StoreUnavailable, CouldNotCheck):
            await whisper(args, ("Atlas could not look that up just now. Please try again in a moment.",))
            return
        await whisper_lines(args, lines)

    app.command("/atlas")(atlas)


async def _move(args: AsyncArgs, service: Service, command: Command) -> None:
    actor = service.actor(args.body, Via.COMMAND)
    run_id = command.argument or None
    async with service.committing():
        if command.name == "stop":
            answer = texts.stopped_words(await service.engine.stop_run(actor, run_id))
        else:
            continued = await service.engine.continue_run(actor, run_id)
            if continued.run is not None:
                answer = texts.continued_words(continued.run)
            elif run_id is None:
                answer = texts.NOTHING_TO_CONTINUE
            else:
                answer = await _why_not_continued(service, actor, run_id)
    await args.ack(text=answer, response_type="ephemeral")
    service.moved()


async def _why_not_continued(service: Service, actor: Actor, run_id: str) -> str:
    view = await service.engine.show(actor, run_id)
    if view is None:
        return texts.no_run_to_continue(run_id)
    return texts.not_continued_words(view.run, actor.user_id, by_button=False)


async def _read(args: AsyncArgs, service: Service, command: Command | None, text: str) -> Sequence[Line]:
    actor = service.actor(args.body, Via.COMMAND)
    if command is None:
        unknown: Line = (f"Atlas has no command “{clip(visible(text), 100)}”.",)
        return [unknown, *texts.help_lines(service.examples)]
    if command.name == "runs":
        runs = await service.engine.runs(actor)
        lines = [texts.one_run(run, service.thread_link(run)) for run in runs]
        return lines or [(texts.NO_RUNS,)]
    if command.name == "pending":
        waiting = await service.engine.pending(actor)
        lines = [texts.one_pending(suspension, run, service.thread_link(run)) for suspension, run in waiting]
        return lines or [("Nothing waits for your decision.",)]
    if command.name == "show":
        run_id = command.argument
        if not run_id:
            mine = await service.engine.runs(actor, limit=1)
            if not mine:
                return [(texts.NO_RUNS,)]
            run_id = mine[0].id
        view = await service.engine.show(actor, run_id)
        return texts.show_lines(view) if view is not None else [(texts.NOT_FOUND,)]
    raise AssertionError(f"no list is called {command.name}")
