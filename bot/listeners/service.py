"""What every listener shares: the engine, whose act it is, how to answer privately, and the count of running ones.

Decides: identity (from the verified payload only) and the time a listener has. Does not: know any action. The failure
it can cause: an identity read from a button's value or from text would let people act as somebody else.
"""

import asyncio
import functools
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from slack_bolt.kwargs_injection.async_args import AsyncArgs
from slack_sdk.webhook.async_client import AsyncWebhookClient

from bot import texts
from bot.blocks import Surroundings
from bot.blocks.modals import sections, told
from bot.homes import Homes
from bot.lines import Block, Line, Link, mrkdwn
from bot.slack import CALL_ERRORS, Installation, read_failure
from core.approvals import Via
from core.engine import Actor, Engine
from core.errors import StoreUnavailable
from core.ports import Decided
from core.run import Run

log = logging.getLogger("atlas.listeners")

# Slack waits 3 s for the ack. What is not committed by then is not acked: the person sees an error and clicks again.
COMMIT_WITHIN_S = 2.5

Listener = Callable[[AsyncArgs], Awaitable[None]]


class InFlight:
    """Counts running listeners, so that a shutdown can wait for them."""

    def __init__(self) -> None:
        self.count = 0
        self._idle = asyncio.Event()
        self._idle.set()

    @asynccontextmanager
    async def one(self) -> AsyncIterator[None]:
        """Count one more until the block ends."""
        self.count += 1
        self._idle.clear()
        try:
            yield
        finally:
            self.count -= 1
            if self.count == 0:
                self._idle.set()

    async def idle(self, within_s: float) -> bool:
        """Wait until none runs; False when some still does after *within_s*."""
        try:
            async with asyncio.timeout(within_s):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True


class NotCommitted(Exception):
    """The act is not known to be stored, so it is not acked."""


@dataclass(frozen=True, slots=True)
class Press:
    """What a button carried; all of it is checked against the stored rows, none of it is believed."""

    suspension_id: str = ""
    token: str = ""
    digest: str | None = None
    run_id: str = ""
    halt_number: int | None = None
    page: int = 0
    alert: str = ""
    raw: str = "{}"


def read_press(value: Any) -> Press | None:
    """Return what a button's value says; None when it is not one of ours."""
    try:
        fields = json.loads(value)
    except (TypeError, ValueError):
        return None
    if not isinstance(fields, dict):
        return None

    def text(name: str) -> str:
        got = fields.get(name)
        return got if isinstance(got, str) and len(got) <= 200 else ""

    def number(name: str) -> int | None:
        got = fields.get(name)
        return got if isinstance(got, int) and not isinstance(got, bool) and 0 <= got < 2**31 else None

    carried = {key: fields[key] for key in ("s", "t", "d") if isinstance(fields.get(key), str)}
    return Press(
        suspension_id=text("s"),
        token=text("t"),
        # A button of ours always carries the digest; a value without one matches nothing.
        digest=text("d"),
        run_id=text("r"),
        halt_number=number("n"),
        page=number("p") or 0,
        alert=text("a"),
        raw=json.dumps(carried, separators=(",", ":")),
    )


def actor_of(body: dict[str, Any], via: Via) -> Actor:
    """Return who acts: the payload's team and user, nothing else. On Grid the enterprise stands in for a missing team.

    Source: Slack, block_actions and view_submission (``team.id``, ``user.id``), slash commands (``team_id``,
    ``user_id``).
    """
    team = body.get("team") or {}
    user = body.get("user") or {}
    enterprise = body.get("enterprise") or {}
    team_id = team.get("id") or body.get("team_id") or enterprise.get("id") or body.get("enterprise_id") or ""
    user_id = user.get("id") or body.get("user_id") or ""
    return Actor(str(team_id), str(user_id), via)


def team_of(body: dict[str, Any], ours: Installation) -> str | None:
    """Return the installing team's id for an event that Slack sent to this installation; None: it is another team's.

    In a shared channel ``team_id`` may be the other company's, and on Grid another workspace's of the same company.
    Source: Slack, event wrapper: ``context_team_id`` and ``authorizations`` say through which team the app hears it.
    """
    heard_by = [body, *(it for it in body.get("authorizations") or [] if isinstance(it, dict))]
    teams = {it.get(key) for it in heard_by for key in ("team_id", "context_team_id")}
    companies = {it.get(key) for it in heard_by for key in ("enterprise_id", "context_enterprise_id")}
    same_company = ours.enterprise_id is not None and ours.enterprise_id in companies
    return ours.team_id if ours.team_id in teams or same_company else None


