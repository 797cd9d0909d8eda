"""Conversations that a process keeps: a load reads only the rest, and what it returns is what PostgreSQL has."""

import asyncpg
import pytest

from core.conversation import Message, StoredMessage
from core.errors import ClaimLost
from core.ports import Batch, Fence
from storage.kept import KeptConversations
from storage.worker_store import PgWorkerStore
from tests.integration.storeworld import World, an_ask, clicker, said, turn, world_on


@pytest.fixture
def world(pool: "asyncpg.Pool[asyncpg.Record]") -> World:
    return world_on(pool)


async def both(world: World, fence: Fence) -> list[Message]:
    """Return the conversation as this process has it, which must be what a process without memory reads."""
    mine = await world.worker.load(fence)
    fresh = await PgWorkerStore(world.pool, now=world.time).load(fence)
    assert list(mine.messages) == list(fresh.messages)
    assert [stored.seq for stored in mine.messages] == list(range(len(mine.messages)))
    return [stored.message for stored in mine.messages]


async def test_what_is_kept_is_what_is_stored_over_a_resumption(world: World) -> None:
    """Steps, a suspension, a decision and the next claim: both ways to read agree after each."""
    fence, (call,) = await world.asking()
    assert len(await both(world, fence)) == 2
    ask = an_ask(fence.run_id, call)
    await world.worker.suspend(fence, Batch(), 0, [ask])
    decided = await world.desk.decide(ask.id, ask.token, ask.digest, clicker(), approve=True, worker_id=world.worker_id)
    assert decided.claimed is not None
    assert len(await both(world, decided.claimed)) == 2


async def test_a_load_reads_only_what_is_not_kept(world: World) -> None:
    """A stored body that no process could decode does not matter to the one that wrote it."""
    fence, _ = await world.asking()
    await world.worker.load(fence)
    await world.pool.execute("update messages set body = 'broken' where run_id = $1", fence.run_id)
    assert len((await world.worker.load(fence)).messages) == 2
    with pytest.raises(ValueError, match="Expecting"):
        await PgWorkerStore(world.pool, now=world.time).load(fence)


async def test_what_another_process_added_is_read(world: World) -> None:
    """A beginning is kept; the claim goes to another process, which goes on, and comes back."""
    fence, _ = await world.asking()
    await world.worker.load(fence)
    await world.pool.execute("update runs set claim_token = null, claimed_by = null where id = $1", fence.run_id)
    other = PgWorkerStore(world.pool, now=world.time)
    (claimed,) = await other.claim(world.worker_id, 1)
    await other.step(claimed.fence, Batch(messages=(said(2, "from elsewhere"), turn(3, "look")), steps=1))
    assert [message.text for message in await both(world, claimed.fence)][2] == "from elsewhere"


async def test_a_lost_claim_reads_nothing_from_memory(world: World) -> None:
    """What is kept never stands in for the claim."""
    fence, _ = await world.asking()
    await world.worker.load(fence)
    await world.pool.execute("update runs set claim_token = null, claimed_by = null where id = $1", fence.run_id)
    with pytest.raises(ClaimLost):
        await world.worker.load(fence)


async def test_a_refused_step_keeps_nothing(world: World) -> None:
    """A step under a lost claim wrote nothing, so that nothing of it is kept."""
    fence, _ = await world.asking()
    zombie = Fence(fence.run_id, "00000000-0000-4000-8000-000000000000")
    with pytest.raises(ClaimLost):
        await world.worker.step(zombie, Batch(messages=(said(2, "never stored"),)))
    assert len(await both(world, fence)) == 2


def message(seq: int, text: str = "x") -> StoredMessage:
    return StoredMessage(seq, Message(role="user", text=text))


def test_the_least_used_conversation_goes_first_and_none_has_a_gap() -> None:
    """Beyond the bound the oldest is dropped; what does not go on where the rest ends is not kept."""
    kept = KeptConversations(most=250)
    kept.add("a", [message(0, "x" * 100)])
    kept.add("b", [message(0, "x" * 100)])
    kept.add("a", [message(1, "x" * 10)])
    kept.add("a", [message(5)])
    assert [stored.seq for stored in kept.of("a")] == [0, 1]
    kept.add("c", [message(0, "x" * 100)])
    assert [len(kept.of(run)) for run in "abc"] == [2, 0, 1]
    kept.drop("a")
    kept.drop("a")
    kept.add("d", [message(0, "x" * 100)])
    assert [len(kept.of(run)) for run in "acd"] == [0, 1, 1]
