"""Closing a stopped or lost run: what was found out of one action is never stored without its outcome."""

import asyncio
from typing import Any

import pytest

from core import Approval, Happened
from core.conversation import CallKey
from core.errors import InvariantBroken
from core.leaving import tell_to_leave
from core.run import ActionState, RunState, SuspensionKind, SuspensionStatus
from tests.unit.coreworld import (
    FENCE,
    PATIENCE_S,
    Deed,
    World,
    a_suspension,
    an_action,
    asked,
    call,
    says,
    turn,
    world,
)


class Targets:
    """The first action happened; the second cannot be told for as long as *told* is not set."""

    def __init__(self) -> None:
        self.asked_of = asyncio.Event()
        self.told = asyncio.Event()

    async def reconcile(self, ctx: Any) -> Any:
        if ctx.call_id == CallKey(1, 1).call_id(FENCE.run_id):
            self.asked_of.set()
            await self.told.wait()
        return Happened(result={"number": ctx.call_id})


def two_open_actions(targets: Targets, **run: Any) -> World:
    """Return a run of which a person is asked whether its first call happened, while the second one was cut short."""
    outcome = a_suspension(SuspensionStatus.OPEN, kind=SuspensionKind.OUTCOME)
    return world(
        messages=[asked(), turn(call(), call(id="call_2"))],
        suspensions=[a_suspension(), outcome, a_suspension(position=1)],
        actions=[
            an_action(ActionState.UNKNOWN, suspension_id=a_suspension().id),
            an_action(position=1, suspension_id=a_suspension(position=1).id),
        ],
        deed=Deed(reconcile=targets.reconcile),
        run=run,
    )


CLOSING: dict[str, Any] = {
    "stopped": ({"stop_requested": "U1"}, RunState.HALTED),
    "lost for the last time": ({"recovery_attempts": 3}, RunState.FAILED),
}


@pytest.mark.parametrize(("run", "end"), CLOSING.values(), ids=CLOSING.keys())
async def test_a_shutdown_while_the_actions_of_a_run_are_looked_up_leaves_them_as_they_were(
    run: dict[str, Any], end: RunState
) -> None:
    """The next process finds both out, and records both with their results."""
    targets = Targets()
    made = two_open_actions(targets, **run)
    working = asyncio.create_task(made.go())
    await asyncio.wait_for(targets.asked_of.wait(), PATIENCE_S)
    tell_to_leave(working)
    await asyncio.wait_for(asyncio.wait({working}), PATIENCE_S)
    assert made.run.claim_token is None
    assert [a.state for a in made.store.view.actions] == [ActionState.UNKNOWN, ActionState.INTENDED]
    assert made.results() == []
    made.store.change(claim_token=FENCE.claim_token)
    targets.told.set()
    await made.go()
    assert (made.run.state, len(made.results())) == (end, 2)
    assert [a.state for a in made.store.view.actions] == [ActionState.SUCCEEDED] * 2
    assert {(s.suspension_id, s.kind) for s in made.store.settled} == {
        (a_suspension(position=place).id, "done") for place in (0, 1)
    }


@pytest.mark.parametrize("owes", [False, True])
async def test_a_shutdown_while_a_broken_run_is_ended_gives_it_back(owes: bool) -> None:
    """It breaks again elsewhere, and ends there; only one that owes what it spent is left to be charged for a crash."""
    made, reading = world(says("", call()), says("", call("look"))), asyncio.Event()
    made.deed.policy = Approval(by="requester")
    broke = False

    async def breaks(name: str) -> None:
        nonlocal broke
        if name == ("step" if owes else "suspend") and not broke:
            broke = True
            raise InvariantBroken("a defect")
        if name == "load" and broke and not reading.is_set():
            reading.set()
            await asyncio.Event().wait()

    made.store.before = breaks
    working = asyncio.create_task(made.go())
    await asyncio.wait_for(reading.wait(), PATIENCE_S)
    tell_to_leave(working)
    await asyncio.wait_for(asyncio.wait({working}), PATIENCE_S)
    assert working.cancelled()
    assert (made.run.state, made.run.claim_token) == (RunState.RUNNING, FENCE.claim_token if owes else None)
