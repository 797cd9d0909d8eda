"""The moves of everybody who holds no claim: mail, decisions, stop, continue, and how each refuses."""

from datetime import timedelta
from decimal import Decimal

import asyncpg
import pytest

from core.approvals import Clicker, Refusal, Via
from core.errors import Conflict
from core.next_act import Believe, Conclude, Execute, next_act
from core.ports import Alert, Batch, Closing, InboundEvent, Outcome
from core.run import ActionState, HaltReason, RunState, SuspensionStatus
from core.tools import Approval, Limits, Scope
from tests.integration.storeworld import OPERATOR, World, an_action, an_ask, clicker, result, said, world_on

LIFETIME = timedelta(minutes=30)


@pytest.fixture
def world(pool: "asyncpg.Pool[asyncpg.Record]") -> World:
    return world_on(pool)


async def _audit(world: World) -> list[tuple[str, bool, str]]:
    return [tuple(row) for row in await world.pool.fetch("select act, allowed, why from audit order by id")]


# ---- mail ----------------------------------------------------------------------------------------------------------


async def test_an_event_is_stored_once_whatever_slack_redelivers(world: World) -> None:
    letter = await world.letter()
    row = await world.pool.fetchrow("select * from inbox where id = $1", letter.id)
    assert row is not None
    again = InboundEvent(row["event_id"], "mention", "T1", "C1", "9.9", "9.9", "U1", "x", {})
    other_id = InboundEvent("EvOther", "mention", "T1", "C1", letter.ts, letter.ts, "U1", "x", {})
    assert not await world.inbox.put(again)
    assert not await world.inbox.put(other_id)
    assert await world.value("select count(*) from inbox") == 1


async def test_a_thread_is_drained_in_order_and_only_by_one(world: World) -> None:
    first = await world.letter("one", thread="t")
    await world.inbox.put(InboundEvent("EvB", "mention", "T1", "C1", "5.5", "t", "U2", "two", {}))
    await world.inbox.put(InboundEvent("EvC", "direct", "T1", "C2", "6.6", "u", "U2", "three", {}))
    assert [letter.text for letter in await world.desk.take_mail(9, 30)] == ["three"]
    await world.desk.answer_letter(first, None)
    assert [letter.text for letter in await world.desk.take_mail(9, 30)] == ["two"]
    world.pass_time(31)
    assert {letter.text for letter in await world.desk.take_mail(9, 30)} == {"two", "three"}


async def test_a_letter_that_fails_comes_back_later_and_is_parked_at_last(world: World) -> None:
    letter = await world.letter(thread="t")
    await world.desk.retry_letter(letter, "directory down", 5, "could not check, trying again")
    await world.desk.retry_letter(letter, "directory down", 5, "could not check, trying again")
    assert await world.desk.take_mail(9, 30) == []
    world.pass_time(6)
    (again,) = await world.desk.take_mail(9, 30)
    assert (again.id, again.attempts, again.age_s) == (letter.id, 2, 6.0)
    assert (await world.places())[f"notice:letter-{letter.id}:retry"] == 1
    await world.desk.park_letter(again, "gave up", "I gave up on this", Alert("letter", "t", "x"))
    world.pass_time(60)
    assert await world.desk.take_mail(9, 30) == []
    assert {f"notice:letter-{letter.id}:parked", "alert:letter"} <= set(await world.places())
    before = await world.everything()
    await world.desk.park_letter(again, "gave up", "I gave up on this", Alert("letter", "t", "x"))
    await world.desk.answer_letter(again, "hello")
    await world.desk.retry_letter(again, "x", 1, "y")
    assert await world.everything() == before


async def test_a_threads_letters_are_taken_in_slacks_order(world: World) -> None:
    """Two sockets may store two messages of a thread the other way round; the older one goes first, also as news."""
    fence = await world.started(thread="1700000500.000100")
    said_at = {"second": "1700000500.000300", "first": "1700000500.000200", "third": "1700000500.000400"}
    for text, ts in said_at.items():
        event = InboundEvent(f"Ev-{text}", "mention", "T1", "C1", ts, "1700000500.000100", "U1", text, {})
        assert await world.inbox.put(event)
    order = []
    while taken := await world.desk.take_mail(9, 30):
        (letter,) = taken
        order.append(letter.text)
        assert await world.desk.attach(letter, fence.run_id)
    assert order == ["first", "second", "third"]
    late = InboundEvent("Ev-late", "mention", "T1", "C1", "1700000500.000150", "1700000500.000100", "U1", "zeroth", {})
    assert await world.inbox.put(late)
    (letter,) = await world.desk.take_mail(9, 30)
    assert await world.desk.attach(letter, fence.run_id)
    assert [mail.text for mail in (await world.worker.load(fence)).mail] == ["zeroth", *order]


