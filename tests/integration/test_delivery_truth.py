"""Nothing stale stays: closed and opened channels, reminders, expiries, Home; private refusals."""

import re
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest

from bot.delivery import Delivery
from bot.simulator.workspace import ATLAS_OPS, CONTOSO, EMIL, MARCUS, RITA, SALES_DESK
from bot.texts import NOT_SERVED, Texts
from bot.wiring import SystemNames
from core.approvals import Via
from core.engine import Actor
from core.mail import Drain
from core.ports import InboundEvent
from core.run import RunState, SuspensionKind
from core.tools import Approval
from jobs.remind import Remind
from storage.maintenance import PgMaintenance
from tests.integration.slack_stage import PREVIEW, SETTLED_S, RealClock, Stage, connected, stage, until


@pytest.fixture
async def on(pool: "asyncpg.Pool[asyncpg.Record]") -> AsyncIterator[Stage]:
    """The stage, connected, with an alert channel."""
    async with stage(pool, alert_channel=ATLAS_OPS) as on, connected(on):
        yield on


def only(on: Stage, place: str) -> dict[str, Any]:
    """Return the one message of a place."""
    (message,) = on.posted(place)
    return message


def pressable(message: dict[str, Any]) -> set[str]:
    """Return the action ids of a message."""
    return {it["action_id"] for block in message["blocks"] if block["type"] == "actions" for it in block["elements"]}


def seen(message: dict[str, Any]) -> str:
    """Return everything that a message shows."""
    return str(message.get("blocks")) + str(message.get("text"))


def plain(message: dict[str, Any]) -> str:
    """Return a message's fallback text without its formatting."""
    return re.sub(r"<!date[^|]*\|([^>]*)>", r"\1", str(message["text"])).replace("*", "")


async def press(on: Stage, user: str, message: dict[str, Any], action: str) -> None:
    """Click in the sales desk's channel, and wait for the ack."""
    clicked = await (await on.slack.click(user, SALES_DESK, message["ts"], action)).settled()
    assert clicked.state == "acked"


async def decide(on: Stage, suspension_id: str, *, approve: bool = False) -> None:
    """Decide as Rita, in another place than the card's."""
    found = await on.desk.suspension(suspension_id)
    assert found is not None
    actor = Actor(on.installation.team_id, RITA, Via.HOME)
    decided = await on.engine.decide(actor, suspension_id, found[0].token, approve=approve, digest=found[0].digest)
    assert decided.refusal is None


def archive(on: Stage, archived: bool) -> None:
    """Archive the sales desk's channel, or open it again."""
    on.slack.change_world({"channel": SALES_DESK, "set": {"is_archived": archived}})


# ---- a channel that was closed for a while ---------------------------------------------------------------------------


async def stale_card(on: Stage) -> str:
    """Return a suspension that was decided while its channel was archived: its card there keeps live buttons."""
    suspension_id = await on.suspend(await on.run())
    await on.card(suspension_id)
    archive(on, archived=True)
    await decide(on, suspension_id)
    await on.deliver()
    place = f"card:{suspension_id}"
    assert (await on.row(place))["refused_at"] is not None
    assert "approve" in pressable(only(on, place))
    on.time.advance(100)
    await on.deliver()
    assert "approve" in pressable(only(on, place)), "nobody tries again in a closed channel"
    archive(on, archived=False)
    return suspension_id


async def test_a_late_click_on_a_stale_card_brings_it_up_to_date(on: Stage) -> None:
    """The click is refused, and the card that was pressed shows by now what it should have shown."""
    suspension_id = await stale_card(on)
    place = f"card:{suspension_id}"
    await press(on, RITA, only(on, place), "approve")
    await until(lambda: "Declined" in str(on.slack.ephemerals(RITA, SALES_DESK)))
    await on.deliver()
    card = only(on, place)
    assert pressable(card) == set()
    assert "Declined" in seen(card)
    row = await on.row(place)
    assert (row["refused_at"], row["version"] == row["delivered_version"]) == (None, True)
    assert len(on.posted(f"alert:refused:card:{suspension_id}")) == 1


async def test_the_next_message_that_a_channel_takes_brings_its_stale_cards_up_to_date(on: Stage) -> None:
    """Somebody asks for something else: the channel is open, so what was given up there is tried again."""
    suspension_id = await stale_card(on)
    await on.run("something else", MARCUS)
    await on.deliver()
    card = only(on, f"card:{suspension_id}")
    assert pressable(card) == set()
    assert "Declined" in seen(card)


