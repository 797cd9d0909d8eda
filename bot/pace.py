"""The pace of requests to Slack, which all replicas share: slots for everybody who asks here at the same moment.

Decides: who shares a booking. Whoever comes while one is under way is in the next, so that a crowd of owed messages
costs few statements and holds one connection, not one each that wait for the same row. Does not: wait for the slot
(delivery does). The failure it can cause: a slot booked for somebody who gave up is left unused, as it would be alone.
"""

import asyncio
from dataclasses import dataclass, field
from typing import Protocol


class Slots(Protocol):
    """Where slots are booked."""

    async def reserve(self, team_id: str, channel_id: str, method: str, per_s: float) -> float:
        """Book *per_s* seconds of that kind; return the seconds until they begin. Raises: StoreUnavailable."""
        ...


@dataclass(slots=True)
class _Asker:
    wait_s: float | None = None


@dataclass(slots=True)
class _Queue:
    """Who waits for a slot of one kind. *booking*: held by the one who books for all of them."""

    askers: list[_Asker] = field(default_factory=list)
    booking: asyncio.Lock = field(default_factory=asyncio.Lock)


class Pace:
    """The slots of one workspace."""

    def __init__(self, slots: Slots, team_id: str) -> None:
        self.slots = slots
        self.team_id = team_id
        self._queues: dict[tuple[str, str, float], _Queue] = {}

    async def book(self, channel_id: str, method: str, every_s: float) -> float:
        """Book the next request of that kind; return the seconds to wait before it goes out.

        Raises: StoreUnavailable.
        """
        kind = (channel_id, method, every_s)
        queue = self._queues.setdefault(kind, _Queue())
        asker = _Asker()
        queue.askers.append(asker)
        try:
            async with queue.booking:
                if asker.wait_s is None:
                    together = list(queue.askers)
                    first = await self.slots.reserve(self.team_id, channel_id, method, every_s * len(together))
                    for at, each in enumerate(together):
                        each.wait_s = first + at * every_s
                    queue.askers = [each for each in queue.askers if each.wait_s is None]
        finally:
            # Whoever failed or gave up is out of the way; the others book for themselves.
            queue.askers = [each for each in queue.askers if each is not asker]
            if not queue.askers and not queue.booking.locked():
                self._queues.pop(kind, None)
        assert asker.wait_s is not None
        return asker.wait_s