async def test_start_claims_for_the_starter_and_owes_a_progress_line(world: World) -> None:
    letter = await world.letter()
    new = world.new_run(letter, limits=Limits(max_steps=3, max_spend_usd=Decimal("0.25"), max_elapsed_s=12.5))
    fence = await world.desk.start(letter, new, world.worker_id)
    assert fence is not None
    view = await world.worker.load(fence)
    assert (view.run.limits, view.run.owner, view.run.scope, view.run.route) == (
        new.limits,
        new.owner,
        new.scope,
        new.route,
    )
    assert view.messages == list(new.messages)
    assert await world.places() == {f"progress:{new.id}": 1}
    live = await world.desk.live_run(letter)
    assert live is not None
    assert (live.run.id, live.open_outcome, live.open_suspensions) == (new.id, False, ())


async def test_a_letter_starts_one_run_and_an_owner_has_one_in_a_thread(world: World) -> None:
    letter = await world.letter(thread="t")
    await world.desk.start(letter, world.new_run(letter), None)
    before = await world.everything()
    with pytest.raises(Conflict):
        await world.desk.start(letter, world.new_run(letter), None)
    assert await world.everything() == before
    second = await world.letter(thread="t")
    before = await world.everything()
    with pytest.raises(Conflict):
        await world.desk.start(second, world.new_run(second), None)
    assert await world.everything() == before
    await world.desk.answer_letter(second, None)
    somebody_else = await world.letter(thread="t", user="U2")
    assert await world.desk.start(somebody_else, world.new_run(somebody_else), None) is None


async def test_a_follow_up_retires_its_parents_continue_for_good(world: World) -> None:
    parent = await world.halted(thread="t")
    letter = await world.letter(thread="t")
    ended = await world.desk.last_ended(letter)
    assert ended is not None
    assert ended.run.id == parent
    card = (await world.places())[f"halt:{parent}:1"]
    fence = await world.desk.start(letter, world.new_run(letter, parent_id=parent), world.worker_id)
    assert fence is not None
    assert (await world.places())[f"halt:{parent}:1"] == card + 1
    (row,) = [row for row in await world.outbox.take(9, 30) if row.kind == "halt"]
    assert not (await world.outbox.render_inputs(row)).continuable
    await world.worker.answer(fence, Batch(), 0, "done")
    assert (await world.desk.continue_(parent, 1, clicker(), Limits(), None, None)).run is None
    assert await world.state(parent) == "halted"


async def test_a_parent_that_goes_on_takes_no_follow_up(world: World) -> None:
    parent = await world.halted(thread="t")
    letter = await world.letter(thread="t")
    assert (await world.desk.continue_(parent, 1, clicker(), Limits(), None, None)).run is not None
    before = await world.everything()
    with pytest.raises(Conflict):
        await world.desk.start(letter, world.new_run(letter, parent_id=parent), None)
    assert await world.everything() == before


async def test_an_attached_letter_is_news_and_blocks_nobody(world: World) -> None:
    fence = await world.started(thread="t")
    mine = await world.letter("and tax", thread="t")
    assert await world.desk.attach(mine, fence.run_id)
    with pytest.raises(Conflict):
        await world.desk.attach(mine, fence.run_id)
    other = await world.letter("me too", thread="t", user="U2")
    assert other.user_id == "U2"
    view = await world.worker.load(fence)
    assert (view.run.news, [mail.text for mail in view.mail]) == (1, ["and tax"])
    await world.worker.answer(fence, Batch(messages=(said(1),), mail=(mine.id,)), 1, "done")
    assert not await world.desk.attach(other, fence.run_id)


async def test_a_letter_is_not_attached_to_a_run_that_would_not_look(world: World) -> None:
    run_id, _ = await world.suspended()
    letter = await world.letter("also this")
    before = await world.everything()
    with pytest.raises(Conflict):
        await world.desk.attach(letter, run_id)
    assert await world.everything() == before


