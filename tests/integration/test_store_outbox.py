"""The outbox: what is owed, who holds it, what it shows, and the pace that replicas share."""

import asyncio
from dataclasses import replace
from uuid import uuid4

import asyncpg
import pytest

from core.conversation import CallKey
from core.ports import Alert, Batch, OutboxRow, Outcome, TraceEntry
from core.run import ActionState
from core.tools import Approval
from storage import endings
from tests.integration.storeworld import World, an_action, an_ask, clicker, result, turn, world_on


@pytest.fixture
def world(pool: "asyncpg.Pool[asyncpg.Record]") -> World:
    return world_on(pool)


async def _take(world: World, kind: str) -> OutboxRow:
    (row,) = [row for row in await world.outbox.take(50, 30) if row.kind == kind]
    return row


async def test_cards_and_answers_go_first_and_progress_last(world: World) -> None:
    await world.halted()
    await world.suspended()
    fence = await world.started()
    await world.worker.answer(fence, Batch(messages=(turn(1, text="hi"),)), 0, "hi")
    kinds = [row.kind for row in await world.outbox.take(50, 30)]
    assert kinds == sorted(kinds, key=lambda kind: {"card": 0, "answer": 0, "progress": 2}.get(kind, 1))
    assert set(kinds) == {"card", "answer", "halt", "progress"}
    assert await world.outbox.take(50, 30) == []
    world.pass_time(31)
    assert len(await world.outbox.take(50, 30)) == len(kinds)


async def test_two_deliverers_never_hold_the_same_row(world: World) -> None:
    for _ in range(10):
        await world.started()
    rounds = await asyncio.gather(*(world.outbox.take(4, 30) for _ in range(4)))
    places = [row.place for rows in rounds for row in rows]
    assert len(places) == len(set(places)) == 10


async def test_a_change_while_a_message_is_on_its_way_is_owed_again(world: World) -> None:
    _, (ask,) = await world.suspended()
    row = await _take(world, "card")
    assert (row.version, await world.outbox.current_version(row)) == (1, 1)
    await world.desk.decide(ask.id, ask.token, ask.digest, clicker(), approve=True)
    assert await world.outbox.current_version(row) == 2
    assert await world.outbox.delivered(row, row.version, "C1", "1.1")
    again = await _take(world, "card")
    assert (again.version, again.delivered_version, again.message_ts) == (2, 1, "1.1")
    assert await world.outbox.delivered(again, 2, "C1", "1.1")
    assert [row.kind for row in await world.outbox.take(50, 30) if row.kind == "card"] == []


async def test_a_lost_lease_changes_nothing(world: World) -> None:
    await world.started()
    old = await _take(world, "progress")
    world.pass_time(31)
    await _take(world, "progress")
    before = await world.everything()
    assert not await world.outbox.delivered(old, 1, "C1", "1.1")
    assert not await world.outbox.posting(old)
    assert not await world.outbox.reference(old, "C1", "1.1")
    assert not await world.outbox.retry(old, "x", 1)
    assert not await world.outbox.refused(old, "x")
    assert not await world.outbox.renew(old, 30)
    assert await world.everything() == before


async def test_an_unknown_post_is_remembered_until_it_is_found_or_known_absent(world: World) -> None:
    await world.started()
    row = await _take(world, "progress")
    assert row.posting_age_s is None
    assert await world.outbox.posting(row)
    assert await world.outbox.retry(row, "timeout", 10)
    assert await world.outbox.take(50, 30) == []
    world.pass_time(12)
    row = await _take(world, "progress")
    assert (row.posting_age_s, row.attempts, row.message_ts) == (12.0, 1, None)
    assert await world.outbox.renew(row, 60)
    assert await world.outbox.reference(row, "C1", "1.1")
    world.pass_time(61)
    row = await _take(world, "progress")
    assert (row.posting_age_s, row.message_ts) == (None, "1.1")
    assert await world.outbox.due_links(row.place) == ("C1", "1.1")
    assert await world.outbox.posting(row)
    assert await world.outbox.retry(row, "not there", 0, absent=True)
    assert (await _take(world, "progress")).posting_age_s is None


