"""Delivery against the simulated Slack and the real store: one message per place, its newest version, in all faults."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest

from bot.simulator.workspace import ATLAS_OPS, MARCUS, RITA
from core.approvals import Via
from core.engine import Actor
from core.tools import Approval
from tests.integration.slack_stage import LONG, SETTLED_S, Stage, stage, until


@pytest.fixture
async def on(pool: "asyncpg.Pool[asyncpg.Record]") -> AsyncIterator[Stage]:
    """The stage, without a connection."""
    async with stage(pool, still=True) as on:
        yield on


async def approve(on: Stage, suspension_id: str, user: str = RITA) -> None:
    """Approve as *user*, past Slack."""
    found = await on.desk.suspension(suspension_id)
    assert found is not None
    actor = Actor(on.installation.team_id, user, Via.BUTTON)
    decided = await on.engine.decide(actor, suspension_id, found[0].token, approve=True, digest=found[0].digest)
    assert decided.refusal is None


def seen(message: dict[str, Any]) -> str:
    """Return what a message shows."""
    return str(message.get("blocks")) + str(message.get("text"))


async def test_a_card_is_posted_once_and_edited_to_its_newest_version(on: Stage) -> None:
    """The card stands in the thread with our metadata; a decision edits that very message.

    n8n-io/n8n#13144: answered, yet the request was posted again and again.
    """
    fence = await on.run()
    suspension_id = await on.suspend(fence)
    card = await on.card(suspension_id)
    assert card["thread_ts"] == (await on.desk.run(fence.run_id)).thread_ts  # type: ignore[union-attr]
    assert "Approve" in seen(card)
    await approve(on, suspension_id)
    again = await on.card(suspension_id)
    assert again["ts"] == card["ts"]
    assert "running" in seen(again)
    assert "'action_id': 'approve'" not in seen(again)
    row = await on.row(f"card:{suspension_id}")
    assert row["version"] == row["delivered_version"]


@pytest.mark.parametrize("fault", ["store_then_drop", "store_then_error"])
async def test_a_post_whose_answer_is_lost_is_found_not_repeated(on: Stage, fault: str) -> None:
    """Slack stored the message and the answer broke: after the settling time it is adopted by its metadata."""
    fence = await on.run()
    suspension_id = await on.suspend(fence)
    place = f"card:{suspension_id}"
    on.slack.faults.add(fault, "chat.postMessage", times=None, where={"metadata": {"event_payload": {"place": place}}})  # type: ignore[arg-type]
    await on.deliver()
    assert len(on.posted(place)) == 1
    assert (await on.row(place))["message_ts"] is None
    on.slack.faults.clear()
    await on.deliver()
    assert (await on.row(place))["message_ts"] is None, "not before the request can no longer arrive"
    on.time.advance(SETTLED_S)
    await on.deliver()
    (message,) = on.posted(place)
    row = await on.row(place)
    assert row["message_ts"] == message["ts"]
    assert row["delivered_version"] == row["version"]


@pytest.mark.parametrize("fault", ["drop_before", "http_error", "error"])
async def test_a_post_that_never_arrived_is_posted_once(on: Stage, fault: str) -> None:
    """The outcome is unknown, the search finds nothing, and then there is exactly one message."""
    fence = await on.run()
    suspension_id = await on.suspend(fence)
    place = f"card:{suspension_id}"
    on.slack.faults.add(fault, "chat.postMessage", times=2)  # type: ignore[arg-type]
    await on.deliver()
    for _ in range(3):
        on.time.advance(SETTLED_S)
        await on.deliver()
    assert on.slack.faults.listing()["methods"] == [], "the faults happened"
    assert len(on.posted(place)) == 1
    assert (await on.row(place))["message_ts"] == on.posted(place)[0]["ts"]


class Late:
    """The real client, whose first post of *place* waits until its sender gave it up, and then arrives when told."""

    def __init__(self, real: Any, place: str) -> None:
        self._real = real
        self.place = place
        self.held: dict[str, Any] | None = None

    def __getattr__(self, name: str) -> Any:
        """Return what the real one has."""
        return getattr(self._real, name)

    async def chat_postMessage(self, **how: Any) -> Any:  # noqa: N802  (slack_sdk's name)
        """Post, or hang."""
        if self.held is not None or how["metadata"]["event_payload"]["place"] != self.place:
            return await self._real.chat_postMessage(**how)
        self.held = how
        return await asyncio.Event().wait()

    async def arrive(self) -> None:
        """Let it arrive after all."""
        assert self.held is not None
        await self._real.chat_postMessage(**self.held)


@pytest.mark.parametrize("settled_before", [False, True])
async def test_a_slow_answer_is_no_reason_for_a_second_post(
    pool: "asyncpg.Pool[asyncpg.Record]", settled_before: bool
) -> None:
    """Slack stores the message after our timeout: the search still finds it; nor does a newer version hurry it."""
    async with stage(pool, request_timeout_s=2.0) as on:
        suspension_id = await on.suspend(await on.run())
        place = f"card:{suspension_id}"
        late = Late(on.delivery.client, place)
        on.delivery.client = late  # type: ignore[assignment]  # it is one to the deliverer
        await on.deliver()
        if not settled_before:
            # The row becomes due while its post is still on its way: no second post before that is settled.
            await approve(on, suspension_id)
            await on.pool.execute("update outbox set next_attempt_at = '-infinity' where place = $1", place)
            await on.deliver()
        assert on.posted(place) == []
        await late.arrive()
        for _ in range(30):
            on.time.advance(SETTLED_S)
            await on.deliver()
            if not await on.pool.fetchval("select version > delivered_version from outbox where place = $1", place):
                break
        row = await on.row(place)
        (message,) = on.posted(place)
        assert row["message_ts"] == message["ts"]
        assert ("running" in seen(message)) != settled_before


async def test_a_pause_that_slack_asks_for_is_kept_and_nothing_is_lost(on: Stage) -> None:
    """429 with Retry-After: the kind of call pauses for every replica, then the message goes out."""
    fence = await on.run()
    suspension_id = await on.suspend(fence)
    on.slack.faults.add("ratelimited", "chat.postMessage", times=2, retry_after=20)
    await on.deliver()
    refused = on.slack.journal.last
    await on.deliver()
    assert not on.slack.journal.find({"kind": "request", "method": "chat.postMessage"}, refused)
    for _ in range(3):
        on.time.advance(25)
        await on.deliver()
    assert on.slack.faults.listing()["methods"] == [], "the faults happened"
    assert len(on.posted(f"card:{suspension_id}")) == 1


async def test_a_short_pause_holds_for_the_other_messages_too(on: Stage) -> None:
    """A pause shorter than the burst that pacing allows: another card's edit must not go out during it."""
    first, second = [await on.suspend(await on.run()) for _ in range(2)]
    cards = [await on.card(suspension_id) for suspension_id in (first, second)]
    on.slack.faults.add("ratelimited", "chat.update", times=1, retry_after=4)
    await approve(on, first)
    await on.deliver()
    (fault,) = on.slack.journal.find({"kind": "fault", "method": "chat.update"})
    await approve(on, second)
    for _ in range(6):
        await on.deliver()
        on.time.advance(5)
    edit = {"kind": "request", "method": "chat.update", "args": {"ts": cards[1]["ts"]}}
    edits = on.slack.journal.find(edit, fault["seq"])
    # Whether a delivery waits or gives the row back: nothing reaches Slack before the pause is over.
    assert edits[0]["t"] - fault["t"] >= 3.9
    for suspension_id in (first, second):
        (message,) = on.posted(f"card:{suspension_id}")
        assert "running" in seen(message)


