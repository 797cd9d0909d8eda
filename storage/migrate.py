"""Brings a database's schema forward, one numbered file at a time.

Decides: which of `storage/migrations/NNNN_name.sql` are missing and in which order they run, each in a transaction of
its own together with its row in `schema_migrations`. Many replicas may start at once: each takes the same
transaction-scoped advisory lock (so it works behind a transaction pooler) and finds the work done.

It never goes back, and runs no statement that cannot run in a transaction (`create index concurrently`).
The failure it can cause: a file that locks a large table holds up every replica for as long as it runs. Not one that
stops on the way (a paused machine, a stopped process): PostgreSQL ends its session, and with it its locks. Nor one that
waits for a table (a backup reads it for an hour): it gives way and tries again, as long as it takes.
"""

import asyncio
import hashlib
import logging
import re
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import TYPE_CHECKING, TypeAlias

import asyncpg

from core.errors import AtlasError, InvariantBroken, Misconfigured, StoreUnavailable

if TYPE_CHECKING:
    from asyncpg.pool import PoolConnectionProxy

    Connection: TypeAlias = asyncpg.Connection[asyncpg.Record] | PoolConnectionProxy[asyncpg.Record]

OLDEST_POSTGRES = 14
# PostgreSQL waits this long for the next statement of whoever migrates.
STALLED_S = 60
# Everybody else who wants a table waits behind a migration that waits for it: this long, then it lets them pass.
GIVE_WAY_S = 1
TRY_AGAIN_S = 10.0
_LOCK = 0x41544C4153  # "ATLAS"
log = logging.getLogger("atlas.migrate")

_FILE = re.compile(r"(\d{4})_([a-z0-9_]+)\.sql")

_LEDGER = """
create table if not exists schema_migrations (
  number int primary key,
  name text not null,
  checksum text not null,
  applied_at timestamptz not null default now()
)
"""


class SchemaChanged(Misconfigured):
    """A migration was edited after this database had run it, so nobody knows what the schema is."""

    def __init__(self, migration: "Migration") -> None:
        self.number = migration.number
        super().__init__(
            [f"migration {migration} is not the one this database has run. Restore it; put changes into a new file."]
        )


class SchemaTooNew(Misconfigured):
    """The database was migrated by a newer release; going back is not something this one can know how to do."""

    def __init__(self, database: int, code: int) -> None:
        self.database = database
        self.code = code
        super().__init__(
            [f"the database has schema {database}, this release knows up to {code}. Run the newer release."]
        )


class SchemaBehind(Misconfigured):
    """The database lacks migrations of this release."""

    def __init__(self, missing: int) -> None:
        self.missing = missing
        super().__init__([f"the database lacks {missing} migration(s) of this release. Run `atlas migrate`."])


class MigrationFailed(AtlasError):
    """PostgreSQL refused a migration; its transaction was rolled back, the earlier ones stay."""

    def __init__(self, migration: "Migration", why: str) -> None:
        self.number = migration.number
        super().__init__(f"migration {migration} failed and was rolled back: {why}")


@dataclass(frozen=True)
class Migration:
    """One file.

    Attributes:
        number: gap-free from 1.
        checksum: SHA-256 of the text, as hex.
    """

    number: int
    name: str
    text: str
    checksum: str

    def __str__(self) -> str:
        return f"{self.number:04}_{self.name}"


def load_migrations(directory: Traversable | None = None) -> tuple[Migration, ...]:
    """Read the migrations of this release, in order; of another directory in tests.

    Raises InvariantBroken when a file is misnamed, or the numbers have a gap or a double.
    """
    found: list[Migration] = []
    for file in (directory or files("storage") / "migrations").iterdir():
        if not file.name.endswith(".sql"):
            continue
        match = _FILE.fullmatch(file.name)
        if match is None:
            raise InvariantBroken(f"migration {file.name} is not named NNNN_name.sql")
        text = file.read_text(encoding="utf-8")
        found.append(Migration(int(match[1]), match[2], text, hashlib.sha256(text.encode()).hexdigest()))
    found.sort(key=lambda migration: migration.number)
    for expected, migration in enumerate(found, start=1):
        if migration.number != expected:
            raise InvariantBroken(f"migration {migration} should have number {expected:04}")
    return tuple(found)


