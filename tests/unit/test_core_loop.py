"""The loop with a model that fails, tools that misbehave, and the world changing before and after a card."""

import asyncio
import json
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
from pydantic import BaseModel, Field, SecretStr

from core import Approval, DidNotHappen, Happened, Preview, Refused, Scope, ToolFailed, Unknown, User
from core.conversation import ModelReply
from core.errors import ModelRefused, ModelUnavailable
from core.run import ActionState, HaltReason, RunState, SuspensionKind, SuspensionStatus
from core.tools import Limits
from tests.unit.coreworld import (
    EPOCH,
    LIFETIME,
    Deed,
    World,
    a_suspension,
    an_action,
    asked,
    assert_valid,
    call,
    says,
    turn,
    world,
)

APPROVED = [asked(), turn(call())]
ASK = Approval(by="requester")


def errors(made: World) -> list[str]:
    return [json.loads(text).get("error", "") for text in made.results()]


# ---- the model -------------------------------------------------------------------------------------------------------


async def test_a_rate_limit_is_waited_out_as_long_as_the_provider_asks() -> None:
    """Retry-After is obeyed (a minute at most), else the pause doubles; nothing that was not billed is charged."""
    made = world(
        ModelUnavailable("429", retry_after_s=7),
        ModelUnavailable("503"),
        ModelUnavailable("429", retry_after_s=900),
        says("Hi."),
    )
    await made.go()
    assert made.run.state is RunState.ANSWERED
    assert made.clock.slept == [7, 2, 60]
    assert made.run.spend_usd == Decimal("0.01")


async def test_a_model_that_stays_away_halts_the_run_with_its_words() -> None:
    """Five tries, then model_unavailable; each timed-out call is charged at its worst case, at once."""
    made = world(*[ModelUnavailable("timed out", charged=True)] * 5, worst=Decimal("0.02"))
    await made.go()
    assert (made.run.state, made.run.halt_reason) == (RunState.HALTED, HaltReason.MODEL_UNAVAILABLE)
    assert made.store.closing is not None
    assert made.store.closing.detail == "timed out"
    assert made.run.spend_usd == Decimal("0.10")
    assert made.store.moves == ["step"] * 5 + ["halt"]


async def test_a_timeout_of_the_models_own_counts_as_billed() -> None:
    """A TimeoutError from inside the model may have cost a call."""
    made = world(TimeoutError(), says("Hi."), worst=Decimal("0.02"))
    await made.go()
    assert made.run.spend_usd == Decimal("0.03")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (ModelRefused("content policy"), "content policy"),
        (KeyError("choices"), "'choices'"),
        ("just text", "returned str, not a ModelReply"),
        (None, "returned NoneType"),
        (SystemExit(3), "tried to exit"),
        (asyncio.CancelledError(), "cancelled from within"),
        (ModelReply(text="x", raw=b"x" * 5_000_000), "too large to keep"),
        (ModelReply(text="x", spend_usd=Decimal(-1)), "no amount of US dollars"),
        (says("", call(x={1, 2})), "cannot be kept"),
        (says("", call(n=10**5000)), "cannot be kept"),
    ],
    ids=[
        "refuses",
        "raises",
        "text",
        "nothing",
        "exits",
        "cancels",
        "too large",
        "negative price",
        "a set",
        "a huge int",
    ],
)
async def test_a_model_that_cannot_be_used_halts_with_the_reason(line: Any, words: str) -> None:
    """Another provider error, a reply that is none, one that cannot be stored: halted in words, never a defect."""
    made = world(line)
    await made.go()
    assert (made.run.state, made.run.halt_reason) == (RunState.HALTED, HaltReason.MODEL_UNAVAILABLE)
    assert made.store.closing is not None
    assert words in made.store.closing.detail
    # Only the model itself can say that the call was not billed.
    assert made.run.spend_usd == (0 if isinstance(line, ModelRefused) else Decimal("0.01"))


