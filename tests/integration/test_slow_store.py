"""A store that is slow, short of connections or gives up on a statement: each step fails alone or not at all, and what
is reported done is done.

The slow disk is PostgreSQL's own ``commit_delay``: whoever flushes the log holds its lock so much longer, as with
a network volume. (One bad row in a batch, and a locked one: ``test_store_commits.py``.)
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import replace

import asyncpg
import pytest

from core.conversation import RESULT_LIMIT, CallKey
from core.errors import StoreUnavailable
from core.loop import REPLY_LIMIT
from core.ports import Batch, Fence, TraceEntry
from jobs.retention import BATCH
from storage import lending
from storage.database import open_pool
from storage.migrate import migrate
from tests.conftest import POOLED
from tests.integration.storeworld import DEADLINE_S, World, result, turn, world_on
from tests.soak.cluster import Cluster, running

RUNS = 40
DAY = 86_400


@pytest.fixture
def world(pool: "asyncpg.Pool[asyncpg.Record]") -> World:
    return world_on(pool)


@pytest.fixture
async def slow() -> AsyncIterator[Cluster]:
    """A PostgreSQL with durable commits on a disk whose every sync takes 20 ms more."""
    async with running(fsync="on", commit_delay="20000", commit_siblings="0") as cluster:
        await cluster.execute("create database atlas")
        await migrate(cluster.dsn("atlas"))
        yield cluster


def step(n: int, text: str = "", found: str = '{"found": 1}') -> Batch:
    """Return the *n*th turn of a run with its result, whole or not at all."""
    seq = 2 * n + 1
    return Batch(
        messages=(turn(seq, "look", text=text), result(seq + 1, CallKey(seq, 0), found)),
        trace=(TraceEntry("model", {}, 1),),
        steps=1,
        elapsed_ms=1,
    )


async def whole(world: World, fence: Fence, steps: int) -> None:
    """Assert that exactly so many steps of a run are stored, each whole."""
    view = await world.worker.load(fence)
    assert (view.run.step, len(view.messages)) == (steps, 1 + 2 * steps)


async def test_on_a_slow_disk_a_locked_run_holds_up_nobody_else(slow: Cluster) -> None:
    """39 runs step five times each while somebody holds the 40th's row; they share commits; then it goes on too."""
    # Without the process's own limit of 15 s a statement, which whoever waits here may need on a slow machine.
    pool = await asyncpg.create_pool(slow.dsn("atlas"), min_size=1, max_size=6)
    try:
        world = world_on(pool)
        *free, held = [await world.started(user=f"U{n}") for n in range(RUNS)]

        async def work(fence: Fence) -> None:
            for n in range(5):
                assert await world.worker.step(fence, step(n)) == 0

        before = await world.value("select pg_current_xact_id()::text::bigint")
        async with pool.acquire() as connection:
            locked = connection.transaction()
            await locked.start()
            await connection.execute("select from runs where id = $1 for update", held.run_id)
            waiting = asyncio.create_task(world.worker.step(held, step(0)))
            async with asyncio.timeout(DEADLINE_S):
                await asyncio.gather(*map(work, free))
            assert not waiting.done()
            assert await world.value("select step from runs where id = $1", held.run_id) == 0
            await locked.rollback()
        assert await waiting == 0
        after = await world.value("select pg_current_xact_id()::text::bigint")
        for fence in free:
            await whole(world, fence, 5)
        await whole(world, held, 1)
        assert after - before < 5 * len(free)
    finally:
        await pool.close()


async def test_a_crash_on_a_slow_disk_loses_nothing_that_was_reported(slow: Cluster) -> None:
    """The server dies while 40 runs step: of each run every reported step is there, and at most one more, whole."""
    pool = await open_pool(slow.dsn("atlas"), size=6)
    world = world_on(pool)
    fences = [await world.started(user=f"U{n}") for n in range(RUNS)]
    reported = [0] * RUNS
    enough = asyncio.Event()

    async def work(at: int) -> None:
        with suppress(StoreUnavailable):
            while True:
                await world.worker.step(fences[at], step(reported[at]))
                reported[at] += 1
                if sum(reported) >= 3 * RUNS:
                    enough.set()

    working = [asyncio.create_task(work(at)) for at in range(RUNS)]
    async with asyncio.timeout(DEADLINE_S):
        await enough.wait()
    await slow.stop("immediate")
    await asyncio.gather(*working)
    pool.terminate()
    await slow.start()
    pool = await open_pool(slow.dsn("atlas"))
    try:
        world = world_on(pool)
        for fence, told in zip(fences, reported, strict=True):
            view = await world.worker.load(fence)
            assert view.run.step in (told, told + 1)
            await whole(world, fence, view.run.step)
    finally:
        await pool.close()


