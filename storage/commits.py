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
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import chain
from typing import TYPE_CHECKING, Any

import asyncpg
import orjson

from core.errors import InvariantBroken
from core.landing import Landing
from core.ports import Fence
from storage import sql
from storage.database import translated
from storage.lending import lending_of

if TYPE_CHECKING:
    from storage.database import Pool

MOST_ROWS = 64
MOST_BYTES = 4_000_000
# From this many waiting steps on, two commits are under way at once.
CROWD = 16
LANES = 2
# Whoever waits this long behind commits under way (a slow disk, a row that somebody has locked) gets a way of its own.
PATIENCE_S = 0.005
MOST_LANES = 4


# Positions in what ``batch_columns`` returns.
_FIRST_SEQ, _SEQS, _ROLES, _BODIES, _RAWS, _ANSWERS_SEQS, _ANSWERS_POSITIONS = range(7)
_TRACE_KINDS, _TRACE_BODIES, _TRACE_MS, _TRACE_SPENDS, _MAIL = range(7, 12)
_NUMBERS = range(12, 17)
_DOING, _CHARGES_CRASH, _SCOPE, _AFTER_MS = range(17, 21)


@dataclass(slots=True)
class _Step:
    """A step that waits for its commit. *columns*: as ``batch_columns`` gives them."""

    fence: Fence
    columns: tuple[Any, ...]
    size: int
    done: Landing[int | None]


class SharedCommits:
    """The steps of one process, committed together."""

    def __init__(self, pool: "Pool", now: Callable[[], datetime | None]) -> None:
        self._lending = lending_of(pool)
        self._now = now
        self._waiting: list[_Step] = []
        self._lanes = 0
        self._starting = False
        self._patience: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def step(self, fence: Fence, columns: tuple[Any, ...]) -> int | None:
        """Commit one run's batch (as ``batch_columns`` gives it), alone or with others.

        Seen through when the caller is cancelled meanwhile (core.landing).

        Returns: the run's news; None when its fence does not hold. Raises: what asyncpg raises for this very step.
        """
        loop = asyncio.get_running_loop()
        size = sum(map(len, columns[_BODIES])) + sum(map(len, filter(None, columns[_RAWS])))
        waiting = _Step(fence, columns, size, Landing(loop=loop))
        self._waiting.append(waiting)
        if self._may_start:
            if not self._starting:
                # At the end of this turn of the event loop: everybody who is ready in it shares.
                self._starting = True
                loop.call_soon(self._start)
        elif self._patience is None:
            self._patience = loop.call_later(PATIENCE_S, self._impatient)
        return await waiting.done.seen()

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
                await (self._commit(batch) if len(batch) > 1 else self._alone(batch[0]))
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
        return [waiting for waiting in batch if not waiting.done.done()]

    async def _commit(self, batch: "list[_Step]") -> None:
        try:
            arguments = together([waiting.fence for waiting in batch], [waiting.columns for waiting in batch])
            rows = await self._lending.fetch(sql.step_runs.text, *arguments, self._now())
        except Exception as error:  # noqa: BLE001  whoever waits gets it, or is tried alone
            given_up = isinstance(error, asyncpg.QueryCanceledError | asyncpg.TransactionRollbackError)
            if not given_up and not isinstance(translated(error), InvariantBroken):
                # Whether it took place is not known: each holder reads again before it acts.
                for waiting in batch:
                    _fail(waiting, error)
                return
            rows = []  # PostgreSQL refused a row, or gave the statement up, and wrote none: each is tried alone
        moved: dict[int, int] = dict(rows)
        for place, waiting in enumerate(batch):
            news = moved.get(place)
            if news is None:
                self._spawn(self._alone(waiting))
            elif not waiting.done.done():
                waiting.done.set_result(news)

    async def _alone(self, waiting: "_Step") -> None:
        fence = waiting.fence
        arguments = (fence.run_id, fence.claim_token, *waiting.columns, None, False, self._now())
        try:
            news = await self._lending.fetchval(sql.step_run.text, *arguments)
        except Exception as error:  # noqa: BLE001  each step gets its own error, whatever it is
            _fail(waiting, error)
        else:
            if not waiting.done.done():
                waiting.done.set_result(news)


def _fail(waiting: _Step, error: Exception) -> None:
    if not waiting.done.done():
        waiting.done.set_exception(error)


def together(fences: Sequence[Fence], columns: Sequence[tuple[Any, ...]]) -> list[Any]:
    """Return the arguments of step_runs but the last: a column a field, a row a run; then messages, trace, mail.

    *columns*: of each run, as ``batch_columns`` gives them. A message and a trace line name their run by its place.
    """

    def flat(position: int) -> list[Any]:
        return list(chain.from_iterable([run[position] for run in columns]))

    def owners(position: int) -> str:
        return _literal([place for place, run in enumerate(columns) for _ in run[position]])

    return [
        _literal([fence.run_id for fence in fences]),
        _literal([fence.claim_token for fence in fences]),
        _literal([run[_FIRST_SEQ] for run in columns]),
        _literal([len(run[_SEQS]) for run in columns]),
        *(_literal([run[position] for run in columns]) for position in _NUMBERS),
        [run[_DOING] for run in columns],
        _literal([run[_CHARGES_CRASH] for run in columns]),
        [run[_SCOPE] for run in columns],
        _literal([run[_AFTER_MS] for run in columns]),
        owners(_SEQS),
        _literal(flat(_SEQS)),
        _literal(flat(_ROLES)),
        flat(_BODIES),
        flat(_RAWS),
        _literal(flat(_ANSWERS_SEQS)),
        _literal(flat(_ANSWERS_POSITIONS)),
        owners(_TRACE_KINDS),
        _literal(flat(_TRACE_KINDS)),
        flat(_TRACE_BODIES),
        _literal(flat(_TRACE_MS)),
        _literal(flat(_TRACE_SPENDS)),
        _literal(flat(_MAIL)),
    ]


def _literal(values: list[Any]) -> str:
    """Return PostgreSQL's array literal of numbers, truth values and plain words (ids, roles, kinds) or nulls.

    A driver asks of each element of an array whether it is an array itself, which costs more than sending it; and what
    JSON writes of such values, PostgreSQL reads. Source: PostgreSQL, 8.15.6 Array Input and Output Syntax.
    """
    return "{" + orjson.dumps(values)[1:-1].decode("ascii") + "}"
