"""A shutdown at every await point, commits whose answer is lost, claims that are lost, news at every move.

After each, a second process works on the same rows to the end: the effect took place once, each call has one result,
nothing that was spent is forgotten, and no row says what is not so.
"""

import asyncio
import gc
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest

from core import Approval, DidNotHappen, Happened
from core import calls as calls_module
from core import holder as holder_module
from core import landing as landing_module
from core.conversation import Message
from core.errors import ClaimLost, NewsArrived, StoreUnavailable
from core.holder import Holder
from core.landing import Landing
from core.ports import Batch, Fence
from core.run import ActionState, RunState, RunView, SuspensionStatus
from core.worker import Worker
from tests.unit.coreworld import (
    FENCE,
    PATIENCE_S,
    Deed,
    MemoryStore,
    World,
    a_suspension,
    asked,
    assert_valid,
    call,
    says,
    turn,
    world,
)

ASK = Approval(by="requester")
PLAN = (says("", call("look"), call()), says("", call("look", id="call_2")), says("Done."))
MOVES = ("load", "step", "intend", "conclude", "suspend", "answer", "release")


class Target:
    """The outside world: it knows which keys had their effect, so it can be asked. *slow*: waits before and after."""

    def __init__(self, pause: Callable[[str], Any]) -> None:
        self.done: Counter[str] = Counter()
        self.pause = pause

    async def execute(self, ctx: Any) -> Any:
        """Have the effect once per key, as a target that honours keys does not need to: twice would show."""
        await self.pause("before the effect")
        self.done[ctx.idempotency_key] += 1
        await self.pause("after the effect")
        return {"number": "Q-1"}

    async def reconcile(self, ctx: Any) -> Any:
        """Tell whether it happened."""
        await self.pause("reconcile")
        return Happened(result={"number": "Q-1"}) if self.done[ctx.idempotency_key] else DidNotHappen()


class Points:
    """Every place where something waits, in order; at the *at*-th, *act* is done instead of going on."""

    def __init__(self, at: int, act: Callable[[str], Any]) -> None:
        self.at = at
        self.act = act
        self.passed: list[str] = []

    async def __call__(self, place: str) -> None:
        """Pass a point."""
        self.passed.append(place)
        await asyncio.sleep(0)
        if len(self.passed) - 1 == self.at:
            await self.act(place)


def scene(points: Points, *, approve: bool) -> tuple[World, Target]:
    target = Target(points)

    async def think(line: Any) -> Any:
        await points("model")
        return line

    lines = [(lambda ctx, line=line: think(line)) for line in PLAN]
    deed = Deed(execute=target.execute, reconcile=target.reconcile, policy=ASK if approve else None)
    made = world(*lines, deed=deed)

    async def before(name: str) -> None:
        await points(f"before {name}")

    async def after(name: str) -> None:
        await points(f"after {name}")

    made.store.before, made.store.after = before, after
    return made, target


async def to_the_end(made: World) -> None:
    """Let a next process, and the approver, take the run to its end, without any more trouble."""
    made.store.before = made.store.after = None
    for _ in range(20):
        view = made.store.view
        if view.run.state in (RunState.ANSWERED, RunState.FAILED, RunState.HALTED):
            return
        if view.run.state is RunState.SUSPENDED:
            made.store.decide()
        made.store.change(claim_token=FENCE.claim_token)
        # The clock of the store has gone on: no request can be on its way any more.
        made.store.view = replace(
            made.store.view, actions=tuple(replace(a, intended_age_s=1000.0) for a in made.store.view.actions)
        )
        await made.go()
    pytest.fail("the run does not end")


def check(made: World, target: Target) -> None:
    """Check what must hold at the end whatever happened on the way."""
    view = made.store.view
    assert view.run.state is RunState.ANSWERED, (made.store.closing, made.store.moves)
    assert sum(target.done.values()) == 1
    assert [a.state for a in view.actions] == [ActionState.SUCCEEDED]
    assert_valid([m.message for m in view.messages])
    answered = [m.answers for m in view.messages if m.answers is not None]
    assert len(answered) == len(set(answered)) == 3
    assert view.run.step == 3
    assert view.run.tool_calls == 3
    assert not any(s.status is SuspensionStatus.OPEN for s in view.suspensions)


