"""What is opened: the database, the stores on it, and the command line's console.

Decides: which database, and whether its schema lets this release run. Does not: start anything that works by itself
(wiring does). The failure it can cause: an embedded PostgreSQL that outlives its users; so it is kept only while
something here lends it.
"""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from importlib import resources
from typing import Any

import asyncpg
import yaml

from bot.settings import Settings
from core.agent import Agent
from core.engine import Engine, Rules
from core.errors import CouldNotCheck, InvariantBroken, Misconfigured, StoreUnavailable
from core.ports import TraceEntry
from core.run import Suspension
from storage.database import mapped_errors, open_pool
from storage.desk_store import PgDesk
from storage.embedded import EmbeddedPostgres, start_embedded
from storage.inbox import PgInbox
from storage.maintenance import PgMaintenance
from storage.migrate import SchemaBehind, pending
from storage.migrate import migrate as apply_migrations
from storage.outbox import PgOutbox
from storage.worker_store import PgWorkerStore

# -- storage -------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def database(settings: Settings) -> AsyncIterator[str]:
    """Lend the DSN of the database: ``DATABASE_URL``'s, or an embedded PostgreSQL kept while this lasts."""
    if settings.database_url is not None:
        yield settings.database_url
        return
    embedded: EmbeddedPostgres = await start_embedded(settings.data_dir)
    try:
        yield embedded.dsn
    finally:
        await embedded.stop()


@asynccontextmanager
async def stores(settings: Settings, *, size: int = 10) -> AsyncIterator["Stores"]:
    """Lend the stores on a database whose schema is current (an embedded one is brought up to date).

    Raises: StoreUnavailable, Misconfigured (schema behind or ahead).
    """
    async with database(settings) as dsn:
        if settings.database_url is None:
            await apply_migrations(dsn)
        with _refusal_named():
            pool = await open_pool(dsn, pooler=settings.behind_pooler, size=size)
        try:
            with _refusal_named(), mapped_errors():  # it may be gone again by now
                async with pool.acquire() as connection:
                    missing = await pending(connection)
            if missing:
                raise SchemaBehind(len(missing))
            hints = not settings.behind_pooler
            yield Stores(
                dsn,
                pool,
                PgWorkerStore(pool, hints=hints, per_person=settings.runs_per_person),
                PgDesk(pool, hints=hints, per_person=settings.runs_per_person),
                PgOutbox(pool),
                PgInbox(pool, hints=hints),
                PgMaintenance(pool, hints=hints),
            )
        finally:
            pool.terminate()


@contextmanager
def _refusal_named() -> Iterator[None]:
    """Say what to do about a database that lets us not in; once it works, the same would pass, or be a defect."""
    try:
        yield
    except (InvariantBroken, StoreUnavailable, asyncpg.PostgresError) as error:
        refused = error if isinstance(error, asyncpg.PostgresError) else error.__cause__
        state = str(getattr(refused, "sqlstate", None) or "")
        if state == "3D000":
            raise Misconfigured([f"PostgreSQL refuses ({refused}): create it, or correct DATABASE_URL"]) from error
        if not state.startswith("28") and state != "42501":  # invalid authorization; insufficient privilege
            raise
        fix = "check the user and the password in DATABASE_URL, and that this user owns what atlas migrate made"
        raise Misconfigured([f"PostgreSQL refuses ({refused}); {fix}"]) from error


@dataclass(frozen=True, slots=True)
class Stores:
    """The store's parts, on one pool."""

    dsn: str
    pool: Any
    worker: PgWorkerStore
    desk: PgDesk
    outbox: PgOutbox
    inbox: PgInbox
    maintenance: PgMaintenance


async def migrate(settings: Settings) -> list[str]:
    """Bring the schema up to date; return what was applied."""
    async with database(settings) as dsn:
        return [str(migration) for migration in await apply_migrations(dsn)]


# -- the command line's console ------------------------------------------------------------------------------------