async def test_what_slack_refuses_is_left_alone_and_told_once_until_something_else_is_wanted(world: World) -> None:
    run_id, (ask,) = await world.suspended()
    row = await _take(world, "card")
    assert await world.outbox.refused(row, "is_archived")
    alert = await _take(world, "alert")
    assert alert.channel_id == ""
    content = (await world.outbox.render_inputs(alert)).content
    assert content["run_id"] == run_id
    assert "is_archived" in content["text"]
    assert await world.outbox.refused(alert, "no alert channel")
    assert await world.value("select count(*) from outbox where kind = 'alert'") == 1
    world.pass_time(3600)
    assert "card" not in [row.kind for row in await world.outbox.take(50, 30)]
    await world.pool.execute("update suspensions set expires_at = opened_at + interval '1 minute'")
    assert await world.upkeep.expire_due() == 1
    assert (await _take(world, "card")).ref == ask.id


async def test_an_alert_and_a_notice_are_owed_once_whatever_is_retried(world: World) -> None:
    async with world.pool.acquire() as connection:
        for text in ("first", "second"):
            await endings.owe_alert(connection, None, Alert("key", "title", text), world.now)
    row = await _take(world, "alert")
    assert (row.version, (await world.outbox.render_inputs(row)).content["text"]) == (1, "first")


async def test_a_card_stands_at_every_place_where_it_is_wanted(world: World) -> None:
    _, (ask,) = await world.suspended()
    assert await world.outbox.mirror_card(ask.id, "D7")
    assert not await world.outbox.mirror_card(ask.id, "D7")
    await world.desk.decide(ask.id, ask.token, ask.digest, clicker(), approve=False)
    places = await world.places()
    assert (places[f"card:{ask.id}"], places[f"card:{ask.id}:D7"]) == (2, 2)


async def test_a_policys_channel_gets_the_card_and_the_thread_a_pointer(world: World) -> None:
    run_id, (ask,) = await world.suspended(policy=Approval(by="anyone", channel="C0MANAGERS"))
    rows = {row["place"]: row for row in await world.pool.fetch("select * from outbox where kind = 'card'")}
    card, pointer = rows[f"card:{ask.id}"], rows[f"pointer:{ask.id}"]
    assert (card["channel_id"], card["thread_ts"]) == ("C0MANAGERS", None)
    thread = await world.value("select thread_ts from runs where id = $1", run_id)
    assert (pointer["channel_id"], pointer["thread_ts"], pointer["ref"]) == ("C1", thread, ask.id)
    await world.desk.decide(ask.id, ask.token, ask.digest, clicker(), approve=True)
    places = await world.places()
    assert (places[f"card:{ask.id}"], places[f"pointer:{ask.id}"]) == (2, 2)


async def test_a_policy_that_names_the_runs_own_channel_keeps_the_card_in_its_thread(world: World) -> None:
    run_id, (ask,) = await world.suspended(policy=Approval(by="anyone", channel="C1"))
    (card,) = await world.pool.fetch("select * from outbox where kind = 'card'")
    thread = await world.value("select thread_ts from runs where id = $1", run_id)
    assert (card["place"], card["channel_id"], card["thread_ts"]) == (f"card:{ask.id}", "C1", thread)


async def test_a_refused_card_owes_one_alert_however_many_copies_are_refused(world: World) -> None:
    _, (ask,) = await world.suspended()
    await world.outbox.mirror_card(ask.id, "D7")
    for row in await world.outbox.take(50, 30):
        assert await world.outbox.refused(row, "is_archived")
    alerts = await world.pool.fetch("select place from outbox where kind = 'alert'")
    assert [alert["place"] for alert in alerts] == [f"alert:refused:card:{ask.id}"], "and none for the progress line"