async def count_points(*, approve: bool) -> list[str]:
    async def nothing(place: str) -> None:
        return

    points = Points(-1, nothing)
    made, target = scene(points, approve=approve)
    await made.go()
    if approve:
        made.store.decide()
        await made.go()
    check(made, target)
    return points.passed


@pytest.mark.parametrize("approve", [False, True])
async def test_a_shutdown_at_any_point_gives_the_claim_back_and_forgets_nothing(approve: bool) -> None:
    """Cancelled wherever anything waits: the claim is free at once, and another process ends the run rightly."""
    places = await count_points(approve=approve)
    assert len(places) > 15
    for at, place in enumerate(places):
        reached, cut = asyncio.Event(), asyncio.Event()

        async def hold(_: str, reached: asyncio.Event = reached, cut: asyncio.Event = cut) -> None:
            reached.set()
            await cut.wait()  # a commit under way ends by itself; anything else is cut short here

        made, target = scene(Points(at, hold), approve=approve)

        async def life(made: World = made) -> None:
            await made.go()
            if made.run.state is RunState.SUSPENDED:
                made.store.decide()
                await made.go()

        task = asyncio.create_task(life())
        await asyncio.wait_for(reached.wait(), PATIENCE_S)
        task.cancel()
        cut.set()
        (ended,) = (await asyncio.wait({task}, timeout=PATIENCE_S))[0]
        if not ended.cancelled():
            ended.result()
        where = f"{at}: {place}"
        assert made.run.claim_token is None, where
        spent = made.run.spend_usd
        if place == "model":
            assert spent > 0, where  # what may have been billed is charged
        asked_again = place == "model"
        await to_the_end_with(made, asked_again=asked_again)
        check(made, target)
        assert made.run.spend_usd >= Decimal("0.03"), where
        assert made.run.spend_usd <= Decimal("0.04"), where


async def to_the_end_with(made: World, *, asked_again: bool) -> None:
    """Give the model its lost line back, then go on."""
    if asked_again:
        made.model.lines.insert(0, PLAN[len(PLAN) - len(made.model.lines) - 1])
    await to_the_end(made)


@pytest.mark.parametrize("approve", [False, True])
async def test_no_write_that_never_began_is_left_in_doubt_by_a_shutdown(approve: bool) -> None:
    """Cut short while the intention was being committed: taken back as failed, so nobody has to find out."""
    reached, cut = asyncio.Event(), asyncio.Event()

    async def hold(place: str) -> None:
        reached.set()
        await cut.wait()

    places = await count_points(approve=approve)
    made, target = scene(Points(places.index("after intend"), hold), approve=approve)

    async def life() -> None:
        await made.go()
        made.store.decide()
        await made.go()

    task = asyncio.create_task(life())
    await asyncio.wait_for(reached.wait(), PATIENCE_S)
    task.cancel()
    cut.set()
    await asyncio.wait({task}, timeout=PATIENCE_S)
    assert [a.state for a in made.store.view.actions] == [ActionState.FAILED]
    assert sum(target.done.values()) == 0


@pytest.mark.parametrize("approve", [False, True])
@pytest.mark.parametrize("landed", [True, False])
async def test_a_commit_whose_answer_is_lost_is_neither_repeated_nor_forgotten(landed: bool, approve: bool) -> None:
    """The connection drops before or after each commit and each read: the run ends as if it had not."""
    places = await count_points(approve=approve)
    for at, place in enumerate(places):
        if place.partition(" ")[0] != ("after" if landed else "before") or place.endswith("claim"):
            continue
        if place.endswith("the effect"):
            continue

        async def drop(_: str) -> None:
            raise StoreUnavailable("connection lost")

        made, target = scene(Points(at, drop), approve=approve)
        await made.go()
        if approve:
            made.store.decide()
            await made.go()
        check(made, target)
        assert made.run.spend_usd == Decimal("0.03"), place
        assert made.store.trace.count("model") == 3, place


async def test_a_lost_claim_stops_everything_at_the_next_write() -> None:
    """Whoever lost the claim writes nothing more and starts no effect, wherever it learns of it."""
    places = await count_points(approve=False)
    for at, place in enumerate(places):
        if place.startswith("before ") and not place.endswith(("the effect", "release")):
            await reaped_at(at, place)