async def test_a_statement_that_is_given_up_fails_its_own_step_only(world: World) -> None:
    """As a statement timeout does it: one run's step is cancelled while it waits for its row; the others are done,
    nothing of it is stored, and the same step works later."""
    fences = [await world.started(user=f"U{n}") for n in range(6)]
    async with world.pool.acquire() as connection:
        locked = connection.transaction()
        await locked.start()
        await connection.execute("select from runs where id = $1 for update", fences[2].run_id)
        steps = [asyncio.create_task(world.worker.step(fence, step(0))) for fence in fences]
        await asyncio.gather(*(each for each in steps if each is not steps[2]))
        async with asyncio.timeout(DEADLINE_S):
            while not await world.value(
                "select coalesce(bool_or(pg_cancel_backend(pid)), false) from pg_stat_activity"
                " where datname = current_database() and wait_event_type = 'Lock' and query like '%step_run%'"
            ):
                await asyncio.sleep(0.01)
        with pytest.raises(StoreUnavailable):
            await steps[2]
        await locked.rollback()
    await whole(world, fences[2], 0)
    await world.worker.step(fences[2], step(0))
    for fence in fences:
        await whole(world, fence, 1)


@pytest.mark.parametrize("size", [1, 2])
async def test_a_pool_smaller_than_the_load_makes_wait_and_fails_nobody(
    database: str, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """30 runs step, load and claim at once on one or two connections."""
    # A busy machine takes its time for the line of 30; who waits for two connections at once waits for good.
    monkeypatch.setattr(lending, "ACQUIRE_TIMEOUT_S", DEADLINE_S)
    pool = await open_pool(database, pooler=POOLED, size=size)
    try:
        world = world_on(pool)
        fences = [await world.started(user=f"U{n}") for n in range(30)]

        async def work(fence: Fence) -> None:
            for n in range(3):
                await world.worker.step(fence, step(n))
                await world.worker.claim(world.worker_id, 1)
            await whole(world, fence, 3)

        async with asyncio.timeout(2 * DEADLINE_S):
            await asyncio.gather(*map(work, fences))
    finally:
        await pool.close()


async def test_bodies_at_the_limit_are_stored_whole_beside_small_ones(world: World) -> None:
    """The longest reply and the longest result that there are: they and their small neighbours are all stored."""
    fences = [await world.started(user=f"U{n}") for n in range(8)]
    largest = {
        1: step(0, text="\U0001f600" * REPLY_LIMIT),
        2: step(0, found="x" * RESULT_LIMIT),
        5: step(0, text="\x00" * REPLY_LIMIT, found="\ud800" * RESULT_LIMIT),
    }
    async with asyncio.timeout(2 * DEADLINE_S):
        await asyncio.gather(*(world.worker.step(fence, largest.get(n, step(0))) for n, fence in enumerate(fences)))
    world = world_on(world.pool)  # nothing kept in memory: read back as another process would
    for n, fence in enumerate(fences):
        await whole(world, fence, 1)
        view = await world.worker.load(fence)
        sent = largest.get(n, step(0)).messages
        assert [m.message for m in view.messages[1:]] == [m.message for m in sent]


async def test_retention_waits_for_nobody_and_nobody_for_it(world: World) -> None:
    """A batch passes over a row that somebody has locked, and steps go on while it is not committed."""
    old = [await world.started(user=f"O{n}") for n in range(3)]
    for fence in old:
        await world.worker.answer(fence, Batch(messages=(turn(1, text="x"),)), 0, "x")
    world.pass_time(31 * DAY)
    live = await world.started(user="U1")
    async with world.pool.acquire() as reader:
        transaction = reader.transaction()
        await transaction.start()
        await reader.execute("select from runs where id = $1 for update", old[0].run_id)
        async with asyncio.timeout(DEADLINE_S):
            await world.upkeep.retention(BATCH)
            left = {row["id"] for row in await world.pool.fetch("select id from runs")}
            assert left == {old[0].run_id, live.run_id}
            await world.worker.step(live, step(0))
        await transaction.rollback()
    await world.upkeep.retention(BATCH)
    assert await world.value("select count(*) from runs") == 1
    kept = replace(step(1), doing="at work")
    async with world.pool.acquire() as remover:
        ended = await world.started(user="U2")
        await world.worker.answer(ended, Batch(messages=(turn(1, text="x"),)), 0, "x")
        transaction = remover.transaction()
        await transaction.start()
        await remover.execute("delete from runs where id = $1", ended.run_id)
        async with asyncio.timeout(DEADLINE_S):
            await world.worker.step(live, kept)
        await transaction.rollback()
    await whole(world, live, 2)
