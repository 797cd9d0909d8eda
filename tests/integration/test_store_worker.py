"""The moves of a claim's holder: what each writes, what it refuses, and that a lost claim changes nothing."""

import asyncio
import math
from collections.abc import Awaitable, Callable
from dataclasses import replace
from decimal import Decimal

import asyncpg
import pytest

from core.conversation import CallKey, Message, StoredMessage, ToolCall
from core.errors import ClaimLost, InvariantBroken, NewsArrived
from core.ports import Alert, Batch, Closing, Fence, Outcome, Settlement, TraceEntry
from core.run import ActionState, HaltReason, RunState, SuspensionKind, SuspensionStatus
from core.tools import Approval, Scope
from storage.database import open_pool
from storage.worker_store import PgWorkerStore
from tests.integration.storeworld import World, an_action, an_ask, clicker, result, said, turn, world_on


@pytest.fixture
def world(pool: "asyncpg.Pool[asyncpg.Record]") -> World:
    return world_on(pool)


async def test_a_step_adds_messages_amounts_and_trace_and_clears_crashes(world: World) -> None:
    fence = await world.started()
    await world.pool.execute("update runs set crashes = 1, charge_due = true where id = $1", fence.run_id)
    batch = Batch(
        messages=(turn(1, "lookup"), result(2, CallKey(1, 0), '{"found": 1}')),
        trace=(TraceEntry("model", {"calls": 1}, 120, Decimal("0.01")), TraceEntry("read", ms=3)),
        steps=1,
        tool_calls=1,
        spend_usd=Decimal("0.01"),
        dearest_call_usd=Decimal("0.01"),
        elapsed_ms=130,
        doing="looking up",
        charges_crash=True,
        scope=Scope(permissions=frozenset({"b", "a"}), attributes={"region": "west"}),
    )
    assert await world.worker.step(fence, batch) == 0
    await world.worker.step(fence, Batch(spend_usd=Decimal("0.002"), dearest_call_usd=Decimal("0.002")))
    view = await world.worker.load(fence)
    assert [(m.seq, m.message.role, m.answers) for m in view.messages] == [
        (0, "user", None),
        (1, "assistant", None),
        (2, "tool", CallKey(1, 0)),
    ]
    run = view.run
    assert (run.step, run.tool_calls, run.elapsed_ms, run.crashes, run.charge_due) == (1, 1, 130, 0, False)
    assert (run.spend_usd, run.dearest_call_usd) == (Decimal("0.012"), Decimal("0.01"))
    assert run.scope == batch.scope
    timeline = [(entry.kind, entry.ms, entry.spend_usd) for _, entry in await world.upkeep.timeline(fence.run_id)]
    assert timeline[-2:] == [("model", 120, Decimal("0.01")), ("read", 3, None)]


@pytest.mark.own_session("counts what one session runs; unprepared, each is two")
async def test_a_step_sends_one_statement_and_nothing_else(world: World, database: str) -> None:
    fence = await world.started()
    one = await open_pool(database, size=1)
    try:
        store = PgWorkerStore(one, now=world.time)
        await store.step(fence, Batch(messages=(turn(1, "lookup"),), steps=1))  # asks for types, once a connection
        statements: list[str] = []
        async with one.acquire() as connection:
            connection.add_query_logger(lambda record: statements.append(record.query))
        await store.step(fence, Batch(messages=(result(2, CallKey(1, 0)),), trace=(TraceEntry("model"),), steps=1))
    finally:
        await one.close()
    assert [statement.split()[1] for statement in statements] == ["step_run"]


async def test_every_byte_of_a_message_comes_back(world: World) -> None:
    fence = await world.started()
    arguments = {"nul": "\x00", "lone": "\ud800", "nan": math.inf, "big": 2**70, "z": 1, "a": 2}
    message = Message(
        role="assistant",
        text="\x00 \ud83d \U0001f600",
        calls=(ToolCall(id="call_1", tool="x", arguments=arguments, malformed="{\x00"),),
        raw=bytes(range(256)),
    )
    await world.worker.step(fence, Batch(messages=(StoredMessage(1, message),), doing="a\x00b\ud800"))
    stored = (await world.worker.load(fence)).messages[1].message
    assert stored == message
    assert list(stored.calls[0].arguments) == list(arguments)


