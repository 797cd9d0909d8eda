"""Atlas behind PgBouncer in transaction mode: the store's own tests once more, and whole processes through a story.

The pooler gives each transaction another session of the server (see ``pgbouncer``), so anything that trusted a session
would fail here: prepared statements, locks, settings, LISTEN.
"""

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import pytest

from storage.migrate import load_migrations, migrate
from tests.acceptance.stack import ROOT, Stack, stack_of
from tests.acceptance.waiting import wait_until
from tests.acceptance.workshop import Json, Workshop, call, say
from tests.integration.pgbouncer import MISSING, found, pgbouncer, spread, through
from tests.invariants import watch

pytestmark = [pytest.mark.slow, pytest.mark.skipif(found() is None, reason=MISSING)]

AGAIN = (
    "store_worker", "store_desk", "store_outbox", "store_maintenance", "store_races", "store_commits",
    "storage_migrate", "fair_line", "worker_claims", "click_cost", "safeguards_moves", "safeguards_fences",
)  # fmt: skip
# What proves something about a session, which nobody has behind a transaction pooler.
OF_A_SESSION = {
    "test_a_step_sends_one_statement_and_nothing_else": "counts what one session runs; unprepared, each is two",
    "test_a_killed_process_is_noticed_by_its_free_lock_and_a_late_beat": "a session lock",
    "test_ready_means_reachable_and_writable": "gives its session a setting",
    "test_waking_others_is_a_hint_from_outside_the_step_path": "LISTEN; polling does without",
}


@pytest.fixture
async def pooled(postgres: str) -> AsyncIterator[Path]:
    """Where a pooler of this test's own listens."""
    async with pgbouncer(postgres) as listening:
        yield listening


def test_the_stores_own_tests_pass_behind_a_transaction_pooler(postgres: str) -> None:
    """The same tests, in a process of their own, with ATLAS_PG_POOLER=transaction.

    MagicStack/asyncpg#198, MagicStack/asyncpg#1058: prepared statements of another session.
    """
    files = [f"tests/integration/test_{name}.py" for name in AGAIN]
    left_out = [f"--deselect={file}::{test}" for file in files for test in OF_A_SESSION]
    environment = {**os.environ, "DATABASE_URL": postgres, "ATLAS_PG_POOLER": "transaction"}
    environment.pop("PYTEST_XDIST_WORKER", None)
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-m", "not slow", "-p", "no:cacheprovider", *left_out, *files],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0, ended.stdout[-8000:] + ended.stderr[-2000:]
    source = "".join((ROOT / file).read_text(encoding="utf-8") for file in files)
    assert [test for test in OF_A_SESSION if f"def {test}(" not in source] == []


async def test_two_transactions_of_a_client_meet_in_different_sessions(database: str, pooled: Path) -> None:
    """Otherwise nothing here would prove anything."""
    dsn = through(pooled, database)
    await spread(dsn)
    client = await asyncpg.connect(dsn, statement_cache_size=0)
    try:
        sessions = {await client.fetchval("select pg_backend_pid()") for _ in range(6)}
    finally:
        await client.close()
    assert len(sessions) > 1


async def test_replicas_that_start_at_once_migrate_once(empty_database: str, pooled: Path) -> None:
    dsn = through(pooled, empty_database)
    applied = await asyncio.gather(*(migrate(dsn) for _ in range(4)))
    numbers = sorted(migration.number for each in applied for migration in each)
    assert numbers == [migration.number for migration in load_migrations()]


async def test_whole_processes_work_behind_a_transaction_pooler(database: str, pooled: Path, tmp_path: Path) -> None:
    """Two replicas; an approval; the process that works is killed, the other goes on once its lease is over."""
    await watch(database)
    workshop = Workshop()
    await workshop.start(tmp_path, {})
    gate = asyncio.Event()

    async def think(messages: list[Json]) -> Json:
        turns = sum(message["role"] == "assistant" for message in messages)
        if turns == 0:
            return call(("pay", {"what": "rent"}))
        if len(workshop.asked) == 2:
            await gate.wait()  # its process is killed while it waits for this
        return say("Paid.")

    workshop.think = think
    try:
        async with stack_of(database, tmp_path, workshop) as shop:
            await _story(shop, through(pooled, database))
            await shop.check()
    finally:
        gate.set()
        await workshop.stop()


async def _story(shop: Stack, dsn: str) -> None:
    settings = {"DATABASE_URL": dsn, "ATLAS_PG_POOLER": "transaction", "ATLAS_LEASE_S": "10"}
    bots = [await shop.serve(**settings), await shop.serve(**settings)]
    thread = await shop.ask("@Atlas pay the rent")
    card = await shop.card(thread)
    await shop.press(card, "approve")
    await shop.workshop.thinking(2)
    run = await shop.run(thread)
    holder = await shop.value("select pid from workers where id = $1", run["claimed_by"])
    (dying,) = [bot for bot in bots if bot.process.pid == holder]
    assert await shop.value("select not bool_or(holds_lock) from workers")
    dying.kill()
    ended = await shop.until(thread, "answered")
    assert (ended["crashes"], ended["recovery_attempts"]) == (0, 1)  # a step since the crash; alone in that process
    assert [effect.requests for effect in shop.workshop.effects()] == [1]
    await wait_until(lambda: "Paid." in " ".join(shop.texts(thread)), "the answer")