async def test_a_message_stands_once_more_in_direct_messages(world: World) -> None:
    fence = await world.started()
    await world.worker.answer(fence, Batch(messages=(turn(1, text="42"),)), 0, "42")
    row = await _take(world, "answer")
    assert await world.outbox.mirror(row, "D7")
    assert not await world.outbox.mirror(row, "D7")
    (copy,) = [taken for taken in await world.outbox.take(50, 30) if taken.channel_id == "D7"]
    assert (copy.place, copy.thread_ts, copy.kind) == (f"{row.place}:D7", None, "answer")
    assert (await world.outbox.render_inputs(copy)).answer == "42"


async def test_what_somebody_may_have_seen_is_not_withdrawn(world: World) -> None:
    _, (ask,) = await world.suspended()
    row = await _take(world, "card")
    assert await world.outbox.posting(row)
    assert not await world.outbox.withdraw(row)
    assert not await world.outbox.withdraw(replace(row, lease_token=str(uuid4())))
    assert await world.outbox.retry(row, "it never went out", 0.0, absent=True)
    assert await world.outbox.withdraw(await _take(world, "card"))
    assert f"card:{ask.id}" not in await world.places()


async def test_an_alert_is_acknowledged_once_and_says_by_whom(world: World) -> None:
    async with world.pool.acquire() as connection:
        await endings.owe_alert(connection, None, Alert("key", "title", "te\0xt"), world.now)
    refused = await world.desk.acknowledge("alert:key", clicker("U8"), allowed=False)
    assert refused.refused
    first = await world.desk.acknowledge("alert:key", clicker("U9"), allowed=True)
    assert (first.refused, first.by, first.at) == (False, "U9", world.now)
    world.pass_time(60)
    second = await world.desk.acknowledge("alert:key", clicker("U7"), allowed=True)
    assert second == first
    assert (await world.desk.acknowledge("alert:nothing", clicker("U9"), allowed=True)).refused
    assert (await world.places())["alert:key"] == 2
    row = await _take(world, "alert")
    content = (await world.outbox.render_inputs(row)).content
    assert (content["acknowledged_by"], content["title"]) == ("U9", "title")
    audited = await world.pool.fetch("select by, allowed from audit where act = 'acknowledge' order by id")
    assert [tuple(row) for row in audited] == [("U8", False), ("U9", True), ("U7", True), ("U9", False)]


async def test_a_card_is_rendered_from_its_rows_with_the_older_version_beside_it(world: World) -> None:
    fence, (old, other) = await world.approved("send", "send")
    new = an_ask(fence.run_id, old.call, replaces=old.id, policy=Approval(by="anyone", count=2))
    news = await world.value("select news from runs")
    await world.worker.suspend(fence, Batch(trace=(TraceEntry("model", {"n": 1}, 5),)), news, [new])
    await world.desk.decide(new.id, new.token, new.digest, clicker("U4"), approve=True)
    rows = {row.ref: row for row in await world.outbox.take(50, 30) if row.kind == "card"}
    inputs = await world.outbox.render_inputs(rows[new.id])
    assert inputs.run is not None
    assert inputs.suspension is not None
    assert inputs.versus is not None
    assert (inputs.suspension.id, inputs.suspension.votes, inputs.versus.id) == (new.id, ("U4",), old.id)
    assert {sibling.id for sibling in inputs.siblings} == {old.id, other.id}
    assert ("model", {"n": 1}, 5) in [(entry.kind, entry.body, entry.ms) for entry in inputs.trace]
    assert len(inputs.trace) <= 10
    await world.outbox.delivered(rows[old.id], 9, "C1", "1.1")
    inputs = await world.outbox.render_inputs(rows[new.id])
    assert inputs.links == {f"card:{old.id}": ("C1", "1.1")}


