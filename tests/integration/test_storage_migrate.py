"""Migrations: forward only, once each, in order, by however many replicas at once."""

import asyncio
import hashlib
import signal
import sys
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import asyncpg
import pytest

from core.errors import InvariantBroken, StoreUnavailable
from storage import migrate as migrating
from storage.migrate import (
    Migration,
    MigrationFailed,
    SchemaChanged,
    SchemaTooNew,
    load_migrations,
    migrate,
    pending,
    schema_version,
)
from tests.conftest import with_database


def migration(number: int, text: str) -> Migration:
    return Migration(number, f"step_{number}", text, hashlib.sha256(text.encode()).hexdigest())


FIRST = migration(1, "create table one (id int primary key); create table two (id int primary key);")
SECOND = migration(2, "alter table one add column name text not null default ''")
BROKEN = migration(2, "create table half (id int); select no_such_function()")


async def connect(dsn: str) -> "asyncpg.Connection[asyncpg.Record]":
    return await asyncpg.connect(dsn, statement_cache_size=0)  # so that it works behind a transaction pooler, too


async def test_a_new_database_gets_every_migration_in_order_and_a_second_run_does_nothing(empty_database: str) -> None:
    assert await migrate(empty_database, migrations=(FIRST, SECOND)) == (FIRST, SECOND)
    assert await migrate(empty_database, migrations=(FIRST, SECOND)) == ()
    connection = await connect(empty_database)
    try:
        await connection.execute("insert into one (id) values (1)")
        rows = await connection.fetch("select number, name, checksum from schema_migrations order by number")
        assert [tuple(row) for row in rows] == [(m.number, m.name, m.checksum) for m in (FIRST, SECOND)]
        assert await schema_version(connection) == 2
    finally:
        await connection.close()


async def test_only_what_is_missing_is_applied(empty_database: str) -> None:
    await migrate(empty_database, migrations=(FIRST,))
    connection = await connect(empty_database)
    try:
        assert await pending(connection, migrations=(FIRST, SECOND)) == (SECOND,)
        assert await migrate(empty_database, migrations=(FIRST, SECOND)) == (SECOND,)
        assert await pending(connection, migrations=(FIRST, SECOND)) == ()
    finally:
        await connection.close()


async def test_a_database_never_migrated_has_version_0_and_everything_pending(empty_database: str) -> None:
    connection = await connect(empty_database)
    try:
        assert await schema_version(connection) == 0
        assert await pending(connection, migrations=(FIRST, SECOND)) == (FIRST, SECOND)
    finally:
        await connection.close()


async def test_replicas_that_migrate_at_once_apply_each_file_once(empty_database: str) -> None:
    results = await asyncio.gather(*(migrate(empty_database, migrations=(FIRST, SECOND)) for _ in range(6)))
    assert sorted(m.number for applied in results for m in applied) == [1, 2]


async def test_a_failing_migration_leaves_nothing_of_itself_and_all_before_it(empty_database: str) -> None:
    with pytest.raises(MigrationFailed, match=r"0002_step_2 .*no_such_function") as caught:
        await migrate(empty_database, migrations=(FIRST, BROKEN))
    assert caught.value.number == 2
    connection = await connect(empty_database)
    try:
        assert await schema_version(connection) == 1
        assert await connection.fetchval("select to_regclass('half')") is None
        assert await connection.fetchval("select to_regclass('two')") is not None
    finally:
        await connection.close()
    assert await migrate(empty_database, migrations=(FIRST, SECOND)) == (SECOND,)


async def test_an_edited_migration_is_refused_before_anything_runs(empty_database: str) -> None:
    await migrate(empty_database, migrations=(FIRST,))
    edited = replace(FIRST, checksum="0" * 64)
    with pytest.raises(SchemaChanged, match="0001_step_1"):
        await migrate(empty_database, migrations=(edited, SECOND))
    connection = await connect(empty_database)
    try:
        with pytest.raises(SchemaChanged):
            await pending(connection, migrations=(edited, SECOND))
        assert await schema_version(connection) == 1
    finally:
        await connection.close()


