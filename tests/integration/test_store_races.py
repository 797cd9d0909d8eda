"""Races, proved: the moves wait for one row lock, seen in pg_stat_activity, and go on together. No sleeps, no luck.

Each is tried in both orders; the lock's queue is first come, first served, so the order is the one stated. Where what
matters is a commit that is under way, the first move is stopped in it: everything is written, nothing is visible yet.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import asyncpg
import pytest

from core.approvals import Refusal
from core.errors import ClaimLost, Conflict, NewsArrived
from core.ports import Batch, Closing, Decided, Fence, OutboxRow
from core.run import HaltReason
from core.tools import Approval, Limits
from tests.integration.storeworld import DEADLINE_S, World, _awaited, an_action, an_ask, clicker, result, world_on

BOTH_ORDERS = pytest.mark.parametrize("reverse", [False, True], ids=["in order", "reversed"])


@pytest.fixture
def world(pool: "asyncpg.Pool[asyncpg.Record]") -> World:
    return world_on(pool)


def _approve(world: World, ask: Any, user: str = "U1", **more: Any) -> Callable[[], Awaitable[Decided]]:
    return lambda: world.desk.decide(ask.id, ask.token, ask.digest, clicker(user), approve=True, **more)


def _decline(world: World, ask: Any) -> Callable[[], Awaitable[Decided]]:
    return lambda: world.desk.decide(ask.id, ask.token, ask.digest, clicker("U2"), approve=False)


@asynccontextmanager
async def _commits_held(world: World, table: str = "suspensions") -> AsyncIterator[None]:
    """Stop whoever has written to *table* in the middle of its commit, for as long as the block lasts."""
    await world.pool.execute(
        "create function held() returns trigger language plpgsql as"
        " $$ begin perform pg_advisory_xact_lock_shared(4711); return null; end $$;"
        f" create constraint trigger held after insert or update on {table} deferrable initially deferred"
        " for each row execute function held()"
    )
    async with asyncio.timeout(DEADLINE_S), world.pool.acquire() as holder, holder.transaction():
        await holder.execute("select pg_advisory_xact_lock(4711)")
        yield


async def _in_commit(world: World, *moves: Callable[[], Awaitable[Any]], table: str = "suspensions") -> list[Any]:
    """Begin *moves*, in this order: the first stops in its commit, the others wait for it. Let go; return what each
    returned, or the error that it raised."""
    tasks: list[asyncio.Future[Any]] = []
    async with _commits_held(world, table):
        for number, move in enumerate(moves, start=1):
            tasks.append(asyncio.ensure_future(_awaited(move)))
            await world._until_waiting(number)
    return await asyncio.gather(*tasks, return_exceptions=True)


async def test_of_many_racing_decisions_exactly_one_wins(world: World) -> None:
    run_id, (ask,) = await world.suspended()
    moves = [
        _approve(world, ask, worker_id=world.worker_id),
        _decline(world, ask),
        _approve(world, ask),
        _decline(world, ask),
    ]
    first, *others = await world.behind_lock(run_id, *moves)
    assert first.refusal is None
    assert first.claimed is not None
    assert [other.refusal for other in others] == [Refusal.DECIDED] * 3
    assert await world.value("select news from runs where id = $1", run_id) == 1
    assert await world.value("select count(*) from audit where allowed") == 1
    assert await world.value("select count(*) from audit where not allowed") == 3


async def test_two_racing_votes_of_two_make_one_approval(world: World) -> None:
    run_id, (ask,) = await world.suspended(policy=Approval(by="anyone", count=2))
    first, second = await world.behind_lock(run_id, _approve(world, ask, "U1"), _approve(world, ask, "U2"))
    assert (first.refusal, first.pending_votes) == (None, 1)
    assert (second.refusal, second.pending_votes) == (None, 0)
    assert await world.state(run_id) == "running"


async def test_one_person_racing_with_themselves_votes_once(world: World) -> None:
    run_id, (ask,) = await world.suspended(policy=Approval(by="anyone", count=2))
    first, second = await world.behind_lock(run_id, _approve(world, ask), _approve(world, ask))
    assert (first.refusal, second.refusal) == (None, Refusal.DECIDED)
    assert await world.state(run_id) == "suspended"


async def test_a_click_and_the_expiry_never_both_win(world: World) -> None:
    """The click came a moment before the expiry, the job a moment after; the row lock decides which one counts."""
    run_id, (ask,) = await world.suspended()
    opened = world.now

    async def click() -> Decided:
        world.now = opened
        world.pass_time(1799)
        return await _approve(world, ask)()

    async def expire() -> int:
        world.pass_time(2)
        return await world.upkeep.expire_due()

    async with world.pool.acquire() as holder, holder.transaction():
        await holder.execute("select from runs where id = $1 for update", run_id)
        clicking = asyncio.ensure_future(click())
        await world._until_waiting(1)
        assert await expire() == 0  # a sweep never queues behind a lock
    assert (await clicking).refusal is None
    assert await world.upkeep.expire_due() == 0
    assert await world.state(run_id) == "running"


async def test_an_expiry_that_came_first_refuses_the_click(world: World) -> None:
    run_id, (ask,) = await world.suspended()
    world.pass_time(1801)
    first, second = await world.behind_lock(run_id, _approve(world, ask), _approve(world, ask, "U2"))
    assert (first.refusal, second.refusal) == (Refusal.EXPIRED, Refusal.EXPIRED)
    assert (await world.places())[f"notice:{ask.id}:expired"] == 1
    assert await world.value("select halts from runs where id = $1", run_id) == 1


@BOTH_ORDERS
async def test_a_click_and_an_expiry_that_is_being_committed(world: World, reverse: bool) -> None:
    """Both were in time by the clock they read; whoever writes first counts, and the other is told so."""
    run_id, (ask,) = await world.suspended()
    opened = world.now

    async def click() -> Decided:
        world.now = opened
        world.pass_time(1799)
        return await _approve(world, ask)()

    async def expire() -> Decided:
        world.now = opened
        world.pass_time(1801)
        return await _approve(world, ask, "U2")()

    async def sweep() -> int:
        world.now = opened
        world.pass_time(1801)
        return await world.upkeep.expire_due()

    if reverse:
        swept, clicked = await _in_commit(world, sweep, click)
        assert (swept, clicked.refusal) == (1, Refusal.EXPIRED)
        assert (clicked.run.state, await world.state(run_id)) == ("halted", "halted")
        assert (await world.places())[f"notice:{ask.id}:expired"] == 1
        return
    clicked, late = await _in_commit(world, click, expire)
    assert (clicked.refusal, late.refusal) == (None, Refusal.DECIDED)
    assert await world.upkeep.expire_due() == 0
    assert await world.state(run_id) == "running"
    assert f"notice:{ask.id}:expired" not in await world.places()


async def test_a_click_before_the_suspension_is_committed_finds_nothing_and_the_next_one_counts(world: World) -> None:
    """The suspension, its card and the end of the claim are written and not committed: no deliverer sees the card, and
    whoever knew its token all the same is told that there is no such request, and waits for nothing."""
    fence, (key,) = await world.asking()
    ask = an_ask(fence.run_id, key)
    async with _commits_held(world):
        suspending = asyncio.ensure_future(world.worker.suspend(fence, Batch(), 0, [ask]))
        await world._until_waiting(1)
        assert [row.kind for row in await world.outbox.take(9, 30.0) if row.kind == "card"] == []
        assert (await _approve(world, ask)()).refusal is Refusal.UNKNOWN
        assert not suspending.done()
    await suspending
    assert [row.ref for row in await world.outbox.take(9, 30.0) if row.kind == "card"] == [ask.id]
    decided = await _approve(world, ask, worker_id=world.worker_id)()
    assert decided.claimed is not None
    assert await world.state(fence.run_id) == "running"


@BOTH_ORDERS
async def test_a_click_while_its_run_commits_another_suspension_is_heard(world: World, reverse: bool) -> None:
    """One card of the turn stands already; its click meets the commit that posts the second and ends the claim."""
    fence, (first, second) = await world.asking("send", "send")
    asks = [an_ask(fence.run_id, key) for key in (first, second)]
    await world.worker.suspend(fence, Batch(), 0, asks[:1], stay_running=True)
    moves: list[Callable[[], Awaitable[Any]]] = [
        lambda: world.worker.suspend(fence, Batch(), 0, asks[1:]),
        _approve(world, asks[0], worker_id=world.worker_id),
    ]
    outcomes = await _in_commit(world, *(reversed(moves) if reverse else moves))
    suspended, clicked = reversed(outcomes) if reverse else outcomes
    assert clicked.refusal is None
    assert await world.state(fence.run_id) == "running"
    if reverse:
        assert isinstance(suspended, NewsArrived)
        assert clicked.claimed is None
        view = await world.worker.load(fence)
        assert [(s.id, s.status) for s in view.suspensions] == [(asks[0].id, "approved")]
    else:
        assert suspended is None
        view = await world.worker.load(clicked.claimed)
        assert {s.id: s.status for s in view.suspensions} == {asks[0].id: "approved", asks[1].id: "open"}
        with pytest.raises(ClaimLost):
            await world.worker.load(fence)


async def test_a_click_on_a_card_that_is_being_replaced_is_sent_to_the_new_one(world: World) -> None:
    """The world changed; the commit that replaces the card by one with the difference meets a second click on it."""
    fence, (old,) = await world.approved()
    news = await world.value("select news from runs")
    new = an_ask(fence.run_id, old.call, replaces=old.id)
    replaced, clicked = await _in_commit(
        world, lambda: world.worker.suspend(fence, Batch(), news, [new]), _approve(world, old, "U2")
    )
    assert (replaced, clicked.refusal) == (None, Refusal.REPLACED)
    assert await world.state(fence.run_id) == "suspended"
    assert (await _approve(world, new)()).refusal is None


async def test_a_click_on_a_card_that_is_being_opened_again_has_to_be_made_again(world: World) -> None:
    """Something could not be checked: the commit that opens the same card again meets a click with its old token."""
    fence, (ask,) = await world.approved()
    news = await world.value("select news from runs")
    rearmed, clicked = await _in_commit(
        world,
        lambda: world.worker.rearm(fence, Batch(), news, ask.id, f"{fence.run_id}.again", "could not check"),
        _approve(world, ask, "U2"),
    )
    assert (rearmed, clicked.refusal) == (True, Refusal.PRESS_AGAIN)
    assert await world.state(fence.run_id) == "suspended"
    assert (await _approve(world, replace(ask, token=f"{fence.run_id}.again"))()).refusal is None


# What closes a card beside a click: the state of the suspension and of the run when it came first.
CLOSED = {"supersede": ("superseded", "running"), "stop": ("stopped", "halted"), "edit": ("edited", "running")}


@BOTH_ORDERS
@pytest.mark.parametrize("move", CLOSED)
async def test_a_click_and_what_closes_its_card_never_both_win(world: World, move: str, reverse: bool) -> None:
    """A new instruction, a stop or an edit in the same moment as an approval: whoever comes second is told so."""
    run_id, (ask,) = await world.suspended()
    letter = await world.letter("no, 300 instead")
    closing: dict[str, Callable[[], Awaitable[Any]]] = {
        "supersede": lambda: world.desk.supersede(letter, run_id, world.worker_id),
        "stop": lambda: world.desk.stop(run_id, clicker()),
        "edit": lambda: world.desk.edit(ask.id, ask.token, clicker("U2"), {"n": 7}, world.worker_id),
    }
    moves = [_approve(world, ask), closing[move]]
    outcomes = await world.behind_lock(run_id, *(reversed(moves) if reverse else moves))
    clicked, closed = reversed(outcomes) if reverse else outcomes
    stands = await world.value("select status from suspensions where id = $1", ask.id)
    if reverse:
        assert (stands, await world.state(run_id)) == CLOSED[move]
        assert clicked.refusal is Refusal.DECIDED
        assert clicked.claimed is None
        assert await world.value("select count(*) from audit where act = 'approve' and allowed") == 0
        return
    assert (stands, clicked.refusal) == ("approved", None)
    if move == "stop":
        # Nothing has begun yet, so that the run halts, approved as it is.
        assert (closed.how, await world.state(run_id)) == ("halted", "halted")
        assert await world.worker.claim(world.worker_id, 9) == []
    elif move == "edit":
        assert closed.refusal is Refusal.DECIDED
        assert await world.value("select edited_by from suspensions where id = $1", ask.id) is None
    else:
        assert isinstance(closed, Conflict)
        assert await world.value("select run_id from inbox where id = $1", letter.id) is None, "it is read again"


@BOTH_ORDERS
async def test_a_decision_is_never_lost_between_looking_and_waiting(world: World, reverse: bool) -> None:
    """A sibling is executing; its worker says "I wait" just as somebody decides the other call."""
    fence, (first, second) = await world.asking("send", "send")
    ask = an_ask(fence.run_id, second)
    await world.worker.suspend(fence, Batch(), 0, [ask], stay_running=True)
    moves = [
        lambda: world.worker.wait(fence, Batch(messages=(result(2, first),)), 0),
        _approve(world, ask, worker_id=world.worker_id),
    ]
    outcomes = await world.behind_lock(fence.run_id, *(reversed(moves) if reverse else moves))
    if reverse:
        decided, waited = outcomes
        assert decided.refusal is None
        assert isinstance(waited, NewsArrived)
        assert (await world.worker.load(fence)).run.claim_token == fence.claim_token
        assert len((await world.worker.load(fence)).messages) == 2
    else:
        waited, decided = outcomes
        assert waited is None
        assert decided.claimed is not None
        assert decided.claimed.claim_token != fence.claim_token
    assert await world.state(fence.run_id) == "running"


@BOTH_ORDERS
async def test_a_message_is_never_lost_between_looking_and_answering(world: World, reverse: bool) -> None:
    fence = await world.started(thread="t")
    letter = await world.letter("and tax", thread="t")
    moves: list[Callable[[], Awaitable[Any]]] = [
        lambda: world.worker.answer(fence, Batch(), 0, "done"),
        lambda: world.desk.attach(letter, fence.run_id),
    ]
    outcomes = await world.behind_lock(fence.run_id, *(reversed(moves) if reverse else moves))
    if reverse:
        attached, answered = outcomes
        assert attached is True
        assert isinstance(answered, NewsArrived)
        assert [mail.text for mail in (await world.worker.load(fence)).mail] == ["and tax"]
    else:
        answered, attached = outcomes
        assert (answered, attached) == (None, False)
        world.pass_time(31)
        assert [taken.id for taken in await world.desk.take_mail(9, 30)] == [letter.id]


@BOTH_ORDERS
async def test_a_stop_and_an_intention_are_one_or_the_other(world: World, reverse: bool) -> None:
    fence, (call,) = await world.asking()
    moves: list[Callable[[], Awaitable[Any]]] = [
        lambda: world.worker.intend(fence, Batch(), an_action(fence.run_id, call)),
        lambda: world.desk.stop(fence.run_id, clicker()),
    ]
    outcomes = await world.behind_lock(fence.run_id, *(reversed(moves) if reverse else moves))
    intended = await world.value("select count(*) from actions where state = 'intended'")
    if reverse:
        assert isinstance(outcomes[1], NewsArrived)
        assert intended == 0
    else:
        assert outcomes[0] is None
        assert intended == 1
    assert await world.value("select stop_requested from runs") == "U1"


async def test_two_claims_of_one_run(world: World) -> None:
    fence = await world.started()
    await world.worker.release(fence)

    def claim() -> Awaitable[Any]:
        return world.worker.claim_one(world.worker_id, fence.run_id)

    first, second = await world.behind_lock(fence.run_id, claim, claim)
    assert first is not None
    assert second is None
    async with world.pool.acquire() as holder, holder.transaction():
        await world.worker.release(first.fence)
        await holder.execute("select from runs where id = $1 for update", fence.run_id)
        assert await world.worker.claim(world.worker_id, 9) == []  # skips what somebody else holds
    assert len(await world.worker.claim(world.worker_id, 9)) == 1


@BOTH_ORDERS
async def test_a_reaped_worker_loses_to_its_reaper_or_was_in_time(world: World, reverse: bool) -> None:
    """A worker that is only cut off commits a step just as its run is taken away."""
    fence = await world.started()

    async def take_away() -> int:
        return int((await world.pool.execute(
            "update runs set claim_token = null, claimed_by = null where id = $1 and claim_token = $2",
            fence.run_id, fence.claim_token)).split()[1])  # fmt: skip

    moves: list[Callable[[], Awaitable[Any]]] = [lambda: world.worker.step(fence, Batch(steps=1)), take_away]
    outcomes = await world.behind_lock(fence.run_id, *(reversed(moves) if reverse else moves))
    steps = await world.value("select step from runs")
    if reverse:
        assert isinstance(outcomes[1], ClaimLost)
        assert steps == 0
    else:
        assert outcomes == [0, 1]
        assert steps == 1


async def test_two_reapers_take_each_orphan_once(world: World) -> None:
    fences = [await world.started() for _ in range(30)]
    world.pass_time(100)
    rounds = await asyncio.gather(*(world.upkeep.reap(lease_s=90, quick=False) for _ in range(4)))
    rest = await world.upkeep.reap(lease_s=90, quick=False)
    reaped = [run_id for batch in rounds for run_id in batch] + rest
    assert sorted(reaped) == sorted(fence.run_id for fence in fences)
    assert await world.value("select count(*) from trace where kind = 'reaped'") == 30
    assert await world.value("select max(crashes) from runs") == 1


@BOTH_ORDERS
async def test_a_continue_and_a_follow_up_never_both_happen(world: World, reverse: bool) -> None:
    parent = await world.halted(thread="t")
    letter = await world.letter("go on differently", thread="t")
    moves: list[Callable[[], Awaitable[Any]]] = [
        lambda: world.desk.continue_(parent, 1, clicker(), Limits(), None, world.worker_id),
        lambda: world.desk.start(letter, world.new_run(letter, parent_id=parent), world.worker_id),
    ]
    outcomes = await world.behind_lock(parent, *(reversed(moves) if reverse else moves))
    if reverse:
        assert isinstance(outcomes[0], Fence)
        assert outcomes[1].run is None
    else:
        assert outcomes[0].run is not None
        assert isinstance(outcomes[1], Conflict)
    assert await world.value("select count(*) from runs where state = 'running'") == 1
    assert await world.value("select count(*) from live_threads") == 1


async def test_two_continues_of_one_halt_grant_once(world: World) -> None:
    run_id = await world.halted()

    def go_on() -> Awaitable[Any]:
        return world.desk.continue_(run_id, 1, clicker(), Limits(), None, world.worker_id)

    first, second = await world.behind_lock(run_id, go_on, go_on)
    assert first.run is not None
    assert second.run is None
    assert await world.value("select continuations from runs") == 1


@BOTH_ORDERS
async def test_an_old_continue_and_the_new_one_grant_once(world: World, reverse: bool) -> None:
    """The card of the first halt, pressed in a stale window in the same moment as that of the second one."""
    run_id = await world.halted()
    first = await world.desk.continue_(run_id, 1, clicker(), Limits(), None, world.worker_id)
    assert first.claimed is not None
    await world.worker.halt(first.claimed, Batch(), HaltReason.BUDGET_STEPS, Closing())
    granted = Limits(max_steps=20)
    moves = [
        lambda: world.desk.continue_(run_id, 1, clicker(), Limits(max_steps=99), None, world.worker_id),
        lambda: world.desk.continue_(run_id, 2, clicker(), granted, None, world.worker_id),
    ]
    outcomes = await world.behind_lock(run_id, *(reversed(moves) if reverse else moves))
    old, new = reversed(outcomes) if reverse else outcomes
    assert old.run is None
    assert new.claimed is not None
    run = await world.pool.fetchrow("select continuations, max_steps, state, claim_token::text as token from runs")
    assert run is not None
    assert tuple(run) == (2, 20, "running", new.claimed.claim_token)


@BOTH_ORDERS
async def test_of_two_deliverers_of_one_card_the_late_one_does_not_count(world: World, reverse: bool) -> None:
    """One reports version 3 just as its lease has ended and another takes the row to deliver version 4. Either it was
    in time, and version 4 is owed still; or it learns that what it sent may stand over the newer one."""
    _, (ask,) = await world.suspended()
    place = f"card:{ask.id}"

    async def take() -> list[OutboxRow]:
        return [row for row in await world.outbox.take(9, 30.0) if row.place == place]

    await world.pool.execute("update outbox set version = 3 where place = $1", place)
    await world.pool.execute("update outbox set next_attempt_at = 'infinity' where place <> $1", place)
    (late,) = await take()
    await world.pool.execute("update outbox set version = 4 where place = $1", place)
    world.pass_time(31)
    if reverse:
        async with _commits_held(world, "outbox"):
            reporting = asyncio.ensure_future(world.outbox.delivered(late, 3, "C1", "1.1"))
            await world._until_waiting(1)
            assert await take() == []
        assert await reporting
        (newer,) = await take()
    else:
        taken, reported = await _in_commit(
            world, take, lambda: world.outbox.delivered(late, 3, "C1", "1.1"), table="outbox"
        )
        assert not reported
        (newer,) = taken
    assert (newer.version, newer.delivered_version) == (4, 3 if reverse else 0)
    assert await world.outbox.delivered(newer, 4, "C1", "1.1")
    assert not await world.outbox.delivered(late, 3, "C1", "1.1")
    assert await world.value("select delivered_version from outbox where place = $1", place) == 4


@pytest.mark.parametrize("off", ["", "seqscan", "nestloop", "seqscan hashjoin"])
@BOTH_ORDERS
async def test_a_replaced_card_delivered_together_with_the_newer_one_is_owed_its_link(
    world: World, reverse: bool, off: str
) -> None:
    """By whatever plan the other card was found: one that waits for its row may not lose it."""
    name = await world.value("select current_database()")
    for way in off.split():
        await world.pool.execute(f'alter database "{name}" set enable_{way} = off')
    await world.pool.expire_connections()
    fence, (old,) = await world.approved("send")
    new = an_ask(fence.run_id, old.call, replaces=old.id)
    await world.worker.suspend(fence, Batch(), await world.value("select news from runs"), [new])
    rows = {row.ref: row for row in await world.outbox.take(50, 30) if row.kind == "card"}

    def delivers(ref: str) -> Callable[[], Awaitable[bool]]:
        return lambda: world.outbox.delivered(rows[ref], rows[ref].version, "C1", "1.1" if ref == old.id else "2.2")

    moves = [delivers(old.id), delivers(new.id)]
    assert await _in_commit(world, *(moves[::-1] if reverse else moves), table="outbox") == [True, True]
    assert [row.ref for row in await world.outbox.take(50, 30) if row.kind == "card"] == [old.id]


async def test_two_drains_supersede_one_run_once(world: World) -> None:
    run_id, _ = await world.suspended()
    one, two = await world.letter("no"), await world.letter("yes but")
    first, second = await world.behind_lock(
        run_id,
        lambda: world.desk.supersede(one, run_id, world.worker_id),
        lambda: world.desk.supersede(two, run_id, world.worker_id),
    )
    assert isinstance(first, Fence)
    assert isinstance(second, Conflict)
    assert await world.value("select run_id from inbox where id = $1", two.id) is None


async def test_starts_of_one_owner_in_one_thread_leave_one_run(world: World) -> None:
    first = await world.letter(thread="t")
    await world.pool.execute("update inbox set leased_until = null")
    second = first
    outcomes = await asyncio.gather(
        world.desk.start(first, world.new_run(first), world.worker_id),
        world.desk.start(second, world.new_run(second), world.worker_id),
        return_exceptions=True,
    )
    assert sorted(type(outcome).__name__ for outcome in outcomes) == ["Conflict", "Fence"]
    assert await world.value("select count(*) from runs") == 1