async def test_a_replaced_card_is_said_again_once_there_is_a_newer_one_to_link_to(world: World) -> None:
    """Which of the two goes out first is chance; a replaced card that leads nowhere is a dead end."""
    fence, (old,) = await world.approved("send")
    new = an_ask(fence.run_id, old.call, replaces=old.id)
    await world.worker.suspend(fence, Batch(), await world.value("select news from runs"), [new])
    rows = {row.ref: row for row in await world.outbox.take(50, 30) if row.kind == "card"}
    await world.outbox.delivered(rows[old.id], rows[old.id].version, "C1", "1.1")
    assert not await world.outbox.take(50, 30)
    await world.outbox.delivered(rows[new.id], rows[new.id].version, "C1", "2.2")
    again = await _take(world, "card")
    assert again.place == f"card:{old.id}"
    assert (await world.outbox.render_inputs(again)).links[f"card:{new.id}"] == ("C1", "2.2")
    await world.outbox.delivered(again, again.version, "C1", "1.1")
    # The newer one's next versions stand where the first did.
    await world.desk.decide(new.id, new.token, new.digest, clicker(), approve=True)
    newest = await _take(world, "card")
    await world.outbox.delivered(newest, newest.version, "C1", "2.2")
    assert not [row for row in await world.outbox.take(50, 30) if row.kind == "card"]
    # Deleted, and posted afresh elsewhere in the thread.
    await world.pool.execute("update outbox set version = version + 1 where place = $1", newest.place)
    afresh = await _take(world, "card")
    await world.outbox.delivered(afresh, afresh.version, "C1", "3.3")
    assert (await _take(world, "card")).place == f"card:{old.id}"


async def test_what_links_to_a_card_hears_of_one_that_was_found(world: World) -> None:
    """A post whose answer was lost is found: its reference is noted before it is delivered."""
    _, (ask,) = await world.suspended(policy=Approval(by="anyone", channel="C0MANAGERS"))
    rows = {row.place: row for row in await world.outbox.take(50, 30) if row.kind == "card"}
    card, pointer = rows[f"card:{ask.id}"], rows[f"pointer:{ask.id}"]
    await world.outbox.delivered(pointer, pointer.version, "C1", "1.1")
    assert await world.outbox.reference(card, "C0MANAGERS", "2.2")
    await world.outbox.delivered(card, card.version, "C0MANAGERS", "2.2")
    assert (await _take(world, "card")).place == pointer.place


async def test_a_replaced_card_that_slack_refuses_is_not_tried_again_for_its_link(world: World) -> None:
    fence, (old,) = await world.approved("send")
    new = an_ask(fence.run_id, old.call, replaces=old.id)
    await world.worker.suspend(fence, Batch(), await world.value("select news from runs"), [new])
    rows = {row.ref: row for row in await world.outbox.take(50, 30) if row.kind == "card"}
    assert await world.outbox.refused(rows[old.id], "message_not_found")
    await world.outbox.delivered(rows[new.id], rows[new.id].version, "C2", "2.2")
    assert not [row for row in await world.outbox.take(50, 30) if row.ref == old.id]


async def test_a_card_says_when_an_identical_call_succeeded(world: World) -> None:
    fence, (ask,) = await world.approved(arguments={"quote": "Q-1", "amount": 1.5})
    action = an_action(fence.run_id, ask.call, ask.arguments, suspension_id=ask.id)
    await world.worker.intend(fence, Batch(), action)
    done = Outcome(ask.call, action.arguments_digest, ActionState.SUCCEEDED, '"ok"')
    await world.worker.conclude(fence, Batch(messages=(result(2, ask.call),)), [done])
    succeeded = world.now
    world.pass_time(60)
    for arguments, expected in (({"amount": 1.5, "quote": "Q-1"}, succeeded), ({"quote": "Q-2"}, None)):
        _, (again,) = await world.suspended(arguments=arguments)
        (row,) = [row for row in await world.outbox.take(50, 30) if row.ref == again.id]
        assert (await world.outbox.render_inputs(row)).identical_success_at == expected


async def test_a_halts_card_carries_continue_only_for_its_own_halt(world: World) -> None:
    run_id = await world.halted()
    row = await _take(world, "halt")
    inputs = await world.outbox.render_inputs(row)
    assert (inputs.continuable, inputs.detail) == (True, "the budget is used up")
    assert inputs.run is not None
    await world.desk.continue_(run_id, 1, clicker(), inputs.run.limits, None, None)
    assert not (await world.outbox.render_inputs(row)).continuable


