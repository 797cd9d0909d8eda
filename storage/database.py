"""The way to PostgreSQL: a pool, transactions, and the edge at which asyncpg's errors end.

Decides: which errors mean "try again later" (StoreUnavailable) and which a defect (InvariantBroken). Does not: hold
any SQL. Nothing here depends on a session, so it works behind a transaction pooler. The failure it can cause: after
StoreUnavailable nothing is known of the write; callers read again before they act.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, TypeAlias

import asyncpg

from core.errors import AtlasError, InvariantBroken, StoreUnavailable
from storage.lending import ACQUIRE_TIMEOUT_S, lending_of

if TYPE_CHECKING:
    from asyncpg.pool import PoolConnectionProxy

    from storage.lending import Pool as Pool

    Connection: TypeAlias = asyncpg.Connection[asyncpg.Record] | PoolConnectionProxy[asyncpg.Record]

# A statement that takes longer hangs on a dead network or a lock that nobody will release; both are worth an error.
STATEMENT_TIMEOUT_S = 15.0

# SQLSTATE classes in which the same call may succeed later.
# Source: PostgreSQL, appendix A: 08 connection, 28 authorization (a password that was changed: sessions go on, new ones
# are refused until the setting follows), 40 rollback (deadlock), 53 resources, 55 not in a state, 57 operator
# intervention, 58 system; 25006 read-only transaction, which a client sees during a failover; 25P03 idle in
# a transaction for too long.
_PASSING = ("08", "28", "40", "53", "55", "57", "58")
# An InterfaceError is asyncpg's word for a lost connection and for a call that can never succeed; only its text tells
# them apart. In doubt it passes: a run must not fail because a connection was lost.
_WRONG_CALL = ("for this query", "number of query arguments")

# Every statement of ours finds its rows by keys, so one plan fits all values; planning the step anew each time would
# cost as much as running it. Settings of a session, so all but the name cannot be given through a transaction pooler.
#
# A process that stops inside a transaction (a paused machine, a cut network) would keep its run's row locked, and with
# it the click, the stop and the reaper out, for as long as it stays stopped: PostgreSQL then ends its session.
_SESSION = {
    "application_name": "atlas",
    "plan_cache_mode": "force_generic_plan",
    "jit": "off",
    # A plan made while a table was small would scan it for ever: one claim among 3,000 waiting runs took a minute.
    "enable_seqscan": "off",
    "idle_in_transaction_session_timeout": f"{STATEMENT_TIMEOUT_S:.0f}s",
    "tcp_keepalives_idle": "15",
    "tcp_keepalives_interval": "5",
    "tcp_keepalives_count": "3",
}


def session_settings(*, pooler: bool) -> dict[str, str]:
    """Return what every session of ours is given at its start.

    Through a transaction pooler only its name, by which whoever reaps finds stopped sessions. Source: PgBouncer
    (varcache.c) keeps application_name per client and sets it in whichever session it lends; it refuses the others.
    """
    return {"application_name": _SESSION["application_name"]} if pooler else _SESSION


async def open_pool(dsn: str, *, pooler: bool = False, size: int = 10) -> "Pool":
    """Open a pool of up to *size* connections.

    *pooler*: PostgreSQL is behind a transaction pooler; then no statement is kept prepared, since the next one may run
    in another session. Raises: StoreUnavailable.
    """
    with mapped_errors():
        return await asyncpg.create_pool(
            dsn,
            min_size=1,
            max_size=size,
            statement_cache_size=0 if pooler else 200,
            command_timeout=STATEMENT_TIMEOUT_S,
            timeout=ACQUIRE_TIMEOUT_S,
            reset=_keep_session,
            server_settings=session_settings(pooler=pooler),
        )


async def _keep_session(connection: object) -> None:
    """Do nothing when a connection goes back: no query of ours changes its session, and a reset is a round trip."""


def translated(error: BaseException) -> AtlasError | None:
    """Return what an error at the edge means for callers; None: it is not the database's."""
    if isinstance(error, asyncpg.PostgresError):
        state = error.sqlstate or ""
        passing = state.startswith(_PASSING) or state in ("25006", "25P03", "3D000")
        if passing or isinstance(error, asyncpg.InvalidCachedStatementError):
            return StoreUnavailable(f"PostgreSQL: {error}")
        return InvariantBroken(f"PostgreSQL {state}: {error}")
    if isinstance(error, asyncpg.DataError):
        return InvariantBroken(f"a value does not fit its statement: {error}")
    if isinstance(error, asyncpg.InterfaceError) and any(words in str(error) for words in _WRONG_CALL):
        return InvariantBroken(f"a statement is called wrongly: {error}")
    if isinstance(error, asyncpg.InterfaceError | asyncpg.InternalClientError | OSError | TimeoutError):
        return StoreUnavailable(f"PostgreSQL cannot be reached: {str(error) or type(error).__name__}")
    return None


class mapped_errors:  # noqa: N801  (a context manager, read as a verb phrase at its uses)
    """Turn asyncpg's and the network's errors inside the block into ours."""

    __slots__ = ()

    def __enter__(self) -> None:
        """Begin."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Raise the translation, if there is one."""
        if error is not None and (ours := translated(error)) is not None:
            raise ours from error


class Database:
    """A pool with the clock of a test. *hints*: NOTIFY may be used (not behind a transaction pooler)."""

    def __init__(self, pool: "Pool", now: Callable[[], datetime] | None, *, hints: bool) -> None:
        self.lending = lending_of(pool)
        self.hints = hints
        self._now = now

    def now(self) -> datetime | None:
        """Return the test's time; None: PostgreSQL's own."""
        return self._now() if self._now is not None else None

    @asynccontextmanager
    async def connection(self) -> AsyncIterator["Connection"]:
        """Lend a connection; each statement is its own transaction."""
        with mapped_errors():
            async with self.lending.connection() as connection:
                yield connection

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator["Connection"]:
        """Lend a connection inside a transaction (read committed: a statement after a lock sees the latest rows)."""
        with mapped_errors():
            async with self.lending.connection() as connection, connection.transaction():
                yield connection