async def test_what_slack_refuses_for_another_reason_is_not_tried_again_for_a_channels_sake(on: Stage) -> None:
    """It would be refused again, with every message that the channel takes."""
    suspension_id = await on.suspend(await on.run())
    card = await on.card(suspension_id)
    on.slack.faults.add("error", "chat.update", times=1, error="invalid_arguments", where={"ts": card["ts"]})
    await decide(on, suspension_id)
    await on.deliver()
    assert (await on.row(f"card:{suspension_id}"))["refused_at"] is not None
    await on.run("something else", MARCUS)
    await on.deliver()
    assert (await on.row(f"card:{suspension_id}"))["refused_at"] is not None


async def test_a_post_that_could_not_be_looked_for_is_looked_for_again_before_it_is_repeated(on: Stage) -> None:
    """Stored, its answer lost, the channel closed while it is looked for, then open: still one message."""
    suspension_id = await on.suspend(await on.run())
    place = f"card:{suspension_id}"
    where = {"metadata": {"event_payload": {"place": place}}}
    on.slack.faults.add("store_then_drop", "chat.postMessage", times=1, where=where)
    await on.deliver()
    on.slack.faults.add("error", "conversations.replies", times=1, error="not_in_channel")
    on.time.advance(SETTLED_S)
    await on.deliver()
    row = await on.row(place)
    assert row["refused_at"] is not None
    assert row["posting_since"] is not None, "nobody knows whether it stands"
    await decide(on, suspension_id)
    await on.deliver()
    assert len(on.posted(place)) == 1
    assert pressable(only(on, place)) == set()


# ---- reminders -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["approved", "declined", "expired"])
async def test_a_reminder_says_what_became_of_its_card(on: Stage, end: str) -> None:
    """It asked people to hurry; once there is nothing to decide, it is one quiet line that says so."""
    upkeep = PgMaintenance(on.pool, now=on.time, hints=False)
    suspension_id = await on.suspend(await on.run())
    await on.deliver()
    on.time.advance(1_600)
    assert await Remind(upkeep).run_once() == 1
    await on.deliver()
    place = f"notice:{suspension_id}:reminder"
    before = only(on, place)
    assert "still waits" in seen(before)
    if end == "expired":
        on.time.advance(300)
        assert await upkeep.expire_due() == 1
    else:
        await decide(on, suspension_id, approve=end == "approved")
    await on.deliver()
    after = only(on, place)
    assert after["ts"] == before["ts"]
    assert "still waits" not in seen(after)
    assert end in seen(after).lower()
    assert PREVIEW.title in seen(after)
    assert await on.pool.fetchval("select count(*) from outbox where version > delivered_version") == 0


async def test_a_reminder_whose_post_was_lost_and_came_to_nothing_is_owed_no_more(on: Stage) -> None:
    """Announced, never arrived, decided meanwhile: it is looked for, not found, and not said."""
    upkeep = PgMaintenance(on.pool, now=on.time, hints=False)
    suspension_id = await on.suspend(await on.run())
    await on.deliver()
    on.time.advance(1_600)
    await Remind(upkeep).run_once()
    place = f"notice:{suspension_id}:reminder"
    where = {"metadata": {"event_payload": {"place": place}}}
    on.slack.faults.add("drop_before", "chat.postMessage", times=1, where=where)
    await on.deliver()
    await decide(on, suspension_id)
    on.time.advance(SETTLED_S)
    await on.deliver()
    assert on.posted(place) == []
    assert await on.pool.fetchval("select count(*) from outbox where place = $1", place) == 0


# ---- an expiry that ends the run: its card offers to ask again, the halt's card to continue -------------------------


async def expired(on: Stage, kind: SuspensionKind = SuspensionKind.APPROVAL) -> tuple[str, str, str]:
    """Return the run and the places of both cards, after its only suspension expired."""
    fence = await on.run()
    suspension_id = await on.suspend(fence, kind=kind)
    await on.deliver()
    on.time.advance(1_801)
    assert await PgMaintenance(on.pool, now=on.time, hints=False).expire_due() == 1
    await on.deliver()
    return fence.run_id, f"card:{suspension_id}", f"halt:{fence.run_id}:1"


