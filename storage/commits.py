"""Shared commits: the steps of concurrent runs that wait at the same moment go into one statement and one commit.

Decides: who shares with whom. A step that finds nobody committing goes alone and at once; those that come while it
commits share the next commit, bounded in rows and bytes. Nothing is delayed to collect more. Does not: weaken a fence:
each run's is in the statement, and a run that does not come back (its claim is lost, or its row is locked just now) is
tried alone before it counts as lost. When a shared statement fails, each of its steps is tried alone, so that one bad
row fails alone. The failure it can cause: a step told done that is not; so an answer is given only after the commit.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from core.errors import InvariantBroken
from core.ports import Fence
from storage import sql
from storage.database import translated

if TYPE_CHECKING:
    from storage.database import Pool

MOST_ROWS = 64
MOST_BYTES = 4_000_000


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
        self._committing = False
        self._flusher: asyncio.Task[None] | None = None

    async def step(self, fence: Fence, columns: tuple[Any, ...]) -> int | None:
        """Commit one run's batch (as ``batch_columns`` gives it), alone or with others.

        Returns: the run's news; None when its fence does not hold.

        Raises: what asyncpg raises for this very step.
        """
        if not self._committing:
            self._committing = True
            try:
                return await self._alone(fence, columns)
            finally:
                self._next()
        size = sum(map(len, columns[_BODIES])) + sum(len(raw or b"") for raw in columns[_RAWS])
        waiting = _Step(fence, columns, size, asyncio.get_running_loop().create_future())
        self._waiting.append(waiting)
        return await waiting.done

    def _next(self) -> None:
        """Let those who came meanwhile share a commit, or note that nobody is committing."""
        if self._waiting:
            self._flusher = asyncio.create_task(self._flush())
        else:
            self._committing = False

    async def _flush(self) -> None:
        try:
            while self._waiting:
                await self._commit(self._take())
        finally:
            self._committing = False
            if self._waiting:
                self._committing = True
                self._flusher = asyncio.create_task(self._flush())

    def _take(self) -> list[_Step]:
        taken, size = 0, 0
        for waiting in self._waiting:
            if taken == MOST_ROWS or (taken and size + waiting.size > MOST_BYTES):
                break
            taken += 1
            size += waiting.size
        batch, self._waiting = self._waiting[:taken], self._waiting[taken:]
        # A waiter that was cancelled gives its claim back itself; what it wanted to say is not said for it.
        return [waiting for waiting in batch if not waiting.done.cancelled()]

    async def _commit(self, batch: list[_Step]) -> None:
        moved: dict[str, int] = {}
        if len(batch) > 1:
            try:
                rows = await self._pool.fetch(sql.step_runs.text, *_together(batch), self._now())
                moved = {str(row["claim_token"]): row["news"] for row in rows}
            except Exception as error:  # noqa: BLE001  whoever waits gets it, or is tried alone
                if not isinstance(translated(error), InvariantBroken):
                    # Whether it took place is not known: each holder reads again before it acts.
                    for waiting in batch:
                        _fail(waiting, error)
                    return
                # PostgreSQL refused a row and wrote none: tried alone, only the bad one fails.
        for waiting in batch:
            news = moved.get(waiting.fence.claim_token)
            if news is None:
                try:
                    news = await self._alone(waiting.fence, waiting.columns)
                except Exception as error:  # noqa: BLE001  each step gets its own error, whatever it is
                    _fail(waiting, error)
                    continue
            if not waiting.done.done():
                waiting.done.set_result(news)

    async def _alone(self, fence: Fence, columns: tuple[Any, ...]) -> int | None:
        news: int | None = await self._pool.fetchval(
            sql.step_run.text, fence.run_id, fence.claim_token, *columns, None, False, self._now()
        )
        return news


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
