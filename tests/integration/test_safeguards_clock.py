"""One shared clock: the database's. A process whose own clock is off changes no time that others compare.

The database's clock is moved, by a function that stands before PostgreSQL's own in the search path; the process keeps
its own. Every time that is stored, and every verdict about one, must follow the database.
"""

from collections.abc import AsyncIterator
from datetime import datetime, timedelta

import asyncpg
import pytest

from core.approvals import Refusal
from core.conversation import CallKey
from core.ports import Batch, InboundEvent
from core.run import RunState
from storage.desk_store import PgDesk
from storage.inbox import PgInbox
from storage.maintenance import PgMaintenance
from storage.outbox import PgOutbox
from storage.worker_store import PgWorkerStore
from tests.conftest import STATEMENTS_KEPT
from tests.integration.pgbouncer import new_sessions
from tests.integration.storeworld import World, an_ask, clicker, turn, world_on

AHEAD = timedelta(days=400)


@pytest.fixture
async def world(database: str, connection: "asyncpg.Connection[asyncpg.Record]") -> AsyncIterator[World]:
    """The stores as production has them, without a time of their own, on a database that is 400 days ahead."""
    await connection.execute("create schema skewed")
    await connection.execute(
        "create table skewed.ahead (by interval); "
        "create function skewed.now() returns timestamptz language sql stable as "
        "'select pg_catalog.now() + (select by from skewed.ahead)'"
    )
    await connection.execute("insert into skewed.ahead values ($1)", AHEAD)
    name = await connection.fetchval("select current_database()")
    await connection.execute(f'alter database "{name}" set search_path to skewed, pg_catalog, public')
    await new_sessions(database)
    async with asyncpg.create_pool(database, min_size=1, max_size=4, statement_cache_size=STATEMENTS_KEPT) as pool:
        made = world_on(pool)
        made.worker, made.desk, made.outbox = PgWorkerStore(pool), PgDesk(pool), PgOutbox(pool)
        made.inbox, made.upkeep = PgInbox(pool), PgMaintenance(pool)
        yield made


async def move_clock(world: World, seconds: float) -> None:
    """Move the database's clock forward."""
    await world.pool.execute("update skewed.ahead set by = by + make_interval(secs => $1)", seconds)


async def test_every_stored_time_is_the_databases(world: World) -> None:
    await world.upkeep.register(world.worker_id, "host", 1, "worker", 7, holds_lock=False)
    (run_id, (ask,)) = await world.suspended()
    decided = await world.desk.decide(ask.id, ask.token, ask.digest, clicker(), approve=True, worker_id=world.worker_id)
    assert decided.claimed is not None
    assert abs((await world.worker.load(decided.claimed)).now - world.now - AHEAD) < timedelta(hours=1)
    for row in await world.outbox.take(9, 30.0):
        await world.outbox.posting(row)
        await world.outbox.retry(row, "x", 5.0)
    await world.desk.stop(run_id, clicker())
    columns = await world.pool.fetch(
        "select table_name, column_name from information_schema.columns "
        "where table_schema = 'public' and data_type = 'timestamp with time zone' "
        # Nobody gives these two: they are the schema's own defaults.
        "and table_name <> 'schema_migrations' and (table_name, column_name) <> ('outbox', 'created_at')"
    )
    off: list[str] = []
    seen = 0
    for column in columns:
        table, name = column["table_name"], column["column_name"]
        for found in await world.pool.fetch(f'select "{name}" as at from "{table}" where "{name}" is not null'):
            seen += 1
            at: datetime = found["at"]
            if abs(at - world.now - AHEAD) > timedelta(hours=1):
                off.append(f"{table}.{name}: {at}")
    assert seen > 20
    assert off == []


async def test_an_expiry_is_judged_by_the_databases_clock(world: World) -> None:
    run_id, (ask,) = await world.suspended()
    await move_clock(world, 1801)
    late = await world.desk.decide(ask.id, ask.token, ask.digest, clicker(), approve=True)
    assert late.refusal is Refusal.EXPIRED
    assert late.run is not None
    assert late.run.state is RunState.HALTED
    assert await world.state(run_id) == "halted"


async def test_a_lease_is_judged_by_the_databases_clock(world: World) -> None:
    await world.upkeep.register(world.worker_id, "host", 1, "worker", 7, holds_lock=False)
    fence = await world.started()
    assert await world.upkeep.reap(lease_s=90, quick=False) == []
    await move_clock(world, 91)
    assert await world.upkeep.reap(lease_s=90, quick=False) == [fence.run_id]


async def test_a_letter_and_a_suspension_have_the_age_that_the_database_gives_them(world: World) -> None:
    event = InboundEvent("Ev-1", "mention", "T1", "C1", "1.1", "1.1", "U1", "hello", {})
    assert await world.inbox.put(event)
    await move_clock(world, 100)
    (letter,) = await world.desk.take_mail(5, 30.0)
    assert 99 < letter.age_s < 160
    fence = await world.desk.start(letter, world.new_run(letter), world.worker_id)
    assert fence is not None
    await world.worker.step(fence, Batch(messages=(turn(1, "send"),), steps=1))
    ask = an_ask(fence.run_id, CallKey(1, 0))
    await world.worker.suspend(fence, Batch(), 0, [ask])
    await world.pool.execute("update outbox set message_channel = 'C1', message_ts = '1.2' where kind = 'card'")
    await move_clock(world, 1450)
    assert await world.upkeep.to_remind(300.0) == []
    await move_clock(world, 100)
    assert await world.upkeep.to_remind(300.0) == [ask.id]


async def test_who_has_beaten_since_the_judge_is_not_dead_however_old_that_is(world: World) -> None:
    """A host that was paused, or a database clock that stepped forward: the judge's own beat is as old."""
    await world.upkeep.register(world.worker_id, "host", 1, "worker", 7, holds_lock=False)
    fence = await world.started()
    before = await world.upkeep.beat(world.worker_id)
    await move_clock(world, 91)
    assert await world.upkeep.reap(lease_s=90, quick=False, since=before) == []
    later = await world.value("select now()")
    assert await world.upkeep.reap(lease_s=90, quick=False, since=later) == [fence.run_id]
