"""Retention: remove what has been kept long enough, in bounded batches.

Decides: nothing but the pace; the ages are DESIGN section 3's (ended runs 30 days, audit 365, handled inbox rows 2).
Does not: touch live runs, or any run with an action of unknown outcome. The failure it can cause: a batch too large
would make the step path wait for its row locks.
"""

from typing import Protocol

BATCH = 200
PAUSE_S = 0.05


class Removal(Protocol):
    """The store's side."""

    async def retention(self, limit: int) -> int:
        """Remove up to *limit* rows that are old enough; return how many."""
        ...


class Pause(Protocol):
    """Waiting."""

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        ...


class Retention:
    """The job."""

    def __init__(self, removal: Removal, clock: Pause) -> None:
        self.removal = removal
        self.clock = clock

    async def run_once(self) -> int:
        """Remove until nothing old is left; return how many."""
        total = 0
        while True:
            removed = await self.removal.retention(BATCH)
            total += removed
            if removed < BATCH:
                return total
            await self.clock.sleep(PAUSE_S)