async def test_an_older_release_does_not_migrate_but_finds_nothing_pending_on_a_newer_schema(
    empty_database: str,
) -> None:
    await migrate(empty_database, migrations=(FIRST, SECOND))
    with pytest.raises(SchemaTooNew, match="schema 2, this release knows up to 1"):
        await migrate(empty_database, migrations=(FIRST,))
    connection = await connect(empty_database)
    try:
        assert await pending(connection, migrations=(FIRST,)) == ()
    finally:
        await connection.close()


async def test_a_database_that_cannot_be_reached_is_a_typed_error_without_the_password() -> None:
    with pytest.raises(StoreUnavailable) as caught:
        await migrate("postgresql://someone:hunter2@127.0.0.1:1/nowhere", migrations=(FIRST,))
    assert "hunter2" not in str(caught.value)


async def test_the_shipped_migrations_are_what_a_cloned_database_has(
    connection: "asyncpg.Connection[asyncpg.Record]",
) -> None:
    assert await pending(connection) == ()
    assert await schema_version(connection) == len(load_migrations())


@pytest.mark.parametrize("names", [["0001_a.sql", "0003_b.sql"], ["0001_a.sql", "0001_b.sql"], ["1_a.sql"]])
def test_gaps_doubles_and_odd_names_are_refused(tmp_path: Path, names: list[str]) -> None:
    for name in names:
        (tmp_path / name).write_text("select 1")
    with pytest.raises(InvariantBroken):
        load_migrations(tmp_path)


async def test_a_process_that_stops_while_it_migrates_holds_nobody_up(empty_database: str, postgres: str) -> None:
    """Its session has the one lock, and those of every table it changed, for as long as PostgreSQL waits for it."""
    waits = migration(1, "create table one (id int primary key); select pg_advisory_xact_lock(99)")
    # Past the pooler, if there is one: it ends a transaction that waits for a process to start for long.
    connection = await connect(with_database(postgres, urlsplit(empty_database).path.removeprefix("/")))
    await connection.execute("begin; select pg_advisory_xact_lock(99)")
    stopped = await asyncio.create_subprocess_exec(
        sys.executable, "-c", _MIGRATES_SOON_STALLED, empty_database, waits.name, waits.text, waits.checksum
    )
    try:
        async with asyncio.timeout(60):
            while not await connection.fetchval(
                "select count(*) from pg_locks where locktype = 'advisory' and objid = 99 and not granted"
            ):
                assert stopped.returncode is None
                await asyncio.sleep(0.01)
            stopped.send_signal(signal.SIGSTOP)
            await connection.execute("rollback")
            assert await migrate(empty_database, migrations=(waits, SECOND)) == (waits, SECOND)
    finally:
        stopped.kill()
        await stopped.wait()
        await connection.close()


async def test_a_migration_that_waits_for_a_table_lets_everybody_else_pass(
    empty_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A backup reads the table for an hour; whoever writes to it meanwhile must not wait behind the migration."""
    monkeypatch.setattr(migrating, "TRY_AGAIN_S", 0.05)
    await migrate(empty_database, migrations=(FIRST,))
    backup, running, looking = [await connect(empty_database) for _ in range(3)]
    await backup.execute("begin; select from one")
    waiting = asyncio.create_task(migrate(empty_database, migrations=(FIRST, SECOND)))
    try:
        async with asyncio.timeout(60):
            while not await looking.fetchval(
                "select count(*) from pg_locks where relation = 'one'::regclass and not granted"
            ):
                assert not waiting.done()
                await asyncio.sleep(0.01)
            await running.execute("insert into one (id) values (1)")
            await backup.execute("commit")
            assert await waiting == (SECOND,)
    finally:
        waiting.cancel()
        for connection in (backup, running, looking):
            await connection.close()


_MIGRATES_SOON_STALLED = """
import asyncio, sys
from storage import migrate
migrate.STALLED_S = 5
dsn, *named = sys.argv[1:]
asyncio.run(migrate.migrate(dsn, migrations=(migrate.Migration(1, *named),)))
"""
