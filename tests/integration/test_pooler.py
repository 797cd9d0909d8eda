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

from bot.opening import stores
from bot.settings import read_settings
from core.ports import InboundEvent
from storage.migrate import load_migrations, migrate
from tests.acceptance.stack import ROOT, Stack, stack_of
from tests.acceptance.waiting import wait_until
from tests.acceptance.workshop import Json, Workshop, call, say
from tests.integration.pgbouncer import MISSING, found, pgbouncer, spread, through
from tests.integration.storecalls import methods
from tests.invariants import watch

pytestmark = [
    pytest.mark.slow,
    pytest.mark.own_session("has a pooler of its own"),
    pytest.mark.skipif(found() is None, reason=MISSING),
]

# ATLAS_POOLER_TESTS=all plays every integration test that has a database; without it these, which call every method of
# the store and meet every kind of fault that was ever found behind a pooler.
ALL = os.environ.get("ATLAS_POOLER_TESTS") == "all"
CHOICE = (
    "store_worker", "store_desk", "store_outbox", "store_maintenance", "store_races", "store_commits", "store_lending",
    "storage_migrate", "storage_sql", "fair_line", "worker_claims", "click_cost", "safeguards_moves",
    "safeguards_fences", "safeguards_clock", "safeguards_mail", "policies_start", "sweeps", "slack_first_contact",
    "breaks_pace",
)  # fmt: skip


@pytest.fixture
async def pooled(postgres: str) -> AsyncIterator[Path]:
    """Where a pooler of this test's own listens."""
    async with pgbouncer(postgres) as listening:
        yield listening


def test_the_tests_pass_behind_a_transaction_pooler(postgres: str, tmp_path: Path) -> None:
    """The same tests, in a process of their own, with ATLAS_PG_POOLER=transaction.

    Those marked `own_session` stay out, each with its reason. MagicStack/asyncpg#198, MagicStack/asyncpg#1058: prepared
    statements of another session.
    """
    files = [f"tests/integration/test_{name}.py" for name in CHOICE]
    played = ["-n", "2", "--dist", "loadfile", "tests/integration"] if ALL else ["-m", "not slow", *files]
    environment = {**os.environ, "DATABASE_URL": postgres, "ATLAS_PG_POOLER": "transaction"}
    environment.pop("PYTEST_XDIST_WORKER", None)
    environment["ATLAS_STORE_CALLS"] = str(tmp_path / "calls")
    noting = ["-p", "tests.integration.storecalls"]
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *([] if ALL else noting), *played],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0, ended.stdout[-8000:] + ended.stderr[-2000:]
    sys.stdout.write(ended.stdout[-200:])
    if not ALL:
        assert set((tmp_path / "calls").read_text(encoding="utf-8").split()) == set(methods())


async def test_what_production_opens_sends_no_hints_and_has_a_name(database: str, pooled: Path, tmp_path: Path) -> None:
    """Nobody can listen through a pooler, so no event costs a NOTIFY; by their name stopped sessions are found."""
    dsn = through(pooled, database)
    settings = read_settings(
        {"DATABASE_URL": dsn, "ATLAS_DATA_DIR": str(tmp_path), "ATLAS_PG_POOLER": "transaction"}, slack=False
    )
    heard: list[str] = []
    listener = await asyncpg.connect(database)
    try:
        for channel in ("atlas_work", "atlas_outbox", "atlas_mail"):
            await listener.add_listener(channel, lambda *heard_of: heard.append(heard_of[3]))
        async with stores(settings, size=2) as opened:
            assert await opened.inbox.put(InboundEvent("Ev1", "mention", "T1", "C1", "1.0", "1.0", "U1", "hello", {}))
            assert await opened.pool.fetchval("show application_name") == "atlas"
        await listener.execute("select pg_notify('atlas_mail', 'the end')")
        await wait_until(lambda: "the end" in heard, "our own hint")
    finally:
        await listener.close()
    assert heard == ["the end"]


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
