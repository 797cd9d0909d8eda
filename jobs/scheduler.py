"""The schedule: which job runs how often in this process.

Decides: periods. Does not: keep state (PostgreSQL does); every job is safe in every replica. APScheduler's asyncio
executor cancels coroutines at shutdown, so each batch is its own short transaction, and ``stop`` waits for the jobs.
The failure it can cause: a job that raises is logged and runs again at its next time; it never stops the schedule.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from apscheduler.schedulers.asyncio import AsyncIOScheduler

from core.errors import StoreUnavailable

log = logging.getLogger("atlas.jobs")

Job = Callable[[], Awaitable[object]]


class Schedule:
    """The jobs of one process. Add them, then ``start``; ``stop`` lets those that run come to their end."""

    def __init__(self) -> None:
        self._scheduler = AsyncIOScheduler(timezone="UTC")
        self._running: set[asyncio.Task[object]] = set()
        self._busy: set[str] = set()
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

        # Two instances, of which the second only sees that it is one too many: APScheduler itself would log each time.
        self._scheduler.add_job(
            once, "interval", seconds=seconds, id=name, max_instances=2, coalesce=True, misfire_grace_time=None
        )

    def start(self) -> None:
        """Start the schedule on the running event loop."""
        self._scheduler.start()

    async def stop(self) -> None:
        """Start nothing more and wait for what runs (up to 5 s)."""
        self.stopping = True
        running = list(self._running)
        if running:
            await asyncio.wait(running, timeout=5.0)
        if self._scheduler.running:  # a start that failed before the schedule is taken apart, too
            self._scheduler.shutdown(wait=False)
