"""Safeguards of the loop that no other test would miss: each names what would happen without it."""

from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest

from core import Approval, DidNotHappen, Happened, Scope, User
from core.approvals import Person
from core.run import ActionState, HaltReason, RunState, SuspensionKind, SuspensionStatus
from tests.unit.coreworld import (
    Deed,
    Nothing,
    People,
    World,
    Write,
    a_suspension,
    an_action,
    asked,
    call,
    says,
    turn,
    world,
)

ASK = Approval(by="requester")
APPROVED = [asked(), turn(call())]


class ForScope(Write):
    """A write that only the scope permits."""

    def permitted(self, args: Nothing, scope: Scope) -> bool:
        """Whoever has the permission "send"."""
        return "send" in scope.permissions


def scoped(made: World) -> World:
    """Let the scope alone decide in *made*."""
    return replace(made, agent=replace(made.agent, tools=[ForScope(made.deed)]))


async def nothing(user: User) -> Scope:
    """Return what somebody has whose permissions were taken away."""
    return Scope()


# ---- what an earlier attempt may still do ----------------------------------------------------------------------------


@pytest.mark.parametrize("arrives_after_s", [0.5, 20.0, 34.0])
async def test_a_request_that_arrives_late_is_not_sent_a_second_time(arrives_after_s: float) -> None:
    """The target says "did not happen" while the dead worker's request is on its way; believed at once, the write
    would be sent again and happen twice."""
    made = world(says("Done."), messages=APPROVED, actions=[replace(an_action(), intended_age_s=0.0)])
    began = made.clock.now

    def look(ctx: Any) -> Any:
        arrived = made.clock.now - began >= arrives_after_s
        return Happened(result={"number": "Q-1"}) if arrived else DidNotHappen()

    made.deed.reconcile = look
    await made.go()
    assert made.deed.effects == 0
    assert made.store.view.actions[0].state is ActionState.SUCCEEDED


async def test_a_write_that_broke_is_begun_again_only_when_its_request_can_no_longer_arrive() -> None:
    """timeout + 5 s after it was intended, and not before."""
    made = world(says("", call()), says("Done."))
    began: list[float] = []

    def execute(ctx: Any) -> Any:
        began.append(made.clock.now)
        return RuntimeError("lost") if len(began) == 1 else {"ok": True}

    made.deed.execute, made.deed.reconcile = execute, DidNotHappen()
    await made.go()
    first, second = began
    assert second - first > 35


# ---- the budget ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("used", "reason"),
    [
        ({"spend_usd": Decimal("0.50")}, HaltReason.BUDGET_SPEND),
        ({"spend_usd": Decimal("0.495")}, HaltReason.BUDGET_SPEND),
        ({"step": 12}, HaltReason.BUDGET_STEPS),
        ({"elapsed_ms": 300_000}, HaltReason.BUDGET_ELAPSED),
    ],
    ids=["spent", "worst case", "steps", "elapsed"],
)
async def test_a_claim_begins_with_what_the_run_has_used(used: dict[str, Any], reason: HaltReason) -> None:
    """A resumed run has no fresh budget: it halts before a model call that could pass a limit."""
    made = world(says("never said"), run=used)
    await made.go()
    assert (made.run.state, made.run.halt_reason, made.model.heard) == (RunState.HALTED, reason, [])
    assert {name: getattr(made.run, name) for name in used if name != "elapsed_ms"} == {
        name: value for name, value in used.items() if name != "elapsed_ms"
    }


async def test_what_a_person_approved_is_done_before_the_budget_halts_the_run() -> None:
    """The yes was given for this write; a halt first would leave an approved card that does nothing."""
    made = world(
        messages=APPROVED, suspensions=[a_suspension()], run={"spend_usd": Decimal("0.50"), "step": 12},
        deed=Deed(execute={"number": "Q-1"}, policy=ASK),
    )  # fmt: skip
    await made.go()
    assert (made.deed.effects, made.results()) == (1, ['{"number": "Q-1"}'])
    assert [s.kind for s in made.store.settled] == ["done"]
    assert (made.run.state, made.run.halt_reason) == (RunState.HALTED, HaltReason.BUDGET_STEPS)


# ---- after a confirmation: the world of now --------------------------------------------------------------------------


async def test_permissions_taken_away_during_the_wait_count() -> None:
    """The stored scope still has the permission; only the one of now decides."""
    waited = world(
        says("Sorry."), messages=APPROVED, suspensions=[a_suspension()], deed=Deed(policy=ASK),
        run={"scope": Scope(permissions=frozenset({"send"}))}, scopes=nothing,
    )  # fmt: skip
    made = scoped(waited)
    await made.go()
    assert made.deed.effects == 0
    assert '"not_permitted"' in made.results()[0]


async def test_approvers_are_looked_up_anew_for_the_execution() -> None:
    """What a cache still says of somebody who was let go a moment ago must not execute anything."""

    class Cached(People):
        async def person(self, team_id: str, user_id: str, *, fresh: bool = False) -> Person:
            person = await super().person(team_id, user_id, fresh=fresh)
            return person if fresh else replace(person, deactivated=False)

        async def in_channel(self, channel_id: str, user_id: str, *, fresh: bool = False) -> bool:
            return not (fresh and user_id == "U_LEFT")

    for voter in ("U_GONE", "U_LEFT"):
        anyone = Approval(by="anyone")
        waited = a_suspension(policy=anyone, votes=(voter,), decided_by=voter)
        made = world(messages=APPROVED, suspensions=[waited], deed=Deed(policy=anyone))
        made.people = Cached()
        made.people.deactivated = {"U_GONE"}
        await made.go()
        assert made.deed.effects == 0
        assert [s.status for s in made.store.view.suspensions] == [SuspensionStatus.REPLACED, SuspensionStatus.OPEN]


async def test_a_write_that_needs_a_person_never_begins_before_one_said_yes() -> None:
    """However often the run is claimed again."""
    made = world(says("", call()), deed=Deed(policy=ASK))
    await made.go()
    assert (made.deed.effects, made.run.state) == (0, RunState.SUSPENDED)
    made.store.change(state=RunState.RUNNING, claim_token="claim-1")
    await made.go()
    assert (made.deed.effects, made.run.state) == (0, RunState.SUSPENDED)
    assert [s.kind for s in made.store.view.suspensions] == [SuspensionKind.APPROVAL]


async def test_an_approved_write_does_not_begin_while_the_process_leaves() -> None:
    """A shutdown during the checks: the decision stays as it is, and the next process checks again."""
    loops: list[Any] = []

    def leave(ctx: Any) -> None:
        loops[0].drain()

    made = world(says("Done."), messages=APPROVED, suspensions=[a_suspension()], deed=Deed(policy=ASK, guard=leave))
    loops.append(made.loop())
    await loops[0].run()
    assert (made.deed.effects, made.results(), made.run.claim_token) == (0, [], None)
    assert [s.status for s in made.store.view.suspensions] == [SuspensionStatus.APPROVED]
    made.store.change(claim_token="claim-1")
    made.deed.guard = None
    await made.go()
    assert (made.deed.effects, len(made.results())) == (1, 1)