@pytest.mark.parametrize("fault", ["store_then_drop", "drop_before", "http_error", "store_then_error"])
async def test_an_edit_with_an_unknown_outcome_is_sent_again(on: Stage, fault: str) -> None:
    """An edit repeats harmlessly; the newest version stands in the end, in the same message."""
    fence = await on.run()
    suspension_id = await on.suspend(fence)
    card = await on.card(suspension_id)
    await approve(on, suspension_id)
    on.slack.faults.add(fault, "chat.update", times=2)  # type: ignore[arg-type]
    await on.deliver()
    for _ in range(4):
        on.time.advance(SETTLED_S)
        await on.deliver()
    assert on.slack.faults.listing()["methods"] == [], "the faults happened"
    (message,) = on.posted(f"card:{suspension_id}")
    assert message["ts"] == card["ts"]
    assert "running" in seen(message)


@pytest.mark.parametrize("error", ["message_not_found", "edit_window_closed", "cant_update_message"])
async def test_what_cannot_be_edited_any_more_is_posted_afresh(on: Stage, error: str) -> None:
    """The thread gets a new message that shows the truth, and the row points to it."""
    fence = await on.run()
    suspension_id = await on.suspend(fence)
    card = await on.card(suspension_id)
    await approve(on, suspension_id)
    on.slack.faults.add("error", "chat.update", times=None, error=error, where={"ts": card["ts"]})
    await on.deliver()
    place = f"card:{suspension_id}"
    fresh = [message for message in on.posted(place) if message["ts"] != card["ts"]]
    assert len(fresh) == 1
    assert "running" in seen(fresh[0])
    assert (await on.row(place))["message_ts"] == fresh[0]["ts"]


async def test_a_lost_answer_of_a_fresh_post_is_found_too(on: Stage) -> None:
    """The old message carries the same place; only the new one counts."""
    fence = await on.run()
    suspension_id = await on.suspend(fence)
    card = await on.card(suspension_id)
    await approve(on, suspension_id)
    place = f"card:{suspension_id}"
    on.slack.faults.add("error", "chat.update", times=None, error="edit_window_closed", where={"ts": card["ts"]})
    on.slack.faults.add(
        "store_then_drop", "chat.postMessage", times=1, where={"metadata": {"event_payload": {"place": place}}}
    )
    await on.deliver()
    on.time.advance(SETTLED_S)
    await on.deliver()
    assert len(on.posted(place)) == 2
    assert (await on.row(place))["message_ts"] == on.posted(place)[1]["ts"]


