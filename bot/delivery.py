"""Delivery: each outbox row is exactly one Slack message that shows the newest version, whatever fails on the way.

Decides: when to post, edit, look for a lost post, wait or give up. Does not: decide what is owed (the store does) or
how it looks (blocks does). A post whose outcome is unknown is settled by finding it through its metadata, not before
its request can no longer arrive; only then is it posted again. The failure it can cause: a second card for one
suspension, or a stale one standing for good.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

from slack_sdk.web.async_client import AsyncWebClient

from bot.blocks import Rendered, Surroundings, render
from bot.pace import Pace
from bot.presence import Presence
from bot.reach import TRIES_TO_REACH, Copies, Members, Reach
from bot.slack import CALL_ERRORS, REQUEST_TIMEOUT_S, CallFailed, Failure, FailureKind, Installation, read_failure
from core.asleep import asleep_s
from core.errors import CouldNotCheck, StoreUnavailable
from core.ports import Clock, OutboxRow, RenderInputs
from core.run import SuspensionStatus

log = logging.getLogger("atlas.delivery")

EVENT_TYPE = "atlas_message"
# A request that is still on its way can arrive this long after its own timeout.
SETTLE_MARGIN_S = 5.0
# A stalled process must not send what it announced long ago: somebody may have settled it meanwhile.
STALE_ANNOUNCEMENT_S = 2.0
# Long enough for its turn, a request and the margin; where nobody may say that a process is dead, its messages wait
# for as long.
LEASE_S = 25.0
# Slack: about 1 post a second and channel, bursts allowed, of a size that it does not document (the simulator takes 3);
# chat.update is Tier 3, 50 a minute and workspace. A burst is what goes out besides the first: 2 posts at once, which
# leaves a second for requests that overtake each other.
POST_EVERY_S, POST_BURST_S = 1.0, 1.0
UPDATE_EVERY_S, UPDATE_BURST_S = 60 / 50, 6.0
# A turn is booked this far ahead; that of a progress line, which all others go before, only this far.
LONGEST_WAIT_S, LEAST_WAIT_S = 5.0, 1.0
IN_FLIGHT = 16
POLL_S = 0.5
# Looks at the outbox are this far apart at least: what is owed meanwhile is taken together.
BREATH_S = 0.05
_PAGE = 200
_MOST_PAGES = 10
# How far local time may be off when old messages are searched.
_SKEW_S = 3600.0

# The message cannot be edited any more, but a new one may stand in its place.
POST_AFRESH = frozenset({"message_not_found", "cant_update_message", "edit_window_closed", "streaming_state_conflict"})
# The layout is refused; its text may still go through.
TOO_MUCH = frozenset(
    {"invalid_blocks", "invalid_blocks_format", "msg_blocks_too_long", "msg_too_long", "invalid_attachments"}
)

# What only one person is to see; its content says who.
PRIVATE = "private:"

GroupIds = Callable[[], dict[str, str]]


def _no_groups() -> dict[str, str]:
    return {}


class Delivery:
    """Delivers what the outbox owes. *alert_channel*: where alerts go; *groups*: user group ids by handle, as known;
    *members*: who belongs where, to reach people directly when a place is closed; *examples*: what the agent offers;
    *presence*: told what a thread shows, to give passing signs beside it; *owner*: the process whose death frees what
    it was about to deliver (None: nothing but time does)."""

    def __init__(
        self,
        outbox: Copies,
        client: AsyncWebClient,
        installation: Installation,
        clock: Clock,
        now: Callable[[], datetime],
        *,
        alert_channel: str | None = None,
        groups: GroupIds = _no_groups,
        operators: frozenset[str] = frozenset(),
        members: Members | None = None,
        examples: Sequence[str] = (),
        presence: Presence | None = None,
        owner: str | None = None,
        request_timeout_s: float = REQUEST_TIMEOUT_S,
    ) -> None:
        self.outbox = outbox
        self.client = client
        self.installation = installation
        self.clock = clock
        self.now = now
        self.alert_channel = alert_channel
        self.groups = groups
        self.operators = operators
        self.examples = tuple(examples)
        self.presence = presence
        self.owner = owner
        self.reach = Reach(outbox, client, operators, members)
        self.pace = Pace(outbox, installation.team_id)
        self.request_timeout_s = request_timeout_s
        self._wake = asyncio.Event()
        self._closing = False
        self._in_flight: set[asyncio.Task[None]] = set()

    async def run_once(self, limit: int) -> int:
        """Deliver up to *limit* owed messages; return how many were taken. Raises: StoreUnavailable."""
        taken_at = self._now_s()  # before it is sent: a process that is stopped meanwhile has no lease left
        rows = await self.outbox.take(limit, LEASE_S, self.owner)
        await asyncio.gather(*(self._guarded(row, taken_at) for row in rows))
        return len(rows)

    async def run(self) -> None:
        """Deliver until ``close``: at once when woken, else by polling."""
        while not self._closing:
            self._wake.clear()
            try:
                await self._start_some()
            except StoreUnavailable as error:
                log.warning("the outbox cannot be read: %s", error)
            # Everything owed was taken, or there is no room for more; whoever lands or owes something wakes this.
            await self.clock.sleep(BREATH_S)
            await self._until_woken()

    async def close(self) -> None:
        """Stop taking rows and wait for the deliveries in flight."""
        self._closing = True
        self._wake.set()
        if self._in_flight:
            await asyncio.wait(self._in_flight, timeout=self.request_timeout_s)

    def wake(self) -> None:
        """Look at the outbox now: something may be owed."""
        self._wake.set()

    async def _start_some(self) -> None:
        room = IN_FLIGHT - len(self._in_flight)
        taken_at = self._now_s()  # before it is sent, as above
        rows = await self.outbox.take(room, LEASE_S, self.owner) if room > 0 else []
        for row in rows:
            task = asyncio.create_task(self._guarded(row, taken_at))
            self._in_flight.add(task)
            task.add_done_callback(self._landed)

    def _landed(self, task: "asyncio.Task[None]") -> None:
        self._in_flight.discard(task)
        self._wake.set()

    async def _until_woken(self) -> None:
        try:
            async with asyncio.timeout(POLL_S):
                await self._wake.wait()
        except TimeoutError:
            return

    async def _guarded(self, row: OutboxRow, taken_at: float) -> None:
        """Deliver one row; a defect of one message must not stop the others."""
        try:
            await self._deliver(row, taken_at)
        except StoreUnavailable as error:
            log.warning("%s: the store is away (%s); its lease lapses and it is taken again", row.place, error)
        except Exception as defect:
            log.exception("%s cannot be delivered", row.place)
            if row.attempts >= 5:
                await self._refuse(row, f"defect: {defect}", absent=False)
            else:
                await self.outbox.retry(row, f"defect: {defect}", min(60.0, 2.0**row.attempts))

    async def _deliver(self, row: OutboxRow, taken_at: float) -> None:
        channel = row.message_channel or row.channel_id or self.alert_channel or ""
        if not channel:
            log.error("an alert has no channel to go to; set ATLAS_ALERT_CHANNEL (%s)", row.place)
            await self.outbox.refused(row, "no alert channel is configured")
            return
        if row.place.startswith(PRIVATE):
            await self._whisper(row, channel, taken_at)
        elif row.posting_age_s is not None:
            await self._settle(row, row.channel_id or self.alert_channel or channel, taken_at)
        elif row.message_ts is None:
            await self._post(row, channel, taken_at)
        else:
            await self._update(row, taken_at)

    # ---- posting -----------------------------------------------------------------------------------------------------

    async def _settle(self, row: OutboxRow, channel: str, taken_at: float) -> None:
        """Find out what became of a post whose answer was lost; adopt it, or post again."""
        age = row.posting_age_s or 0.0
        settled_after = self.request_timeout_s + SETTLE_MARGIN_S
        if age < settled_after:
            await self.outbox.retry(row, "the outcome of a post is not known yet", settled_after - age)
            return
        method = "conversations.replies" if row.thread_ts else "conversations.history"
        try:
            found = await self._find(row, channel, age)
        except CALL_ERRORS as error:
            await self._failed(row, method, channel, read_failure(error), absent=False)
            return
        if found is None:
            await self._post(row, channel, taken_at, absent=True)
            return
        ts, version = found
        log.info("%s: the post whose answer was lost stands at %s", row.place, ts)
        _, rendered = await self._render(row)
        await self.outbox.delivered(row, version, channel, ts, rendered.goes_on if rendered else None)

    async def _find(self, row: OutboxRow, channel: str, age: float) -> tuple[str, int] | None:
        """Return (ts, version) of our message for this place, as its metadata says; None: there is none."""
        oldest = f"{self.now().timestamp() - age - _SKEW_S:.6f}"
        cursor = ""
        for _ in range(_MOST_PAGES):
            where: dict[str, Any] = {"channel": channel, "limit": _PAGE, "include_all_metadata": True, "cursor": cursor}
            if row.thread_ts:
                answer = await self.client.conversations_replies(ts=row.thread_ts, oldest=oldest, **where)
            else:
                answer = await self.client.conversations_history(oldest=oldest, **where)
            found = self._ours(row, answer.get("messages") or [])
            if found:
                return found
            cursor = str((answer.get("response_metadata") or {}).get("next_cursor") or "")
            if not cursor:
                return None
        return None

    def _ours(self, row: OutboxRow, messages: Sequence[dict[str, Any]]) -> tuple[str, int] | None:
        for message in messages:
            metadata = message.get("metadata") or {}
            payload = metadata.get("event_payload") or {}
            ours = message.get("user") == self.installation.bot_user_id or (
                message.get("bot_id") == self.installation.bot_id and self.installation.bot_id
            )
            same = metadata.get("event_type") == EVENT_TYPE and payload.get("place") == row.place
            if ours and same and message.get("ts") != row.message_ts:
                version = payload.get("version")
                return str(message["ts"]), version if isinstance(version, int) else 0
        return None

    async def _post(
        self, row: OutboxRow, channel: str, taken_at: float, *, plain: bool = False, absent: bool = False
    ) -> None:
        """Post it. *absent*: an earlier post of it is known not to stand."""
        if not await self._turn(row, channel, "chat.postMessage", POST_EVERY_S, POST_BURST_S):
            return
        version, rendered = await self._render(row)
        if rendered is None:
            await self.outbox.withdraw(row, absent=absent)
            return
        if self._lease_left(taken_at) < self.request_timeout_s:
            await self.outbox.retry(row, "its turn came late", 0.0)
            return
        announced_at = self._now_s()
        if not await self.outbox.posting(row):
            return
        if self._now_s() - announced_at > STALE_ANNOUNCEMENT_S:
            await self.outbox.retry(row, "announced too slowly", 0.0, absent=True)
            return
        metadata = {"event_type": EVENT_TYPE, "event_payload": {"place": row.place, "version": version}}
        try:
            async with asyncio.timeout(self.request_timeout_s):
                answer = await self.client.chat_postMessage(
                    channel=channel,
                    thread_ts=row.thread_ts,
                    text=rendered.text,
                    blocks=None if plain else rendered.blocks,
                    metadata=metadata,
                    unfurl_links=False,
                    unfurl_media=False,
                )
        except CALL_ERRORS as error:
            failure = read_failure(error)
            if not plain and failure.error.partition(":")[0] in TOO_MUCH:
                log.error("%s: Slack refuses the layout (%s); its text goes alone", row.place, failure.error)
                await self._post(row, channel, taken_at, plain=True)
                return
            await self._failed(row, "chat.postMessage", channel, failure, absent=True)
            return
        if self.presence is not None:
            self.presence.replied(channel, row.thread_ts)
        # A lost lease: the announcement stands in the row, so whoever took it finds this message by its metadata.
        await self.outbox.delivered(row, version, str(answer["channel"]), str(answer["ts"]), rendered.goes_on)

    async def _whisper(self, row: OutboxRow, channel: str, taken_at: float) -> None:
        """Say it to one person alone. Such a message can neither be found nor edited, so it is a courtesy: sent once,
        and over when it may have arrived."""
        if row.posting_age_s is not None:
            await self.outbox.withdraw(row, absent=True)
            return
        if not await self._turn(row, "", "chat.postEphemeral", UPDATE_EVERY_S, UPDATE_BURST_S):
            return
        inputs = await self.outbox.render_inputs(row)
        _, rendered = await self._render(row)
        assert rendered is not None  # only reminders come too late
        if self._lease_left(taken_at) < self.request_timeout_s or not await self.outbox.posting(row):
            await self.outbox.retry(row, "its turn came late", 0.0)
            return
        try:
            async with asyncio.timeout(self.request_timeout_s):
                await self.client.chat_postEphemeral(
                    channel=channel,
                    user=str(inputs.content.get("private_to")),
                    thread_ts=row.thread_ts,
                    text=rendered.text,
                    blocks=rendered.blocks,
                )
        except CALL_ERRORS as error:
            failure = read_failure(error)
            if failure.kind not in (FailureKind.OPEN, FailureKind.REFUSED):
                await self._failed(row, "chat.postEphemeral", channel, failure, absent=True)
                return
            log.warning("%s may not have been heard: %s", row.place, failure.error)
        await self.outbox.withdraw(row, absent=True)

    # ---- editing -----------------------------------------------------------------------------------------------------

    async def _update(self, row: OutboxRow, taken_at: float, *, plain: bool = False) -> None:
        if not await self._turn(row, "", "chat.update", UPDATE_EVERY_S, UPDATE_BURST_S):
            return
        channel, ts = str(row.message_channel), str(row.message_ts)
        version, rendered = await self._render(row)
        assert rendered is not None  # it stands already
        if self._lease_left(taken_at) < self.request_timeout_s:
            # An edit that arrives after the lease could stand over a newer one of another replica.
            await self.outbox.retry(row, "its turn came late", 0.0)
            return
        try:
            await self._edit(channel, ts, rendered, plain=plain)
        except CALL_ERRORS as error:
            failure = read_failure(error)
            code = failure.error.partition(":")[0]
            if code in POST_AFRESH:
                log.warning("%s: Slack will not edit it (%s); it is posted afresh", row.place, code)
                await self._post(row, row.channel_id or self.alert_channel or channel, taken_at)
            elif not plain and code in TOO_MUCH:
                log.error("%s: Slack refuses the layout (%s); its text goes alone", row.place, failure.error)
                await self._update(row, taken_at, plain=True)
            else:
                await self._failed(row, "chat.update", channel, failure, absent=False)
            return
        if not await self.outbox.delivered(row, version, channel, ts, rendered.goes_on):
            # Somebody else may have written a newer version before ours arrived: send what is wanted now.
            _, newest = await self._render(row)
            assert newest is not None
            await self._edit(channel, ts, newest, plain=plain)

    async def _edit(self, channel: str, ts: str, rendered: Rendered, *, plain: bool) -> None:
        async with asyncio.timeout(self.request_timeout_s):
            await self.client.chat_update(
                channel=channel, ts=ts, text=rendered.text, blocks=[] if plain else rendered.blocks
            )

    # ---- both --------------------------------------------------------------------------------------------------------

    async def _render(self, row: OutboxRow) -> tuple[int, Rendered | None]:
        """Return a version and what it looks like (None: it came too late to be said); the version is read first, so
        the look is at least as new."""
        version = await self.outbox.current_version(row)
        inputs = await self.outbox.render_inputs(row)
        if row.kind == "progress" and inputs.run is not None and self.presence is not None:
            self.presence.shows(inputs.run, inputs.doing)
        if row.message_ts is None and _came_late(inputs):
            return version, None
        around = Surroundings(self.installation.url, self.groups(), self.operators, self.examples)
        return version, render(row, inputs, version, around)

    async def _turn(self, row: OutboxRow, channel: str, method: str, every_s: float, burst_s: float) -> bool:
        """Wait for this request's turn; False when it is far off: the row was given back, and asks again later."""
        # What matters less books less far ahead: it takes only the turns that nothing else is about to need.
        patience_s = LEAST_WAIT_S if row.kind == "progress" else LONGEST_WAIT_S
        booked, wait = await self.pace.turn(channel, method, every_s, patience_s + burst_s)
        wait -= burst_s
        if not booked:
            await self.outbox.postpone(row, "waits for its turn", max(LEAST_WAIT_S, wait - patience_s / 2))
            return False
        if wait > 0:
            await self.clock.sleep(wait)
        return True

    def _lease_left(self, taken_at: float) -> float:
        return LEASE_S - (self._now_s() - taken_at)

    def _now_s(self) -> float:
        """Return seconds by which a lease ends, also while the host is suspended."""
        return self.clock.monotonic() + asleep_s()

    async def _failed(self, row: OutboxRow, method: str, channel: str, failure: Failure, *, absent: bool) -> None:
        """Put the row back, or give it up. *absent*: the failed request was a post, which a sure failure unmakes."""
        backoff = min(60.0, 2.0 ** min(row.attempts, 6))
        match failure.kind:
            case FailureKind.PAUSE:
                scope = channel if method == "chat.postMessage" else ""
                # The burst is taken off every wait, so it is added here: nobody goes before Slack's pause is over.
                burst_s = POST_BURST_S if method == "chat.postMessage" else UPDATE_BURST_S
                await self.outbox.back_off(self.installation.team_id, scope, method, failure.pause_s + burst_s)
                await self.outbox.retry(row, failure.error, failure.pause_s, absent=absent)
            case FailureKind.NOTHING_HAPPENED:
                await self.outbox.retry(row, failure.error, backoff, absent=absent)
            case FailureKind.OPEN:
                log.warning("%s: %s is unanswered (%s)", row.place, method, failure.error)
                settle = self.request_timeout_s + SETTLE_MARGIN_S if method == "chat.postMessage" else backoff
                await self.outbox.retry(row, failure.error, settle)
            case FailureKind.LOCKED_OUT:
                # Refusing every row would lose them all over one token; they wait until it is repaired.
                log.error("Slack refuses our token (%s); messages wait", failure.error)
                await self.outbox.retry(row, failure.error, 30.0, absent=absent)
            case FailureKind.REFUSED:
                await self._refuse(row, f"{method}: {failure.error}", absent=absent)

    async def _refuse(self, row: OutboxRow, error: str, *, absent: bool) -> None:
        """Give a message up where it was to stand; who must see it is written to directly, once. *absent*: no post of
        it can stand there unknown."""
        log.error("%s: Slack refuses it for good (%s)", row.place, error)
        told = ""
        try:
            if self.reach.concerns(row):
                told = await self.reach.instead(row, await self.outbox.render_inputs(row))
        except (CouldNotCheck, CallFailed) as problem:
            if row.attempts < TRIES_TO_REACH:
                why = f"{error}; whom to write to instead: {problem}"
                await self.outbox.retry(row, why, 2.0**row.attempts, absent=absent)
                return
            log.error("%s: nobody could be reached directly (%s)", row.place, problem)
            told = " Nobody could be reached in direct messages."
        await self.outbox.refused(row, error, told=told, absent=absent)


def _came_late(inputs: RenderInputs) -> bool:
    """Say whether a reminder's suspension was decided before it could be sent."""
    late = inputs.suspension is None or inputs.suspension.status is not SuspensionStatus.OPEN
    return bool(inputs.content.get("reminder")) and late
