"""A stage for Slack tests: the simulated workspace, the real store, the real Bolt app and delivery, no worker.

Runs are moved by the store's own moves, as a worker would move them; everything between a person and the store is the
production code.
"""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import uuid4

import aiohttp
import asyncpg
from slack_bolt.async_app import AsyncApp

from bot.app import build_app
from bot.delivery import SETTLE_MARGIN_S, Delivery
from bot.homes import Homes
from bot.listeners.service import InFlight
from bot.people import SlackDirectory
from bot.simulator import Simulator
from bot.simulator.workspace import RITA, SALES_DESK
from bot.slack import REQUEST_TIMEOUT_S, Installation, identify, web_client, web_session
from bot.socket import SlackSocket
from core.agent import Agent
from core.approvals import digest_of
from core.conversation import CallKey, Message, StoredMessage, ToolCall
from core.engine import Engine, Rules
from core.ports import Batch, Closing, Fence, InboundEvent, Letter, NewRun, NewSuspension, OutboxRow
from core.run import HaltReason, SuspensionKind
from core.tools import Approval, Limits, Preview, Scope, User
from storage.desk_store import PgDesk
from storage.inbox import PgInbox
from storage.outbox import PgOutbox
from storage.worker_store import PgWorkerStore

# Only a failing test waits this long; a busy machine is slow.
PATIENCE_S = float(os.environ.get("ATLAS_TESTS_PATIENCE_S", "120"))
# Slack gives 3 s; what is not about these is not to fail over them.
PATIENT_COMMIT_S, PATIENT_ACK_S = 20.0, 25.0
MANIFEST = Path(__file__).parents[2] / "manifest.yml"
PREVIEW = Preview(
    title="Send quote Q-1042 to Henderson",
    fields={"Customer": "Henderson (4471)"},
    lines=[{"SKU": "SKU-4411", "Quantity": "200", "Total": "9,000.00 USD"}],
    totals={"Total": "8,730.00 USD"},
)
# After this long the outcome of a post is settled: its request's timeout and the margin are over.
SETTLED_S = REQUEST_TIMEOUT_S + SETTLE_MARGIN_S + 1
LONG = PREVIEW.model_copy(update={"lines": [{"SKU": f"SKU-{n:04}", "Quantity": str(n)} for n in range(200)]})


class RealClock:
    """This process's own time."""

    def monotonic(self) -> float:
        """Return seconds that only go forward."""
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        await asyncio.sleep(seconds)


@dataclass
class MovableTime:
    """The database's time, which tests move forward. *still*: nothing else moves it, however slow the machine is."""

    ahead: timedelta = timedelta()
    still: datetime | None = None

    def __call__(self) -> datetime:
        """Return now."""
        return (self.still or datetime.now(UTC)) + self.ahead

    def advance(self, seconds: float) -> None:
        """Move forward."""
        self.ahead += timedelta(seconds=seconds)


class StageClock:
    """Delivery's clock: who waits for a turn moves the stage's time on instead. A slow machine lets no lease lapse.

    *slack*: its clock goes along; None once it is connected, since envelopes on their way would come too late.
    """

    def __init__(self, time: MovableTime, slack: Simulator | None) -> None:
        self.time = time
        self.slack = slack

    def monotonic(self) -> float:
        """Return the seconds by which the stage's time was moved."""
        return self.time.ahead.total_seconds()

    async def sleep(self, seconds: float) -> None:
        """Wait: whoever asked before for less has moved a part of the way already."""
        until_s = self.monotonic() + seconds
        await asyncio.sleep(0)
        left = until_s - self.monotonic()
        if left > 0:
            self.time.advance(left)
            if self.slack is not None:
                self.slack.advance(left)


async def no_scope(user: User) -> Scope:
    """Return an empty scope."""
    return Scope()