@pytest.mark.parametrize(
    ("error", "billed"),
    [
        (ConnectionRefusedError("nobody listens"), "0"),
        (ConnectionResetError("reset by peer"), "0.02"),
        (OSError("the TLS stream ended"), "0.02"),
    ],
    ids=["refused", "reset", "broken"],
)
async def test_a_connection_that_breaks_is_tried_again_and_in_doubt_charged(error: Exception, billed: str) -> None:
    """Whether the request arrived is not known, so that it counts as billed; one that nobody took was not."""
    made = world(error, says("Hi."), worst=Decimal("0.02"))
    await made.go()
    assert (made.run.state, made.run.spend_usd) == (RunState.ANSWERED, Decimal(billed) + Decimal("0.01"))


async def test_two_empty_replies_halt_and_both_are_paid() -> None:
    """An empty reply is tried once more; what both cost is committed before anything else."""
    made = world(says("  "), says("", usd="0.02"))
    await made.go()
    assert made.run.halt_reason is HaltReason.MODEL_UNAVAILABLE
    assert made.run.spend_usd == Decimal("0.03")
    assert made.run.dearest_call_usd == Decimal("0.02")


async def test_a_halt_leaves_new_mail_to_a_follow_up() -> None:
    """What the owner wrote last is not swallowed by a run that halts before it could answer."""
    made = world(ModelRefused("no"))
    made.store.write_mail("and also this")
    await made.go()
    assert made.run.state is RunState.HALTED
    assert [letter.text for letter in made.store.view.mail] == ["and also this"]
    assert len(made.store.view.messages) == 1


# ---- calls that cannot run -------------------------------------------------------------------------------------------


async def test_calls_that_make_no_sense_get_an_error_result_each() -> None:
    """Unknown tool, malformed JSON, wrong type, a number beyond 2^53, a lone surrogate: told, nothing begun."""
    odd = [
        call("nothing"),
        call().model_copy(update={"arguments": {}, "malformed": "{"}),
        call(n="many"),
        call(n=1, more=2**53),
        call(n=1, more="\ud800"),
        call(n=1, more=float("nan")),
    ]
    made = world(says("", *odd), says("Sorry."))
    await made.go()
    assert errors(made) == ["unknown_tool", *["invalid_arguments"] * 5]
    assert made.deed.effects == 0
    assert made.store.moves == ["step", "answer"]


async def test_calls_over_the_limit_are_refused_and_the_run_halts_before_the_next_turn() -> None:
    """Two of three calls fit: the third gets its result in the same commit, then the budget halts the run."""
    made = world(says("", *[call("look")] * 3), run={"limits": Limits(max_tool_calls=2)})
    await made.go()
    assert errors(made) == ["not_executed_budget", "", ""]
    assert (made.run.halt_reason, made.run.tool_calls, made.look.effects) == (HaltReason.BUDGET_TOOL_CALLS, 2, 2)
    assert_valid([m.message for m in made.store.view.messages])


# ---- tools that misbehave --------------------------------------------------------------------------------------------


# Until what hangs is given up; long enough for what answers, on a busy machine too.
HANGING_S = 1.0


async def forever(ctx: Any) -> None:
    await asyncio.Event().wait()


@pytest.mark.parametrize(
    "execute",
    [RuntimeError("boom"), forever, {1, 2}, SystemExit(1), asyncio.CancelledError(), ToolFailed("no such account")],
    ids=["raises", "hangs", "unstorable", "exits", "cancels itself", "fails"],
)
async def test_a_read_that_breaks_is_an_error_result(execute: Any) -> None:
    """Whatever a read does, the model is told and goes on; the process and its other runs are not touched."""
    made = world(says("", call("look")), says("Sorry."), look=Deed(execute=execute))
    made.agent.tools[1].timeout_s = HANGING_S
    await made.go()
    assert made.run.state is RunState.ANSWERED
    assert errors(made) == ["tool_failed"]


@pytest.mark.parametrize(
    "execute",
    [RuntimeError("boom"), forever, SystemExit(1), asyncio.CancelledError()],
    ids=["raises", "hangs", "exits", "cancels"],
)
async def test_a_write_that_breaks_is_reconciled_never_repeated(execute: Any) -> None:
    """Anything but ToolFailed from a write is an unknown outcome: the target is asked what happened."""
    deed = Deed(execute=execute, reconcile=Happened(result={"number": "Q-1"}))
    made = world(says("", call()), says("Done."), deed=deed, timeout_s=HANGING_S)
    await made.go()
    assert made.deed.effects == 1
    assert made.results() == ['{"number": "Q-1"}']
    assert [action.state for action in made.store.view.actions] == [ActionState.SUCCEEDED]


