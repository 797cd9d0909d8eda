"""A small world on a real database for the tests of the stores: its own clock, and runs brought to where a test begins.

Nothing is faked: every row here is written by the stores themselves, or seen by plain SQL.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import count
from typing import Any
from uuid import uuid4

import asyncpg

from core.approvals import Clicker, Person, Via, arguments_digest, digest_of, idempotency_key
from core.conversation import CallKey, Message, StoredMessage, ToolCall
from core.ports import (
    Batch,
    Closing,
    Fence,
    InboundEvent,
    Letter,
    NewAction,
    NewRun,
    NewSuspension,
    TraceEntry,
)
from core.run import HaltReason, SuspensionKind
from core.tools import Approval, Limits, Preview, Scope, User
from storage.desk_store import PgDesk
from storage.inbox import PgInbox
from storage.maintenance import PgMaintenance
from storage.outbox import PgOutbox
from storage.worker_store import PgWorkerStore

TABLES = (
    "runs", "live_threads", "messages", "suspensions", "votes", "actions", "trace", "workers", "inbox", "outbox",
    "pace", "audit",
)  # fmt: skip
REP = User(team_id="T1", user_id="U1", name="Ada", email="ada@example.com")
_numbers = count(1)
DEADLINE_S = 60.0


class Members:
    """Everybody is active and in every channel, nobody in a group."""

    async def person(self, team_id: str, user_id: str, *, fresh: bool = False) -> Person:
        """Return somebody."""
        return Person(User(team_id=team_id, user_id=user_id, name=user_id))

    async def in_channel(self, channel_id: str, user_id: str, *, fresh: bool = False) -> bool:
        """Everybody is."""
        return True

    async def in_group(self, handle: str, user_id: str, *, fresh: bool = False) -> bool:
        """Nobody is."""
        return False


async def no_scope(user: User) -> Scope:
    """Return a scope without permissions."""
    return Scope()


def clicker(user_id: str = "U1", via: Via = Via.BUTTON) -> Clicker:
    """Return somebody who may decide."""
    return Clicker(user_id, via, Person(User(team_id="T1", user_id=user_id, name=user_id)), in_channel=True)


OPERATOR = Clicker("operator:root", Via.CLI, None, operator=True)


def said(seq: int, text: str = "hello") -> StoredMessage:
    """Return a person's message."""
    return StoredMessage(seq, Message(role="user", text=text))


def turn(seq: int, *tools: str, text: str = "") -> StoredMessage:
    """Return a model's message that calls *tools*, each with {"n": position}."""
    calls = tuple(ToolCall(id=f"call_{n}", tool=tool, arguments={"n": n}) for n, tool in enumerate(tools))
    return StoredMessage(seq, Message(role="assistant", text=text, calls=calls))


def result(seq: int, call: CallKey, text: str = "{}") -> StoredMessage:
    """Return a call's result."""
    return StoredMessage(seq, Message(role="tool", text=text, call_id="call_0"), call)


def an_action(run_id: str, call: CallKey, arguments: dict[str, Any] | None = None, **more: Any) -> NewAction:
    """Return a write about to begin."""
    arguments = arguments or {"n": call.position}
    return NewAction(
        call=call,
        arguments_digest=arguments_digest(arguments),
        idempotency_key=idempotency_key(run_id, call, arguments_digest(arguments)),
        tool="send",
        tool_version="1",
        arguments=arguments,
        timeout_s=30.0,
        suspension_id=more.get("suspension_id"),
    )


def an_ask(run_id: str, call: CallKey, **more: Any) -> NewSuspension:
    """Return a suspension about to open."""
    number = next(_numbers)
    arguments: dict[str, Any] = more.pop("arguments", {"n": call.position})
    preview = Preview(title="Send quote Q-1", fields={"to": "Henderson"})
    ask = NewSuspension(
        id=f"{run_id}.s{number}",
        token=f"{run_id}.t{number}",
        call=call,
        kind=SuspensionKind.APPROVAL,
        tool="send",
        tool_version="1",
        arguments=arguments,
        preview=preview,
        digest=digest_of("send", "1", arguments, preview),
        policy=Approval(),
        asked_by="U1",
        ttl_s=1800,
    )
    return replace(ask, **more)


