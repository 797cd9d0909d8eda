"""Bulk sweeps: signs of life, reaping, expiry, reminders, retention; and what operators look at.

Decides: which process counts as dead, and that only a run that was alone in it is charged an attempt. Does not: call a
tool, or decide when to run (jobs do). Every sweep works in bounded batches and is safe in every replica at once. The
failure it can cause: a process that is only cut off from the database for longer than its lease is taken for dead; its
runs go on elsewhere, and the fence refuses whatever it still writes.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from core.conversation import Message, StoredMessage
from core.errors import StoreUnavailable
from core.ports import TraceEntry
from core.results import unanswered
from core.run import FailReason
from storage import endings, sql
from storage.database import STATEMENT_TIMEOUT_S, Database, mapped_errors, translated
from storage.rows import encode, message_columns, parsed, run_of, trace_of, view_of

if TYPE_CHECKING:
    from storage.database import Connection, Pool

log = logging.getLogger("atlas.maintenance")

# A killed process is noticed by its free session lock, once it has missed this many seconds of its beat of one second.
QUICK_AFTER_S = 4.0
# Two recoveries, then one model-free pass alone (recovery_attempts 3); reaped again from that, the run fails.
CLOSING_PASS = 3

DAY_S = 86_400.0
KEEP_RUNS_S = 30 * DAY_S
KEEP_AUDIT_S = 365 * DAY_S
KEEP_MAIL_S = 2 * DAY_S
KEEP_PACE_S = DAY_S


@dataclass(frozen=True, slots=True)
class Counts:
    """What metrics show. *runs* by state; *oldest_owed_s*: age of the oldest undelivered change."""

    runs: dict[str, int]
    claimable: int
    owed: int
    oldest_owed_s: float
    refused: int
    open_suspensions: int
    unhandled_mail: int
    workers_alive: int


@contextmanager
def _for_itself_alone(run_id: str) -> Iterator[None]:
    """Let what is wrong with one run's rows (they do not load) fail for that run: the others of a sweep go on."""
    try:
        yield
    except Exception as error:
        if isinstance(error, StoreUnavailable) or isinstance(translated(error), StoreUnavailable):
            raise
        log.exception("run %s: a sweep cannot end it", run_id)


