"""What PostgreSQL itself refuses: rows that no move can have written. And that hot statements use their indexes."""

from typing import Any

import asyncpg
import pytest

from core.ports import Batch
from core.run import ActionState, HaltReason, RunState, SuspensionKind, SuspensionStatus
from storage import sql
from storage.rows import batch_columns
from storage.worker_store import LONG_FROM
from tests.integration.storeworld import World, an_ask, clicker, world_on


@pytest.fixture
def world(pool: "asyncpg.Pool[asyncpg.Record]") -> World:
    return world_on(pool)


UNCLAIMED = "claim_token = null, claimed_by = null"
ILLEGAL = {
    "a claim while suspended": "update runs set state = 'suspended'",
    "a claim without its worker": "update runs set claimed_by = null",
    "a halt without a reason": f"update runs set state = 'halted', {UNCLAIMED}, ended_at = now()",
    "a reason without a halt": "update runs set halt_reason = 'budget_steps'",
    "a reason nobody knows": f"update runs set state = 'halted', halt_reason = 'tired', {UNCLAIMED}, ended_at = now()",
    "a failure without a reason": f"update runs set state = 'failed', {UNCLAIMED}, ended_at = now()",
    "an end without its time": f"update runs set state = 'answered', {UNCLAIMED}",
    "an unknown state": "update runs set state = 'asleep'",
    "spend that shrinks below nothing": "update runs set spend_usd = -0.01",
    "a window of more than 30 minutes": "update suspensions set expires_at = opened_at + interval '1801 seconds'",
    "a decision by nobody": "update suspensions set status = 'approved'",
    "a settlement of an unknown kind": "update suspensions set settled_kind = 'maybe'",
    "a result that answers nothing": "insert into messages (run_id, seq, role, body)"
    " select id, 9, 'tool', '{}' from runs",
    "a question that answers a call": "insert into messages (run_id, seq, role, body, answers_seq, answers_position)"
    " select id, 9, 'user', '{}', 1, 0 from runs",
    "two messages at one place": "insert into messages (run_id, seq, role, body) select id, 0, 'user', '{}' from runs",
    "two open suspensions of one call": "insert into suspensions select s2.* from suspensions s,"
    ' lateral (select (jsonb_populate_record(s, \'{"id": "x", "token": "y", "number": 2}\')).*) s2',
    "two live runs of one owner in one thread": "insert into live_threads select team_id, channel_id, thread_ts,"
    " user_id, id from runs",
}


@pytest.mark.parametrize("statement", ILLEGAL.values(), ids=ILLEGAL.keys())
async def test_a_row_that_no_move_can_have_written_is_refused(world: World, statement: str) -> None:
    fence, (call,) = await world.asking()
    await world.worker.suspend(fence, Batch(), 0, [an_ask(fence.run_id, call)], stay_running=True)
    before = await world.everything()
    with pytest.raises(asyncpg.IntegrityConstraintViolationError):
        await world.pool.execute(statement)
    assert await world.everything() == before


@pytest.mark.parametrize(
    ("table", "column", "values"),
    [
        ("runs", "state", RunState),
        ("runs", "halt_reason", HaltReason),
        ("suspensions", "status", SuspensionStatus),
        ("suspensions", "kind", SuspensionKind),
        ("actions", "state", ActionState),
    ],
)
async def test_the_states_of_the_schema_are_the_states_of_core(
    world: World, table: str, column: str, values: Any
) -> None:
    checks = await world.pool.fetch(
        "select pg_get_constraintdef(oid) as text from pg_constraint"
        " where conrelid = $1::regclass::oid and contype = 'c'"
        " and conkey = array[(select attnum from pg_attribute where attrelid = conrelid and attname = $2)]",
        table,
        column,
    )
    named = {value for check in checks for value in check["text"].split("'")[1::2]}
    assert named == {value.value for value in values}


async def _plan(world: World, statement: sql.Statement, *arguments: object) -> str:
    await world.pool.execute("analyze")
    rows = await world.pool.fetch(f"explain {statement.text}", *arguments)
    return "\n".join(row[0] for row in rows)


async def test_a_hundred_thousand_suspended_runs_are_in_nobodys_way(world: World) -> None:
    run_id, (ask,) = await world.suspended()
    await world.pool.execute(
        "insert into runs (id, team_id, channel_id, thread_ts, user_id, owner, question, route, max_steps,"
        " max_tool_calls, max_spend_usd, max_elapsed_ms, state, scope, scope_resolved_at)"
        " select 'many' || n, team_id, channel_id, 't' || n, 'U' || n, owner, question, route, max_steps,"
        " max_tool_calls, max_spend_usd, max_elapsed_ms, state, scope, scope_resolved_at"
        " from runs, generate_series(1, 100000) n where id = $1",
        run_id,
    )
    await world.pool.execute(
        "insert into suspensions (id, run_id, call_seq, call_position, number, kind, status, token, tool, tool_version,"
        " arguments, preview, digest, policy, asked_by, expires_at)"
        " select 'many' || n || '.s', 'many' || n, 1, 0, 1, 'approval', 'open', 'many' || n || '.t', tool,"
        " tool_version, arguments, preview, digest, policy, asked_by, expires_at"
        " from suspensions, generate_series(1, 100000) n where id = $1",
        ask.id,
    )
    claim = await _plan(world, sql.claim_runs, world.worker_id, 5, 16, "", None)
    load = await _plan(world, sql.load_run, run_id, None, None, 0, LONG_FROM)
    expire = await _plan(world, sql.list_runs_with_expired, 50, None)
    lock = await _plan(world, sql.lock_suspension, ask.id, None)
    for plan in (claim, load, expire, lock):
        assert "Seq Scan on runs" not in plan
        assert "Seq Scan on suspensions" not in plan
    decided = await world.desk.decide(ask.id, ask.token, None, clicker(), approve=True, worker_id=world.worker_id)
    assert decided.claimed is not None


async def test_a_step_is_a_hot_update(world: World) -> None:
    """In one transaction, so that the session's own counters tell, without waiting for them to be flushed."""
    fence = await world.started()
    async with world.pool.acquire() as connection:
        transaction = connection.transaction()
        await transaction.start()
        for _ in range(5):
            arguments = (fence.run_id, fence.claim_token, *batch_columns(Batch(steps=1, elapsed_ms=5, doing="at work")))
            assert await connection.fetchval(sql.step_run.text, *arguments, None, False, None) == 0
        updated = await connection.fetchval("select pg_stat_get_xact_tuples_updated('runs'::regclass)")
        hot = await connection.fetchval("select pg_stat_get_xact_tuples_hot_updated('runs'::regclass)")
        await transaction.rollback()
    assert (updated, hot) == (5, 5)
