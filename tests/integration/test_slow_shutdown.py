"""A shutdown over a slow database: the commit under way waits for a lock, comes late, never, or its connection is cut.

Each time the run is given back as at any clean shutdown: the next process goes on at once, no recovery is charged,
nothing is written twice and nothing lost. Only where nothing is heard in all the time that a shutdown has, the run is
left to be reaped. Store, loop and worker are the real ones; only their patience is shortened.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from decimal import Decimal
from itertools import product
from typing import Any

import asyncpg
import pytest

from bot.wiring import SystemClock, SystemNames
from core import Agent, Approval, Message, ModelReply, Tool
from core import holder as holder_module
from core import landing as landing_module
from core import worker as worker_module
from core.conversation import ToolSpec
from core.loop import Loop
from core.ports import Fence
from core.worker import Worker
from storage.database import open_pool
from storage.lending import lending_of
from storage.migrate import migrate
from storage.worker_store import PgWorkerStore
from tests.integration.storeworld import DEADLINE_S, World, clicker, world_on
from tests.soak.cluster import Wire, running
from tests.unit.coreworld import Deed, People, Read, Write, call, says, scope_of

LINES = (says("", call("look")), says("", call("send")), says("Done."))
# The commits that a shutdown may find under way.
MOVES = ("step", "intend", "conclude", "suspend", "answer")
# And those that it makes itself: the charge of a model call that it cuts short, and the release.
PARTING = ("charge", "release")
NEXT_PROCESS = "11111111-1111-4111-8111-111111111111"
WAITING = (
    "select pid, query_start from pg_stat_activity"
    " where datname = current_database() and wait_event_type = 'Lock' and query not like '%reap%'"
)
# What a session has run last, once it has; null: it is at it, or gone.
LAST_RUN = "select query_start from pg_stat_activity where pid = $1 and state <> 'active'"


async def nothing() -> None:
    return


@pytest.fixture
def world(pool: "asyncpg.Pool[asyncpg.Record]") -> World:
    return world_on(pool)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Soon give up on a commit; what comes after that is never short of time, unless a test says so."""
    monkeypatch.setattr(worker_module, "EFFECT_GRACE_S", 0.2)
    monkeypatch.setattr(landing_module, "CUT_AFTER_S", 0.2)
    monkeypatch.setattr(holder_module, "COMMIT_GRACE_S", 0.2)
    monkeypatch.setattr(holder_module, "AGAIN_WITHIN_S", DEADLINE_S)


@dataclass
class Life:
    """A run that looks something up, sends something and answers, and the model that leads it.

    *move*: just before the first commit of this kind, *trouble* begins. Where it is "suspend", the sending is approved;
    where it is one of a shutdown's own, the model does not answer its first call.
    """

    world: World
    fence: Fence
    move: str
    trouble: Callable[[], Awaitable[None]]
    heard: int = 0
    thinking: asyncio.Event = field(default_factory=asyncio.Event)
    sent: Deed = field(init=False)
    tools: list[Tool[Any]] = field(init=False)

    def __post_init__(self) -> None:
        self.parting = self.move in PARTING
        policy = Approval(by="requester") if self.move == "suspend" else None
        self.sent = Deed(
            guard=self._at("intend", None), policy=self._at("suspend", policy), execute=self._at("conclude", "sent")
        )
        self.tools = [Write(self.sent), Read(Deed(execute="found"))]

    def _at(self, move: str, value: Any) -> Callable[[Any], Awaitable[Any]]:
        async def give(_: Any) -> Any:
            await self._perhaps(move)
            return value

        return give

    async def _perhaps(self, move: str) -> None:
        if self.move == move:
            self.move = "over"
            await self.trouble()

    async def respond(self, messages: list[Message], tools: list[ToolSpec], max_output_tokens: int) -> ModelReply:
        """Say what comes next in this conversation."""
        self.heard += 1
        turn = sum(message.role == "assistant" for message in messages)
        if self.move == "charge":
            await self._perhaps("charge")
        if self.parting and self.heard == 1:
            self.thinking.set()
            await asyncio.Event().wait()
        await self._perhaps(("step", "", "answer")[turn])
        return LINES[turn]

    def worst_case_usd(self, messages: list[Message], tools: list[ToolSpec], max_output_tokens: int) -> Decimal:
        """Return what a line costs."""
        return Decimal("0.01")

    def process(self, store: PgWorkerStore, worker_id: str) -> Worker:
        """Return a process that can carry the run."""
        agent = Agent(instructions="", tools=self.tools, scopes=scope_of)
        clock, names, lifetime = SystemClock(), SystemNames(), timedelta(minutes=30)
        return Worker(
            worker_id,
            store,
            lambda fence: Loop(fence, store, agent, self, People(), clock, names, lifetime=lifetime),
            clock,
            poll_s=0.01,
        )

    async def row(self) -> Any:
        return await self.world.pool.fetchrow("select * from runs where id = $1", self.fence.run_id)

    async def goes_on(self) -> None:
        """Assert that the run is free, and that the next process, and its approver, bring it to its end whole."""
        assert (await self.row())["claim_token"] is None
        other = self.process(self.world.worker, NEXT_PROCESS)
        working = asyncio.create_task(other.run())
        async with asyncio.timeout(DEADLINE_S):
            while (state := (await self.row())["state"]) != "answered":
                assert state in ("running", "suspended")
                if state == "suspended":
                    await self._approve()
                await asyncio.sleep(0.01)
        await other.drain()
        await working
        row = await self.row()
        assert (row["crashes"], row["recovery_attempts"], row["charge_due"]) == (0, 0, False)
        calls = 3 + self.parting
        assert (row["step"], row["tool_calls"], row["spend_usd"]) == (3, 2, calls * Decimal("0.01"))
        assert (self.heard, self.sent.effects) == (calls, 1)
        said = await self.world.pool.fetch("select role from messages where run_id = $1 order by seq", row["id"])
        assert [each["role"] for each in said] == ["user", "assistant", "tool", "assistant", "tool", "assistant"]
        actions = await self.world.pool.fetch("select state from actions where run_id = $1", row["id"])
        assert [each["state"] for each in actions] == ["succeeded"]

    async def _approve(self) -> None:
        (card,) = await self.world.pool.fetch(
            "select id, token, digest from suspensions where run_id = $1 and status = 'open'", self.fence.run_id
        )
        await self.world.desk.decide(card["id"], card["token"], card["digest"], clicker(), approve=True, worker_id=None)