async def test_what_slack_refuses_for_good_is_given_up_with_one_alert(pool: "asyncpg.Pool[asyncpg.Record]") -> None:
    """An archived channel: refused, not tried again, and the operators are told once."""
    async with stage(pool, alert_channel=ATLAS_OPS) as on:
        fence = await on.run()
        run = await on.desk.run(fence.run_id)
        assert run is not None
        suspension_id = await on.suspend(fence)
        on.slack.change_world({"channel": run.channel_id, "set": {"is_archived": True}})
        await on.deliver()
        assert (await on.row(f"card:{suspension_id}"))["refused_at"] is not None
        alerts = [m for m in on.slack.bot_messages(ATLAS_OPS) if "is_archived" in seen(m)]
        assert any("card" in seen(m) for m in alerts)
        calls = len(on.slack.journal.find({"kind": "request", "method": "chat.postMessage"}))
        on.time.advance(100)
        await on.deliver()
        assert len(on.slack.journal.find({"kind": "request", "method": "chat.postMessage"})) == calls


async def test_a_card_that_its_thread_cannot_show_goes_to_the_approvers(on: Stage) -> None:
    """Its approvers and its owner get it in their direct messages, and every copy follows the decision."""
    suspension_id = await on.suspend(await on.run(), policy=Approval(by=(MARCUS,)))
    on.slack.change_world({"channel": "C0SALESDESK", "set": {"is_archived": True}})
    await on.deliver()
    copies = [on.posted(f"card:{suspension_id}:{on.slack.dm(user)}") for user in (MARCUS, RITA)]
    assert [len(copy) for copy in copies] == [1, 1]
    assert "Approve" in seen(copies[0][0])
    await approve(on, suspension_id, MARCUS)
    on.time.advance(30)
    await on.deliver()
    for user in (MARCUS, RITA):
        (copy,) = on.posted(f"card:{suspension_id}:{on.slack.dm(user)}")
        assert "running" in seen(copy)


async def test_alerts_without_a_channel_end_in_the_log(on: Stage, caplog: pytest.LogCaptureFixture) -> None:
    """No alert channel is configured: the alert is logged and given up, and owes no alert of its own."""
    fence = await on.run()
    await on.suspend(fence)
    on.slack.change_world({"channel": "C0SALESDESK", "set": {"is_archived": True}})
    await on.deliver()
    alerts = await on.pool.fetch("select * from outbox where kind = 'alert'")
    assert alerts
    assert all(alert["refused_at"] is not None for alert in alerts)
    assert "ATLAS_ALERT_CHANNEL" in caplog.text


async def test_a_refused_layout_still_says_its_text(on: Stage) -> None:
    """Slack refuses the blocks: the plain text goes alone rather than nothing."""
    fence = await on.run()
    suspension_id = await on.suspend(fence)
    place = f"card:{suspension_id}"
    on.slack.faults.add(
        "error",
        "chat.postMessage",
        times=1,
        error="invalid_blocks",
        where={"metadata": {"event_payload": {"place": place}}},
    )
    await on.deliver()
    (message,) = on.posted(place)
    assert "Send quote Q-1042 to Henderson" in message["text"]


async def test_an_artefact_of_200_lines_is_accepted(on: Stage) -> None:
    """Slack's own lint takes the cut card."""
    fence = await on.run()
    card = await on.card(await on.suspend(fence, LONG))
    assert "details" in seen(card)
    assert "'action_id': 'approve'" not in seen(card)


async def test_many_edits_are_paced_and_none_is_lost(pool: "asyncpg.Pool[asyncpg.Record]") -> None:
    """With Slack's rate tiers on, a burst of edits waits for its turn; no 429 is provoked and each arrives."""
    async with stage(pool, rate_tiers=True) as on:
        cards = [await on.suspend(await on.run()) for _ in range(8)]
        for _ in range(60):
            await on.deliver()
            if all(on.posted(f"card:{card}") for card in cards):
                break
            on.time.advance(5)
        for card in cards:
            await approve(on, card)
        for _ in range(60):
            await on.deliver()
            rows = await on.pool.fetch("select * from outbox where version > delivered_version and kind = 'card'")
            if not rows:
                break
            on.time.advance(5)
        for card in cards:
            (message,) = on.posted(f"card:{card}")
            assert "running" in seen(message)


async def test_a_woken_delivery_goes_out_at_once_and_closes_cleanly(on: Stage) -> None:
    """The loop delivers what is owed, and close leaves nothing half sent."""
    loop = asyncio.create_task(on.delivery.run())
    suspension_id = await on.suspend(await on.run())
    on.delivery.wake()
    await until(lambda: on.posted(f"card:{suspension_id}"))
    await on.delivery.close()
    await loop