async def test_messages_that_do_not_continue_the_conversation_are_refused(world: World) -> None:
    fence = await world.started()
    before = await world.everything()
    for batch in (Batch(messages=(said(2),)), Batch(messages=(said(0),)), Batch(messages=(said(1), said(3)))):
        with pytest.raises(InvariantBroken):
            await world.worker.step(fence, batch)
    assert await world.everything() == before


Move = Callable[[World, Fence], Awaitable[object]]
CLOSING = Closing(detail="over", alert=Alert("k", "t", "x"))
MOVES: dict[str, Move] = {
    "load": lambda w, f: w.worker.load(f),
    "step": lambda w, f: w.worker.step(f, Batch(messages=(said(2),))),
    "intend": lambda w, f: w.worker.intend(f, Batch(), an_action(f.run_id, CallKey(1, 0))),
    "conclude": lambda w, f: w.worker.conclude(f, Batch(messages=(result(2, CallKey(1, 0)),))),
    "suspend": lambda w, f: w.worker.suspend(f, Batch(), 9, [an_ask(f.run_id, CallKey(1, 0))]),
    "stay": lambda w, f: w.worker.suspend(f, Batch(), 9, [an_ask(f.run_id, CallKey(1, 0))], stay_running=True),
    "rearm": lambda w, f: w.worker.rearm(f, Batch(), 9, f"{f.run_id}.s", "new", "try again"),
    "supersede_open": lambda w, f: w.worker.supersede_open(f, Batch(), 9),
    "wait": lambda w, f: w.worker.wait(f, Batch(), 9),
    "answer": lambda w, f: w.worker.answer(f, Batch(), 9, "done"),
    "halt": lambda w, f: w.worker.halt(f, Batch(), HaltReason.BUDGET_STEPS, CLOSING),
    "fail": lambda w, f: w.worker.fail(f, Batch(), "defect", CLOSING),
}


@pytest.mark.parametrize("name", MOVES)
async def test_a_lost_claim_changes_nothing(world: World, name: str) -> None:
    fence, _ = await world.asking()
    await world.worker.release(fence)
    (claimed,) = await world.worker.claim(world.worker_id, 1)
    assert claimed.fence.run_id == fence.run_id
    before = await world.everything()
    with pytest.raises(ClaimLost):
        await MOVES[name](world, fence)
    assert await world.everything() == before


async def test_releasing_a_lost_claim_is_no_error_and_changes_nothing(world: World) -> None:
    fence, _ = await world.asking()
    await world.worker.release(fence)
    await world.worker.claim(world.worker_id, 1)
    before = await world.everything()
    await world.worker.release(fence)
    assert await world.everything() == before


@pytest.mark.parametrize("name", ["suspend", "stay", "supersede_open", "wait", "answer"])
async def test_news_stops_a_move_that_ends_the_look_and_writes_nothing(world: World, name: str) -> None:
    fence, _ = await world.asking()
    letter = await world.letter("one more thing", thread=await _thread(world, fence))
    assert await world.desk.attach(letter, fence.run_id)
    before = await world.everything()
    run_id = fence.run_id
    moves: dict[str, Move] = {
        "suspend": lambda w, f: w.worker.suspend(f, Batch(), 0, [an_ask(run_id, CallKey(1, 0))]),
        "stay": lambda w, f: w.worker.suspend(f, Batch(), 0, [an_ask(run_id, CallKey(1, 0))], stay_running=True),
        "supersede_open": lambda w, f: w.worker.supersede_open(f, Batch(), 0),
        "wait": lambda w, f: w.worker.wait(f, Batch(), 0),
        "answer": lambda w, f: w.worker.answer(f, Batch(messages=(said(2),)), 0, "done"),
    }
    with pytest.raises(NewsArrived):
        await moves[name](world, fence)
    assert await world.everything() == before