@asynccontextmanager
async def locked(world: World, fence: Fence) -> AsyncIterator[Callable[[], Awaitable[None]]]:
    """Another session: it locks the run's row when what is yielded is called, and lets go at the end."""
    async with world.pool.acquire() as connection:
        transaction = connection.transaction()
        await transaction.start()

        async def lock() -> None:
            await connection.execute("select from runs where id = $1 for update", fence.run_id)

        try:
            yield lock
        finally:
            await transaction.rollback()


async def waiting(world: World, *, besides: frozenset[Any] = frozenset()) -> frozenset[Any]:
    """Return the statements that wait for the lock, once there is one *besides* those."""
    async with asyncio.timeout(DEADLINE_S):
        while not (found := frozenset(map(tuple, await world.pool.fetch(WAITING)))) - besides:
            await asyncio.sleep(0.01)
    return found


@pytest.mark.parametrize("move", MOVES)
async def test_a_commit_that_waits_for_a_lock_ends_in_a_clean_release(world: World, move: str) -> None:
    """SIGTERM comes while somebody holds the run's row, for longer than a commit is waited for: it is looked for, and
    written again behind the first one, which may come first."""
    fence = await world.started()
    async with locked(world, fence) as lock:
        life = Life(world, fence, move, lock)
        process = life.process(world.worker, world.worker_id)
        process.adopt(fence)
        first = await waiting(world)
        leaving = asyncio.create_task(process.drain())
        await waiting(world, besides=first)
        assert not leaving.done()
    async with asyncio.timeout(DEADLINE_S):
        await leaving
    await life.goes_on()


@pytest.mark.parametrize("move", MOVES)
async def test_a_commit_whose_connection_is_cut_while_the_process_leaves_is_written_again(
    world: World, move: str
) -> None:
    """It never arrives, and that is known; its row stays locked for longer than a commit is waited for."""
    fence = await world.started()
    async with locked(world, fence) as lock:
        life = Life(world, fence, move, lock)
        process = life.process(world.worker, world.worker_id)
        process.adopt(fence)
        ((pid, _),) = first = await waiting(world)
        leaving = asyncio.create_task(process.drain())
        await world.pool.execute("select pg_terminate_backend($1)", pid)
        await waiting(world, besides=first)
        assert not leaving.done()
    async with asyncio.timeout(DEADLINE_S):
        await leaving
    await life.goes_on()


async def test_a_model_call_cut_short_is_charged_and_its_run_given_back_over_a_slow_database(world: World) -> None:
    """Most runs wait for their model when SIGTERM comes: what that call may have cost is a commit like the others."""
    fence = await world.started()
    async with locked(world, fence) as lock:
        life = Life(world, fence, "charge", lock)
        process = life.process(world.worker, world.worker_id)
        process.adopt(fence)
        await life.thinking.wait()
        leaving = asyncio.create_task(process.drain())
        first = await waiting(world)
        await waiting(world, besides=first)
        assert not leaving.done()
    async with asyncio.timeout(DEADLINE_S):
        await leaving
    await life.goes_on()