async def test_a_new_instruction_supersedes_what_waits(world: World) -> None:
    run_id, (ask,) = await world.suspended()
    letter = await world.letter("no, 300 instead")
    fence = await world.desk.supersede(letter, run_id, world.worker_id)
    assert fence is not None
    view = await world.worker.load(fence)
    assert view.suspensions[0].status is SuspensionStatus.SUPERSEDED
    assert [mail.inbox_id for mail in view.mail] == [letter.id]
    assert isinstance(next_act(view, LIFETIME), Conclude)
    late = await world.desk.decide(ask.id, ask.token, ask.digest, clicker(), approve=True)
    assert late.refusal is Refusal.DECIDED
    with pytest.raises(Conflict):
        await world.desk.supersede(await world.letter(), run_id, None)


async def test_an_open_outcome_is_never_superseded_and_the_letter_waits_with_the_run(world: World) -> None:
    run_id, _, ask = await world.in_doubt()
    letter = await world.letter("never mind")
    before = await world.everything()
    with pytest.raises(Conflict):
        await world.desk.supersede(letter, run_id, world.worker_id)
    assert await world.everything() == before
    assert await world.desk.attach(letter, run_id)
    assert (await world.value("select status from suspensions where id = $1", ask.id)) == "open"


# ---- decisions -----------------------------------------------------------------------------------------------------


async def test_an_approval_wakes_the_run_for_the_decider(world: World) -> None:
    run_id, (ask,) = await world.suspended()
    card = (await world.places())[f"card:{ask.id}"]
    decided = await world.desk.decide(ask.id, ask.token, ask.digest, clicker(), approve=True, worker_id=world.worker_id)
    assert decided.refusal is None
    assert decided.suspension is not None
    assert (decided.suspension.status, decided.suspension.decided_by, decided.suspension.votes) == (
        SuspensionStatus.APPROVED,
        "U1",
        ("U1",),
    )
    assert decided.claimed is not None
    view = await world.worker.load(decided.claimed)
    assert (view.run.news, view.run.claimed_by) == (1, world.worker_id)
    assert isinstance(next_act(view, LIFETIME), Execute)
    assert (await world.places())[f"card:{ask.id}"] == card + 1
    assert await _audit(world) == [("approve", True, "approved")]
    assert run_id == decided.claimed.run_id


async def test_a_decision_without_a_worker_leaves_the_run_to_be_claimed(world: World) -> None:
    run_id, (ask,) = await world.suspended()
    decided = await world.desk.decide(ask.id, ask.token, None, clicker(), approve=True)
    assert decided.claimed is None
    assert [claimed.run.id for claimed in await world.worker.claim(world.worker_id, 9)] == [run_id]


async def test_a_decline_says_so_in_the_thread_with_its_reason(world: World) -> None:
    _, (ask,) = await world.suspended()
    decided = await world.desk.decide(ask.id, ask.token, ask.digest, clicker("U5"), approve=False, reason="too dear")
    assert decided.suspension is not None
    assert (decided.suspension.status, decided.suspension.reason) == (SuspensionStatus.DECLINED, "too dear")
    place = f"notice:{ask.id}:declined"
    (row,) = [row for row in await world.outbox.take(9, 30) if row.place == place]
    content = (await world.outbox.render_inputs(row)).content
    assert content["mention"] == "U1"
    assert content["by"] == "U5"
    assert "too dear" in content["text"]


async def test_two_people_are_needed_and_nobody_counts_twice(world: World) -> None:
    run_id, (ask,) = await world.suspended(policy=Approval(by="anyone", count=2))
    first = await world.desk.decide(ask.id, ask.token, ask.digest, clicker("U1"), approve=True)
    assert (first.refusal, first.pending_votes) == (None, 1)
    assert first.suspension is not None
    assert first.suspension.votes == ("U1",)
    again = await world.desk.decide(ask.id, ask.token, ask.digest, clicker("U1"), approve=True)
    assert again.refusal is Refusal.DECIDED
    assert await world.state(run_id) == "suspended"
    second = await world.desk.decide(ask.id, ask.token, ask.digest, clicker("U2"), approve=True)
    assert (second.refusal, second.pending_votes) == (None, 0)
    assert second.suspension is not None
    assert second.suspension.votes == ("U1", "U2")
    assert await world.state(run_id) == "running"
    assert [act for act, _, _ in await _audit(world)] == ["vote", "approve", "approve"]


