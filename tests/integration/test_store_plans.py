"""Hot statements find their rows by keys, however large the tables are and whenever their plan was made."""

import asyncio
from collections.abc import AsyncIterator
from decimal import Decimal

import asyncpg
import pytest

from core.conversation import CallKey
from core.ports import Batch, Fence, TraceEntry
from storage import sql
from storage.commits import SharedCommits, together
from storage.database import open_pool
from storage.rows import batch_columns
from storage.worker_store import LONG_FROM
from tests.conftest import POOLED
from tests.integration.storeworld import World, an_action, result, turn, world_on

CROWD = 200_000
MILLION = 1_000_000
# A pooler's sessions may scan, and do where a table is a page long; they plan each statement anew, for the size it has.
GROWN = ("runs", "messages", "trace")
UNSCANNED = GROWN if POOLED else (*GROWN, "actions", "inbox", "outbox", "live_threads", "suspensions")


@pytest.fixture
async def pool(database: str) -> "AsyncIterator[asyncpg.Pool[asyncpg.Record]]":
    """A pool as the process opens it, with the settings of its sessions."""
    opened = await open_pool(database, pooler=POOLED)
    yield opened
    await opened.close()


@pytest.fixture
def world(pool: "asyncpg.Pool[asyncpg.Record]") -> World:
    return world_on(pool)


async def crowd(world: World, run_id: str, state: str = "answered", count: int = CROWD) -> None:
    """Copy a run with its messages and trace *count* times."""
    ended = "now()" if state == "answered" else "null"
    await world.pool.execute(
        "insert into runs (id, team_id, channel_id, thread_ts, user_id, owner, question, route, max_steps,"
        " max_tool_calls, max_spend_usd, max_elapsed_ms, state, ended_at, scope, scope_resolved_at, next_seq)"
        " select 'many' || n, team_id, channel_id, 't' || n, 'U' || n, owner, question, route, max_steps,"
        f" max_tool_calls, max_spend_usd, max_elapsed_ms, '{state}', {ended}, scope, scope_resolved_at, next_seq"
        " from runs, generate_series(1, $2::integer) n where id = $1",
        run_id,
        count,
        timeout=600,
    )
    for table, columns in (
        ("messages", "seq, role, body, answers_seq, answers_position"),
        ("trace", "kind, body"),
    ):
        await world.pool.execute(
            f"insert into {table} (run_id, {columns}) select 'many' || n, {columns}"
            f" from {table}, generate_series(1, $2::integer) n where run_id = $1",
            run_id,
            count,
            timeout=600,
        )


def blocks_of(plan: list[str]) -> int:
    """Return how many blocks the whole statement touched, or that part of it which touched most: what changes rows and
    is not asked for them is no part of the whole."""
    touched = [line.split() for line in plan if "Buffers:" in line]
    return max(sum(int(part.split("=")[1]) for part in line if part.startswith(("hit=", "read="))) for line in touched)


def step(n: int) -> Batch:
    return Batch(
        messages=(turn(n, "look"), result(n + 1, CallKey(n, 0))),
        trace=(TraceEntry("model", {}, 1, Decimal("0.01")),),
        steps=1,
        elapsed_ms=1,
    )


async def plans(world: World, fence: Fence, *, done: bool = False) -> dict[str, str]:
    """Return the plan of each hot statement as it is now. *done*: executed, and undone, with the blocks it touches."""
    columns = batch_columns(step(1))
    who = (fence.run_id, fence.claim_token)
    action = an_action(fence.run_id, CallKey(1, 0))
    key = (1, 0, action.arguments_digest, action.idempotency_key, "send", "1", "{}", 30.0, None, None)
    asked: dict[str, tuple[object, ...]] = {
        "step_run": (*who, *columns, None, False, None),
        "step_runs": (*together([fence], [columns]), None),
        "answer_run": (*who, *columns, 0, "{}", None),
        "intend_action": (*who, *columns, *key),
        "conclude_calls": (*who, *columns, [1], [0], ["d"], ["succeeded"], [None], [], [], [], [], None),
        "load_run": (*who, None, 0, LONG_FROM),
        "explain_conflict": who,
        "claim_runs": (world.worker_id, 8, 16, "", None),
    }
    found = {}
    how = "(analyze, buffers, timing off)" if done else ""
    async with world.pool.acquire() as connection:
        for name, arguments in asked.items():
            transaction = connection.transaction()
            await transaction.start()
            rows = await connection.fetch(f"explain {how} {getattr(sql, name).text}", *arguments)
            await transaction.rollback()
            found[name] = "\n".join(row[0] for row in rows)
    return found