async def test_an_answer_waits_for_mail_that_is_not_in_the_conversation(world: World) -> None:
    fence = await world.started()
    letter = await world.letter("and add tax", thread=await _thread(world, fence))
    await world.desk.attach(letter, fence.run_id)
    (mail,) = (await world.worker.load(fence)).mail
    with pytest.raises(NewsArrived):
        await world.worker.answer(fence, Batch(), 1, "done")
    assert await world.worker.step(fence, Batch(messages=(said(1, mail.text),), mail=(mail.inbox_id,))) == 1
    assert (await world.worker.load(fence)).mail == ()
    await world.worker.answer(fence, Batch(messages=(turn(2, text="done"),)), 1, "done")
    assert await world.state(fence.run_id) == "answered"


async def test_an_answer_frees_the_thread_and_is_owed(world: World) -> None:
    fence = await world.started()
    await world.worker.answer(fence, Batch(messages=(turn(1, text="42 \x00"),), steps=1), 0, "42 \x00")
    run = await world.desk.run(fence.run_id)
    assert run is not None
    assert (run.state, run.claim_token, run.ended_at) == (RunState.ANSWERED, None, world.now)
    assert not await world.live(run.id)
    places = await world.places()
    assert places[f"answer:{run.id}:1"] == 1
    assert places[f"progress:{run.id}"] == 2
    (row,) = [row for row in await world.outbox.take(9, 30) if row.kind == "answer"]
    assert (await world.outbox.render_inputs(row)).answer == "42 \x00"
    with pytest.raises(ClaimLost):
        await world.worker.step(fence, Batch())


# ---- actions -------------------------------------------------------------------------------------------------------


async def test_an_action_is_one_row_that_may_be_intended_again_until_it_succeeds(world: World) -> None:
    fence, (call,) = await world.asking()
    action = an_action(fence.run_id, call)
    key = action.arguments_digest
    await world.worker.intend(fence, Batch(doing="sending"), action)
    world.pass_time(3)
    (intended,) = (await world.worker.load(fence)).actions
    assert (intended.state, intended.intended_age_s, intended.timeout_s) == (ActionState.INTENDED, 3.0, 30.0)
    await world.worker.conclude(fence, Batch(), [Outcome(call, key, ActionState.UNKNOWN)])
    await world.worker.conclude(fence, Batch(), [Outcome(call, key, ActionState.FAILED)])
    await world.worker.intend(fence, Batch(), action)
    (again,) = (await world.worker.load(fence)).actions
    assert (again.state, again.intended_age_s, again.idempotency_key) == (
        ActionState.INTENDED,
        0.0,
        action.idempotency_key,
    )
    await world.worker.conclude(
        fence, Batch(messages=(result(2, call, '"Q-1"'),)), [Outcome(call, key, ActionState.SUCCEEDED, '"Q-1"')]
    )
    (done,) = (await world.worker.load(fence)).actions
    assert (done.state, done.result) == (ActionState.SUCCEEDED, '"Q-1"')
    before = await world.everything()
    with pytest.raises(InvariantBroken):
        await world.worker.intend(fence, Batch(), action)
    with pytest.raises(InvariantBroken):
        await world.worker.conclude(fence, Batch(messages=(said(3),)), [Outcome(call, key, ActionState.FAILED)])
    assert await world.everything() == before


async def test_nothing_is_intended_once_a_stop_was_requested(world: World) -> None:
    fence, (call,) = await world.asking()
    assert (await world.desk.stop(fence.run_id, clicker())).how == "requested"
    before = await world.everything()
    with pytest.raises(NewsArrived):
        await world.worker.intend(fence, Batch(), an_action(fence.run_id, call))
    assert await world.everything() == before


async def test_a_second_result_for_one_call_is_refused(world: World) -> None:
    fence, (call,) = await world.asking()
    await world.worker.conclude(fence, Batch(messages=(result(2, call),)))
    before = await world.everything()
    with pytest.raises(InvariantBroken):
        await world.worker.conclude(fence, Batch(messages=(result(3, call),)))
    assert await world.everything() == before


