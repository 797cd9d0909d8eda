"""Events: mentions and direct messages go into the inbox before they are acked; Home is drawn when it is opened.

Decides: which events count (people's own messages that mention Atlas, or stand in its DM) and their text. Does not:
understand them (the drain does). The failure it can cause: Bolt acks an event before its listener runs, so storing in
a listener would lose what a crash interrupts; this is a global middleware, and what cannot be stored is not acked.
"""

import logging
import re
from collections.abc import Awaitable, Callable
from typing import Any

from slack_bolt.async_app import AsyncApp
from slack_bolt.kwargs_injection.async_args import AsyncArgs
from slack_bolt.request.async_request import AsyncBoltRequest
from slack_bolt.response import BoltResponse

from bot.lines import unescape
from bot.listeners.service import NotCommitted, Service, team_of
from bot.slack import Installation
from bot.texts import Texts
from core.errors import StoreUnavailable
from core.ports import InboundEvent, Inbox

log = logging.getLogger("atlas.events")

# Every other subtype is a change, a join, a bot's post …: not somebody asking.
SUBTYPES = frozenset({None, "file_share", "thread_broadcast"})


def inbound(body: dict[str, Any], ours: Installation) -> InboundEvent | str | None:
    """Return the event as the inbox stores it, why it is not taken, or None: it is none that asks Atlas.

    Source: Slack, event wrapper, app_mention and message.im (a mention inside a DM arrives as message.im).
    """
    event = body.get("event")
    if body.get("type") != "event_callback" or not isinstance(event, dict):
        return None
    kind = event.get("type")
    direct = kind == "message" and event.get("channel_type") == "im"
    if not (kind == "app_mention" or direct):
        return None
    user, channel, ts = event.get("user"), event.get("channel"), event.get("ts")
    team, event_id = team_of(body, ours), body.get("event_id")
    if event.get("subtype") not in SUBTYPES or event.get("hidden"):
        return f"subtype {str(event.get('subtype'))[:60]}"
    if event.get("bot_id") or user == ours.bot_user_id:
        return "written by a bot"
    if team is None:
        return f"of another team ({str(body.get('team_id'))[:30]})"
    if not (user and channel and ts and event_id):
        return "without a writer, a place or an id"
    return InboundEvent(
        event_id=str(event_id),
        kind="direct" if direct else "mention",
        team_id=team,
        channel_id=str(channel),
        ts=str(ts),
        thread_ts=str(event.get("thread_ts") or ts),
        user_id=str(user),
        text=typed(str(event.get("text") or ""), ours.bot_user_id),
        # The verification token is a deprecated secret of Slack's; nobody needs it in the store.
        payload={key: value for key, value in body.items() if key != "token"},
    )


def _of_another_team(body: dict[str, Any], service: Service) -> bool:
    """Say whether the writer is of another team, by Slack's own word: the drain will not take it, so no sign is given.

    Source: Slack, events of shared channels carry the writer's ``user_team`` and ``source_team``.
    """
    event = body["event"]
    team = event.get("user_team") or event.get("source_team")
    ours = {service.installation.team_id, service.installation.enterprise_id}
    return team is not None and team not in ours


def typed(text: str, bot_user_id: str) -> str:
    """Return a message's text as its writer typed it: without the mention of Atlas, links and entities undone once."""
    text = re.sub(rf"<@{re.escape(bot_user_id)}(\|[^>]*)?>[,:]?", " ", text)
    text = re.sub(r"<((?:https?|mailto|tel):[^|>]+)(?:\|([^>]*))?>", _link, text)
    text = re.sub(r"<#([A-Z0-9]+)\|([^>]+)>", r"#\2", text)
    text = re.sub(r"[ \t]{2,}", " ", text)
    return unescape(text).strip()


def _link(match: re.Match[str]) -> str:
    url, label = match.group(1), match.group(2)
    address = re.sub(r"^(mailto|tel):", "", url)
    if not label or label in url:
        return label or address
    return f"{label} ({address})"


def _retry(request: AsyncBoltRequest) -> dict[str, str]:
    """Return which attempt of Slack's this is, and why; a retry can be the only delivery, so it is only noted."""
    headers = {"number": "x-slack-retry-num", "reason": "x-slack-retry-reason"}
    return {name: ", ".join(request.headers.get(header) or ()) for name, header in headers.items()}


def register(
    app: AsyncApp,
    service: Service,
    inbox: Inbox,
    arrived: Callable[[], None],
    heard: Callable[[str, str], None],
) -> None:
    """Add the inbox middleware and the event listeners to *app*. *arrived*: the drain has something to do; *heard*: a
    message of this channel and thread was stored."""

    async def keep(
        request: AsyncBoltRequest, body: dict[str, Any], next_: Callable[[], Awaitable[None]]
    ) -> BoltResponse | None:
        event = inbound(body, service.installation)
        if not isinstance(event, InboundEvent):
            if event is not None:
                log.info("event %s is not taken: %s", body.get("event_id"), event)
            await next_()
            return None
        event.payload["retry"] = _retry(request)
        async with service.in_flight.one():
            try:
                async with service.committing():
                    fresh = await inbox.put(event)
            except NotCommitted as error:
                # Not acked: Slack sends it again.
                log.warning("event %s could not be stored: %s", event.event_id, error)
                return BoltResponse(status=503, body="")
        if fresh:
            arrived()
            if not _of_another_team(body, service):
                heard(event.channel_id, event.thread_ts)
        else:
            log.info("event %s came again: %s", event.event_id, _retry(request))
        return BoltResponse(status=200, body="")

    @service.listener
    async def home_opened(args: AsyncArgs) -> None:
        event = args.body.get("event") or {}
        team_id, user_id = team_of(args.body, service.installation), str(event.get("user") or "")
        if team_id is None or not user_id:
            return
        if event.get("tab") == "home":
            await service.homes.opened(team_id, user_id)
        elif event.get("tab") == "messages" and event.get("channel"):
            text = Texts().help(service.examples)
            try:
                await service.engine.desk.welcome(team_id, user_id, str(event["channel"]), text)
            except StoreUnavailable as error:
                log.warning("%s could not be welcomed: %s", user_id, error)
            service.moved()

    @service.listener
    async def ignored(args: AsyncArgs) -> None:
        # An event without a listener would not be acked, and Slack would send it again and again.
        await args.ack()

    app.use(keep)
    app.event("app_home_opened")(home_opened)
    app.event(re.compile(r".*"))(ignored)
