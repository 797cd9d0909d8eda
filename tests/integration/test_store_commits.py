"""Shared commits: the steps of concurrent runs in one commit, each whole, each with its own fence and its own error."""

import asyncio
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal

import asyncpg
import pytest

from bot.wiring import SystemClock, SystemNames
from core import Agent, landing
from core.conversation import CallKey
from core.errors import ClaimLost, InvariantBroken, StoreUnavailable
from core.loop import Loop
from core.ports import Batch, Fence, TraceEntry
from core.run import RunView
from core.tools import Scope
from tests.benchmarks.subjects import Everybody, InstantModel, scopes
from tests.integration.storeworld import DEADLINE_S, World, result, turn, world_on


@pytest.fixture
def world(pool: "asyncpg.Pool[asyncpg.Record]") -> World:
    return world_on(pool)


def step(n: int = 1) -> Batch:
    """Return a model turn and its result, from seq *n*."""
    return Batch(
        messages=(turn(n, "lookup", text="\x00 \ud800 🎈"), result(n + 1, CallKey(n, 0), '{"found": 1}')),
        trace=(TraceEntry("model", {"calls": ["lookup"]}, 12, Decimal("0.01")), TraceEntry("read", ms=3)),
        steps=1,
        tool_calls=1,
        spend_usd=Decimal("0.01"),
        elapsed_ms=20,
        doing="looking up",
    )


async def commits_of(world: World) -> int:
    async with world.pool.acquire() as connection:
        await connection.execute("select pg_stat_force_next_flush()")
        return int(
            await connection.fetchval("select count(distinct xmin::text) from messages where role = 'assistant'")
        )


async def test_steps_that_wait_at_the_same_moment_share_commits(world: World) -> None:
    """20 runs step at once: every step is stored whole, in far fewer commits than steps."""
    fences = [await world.started(user=f"U{n}") for n in range(20)]
    await asyncio.gather(*(world.worker.step(fence, step()) for fence in fences))
    for fence in fences:
        view = await world.worker.load(fence)
        assert [m.message for m in view.messages[1:]] == [m.message for m in step().messages]
        assert (view.run.step, view.run.spend_usd, view.run.tool_calls) == (1, Decimal("0.01"), 1)
        kinds = [entry.kind for _, entry in await world.upkeep.timeline(fence.run_id)]
        assert kinds[-2:] == ["model", "read"]
    assert await commits_of(world) == 2


async def test_a_lost_claim_in_a_shared_commit_fails_alone(world: World) -> None:
    """One of many has lost its claim: it is told so, the others are stored, and nothing of it is."""
    fences = [await world.started(user=f"U{n}") for n in range(6)]
    zombie = Fence(fences[3].run_id, "00000000-0000-4000-8000-000000000000")
    sent = [zombie if fence is fences[3] else fence for fence in fences]
    answers = await asyncio.gather(*(world.worker.step(fence, step()) for fence in sent), return_exceptions=True)
    assert [type(answer) for answer in answers] == [int, int, int, ClaimLost, int, int]
    assert (await world.worker.load(fences[3])).run.step == 0


async def test_a_bad_row_in_a_shared_commit_fails_alone(world: World) -> None:
    """PostgreSQL refuses one row (money beyond the column): that step fails, every other one is stored."""
    fences = [await world.started(user=f"U{n}") for n in range(6)]
    bad = replace(step(), spend_usd=Decimal(99999))
    sent = [(fence, bad if fence is fences[4] else step()) for fence in fences]
    answers = await asyncio.gather(*(world.worker.step(*each) for each in sent), return_exceptions=True)
    assert [type(answer) for answer in answers] == [int, int, int, int, InvariantBroken, int]
    steps = [(await world.worker.load(fence)).run.step for fence in fences]
    assert steps == [1, 1, 1, 1, 0, 1]


async def test_a_locked_row_delays_only_its_own_step(world: World) -> None:
    """Somebody holds one run's row: the others' steps are stored meanwhile; its own waits, then is stored too."""
    fences = [await world.started(user=f"U{n}") for n in range(6)]
    async with world.pool.acquire() as connection:
        locked = connection.transaction()
        await locked.start()
        await connection.execute("select from runs where id = $1 for update", fences[5].run_id)
        tasks = [asyncio.create_task(world.worker.step(fence, step())) for fence in fences]
        done, waiting = await asyncio.wait(tasks[:5], timeout=60)
        assert len(done) == 5
        assert not waiting
        assert not tasks[5].done()
        await locked.rollback()
    assert await tasks[5] == 0


async def test_news_comes_back_with_a_shared_commit(world: World) -> None:
    """Each run gets its own news count, not its neighbour's."""
    fences = [await world.started(user=f"U{n}") for n in range(5)]
    for n, fence in enumerate(fences):
        await world.pool.execute("update runs set news = $2 where id = $1", fence.run_id, n)
    assert await asyncio.gather(*(world.worker.step(fence, step()) for fence in fences)) == [0, 1, 2, 3, 4]


