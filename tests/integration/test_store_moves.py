"""Every verb of the stores against every state of a run, held against core's one table of moves."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import asyncpg
import pytest

from core.errors import AtlasError
from core.ports import Batch, Closing, Fence, NewSuspension
from core.run import MOVES, HaltReason, RunState
from core.tools import Limits
from tests.integration.storeworld import World, an_action, an_ask, clicker, turn, world_on


@dataclass
class Subject:
    """A run in some state with the claim that it has, or last had, and its suspension."""

    fence: Fence
    ask: NewSuspension


@pytest.fixture
def world(pool: "asyncpg.Pool[asyncpg.Record]") -> World:
    return world_on(pool)


async def _running(world: World) -> Subject:
    fence, (ask,) = await world.approved()
    return Subject(fence, ask)


async def _unclaimed(world: World) -> Subject:
    subject = await _running(world)
    await world.worker.release(subject.fence)
    return subject


async def _suspended(world: World) -> Subject:
    fence, (call,) = await world.asking()
    ask = an_ask(fence.run_id, call)
    await world.worker.suspend(fence, Batch(), 0, [ask])
    return Subject(fence, ask)


async def _halted(world: World) -> Subject:
    subject = await _running(world)
    await world.worker.halt(subject.fence, Batch(), HaltReason.BUDGET_STEPS, Closing())
    return subject


async def _answered(world: World) -> Subject:
    subject = await _running(world)
    await world.worker.answer(subject.fence, Batch(messages=(turn(2, text="x"),)), 1, "x")
    return subject


async def _failed(world: World) -> Subject:
    subject = await _running(world)
    await world.worker.fail(subject.fence, Batch(), "defect", Closing())
    return subject


STATES = {
    "running": _running,
    "unclaimed": _unclaimed,
    "suspended": _suspended,
    "halted": _halted,
    "answered": _answered,
    "failed": _failed,
}


async def _supersede(world: World, subject: Subject) -> None:
    letter = await world.letter("no")
    try:
        await world.desk.supersede(letter, subject.fence.run_id, world.worker_id)
    finally:
        await world.desk.answer_letter(letter, None)


async def _expire(world: World, subject: Subject) -> None:
    world.pass_time(1801)
    await world.upkeep.expire_due()


def _decide(world: World, subject: Subject) -> Awaitable[object]:
    ask = subject.ask
    return world.desk.decide(ask.id, ask.token, ask.digest, clicker(), approve=True, worker_id=world.worker_id)


def _ask_again(subject: Subject) -> NewSuspension:
    return an_ask(subject.fence.run_id, subject.ask.call, replaces=subject.ask.id)


# Verb -> (name in the table of moves, the call).
VERBS: dict[str, tuple[str, Callable[[World, Subject], Awaitable[object]]]] = {
    "claim": ("claim", lambda w, s: w.worker.claim(w.worker_id, 99)),
    "claim_one": ("claim", lambda w, s: w.worker.claim_one(w.worker_id, s.fence.run_id)),
    "release": ("release", lambda w, s: w.worker.release(s.fence)),
    "step": ("step", lambda w, s: w.worker.step(s.fence, Batch(steps=1))),
    "intend": ("intend", lambda w, s: w.worker.intend(s.fence, Batch(), an_action(s.fence.run_id, s.ask.call))),
    "conclude": ("conclude", lambda w, s: w.worker.conclude(s.fence, Batch())),
    "suspend": ("suspend", lambda w, s: w.worker.suspend(s.fence, Batch(), 9, [_ask_again(s)])),
    "rearm": ("rearm", lambda w, s: w.worker.rearm(s.fence, Batch(), 9, s.ask.id, f"{s.ask.id}.again", "again")),
    "wait": ("wait", lambda w, s: w.worker.wait(s.fence, Batch(), 9)),
    "answer": ("answer", lambda w, s: w.worker.answer(s.fence, Batch(messages=(turn(2, text="x"),)), 9, "x")),
    "halt": ("halt", lambda w, s: w.worker.halt(s.fence, Batch(), HaltReason.BUDGET_STEPS, Closing())),
    "fail": ("fail", lambda w, s: w.worker.fail(s.fence, Batch(), "defect", Closing())),
    "decide": ("decide", _decide),
    "edit": ("edit", lambda w, s: w.desk.edit(s.ask.id, s.ask.token, clicker(), {"n": 1}, w.worker_id)),
    "supersede": ("supersede", _supersede),
    "expire": ("expire", _expire),
    "stop": ("stop", lambda w, s: w.desk.stop(s.fence.run_id, clicker())),
    "continue": (
        "continue",
        lambda w, s: w.desk.continue_(s.fence.run_id, None, clicker(), Limits(), None, w.worker_id),
    ),
    "reap": ("reap", lambda w, s: w.upkeep.reap(lease_s=90, quick=False)),
}
# The moves that this state must make with this verb; every other pair must leave the state alone.
MADE = {
    ("suspended", "decide"): "running",
    ("suspended", "edit"): "running",
    ("suspended", "supersede"): "running",
    ("suspended", "expire"): "halted",
    ("suspended", "stop"): "halted",
    ("unclaimed", "stop"): "halted",
    ("running", "suspend"): "suspended",
    ("running", "rearm"): "suspended",
    ("running", "answer"): "answered",
    ("running", "halt"): "halted",
    ("running", "fail"): "failed",
    ("halted", "continue"): "running",
}


@pytest.mark.parametrize("state", STATES)
async def test_each_verb_makes_its_move_or_none(world: World, state: str) -> None:
    for verb, (name, act) in VERBS.items():
        subject = await STATES[state](world)
        before = await world.state(subject.fence.run_id)
        try:
            await act(world, subject)
        except AtlasError:
            outcome = "refused"
        else:
            outcome = "done"
        after = await world.state(subject.fence.run_id)
        assert after == MADE.get((state, verb), before), f"{verb} on a {state} run: {outcome}"
        if after != before:
            move = next(move for move in MOVES if move.name == name)
            assert RunState(before) in move.sources, f"{verb} left {before}"
            assert move.target == after, f"{verb} led to {after}"


def test_every_move_of_the_table_is_tried() -> None:
    tried = {name for name, _ in VERBS.values()}
    # A start has no state to begin from; a vote and a resuspension are a decide and a suspend with more to them.
    assert {move.name for move in MOVES} - tried == {"start", "vote", "resuspend"}


def test_every_state_is_begun_from() -> None:
    assert {*STATES} - {"unclaimed"} == {state.value for state in RunState}