@dataclass
class Stage:
    """Everything a test touches."""

    slack: Simulator
    pool: "asyncpg.Pool[asyncpg.Record]"
    session: aiohttp.ClientSession
    installation: Installation
    engine: Engine
    desk: PgDesk
    store: PgWorkerStore
    outbox: PgOutbox
    inbox: PgInbox
    directory: SlackDirectory
    delivery: Delivery
    homes: Homes
    time: MovableTime
    clock: StageClock
    in_flight: InFlight
    moved: list[str] = field(default_factory=list)
    worker_id: str = field(default_factory=lambda: str(uuid4()))

    async def letter(self, text: str = "send a quote", user: str = RITA, channel: str = SALES_DESK) -> Letter:
        """Return a taken letter as if *user* had just written it."""
        message = await self.slack.post_as(user, channel, text)
        event = InboundEvent(
            f"Ev{uuid4().hex}",
            "mention",
            self.installation.team_id,
            channel,
            message["ts"],
            message["ts"],
            user,
            text,
            {},
        )
        await self.inbox.put(event)
        (taken,) = await self.desk.take_mail(1, 30)
        return taken

    async def run(self, text: str = "send a quote", user: str = RITA, channel: str = SALES_DESK) -> Fence:
        """Start a run of *user*'s and claim it."""
        letter = await self.letter(text, user, channel)
        owner = User(team_id=letter.team_id, user_id=user, name=user)
        first = StoredMessage(0, Message(role="user", text=text))
        new = NewRun(
            uuid4().hex[:8], letter.team_id, channel, letter.thread_ts, owner, text, {}, Limits(), Scope(), (first,)
        )
        fence = await self.desk.start(letter, new, self.worker_id)
        assert fence is not None
        return fence

    async def suspend(
        self,
        fence: Fence,
        preview: Preview = PREVIEW,
        policy: Approval | None = None,
        kind: SuspensionKind = SuspensionKind.APPROVAL,
        ttl_s: float = 1800,
    ) -> str:
        """Suspend a claimed run on one call; return the suspension's id."""
        arguments = {"quote_id": "Q-1042"}
        asked = Message(role="assistant", text="", calls=(ToolCall(id="c1", tool="send_quote", arguments=arguments),))
        view = await self.store.load(fence)
        new = NewSuspension(
            id=f"{fence.run_id}.{uuid4().hex[:8]}",
            token=f"{fence.run_id}.{uuid4().hex}",
            call=CallKey(1, 0),
            kind=kind,
            tool="send_quote",
            tool_version="1",
            arguments=arguments,
            preview=preview,
            digest=digest_of("send_quote", "1", arguments, preview),
            policy=policy or Approval(),
            asked_by=view.run.owner.user_id,
            ttl_s=ttl_s,
        )
        batch = Batch(messages=(StoredMessage(1, asked),), steps=1, spend_usd=Decimal("0.02"))
        await self.store.suspend(fence, batch, view.run.news, [new])
        return new.id

    async def halt(self, fence: Fence, reason: HaltReason = HaltReason.BUDGET_STEPS) -> None:
        """Halt a claimed run."""
        await self.store.halt(fence, Batch(), reason, Closing())

    async def deliver(self) -> None:
        """Deliver until nothing that is due is owed."""
        while await self.delivery.run_once(20):
            pass

    def posted(self, run_place: str) -> list[dict[str, Any]]:
        """Return the bot's messages whose metadata names this place, in all channels."""
        found = []
        for room in self.slack.workspace.channels:
            found += self.slack.bot_messages(room.id)
        for person in self.slack.workspace.people:
            if person.kind != "bot":
                found += self.slack.bot_messages(self.slack.dm(person.id))
        return [m for m in found if (m.get("metadata") or {}).get("event_payload", {}).get("place") == run_place]

    async def row(self, place: str) -> "asyncpg.Record":
        """Return an outbox row as stored."""
        row = await self.pool.fetchrow("select * from outbox where place = $1", place)
        assert row is not None
        return row

    async def card(self, suspension_id: str) -> dict[str, Any]:
        """Deliver, and return the card's one message."""
        await self.deliver()
        (message,) = self.posted(f"card:{suspension_id}")
        return message