async def test_a_write_whose_result_cannot_be_stored_is_done_and_says_so() -> None:
    """The effect happened: recorded as succeeded, with a visible word instead of the result, and never again."""
    made = world(says("", call()), says("Done."), deed=Deed(execute={1, 2}))
    await made.go()
    assert (made.deed.effects, errors(made)) == (1, ["result_not_storable"])
    assert made.store.view.actions[0].state is ActionState.SUCCEEDED


async def test_a_write_that_breaks_each_time_without_an_effect_ends_with_the_model() -> None:
    """Three attempts with the same key, each reconciled as not happened, then an error result: never for ever."""
    deed = Deed(execute=RuntimeError("bug"), reconcile=DidNotHappen())
    made = world(says("", call()), says("It does not work."), deed=deed, idempotent_by_key=True)
    await made.go()
    assert (made.deed.effects, errors(made)) == (3, ["tool_failed"])
    assert len(set(made.deed.keys)) == 1
    assert made.store.view.actions[0].state is ActionState.FAILED


async def test_sending_again_with_the_key_is_bounded_and_ends_with_a_person() -> None:
    """A tool that honours the key and cannot be asked is sent again for a minute, then a person is asked."""
    made = world(
        says("", call()), deed=Deed(execute=RuntimeError("down")), idempotent_by_key=True, unknown="ask_person"
    )
    await made.go()
    (outcome,) = made.store.view.suspensions
    assert (outcome.kind, made.run.state) == (SuspensionKind.OUTCOME, RunState.SUSPENDED)
    assert 5 < made.deed.effects < 20
    assert len(set(made.deed.keys)) == 1
    assert made.clock.now - 1000 < 75


async def test_a_refusal_of_the_second_sending_says_nothing_of_the_first() -> None:
    """ToolFailed while an earlier attempt is in doubt never becomes "nothing happened"."""
    answers = iter([RuntimeError("lost"), *[ToolFailed("already sent")] * 50])

    def execute(ctx: Any) -> Any:
        return next(answers)

    made = world(says("", call()), deed=Deed(execute=execute), idempotent_by_key=True, unknown="ask_person")
    await made.go()
    assert [action.state for action in made.store.view.actions] == [ActionState.UNKNOWN]
    assert made.store.view.suspensions[0].kind is SuspensionKind.OUTCOME
    assert made.results() == []


@pytest.mark.parametrize("answer", [None, "yes", True], ids=str)
async def test_a_reconcile_that_answers_nonsense_cannot_tell(answer: Any) -> None:
    """Anything but the three answers asks a person after a minute, and is no defect."""
    made = world(says("", call()), deed=Deed(execute=RuntimeError("lost"), reconcile=answer))
    await made.go()
    assert made.store.view.suspensions[0].kind is SuspensionKind.OUTCOME
    assert made.store.view.actions[0].state is ActionState.UNKNOWN


# ---- before a card: what cannot be checked ---------------------------------------------------------------------------

CHECKS: dict[str, dict[str, Any]] = {
    "scope down": {"scopes": OSError("down")},
    "scope is none": {"scopes": None},
    "permitted raises": {"deed": {"permitted": KeyError("x")}},
    "permitted is no bool": {"deed": {"permitted": "yes"}},
    "policy down": {"deed": {"policy": OSError("down")}},
    "policy is no policy": {"deed": {"policy": "anyone"}},
    "guard down": {"deed": {"guard": OSError("down")}},
    "guard is no answer": {"deed": {"guard": "on hold"}},
    "guard cancels itself": {"deed": {"guard": asyncio.CancelledError()}},
    "preview down": {"deed": {"preview": OSError("down"), "policy": ASK}},
    "preview is none": {"deed": {"preview": None, "policy": ASK}},
}