async def test_a_settlement_shows_on_the_card_and_replies_once(world: World) -> None:
    fence, (ask,) = await world.approved()
    version = (await world.places())[f"card:{ask.id}"]
    settlement = Settlement(ask.id, "not_executed", "account on credit hold", reply="Not executed: credit hold")
    await world.worker.conclude(fence, Batch(messages=(result(2, ask.call),)), (), [settlement])
    await world.worker.conclude(fence, Batch(), (), [settlement])
    (suspension,) = (await world.worker.load(fence)).suspensions
    assert (suspension.settled_kind, suspension.settled_text) == ("not_executed", "account on credit hold")
    places = await world.places()
    assert places[f"card:{ask.id}"] == version + 2
    assert places[f"notice:{ask.id}:not_executed"] == 1


# ---- waiting for people --------------------------------------------------------------------------------------------


async def test_suspending_opens_every_call_with_a_card_in_its_place(world: World) -> None:
    fence, (first, second) = await world.asking("send", "send")
    elsewhere = Approval(by=("U7",), channel="C9")
    asks = [an_ask(fence.run_id, first), an_ask(fence.run_id, second, policy=elsewhere, note="edited", alert="look")]
    await world.worker.suspend(fence, Batch(trace=(TraceEntry("suspended"),)), 0, asks)
    view = await world.desk.show(fence.run_id)
    assert view is not None
    assert (view.run.state, view.run.claim_token) == (RunState.SUSPENDED, None)
    assert [(s.call, s.number, s.status, s.policy, s.note) for s in view.suspensions] == [
        (first, 1, SuspensionStatus.OPEN, Approval(), None),
        (second, 1, SuspensionStatus.OPEN, elsewhere, "edited"),
    ]
    assert (view.suspensions[0].expires_at - world.now).total_seconds() == 1800
    cards = await world.pool.fetch("select place, channel_id, thread_ts from outbox where kind = 'card' order by place")
    assert [tuple(card) for card in cards] == [
        (f"card:{asks[0].id}", "C1", view.run.thread_ts),
        (f"card:{asks[1].id}", "C9", None),
        (f"pointer:{asks[1].id}", "C1", view.run.thread_ts),
    ]
    assert f"alert:suspension:{asks[1].id}" in await world.places()


async def test_a_run_never_waits_for_nobody(world: World) -> None:
    fence, _ = await world.asking()
    before = await world.everything()
    with pytest.raises(InvariantBroken):
        await world.worker.wait(fence, Batch(), 0)
    assert await world.everything() == before


async def test_waiting_again_after_a_sibling_was_done_keeps_the_open_card(world: World) -> None:
    run_id, (first, second) = await world.suspended("send", "send")
    decided = await world.desk.decide(
        first.id, first.token, first.digest, clicker(), approve=False, worker_id=world.worker_id
    )
    assert decided.claimed is not None
    await world.worker.wait(decided.claimed, Batch(messages=(result(2, first.call),)), 1)
    assert await world.state(run_id) == "suspended"
    assert (await world.places())[f"card:{second.id}"] == 1


async def test_resuspending_replaces_the_old_one_and_voids_its_votes(world: World) -> None:
    fence, (old,) = await world.approved()
    new = an_ask(fence.run_id, old.call, replaces=old.id, note="the price changed")
    await world.worker.suspend(fence, Batch(), 1, [new])
    view = await world.desk.show(fence.run_id)
    assert view is not None
    before, after = view.suspensions
    assert (before.status, before.replaced_by, before.votes) == (SuspensionStatus.REPLACED, new.id, ())
    assert (after.status, after.number, after.replaces) == (SuspensionStatus.OPEN, 2, old.id)
    assert view.run.state is RunState.SUSPENDED


async def test_a_suspension_with_a_sibling_at_work_leaves_the_run_running(world: World) -> None:
    fence, (call,) = await world.asking()
    await world.worker.suspend(fence, Batch(), 0, [an_ask(fence.run_id, call)], stay_running=True)
    run = await world.desk.run(fence.run_id)
    assert run is not None
    assert (run.state, run.claim_token) == (RunState.RUNNING, fence.claim_token)


async def test_rearming_opens_the_same_card_with_a_new_token_and_the_old_expiry(world: World) -> None:
    fence, (ask,) = await world.approved()
    world.pass_time(60)
    assert await world.worker.rearm(fence, Batch(), 1, ask.id, "token2", "could not check")
    view = await world.desk.show(fence.run_id)
    assert view is not None
    (again,) = view.suspensions
    assert (again.status, again.token, again.votes, again.decided_by, again.note) == (
        SuspensionStatus.OPEN,
        "token2",
        (),
        None,
        "could not check",
    )
    assert (again.expires_at - world.now).total_seconds() == 1740
    assert view.run.state is RunState.SUSPENDED
    assert await world.value("select count(*) from audit where allowed and act = 'approve'") == 1