async def loaded(world: World, fence: Fence) -> RunView:
    """Load a run, as a holder does: once more where a connection in hand turns out to be cut."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            with suppress(StoreUnavailable):
                return await world.worker.load(fence)


async def test_a_broken_connection_leaves_no_step_half_done(world: World, database: str) -> None:
    """The server cuts every connection while steps are committing: each run has its step whole or not at all."""
    fences = [await world.started(user=f"U{n}") for n in range(30)]

    async def cut() -> None:
        admin = await asyncpg.connect(database)
        try:
            await admin.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity "
                "where datname = current_database() and pid <> pg_backend_pid()"
            )
        finally:
            await admin.close()

    answers = await asyncio.gather(
        *(world.worker.step(fence, step()) for fence in fences), cut(), return_exceptions=True
    )
    assert {type(answer) for answer in answers} <= {int, StoreUnavailable, type(None)}
    for fence, answer in zip(fences, answers, strict=False):
        view = await loaded(world, fence)
        whole = (view.run.step, len(view.messages)) in ((1, 3), (0, 1))
        assert whole
        if isinstance(answer, int):
            assert view.run.step == 1


async def test_a_new_scope_travels_with_a_shared_commit(world: World) -> None:
    """A scope in one batch changes that run's scope and no other's."""
    fences = [await world.started(user=f"U{n}") for n in range(4)]
    before = (await world.worker.load(fences[0])).run.scope
    wide = Scope(permissions=frozenset({"everything"}))
    sent = [replace(step(), scope=wide if n == 2 else None) for n in range(4)]
    await asyncio.gather(*(world.worker.step(fence, batch) for fence, batch in zip(fences, sent, strict=True)))
    assert [(await world.worker.load(fence)).run.scope for fence in fences] == [before, before, wide, before]


async def test_a_shared_commit_that_is_given_up_costs_nobody_a_step(world: World, direct: str) -> None:
    """An administrator cancels the shared statement, as a lost deadlock would: each step is tried alone, and stored."""
    fences = [await world.started(user=f"U{n}") for n in range(6)]
    await world.pool.execute(
        "create function held() returns trigger language plpgsql as"
        " $$ begin if new.seq = 1 then perform pg_advisory_xact_lock_shared(77); end if; return new; end $$;"
        " create trigger held before insert on messages for each row execute function held()"
    )
    admin = await asyncpg.connect(direct)
    try:
        # No step ends before the shared statement has been given up.
        await admin.execute("select pg_advisory_lock(77)")
        steps = asyncio.gather(*(world.worker.step(fence, step()) for fence in fences))
        # Seen waiting: a session that has only named its statement yet ignores who cancels it.
        shared = (
            "from pg_stat_activity where datname = current_database() and wait_event = 'advisory'"
            " and query like '%step_runs%'"
        )
        async with asyncio.timeout(DEADLINE_S):
            while not await admin.fetchval(f"select count(*) filter (where pg_cancel_backend(pid)) {shared}"):
                await asyncio.sleep(0.01)
            while await admin.fetchval(f"select count(*) {shared}"):
                await asyncio.sleep(0.01)
            await admin.execute("select pg_advisory_unlock(77)")
            assert await steps == [0] * 6
    finally:
        await admin.close()
    assert [(await world.worker.load(fence)).run.step for fence in fences] == [1] * 6


@pytest.mark.parametrize("with_message", [False, True])
async def test_a_shutdown_that_cuts_a_step_short_counts_nothing_twice(
    world: World, monkeypatch: pytest.MonkeyPatch, with_message: bool
) -> None:
    """Somebody holds the run's row for longer than a shutdown waits: the step may land yet, so it is neither written
    again nor is the claim released; the run is found as after a crash, with what it spent once."""
    monkeypatch.setattr(landing, "CUT_AFTER_S", 0.05)
    fence = await world.started()
    made = Loop(
        fence, world.worker, Agent("", [], scopes), InstantModel(1), Everybody(), SystemClock(), SystemNames(),
        lifetime=timedelta(minutes=30),
    )  # fmt: skip
    await made.holder.reload()
    asked = asyncio.Event()

    async def work() -> None:
        made.holder.owe(spend_usd=Decimal("0.5"))
        if with_message:
            made.holder.append(turn(1, "lookup").message)
        asked.set()
        await made.holder.step(made.holder.batch())

    monkeypatch.setattr(made, "_until_stop", work)
    async with world.pool.acquire() as connection:
        locked = connection.transaction()
        await locked.start()
        await connection.execute("select from runs where id = $1 for update", fence.run_id)
        task = asyncio.create_task(made.run())
        await asked.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await locked.rollback()
    async with asyncio.timeout(DEADLINE_S):
        while not (spent := (await world.worker.load(fence)).run.spend_usd):
            await asyncio.sleep(0.02)
    assert spent == Decimal("0.5")
    assert await world.worker.claims_of(world.worker_id) == [fence]