def with_checks(check: str, *lines: Any, **more: Any) -> World:
    answers = CHECKS[check]

    async def scopes(user: User) -> Any:
        if isinstance(answers["scopes"], Exception):
            raise answers["scopes"]
        return answers["scopes"]

    deed = Deed(execute={"ok": True}, **({"policy": ASK} | answers.get("deed", {})))
    if "scopes" in answers:
        more["scopes"] = scopes
    return world(*lines, deed=deed, **more)


@pytest.mark.parametrize("check", CHECKS)
async def test_before_a_card_what_cannot_be_checked_is_retried_for_a_minute_and_nothing_is_done(check: str) -> None:
    """Directory, permission, policy, guard or preview down or answering nonsense: no effect, no card."""
    made = with_checks(check, says("", call()), says("Sorry."))
    await made.go()
    assert errors(made) == ["could_not_check"]
    assert (made.deed.effects, made.store.view.suspensions, made.store.view.actions) == (0, (), ())
    assert 45 < made.clock.now - 1000 <= 61


@pytest.mark.parametrize("check", CHECKS)
async def test_after_an_approval_what_cannot_be_checked_opens_the_same_card_again(check: str) -> None:
    """Nothing executes; the same suspension, a new token, the old expiry, no votes; no minute of waiting."""
    made = with_checks(check, messages=APPROVED, suspensions=[a_suspension()])
    await made.go()
    (again,) = made.store.view.suspensions
    assert (again.status, again.votes, again.expires_at) == (SuspensionStatus.OPEN, (), EPOCH + LIFETIME)
    assert again.token != "t0.1"
    assert (made.deed.effects, made.run.state, made.clock.slept) == (0, RunState.SUSPENDED, [])


async def test_after_its_expiry_an_approval_that_cannot_be_checked_expires() -> None:
    """The window is not a convenience: a card is never opened again past its time; the model gets "expired"."""
    late = a_suspension(expires_at=EPOCH - timedelta(seconds=1))
    made = with_checks("guard down", says("It expired."), messages=APPROVED, suspensions=[late])
    await made.go()
    assert errors(made) == ["expired"]
    assert made.deed.effects == 0


@pytest.mark.parametrize("check", ["policy", "preview"])
async def test_an_approval_too_old_to_act_on_is_asked_again_although_a_check_fails_once(check: str) -> None:
    """Nobody waits for a click then, and the old card's time is over: retried as before a first card, not expired."""
    asked_for = 0

    def once(ctx: Any) -> Any:
        nonlocal asked_for
        asked_for += 1
        if asked_for == 1:
            raise OSError("down")
        return ASK if check == "policy" else Preview(title="Send")

    long_ago = EPOCH - LIFETIME - timedelta(seconds=1)
    old = a_suspension(opened_at=long_ago, decided_at=long_ago, expires_at=EPOCH - timedelta(seconds=1))
    deed = Deed(execute={"ok": True}, policy=ASK)
    setattr(deed, check, once)
    made = world(says("It expired."), messages=APPROVED, suspensions=[old], deed=deed)
    await made.go()
    statuses = [suspension.status for suspension in made.store.view.suspensions]
    assert statuses == [SuspensionStatus.REPLACED, SuspensionStatus.OPEN]
    assert (made.deed.effects, made.run.state, asked_for) == (0, RunState.SUSPENDED, 2)


# ---- after an approval: the three checks -----------------------------------------------------------------------------


async def test_an_approved_call_executes_once_and_confirmed() -> None:
    """All checks pass: one effect, confirmed, with the approver; its card is done and the model sees the result."""
    seen: list[Any] = []

    def execute(ctx: Any) -> Any:
        seen.append(ctx)
        return {"number": "Q-1042"}

    deed = Deed(execute=execute, policy=ASK)
    made = world(says("Sent."), messages=APPROVED, suspensions=[a_suspension()], deed=deed)
    await made.go()
    assert (made.deed.effects, made.run.state, made.results()) == (1, RunState.ANSWERED, ['{"number": "Q-1042"}'])
    assert (seen[0].confirmed, [user.user_id for user in seen[0].approved_by]) == (True, ["U1"])
    assert [(s.kind, s.text) for s in made.store.settled] == [("done", "Q-1042")]


