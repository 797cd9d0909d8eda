"""Safeguards of single moves on the real store that no other test would miss."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from decimal import Decimal
from uuid import uuid4

import asyncpg
import pytest

from core import Agent
from core.approvals import Refusal, Via
from core.conversation import CallKey
from core.engine import Actor, Engine, Rules
from core.errors import Conflict, NewsArrived
from core.ports import Batch, Closing, Fence
from core.run import HaltReason, SuspensionStatus
from core.tools import Approval
from storage import sql
from tests.integration.storeworld import Members, World, an_ask, clicker, no_scope, said, turn, world_on


@pytest.fixture
def world(pool: "asyncpg.Pool[asyncpg.Record]") -> World:
    return world_on(pool)


# ---- decisions -------------------------------------------------------------------------------------------------------


async def test_a_click_from_another_workspace_finds_nothing(world: World) -> None:
    """User ids are unique within a team only: the same id elsewhere is somebody else."""
    _, (ask,) = await world.suspended(policy=Approval(by="anyone"))
    engine = Engine(Agent(instructions="", tools=[], scopes=no_scope), world.desk, Members(), Rules())
    for approve in (True, False):
        actor = Actor("T2", "U1", Via.BUTTON)
        refused = await engine.decide(actor, ask.id, ask.token, approve=approve, digest=ask.digest)
        assert (refused.refusal, refused.suspension, refused.run) == (Refusal.UNKNOWN, None, None)
    assert await world.value("select status from suspensions where id = $1", ask.id) == "open"
    decided = await engine.decide(Actor("T1", "U1", Via.BUTTON), ask.id, ask.token, approve=True, digest=ask.digest)
    assert decided.refusal is None


@pytest.mark.parametrize("approve", [True, False])
async def test_a_click_of_somebody_whom_the_policy_does_not_name_decides_nothing(world: World, approve: bool) -> None:
    """The one authorizer is asked before the store is."""
    _, (ask,) = await world.suspended(policy=Approval(by=("U7",)))
    engine = Engine(Agent(instructions="", tools=[], scopes=no_scope), world.desk, Members(), Rules())
    actor = Actor("T1", "U8", Via.BUTTON)
    refused = await engine.decide(actor, ask.id, ask.token, approve=approve, digest=ask.digest)
    assert refused.refusal is Refusal.NOT_AN_APPROVER
    assert await world.value("select status from suspensions where id = $1", ask.id) == "open"
    assert await world.value("select allowed from audit") is False


@pytest.mark.parametrize("after", ["declined", "approved"])
async def test_the_statement_of_a_decision_takes_only_what_is_open(world: World, after: str) -> None:
    """Whatever its caller has looked at."""
    run_id, (ask,) = await world.suspended()
    await world.desk.decide(ask.id, ask.token, ask.digest, clicker(), approve=after == "approved")
    before = await world.everything()
    row = await sql.decide_suspension.row(
        world.pool, run_id=run_id, suspension_id=ask.id, status="approved", by="U2", reason=None,
        edited_arguments=None, worker_id=world.worker_id, act="approve", via="button", voting=True, hints=False,
        now=world.now, token=None, digest=None,
    )  # fmt: skip
    assert row is None
    assert await world.everything() == before


@pytest.mark.parametrize("wrong", ["token", "digest", "late", "two needed", "held", None])
async def test_an_approval_in_one_statement_is_plainly_good_or_nothing(world: World, wrong: str | None) -> None:
    """Taken without a look under the lock: whatever is not plainly good is left, untouched, to that look."""
    run_id, (ask,) = await world.suspended(policy=Approval(by="anyone", count=2 if wrong == "two needed" else 1))
    if wrong == "late":
        world.pass_time(1801)
    before = await world.everything()
    async with world.pool.acquire() as other, other.transaction():
        if wrong == "held":
            await other.execute("select from runs where id = $1 for update", run_id)
        row = await sql.decide_suspension.row(
            world.pool, run_id=run_id, suspension_id=ask.id, status="approved", by="U1", reason=None,
            edited_arguments=None, worker_id=world.worker_id, act="approve", via="button", voting=True, hints=False,
            now=world.now, token="forged" if wrong == "token" else ask.token,
            digest="forged" if wrong == "digest" else ask.digest,
        )  # fmt: skip
    assert (row is None) == (wrong is not None)
    assert (await world.everything() == before) == (wrong is not None)


async def test_of_many_approvals_at_once_one_wins_without_any_lock_held_before(world: World) -> None:
    """Each tries the one statement first; who finds the rows held looks again under the lock."""
    run_id, (ask,) = await world.suspended()
    clicks = [world.desk.decide(ask.id, ask.token, ask.digest, clicker(), approve=True) for _ in range(8)]
    decided = await asyncio.gather(*clicks)
    assert sorted(str(each.refusal) for each in decided) == ["None"] + [str(Refusal.DECIDED)] * 7
    assert await world.value("select news from runs where id = $1", run_id) == 1


async def test_no_card_opens_again_over_news(world: World) -> None:
    """The directory was down; meanwhile the owner wrote: they are heard first."""
    fence, (ask,) = await world.approved()
    seen = (await world.worker.load(fence)).run.news
    thread = await world.value("select thread_ts from runs where id = $1", fence.run_id)
    assert await world.desk.attach(await world.letter("forget it", thread=thread), fence.run_id)
    before = await world.everything()
    with pytest.raises(NewsArrived):
        await world.worker.rearm(fence, Batch(), seen, ask.id, f"{fence.run_id}.new", "try again")
    assert await world.everything() == before


async def test_no_answer_over_a_decision_that_its_maker_has_not_seen(world: World) -> None:
    """News need not be mail: somebody approved, and the run would end on top of it."""
    fence, (call, _) = await world.asking("send", "send")
    ask = an_ask(fence.run_id, call)
    await world.worker.suspend(fence, Batch(), 0, [ask], stay_running=True)
    decided = await world.desk.decide(ask.id, ask.token, ask.digest, clicker(), approve=True)
    assert decided.refusal is None
    before = await world.everything()
    with pytest.raises(NewsArrived):
        await world.worker.answer(fence, Batch(messages=(said(2),)), 0, "done")
    assert await world.everything() == before


Move = Callable[[World, Fence], Awaitable[object]]
RESTING: dict[str, Move] = {
    "suspend": lambda w, f: w.worker.suspend(f, Batch(), 9, [an_ask(f.run_id, CallKey(1, 1))]),
    "rearm": lambda w, f: w.worker.rearm(f, Batch(), 9, "whatever", "new", "try again"),
    "supersede_open": lambda w, f: w.worker.supersede_open(f, Batch(), 9),
    "wait": lambda w, f: w.worker.wait(f, Batch(), 9),
    "answer": lambda w, f: w.worker.answer(f, Batch(messages=(said(2),)), 9, "done"),
}


@pytest.mark.parametrize("name", RESTING)
async def test_no_move_rests_over_a_stop(world: World, name: str) -> None:
    """Even one that has seen the news: somebody who asked to stop gets a stop, not a card or an answer."""
    fence, (call, _) = await world.asking("send", "send")
    await world.worker.suspend(fence, Batch(), 0, [an_ask(fence.run_id, call)], stay_running=True)
    stopped = await world.desk.stop(fence.run_id, clicker())
    assert stopped.how == "requested"
    before = await world.everything()
    with pytest.raises(NewsArrived):
        await RESTING[name](world, fence)
    assert await world.everything() == before


# ---- messages --------------------------------------------------------------------------------------------------------


async def test_a_slow_drain_does_not_start_a_message_again_whose_run_has_ended(world: World) -> None:
    """The lease on the letter lapsed and another drain took it; by now its run is over and the thread is free."""
    letter = await world.letter()
    fence = await world.desk.start(letter, world.new_run(letter), world.worker_id)
    assert fence is not None
    await world.worker.answer(fence, Batch(messages=(turn(1, text="Done."),)), 0, "Done.")
    before = await world.everything()
    with pytest.raises(Conflict):
        await world.desk.start(letter, world.new_run(letter), world.worker_id)
    assert await world.everything() == before


# ---- claims ----------------------------------------------------------------------------------------------------------


async def test_a_claim_passes_over_what_somebody_else_is_taking(world: World) -> None:
    """It neither waits for the row nor takes it a second time."""
    fence = await world.started()
    await world.worker.release(fence)
    async with world.pool.acquire() as holder, holder.transaction():
        await holder.execute("select from runs where id = $1 for update", fence.run_id)
        assert await claimed_without_waiting(world) == []
    assert len(await world.worker.claim(world.worker_id, 9)) == 1


async def claimed_without_waiting(world: World) -> list[str]:
    """Claim what there is; fail as soon as a session is seen to wait for a lock."""
    claiming = asyncio.ensure_future(world.worker.claim(world.worker_id, 9))
    try:
        async with asyncio.timeout(60):
            while not claiming.done():
                waiting = await world.value(
                    "select count(*) from pg_stat_activity"
                    " where datname = current_database() and wait_event_type = 'Lock'"
                    " and backend_type = 'client backend'"
                )
                assert waiting == 0, "the claim waits for somebody else's row"
                await asyncio.sleep(0.005)
        return [one.run.id for one in claiming.result()]
    finally:
        claiming.cancel()
        await asyncio.wait({claiming})


@pytest.mark.parametrize("what", ["claim", "reap"])
async def test_a_claim_waits_for_no_other_worker_and_takes_what_is_left(world: World, what: str) -> None:
    """Another worker's claim, or a reaper's batch, is not committed yet: no two of them ever wait on one row."""
    fences = [await world.started() for _ in range(2)]
    free = {fence.run_id for fence in fences}
    await world.worker.release(fences[0])
    if what == "claim":
        await world.worker.release(fences[1])
    else:
        world.pass_time(91)
        await world.pool.execute(
            "insert into workers (id, host, pid, role, lock_key, holds_lock, beat_at, died_at, held)"
            " values ($1, 'gone', 1, 'worker', 0, false, now(), now(), 1)",
            world.worker_id,
        )
    async with world.pool.acquire() as other, other.transaction():
        if what == "claim":
            rows = await sql.claim_runs.rows(
                other, worker_id=str(uuid4()), room=1, per_person=None, walked="", now=world.now
            )
            (taken,) = [json.loads(row["run"])["id"] for row in rows]
        else:
            (taken,) = [row["id"] for row in await sql.reap_runs.rows(other, room=20, now=world.now)]
        assert await claimed_without_waiting(world) == [*(free - {taken})]


async def test_a_claimed_run_is_not_claimed_again(world: World) -> None:
    """By nobody, its holder included."""
    fence = await world.started()
    assert await world.worker.claim(world.worker_id, 9) == []
    assert await world.worker.claims_of(world.worker_id) == [fence]


# ---- what was spent --------------------------------------------------------------------------------------------------


async def used(world: World, run_id: str) -> tuple[object, ...]:
    """Return what a run has used."""
    row = await world.pool.fetchrow(
        "select spend_usd, step, tool_calls, elapsed_ms, dearest_call_usd from runs where id = $1", run_id
    )
    assert row is not None
    return tuple(row)


@pytest.mark.parametrize("way_back", ["continue", "reap", "release", "decide", "supersede"])
async def test_every_way_back_keeps_what_was_used(world: World, way_back: str) -> None:
    """No resumption is a fresh budget."""
    fence = await world.started()
    run_id = fence.run_id
    spent = Batch(
        messages=(turn(1, "send"),), steps=3, tool_calls=2, spend_usd=Decimal("0.18"), elapsed_ms=4321,
        dearest_call_usd=Decimal("0.07"),
    )  # fmt: skip
    await world.worker.step(fence, spent)
    before = await used(world, run_id)
    assert before == (Decimal("0.18"), 3, 2, 4321, Decimal("0.07"))
    if way_back == "continue":
        await world.worker.halt(fence, Batch(), HaltReason.BUDGET_SPEND, Closing())
        halted = await world.desk.run(run_id)
        assert halted is not None
        continued = await world.desk.continue_(run_id, 1, clicker(), halted.limits, None, world.worker_id)
        assert continued.claimed is not None
    elif way_back == "reap":
        assert await world.upkeep.reap(lease_s=90, quick=False) == [run_id]
        assert len(await world.worker.claim(world.worker_id, 1)) == 1
    elif way_back == "release":
        await world.worker.release(fence)
        assert len(await world.worker.claim(world.worker_id, 1)) == 1
    else:
        ask = an_ask(run_id, CallKey(1, 0))
        await world.worker.suspend(fence, Batch(), 0, [ask])
        if way_back == "decide":
            decided = await world.desk.decide(
                ask.id, ask.token, ask.digest, clicker(), approve=True, worker_id=world.worker_id
            )
            assert decided.claimed is not None
        else:
            thread = await world.value("select thread_ts from runs where id = $1", run_id)
            letter = await world.letter("make it 300", thread=thread)
            assert await world.desk.supersede(letter, run_id, world.worker_id) is not None
            found = await world.desk.suspension(ask.id)
            assert found is not None
            assert found[0].status is SuspensionStatus.SUPERSEDED
    assert await used(world, run_id) == before