@pytest.mark.slow
async def test_hot_statements_use_their_keys_among_a_million_runs(world: World) -> None:
    """Without statistics and with them: after a burst there are none yet."""
    fence = await world.started()
    await world.pool.execute("alter table runs set (autovacuum_enabled = off)")
    await crowd(world, fence.run_id, count=MILLION)
    for when in ("before", "after"):
        for name, plan in (await plans(world, fence)).items():
            for table in UNSCANNED:
                assert f"Seq Scan on {table}" not in plan, (when, name, plan)
        # Sessions never plan a scan while any index will do, so a plan without one may still walk a whole index.
        for name, plan in (await plans(world, fence, done=True)).items():
            assert 0 < blocks_of(plan.splitlines()) < 2000, (when, name, plan)
        await world.pool.execute("analyze", timeout=600)


@pytest.mark.slow
async def test_a_claim_among_thousands_that_wait_is_quick_before_any_statistics(world: World) -> None:
    """The plan was made when the table was nearly empty, and 200,000 runs wait by now: what is read stays bounded."""
    fence = await world.started()
    async with world.pool.acquire() as connection:
        await sql.claim_runs.rows(connection, worker_id=world.worker_id, room=8, per_person=16, walked="", now=None)
        await connection.execute("alter table runs set (autovacuum_enabled = off)")
        await crowd(world, fence.run_id, "running")
        async with connection.transaction():
            await connection.execute(
                "prepare a_claim (uuid, integer, integer, text, timestamptz) as " + sql.claim_runs.text
            )
            rows = await connection.fetch(
                f"explain (analyze, buffers, format text) execute a_claim ('{world.worker_id}', 8, 16, '', null)"
            )
    plan = "\n".join(row[0] for row in rows)
    assert ("Seq Scan on runs" if POOLED else "Seq Scan") not in plan
    assert 0 < blocks_of([row[0] for row in rows]) < 20_000, plan


@pytest.mark.slow
async def test_a_batch_of_orphans_costs_the_same_however_many_there_are(world: World) -> None:
    """A look and a batch read a bounded number of pages while 20,000 runs hang on ten dead processes."""
    fence = await world.started()
    await world.upkeep.register(world.worker_id, "host", 1, "worker", 1, holds_lock=False)
    await world.pool.execute("alter table runs set (autovacuum_enabled = off)")
    await crowd(world, fence.run_id, "running", 20_000)
    await world.pool.execute(
        "insert into workers (id, host, pid, role, lock_key, holds_lock, beat_at, died_at, held)"
        " select gen_random_uuid(), 'gone', 1, 'worker', 0, false, now() - interval '1 hour', now(), 2000"
        " from generate_series(1, 10)"
    )
    await world.pool.execute(
        "update runs set claim_token = gen_random_uuid(), claimed_by = (array(select id from workers"
        " where host = 'gone' order by id))[1 + abs(hashtext(runs.id)) % 10] where claimed_by is null",
        timeout=600,
    )
    async with world.pool.acquire() as connection:
        transaction = connection.transaction()
        await transaction.start()
        for name, arguments, most in (("mark_missing_workers", (None,), 500), ("reap_runs", (20, None), 5_000)):
            text = f"explain (analyze, buffers, format text) {getattr(sql, name).text}"
            rows = [row[0] for row in await connection.fetch(text, *arguments)]
            assert 0 < blocks_of(rows) < most, "\n".join(rows)
        reaped = await connection.fetchval("select count(*) from runs where crashes > 0")
        await transaction.rollback()
    assert reaped == 20


async def test_thousands_of_steps_leave_the_runs_table_small(world: World) -> None:
    """Steps are HOT: the table's dead rows are reused on their own page, so that it hardly grows, and no index does.
    A page keeps the places of 291 rows at most, so that 2,000 steps that are not HOT need seven pages more."""
    await world.pool.execute("alter table runs set (autovacuum_enabled = off)")
    fences = [await world.started(user=f"U{n}") for n in range(10)]
    commits = SharedCommits(world.pool, lambda: None)
    columns = batch_columns(Batch(steps=1, elapsed_ms=1, doing="at work"))
    before = await world.value("select pg_relation_size('runs')")
    for _ in range(200):
        assert await asyncio.gather(*(commits.step(fence, columns) for fence in fences)) == [0] * 10
    assert await world.value("select sum(step) from runs") == 2000
    after = await world.value("select pg_relation_size('runs')")
    assert after <= before + 3 * 8192, (before, after)
