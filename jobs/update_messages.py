"""Update messages: deliver whatever the outbox owes.

Decides: how long to go on. Does not: render or speak Slack (delivery does). It is the poll behind the hints: a process
that dies between a move and its delivery owes the message still, and this finds it.
The failure it can cause: two replicas at once deliver different rows, never the same one, since each leases its own.
"""

from typing import Protocol

BATCH = 20


class Deliverer(Protocol):
    """Delivery's side."""

    async def run_once(self, limit: int) -> int:
        """Deliver up to *limit* owed messages; return how many were taken."""
        ...


class UpdateMessages:
    """The job."""

    def __init__(self, deliverer: Deliverer) -> None:
        self.deliverer = deliverer

    async def run_once(self) -> int:
        """Deliver until nothing that may go out now is owed; return how many were taken."""
        total = 0
        while True:
            taken = await self.deliverer.run_once(BATCH)
            total += taken
            if taken == 0:
                return total
