"""How payloads reach the app: first delivery, the ack window, Slack's retries, interactions.

Decides when an event is sent again and when a person sees a failure. A transport (Socket Mode or
HTTP) only carries one attempt. Events are retried with the same event_id; interactions never are.
Failure it can cause: an event that nobody acked after its last retry is gone, as with Slack.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from bot.simulator.clock import Clock
from bot.simulator.journal import Journal
from bot.simulator.payloads import Payload
from bot.simulator.tickets import new_id

ACK_WINDOW_S = 3.0
# after a missed ack; the first is seen about 4 s after the first delivery (3 s window + 1 s)
RETRY_SCHEDULE_S = (1.0, 60.0, 300.0)
EnvelopeType = Literal["events_api", "interactive", "slash_commands"]
InteractionState = Literal["pending", "acked", "failed"]


@dataclass
class Parcel:
    """One payload on its way. `acked` resolves to the ack's payload, also by a late ack."""

    type: EnvelopeType
    payload: Payload
    accepts_response_payload: bool
    acked: asyncio.Future[Payload]
    retry_attempt: int = 0
    retry_reason: str = ""
    no_retry: bool = False


class Transport(Protocol):
    """Carries one attempt and waits for its ack."""

    @property
    def connected(self) -> bool:
        """Whether anything listens on the app's side."""

    async def attempt(self, parcel: Parcel) -> str | None:
        """Send once; None when acked within the window, else the reason for a retry."""


@dataclass
class Interaction:
    """A person's click, submission or command, and what became of it."""

    id: str
    kind: str
    user: str
    state: InteractionState = "pending"
    error: str = ""
    payload: Payload = field(default_factory=dict)
    answer: Payload = field(default_factory=dict)
    channel: str | None = None
    message_ts: str | None = None
    action_id: str | None = None
    _settled: asyncio.Event = field(default_factory=asyncio.Event)

    def settle(self, state: InteractionState, error: str = "") -> None:
        """Record the outcome, once."""
        self.state, self.error = state, error
        self._settled.set()

    async def settled(self, timeout: float = 60.0) -> "Interaction":
        """Wait (real seconds) until acked or failed.

        Raises:
            TimeoutError: neither happened in time.
        """
        await asyncio.wait_for(self._settled.wait(), timeout)
        return self


class Dispatch:
    """Sends events and interactions over whichever transport the app uses."""

    def __init__(
        self,
        clock: Clock,
        journal: Journal,
        transport: Transport,
        retry_schedule_s: tuple[float, ...] = RETRY_SCHEDULE_S,
    ) -> None:
        self._clock = clock
        self._journal = journal
        self.transport = transport
        self.retry_schedule_s = retry_schedule_s
        self.on_interaction: list[Callable[[Interaction], None]] = []
        self._tasks: set[asyncio.Task[None]] = set()

    def event(self, wrapped: Payload) -> str:
        """Deliver a wrapped event in the background, with retries; return its event_id."""
        self._journal.write("event", event_id=wrapped["event_id"], type=wrapped["event"]["type"], payload=wrapped)
        self._start(self._deliver(wrapped))
        return str(wrapped["event_id"])

    def interaction(
        self,
        kind: str,
        user: str,
        payload: Payload,
        answered: Callable[[Interaction, Payload], None],
        **place: str | None,
    ) -> Interaction:
        """Deliver an interaction once, in the background; `answered` gets the ack's payload."""
        interaction = Interaction(new_id("I", 12), kind, user, payload=payload, **place)  # type: ignore[arg-type]
        self._announce(interaction)
        self._start(self._interact(interaction, payload, answered))
        return interaction

    async def close(self) -> None:
        """Stop all deliveries."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _start(self, coroutine: Any) -> None:
        task: asyncio.Task[None] = asyncio.ensure_future(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _deliver(self, wrapped: Payload) -> None:
        loop = asyncio.get_running_loop()
        acked: asyncio.Future[Payload] = loop.create_future()
        event_id = wrapped["event_id"]
        reason = ""
        for attempt, gap in enumerate((*self.retry_schedule_s, None)):
            parcel = Parcel("events_api", wrapped, False, acked, retry_attempt=attempt, retry_reason=reason)
            failure = await self.transport.attempt(parcel)
            if failure is None or acked.done():
                return
            self._journal.write("unacked", event_id=event_id, attempt=attempt, reason=failure)
            reason = failure if failure != "not_connected" else "timeout"
            if gap is None or parcel.no_retry:
                break
            if await self._clock.within(acked, gap):
                return
        if not acked.done():
            self._journal.write("event_lost", event_id=event_id)

    async def _interact(
        self,
        interaction: Interaction,
        payload: Payload,
        answered: Callable[[Interaction, Payload], None],
    ) -> None:
        command = interaction.kind == "command"
        acked: asyncio.Future[Payload] = asyncio.get_running_loop().create_future()
        parcel = Parcel(
            "slash_commands" if command else "interactive",
            payload,
            interaction.kind != "view_closed",
            acked,
        )
        if not self.transport.connected:
            failure: str | None = "not_connected"
        else:
            failure = await self.transport.attempt(parcel)
        if failure is None:
            interaction.answer = acked.result()
            interaction.settle("acked")
            self._announce(interaction)
            answered(interaction, interaction.answer)
            return
        # Source: Slack, "Slash commands": operation_timeout; "dispatch failed" for nothing there
        error = "dispatch_failed" if failure == "not_connected" else "operation_timeout"
        interaction.settle("failed", error)
        self._announce(interaction)

    def _announce(self, interaction: Interaction) -> None:
        self._journal.write(
            "interaction",
            id=interaction.id,
            what=interaction.kind,
            state=interaction.state,
            error=interaction.error,
            user=interaction.user,
            channel=interaction.channel,
            message_ts=interaction.message_ts,
            action_id=interaction.action_id,
        )
        for listener in self.on_interaction:
            listener(interaction)
