"""The next act: a table over every state of a call, and what holds for any rows."""

from dataclasses import replace
from datetime import timedelta
from itertools import product
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.conversation import CallKey, Message, StoredMessage
from core.next_act import (
    Act,
    Answer,
    Believe,
    CallModel,
    Conclude,
    Consider,
    Execute,
    Reconcile,
    Refresh,
    Stop,
    Supersede,
    Wait,
    model_was_perhaps_asked,
    next_act,
    open_calls,
)
from core.run import Action, ActionState, Mail, RunView, Suspension, SuspensionKind, SuspensionStatus
from tests.unit.coreworld import EPOCH, LIFETIME, a_run, a_suspension, an_action, asked, call, turn

S = SuspensionStatus
LATER = EPOCH + timedelta(minutes=5)


def view(
    *suspensions: Suspension,
    actions: tuple[Action, ...] = (),
    mail: tuple[str, ...] = (),
    calls: int = 1,
    run: dict[str, Any] | None = None,
    age: timedelta = timedelta(),
) -> RunView:
    messages = [asked(), turn(*(call(id="call_1") for _ in range(calls)))]
    letters = tuple(Mail(number, text, "U1") for number, text in enumerate(mail))
    return RunView(a_run(**(run or {})), messages, suspensions, actions, letters, EPOCH + age)


def act_of(seen: RunView) -> Act:
    return next_act(seen, LIFETIME)


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (S.OPEN, Wait),
        (S.APPROVED, Execute),
        (S.DECLINED, Conclude),
        (S.EXPIRED, Conclude),
        (S.REPLACED, Consider),
        (S.SUPERSEDED, Conclude),
        (S.EDITED, Consider),
        (S.STOPPED, Conclude),
    ],
)
def test_each_status_of_an_approval_has_its_act(status: SuspensionStatus, expected: type) -> None:
    """One call, one approval, no action: the status alone decides."""
    assert type(act_of(view(a_suspension(status, edited_arguments={"n": 2}, edited_by="U2")))) is expected


@pytest.mark.parametrize("state", list(ActionState))
@pytest.mark.parametrize("status", [None, *S])
def test_an_open_action_comes_before_whatever_the_approval_says(
    state: ActionState, status: SuspensionStatus | None
) -> None:
    """Intended and unknown are reconciled whatever the approval's status; failed and succeeded change nothing."""
    suspensions = [a_suspension(status)] if status is not None else []
    act = act_of(view(*suspensions, actions=(an_action(state),)))
    if state in (ActionState.INTENDED, ActionState.UNKNOWN):
        assert isinstance(act, Reconcile)
        assert act.approval is None  # the action names what allowed it, never the newest suspension
    else:
        assert type(act) is type(act_of(view(*suspensions)))


def test_reconcile_carries_the_approval_that_allowed_the_action() -> None:
    """An action that names its suspension is confirmed by that one, also when it is not the newest."""
    old, new = a_suspension(S.APPROVED), a_suspension(S.OPEN, number=2)
    act = act_of(view(old, new, actions=(an_action(suspension_id=old.id),)))
    assert isinstance(act, Reconcile)
    assert act.approval == old


@pytest.mark.parametrize(
    ("status", "opened_after", "expected"),
    [
        (S.OPEN, True, Wait),
        (S.HAPPENED, True, Believe),
        (S.DID_NOT_HAPPEN, True, Believe),
        (S.EXPIRED, True, Reconcile),
        (S.STOPPED, True, Reconcile),
        (S.HAPPENED, False, Reconcile),
        (S.DID_NOT_HAPPEN, False, Reconcile),
    ],
)
def test_a_persons_answer_is_about_the_attempt_that_it_was_asked_about(
    status: SuspensionStatus, opened_after: bool, expected: type
) -> None:
    """An outcome answered before this attempt was intended says nothing of it: believing it would act twice."""
    outcome = a_suspension(status, kind=SuspensionKind.OUTCOME, number=2, opened_at=EPOCH)
    intended = EPOCH + (timedelta(seconds=-1) if opened_after else timedelta(seconds=1))
    seen = view(a_suspension(), outcome, actions=(an_action(ActionState.UNKNOWN, intended_at=intended),))
    assert type(act_of(seen)) is expected