class PgMaintenance:
    """The sweeps of jobs. *now*: the time of a test; None: PostgreSQL's own. *hints*: NOTIFY may be used.

    *stalled_s*: seconds that PostgreSQL waits for a process that stopped in the middle of a statement.
    """

    def __init__(
        self,
        pool: "Pool",
        *,
        now: Callable[[], datetime] | None = None,
        hints: bool = True,
        stalled_s: float = STATEMENT_TIMEOUT_S,
    ) -> None:
        self._database = Database(pool, now, hints=hints)
        self._stalled_s = stalled_s

    # ---- signs of life ----------------------------------------------------------------------------------------------

    async def register(
        self, worker_id: str, host: str, pid: int, role: str, lock_key: int, *, holds_lock: bool
    ) -> None:
        """Add a worker process's row (again after it was removed). *role*: "worker" or "alone"."""
        async with self._database.connection() as connection:
            await sql.register_worker.run(
                connection,
                id=worker_id,
                host=host,
                pid=pid,
                role=role,
                lock_key=lock_key,
                holds_lock=holds_lock,
                now=self._database.now(),
            )

    async def unregister(self, worker_id: str) -> None:
        """Remove a worker process's row, after its runs were released."""
        async with self._database.connection() as connection:
            await sql.unregister_worker.run(connection, id=worker_id)

    async def beat(self, worker_id: str) -> datetime | None:
        """Give a sign of life; return when, by PostgreSQL's clock. None: there is no such row (register again)."""
        async with self._database.connection() as connection:
            beat_at: datetime | None = await sql.beat_worker.value(connection, id=worker_id, now=self._database.now())
        return beat_at

    async def hold_lock(self, connection: "Connection", lock_key: int) -> bool:
        """Hold the session lock *lock_key* for as long as *connection* (no pooler's, not the pool's) lives."""
        with mapped_errors():
            return bool(await sql.hold_session_lock.value(connection, lock_key=lock_key))

    # ---- orphans ----------------------------------------------------------------------------------------------------

    async def reap(self, *, lease_s: float, quick: bool, since: datetime | None = None, limit: int = 20) -> list[str]:
        """Take back up to *limit* runs of dead processes, the longest dead first, and return their ids; call again
        until none is left.

        Dead: no row, no beat for *lease_s* seconds, or (*quick*) its session lock is free and its beat is over 4 s
        old; never who has beaten since *since* (None: any time). How many runs a process held is remembered on its
        row before the first is taken, so that "alone" holds over several batches. A run reaped from its closing pass
        is failed in the same transaction, if its rows load. The messages that a dead process was about to deliver
        are free for the others as well. Sessions that stopped in the middle of a statement are ended: what they
        locked could not be taken back.
        """
        now = self._database.now()
        async with self._database.connection() as connection:
            await sql.end_stalled_sessions.rows(connection, stalled_s=self._stalled_s)
            await sql.mark_dead_workers.rows(
                connection, lease_s=lease_s, quick=quick, quick_after_s=QUICK_AFTER_S, since=since, now=now
            )
            await sql.mark_missing_workers.rows(connection, now=now)
            if await sql.free_leases.rows(connection, now=now):
                await endings.hint(connection, endings.OUTBOX, "", allowed=self._database.hints)
            if not await sql.any_orphans.value(connection):
                return []
        async with self._database.transaction() as connection:
            rows = await sql.reap_runs.rows(connection, room=limit, now=now)
            for row in rows:
                if row["recovery_attempts"] - int(row["alone"]) >= CLOSING_PASS:
                    with _for_itself_alone(row["id"]):
                        async with connection.transaction():
                            await self._fail_exhausted(connection, row["id"])
            if rows:
                await endings.hint(connection, endings.WORK, "", allowed=self._database.hints)
        return [row["id"] for row in rows]

    async def _fail_exhausted(self, connection: "Connection", run_id: str) -> None:
        """running (just taken back) -> failed: intended becomes unknown, open suspensions stopped, everybody told."""
        now = self._database.now()
        reason = FailReason.RECOVERY_EXHAUSTED.value
        body = encode({"reason": reason, "by": "reaper"})
        await sql.trace_event.run(connection, run_id=run_id, kind="failed", body=body, now=now)
        await self._close_calls(connection, run_id)
        detail = "Atlas was cut off each time it worked on this; the operators have been told."
        await endings.fail(connection, run_id, None, reason, detail, None, now)

    async def _close_calls(self, connection: "Connection", run_id: str) -> None:
        """Give every open call its result, as the last pass would have: a follow-up needs one for each."""
        now = self._database.now()
        rows = await sql.load_run.rows(connection, run_id=run_id, claim_token=None, now=now, after=0, long_from=None)
        try:
            view = view_of(rows) if rows else None
            closing = unanswered(view) if view is not None else []
        except Exception:
            # What took its processes down may be its own rows; it has to end all the same.
            log.exception("run %s: its rows do not load", run_id)
            return
        if view is None or not closing:
            return
        results = [
            StoredMessage(seq, Message(role="tool", text=text, call_id=call.call.id), call.key)
            for seq, (call, text) in enumerate(closing, start=len(view.messages))
        ]
        seqs, _, bodies, _, answers_seqs, answers_positions = message_columns(results)
        await sql.append_results.run(
            connection,
            run_id=run_id,
            seqs=seqs,
            bodies=bodies,
            answers_seqs=answers_seqs,
            answers_positions=answers_positions,
            now=now,
        )

    # ---- expiry -----------------------------------------------------------------------------------------------------

    async def expire_due(self, limit: int = 50) -> int:
        """Expire what is overdue of up to *limit* runs, each in its own transaction; return how many suspensions.

        A run that somebody else has locked waits for the next time; one whose rows do not load stops no other.
        """
        now = self._database.now()
        async with self._database.connection() as connection:
            rows = await sql.list_runs_with_expired.rows(connection, room=limit, now=now)
        expired = 0
        for row in rows:
            with _for_itself_alone(row["run_id"]):
                expired += await self._expire(row["run_id"], now)
        return expired

    async def _expire(self, run_id: str, now: datetime | None) -> int:
        async with self._database.transaction() as connection:
            locked = await sql.lock_run_unless_busy.value(connection, run_id=run_id)
            if locked is None:
                return 0
            gone, run = await endings.expire(connection, run_of(parsed(locked)), now)
            if gone:
                await endings.hint(connection, endings.OUTBOX, run.id, allowed=self._database.hints)
            return len(gone)

    async def to_remind(self, at_most_s: float, limit: int = 50) -> list[str]:
        """List the ids of open suspensions of which a third of the time, at most *at_most_s* seconds, is left and whose
        people were not reminded yet."""
        async with self._database.connection() as connection:
            rows = await sql.list_to_remind.rows(connection, at_most_s=at_most_s, room=limit, now=self._database.now())
        return [row["id"] for row in rows]

    async def remind(self, suspension_id: str) -> int:
        """Owe a reminder beside each standing copy of the card, once; return how many were owed now.

        Its words are made at delivery, from the rows as they are then.
        """
        async with self._database.connection() as connection:
            rows = await sql.owe_reminder.rows(connection, suspension_id=suspension_id, now=self._database.now())
        return len(rows)

    async def hasten(self, run_id: str, seconds: float) -> int:
        """For the demo and tests: a run's open suspensions expire in *seconds*; return how many."""
        async with self._database.connection() as connection:
            rows = await sql.hasten_suspensions.rows(
                connection, run_id=run_id, seconds=seconds, now=self._database.now()
            )
        return len(rows)

    # ---- retention --------------------------------------------------------------------------------------------------

    async def retention(self, limit: int = 500) -> int:
        """Remove up to *limit* rows of each kind that are old enough; return how many.

        Ended runs 30 days (never one with an unknown action), audit 365 days, handled mail 2 days.
        """
        now = self._database.now()
        sweeps = (
            (sql.remove_ended_runs, KEEP_RUNS_S),
            (sql.remove_old_audit, KEEP_AUDIT_S),
            (sql.remove_handled_mail, KEEP_MAIL_S),
            (sql.remove_old_messages, KEEP_RUNS_S),
            (sql.remove_old_pace, KEEP_PACE_S),
            (sql.remove_dead_workers, DAY_S),
        )
        removed = 0
        for statement, keep_s in sweeps:
            async with self._database.connection() as connection:
                rows = await statement.rows(connection, older_than_s=keep_s, room=limit, now=now)
            removed += len(rows)
        return removed

    # ---- what operators look at -------------------------------------------------------------------------------------

    async def counts(self, alive_s: float = 90.0) -> Counts:
        """Count rows for metrics; a worker is alive when it beat within *alive_s* seconds."""
        async with self._database.connection() as connection:
            row = await sql.count_rows.row(connection, alive_s=alive_s, now=self._database.now())
        assert row is not None
        numbers: dict[str, Any] = {name: row[name] for name in Counts.__slots__ if name != "runs"}
        return Counts(runs=parsed(row["runs"]), **numbers)

    async def timeline(self, run_id: str) -> list[tuple[datetime, TraceEntry]]:
        """Return a run's trace with its times, oldest first."""
        async with self._database.connection() as connection:
            rows = await sql.read_timeline.rows(connection, run_id=run_id)
        return [(row["at"], trace_of(dict(row))) for row in rows]

    async def ready(self) -> bool:
        """Make one cheap round trip; False: the database is read-only (a standby). Raises StoreUnavailable."""
        async with self._database.connection() as connection:
            return not await sql.read_readiness.value(connection)