class NoDirectory:
    """The command line asks nobody about people: its acts are an operator's, on record."""

    async def person(self, team_id: str, user_id: str, *, fresh: bool = False) -> Any:
        """Raise CouldNotCheck."""
        raise CouldNotCheck("people", "the command line has no Slack")

    async def in_channel(self, channel_id: str, user_id: str, *, fresh: bool = False) -> bool:
        """Raise CouldNotCheck."""
        raise CouldNotCheck("people", "the command line has no Slack")

    async def in_group(self, handle: str, user_id: str, *, fresh: bool = False) -> bool:
        """Raise CouldNotCheck."""
        raise CouldNotCheck("people", "the command line has no Slack")


@dataclass(frozen=True, slots=True)
class Console:
    """What a command needs: the engine, and a few reads."""

    engine: Engine
    stores: Stores

    async def timeline(self, run_id: str) -> list[tuple[datetime, TraceEntry]]:
        """Return a run's trace, oldest first."""
        return list(await self.stores.maintenance.timeline(run_id))

    async def open_suspension(self, name: str) -> Suspension | None:
        """Return the open suspension of that id, or the only open one of the run of that id."""
        waiting = await self.stores.desk.pending(run_id=name.split(".")[0].lower())
        found = [s for s, _ in waiting if s.id == name]
        return found[0] if found else (waiting[0][0] if len(waiting) == 1 and "." not in name else None)


@asynccontextmanager
async def console(settings: Settings) -> AsyncIterator[Console]:
    """Lend a console on the database."""
    nothing = Agent(instructions="", tools=[], scopes=_no_scopes)
    async with stores(settings, size=2) as opened:
        yield Console(Engine(nothing, opened.desk, NoDirectory(), rules_of(settings)), opened)


async def _no_scopes(_: object) -> Any:
    raise CouldNotCheck("permissions", "the command line resolves none")


def rules_of(settings: Settings) -> Rules:
    """Return the engine's rules."""
    return Rules(
        lifetime=timedelta(seconds=settings.suspension_ttl_s),
        operators=settings.operators,
        alert_channel=settings.alert_channel,
    )


# -- the doctor's questions ----------------------------------------------------------------------------------------


async def database_report(settings: Settings) -> list[tuple[str, bool, str]]:
    """Return (part, ok, text) about the database and its schema."""
    try:
        async with database(settings) as dsn:
            with _refusal_named():
                pool = await open_pool(dsn, pooler=settings.behind_pooler, size=1)
                try:
                    async with pool.acquire() as connection:
                        version = connection.get_server_version()
                        missing = await pending(connection)
                finally:
                    pool.terminate()
    except Misconfigured as error:
        return [("database", False, problem) for problem in error.problems]
    except StoreUnavailable as error:
        return [("database", False, f"{error}; check DATABASE_URL")]
    report = [("database", version.major >= 14, f"PostgreSQL {version.major}.{version.minor} (14 or newer is needed)")]
    text = f"{len(missing)} migrations are missing: run atlas migrate" if missing else "up to date"
    embedded = settings.database_url is None
    report.append(
        ("schema", not missing or embedded, text if not (missing and embedded) else "made at the first serve")
    )
    return report


async def known_calls(settings: Settings) -> dict[str, dict[str, Any]]:
    """Return the newest stored arguments of each tool that waits for somebody; empty when none can be read."""
    try:
        async with database(settings) as dsn:
            with _refusal_named():
                pool = await open_pool(dsn, pooler=settings.behind_pooler, size=1)
                try:
                    async with pool.acquire() as connection:
                        if await pending(connection):
                            return {}  # whoever only looks changes no schema
                    return {s.tool: s.arguments for s, _ in await PgDesk(pool).pending()}
                finally:
                    pool.terminate()
    except (StoreUnavailable, Misconfigured):
        return {}


def required_oauth_scopes() -> frozenset[str]:
    """Return the oauth scopes of manifest.yml."""
    document = yaml.safe_load(manifest_text())
    return frozenset(document["oauth_config"]["scopes"]["bot"])


def manifest_text() -> str:
    """Return manifest.yml, which lies at the top of the repository and inside the installed package."""
    packaged = resources.files("bot") / "manifest.yml"
    if packaged.is_file():
        return packaged.read_text("utf-8")
    return (resources.files("bot") / ".." / "manifest.yml").read_text("utf-8")
