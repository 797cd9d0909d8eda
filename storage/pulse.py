"""One process's sign of life: its row, its beats, and the session lock that a killed process cannot keep.

Decides: nothing; it says what is so. Does not: judge others (the reaper does). Beats and lock live on a connection of
their own, so that a busy pool delays no beat; when it breaks it is opened again and the lock taken anew, and until
then the row says so. When PostgreSQL has no connection left for it, one of the pool's beats, and only the lease counts.
Behind a transaction pooler a session lock means nothing, so none is taken: only the lease counts.
The failure it can cause: a lock said to be held that is not would make a live process look killed after 4 s without a
beat; a free lock alone proves nothing.
"""

import asyncio
import os
import socket
from datetime import datetime
from typing import TYPE_CHECKING

import asyncpg

from storage import sql
from storage.database import mapped_errors, session_settings
from storage.lending import lending_of

if TYPE_CHECKING:
    from asyncpg import Record

    from storage.database import Connection, Pool

BEAT_TIMEOUT_S = 3.0


class Pulse:
    """The pulse of one process. *role*: "worker", or "alone" for a child that carries one run.

    *lock_key*: any 63-bit number that no other process has. *pooler*: behind a transaction pooler. *pool*: whose
    connections may beat when there is none left for this.
    """

    def __init__(
        self,
        dsn: str,
        worker_id: str,
        lock_key: int,
        role: str,
        *,
        pooler: bool = False,
        pool: "Pool | None" = None,
    ) -> None:
        self.dsn = dsn
        self.pool = pool
        self.worker_id = worker_id
        self.lock_key = lock_key
        self.role = role
        self.pooler = pooler
        self._connection: asyncpg.Connection[Record] | None = None

    async def beat(self) -> datetime:
        """Store one beat; return when it was, by PostgreSQL's clock. Raises: StoreUnavailable."""
        with mapped_errors():
            try:
                connection = await self._open()
            except asyncpg.TooManyConnectionsError:
                if self.pool is None:
                    raise
                async with asyncio.timeout(BEAT_TIMEOUT_S), lending_of(self.pool).connection() as lent:
                    return await self._register(lent, held=False)
            beat_at: datetime | None = await sql.beat_worker.value(connection, id=self.worker_id, now=None)
            return beat_at or await self._register(connection, held=await self._hold(connection))

    async def _open(self) -> "asyncpg.Connection[Record]":
        if self._connection is not None and not self._connection.is_closed():
            return self._connection
        connection = await asyncpg.connect(
            self.dsn,
            timeout=BEAT_TIMEOUT_S,
            command_timeout=BEAT_TIMEOUT_S,
            statement_cache_size=0 if self.pooler else 10,
            server_settings=session_settings(pooler=self.pooler),
        )
        try:
            await self._register(connection, held=await self._hold(connection))
        except BaseException:
            # Its beats would go on under what the row says of an earlier session's lock.
            connection.terminate()
            raise
        self._connection = connection
        return connection

    async def _hold(self, connection: "asyncpg.Connection[Record]") -> bool:
        """Take the session lock; say whether this very session has it.

        A dead session may keep the lock for a while after its connection broke; then the lease alone counts, until a
        later connection gets it.
        """
        return not self.pooler and bool(await sql.hold_session_lock.value(connection, lock_key=self.lock_key))

    async def _register(self, connection: "Connection", *, held: bool) -> datetime:
        """Write the row; return when. *held*: this very session has the lock."""
        beat_at: datetime = await sql.register_worker.value(
            connection,
            id=self.worker_id,
            host=socket.gethostname(),
            pid=os.getpid(),
            role=self.role,
            lock_key=self.lock_key,
            holds_lock=held,
            now=None,
        )
        return beat_at

    async def end(self) -> None:
        """Remove the row, then the lock with its session: a clean leave. Raises: StoreUnavailable."""
        if self._connection is None or self._connection.is_closed():
            return
        with mapped_errors():
            await sql.unregister_worker.run(self._connection, id=self.worker_id)
            await self._connection.close(timeout=BEAT_TIMEOUT_S)