@dataclass
class World:
    """The stores on one database. *now* is their time; move it with ``pass_time``."""

    pool: "asyncpg.Pool[asyncpg.Record]"
    now: datetime
    worker_id: str

    def __post_init__(self) -> None:
        self.worker = PgWorkerStore(self.pool, now=self.time)
        self.desk = PgDesk(self.pool, now=self.time)
        self.outbox = PgOutbox(self.pool, now=self.time)
        self.inbox = PgInbox(self.pool, now=self.time)
        self.upkeep = PgMaintenance(self.pool, now=self.time)

    def time(self) -> datetime:
        return self.now

    def pass_time(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)

    # -- looking ----------------------------------------------------------------------------------------------

    async def everything(self) -> dict[str, list[str]]:
        """Return every row of every table, to see that nothing changed."""
        return {
            table: [row["row"] for row in await self.pool.fetch(f"select t::text as row from {table} t order by 1")]
            for table in TABLES
        }

    async def value(self, query: str, *arguments: object) -> Any:
        return await self.pool.fetchval(query, *arguments)

    async def places(self) -> dict[str, int]:
        """Return the version wanted at each place of the outbox."""
        return {row["place"]: row["version"] for row in await self.pool.fetch("select place, version from outbox")}

    async def state(self, run_id: str) -> str:
        return str(await self.value("select state from runs where id = $1", run_id))

    async def live(self, run_id: str) -> bool:
        return bool(await self.value("select exists (select from live_threads where run_id = $1)", run_id))

    # -- getting there ----------------------------------------------------------------------------------------

    async def letter(self, text: str = "draft a quote", *, thread: str | None = None, user: str = "U1") -> Letter:
        """Put an event and take it as the drain does."""
        number = next(_numbers)
        ts = f"1700000000.{number:06}"
        event = InboundEvent(f"Ev{number}", "mention", "T1", "C1", ts, thread or ts, user, text, {"text": text})
        assert await self.inbox.put(event)
        (letter,) = [taken for taken in await self.desk.take_mail(50, 30.0) if taken.ts == ts]
        return letter

    def new_run(self, letter: Letter, **more: Any) -> NewRun:
        return replace(
            NewRun(
                id=f"run{next(_numbers):05}",
                team_id=letter.team_id,
                channel_id=letter.channel_id,
                thread_ts=letter.thread_ts,
                owner=REP.model_copy(update={"user_id": letter.user_id}),
                question=letter.text,
                route={"model": "scripted"},
                limits=Limits(),
                scope=Scope(permissions=frozenset({"quotes"})),
                messages=(said(0, letter.text),),
            ),
            **more,
        )

    async def started(self, *, thread: str | None = None, user: str = "U1") -> Fence:
        """Return a run that this world's worker has claimed; one message so far."""
        letter = await self.letter(thread=thread, user=user)
        fence = await self.desk.start(letter, self.new_run(letter), self.worker_id)
        assert fence is not None
        return fence

    async def asking(self, *tools: str, **more: Any) -> tuple[Fence, list[CallKey]]:
        """Return a claimed run whose model has just called *tools* (default: send)."""
        fence = await self.started(**more)
        tools = tools or ("send",)
        await self.worker.step(fence, Batch(messages=(turn(1, *tools),), steps=1, tool_calls=len(tools)))
        return fence, [CallKey(1, position) for position in range(len(tools))]

    async def suspended(self, *tools: str, **ask: Any) -> tuple[str, list[NewSuspension]]:
        """Return a suspended run and its open suspensions, one for each of *tools*."""
        fence, calls = await self.asking(*tools)
        asks = [an_ask(fence.run_id, call, **ask) for call in calls]
        await self.worker.suspend(fence, Batch(), 0, asks)
        return fence.run_id, asks

    async def approved(self, *tools: str, **ask: Any) -> tuple[Fence, list[NewSuspension]]:
        """Return a run whose every suspension is approved, claimed by this world's worker."""
        run_id, asks = await self.suspended(*tools, **ask)
        for one in asks:
            decided = await self.desk.decide(
                one.id, one.token, one.digest, clicker(), approve=True, worker_id=self.worker_id
            )
            assert decided.refusal is None
        token = await self.value("select claim_token::text from runs where id = $1", run_id)
        return Fence(run_id, token), asks

    async def in_doubt(self) -> tuple[str, NewAction, NewSuspension]:
        """Return a suspended run with an unknown action and an open outcome suspension about it."""
        fence, (approval,) = await self.approved()
        action = an_action(fence.run_id, approval.call, suspension_id=approval.id)
        await self.worker.intend(fence, Batch(), action)
        ask = an_ask(fence.run_id, approval.call, kind=SuspensionKind.OUTCOME, alert="somebody has to look")
        news = await self.value("select news from runs where id = $1", fence.run_id)
        await self.worker.suspend(fence, Batch(), news, [ask])
        return fence.run_id, action, ask

    async def halted(self, **more: Any) -> str:
        """Return a run halted by its spend limit."""
        fence = await self.started(**more)
        closing = Closing(detail="the budget is used up", next_worst_usd=Decimal("0.02"))
        await self.worker.halt(fence, Batch(trace=(TraceEntry("halted"),)), HaltReason.BUDGET_SPEND, closing)
        return fence.run_id

    # -- races ------------------------------------------------------------------------------------------------

    async def behind_lock(self, run_id: str, *moves: Callable[[], Awaitable[Any]]) -> list[Any]:
        """Begin *moves*, in this order, while the run's row is locked; let go once all of them wait for it.

        Returns what each returned, or the error that it raised.
        """
        async with self.pool.acquire() as holder:
            transaction = holder.transaction()
            await transaction.start()
            await holder.execute("select from runs where id = $1 for update", run_id)
            tasks: list[asyncio.Task[Any]] = []
            try:
                for number, move in enumerate(moves, start=1):
                    tasks.append(asyncio.ensure_future(_awaited(move)))
                    await self._until_waiting(number)
            finally:
                await transaction.rollback()
            return await asyncio.gather(*tasks, return_exceptions=True)

    async def _until_waiting(self, number: int) -> None:
        """Wait until that many sessions of this database wait for a lock."""
        async with asyncio.timeout(DEADLINE_S):
            while True:
                waiting = await self.value(
                    "select count(*) from pg_stat_activity"
                    " where datname = current_database() and wait_event_type = 'Lock'"
                    " and backend_type = 'client backend'"
                )
                if waiting == number:
                    return
                await asyncio.sleep(0.005)


async def _awaited(move: Callable[[], Awaitable[Any]]) -> Any:
    return await move()


def world_on(pool: "asyncpg.Pool[asyncpg.Record]") -> World:
    """Return a world that begins now."""
    return World(pool, datetime.now(UTC), str(uuid4()))