async def migrate(dsn: str, *, migrations: tuple[Migration, ...] | None = None) -> tuple[Migration, ...]:
    """Apply what the database lacks; return it in order, empty when there was nothing to do.

    Raises:
        StoreUnavailable: the database cannot be reached.
        SchemaChanged, SchemaTooNew, Misconfigured (PostgreSQL too old): nothing was changed.
        MigrationFailed: the migrations before the failing one are applied, the others are not.
    """
    known = load_migrations() if migrations is None else migrations
    try:
        named = {"application_name": "atlas"}
        connection = await asyncpg.connect(dsn, statement_cache_size=0, server_settings=named)
    except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        raise StoreUnavailable(f"cannot connect to PostgreSQL: {error}") from error
    try:
        version = connection.get_server_version()
        if version.major < OLDEST_POSTGRES:
            raise Misconfigured(
                [f"PostgreSQL {version.major} is too old. Atlas needs {OLDEST_POSTGRES} or newer at DATABASE_URL."]
            )
        applied: list[Migration] = []
        while True:
            try:
                migration = await _apply_next(connection, known)
            except asyncpg.LockNotAvailableError as error:
                log.warning("a migration waits for somebody else's transaction, and tries again: %s", error)
                await asyncio.sleep(TRY_AGAIN_S)
                continue
            if migration is None:
                return tuple(applied)
            applied.append(migration)
    except (OSError, asyncpg.PostgresConnectionError, asyncpg.InterfaceError) as error:
        raise StoreUnavailable(f"the connection to PostgreSQL broke: {error}") from error
    finally:
        await connection.close()


async def schema_version(connection: "Connection") -> int:
    """Return the number of the newest migration applied; 0 for a database that was never migrated."""
    if await connection.fetchval("select to_regclass('schema_migrations') is null"):
        return 0
    newest: int = await connection.fetchval("select coalesce(max(number), 0) from schema_migrations")
    return newest


async def pending(
    connection: "Connection", *, migrations: tuple[Migration, ...] | None = None
) -> tuple[Migration, ...]:
    """Return the migrations of this release that the database lacks, in order.

    A newer schema is no error here: a release keeps running on the schema of the next one.
    Raises SchemaChanged when an applied one differs from its file.
    """
    known = load_migrations() if migrations is None else migrations
    if await schema_version(connection) == 0:
        return known
    rows = await connection.fetch("select number, checksum from schema_migrations")
    checksums: dict[int, str] = {row["number"]: row["checksum"] for row in rows}
    for migration in known:
        if checksums.get(migration.number, migration.checksum) != migration.checksum:
            raise SchemaChanged(migration)
    return tuple(migration for migration in known if migration.number not in checksums)


async def _apply_next(connection: "Connection", known: tuple[Migration, ...]) -> Migration | None:
    migration: Migration | None = None
    try:
        async with connection.transaction():
            # Of this transaction, so that it holds behind a transaction pooler, too.
            await connection.execute(f"set local idle_in_transaction_session_timeout = '{STALLED_S}s'")
            await connection.execute("select pg_advisory_xact_lock($1)", _LOCK)
            await connection.execute(_LEDGER)
            await connection.execute(f"set local lock_timeout = '{GIVE_WAY_S}s'")
            lacking = await pending(connection, migrations=known)
            database = await schema_version(connection)
            if database > len(known):
                raise SchemaTooNew(database, len(known))
            if not lacking:
                return None
            migration = lacking[0]
            await connection.execute(migration.text)
            await connection.execute(
                "insert into schema_migrations (number, name, checksum) values ($1, $2, $3)",
                migration.number,
                migration.name,
                migration.checksum,
            )
            return migration
    except (asyncpg.PostgresConnectionError, asyncpg.LockNotAvailableError):
        raise
    except asyncpg.PostgresError as error:
        if migration is None:
            raise StoreUnavailable(f"PostgreSQL refused the migration ledger: {error}") from error
        raise MigrationFailed(migration, str(error)) from error
