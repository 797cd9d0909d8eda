"""The demo's database: a fresh one at each start, and the few looks into it that the panel needs.

Decides: where it lies (on DATABASE_URL's server, else on an embedded PostgreSQL under the data directory) and that
databases of demos that were killed are removed by the next one. Does not: hold any rule; time is moved by the same
statement that tests use. The failure it can cause: on a server of one's own it needs the right to create databases.
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit, urlunsplit

import asyncpg

from core.errors import Misconfigured
from storage import sql
from storage.database import mapped_errors, open_pool
from storage.embedded import start_embedded
from storage.migrate import migrate
from storage.rows import parsed, run_of, suspension_of

if TYPE_CHECKING:
    from storage.database import Pool

_PREFIX = "atlas_demo_"
# While a demo makes its database, and until it is connected to it, no other one sweeps.
_MAKING = 0x44454D4F


@dataclass(frozen=True, slots=True)
class Waiting:
    """Something that waits for a person. *left_s*: seconds until it expires."""

    run_id: str
    title: str
    left_s: float


class Records:
    """The database of this demo. *dsn*: for the bot's DATABASE_URL."""

    def __init__(self, dsn: str, pool: "Pool") -> None:
        self.dsn = dsn
        self._pool = pool

    async def waiting(self) -> list[Waiting]:
        """List what waits, oldest first."""
        with mapped_errors():
            rows = await sql.list_pending.rows(self._pool, run_id=None, room=8)
            now = await self._pool.fetchval("select now()")
        waiting = []
        for row in rows:
            run, suspension = run_of(parsed(row["run"])), suspension_of(parsed(row["suspension"]))
            title = str(suspension.preview.get("title") or suspension.tool)
            waiting.append(Waiting(run.id, title, (suspension.expires_at - now).total_seconds()))
        return waiting

    async def hasten(self, run_id: str, seconds: float) -> bool:
        """Let what a run waits for expire in *seconds*; False when nothing of it waits that long."""
        with mapped_errors():
            rows = await sql.hasten_suspensions.rows(self._pool, run_id=run_id, seconds=seconds, now=None)
        return bool(rows)

    async def runs(self) -> dict[str, str]:
        """Return the state of every run, by id."""
        with mapped_errors():
            rows = await self._pool.fetch("select id, state from runs")
        return {row["id"]: row["state"] for row in rows}

    async def open_actions(self) -> int:
        """Count the writes of runs that have ended whose outcome is still open."""
        with mapped_errors():
            count: int = await self._pool.fetchval(
                "select count(*) from actions a join runs r on r.id = a.run_id "
                "where r.state not in ('running', 'suspended') and a.state in ('intended', 'unknown')"
            )
        return count


@asynccontextmanager
async def fresh_records(database_url: str | None, data_dir: Path) -> AsyncIterator[Records]:
    """Lend a fresh, migrated database; it is removed at the end.

    Raises: Misconfigured when it cannot be made.
    """
    embedded = None if database_url else await start_embedded(data_dir)
    try:
        server = database_url or (embedded.dsn if embedded else "")
        async with _own_database(server) as (dsn, pool):
            await migrate(dsn)
            yield Records(dsn, pool)
    finally:
        if embedded is not None:
            await embedded.stop()


@asynccontextmanager
async def _own_database(server: str) -> AsyncIterator[tuple[str, "Pool"]]:
    name = f"{_PREFIX}{os.getpid()}"
    dsn = urlunsplit(urlsplit(server)._replace(path=f"/{name}"))
    try:
        admin = await asyncpg.connect(server, timeout=10)
    except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        raise Misconfigured(
            [f"DATABASE_URL cannot be used ({error}); unset it, and the demo brings its own"]
        ) from error
    try:
        pool = await _made(admin, name, dsn)
        try:
            yield dsn, pool
        finally:
            pool.terminate()
            await admin.execute(f'drop database if exists "{name}" with (force)')
    finally:
        await admin.close()


async def _made(admin: "asyncpg.Connection[asyncpg.Record]", name: str, dsn: str) -> "Pool":
    """Make the database and connect to it; the lock goes with the connection if anything fails."""
    await admin.execute("select pg_advisory_lock($1)", _MAKING)
    await _sweep(admin)
    try:
        await admin.execute(f'create database "{name}"')
    except asyncpg.InsufficientPrivilegeError as error:
        raise Misconfigured(
            [f"the role of DATABASE_URL may not create databases ({error}); unset it, and the demo brings its own"]
        ) from error
    pool = await open_pool(dsn, size=3)
    await admin.execute("select pg_advisory_unlock($1)", _MAKING)
    return pool


async def _sweep(admin: "asyncpg.Connection[asyncpg.Record]") -> None:
    """Remove the databases of demos that were killed: those to which nobody is connected."""
    left = await admin.fetch(
        "select d.datname from pg_database d where d.datname like $1 "
        "and not exists (select from pg_stat_activity a where a.datid = d.oid)",
        _PREFIX.replace("_", r"\_") + "%",
    )
    for row in left:
        await admin.execute(f'drop database if exists "{row["datname"]}"')