@pytest.mark.parametrize(
    ("deed", "error"),
    [
        (Deed(permitted=False, policy=ASK), "not_permitted"),
        (Deed(guard=Refused(reason="credit hold"), policy=ASK), "refused"),
        (Deed(guard=ToolFailed("gone"), policy=ASK), "tool_failed"),
    ],
)
async def test_an_approved_call_that_the_world_no_longer_permits_is_not_executed(deed: Deed, error: str) -> None:
    """Permission gone or guard failing: no effect, the card says so with a reply, the model gets the reason."""
    made = world(says("Sorry."), messages=APPROVED, suspensions=[a_suspension()], deed=deed)
    await made.go()
    assert (made.deed.effects, errors(made), made.store.view.actions) == (0, [error], ())
    (settled,) = made.store.settled
    assert settled.kind == "not_executed"
    assert settled.reply is not None


@pytest.mark.parametrize(
    "deed",
    [
        Deed(preview=Preview(title="Send", totals={"total": "2"}), policy=ASK),
        Deed(policy=Approval(by=("UOTHER",))),
        Deed(policy=Approval(by="anyone", count=2)),
        Deed(policy=Approval(by="anyone", self_approval=False)),
    ],
    ids=["preview", "approvers", "count", "self-approval"],
)
async def test_a_change_asks_again_with_a_new_card(deed: Deed) -> None:
    """A changed preview or a policy that is no longer satisfied: old one replaced, its votes void, a new one open."""
    made = world(messages=APPROVED, suspensions=[a_suspension()], deed=deed)
    await made.go()
    old, new = made.store.view.suspensions
    assert (old.status, old.votes, new.status, new.replaces) == (
        SuspensionStatus.REPLACED, (), SuspensionStatus.OPEN, old.id,
    )  # fmt: skip
    assert (made.deed.effects, made.run.state) == (0, RunState.SUSPENDED)


async def test_a_preview_that_looks_at_the_confirmation_is_compared_alike() -> None:
    """The preview is rendered again exactly as it was for the card, or it would ask for ever."""
    deed = Deed(
        execute={"ok": True}, policy=ASK, preview=lambda ctx: Preview(title="Send" if not ctx.confirmed else "Sent")
    )
    made = world(says("Sent."), messages=APPROVED, suspensions=[a_suspension()], deed=deed)
    await made.go()
    assert made.deed.effects == 1


async def test_a_preview_too_large_for_a_person_is_refused_before_any_card() -> None:
    """Nobody reads half a megabyte before a click: the model is told to do it in parts, and nobody is asked."""
    deed = Deed(policy=ASK, preview=Preview(title="Send", text="x" * 500_000))
    made = world(says("", call()), says("I will split it."), deed=deed)
    await made.go()
    assert made.store.view.suspensions == ()
    assert (made.deed.effects, errors(made)) == (0, ["tool_failed"])


async def test_a_deactivated_approver_does_not_count() -> None:
    """Facts about approvers are read again before executing."""
    made = world(messages=APPROVED, suspensions=[a_suspension()], deed=Deed(policy=ASK))
    made.people.deactivated.add("U1")
    await made.go()
    assert (made.deed.effects, made.store.view.suspensions[0].status) == (0, SuspensionStatus.REPLACED)


async def test_a_refused_approver_directory_opens_the_card_again() -> None:
    """Who approved cannot be looked up: could not check."""
    made = world(messages=APPROVED, suspensions=[a_suspension()], deed=Deed(policy=ASK))
    made.people.down = True
    await made.go()
    assert made.store.view.suspensions[0].status is SuspensionStatus.OPEN


async def test_an_edited_call_gets_its_own_card_and_the_model_is_told() -> None:
    """The edited suspension is replaced by one on the new arguments; the result says who changed what."""
    edited = a_suspension(SuspensionStatus.EDITED, edited_arguments={"n": 7}, edited_by="U2")
    made = world(
        says("Done."), messages=APPROVED, suspensions=[edited], deed=Deed(execute={"number": "Q-7"}, policy=ASK)
    )
    await made.go()
    old, new = made.store.view.suspensions
    assert (old.status, new.replaces, new.arguments, new.asked_by) == (
        SuspensionStatus.REPLACED, old.id, {"n": 7}, "U2",
    )  # fmt: skip
    made.store.decide()
    await made.go()
    assert json.loads(made.results()[0]) == {
        "number": "Q-7",
        "edited_by_a_person": {"by": "@U2", "arguments": {"n": 7}},
    }