async def reaped_at(at: int, place: str) -> None:
    async def reap(_: str) -> None:
        made.store.change(claim_token="another")
        made.store.moves.clear()
        effects.append(sum(target.done.values()))

    effects: list[int] = []
    made, target = scene(Points(at, reap), approve=False)
    await made.go()
    assert made.store.moves == [], place
    assert (made.run.state, made.run.claim_token) == (RunState.RUNNING, "another"), place
    assert effects == [sum(target.done.values())], place


async def test_news_at_any_final_move_is_looked_at_before_the_run_rests() -> None:
    """A message that arrives just before the run would answer or suspend is answered or replaces what was asked."""
    for move in ("answer", "suspend"):
        fired: list[str] = []
        made = world(says("", call()) if move == "suspend" else says("First."), says("Second."), deed=Deed(policy=ASK))

        async def news(name: str, move: str = move, fired: list[str] = fired, made: World = made) -> None:
            if name == move and not fired:
                fired.append(name)
                made.store.write_mail("use 300 instead")

        made.store.before = news
        await made.go()
        assert fired == [move]
        assert (made.run.state, made.store.view.mail, made.store.view.suspensions) == (RunState.ANSWERED, (), ())
        assert "suspended" not in made.store.trace  # what did not take place is not in the timeline
        assert made.model.heard[-1][-1].text == "use 300 instead"


async def test_a_stop_that_comes_before_the_intention_prevents_the_effect() -> None:
    """The stop wins over an approved write that was about to be intended; its card is settled."""
    made = world(messages=[asked(), turn(call())], suspensions=[a_suspension()], deed=Deed(policy=ASK))

    async def stop(name: str) -> None:
        if name == "intend":
            made.store.change(stop_requested="U1", news=made.run.news + 1)

    made.store.before = stop
    await made.go()
    assert (made.run.state, made.deed.effects, made.store.view.actions) == (RunState.HALTED, 0, ())
    assert [s.kind for s in made.store.settled] == ["not_executed"]


async def test_an_intention_that_took_too_long_is_made_anew_or_taken_back() -> None:
    """The effect starts within 2 s of its commit, else it is intended anew; a stop meanwhile leaves no doubt behind."""
    for stopped in (False, True):
        made = world(says("", call()), says("Done."))
        slow = [True]

        async def crawl(name: str, made: World = made, slow: list[bool] = slow, stopped: bool = stopped) -> None:
            if name == "intend" and slow:
                slow.clear()
                made.clock.now += 5
                if stopped:
                    made.store.change(stop_requested="U1", news=made.run.news + 1)

        made.store.after = crawl
        await made.go()
        assert made.store.moves.count("intend") == (1 if stopped else 2)
        assert made.deed.effects == (0 if stopped else 1)
        (action,) = made.store.view.actions
        assert action.state is (ActionState.FAILED if stopped else ActionState.SUCCEEDED)


async def test_a_host_that_slept_after_an_intention_makes_it_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its monotonic clock stood still, while others may have found out meanwhile that it did not happen."""
    made, slept = world(says("", call()), says("Done.")), [0.0]
    monkeypatch.setattr(calls_module, "asleep_s", lambda: slept[0])

    async def sleep(name: str) -> None:
        if name == "intend" and not slept[0]:
            slept[0] = 600.0

    made.store.after = sleep
    await made.go()
    assert (made.store.moves.count("intend"), made.deed.effects) == (2, 1)


async def test_draining_starts_nothing_new_and_keeps_what_is_done() -> None:
    """A drain during the first write of three: it is recorded, the other two are left to the next process."""
    loops: list[Any] = []

    def execute(ctx: Any) -> Any:
        loops[0].drain()
        return {"ok": True}

    made = world(says("", *[call(id=str(n)) for n in range(3)]), says("Done."), deed=Deed(execute=execute))
    loops.append(made.loop())
    await asyncio.wait_for(loops[0].run(), PATIENCE_S)
    assert (made.deed.effects, len(made.results()), made.run.claim_token) == (1, 1, None)


# ---- a store of which nothing is heard -------------------------------------------------------------------------------


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give up on a commit, and on the second try of it, at once."""
    monkeypatch.setattr(landing_module, "CUT_AFTER_S", 0.02)
    monkeypatch.setattr(holder_module, "COMMIT_GRACE_S", 0.02)
    monkeypatch.setattr(holder_module, "AGAIN_WITHIN_S", 0.1)


