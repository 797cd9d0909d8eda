"""Each statement that a claim's holder sends keeps the fence by itself, also those behind another statement's fence.

The stores' own tests see the moves; these see the statements, so that none leans on its caller.
"""

import asyncio
from decimal import Decimal
from typing import Any
from uuid import uuid4

import asyncpg
import pytest

from bot.wiring import SystemClock
from core.conversation import CallKey
from core.errors import InvariantBroken, NewsArrived, StoreUnavailable
from core.holder import Holder
from core.ports import Batch, Fence, NewAction
from storage import sql
from storage.desk_store import PgDesk
from storage.rows import batch_columns
from storage.worker_store import PgWorkerStore
from tests.integration.storeworld import World, an_action, clicker, world_on

# What each statement needs besides the run and the claim.
ENDINGS: dict[str, dict[str, Any]] = {
    "release_run": {},
    "suspend_run": {},
    "halt_run": {"reason": "budget_steps", "detail": "", "next_worst_usd": 0},
    "fail_run": {"reason": "defect", "detail": ""},
}
NOT_HELD = pytest.mark.parametrize("holder", ["a successor", "nobody", "the end"])


@pytest.fixture
def world(pool: "asyncpg.Pool[asyncpg.Record]") -> World:
    return world_on(pool)


async def lost(world: World, holder: str) -> Fence:
    """Return the fence of a claim that was lost: to *holder*."""
    fence, _ = await world.asking()
    await world.worker.release(fence)
    if holder == "a successor":
        assert len(await world.worker.claim(world.worker_id, 9)) == 1
    elif holder == "the end":
        await world.pool.execute(
            "update runs set state = 'halted', halt_reason = 'stopped_by_user', ended_at = now() where id = $1",
            fence.run_id,
        )
    return fence


@pytest.mark.parametrize("name", ENDINGS)
@NOT_HELD
async def test_a_statement_that_ends_a_claim_needs_that_very_claim(world: World, name: str, holder: str) -> None:
    fence = await lost(world, holder)
    before = await world.everything()
    row = await getattr(sql, name).row(
        world.pool, run_id=fence.run_id, claim_token=fence.claim_token, now=world.now, **ENDINGS[name]
    )
    assert row is None
    assert await world.everything() == before


@NOT_HELD
async def test_a_statement_that_goes_on_needs_that_very_claim(world: World, holder: str) -> None:
    fence = await lost(world, holder)
    before = await world.everything()
    batch = batch_columns(Batch(steps=1, elapsed_ms=5))
    action = an_action(fence.run_id, CallKey(1, 0))
    who = (fence.run_id, fence.claim_token)
    intended = (
        1, 0, action.arguments_digest, action.idempotency_key, "send", "1", "{}", 30.0, None, world.now,
    )  # fmt: skip
    assert await world.pool.fetchval(sql.step_run.text, *who, *batch, None, False, world.now) is None
    assert await world.pool.fetchval(sql.answer_run.text, *who, *batch, 9, "{}", world.now) is None
    assert await world.pool.fetchval(sql.intend_action.text, *who, *batch, *intended) is None
    assert await world.pool.fetchval(sql.conclude_calls.text, *who, *batch, *[[]] * 9, world.now) is None
    assert (
        await sql.load_run.row(world.pool, run_id=who[0], claim_token=who[1], now=world.now, after=0, long_from=0)
        is None
    )
    assert await world.everything() == before


async def test_what_was_written_again_counts_once_however_late_the_first_arrives(world: World) -> None:
    """A statement that its sender gave up on may still arrive: on a network that heals, or in a PostgreSQL that was
    stopped. Without a message, its place in the conversation does not give it away."""
    fence, others = await world.started(), [await world.started() for _ in range(2)]
    holder = Holder(fence, world.worker, SystemClock())
    await holder.reload()
    holder.owe(spend_usd=Decimal("0.01"))
    late = holder.batch()
    await holder.step(late)
    action = an_action(fence.run_id, CallKey(1, 0))
    before = await world.everything()
    with pytest.raises(InvariantBroken):
        await world.worker.step(fence, late)
    with pytest.raises(InvariantBroken):
        await world.worker.intend(fence, late, action)
    with pytest.raises(InvariantBroken):
        await world.worker.conclude(fence, late)
    with pytest.raises(NewsArrived):
        await world.worker.answer(fence, late, 0, "done")
    assert await world.everything() == before
    # The same among the steps of others, in one statement.
    steps = [world.worker.step(fence, late), *(world.worker.step(other, Batch(elapsed_ms=5)) for other in others)]
    outcomes = await asyncio.gather(*steps, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [InvariantBroken, int, int]
    assert await world.value("select spend_usd from runs where id = $1", fence.run_id) == Decimal("0.01")


class LateStore(PgWorkerStore):
    """The answer of the first intention is lost; it arrives just before the second try, and a stop in between."""

    desk: PgDesk
    tries = 0

    async def intend(self, fence: Fence, batch: Batch, action: NewAction) -> None:
        self.tries += 1
        if self.tries == 1:
            raise StoreUnavailable("the network is cut")
        await super().intend(fence, batch, action)
        assert (await self.desk.stop(fence.run_id, clicker())).how == "requested"
        await super().intend(fence, batch, action)


async def test_what_landed_late_is_known_even_if_news_came_after_it(world: World) -> None:
    """Else what it cost would be owed, and charged, once more."""
    fence, (call,) = await world.asking()
    store = LateStore(world.pool)
    store.desk = world.desk
    holder = Holder(fence, store, SystemClock())
    await holder.reload()
    holder.owe(spend_usd=Decimal("0.01"))
    batch, action = holder.batch(), an_action(fence.run_id, call)
    await holder.commit(batch, lambda b: store.intend(fence, b, action))
    assert (store.tries, holder.landed(batch), bool(holder.owed), holder.stale) == (2, True, False, True)


async def test_the_reaper_fails_only_a_run_that_nobody_holds(world: World) -> None:
    """Its statement names no claim; that must not mean any claim."""
    fence = await world.started()
    row = await sql.fail_run.row(
        world.pool, run_id=fence.run_id, claim_token=None, reason="recovery_exhausted", detail="", now=world.now
    )
    assert row is None
    assert await world.state(fence.run_id) == "running"


async def test_a_claim_is_of_one_run(world: World) -> None:
    """A token opens its own run only."""
    mine, other = await world.started(), await world.started(user="U2")
    before = await world.everything()
    await world.worker.release(Fence(other.run_id, mine.claim_token))
    await world.worker.release(Fence(mine.run_id, str(uuid4())))
    assert await world.everything() == before
