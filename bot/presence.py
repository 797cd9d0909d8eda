"""Passing signs that Atlas is at work: the thread's status line and the agent session's state, where Slack has them.

Decides: which sign a thread shows now. Does not: carry anything that must arrive; cards, answers and the progress line
do that, and none of them waits for a sign. The failure it can cause: none that lasts. A sign that cannot be given is
left out, a method that a workspace does not have is left alone for an hour, and Slack itself ends a status after two
minutes. Source: Slack, assistant.threads.setStatus (600 a minute; ended by the app's next reply) and
agents.sessions.setStatus (Tier 3).
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from slack_sdk.web.async_client import AsyncWebClient

from bot.lines import clip, visible
from bot.slack import CALL_ERRORS, FailureKind, read_failure
from core.ports import Clock
from core.run import Run, RunState

log = logging.getLogger("atlas.presence")

# Slack ends a status after 120 s; while the run still works, it is set again before that.
AGAIN_AFTER_S = 90.0
# A run that nothing was heard of for this long is no longer vouched for here (another replica may have it).
VOUCHED_FOR_S = 900.0
OFF_FOR_S = 3600.0
STATUS_EVERY_S, SESSION_EVERY_S = 0.1, 1.2
TRY_AGAIN_AFTER_S = 2.0
MOST_THREADS = 1_000
# What one thread is refused for says nothing about the others.
OF_ONE_THREAD = frozenset(
    {"channel_not_found", "not_in_channel", "is_archived", "thread_not_found", "invalid_thread_ts", "message_not_found"}
)
HEARD = "is on it…"

SESSIONS = {
    RunState.RUNNING: "processing",
    RunState.SUSPENDED: "suspended",
    RunState.HALTED: "active",
    RunState.ANSWERED: "active",
    RunState.FAILED: "closed",
}
Place = tuple[str, str]


@dataclass(slots=True)
class _Sign:
    """What a thread should show, and what was sent. *seen_at*, *sent_at*: monotonic."""

    status: str
    session: str
    seen_at: float
    sent: str | None = None
    sent_session: str | None = None
    sent_at: float = 0.0


class _Method:
    """One of Slack's methods: its pace here, and until when it is left alone."""

    def __init__(self, name: str, every_s: float, call: Callable[..., Awaitable[object]], clock: Clock) -> None:
        self.name = name
        self.every_s = every_s
        self.call = call
        self.clock = clock
        self._next_at = 0.0
        self._off_until = 0.0

    async def send(self, **arguments: str) -> bool:
        """Call it; False: its turn has not come, or it may work a little later. True also for what is refused."""
        now = self.clock.monotonic()
        if now < self._off_until:
            return True
        if now < self._next_at:
            return False
        self._next_at = now + self.every_s
        try:
            await self.call(**arguments)
        except CALL_ERRORS as error:
            failure = read_failure(error)
            log.info("%s: %s", self.name, failure.error)
            refused = failure.kind in (FailureKind.REFUSED, FailureKind.LOCKED_OUT)
            if refused and failure.error.partition(":")[0] not in OF_ONE_THREAD:
                self._off_until = self.clock.monotonic() + OFF_FOR_S
            elif not refused:
                self._next_at = self.clock.monotonic() + max(failure.pause_s, TRY_AGAIN_AFTER_S)
            return refused
        return True


class Presence:
    """The signs of all threads that this process serves. Call ``run`` once; the others return at once."""

    def __init__(self, client: AsyncWebClient, clock: Clock) -> None:
        self.clock = clock
        self._status = _Method("assistant.threads.setStatus", STATUS_EVERY_S, client.assistant_threads_setStatus, clock)
        self._session = _Method("agents.sessions.setStatus", SESSION_EVERY_S, client.agents_sessions_setStatus, clock)
        self._signs: dict[Place, _Sign] = {}
        self._wake = asyncio.Event()

    def heard(self, channel: str, thread_ts: str) -> None:
        """A message was stored: its writer sees at once that it was heard."""
        known = self._signs.get((channel, thread_ts))
        if known is None or not known.status:
            self._want((channel, thread_ts), HEARD, "processing")

    def shows(self, run: Run, doing: str) -> None:
        """A run does this now."""
        place = (run.channel_id, run.thread_ts)
        status = ""
        if run.state is RunState.RUNNING:
            now = clip(visible(doing), 80) or "working on it"
            status = f"is {now}…"
        self._want(place, status, SESSIONS[run.state])

    def replied(self, channel: str, thread_ts: str | None) -> None:
        """A message was posted in a thread: Slack has ended its status, which is set again where work goes on."""
        sign = self._signs.get((channel, thread_ts or ""))
        if sign is not None:
            sign.sent = ""
            # What was only heard is answered by whatever was posted.
            sign.status = "" if sign.status == HEARD else sign.status
            self._wake.set()

    async def run(self) -> None:
        """Send what is wanted until cancelled."""
        while True:
            self._wake.clear()
            waits = await self.send_due()
            try:
                async with asyncio.timeout(STATUS_EVERY_S if waits else AGAIN_AFTER_S / 3):
                    await self._wake.wait()
            except TimeoutError:
                continue

    async def send_due(self) -> bool:
        """Send what threads should show and do not; say whether something has to wait for its turn."""
        waits = False
        for place, sign in list(self._signs.items()):
            now = self.clock.monotonic()
            if now - sign.seen_at > (AGAIN_AFTER_S if sign.status == HEARD else VOUCHED_FOR_S):
                # Slack ends the status itself.
                del self._signs[place]
                continue
            stale = bool(sign.status) and now - sign.sent_at > AGAIN_AFTER_S
            if (sign.status or sign.sent) and (sign.status != sign.sent or stale):
                waits |= not await self._send_status(place, sign)
            if sign.session != sign.sent_session:
                waits |= not await self._send_session(place, sign)
        return waits

    async def _send_status(self, place: Place, sign: _Sign) -> bool:
        wanted = sign.status
        sent = await self._status.send(channel_id=place[0], thread_ts=place[1], status=wanted)
        if sent:
            sign.sent, sign.sent_at = wanted, self.clock.monotonic()
        return sent

    async def _send_session(self, place: Place, sign: _Sign) -> bool:
        wanted = sign.session
        sent = await self._session.send(channel_id=place[0], thread_ts=place[1], status=wanted)
        if sent:
            sign.sent_session = wanted
        return sent

    def _want(self, place: Place, status: str, session: str) -> None:
        sign = self._signs.pop(place, None) or _Sign(status, session, 0.0)
        sign.status, sign.session, sign.seen_at = status, session, self.clock.monotonic()
        self._signs[place] = sign
        while len(self._signs) > MOST_THREADS:
            del self._signs[next(iter(self._signs))]
        self._wake.set()