def test_an_old_approval_is_asked_again() -> None:
    """At the lifetime it executes still, a moment later it is refreshed; the last vote counts."""
    approved = a_suspension(decided_at=EPOCH)
    assert isinstance(act_of(view(approved, age=LIFETIME)), Execute)
    assert isinstance(act_of(view(approved, age=LIFETIME + timedelta(microseconds=1))), Refresh)


def test_what_may_be_under_way_is_found_out_before_anything_begins() -> None:
    """An approved first call waits until the second call's open action is reconciled."""
    seen = view(a_suspension(), actions=(an_action(position=1),), calls=2)
    act = act_of(seen)
    assert isinstance(act, Reconcile)
    assert act.call.key == CallKey(1, 1)


def test_a_stop_comes_before_everything() -> None:
    """Whatever the calls need, a stop that was asked for is looked at first, with every open call."""
    seen = view(a_suspension(), actions=(an_action(position=1),), calls=3, run={"stop_requested": "U1"})
    act = act_of(seen)
    assert isinstance(act, Stop)
    assert [open_call.key.position for open_call in act.calls] == [0, 1, 2]


def test_fresh_calls_come_together_and_before_waiting() -> None:
    """Two fresh calls beside an undecided one are considered in one act, in the model's order."""
    act = act_of(view(a_suspension(S.OPEN, position=1), calls=3))
    assert isinstance(act, Consider)
    assert [open_call.key.position for open_call in act.calls] == [0, 2]


@pytest.mark.parametrize(
    ("mail", "outcome", "expected"),
    [
        ((), False, Wait),
        (("yes, go ahead",), False, Wait),
        (("use 300",), False, Supersede),
        (("use 300",), True, Wait),
    ],
)
def test_a_new_instruction_supersedes_what_waits_but_never_an_outcome(
    mail: tuple[str, ...], outcome: bool, expected: type
) -> None:
    """A bare assent changes nothing; an owner's message waits while a person is asked what happened."""
    rows = [a_suspension(S.OPEN)]
    actions: tuple[Action, ...] = ()
    if outcome:
        rows.append(a_suspension(S.OPEN, position=1, kind=SuspensionKind.OUTCOME))
        actions = (an_action(ActionState.UNKNOWN, position=1),)
    assert type(act_of(view(*rows, actions=actions, mail=mail, calls=2 if outcome else 1))) is expected


def test_the_last_words_are_the_answer_unless_mail_came() -> None:
    """Words without calls end the run; mail that is not in the conversation yet is answered first."""
    said = RunView(a_run(), [asked(), StoredMessage(1, Message(role="assistant", text="Done."))], now=EPOCH)
    assert act_of(said) == Answer("Done.")
    assert act_of(replace(said, mail=(Mail(1, "and now?", "U1"),))) == CallModel()


def test_an_edited_call_keeps_its_editor_over_every_later_suspension() -> None:
    """The editor counts as requester: also when the edited call is approved, asked again or declined."""
    edited = a_suspension(S.EDITED, edited_arguments={"n": 2}, edited_by="U2")
    fresh = act_of(view(edited))
    assert isinstance(fresh, Consider)
    assert (fresh.calls[0].arguments, fresh.calls[0].edited_by, fresh.calls[0].replaces) == ({"n": 2}, "U2", edited.id)
    replaced = replace(edited, status=S.REPLACED)
    for status, kind in ((S.APPROVED, Execute), (S.DECLINED, Conclude)):
        act = act_of(view(replaced, a_suspension(status, number=2, arguments={"n": 2})))
        assert isinstance(act, kind)
        assert isinstance(act, Execute | Conclude)
        assert (act.call.arguments, act.call.edited_by) == ({"n": 2}, "U2")


# ---- what holds for any rows -----------------------------------------------------------------------------------------


