"""What a follow-up run begins with, and what each closed call tells the model."""

import json

import pytest

from core import Agent, Approval
from core.approvals import late
from core.engine import valid_arguments
from core.errors import InvalidArguments
from core.mail import follow_up
from core.results import closed_text, unanswered
from core.run import ActionState, RunView, SuspensionStatus
from tests.unit.coreworld import (
    EPOCH,
    Deed,
    Write,
    a_run,
    a_suspension,
    an_action,
    asked,
    assert_valid,
    call,
    scope_of,
    turn,
)

CALLS = [call(id="call_1") for _ in range(4)]
PARENT = RunView(
    a_run(),
    [asked(), turn(*CALLS)],
    (a_suspension(SuspensionStatus.DECLINED, position=0, reason="too dear"), a_suspension(position=2)),
    (an_action(ActionState.UNKNOWN, position=1),),
    (),
    EPOCH,
)


def test_a_follow_up_begins_with_a_conversation_that_every_provider_takes() -> None:
    """Each open call of the parent gets its one result, in place; an unknown action says not to repeat it."""
    messages = follow_up(PARENT, "and now?")
    assert_valid([stored.message for stored in messages])
    assert [stored.seq for stored in messages] == list(range(len(messages)))
    results = {stored.answers.position: json.loads(stored.message.text) for stored in messages if stored.answers}
    assert results[0]["error"] == "declined_by_user"
    assert "too dear" in results[0]["reason"]
    assert results[1] == {"error": "outcome_unknown", "reason": "outcome unknown, do not repeat it"}
    assert results[3]["error"] == "not_executed"
    assert messages[-1].message.text == "and now?"
    assert len(unanswered(PARENT)) == 4


def test_each_closed_suspension_tells_the_model_its_own_story() -> None:
    """A decline is final for the model, an expiry is no refusal; no two statuses share their words."""
    closed = [
        SuspensionStatus.DECLINED,
        SuspensionStatus.EXPIRED,
        SuspensionStatus.SUPERSEDED,
        SuspensionStatus.STOPPED,
    ]
    told = [json.loads(closed_text(a_suspension(status))) for status in closed]
    assert [each["error"] for each in told] == ["declined_by_user", "expired", "superseded", "stopped"]
    assert "Do not try it again" in told[0]["reason"]
    assert "not a refusal" in told[1]["reason"]


@pytest.mark.parametrize("arguments", [{"n": "many"}, {"n": 2**53}, {"n": float("nan")}, {"n": 1, "x": "\ud800"}])
def test_an_edit_that_does_not_load_changes_nothing(arguments: dict[str, object]) -> None:
    """Edited arguments are judged before the card is spent, and come back as they will execute."""
    agent = Agent(instructions="", tools=[Write(Deed(policy=Approval()))], scopes=scope_of)
    with pytest.raises(InvalidArguments):
        valid_arguments(agent, a_suspension(), dict(arguments), "U1")
    assert valid_arguments(agent, a_suspension(), {"n": 2, "unknown": 1}, "U1") == {"n": 2}


def test_a_spent_suspension_is_never_open_to_a_second_click() -> None:
    """Once it is approved, every later click is told so, with the old token or a guessed one."""
    for token in ("t0.1", "guess"):
        assert late(a_suspension(SuspensionStatus.APPROVED), token, expired=False) is not None