async def test_one_decline_ends_it_whatever_votes_there_are(world: World) -> None:
    run_id, (ask,) = await world.suspended(policy=Approval(by="anyone", count=3))
    await world.desk.decide(ask.id, ask.token, ask.digest, clicker("U1"), approve=True)
    await world.desk.decide(ask.id, ask.token, ask.digest, clicker("U2"), approve=False)
    assert await world.value("select status from suspensions where id = $1", ask.id) == "declined"
    assert await world.state(run_id) == "running"


async def test_wrong_clicks_change_nothing_but_the_audit(world: World) -> None:
    _, (ask,) = await world.suspended()
    before = await world.everything()
    clicks = [
        await world.desk.decide(ask.id, "stale token", ask.digest, clicker(), approve=True),
        await world.desk.decide(ask.id, ask.token, "another digest", clicker(), approve=True),
        await world.desk.decide(f"{ask.id}x", ask.token, ask.digest, clicker(), approve=True),
    ]
    assert [click.refusal for click in clicks] == [Refusal.PRESS_AGAIN, Refusal.UNKNOWN, Refusal.UNKNOWN]
    after = await world.everything()
    audit = after.pop("audit")
    before.pop("audit")
    assert after == before
    assert len(audit) == 2


async def test_a_click_after_the_expiry_expires_it_as_the_job_would(world: World) -> None:
    run_id, (ask,) = await world.suspended()
    world.pass_time(1800)
    late = await world.desk.decide(ask.id, ask.token, ask.digest, clicker(), approve=True)
    assert late.refusal is Refusal.EXPIRED
    assert late.suspension is not None
    assert late.suspension.status is SuspensionStatus.EXPIRED
    assert late.run is not None
    assert (late.run.state, late.run.halt_reason) == (RunState.HALTED, HaltReason.SUSPENSION_EXPIRED)
    assert {f"notice:{ask.id}:expired", f"halt:{run_id}:1"} <= set(await world.places())
    again = await world.desk.decide(ask.id, ask.token, ask.digest, clicker(), approve=True)
    assert again.refusal is Refusal.EXPIRED
    assert (await world.places())[f"notice:{ask.id}:expired"] == 1


async def test_a_click_on_a_replaced_card_is_told_so(world: World) -> None:
    fence, (old,) = await world.approved()
    await world.worker.suspend(fence, Batch(), 1, [an_ask(fence.run_id, old.call, replaces=old.id)])
    late = await world.desk.decide(old.id, old.token, old.digest, clicker(), approve=True)
    assert late.refusal is Refusal.REPLACED


async def test_a_decision_beside_a_sibling_at_work_is_only_recorded(world: World) -> None:
    fence, (call, _) = await world.asking("send", "send")
    ask = an_ask(fence.run_id, call)
    await world.worker.suspend(fence, Batch(), 0, [ask], stay_running=True)
    decided = await world.desk.decide(ask.id, ask.token, ask.digest, clicker(), approve=True, worker_id=world.worker_id)
    assert (decided.refusal, decided.claimed) == (None, None)
    view = await world.worker.load(fence)
    assert (view.run.news, view.suspensions[0].status) == (1, SuspensionStatus.APPROVED)


async def test_an_edit_carries_its_arguments_and_editor(world: World) -> None:
    _, (ask,) = await world.suspended()
    edited = await world.desk.edit(ask.id, ask.token, clicker("U3"), {"n": 7}, world.worker_id)
    assert edited.suspension is not None
    assert (edited.suspension.status, edited.suspension.edited_arguments, edited.suspension.edited_by) == (
        SuspensionStatus.EDITED,
        {"n": 7},
        "U3",
    )
    assert edited.claimed is not None
    late = await world.desk.edit(ask.id, ask.token, clicker("U3"), {"n": 8})
    assert late.refusal is Refusal.DECIDED