class Parting(PgWorkerStore):
    """*trouble*: begins just before the first release, if it is said."""

    trouble: Callable[[], Awaitable[None]] = staticmethod(nothing)

    async def release(self, fence: Fence) -> None:
        trouble, self.trouble = self.trouble, nothing
        await trouble()
        await super().release(fence)


@dataclass
class Silenced:
    """What one end of a wire says. Once the wire is *armed*, the next of it waits, and all that follows it."""

    source: asyncio.StreamReader
    wire: "Silence"

    async def read(self, most: int) -> bytes:
        chunk = await self.source.read(most)
        if self.wire.armed and chunk:
            self.wire.armed = False
            self.wire.kept.set()
            await self.wire.let_go.wait()
        return chunk


class Silence(Wire):
    """A network on which one connection says nothing from some moment on. *of*: what is lost, "statement", "answer"."""

    def __init__(self, to: int, of: str) -> None:
        super().__init__(to)
        self.of = of
        self.armed = False
        self.kept = asyncio.Event()
        self.let_go = asyncio.Event()

    async def arm(self) -> None:
        self.armed = True

    async def _pump(self, source: Any, sink: asyncio.StreamWriter) -> None:
        said = "statement" if sink.get_extra_info("peername")[1] == self.to else "answer"
        await super()._pump(Silenced(source, self) if said == self.of else source, sink)  # type: ignore[arg-type]


async def test_a_commit_that_nothing_is_heard_of_is_given_back_and_counts_once_when_it_comes() -> None:
    """One connection goes silent, others work: on the way there, so that the statement arrives after the run was given
    back; or on the way back, so that it took place."""
    async with running(fsync="off") as cluster:
        await cluster.execute("create database atlas")
        dsn = cluster.dsn("atlas")
        await migrate(dsn)
        async with asyncpg.create_pool(dsn, min_size=1) as seeing:
            for of, move in product(("statement", "answer"), (*MOVES, *PARTING)):
                wire = Silence(cluster.port, of)
                await wire.start()
                pool = await open_pool(wire.leading(dsn), size=4)
                try:
                    await _silenced(world_on(seeing), pool, wire, move)
                finally:
                    wire.let_go.set()
                    pool.terminate()
                    await wire.stop()
            await lending_of(seeing).let_go()


async def _silenced(world: World, pool: "asyncpg.Pool[asyncpg.Record]", wire: Silence, move: str) -> None:
    store = Parting(pool, now=world.time)
    # A run without trouble: every statement is prepared on the one connection that there is, and is one message.
    before = Life(world, await world.started(), "" if move in PARTING else move, nothing)
    process = before.process(store, world.worker_id)
    process.adopt(before.fence)
    await process.until_idle()
    await lending_of(pool).let_go()  # else the pool opens a second connection for this
    silent = await pool.fetchval("select pg_backend_pid()")
    if move == "release":
        store.trouble = wire.arm
    life = Life(world, await world.started(), move, wire.arm if move != "release" else nothing)
    process = life.process(store, world.worker_id)
    process.adopt(life.fence)
    async with asyncio.timeout(DEADLINE_S):
        await (life.thinking if life.parting else wire.kept).wait()
        await process.drain()
        assert wire.kept.is_set()
        rows = await world.everything()
        ran = await world.value(LAST_RUN, silent)
        wire.let_go.set()
        while wire.of == "statement" and await world.value(LAST_RUN, silent) == ran:
            await asyncio.sleep(0.01)
    assert await world.everything() == rows, (wire.of, move)
    await life.goes_on()


async def test_a_run_of_whose_commit_nothing_is_heard_in_time_is_left_to_be_reaped(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Released, it would go on without what was perhaps not written; reaped, it is known that nothing more can come."""
    monkeypatch.setattr(holder_module, "AGAIN_WITHIN_S", 0.2)
    fence = await world.started()
    async with locked(world, fence) as lock:
        life = Life(world, fence, "step", lock)
        process = life.process(world.worker, world.worker_id)
        process.adopt(fence)
        await waiting(world)
        async with asyncio.timeout(DEADLINE_S):
            await process.drain()
        row = await life.row()
        assert (str(row["claim_token"]), row["step"]) == (fence.claim_token, 0)
    async with asyncio.timeout(DEADLINE_S):
        while (await life.row())["step"] == 0:
            await asyncio.sleep(0.01)
    assert await world.upkeep.reap(lease_s=90.0, quick=False) == [fence.run_id]
    row = await life.row()
    assert (row["step"], row["crashes"], row["recovery_attempts"], row["spend_usd"]) == (1, 1, 1, Decimal("0.01"))