@st.composite
def views(draw: st.DrawFn) -> RunView:
    calls = draw(st.integers(0, 3))
    messages = [asked(), turn(*(call(id="call_1") for _ in range(calls)), text=draw(st.sampled_from(["", "words"])))]
    for position in range(calls):
        if draw(st.booleans()):
            result = Message(role="tool", text="{}", call_id="call_1")
            messages.append(StoredMessage(len(messages), result, CallKey(1, position)))
    suspensions = [
        a_suspension(
            status, position=position, number=number, kind=kind, edited_arguments={"n": 2},
            edited_by=draw(st.none() | st.just("U2")),
            opened_at=EPOCH + timedelta(minutes=draw(st.integers(0, 3))),
        )
        for position, number in product(range(calls), (1, 2))
        if draw(st.booleans())
        for kind in [draw(st.sampled_from(list(SuspensionKind)))]
        for status in [draw(st.sampled_from(list(S)))]
    ]  # fmt: skip
    actions = tuple(
        an_action(draw(st.sampled_from(list(ActionState))), position=position, intended_at=EPOCH + timedelta(minutes=1))
        for position in range(calls)
        if draw(st.booleans())
    )
    mail = tuple(Mail(n, draw(st.sampled_from(["yes", "use 300"])), "U1") for n in range(draw(st.integers(0, 2))))
    run = a_run(stop_requested=draw(st.none() | st.just("U1")))
    now = EPOCH + timedelta(minutes=draw(st.integers(0, 60)))
    return RunView(run, messages, tuple(suspensions), actions, mail, now)


@given(views())
def test_the_next_act_is_total_and_deterministic(seen: RunView) -> None:
    """Any rows have exactly one next act, the same whoever computes it, in whatever order rows are read."""
    act = act_of(seen)
    assert type(act) in get_args(Act)
    assert act == act_of(seen)
    shuffled = replace(seen, suspensions=seen.suspensions[::-1], actions=seen.actions[::-1])
    assert act == act_of(shuffled)


@given(views())
def test_the_model_and_the_answer_need_every_result(seen: RunView) -> None:
    """Providers refuse a call without a result: neither the model nor the answer comes before the last one."""
    if isinstance(act_of(seen), CallModel | Answer):
        assert open_calls(seen.messages) == []


@given(views())
def test_nothing_begins_while_an_earlier_attempt_is_open(seen: RunView) -> None:
    """No call executes, and none is considered, while its own action is intended or unknown."""
    act = act_of(seen)
    open_keys = {a.call for a in seen.actions if a.state in (ActionState.INTENDED, ActionState.UNKNOWN)}
    if isinstance(act, Execute | Refresh | Conclude):
        assert act.call.key not in open_keys
    if isinstance(act, Consider):
        assert not {open_call.key for open_call in act.calls} & open_keys


@given(views())
def test_nothing_executes_without_an_approval_in_time(seen: RunView) -> None:
    """Execute only on a suspension that is approved, the newest of its call, and within its lifetime."""
    act = act_of(seen)
    if isinstance(act, Execute):
        assert act.suspension.status is S.APPROVED
        newest = max(
            (s for s in seen.suspensions if s.call == act.call.key and s.kind is SuspensionKind.APPROVAL),
            key=lambda s: s.number,
        )
        assert act.suspension == newest
        assert act.suspension.decided_at is not None
        assert seen.now - act.suspension.decided_at <= LIFETIME


@given(views())
def test_a_dead_worker_was_at_the_model_only_where_nothing_else_was_committed_first(seen: RunView) -> None:
    """A call that needs an execution, a reconciliation or a decision proves that the model was not asked."""
    blocked = isinstance(
        next_act(replace(seen, run=replace(seen.run, stop_requested=None)), LIFETIME),
        Execute | Refresh | Reconcile | Believe | Wait | Supersede | Answer,
    )
    if blocked:
        assert not model_was_perhaps_asked(seen, LIFETIME)


def test_a_bill_that_may_be_open_is_seen_behind_results_that_rode_along() -> None:
    """A decline, a refused write or a read had its result in memory only; a stop asked for later proves nothing."""
    assert model_was_perhaps_asked(view(a_suspension(S.DECLINED)), LIFETIME)
    assert model_was_perhaps_asked(view(), LIFETIME)
    assert model_was_perhaps_asked(view(run={"stop_requested": "U1"}), LIFETIME)
    assert not model_was_perhaps_asked(view(a_suspension(S.DECLINED), a_suspension(position=1), calls=2), LIFETIME)