async def left_by_a_shutdown(made: World, move: str, *, tries: int, landed: bool, skip: int = 0) -> None:
    """Work until *move*'s first *tries* say nothing (having taken place, if *landed*), and shut down during the first.

    *skip*: so many of them go well before that.
    """
    silent, seen = asyncio.Event(), 0

    async def hush(name: str) -> None:
        nonlocal seen
        if name == move:
            seen += 1
            if skip < seen <= skip + tries:
                silent.set()
                await asyncio.Event().wait()

    setattr(made.store, "after" if landed else "before", hush)
    task = asyncio.create_task(made.go())
    await asyncio.wait_for(silent.wait(), PATIENCE_S)
    task.cancel()
    await asyncio.wait_for(asyncio.wait({task}), PATIENCE_S)
    assert task.cancelled()


COMMITS = ("step", "intend", "conclude", "suspend", "answer")


def until(move: str) -> World:
    """Return a run that comes to *move*."""
    lines = [says("Done.")] if move == "answer" else [says("", call()), says("Done.")]
    return world(*lines, deed=Deed(execute={"ok": True}, policy=ASK if move == "suspend" else None))


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("landed", [True, False])
@pytest.mark.parametrize("move", COMMITS)
async def test_a_shutdown_looks_for_a_commit_it_heard_nothing_of_and_writes_what_is_missing(
    move: str, landed: bool
) -> None:
    """The run is given back, with that commit once, whole, and every amount once; then it goes on to its end."""
    made = until(move)
    await left_by_a_shutdown(made, move, tries=1, landed=landed)
    assert made.run.claim_token is None
    assert made.store.moves.count(move) == 1
    assert [a.state for a in made.store.view.actions if move == "intend"] == [ActionState.FAILED] * (move == "intend")
    await to_the_end(made)
    assert [a.state for a in made.store.view.actions] == [ActionState.SUCCEEDED] * (move != "answer")
    turns = 1 if move == "answer" else 2
    assert (made.run.step, made.run.spend_usd, made.deed.effects) == (turns, turns * Decimal("0.01"), turns - 1)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("move", COMMITS)
async def test_a_run_of_whose_commit_nothing_is_heard_in_time_is_left_as_it_is(move: str) -> None:
    """Neither released nor written to by halves, such as a result without its action's outcome."""
    made = until(move)
    await left_by_a_shutdown(made, move, tries=100, landed=False)
    assert (made.run.claim_token, made.store.released) == (FENCE.claim_token, 0)
    assert made.store.moves == {"intend": ["step"], "conclude": ["step", "intend"], "suspend": ["step"]}.get(move, [])


@pytest.mark.usefixtures("impatient")
async def test_an_intention_made_anew_of_which_nothing_is_heard_is_not_taken_back() -> None:
    """Whether its first or its second commit stands is not known, so it cannot be said how it ended."""
    made = world(says("", call()))

    async def crawl(name: str) -> None:
        made.clock.now += 5 * (name == "intend")

    made.store.after = crawl
    await left_by_a_shutdown(made, "intend", tries=100, landed=False, skip=1)
    assert (made.store.moves, made.run.claim_token) == (["step", "intend"], FENCE.claim_token)
    assert [a.state for a in made.store.view.actions] == [ActionState.INTENDED]


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("landed", [True, False])
async def test_a_crash_is_charged_once_though_its_charge_was_cut_short(landed: bool) -> None:
    """What is written again is that very commit: it says that the crash is paid for."""
    made = world(says("Done."), run={"charge_due": True})
    await left_by_a_shutdown(made, "step", tries=1, landed=landed)
    assert (made.run.claim_token, made.run.charge_due, made.run.spend_usd) == (None, False, Decimal("0.01"))


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("heard", [True, False])
@pytest.mark.parametrize("cut", ["effect", "intend"])
async def test_what_is_recorded_because_of_a_shutdown_has_no_more_time_than_the_rest(cut: str, heard: bool) -> None:
    """An effect cut short, an intention taken back: their record comes after the one cancellation that there is, and
    a store of which nothing is heard must not keep the process for ever."""
    reached, tries = asyncio.Event(), 0

    async def wait_for_ever(_: Any) -> None:
        reached.set()
        await asyncio.Event().wait()

    async def hush(name: str) -> None:
        nonlocal tries
        if name == "conclude":
            tries += 1
            if tries == 1 or not heard:
                await asyncio.Event().wait()

    async def cut_intention(name: str) -> None:
        if name == "intend":
            reached.set()
            await asyncio.sleep(0)

    made = world(says("", call()), says("Done."), deed=Deed(execute=wait_for_ever if cut == "effect" else {"ok": True}))
    made.store.before = hush
    made.store.after = cut_intention if cut == "intend" else None
    task = asyncio.create_task(made.go())
    await asyncio.wait_for(reached.wait(), PATIENCE_S)
    task.cancel()
    await asyncio.wait({task}, timeout=PATIENCE_S)
    assert task.cancelled()
    recorded = ActionState.UNKNOWN if cut == "effect" else ActionState.FAILED
    assert [a.state for a in made.store.view.actions] == [recorded if heard else ActionState.INTENDED]
    assert made.run.claim_token == (None if heard else FENCE.claim_token)
    assert tries == 2


