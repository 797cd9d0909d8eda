"""Examples to click: the click is stored as its presser's message before the ack, like any other.

Decides: where the request goes on (the thread of the button, or the presser's direct messages) and that its words are
the agent's. Does not: start anything (the drain does, once the line that announces the request stands). The failure it
can cause: one click that becomes two requests; so it is stored under its own time and place.
"""

import logging
import re
from collections.abc import Callable
from typing import Any

from slack_bolt.async_app import AsyncApp
from slack_bolt.kwargs_injection.async_args import AsyncArgs

from bot import texts
from bot.blocks.offers import EXAMPLE, chosen
from bot.listeners.service import NotCommitted, Service, whisper
from bot.slack import CALL_ERRORS, read_failure
from core.approvals import Via
from core.engine import Actor
from core.errors import CouldNotCheck
from core.ports import InboundEvent, Inbox

log = logging.getLogger("atlas.listeners")


def register(app: AsyncApp, service: Service, inbox: Inbox, arrived: Callable[[], None]) -> None:
    """Add the listener of examples to *app*. *arrived*: the drain and delivery have something to do."""

    @service.listener
    async def ask(args: AsyncArgs) -> None:
        actor = service.actor(args.body, Via.BUTTON)
        (action, *_) = args.body.get("actions") or [{}]
        example = chosen(action.get("value"), service.examples)
        if example is None:
            await args.ack()
            await whisper(args, (texts.NOT_OFFERED,))
            return
        container = args.body.get("container") or {}
        async with service.committing():
            if not await _served(service, actor):
                await args.ack()
                await whisper(args, (texts.NOT_SERVED,))
                return
            in_messages = container.get("type") != "message" or bool(container.get("is_ephemeral"))
            channel = await _direct_messages(args, actor) if in_messages else str(container["channel_id"])
            event = InboundEvent(
                event_id=f"click:{actor.team_id}:{actor.user_id}:{channel}:{action.get('action_ts')}",
                kind="direct" if in_messages or channel.startswith("D") else "mention",
                team_id=actor.team_id,
                channel_id=channel,
                ts=str(action.get("action_ts") or ""),
                thread_ts="",
                user_id=actor.user_id,
                text=example,
                payload=_kept(args.body),
            )
            thread = None if in_messages else _thread(container, channel)
            fresh = await inbox.put_click(event, thread)
        await args.ack()
        if not fresh:
            log.info("click %s came again", event.event_id)
            return
        arrived()
        service.moved()
        if in_messages:
            await whisper(args, (texts.ASKED_IN_MESSAGES,))

    app.action(re.compile(rf"\A{EXAMPLE}\b"))(ask)


async def _served(service: Service, actor: Actor) -> bool:
    """Say whether somebody may ask anything at all; the drain judges once more. Raises: NotCommitted."""
    try:
        person = await service.engine.directory.person(actor.team_id, actor.user_id)
    except CouldNotCheck as error:
        raise NotCommitted(str(error)) from error
    return not (person.bot or person.deactivated or person.foreign)


async def _direct_messages(args: AsyncArgs, actor: Actor) -> str:
    """Return the channel of the presser's direct messages. Raises: NotCommitted."""
    try:
        opened = await args.client.conversations_open(users=actor.user_id)
    except CALL_ERRORS as error:
        raise NotCommitted(f"no direct messages with {actor.user_id}: {read_failure(error).error}") from error
    return str(opened["channel"]["id"])


def _thread(container: dict[str, Any], channel: str) -> str | None:
    """Return the thread that a request goes on in: the button's own; at the top of direct messages a new one."""
    at = container.get("thread_ts")
    if at is None and not channel.startswith("D"):
        at = container.get("message_ts")
    return str(at) if at else None


def _kept(body: dict[str, Any]) -> dict[str, Any]:
    return {key: body[key] for key in ("type", "user", "team", "enterprise", "container", "actions") if key in body}