@pytest.mark.parametrize("pressed", ["card", "halt"])
async def test_ask_again_and_continue_are_one_act_and_both_cards_say_so(on: Stage, pressed: str) -> None:
    """Whichever is pressed: both lose their button and say that it went on; a second press grants nothing."""
    run_id, card, halt = await expired(on)
    assert pressable(only(on, card)) == pressable(only(on, halt)) == {"continue"}
    assert "Ask again" in seen(only(on, card))
    assert "Continue asks again" in seen(only(on, halt)), "each names the other"
    stale = {"card": only(on, halt), "halt": only(on, card)}[pressed]
    await press(on, RITA, only(on, {"card": card, "halt": halt}[pressed]), "continue")
    await press(on, RITA, stale, "continue")
    await until(lambda: "Nothing was continued" in str(on.slack.ephemerals(RITA, SALES_DESK)))
    run = await on.desk.run(run_id)
    assert run is not None
    assert (run.state, run.continuations) == (RunState.RUNNING, 1)
    await on.deliver()
    assert pressable(only(on, card)) == pressable(only(on, halt)) == set()
    assert "asked again" in plain(only(on, card))
    assert "Continued" in seen(only(on, halt))


async def test_an_expired_card_that_did_not_end_its_run_does_not_say_that_it_was_asked_again(on: Stage) -> None:
    """The run of another halt goes on: its older expired cards do not take the credit."""
    run_id, card, _ = await expired(on)
    await on.pool.execute("update runs set halt_reason = 'budget_steps' where id = $1", run_id)
    run = await on.desk.run(run_id)
    assert run is not None
    actor = Actor(on.installation.team_id, RITA, Via.COMMAND)
    assert (await on.engine.continue_run(actor, run_id)).run is not None
    await on.deliver()
    assert "asked again" not in plain(only(on, card))


# ---- Home ------------------------------------------------------------------------------------------------------------


async def test_each_card_in_home_links_back_to_its_thread(on: Stage) -> None:
    """A whole card, and the short line for what has no room."""
    runs = []
    for _ in range(5):
        fence = await on.run()
        await on.suspend(fence, policy=Approval(by=(MARCUS,)))
        runs.append(await on.desk.run(fence.run_id))
    view = await on.homes.view(Actor(on.installation.team_id, MARCUS, Via.HOME))
    for run in runs:
        assert run is not None
        assert f"archives/{SALES_DESK}/p{run.thread_ts.replace('.', '')}" in str(view["blocks"])


# ---- strangers -------------------------------------------------------------------------------------------------------


async def a_strangers_mention(on: Stage, number: int = 1) -> None:
    """Emil of another company mentions Atlas in the shared channel, and the drain takes it."""
    message = await on.slack.post_as(EMIL, CONTOSO, "quote us 200 of SKU-4411")
    team = on.installation.team_id
    event = InboundEvent(f"Ev{number}", "mention", team, CONTOSO, message["ts"], message["ts"], EMIL, "quote us", {})
    await on.inbox.put(event)
    drain = Drain(on.engine, on.desk, on.directory, Texts(), RealClock(), SystemNames(), {})
    assert await drain.once() == 1


async def test_somebody_of_another_company_is_told_alone_why_nothing_happens(on: Stage) -> None:
    """One private text that names nobody; nothing that the channel sees, no run, nothing owed."""
    await a_strangers_mention(on)
    await on.deliver()
    (whisper,) = on.slack.ephemerals(EMIL, CONTOSO)
    assert NOT_SERVED in str(whisper["text"])
    assert "<@" not in str(whisper)
    assert on.slack.bot_messages(CONTOSO) == []
    assert await on.pool.fetchval("select count(*) from runs") == 0
    assert await on.pool.fetchval("select count(*) from outbox") == 0


@pytest.mark.parametrize(("fault", "whispers"), [("store_then_drop", 1), ("error", 0), ("ratelimited", 1)])
async def test_a_private_text_is_said_once_at_most(on: Stage, fault: str, whispers: int) -> None:
    """It can be neither found nor edited: what may have arrived is not repeated, a refusal alerts nobody, a pause is
    kept."""
    more = {"error": {"error": "user_not_in_channel"}, "ratelimited": {"retry_after": 5}}.get(fault, {})
    on.slack.faults.add(fault, "chat.postEphemeral", times=1, **more)  # type: ignore[arg-type]
    await a_strangers_mention(on)
    for _ in range(3):
        await on.deliver()
        on.time.advance(20)
    assert len(on.slack.ephemerals(EMIL, CONTOSO)) == whispers
    assert await on.pool.fetchval("select count(*) from outbox") == 0


async def test_a_process_that_died_while_it_whispered_leaves_nothing_to_repeat(on: Stage) -> None:
    """Announced by one, found by another: it is over."""
    await a_strangers_mention(on)
    (row,) = await on.outbox.take(5, 25)
    assert await on.outbox.posting(row)
    on.time.advance(26)
    other = Delivery(on.outbox, on.delivery.client, on.installation, on.clock, on.time)
    assert await other.run_once(5) == 1
    assert on.slack.ephemerals(EMIL, CONTOSO) == []
    assert await on.pool.fetchval("select count(*) from outbox") == 0