@pytest.mark.usefixtures("impatient")
async def test_a_release_of_which_nothing_is_heard_is_made_once_more() -> None:
    """One connection that says nothing must not turn a clean leave into a crash."""
    asked_of, tries = asyncio.Event(), 0

    async def think(_: Any) -> Any:
        asked_of.set()
        await asyncio.Event().wait()

    async def hush(name: str) -> None:
        nonlocal tries
        if name == "release":
            tries += 1
            if tries == 1:
                await asyncio.Event().wait()

    made = world(think)
    made.store.before = hush
    task = asyncio.create_task(made.go())
    await asyncio.wait_for(asked_of.wait(), PATIENCE_S)
    task.cancel()
    await asyncio.wait({task}, timeout=PATIENCE_S)
    assert (made.run.claim_token, made.store.released, made.run.spend_usd) == (None, 1, Decimal("0.01"))


@pytest.mark.usefixtures("impatient")
async def test_a_try_that_was_given_up_on_raises_into_nowhere(caplog: pytest.LogCaptureFixture) -> None:
    """Its own end comes late, perhaps as an error: that is said where runs are spoken of, not by the event loop."""
    made, silent, ended = world(says("Done.")), asyncio.Event(), asyncio.Event()
    late: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: late.append(context))

    async def clings(name: str) -> None:
        if name == "answer" and not silent.is_set():
            silent.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                await released.wait()
                ended.set()
                raise ClaimLost("late") from None

    released = asyncio.Event()
    made.store.before = clings
    task = asyncio.create_task(made.go())
    await asyncio.wait_for(silent.wait(), PATIENCE_S)
    task.cancel()
    await asyncio.wait({task}, timeout=PATIENCE_S)
    with caplog.at_level("INFO", "atlas.holder"):
        released.set()
        await asyncio.wait_for(ended.wait(), PATIENCE_S)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    del task
    gc.collect()
    assert late == []
    assert "given up on" in caplog.text


class Twice(MemoryStore):
    """The first try of a step fails; the second takes place and is heard of late, like what is read meanwhile."""

    tries = 0
    reads = 0

    def __init__(self, view: RunView) -> None:
        super().__init__(view)
        self.heard: Landing[int] = Landing()
        self.read: asyncio.Future[None] = asyncio.Future()
        self.reading = asyncio.Event()
        self.written = asyncio.Event()

    async def step(self, fence: Fence, batch: Batch) -> int:
        self.tries += 1
        if self.tries == 1:
            raise StoreUnavailable("connection lost")
        await super().step(fence, batch)
        self.written.set()
        return await self.heard.seen()

    async def load(self, fence: Fence, *, late: bool = False) -> RunView:
        self.reads += 1
        if self.reads == 3:
            self.reading.set()
            await self.read
        return await super().load(fence, late=late)