async def test_an_expired_card_offers_to_ask_again_until_its_run_goes_on(world: World) -> None:
    """Continued, expired a second time, or followed up: the button is gone, and the card is redrawn without it."""
    run_id, (ask,) = await world.suspended()
    world.pass_time(1801)
    late = await world.desk.decide(ask.id, ask.token, ask.digest, clicker(), approve=True)
    assert late.run is not None
    row = await _take(world, "card")
    inputs = await world.outbox.render_inputs(row)
    assert inputs.continuable
    await world.outbox.delivered(row, row.version, "C1", "1.1")
    continued = await world.desk.continue_(run_id, 1, clicker(), late.run.limits, None, world.worker_id)
    assert continued.claimed is not None
    row = await _take(world, "card")
    assert not (await world.outbox.render_inputs(row)).continuable
    await world.outbox.delivered(row, row.version, "C1", "1.1")

    fence = continued.claimed
    turns = (result(2, ask.call), turn(3, "send"))
    await world.worker.step(fence, Batch(messages=turns, steps=1, tool_calls=1))
    again = an_ask(run_id, CallKey(3, 0))
    news = await world.value("select news from runs where id = $1", run_id)
    await world.worker.suspend(fence, Batch(), news, [again])
    world.pass_time(1801)
    await world.desk.decide(again.id, again.token, again.digest, clicker(), approve=True)
    newest = await _take(world, "card")
    assert newest.ref == again.id
    assert (await world.outbox.render_inputs(newest)).continuable
    assert not (await world.outbox.render_inputs(row)).continuable
    await world.outbox.delivered(newest, newest.version, "C1", "1.2")

    letter = await world.letter("do it for 300", thread=late.run.thread_ts)
    assert await world.desk.start(letter, world.new_run(letter, parent_id=run_id), None) is None
    redrawn = [row for row in await world.outbox.take(50, 30) if row.kind == "card"]
    assert {row.ref for row in redrawn} == {ask.id, again.id}
    assert not any([(await world.outbox.render_inputs(row)).continuable for row in redrawn])


async def test_a_progress_line_is_redrawn_only_when_the_run_went_on(world: World) -> None:
    fence = await world.started()
    row = await _take(world, "progress")
    await world.outbox.delivered(row, 1, "C1", "1.1")
    await world.worker.step(fence, Batch(steps=1, doing="drafting"))
    assert await world.outbox.refresh_progress(9, 2) == 0
    world.pass_time(3)
    assert await world.outbox.refresh_progress(9, 2) == 1
    row = await _take(world, "progress")
    inputs = await world.outbox.render_inputs(row)
    assert inputs.doing == "drafting"
    await world.outbox.delivered(row, row.version, "C1", "1.1")
    world.pass_time(3)
    assert await world.outbox.refresh_progress(9, 2) == 0


async def test_inputs_of_a_message_whose_run_was_removed_are_empty(world: World) -> None:
    await world.started()
    row = await _take(world, "progress")
    inputs = await world.outbox.render_inputs(replace(row, place="nowhere"))
    assert (inputs.run, inputs.content) == (None, {})


async def test_replicas_share_one_pace(world: World) -> None:
    waits = await asyncio.gather(*(world.outbox.reserve("T1", "C1", "chat.postMessage", 1.0) for _ in range(4)))
    assert sorted(waits) == [0.0, 1.0, 2.0, 3.0]
    assert await world.outbox.reserve("T1", "C2", "chat.postMessage", 1.0) == 0.0
    world.pass_time(10)
    assert await world.outbox.reserve("T1", "C1", "chat.postMessage", 1.0) == 0.0
    await world.outbox.back_off("T1", "C1", "chat.postMessage", 30)
    await world.outbox.back_off("T1", "C1", "chat.postMessage", 5)
    assert await world.outbox.reserve("T1", "C1", "chat.postMessage", 1.0) == 30.0
