"""Expire suspensions: close what nobody decided in time.

Decides: nothing (the database's clock does). Does not: edit messages; it raises what they owe, and delivery follows.
The failure it can cause: none that a click could feel: a late click is refused, and expires the suspension itself,
even before this job has run.
"""

from typing import Protocol

BATCH = 100


class Expiry(Protocol):
    """The store's side of expiring."""

    async def expire_due(self, limit: int) -> int:
        """Expire up to *limit* open suspensions whose time is over; return how many."""
        ...


class ExpireSuspensions:
    """The job."""

    def __init__(self, expiry: Expiry) -> None:
        self.expiry = expiry

    async def run_once(self) -> int:
        """Expire until nothing is due; return how many."""
        total = 0
        while True:
            expired = await self.expiry.expire_due(BATCH)
            total += expired
            if not expired:  # fewer than a batch may be those of which some were busy
                return total