async def test_a_commit_that_both_tries_hear_of_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else less than nothing would be owed, and the next commit would take it back."""
    monkeypatch.setattr(holder_module, "COMMIT_GRACE_S", 0.02)
    made = world()
    store = Twice(made.store.view)
    holder = Holder(FENCE, store, made.clock)
    await holder.reload()
    holder.append(Message(role="assistant", text="Hi."))
    holder.owe(steps=1, spend_usd=Decimal("0.01"))
    stepping = asyncio.create_task(holder.step(holder.batch()))
    await asyncio.wait_for(store.written.wait(), PATIENCE_S)
    stepping.cancel()
    await asyncio.wait_for(store.reading.wait(), PATIENCE_S)
    store.read.set_result(None)
    store.heard.set_result(0)
    await asyncio.wait_for(asyncio.wait({stepping}), PATIENCE_S)
    assert (store.tries, holder.uncommitted, holder.unsure) == (2, False, False)
    assert (holder.run.step, holder.run.spend_usd, holder.run.elapsed_ms) == (
        1,
        Decimal("0.01"),
        store.view.run.elapsed_ms,
    )


# ---- the worker ------------------------------------------------------------------------------------------------------


async def test_a_run_claimed_while_the_worker_leaves_is_given_back() -> None:
    """SIGTERM between the claim's commit and its answer: nothing starts, and the claim is free when drain returns."""
    made = world(says("Hi."), run={"claim_token": None})
    worker = Worker("w", made.store, lambda fence: made.loop(), made.clock, poll_s=0.01)
    claimed = asyncio.Event()
    let_go = asyncio.Event()

    async def hold(name: str) -> None:
        if name == "claim":
            claimed.set()
            await let_go.wait()

    made.store.after = hold
    running = asyncio.create_task(worker.run())
    await asyncio.wait_for(claimed.wait(), PATIENCE_S)
    leaving = asyncio.create_task(worker.drain())
    for _ in range(20):
        await asyncio.sleep(0)
    assert not leaving.done()
    let_go.set()
    await asyncio.wait_for(leaving, PATIENCE_S)
    assert made.run.claim_token is None
    await asyncio.wait_for(running, PATIENCE_S)
    assert (made.run.claim_token, made.model.heard, worker.busy) == (None, [], 0)


async def test_an_effect_in_flight_gets_its_grace_and_the_truth() -> None:
    """A write that ends within its grace is recorded as done before the claim is given back."""
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def execute(ctx: Any) -> Any:
        begun.set()
        await go_on.wait()
        return {"ok": True}

    made = world(says("", call()), says("Done."), deed=Deed(execute=execute), run={"claim_token": None})
    worker = Worker("w", made.store, lambda fence: made.loop(), made.clock, poll_s=0.01)
    running = asyncio.create_task(worker.run())
    await asyncio.wait_for(begun.wait(), PATIENCE_S)
    leaving = asyncio.create_task(worker.drain())
    await asyncio.sleep(0)
    go_on.set()
    await asyncio.wait_for(asyncio.gather(leaving, running), PATIENCE_S)
    assert [a.state for a in made.store.view.actions] == [ActionState.SUCCEEDED]
    assert (made.run.claim_token, made.results()) == (None, ['{"ok": true}'])


async def test_an_effect_that_outlasts_its_grace_is_unknown_not_lost() -> None:
    """Cut short at the end of its grace: marked unknown, no result, the claim given back."""
    begun = asyncio.Event()

    async def execute(ctx: Any) -> Any:
        begun.set()
        await asyncio.Event().wait()

    made = world(says("", call()), deed=Deed(execute=execute), run={"claim_token": None}, timeout_s=0.2)
    worker = Worker("w", made.store, lambda fence: made.loop(), made.clock, poll_s=0.01)
    made.agent.tools[0].timeout_s = 30.0
    running = asyncio.create_task(worker.run())
    await asyncio.wait_for(begun.wait(), PATIENCE_S)
    made.agent.tools[0].timeout_s = 0.05  # the grace is the tool's own timeout where that is shorter
    await asyncio.wait_for(worker.drain(), PATIENCE_S)
    await asyncio.wait_for(running, PATIENCE_S)
    assert [a.state for a in made.store.view.actions] == [ActionState.UNKNOWN]
    assert (made.run.claim_token, made.results()) == (None, [])


def test_a_conflict_names_its_run() -> None:
    """A lost claim and news name their run, so that a log line can."""
    assert "k7d2m9qa" in str(ClaimLost("k7d2m9qa"))
    assert "k7d2m9qa" in str(NewsArrived("k7d2m9qa"))


async def test_a_charge_whose_answer_is_lost_is_charged_once() -> None:
    """A commit without a message has no seq that would refuse its repetition: the amounts tell that it took place."""
    made = world(says(""), says("Hi."))
    lost: list[str] = []

    async def drop(name: str) -> None:
        if name == "step" and not lost:
            lost.append(name)
            raise StoreUnavailable("connection lost")

    made.store.after = drop
    await made.go()
    assert (lost, made.run.state, made.run.spend_usd) == (["step"], RunState.ANSWERED, Decimal("0.02"))