async def test_an_approval_that_its_requester_alone_could_give_is_no_card() -> None:
    """A computed policy that leaves nobody for this very call is an error result, not 30 minutes of waiting."""
    deed = Deed(policy=Approval(by=("U1",), self_approval=False))
    made = world(says("", call()), says("Sorry."), deed=deed)
    await made.go()
    assert (errors(made), made.store.view.suspensions) == (["tool_failed"], ())


# ---- an outcome that a person tells ----------------------------------------------------------------------------------


async def test_an_answer_about_the_first_attempt_is_not_believed_of_the_second() -> None:
    """Did not happen, executed anew, lost again: a person is asked again instead of a third effect."""
    deed = Deed(execute=RuntimeError("lost"), reconcile=Unknown())
    made = world(says("", call()), deed=deed)
    await made.go()
    made.store.view = replace(made.store.view, now=EPOCH + timedelta(seconds=90))
    made.store.decide(status=SuspensionStatus.DID_NOT_HAPPEN)
    made.store.view = replace(made.store.view, now=EPOCH + timedelta(seconds=95))
    await made.go()
    assert made.deed.effects == 2
    assert [s.status for s in made.store.view.suspensions] == [
        SuspensionStatus.DID_NOT_HAPPEN, SuspensionStatus.OPEN,
    ]  # fmt: skip


async def test_a_person_who_says_that_it_happened_is_believed_at_once() -> None:
    """The call gets its one result with the name of who confirmed it; nothing executes."""
    outcome = a_suspension(SuspensionStatus.HAPPENED, kind=SuspensionKind.OUTCOME)
    made = world(says("Good."), messages=APPROVED, suspensions=[outcome], actions=[an_action(ActionState.UNKNOWN)])
    await made.go()
    assert made.deed.effects == 0
    assert json.loads(made.results()[0])["confirmed_by"] == "@U1"


# ---- stop and the last pass ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", ["stop", "close out"])
async def test_the_end_settles_each_call_with_the_truth(ending: str) -> None:
    """Stop and the model-free pass: a decline stays a decline, an answered outcome is believed, an approved card is
    settled, what nobody knows stays unknown and says so; the model is never asked."""
    calls = [call(id=str(n)) for n in range(5)]
    rows = [
        a_suspension(SuspensionStatus.DECLINED, position=0, reason="no"),
        a_suspension(SuspensionStatus.APPROVED, position=1),
        a_suspension(SuspensionStatus.HAPPENED, position=2, kind=SuspensionKind.OUTCOME),
    ]
    actions = [an_action(ActionState.UNKNOWN, position=2), an_action(position=3)]
    run = {"stop_requested": "U1"} if ending == "stop" else {"recovery_attempts": 3}
    made = world(messages=[asked(), turn(*calls)], suspensions=rows, actions=actions, run=run)
    await made.go()
    results = {m.answers.position: json.loads(m.message.text) for m in made.store.view.messages if m.answers}
    kind = "stopped" if ending == "stop" else "not_executed"
    assert results[0]["error"] == "declined_by_user"
    assert results[1]["error"] == kind
    assert results[2]["happened"] is True
    assert 3 not in results
    assert results[4]["error"] == kind
    assert {action.call.position: action.state for action in made.store.view.actions} == {
        2: ActionState.SUCCEEDED, 3: ActionState.UNKNOWN,
    }  # fmt: skip
    assert [(s.suspension_id, s.kind) for s in made.store.settled] == [(rows[1].id, "not_executed")]
    assert (made.deed.effects, made.model.heard) == (0, [])
    assert made.store.closing is not None
    assert made.store.closing.alert is not None
    if ending == "stop":
        assert made.run.halt_reason is HaltReason.OUTCOME_UNKNOWN
    else:
        assert (made.run.state, made.run.fail_reason) == (RunState.FAILED, "recovery_exhausted")