async def test_rearming_past_the_expiry_expires_and_the_run_goes_on(world: World) -> None:
    fence, (ask,) = await world.approved()
    world.pass_time(1801)
    assert not await world.worker.rearm(fence, Batch(), 1, ask.id, "token2", "could not check")
    view = await world.worker.load(fence)
    assert view.suspensions[0].status is SuspensionStatus.EXPIRED
    assert f"notice:{ask.id}:expired" in await world.places()


async def test_superseding_closes_open_approvals_and_never_posts_an_unseen_card(world: World) -> None:
    fence, (first, second) = await world.asking("send", "send")
    seen, unseen = an_ask(fence.run_id, first), an_ask(fence.run_id, second)
    await world.worker.suspend(fence, Batch(), 0, [seen], stay_running=True)
    (row,) = [row for row in await world.outbox.take(9, 30) if row.kind == "card"]
    await world.outbox.delivered(row, 1, "C1", "1.1")
    await world.worker.suspend(fence, Batch(), 0, [unseen], stay_running=True)
    await world.worker.supersede_open(fence, Batch(), 0)
    view = await world.worker.load(fence)
    assert [s.status for s in view.suspensions] == [SuspensionStatus.SUPERSEDED] * 2
    places = await world.places()
    assert places[f"card:{seen.id}"] == 2
    assert f"card:{unseen.id}" not in places


# ---- endings -------------------------------------------------------------------------------------------------------


async def test_a_halt_closes_everything_and_gives_mail_back(world: World) -> None:
    fence, (first, second) = await world.asking("send", "send")
    ask = an_ask(fence.run_id, second)
    await world.worker.suspend(fence, Batch(), 0, [ask], stay_running=True)
    await world.worker.intend(fence, Batch(), an_action(fence.run_id, first))
    letter = await world.letter("hurry", thread=await _thread(world, fence))
    await world.desk.attach(letter, fence.run_id)
    closing = Closing(detail="cannot tell", next_worst_usd=Decimal("0.03"), alert=Alert("a", "t", "x"))
    await world.worker.halt(fence, Batch(elapsed_ms=5), HaltReason.OUTCOME_UNKNOWN, closing)
    view = await world.desk.show(fence.run_id)
    assert view is not None
    run = view.run
    assert (run.state, run.halt_reason, run.halts, run.next_worst_usd, run.stop_requested) == (
        RunState.HALTED,
        HaltReason.OUTCOME_UNKNOWN,
        1,
        Decimal("0.03"),
        None,
    )
    assert [s.status for s in view.suspensions] == [SuspensionStatus.STOPPED]
    assert [a.state for a in view.actions] == [ActionState.UNKNOWN]
    assert not await world.live(run.id)
    assert [taken.id for taken in await world.desk.take_mail(9, 30)] == [letter.id]
    assert {f"halt:{run.id}:1", "alert:a", f"card:{ask.id}"} <= set(await world.places())


async def test_a_failure_leaves_no_card_open_and_tells_operators_each_outcome(world: World) -> None:
    fence, (asked, other) = await world.approved("send", "send")
    await world.worker.intend(fence, Batch(), an_action(fence.run_id, asked.call, suspension_id=asked.id))
    await world.worker.fail(fence, Batch(), "defect", Closing(detail="a defect"))
    view = await world.desk.show(fence.run_id)
    assert view is not None
    assert (view.run.state, view.run.fail_reason) == (RunState.FAILED, "defect")
    assert [s.settled_kind for s in view.suspensions] == ["unknown", "not_executed"]
    assert [a.state for a in view.actions] == [ActionState.UNKNOWN]
    assert {f"failure:{fence.run_id}", f"alert:failed:{fence.run_id}"} <= set(await world.places())
    content = await world.value("select content from outbox where kind = 'alert'")
    assert "send: unknown" in content
    assert not await world.live(fence.run_id)
    assert other.id != asked.id