async def test_a_persons_word_about_an_outcome_is_believed_by_the_next_act(world: World) -> None:
    _, _, ask = await world.in_doubt()
    told = await world.desk.decide(ask.id, ask.token, None, clicker(), approve=True, worker_id=world.worker_id)
    assert told.claimed is not None
    view = await world.worker.load(told.claimed)
    act = next_act(view, LIFETIME)
    assert isinstance(act, Believe)
    assert act.outcome.status is SuspensionStatus.HAPPENED


@pytest.mark.parametrize(
    ("happened", "status", "state"), [(True, "happened", "succeeded"), (False, "did_not_happen", "failed")]
)
async def test_an_outcome_told_after_the_halt_is_recorded_and_starts_nothing(
    world: World, happened: bool, status: str, state: str
) -> None:
    run_id, action, ask = await world.in_doubt()
    world.pass_time(1801)
    assert await world.upkeep.expire_due() == 1
    run = await world.desk.run(run_id)
    assert run is not None
    assert (run.state, run.halt_reason) == (RunState.HALTED, HaltReason.OUTCOME_UNKNOWN)
    assert await world.value("select state from actions") == "unknown"
    told = await world.desk.decide(ask.id, ask.token, None, clicker(), approve=happened, worker_id=world.worker_id)
    assert (told.refusal, told.claimed) == (None, None)
    assert await world.state(run_id) == "halted"
    assert await world.value("select status from suspensions where id = $1", ask.id) == status
    assert await world.value("select state from actions") == state
    again = await world.desk.decide(ask.id, ask.token, None, clicker(), approve=not happened)
    assert again.refusal is Refusal.DECIDED
    # Continued, the run must believe that word before anything else: it never asks for the same write again.
    continued = await world.desk.continue_(run_id, run.halts, clicker(), run.limits, None, world.worker_id)
    assert continued.claimed is not None
    act = next_act(await world.worker.load(continued.claimed), LIFETIME)
    assert isinstance(act, Believe)
    assert act.action.idempotency_key == action.idempotency_key


async def test_a_refusal_of_the_authorizer_is_audited(world: World) -> None:
    _, (ask,) = await world.suspended()
    found = await world.desk.suspension(ask.id)
    assert found is not None
    suspension, run, over = found
    assert (suspension.token, run.id, over) == (ask.token, ask.id.partition(".")[0], False)
    await world.desk.refuse(suspension, clicker("U9"), "approve", Refusal.NOT_AN_APPROVER, "policy")
    assert await _audit(world) == [("approve", False, "not_an_approver: policy")]
    world.pass_time(1800)
    found = await world.desk.suspension(ask.id)
    assert found is not None
    assert found[2]


# ---- stop, continue ------------------------------------------------------------------------------------------------


async def test_stopping_a_suspended_run_halts_it_at_once(world: World) -> None:
    run_id, (ask,) = await world.suspended()
    stopped = await world.desk.stop(run_id, clicker())
    assert stopped.how == "halted"
    assert stopped.run is not None
    assert stopped.run.halt_reason is HaltReason.STOPPED_BY_USER
    assert await world.value("select status from suspensions where id = $1", ask.id) == "stopped"
    assert not await world.live(run_id)
    assert (await world.desk.stop(run_id, clicker())).how == "ended"


async def test_stopping_an_unclaimed_run_halts_it_and_a_claimed_one_is_asked(world: World) -> None:
    fence = await world.started()
    assert (await world.desk.stop(fence.run_id, clicker())).how == "requested"
    run = (await world.worker.load(fence)).run
    assert (run.stop_requested, run.news) == ("U1", 1)
    await world.worker.halt(fence, Batch(), HaltReason.STOPPED_BY_USER, Closing())
    ended = await world.desk.run(fence.run_id)
    assert ended is not None
    assert ended.stop_requested is None
    other = await world.started()
    await world.worker.release(other)
    assert (await world.desk.stop(other.run_id, clicker())).how == "halted"


async def test_stopping_with_an_outcome_open_wakes_the_run_to_reconcile(world: World) -> None:
    run_id, _, _ = await world.in_doubt()
    stopped = await world.desk.stop(run_id, clicker())
    assert stopped.how == "requested"
    (claimed,) = await world.worker.claim(world.worker_id, 9)
    assert (claimed.run.id, claimed.run.stop_requested) == (run_id, "U1")


