"""The schedule: which job runs how often in this process.

Decides: periods. Does not: keep state (PostgreSQL does); every job is safe in every replica. APScheduler's asyncio
executor cancels coroutines at shutdown, so each batch is its own short transaction, and ``stop`` waits for the jobs.
The failure it can cause: a job that raises is logged and runs again at its next time; it never stops the schedule.
APScheduler goes by the host's wall clock: set back by an hour, nothing would be due for an hour, so the schedule looks
for times that are further off than their period.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta

from apscheduler.schedulers.asyncio import AsyncIOScheduler

from core.errors import StoreUnavailable

log = logging.getLogger("atlas.jobs")

Job = Callable[[], Awaitable[object]]

LOOK_EVERY_S = 1.0
_SLACK = timedelta(seconds=1)


class Schedule:
    """The jobs of one process. Add them, then ``start``; ``stop`` lets those that run come to their end."""

    def __init__(self) -> None:
        self._scheduler = AsyncIOScheduler(timezone="UTC")
        self._running: set[asyncio.Task[object]] = set()
        self._busy: set[str] = set()
        self._periods: dict[str, timedelta] = {}
        self._look: asyncio.TimerHandle | None = None
        self.stopping = False

    def every(self, seconds: float, name: str, job: Job) -> None:
        """Run *job* every *seconds*, never twice at once; a missed time is made up for once."""

        async def once() -> None:
            if self.stopping or name in self._busy:
                return  # its last time goes on: a pace or an outage made it long
            self._busy.add(name)
            task = asyncio.ensure_future(job())
            self._running.add(task)
            try:
                # Shielded: APScheduler cancels its coroutines at shutdown, and a batch is to end whole.
                await asyncio.shield(task)
            except StoreUnavailable as error:
                log.warning("%s: %s", name, error)
            except Exception:
                log.exception("%s", name)
            finally:
                self._running.discard(task)
                self._busy.discard(name)

        self._periods[name] = timedelta(seconds=seconds)
        # Two instances, of which the second only sees that it is one too many: APScheduler itself would log each time.
        self._scheduler.add_job(
            once, "interval", seconds=seconds, id=name, max_instances=2, coalesce=True, misfire_grace_time=None
        )

    def start(self) -> None:
        """Start the schedule on the running event loop."""
        self._scheduler.start()
        self._look_at_times()

    def _look_at_times(self) -> None:
        """Make due what is further off than its period: the clock was set back."""
        now = datetime.now(UTC)  # noqa: TID251  (the very clock that APScheduler goes by)
        for job in self._scheduler.get_jobs():
            if job.next_run_time is not None and job.next_run_time > now + self._periods[job.id] + _SLACK:
                log.warning("%s was due only at %s: the clock was set back", job.id, job.next_run_time)
                job.modify(next_run_time=now)
        self._look = asyncio.get_running_loop().call_later(LOOK_EVERY_S, self._look_at_times)

    async def stop(self) -> None:
        """Start nothing more and wait for what runs (up to 5 s)."""
        self.stopping = True
        if self._look is not None:
            self._look.cancel()
        running = list(self._running)
        if running:
            await asyncio.wait(running, timeout=5.0)
        if self._scheduler.running:  # a start that failed before the schedule is taken apart, too
            self._scheduler.shutdown(wait=False)