# ---- claims --------------------------------------------------------------------------------------------------------


async def _unclaimed(world: World, user: str) -> str:
    letter = await world.letter(user=user)
    new = world.new_run(letter)
    assert await world.desk.start(letter, new, None) is None
    world.pass_time(1)
    return new.id


async def test_a_burst_of_one_person_starves_nobody(world: World) -> None:
    await world.upkeep.register(world.worker_id, "host", 1, "worker", 1, holds_lock=False)
    burst = [await _unclaimed(world, "U1") for _ in range(4)]
    other = await _unclaimed(world, "U2")
    first = await world.worker.claim(world.worker_id, 2)
    assert [claimed.run.id for claimed in first] == [burst[0], other]
    third = await _unclaimed(world, "U3")
    assert [claimed.run.id for claimed in await world.worker.claim(world.worker_id, 1)] == [third]
    rest = await world.worker.claim(world.worker_id, 9)
    assert [claimed.run.id for claimed in rest] == burst[1:]
    assert await world.worker.claim(world.worker_id, 9) == []
    assert all(claimed.fence.claim_token == claimed.run.claim_token for claimed in rest)


async def test_runs_that_took_a_process_down_twice_are_claimed_alone(world: World) -> None:
    crashed, worn = await _unclaimed(world, "U1"), await _unclaimed(world, "U2")
    await world.pool.execute("update runs set crashes = 2 where id = $1", crashed)
    await world.pool.execute("update runs set recovery_attempts = 3 where id = $1", worn)
    assert await world.worker.claim(world.worker_id, 9) == []
    assert await world.worker.to_be_alone(9) == [crashed, worn]
    claimed = await world.worker.claim_one(world.worker_id, crashed)
    assert claimed is not None
    assert claimed.run.crashes == 2
    assert await world.worker.claim_one(world.worker_id, crashed) is None
    assert await world.worker.to_be_alone(9) == [worn]


async def test_releasing_costs_no_attempt(world: World) -> None:
    fence = await world.started()
    await world.worker.release(fence)
    run = await world.desk.run(fence.run_id)
    assert run is not None
    assert (run.state, run.claim_token, run.recovery_attempts, run.crashes) == (RunState.RUNNING, None, 0, 0)


async def test_eight_workers_claim_two_hundred_runs_once_each(world: World) -> None:
    letter = await world.letter()
    template = world.new_run(letter)
    await world.desk.start(letter, template, None)
    await world.pool.execute(
        "insert into runs (id, team_id, channel_id, thread_ts, user_id, owner, question, route, max_steps,"
        " max_tool_calls, max_spend_usd, max_elapsed_ms, state, scope, scope_resolved_at)"
        " select 'many' || n, team_id, channel_id, 't' || n, 'U' || n % 7, owner, question, route, max_steps,"
        " max_tool_calls, max_spend_usd, max_elapsed_ms, state, scope, scope_resolved_at"
        " from runs, generate_series(1, 199) n where id = $1",
        template.id,
    )

    async def work() -> list[str]:
        mine: list[str] = []
        while claimed := await world.worker.claim(world.worker_id, 5):
            mine += [one.run.id for one in claimed]
        return mine

    claims = [run_id for mine in await asyncio.gather(*(work() for _ in range(8))) for run_id in mine]
    assert len(claims) == 200
    assert len(set(claims)) == 200


async def test_load_sees_suspensions_actions_and_mail_of_one_moment(world: World) -> None:
    run_id, action, ask = await world.in_doubt()
    view = await world.desk.show(run_id)
    assert view is not None
    assert [(s.kind, s.number, s.votes) for s in view.suspensions] == [
        (SuspensionKind.APPROVAL, 1, ("U1",)),
        (SuspensionKind.OUTCOME, 2, ()),
    ]
    assert view.suspensions[1].id == ask.id
    assert view.actions[0].arguments == action.arguments
    assert view.now == world.now
    assert replace(view.run, claim_token=None) == view.run


async def _thread(world: World, fence: Fence) -> str:
    return str(await world.value("select thread_ts from runs where id = $1", fence.run_id))