async def test_continuing_grants_limits_once_per_halt(world: World) -> None:
    run_id = await world.halted()
    limits = Limits(max_steps=16, max_tool_calls=30, max_spend_usd=Decimal("0.75"), max_elapsed_s=450)
    refused = await world.desk.continue_(run_id, 2, clicker(), limits, None, world.worker_id)
    assert refused.run is None
    scope = Scope(permissions=frozenset({"x"}))
    continued = await world.desk.continue_(run_id, 1, clicker(), limits, scope, world.worker_id)
    assert continued.claimed is not None
    run = (await world.worker.load(continued.claimed)).run
    assert (run.state, run.halt_reason, run.ended_at, run.continuations, run.limits, run.scope) == (
        RunState.RUNNING,
        None,
        None,
        1,
        limits,
        scope,
    )
    assert await world.live(run_id)
    (entry,) = [e for _, e in await world.upkeep.timeline(run_id) if e.kind == "run.continued"]
    assert entry.body == {"by": "U1", "previous_reason": "budget_spend", "reason": None}
    again = await world.desk.continue_(run_id, 1, clicker(), limits, None, world.worker_id)
    assert again.run is None
    await world.worker.halt(continued.claimed, Batch(), HaltReason.BUDGET_STEPS, Closing())
    assert (await world.desk.continue_(run_id, 1, clicker(), limits, None, None)).run is None
    assert (await world.desk.continue_(run_id, 2, clicker(), limits, None, None)).run is not None


async def test_only_the_owner_continues_or_an_operator_on_the_cli(world: World) -> None:
    run_id = await world.halted()
    before = await world.everything()
    in_slack = Clicker("U8", Via.BUTTON, None, operator=True)
    assert (await world.desk.continue_(run_id, None, in_slack, Limits(), None, None)).run is None
    assert (await world.desk.continue_("nosuchrun", None, clicker(), Limits(), None, None)).run is None
    after = await world.everything()
    before.pop("audit")
    assert len(after.pop("audit")) == 2
    assert after == before
    continued = await world.desk.continue_(run_id, None, OPERATOR, Limits(), None, None, reason="asked by phone")
    assert continued.run is not None
    assert continued.claimed is None


async def test_a_halted_run_whose_thread_is_taken_does_not_continue(world: World) -> None:
    run_id = await world.halted(thread="t")
    await world.started(thread="t")
    before = await world.everything()
    assert (await world.desk.continue_(run_id, 1, clicker(), Limits(), None, None)).run is None
    after = await world.everything()
    before.pop("audit")
    after.pop("audit")
    assert after == before


# ---- lists ---------------------------------------------------------------------------------------------------------


async def test_lists_are_newest_first_and_pending_oldest_first(world: World) -> None:
    first, (one,) = await world.suspended()
    world.pass_time(1)
    second, (two,) = await world.suspended()
    world.pass_time(1)
    fence = await world.started(thread="t", user="U2")
    everybody = await world.desk.runs(team_id=None, user_id=None, limit=9)
    assert [run.id for run in everybody] == [fence.run_id, second, first]
    mine = await world.desk.runs(team_id="T1", user_id="U1", limit=1, states=["suspended"])
    assert [run.id for run in mine] == [second]
    assert [run.id for run in await world.desk.thread_runs("T1", "C1", "t", "U2")] == [fence.run_id]
    assert [s.id for s, _ in await world.desk.pending()] == [one.id, two.id]
    assert [(s.id, run.id) for s, run in await world.desk.pending(run_id=second)] == [(two.id, second)]
    assert await world.desk.show("nosuchrun") is None
    assert await world.desk.suspension("nosuch") is None


async def test_an_approval_that_executed_is_not_undone_by_a_continue(world: World) -> None:
    fence, (ask,) = await world.approved()
    action = an_action(fence.run_id, ask.call, suspension_id=ask.id)
    await world.worker.intend(fence, Batch(), action)
    done = Outcome(ask.call, action.arguments_digest, ActionState.SUCCEEDED, '"Q-1"')
    await world.worker.conclude(fence, Batch(messages=(result(2, ask.call, '"Q-1"'),)), [done])
    await world.worker.halt(fence, Batch(), HaltReason.BUDGET_STEPS, Closing())
    await world.desk.continue_(fence.run_id, 1, clicker(), Limits(), None, world.worker_id)
    assert await world.value("select state from actions") == "succeeded"
