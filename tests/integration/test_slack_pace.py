"""The pace of one process: a crowd books together, nobody is lost, and other replicas are met on the same rows."""

import asyncio

import asyncpg
import pytest

from bot.pace import Pace
from core.errors import StoreUnavailable
from storage.outbox import PgOutbox
from tests.integration.storeworld import World, world_on


@pytest.fixture
def world(pool: "asyncpg.Pool[asyncpg.Record]") -> World:
    return world_on(pool)


class Counted:
    """The outbox's slots, with every booking noted; *broken* of them fail; *held* until it is set."""

    def __init__(self, outbox: PgOutbox, broken: int = 0) -> None:
        self.outbox = outbox
        self.broken = broken
        self.booked: list[float] = []
        self.held = asyncio.Event()
        self.held.set()

    async def reserve(self, team_id: str, channel_id: str, method: str, per_s: float) -> float:
        self.booked.append(per_s)
        await self.held.wait()
        if self.broken:
            self.broken -= 1
            raise StoreUnavailable("away")
        return await self.outbox.reserve(team_id, channel_id, method, per_s)

    async def ahead(self, team_id: str, channel_id: str, method: str) -> float:
        return await self.outbox.ahead(team_id, channel_id, method)


async def test_a_crowd_books_together_and_each_has_a_slot_of_its_own(world: World) -> None:
    slots = Counted(world.outbox)
    pace = Pace(slots, "T1")
    waits = await asyncio.gather(*(pace.book("", "chat.update", 2.0) for _ in range(10)))
    assert sorted(waits) == [2.0 * at for at in range(10)]
    assert len(slots.booked) <= 2
    assert await world.outbox.reserve("T1", "", "chat.update", 2.0) == 20.0  # another replica, after them
    assert await pace.book("C1", "chat.postMessage", 1.0) == 0.0
    assert await pace.book("", "chat.update", 2.0) == 22.0


async def test_a_booking_that_fails_is_one_asker_s_and_one_that_gives_up_holds_up_nobody(world: World) -> None:
    slots = Counted(world.outbox, broken=1)
    slots.held.clear()
    pace = Pace(slots, "T1")
    asking = [asyncio.ensure_future(pace.book("C1", "chat.postMessage", 1.0)) for _ in range(4)]
    while not slots.booked:
        await asyncio.sleep(0)
    asking[1].cancel()
    slots.held.set()
    said = await asyncio.gather(*asking, return_exceptions=True)
    assert isinstance(said[0], StoreUnavailable)
    assert isinstance(said[1], asyncio.CancelledError)
    assert said[2:] == [0.0, 1.0]