@pytest.mark.parametrize(
    ("suspensions", "charged"),
    [([], True), ([a_suspension(SuspensionStatus.DECLINED)], True), ([a_suspension(SuspensionStatus.OPEN)], False)],
)
async def test_a_crash_is_charged_once_where_the_model_may_have_been_asked(suspensions: Any, charged: bool) -> None:
    """The worst case, marked as assumed, in a commit of its own before the loop goes on; and only once."""
    made = world(
        says("Hm."), messages=APPROVED, suspensions=suspensions, run={"charge_due": True, "crashes": 1},
        worst=Decimal("0.02"), deed=Deed(guard=Refused(reason="hold")),
    )  # fmt: skip
    await made.go()
    assert made.run.charge_due is False
    assert made.run.spend_usd == Decimal("0.02") * charged + (Decimal("0.01") if charged else 0)
    assert made.store.moves[0] == "step"


async def test_a_run_whose_rows_do_not_load_is_ended_not_claimed_for_ever() -> None:
    """A body that cannot be read fails the run with an alert; the claim ends."""
    made = world()

    async def broken(name: str) -> None:
        if name == "load":
            raise ValueError("undecodable body")

    made.store.before = broken
    await made.go()
    assert (made.run.state, made.run.fail_reason) == (RunState.FAILED, "defect")


@pytest.mark.parametrize("mail", ["use 300 instead", "yes, go ahead"])
async def test_mail_that_comes_while_a_turn_runs(mail: str) -> None:
    """A new instruction replaces what would be asked now; a bare assent changes nothing and approves nothing."""
    made: World

    def look(ctx: Any) -> Any:
        made.store.write_mail(mail)
        return {"seen": 1}

    made = world(says("", call("look"), call()), says("As you say."), look=Deed(execute=look), deed=Deed(policy=ASK))
    await made.go()
    if "300" in mail:
        assert (errors(made)[1], made.run.state, made.store.view.suspensions) == ("superseded", RunState.ANSWERED, ())
    else:
        assert (made.run.state, made.store.view.suspensions[0].status) == (
            RunState.SUSPENDED, SuspensionStatus.OPEN,
        )  # fmt: skip
    assert made.deed.effects == 0


@pytest.mark.parametrize(("age_s", "asked_for"), [(1, 0), (60, 1)])
async def test_reads_use_the_scope_of_the_last_resumption(age_s: int, asked_for: int) -> None:
    """At the start the scope was resolved a moment ago; after a deploy it is resolved again, once, for all reads."""
    resolved: list[User] = []

    async def scopes(user: User) -> Scope:
        resolved.append(user)
        return Scope()

    made = world(
        says("Done."), messages=[asked(), turn(call("look", id="a"), call("look", id="b"))], scopes=scopes,
        run={"step": 1, "scope_resolved_at": EPOCH - timedelta(seconds=age_s)},
    )  # fmt: skip
    await made.go()
    assert (made.run.state, made.look.effects, len(resolved)) == (RunState.ANSWERED, 2, asked_for)


async def test_an_argument_model_that_does_not_load_again_equal_is_refused_before_a_card() -> None:
    """What a person would approve must be what executes: an argument model that changes on reloading is no call."""

    class Odd(BaseModel):
        n: SecretStr

    made = world(says("", call(n="hidden")), says("Sorry."), deed=Deed(policy=ASK))
    made.agent.tools[0].arguments_model = Odd
    await made.go()
    assert errors(made) == ["invalid_arguments"]


async def test_an_alias_in_an_argument_model_survives_the_wait() -> None:
    """Arguments are stored as they load: a field with an alias executes after an approval as before it."""

    class Aliased(BaseModel):
        n: int = Field(alias="count")

    made = world(says("", call(count=3)), says("Done."), deed=Deed(execute={"ok": True}, policy=ASK))
    made.agent.tools[0].arguments_model = Aliased
    await made.go()
    assert made.store.view.suspensions[0].arguments == {"count": 3}
    made.store.decide()
    await made.go()
    assert (made.deed.effects, made.run.state) == (1, RunState.ANSWERED)
