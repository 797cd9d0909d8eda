"""Shared commits: the steps of concurrent runs that wait at the same moment go into one statement and one commit.

Decides: who shares with whom. A step that finds nobody committing goes alone and at once; those that come while it
commits share the next commit, bounded in rows and bytes; a crowd is split over two connections, so that PostgreSQL
works on one half while this process prepares the other. Nothing is delayed to collect more. Does not: weaken a fence:
each run's is in the statement, and a run that does not come back (its claim is lost, or its row is locked just now) is
tried alone, off the shared way, before it counts as lost. When a shared statement fails, each of its steps is tried
alone, so that one bad row fails alone. The failure it can cause: a step told done that is not; so an answer is given
only after the commit.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from core.errors import InvariantBroken
from core.ports import Fence
from storage import sql
from storage.database import ACQUIRE_TIMEOUT_S, translated

if TYPE_CHECKING:
    from asyncpg.pool import PoolConnectionProxy

    from storage.database import Pool

MOST_ROWS = 64
MOST_BYTES = 4_000_000
# From this many waiting steps on, two commits are under way at once.
CROWD = 16
LANES = 2
# Whoever waits this long behind commits under way (a slow disk, a row that somebody has locked) gets a way of its own.
PATIENCE_S = 0.005
MOST_LANES = 4
# A connection is kept this long after its last commit: the next one is likely to follow, and lending costs as much as
# a statement. A small pool has none to spare.
LINGER_S = 0.05
SPARE_FROM = 4


# Positions in what ``batch_columns`` returns.
_FIRST_SEQ, _SEQS, _ROLES, _BODIES, _RAWS, _ANSWERS_SEQS, _ANSWERS_POSITIONS = range(7)
_TRACE_KINDS, _TRACE_BODIES, _TRACE_MS, _TRACE_SPENDS, _MAIL = range(7, 12)
_AMOUNTS = range(12, 20)


@dataclass(slots=True)
class _Step:
    """A step that waits for its commit. *columns*: as ``batch_columns`` gives them."""

    fence: Fence
    columns: tuple[Any, ...]
    size: int
    done: "asyncio.Future[int | None]"


class SharedCommits:
    """The steps of one process, committed together."""

    def __init__(self, pool: "Pool", now: Callable[[], datetime | None]) -> None:
        self._pool = pool
        self._now = now
        self._waiting: list[_Step] = []
        self._lanes = 0
        self._starting = False
        self._crowded = False
        self._patience: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._idle: list[PoolConnectionProxy[Any]] = []
        self._linger: asyncio.TimerHandle | None = None
        self._used = False

    async def step(self, fence: Fence, columns: tuple[Any, ...]) -> int | None:
        """Commit one run's batch (as ``batch_columns`` gives it), alone or with others.

        Returns: the run's news; None when its fence does not hold.

        Raises: what asyncpg raises for this very step.
        """
        if not (self._lanes or self._crowded or self._waiting):
            self._lanes += 1
            try:
                return await self._alone(fence, columns)
            finally:
                self._lanes -= 1
                self._crowded = len(self._waiting) > 1
                self._start()
        loop = asyncio.get_running_loop()
        size = sum(map(len, columns[_BODIES])) + sum(len(raw or b"") for raw in columns[_RAWS])
        waiting = _Step(fence, columns, size, loop.create_future())
        self._waiting.append(waiting)
        if self._may_start:
            if not self._starting:
                # At the end of this turn of the event loop: everybody who is ready in it shares.
                self._starting = True
                loop.call_soon(self._start)
        elif self._patience is None:
            self._patience = loop.call_later(PATIENCE_S, self._impatient)
        return await waiting.done

    @property
    def _may_start(self) -> bool:
        return not self._lanes or (self._lanes < LANES and len(self._waiting) >= CROWD // 2)

    def _start(self) -> None:
        """Let those who wait share commits, if not enough are under way."""
        self._starting = False
        if self._waiting and self._may_start:
            split = not self._lanes and len(self._waiting) >= CROWD
            self._open_lane(-(-len(self._waiting) // LANES) if split else MOST_ROWS)
            if split and self._waiting:
                self._open_lane(MOST_ROWS)

    def _impatient(self) -> None:
        self._patience = None
        if self._waiting and self._lanes < MOST_LANES:
            self._open_lane(MOST_ROWS)

    def _open_lane(self, most: int) -> None:
        self._lanes += 1
        self._spawn(self._lane(self._take(most)))

    def _spawn(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _lane(self, batch: "list[_Step]") -> None:
        try:
            while batch:
                self._crowded = len(batch) > 1
                await self._commit(batch)
                batch = self._take(MOST_ROWS)
        finally:
            self._lanes -= 1
            self._start()

    def _take(self, most: int) -> "list[_Step]":
        taken, size = 0, 0
        for waiting in self._waiting:
            if taken >= min(most, MOST_ROWS) or (taken and size + waiting.size > MOST_BYTES):
                break
            taken += 1
            size += waiting.size
        batch, self._waiting = self._waiting[:taken], self._waiting[taken:]
        # A waiter that was cancelled gives its claim back itself; what it wanted to say is not said for it.
        return [waiting for waiting in batch if not waiting.done.cancelled()]

    async def _commit(self, batch: "list[_Step]") -> None:
        try:
            rows = await self._fetch(sql.step_runs.text, *_together(batch), self._now())
        except Exception as error:  # noqa: BLE001  whoever waits gets it, or is tried alone
            if not isinstance(translated(error), InvariantBroken):
                # Whether it took place is not known: each holder reads again before it acts.
                for waiting in batch:
                    _fail(waiting, error)
                return
            rows = []  # PostgreSQL refused a row and wrote none: tried alone, only the bad one fails
        moved = {str(row["claim_token"]): row["news"] for row in rows}
        for waiting in batch:
            news = moved.get(waiting.fence.claim_token)
            if news is None:
                self._spawn(self._retry(waiting))
            elif not waiting.done.done():
                waiting.done.set_result(news)

    async def _retry(self, waiting: "_Step") -> None:
        try:
            news = await self._pool.fetchval(sql.step_run.text, *self._arguments(waiting.fence, waiting.columns))
        except Exception as error:  # noqa: BLE001  each step gets its own error, whatever it is
            _fail(waiting, error)
        else:
            if not waiting.done.done():
                waiting.done.set_result(news)

    async def _alone(self, fence: Fence, columns: tuple[Any, ...]) -> int | None:
        rows = await self._fetch(sql.step_run.text, *self._arguments(fence, columns))
        return rows[0]["news"] if rows else None

    def _arguments(self, fence: Fence, columns: tuple[Any, ...]) -> tuple[Any, ...]:
        return (fence.run_id, fence.claim_token, *columns, None, False, self._now())

    # -- connections ------------------------------------------------------------------------------------------

    async def _fetch(self, text: str, *arguments: Any) -> Any:
        """Run a statement on a connection that is kept for the next one."""
        connection = self._idle.pop() if self._idle else None
        if connection is not None and connection.is_closed():
            await self._pool.release(connection)
            connection = None
        if connection is None:
            connection = await self._pool.acquire(timeout=ACQUIRE_TIMEOUT_S)
        try:
            rows = await connection.fetch(text, *arguments)
        except BaseException:
            await self._pool.release(connection)
            raise
        if self._pool.get_max_size() < SPARE_FROM:
            await self._pool.release(connection)
            return rows
        self._idle.append(connection)
        self._used = True
        if self._linger is None:
            self._linger = asyncio.get_running_loop().call_later(LINGER_S, self._let_go)
        return rows

    def _let_go(self) -> None:
        """Give kept connections back once nothing was committed for a while."""
        self._linger = None
        if self._used:
            self._used = False
            self._linger = asyncio.get_running_loop().call_later(LINGER_S, self._let_go)
            return
        kept, self._idle = self._idle, []
        for connection in kept:
            self._spawn(self._pool.release(connection))


def _fail(waiting: _Step, error: Exception) -> None:
    if not waiting.done.done():
        waiting.done.set_exception(error)


def _together(batch: list[_Step]) -> list[list[Any]]:
    """Return the arguments of step_runs but the last: a column a field, a row a run; then messages, trace, mail."""
    tokens = [waiting.fence.claim_token for waiting in batch]
    columns = [waiting.columns for waiting in batch]

    def flat(position: int) -> list[Any]:
        return [value for run in columns for value in run[position]]

    def owners(position: int) -> list[str]:
        return [token for token, run in zip(tokens, columns, strict=True) for _ in run[position]]

    return [
        [waiting.fence.run_id for waiting in batch],
        tokens,
        [run[_FIRST_SEQ] for run in columns],
        [len(run[_SEQS]) for run in columns],
        *([run[position] for run in columns] for position in _AMOUNTS),
        owners(_SEQS),
        *(flat(position) for position in range(_SEQS, _ANSWERS_POSITIONS + 1)),
        owners(_TRACE_KINDS),
        *(flat(position) for position in range(_TRACE_KINDS, _TRACE_SPENDS + 1)),
        flat(_MAIL),
    ]
