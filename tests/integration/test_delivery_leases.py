"""The leases of deliveries: free once their process is known dead, and yet nothing stands twice or outdated."""

from uuid import uuid4

import asyncpg
import pytest

from core.ports import OutboxRow
from tests.integration.storeworld import World, clicker, world_on

LEASE_S = 30.0


@pytest.fixture
def world(pool: "asyncpg.Pool[asyncpg.Record]") -> World:
    return world_on(pool)


async def process(world: World) -> str:
    """Register a process that beats now, without a session lock."""
    worker_id = str(uuid4())
    await world.upkeep.register(worker_id, "host", 1, "worker", 1, holds_lock=False)
    return worker_id


async def a_card(world: World, owner: str | None) -> OutboxRow:
    """Owe a card, and lease it for *owner*."""
    await world.suspended()
    return await take(world, owner)


async def take(world: World, owner: str | None) -> OutboxRow:
    """Lease the card."""
    (row,) = [row for row in await world.outbox.take(50, LEASE_S, owner) if row.kind == "card"]
    return row


async def free(world: World) -> list[str]:
    """Return the cards that may be taken now."""
    rows = await world.pool.fetch(
        "select place from outbox where kind = 'card' and version > delivered_version"
        " and (leased_until is null or leased_until <= $1)",
        world.now,
    )
    return [row["place"] for row in rows]


async def test_what_a_dead_process_was_about_to_deliver_is_free_at_once(world: World) -> None:
    """Long before its lease ends; and it can announce nothing any more."""
    row = await a_card(world, await process(world))
    await world.upkeep.reap(lease_s=5, quick=False)
    assert await free(world) == [], "it lives"
    world.pass_time(6)
    await world.upkeep.reap(lease_s=5, quick=False)
    assert await free(world) == [row.place]
    assert not await world.outbox.posting(row)
    again = await take(world, await process(world))
    assert (again.place, again.posting_age_s) == (row.place, None)


async def test_a_process_that_left_frees_its_leases_and_one_that_nobody_knows_keeps_them(world: World) -> None:
    """A clean leave is known by the missing row; a release that names no owner has its lease until it ends."""
    leaver = await process(world)
    row = await a_card(world, leaver)
    await world.upkeep.unregister(leaver)
    await world.upkeep.reap(lease_s=5, quick=False)
    assert await free(world) == [row.place]
    await take(world, None)
    world.pass_time(LEASE_S - 1)
    await world.upkeep.reap(lease_s=5, quick=False)
    assert await free(world) == []
    world.pass_time(2)
    assert await free(world) == [row.place]


async def test_a_post_of_a_dead_process_stays_unknown(world: World) -> None:
    """It was announced, so whoever takes the message looks for it first, from the time of its announcement on."""
    row = await a_card(world, await process(world))
    assert await world.outbox.posting(row)
    world.pass_time(6)
    await world.upkeep.reap(lease_s=5, quick=False)
    again = await take(world, await process(world))
    assert again.posting_age_s == 6.0
    assert await world.outbox.delivered(again, again.version, "C1", "1.1")
    assert await free(world) == [], "a post that was found is no edit in doubt"


async def test_an_edit_of_a_dead_process_may_still_arrive_so_what_stands_is_said_once_more(world: World) -> None:
    """The newest version goes out at once, stays owed for as long as the old lease would have lasted, and no longer."""
    _, (ask,) = await world.suspended()
    first = await take(world, None)
    assert await world.outbox.delivered(first, first.version, "C1", "1.1")
    await world.desk.decide(ask.id, ask.token, ask.digest, clicker(), approve=True)
    stuck = await take(world, await process(world))
    world.pass_time(6)
    await world.upkeep.reap(lease_s=5, quick=False)
    heir = await process(world)
    again = await take(world, heir)
    assert await world.outbox.delivered(again, again.version, "C1", "1.1")
    assert not await world.outbox.delivered(stuck, stuck.version, "C1", "1.1")
    assert [row for row in await world.outbox.take(50, LEASE_S, heir) if row.kind == "card"] == [], "not at once"
    world.pass_time(LEASE_S)
    last = await take(world, heir)
    assert await world.outbox.delivered(last, last.version, "C1", "1.1")
    assert await free(world) == []
    world.pass_time(3 * LEASE_S)
    assert await free(world) == []
