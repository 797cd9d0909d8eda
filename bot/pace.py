"""The pace of requests to Slack, which all replicas share: slots for everybody who asks here at the same moment.

Decides: who shares a booking. Whoever comes while one is under way is in the next, so that a crowd of owed messages
costs few statements and holds one connection, not one each that wait for the same row. Does not: wait for the slot
(delivery does). The failure it can cause: a slot booked for somebody who gave up is left unused, as it would be alone.
"""

import asyncio
import math
from dataclasses import dataclass, field
from typing import Protocol


class Slots(Protocol):
    """Where slots are booked."""

    async def reserve(self, team_id: str, channel_id: str, method: str, per_s: float) -> float:
        """Book *per_s* seconds of that kind; return the seconds until they begin. Raises: StoreUnavailable."""
        ...

    async def ahead(self, team_id: str, channel_id: str, method: str) -> float:
        """Return the seconds until a slot of that kind is free, without booking it. Raises: StoreUnavailable."""
        ...


@dataclass(slots=True)
class _Asker:
    within_s: float = math.inf
    booked: bool = False
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
        return (await self.turn(channel_id, method, every_s, math.inf))[1]

    async def turn(self, channel_id: str, method: str, every_s: float, within_s: float) -> tuple[bool, float]:
        """Book the next request of that kind if it goes out within *within_s* seconds.

        A slot that is far off is booked by nobody: until it comes, something that matters more may be owed, and who
        waits for it may be another replica. Returns: whether it is booked; the seconds to wait, or those after which
        to ask again. Raises: StoreUnavailable.
        """
        kind = (channel_id, method, every_s)
        queue = self._queues.setdefault(kind, _Queue())
        asker = _Asker(within_s)
        queue.askers.append(asker)
        try:
            async with queue.booking:
                if asker.wait_s is None:
                    await self._book(queue, kind)
        finally:
            # Whoever failed or gave up is out of the way; the others book for themselves.
            queue.askers = [each for each in queue.askers if each is not asker]
            if not queue.askers and not queue.booking.locked():
                self._queues.pop(kind, None)
        assert asker.wait_s is not None
        return asker.booked, asker.wait_s

    async def _book(self, queue: _Queue, kind: tuple[str, str, float]) -> None:
        """Book for everybody who asks now, the most patient (they matter most) first."""
        channel_id, method, every_s = kind
        together = sorted(queue.askers, key=lambda each: -each.within_s)
        first, count = 0.0, len(together)
        if together[-1].within_s != math.inf:
            first = await self.slots.ahead(self.team_id, channel_id, method)
            count = sum(first + at * every_s <= each.within_s for at, each in enumerate(together))
        if count:
            first = await self.slots.reserve(self.team_id, channel_id, method, every_s * count)
        for at, each in enumerate(together):
            each.booked, each.wait_s = at < count, first + at * every_s
        queue.askers = [each for each in queue.askers if each.wait_s is None]