@dataclass
class Service:
    """What listeners work with. *moved* is called after an act was recorded: deliver what is owed, work what is due."""

    engine: Engine
    installation: Installation
    homes: Homes
    moved: Callable[[], None] = lambda: None
    groups: Callable[[], dict[str, str]] = dict
    examples: Sequence[str] = ()
    commit_within_s: float = COMMIT_WITHIN_S
    in_flight: InFlight = field(default_factory=InFlight)

    @property
    def around(self) -> Surroundings:
        """What rendering needs to know of the workspace."""
        return Surroundings(self.installation.url, self.groups())

    def actor(self, body: dict[str, Any], via: Via) -> Actor:
        """Return who acts, by the ids under which runs are kept: on Grid the whole company is the installing team."""
        actor = actor_of(body, via)
        ours = self.installation
        company = (body.get("enterprise") or {}).get("id") or body.get("enterprise_id")
        if ours.enterprise_id is not None and ours.enterprise_id in (company, actor.team_id):
            return Actor(ours.team_id, actor.user_id, via)
        return actor

    async def refuse_unreadable(self, body: dict[str, Any], via: Via, act: str) -> None:
        """Put on record that somebody tried *act* with a value that names nothing. Raises: NotCommitted."""
        async with self.committing():
            await self.engine.refuse_unreadable(self.actor(body, via), act)

    def listener(self, work: Listener) -> Callable[..., Awaitable[None]]:
        """Return *work* as Bolt calls it: counted, and not acked when nothing was committed."""

        @functools.wraps(work)
        async def run(args: AsyncArgs) -> None:
            async with self.in_flight.one():
                try:
                    await work(args)
                except NotCommitted as error:
                    # No ack: Slack tells the person that it failed, and they press again.
                    log.warning("%s: not stored in time, so not acked: %s", work.__name__, error)

        # Bolt reads the parameters' names from the function itself.
        run.__dict__.pop("__wrapped__", None)
        return run

    @asynccontextmanager
    async def committing(self) -> AsyncIterator[None]:
        """Give a move the time that an ack leaves. Raises: NotCommitted."""
        try:
            async with asyncio.timeout(self.commit_within_s):
                yield
        except StoreUnavailable as error:
            raise NotCommitted(str(error)) from error
        except TimeoutError as error:
            raise NotCommitted(f"no commit within {self.commit_within_s} s") from error

    def thread_link(self, run: Run | None) -> Link | None:
        """Return a link to the run's thread."""
        return self.around.link((run.channel_id, run.thread_ts), "Open the thread") if run else None

    def refusal(self, decided: Decided) -> Line:
        """Return why a decision did nothing, and what to do next."""
        assert decided.refusal is not None
        link = self.thread_link(decided.run)
        return texts.refusal(decided.refusal, decided.suspension, decided.run, link, self.groups())


async def _respond(args: AsyncArgs, **message: Any) -> None:
    """Post to the payload's response_url over this process's connections; Bolt's own way opens a new one each time."""
    answer = await AsyncWebhookClient(args.body["response_url"], session=args.client.session).send(**message)
    if answer.status_code != 200:
        log.warning("a private answer was refused: %s %s", answer.status_code, answer.body[:100])


async def whisper(args: AsyncArgs, line: Line) -> None:
    """Answer privately through the payload's response_url; in Home or a modal, where there is none, in a modal."""
    try:
        if args.body.get("response_url"):
            await _respond(args, text=mrkdwn(line), response_type="ephemeral", replace_original=False)
        elif args.body.get("trigger_id"):
            await args.client.views_open(trigger_id=args.body["trigger_id"], view=told(line))
    except CALL_ERRORS as error:
        # A private text is a courtesy: the refusal itself is on record.
        log.warning("a private answer could not be given: %s", read_failure(error).error)


async def whisper_lines(args: AsyncArgs, lines: Sequence[Line], blocks: Sequence[Block] = ()) -> None:
    """Answer a slash command privately with several lines. *blocks*: how they look, unless as plain lines."""
    text = "\n".join(mrkdwn(line) for line in lines)[:3_500]
    try:
        shown = list(blocks or sections(list(lines)))[:50]
        await _respond(args, text=text, blocks=shown, response_type="ephemeral")
    except CALL_ERRORS as error:
        log.warning("a command could not be answered: %s", read_failure(error).error)