@asynccontextmanager
async def stage(
    pool: "asyncpg.Pool[asyncpg.Record]",
    *,
    operators: frozenset[str] = frozenset(),
    alert_channel: str | None = None,
    request_timeout_s: float = REQUEST_TIMEOUT_S,
    rate_tiers: bool = False,
    still: bool = False,
) -> AsyncIterator[Stage]:
    """Set the stage; nothing is connected yet. *still*: its time moves when it is moved, and for nothing else."""
    async with Simulator(manifest=MANIFEST, rate_tiers=rate_tiers) as slack, web_session() as session:
        slack.sockets.ack_window_s = slack.triggers.life_s = PATIENT_ACK_S
        client = web_client(slack.workspace.bot_token, session, slack.api_url)
        installation = await identify(client)
        now = MovableTime(still=datetime.now(UTC) if still else None)
        clock = RealClock()
        paced = StageClock(now, slack)
        directory = SlackDirectory(client, installation, clock)
        desk = PgDesk(pool, now=now, hints=False)
        outbox = PgOutbox(pool, now=now)
        agent = Agent(instructions="", tools=[], scopes=no_scope, examples=("Quote Henderson", "b", "c"))
        engine = Engine(agent, desk, directory, Rules(operators=operators, alert_channel=alert_channel))
        delivery = Delivery(
            outbox,
            client,
            installation,
            paced,
            now,
            alert_channel=alert_channel,
            groups=directory.group_ids,
            operators=operators,
            members=directory,
            examples=agent.examples,
            request_timeout_s=request_timeout_s,
        )
        yield Stage(
            slack=slack,
            pool=pool,
            session=session,
            installation=installation,
            engine=engine,
            desk=desk,
            store=PgWorkerStore(pool, now=now, hints=False),
            outbox=outbox,
            inbox=PgInbox(pool, now=now, hints=False),
            directory=directory,
            delivery=delivery,
            homes=Homes(engine, client, installation, clock, examples=agent.examples, groups=directory.group_ids),
            time=now,
            clock=paced,
            in_flight=InFlight(),
        )


def be_patient(app: AsyncApp, commit_within_s: float) -> None:
    """Let Bolt wait for an ack as long as a commit may take: by itself it gives up, unacked, after Slack's 3 s."""
    for listener in app._async_listeners:
        listener.ack_timeout = int(commit_within_s) + 3


@asynccontextmanager
async def connected(
    on: Stage, inbox: Any = None, engine: Any = None, commit_within_s: float = PATIENT_COMMIT_S, count: int = 2
) -> AsyncIterator[SlackSocket]:
    """Connect the real app over Socket Mode."""
    on.clock.slack = None
    app = build_app(
        on.installation,
        engine or on.engine,
        inbox or on.inbox,
        on.homes,
        on.session,
        api_url=on.slack.api_url,
        examples=on.engine.agent.examples,
        arrived=lambda: on.moved.append("arrived"),
        heard=on.delivery.presence.heard if on.delivery.presence else lambda channel, thread: None,
        moved=lambda: on.moved.append("moved"),
        in_flight=on.in_flight,
        commit_within_s=commit_within_s,
    )
    be_patient(app, commit_within_s)
    socket = SlackSocket(app, on.slack.workspace.app_token, on.in_flight, count=count)
    await socket.start()

    async def both_know_it() -> bool:
        return len(on.slack.sockets.sockets) >= count and await socket.alive() >= count

    try:
        await until(both_know_it)
        yield socket
    finally:
        await socket.close()


async def until(condition: Callable[[], Any], within_s: float = PATIENCE_S) -> Any:
    """Wait until *condition* holds; fail when it does not within *within_s* seconds."""
    async with asyncio.timeout(within_s):
        while True:
            value = condition()
            if asyncio.iscoroutine(value):
                value = await value
            if value:
                return value
            await asyncio.sleep(0.02)


__all__ = ["LONG", "PREVIEW", "SETTLED_S", "OutboxRow", "Stage", "be_patient", "connected", "stage", "until"]
