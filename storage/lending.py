"""Connections of the pool, lent cheaply: the last ones used stay in hand for a moment.

Decides: which connection a statement gets. Lending one from asyncpg's pool and giving it back costs two tasks and a
timer, as much as a small statement itself, so a connection that went back in order is kept for the next borrower.
Does not: map errors or begin transactions. The failure it can cause: a connection kept here while somebody waits at
the pool; so nobody keeps any while a borrower waits, a small pool keeps none, and others find at least half of it.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeAlias
from weakref import WeakValueDictionary

import asyncpg

if TYPE_CHECKING:
    from asyncpg.pool import PoolConnectionProxy

    Pool: TypeAlias = asyncpg.Pool[asyncpg.Record]

ACQUIRE_TIMEOUT_S = 10.0
# A connection is kept this long after it was last of use.
LINGER_S = 0.05
# A smaller pool has none to spare.
SPARE_FROM = 4


class Lending:
    """Lends the connections of one pool. Made by ``lending_of``: all stores on a pool share one."""

    def __init__(self, pool: "Pool") -> None:
        self.pool = pool
        self._most = pool.get_max_size() // 2 if pool.get_max_size() >= SPARE_FROM else 0
        self._kept: list[PoolConnectionProxy[Any]] = []
        self._waiting = 0
        self._used = False
        self._linger: asyncio.TimerHandle | None = None
        self._returns: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def connection(self) -> AsyncIterator["PoolConnectionProxy[Any]"]:
        """Lend a connection. Raises: what asyncpg raises, TimeoutError when the pool has none for ACQUIRE_TIMEOUT_S."""
        connection = await self._take()
        try:
            yield connection
        except BaseException:
            # What state it is in is the pool's to find out.
            await self.pool.release(connection)
            raise
        await self._give_back(connection)

    async def fetch(self, text: str, *arguments: object) -> Any:
        """Run one statement and return its rows."""
        connection = await self._take()
        try:
            rows = await connection.fetch(text, *arguments)
        except BaseException:
            await self.pool.release(connection)
            raise
        await self._give_back(connection)
        return rows

    async def fetchval(self, text: str, *arguments: object) -> Any:
        """Run one statement and return the first column of its first row; None: no row."""
        rows = await self.fetch(text, *arguments)
        return rows[0][0] if rows else None

    async def _take(self) -> "PoolConnectionProxy[Any]":
        while self._kept:
            connection = self._kept.pop()
            if _open(connection):
                return connection
            await self.pool.release(connection)
        self._waiting += 1
        try:
            return await self.pool.acquire(timeout=ACQUIRE_TIMEOUT_S)
        finally:
            self._waiting -= 1

    async def _give_back(self, connection: "PoolConnectionProxy[Any]") -> None:
        if self._waiting or len(self._kept) >= self._most or not _open(connection):
            await self.pool.release(connection)
            return
        self._kept.append(connection)
        self._used = True
        if self._linger is None:
            self._linger = asyncio.get_running_loop().call_later(LINGER_S, self._let_go)

    def _let_go(self) -> None:
        """Give what is kept back once nobody borrowed for a while."""
        self._linger = None
        if self._used:
            self._used = False
            self._linger = asyncio.get_running_loop().call_later(LINGER_S, self._let_go)
            return
        task = asyncio.create_task(self.let_go())
        self._returns.add(task)
        task.add_done_callback(self._returns.discard)

    async def let_go(self) -> None:
        """Give everything kept back to the pool now."""
        kept, self._kept = self._kept, []
        for connection in kept:
            await self.pool.release(connection)


def _open(connection: "PoolConnectionProxy[Any]") -> bool:
    """Say whether a connection is of use; one that the server ended has gone back to the pool by itself."""
    try:
        return not connection.is_closed()
    except asyncpg.InterfaceError:
        return False


# By id: pools take no weak references. A Lending holds its pool, so no id is another pool's while it lives.
_lendings: "WeakValueDictionary[int, Lending]" = WeakValueDictionary()


def lending_of(pool: "Pool") -> Lending:
    """Return the one Lending of *pool*."""
    lending = _lendings.get(id(pool))
    if lending is None:
        lending = _lendings[id(pool)] = Lending(pool)
    return lending
