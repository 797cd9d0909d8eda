"""Where cards stand and who is told: other channels with their pointers, reminders, closed places, alerts.

Everything between the store's moves and a person is the production code, against the simulated Slack.
"""

from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import asyncpg
import pytest
from slack_sdk.models.blocks import Block as SdkBlock

from bot.blocks.lint import lint
from bot.simulator.workspace import ATLAS_OPS, DEALS, MARCUS, OSKAR, RANDOM, RITA, SALES_DESK, VERA
from bot.texts import Texts
from bot.wiring import SystemNames
from core.approvals import Via
from core.engine import Actor
from core.errors import CouldNotCheck
from core.mail import Drain
from core.ports import Alert, Batch, Closing
from core.run import SuspensionKind, SuspensionStatus
from core.tools import Approval, UserGroup
from jobs.remind import Remind
from storage import endings
from storage.maintenance import PgMaintenance
from tests.integration.slack_stage import PREVIEW, RealClock, Stage, connected, stage, until


@pytest.fixture
async def on(pool: "asyncpg.Pool[asyncpg.Record]") -> AsyncIterator[Stage]:
    """The stage, connected, with an operator and an alert channel."""
    async with stage(pool, operators=frozenset({OSKAR}), alert_channel=ATLAS_OPS) as on, connected(on):
        yield on


def seen(message: dict[str, Any]) -> str:
    """Return everything that a message shows; fail when Slack would refuse it."""
    blocks = message.get("blocks") or []
    for block in SdkBlock.parse_all(blocks):
        block.validate_json()
    assert lint(blocks) == []
    return str(blocks) + str(message.get("text"))


def pressable(message: dict[str, Any]) -> set[str]:
    """Return the action ids of a message."""
    return {it["action_id"] for block in message["blocks"] if block["type"] == "actions" for it in block["elements"]}


def only(on: Stage, place: str) -> dict[str, Any]:
    """Return the one message of a place."""
    (message,) = on.posted(place)
    return message


def shows_in_home(on: Stage, user: str) -> bool:
    """Say whether the preview stands in somebody's Home."""
    return PREVIEW.title in str(on.slack.home(user))


async def status(on: Stage, suspension_id: str) -> SuspensionStatus:
    """Return a suspension's status as stored."""
    found = await on.desk.suspension(suspension_id)
    assert found is not None
    return found[0].status


async def press(on: Stage, user: str, message: dict[str, Any], action: str, channel: str = SALES_DESK) -> None:
    """Click, and wait for the ack."""
    clicked = await (await on.slack.click(user, channel, message["ts"], action)).settled()
    assert clicked.state == "acked"


# ---- a card in another channel ---------------------------------------------------------------------------------------


async def test_a_card_in_another_channel_links_back_and_its_thread_points_to_it(on: Stage) -> None:
    """Top level in the policy's channel, with a link to the thread; in the thread a quiet line without buttons."""
    fence = await on.run()
    suspension_id = await on.suspend(fence, policy=Approval(by="anyone", channel=DEALS))
    await on.deliver()
    run = await on.desk.run(fence.run_id)
    assert run is not None
    card, pointer = only(on, f"card:{suspension_id}"), only(on, f"pointer:{suspension_id}")
    assert "thread_ts" not in card
    assert on.slack.message(DEALS, card["ts"]) is not None
    assert f"archives/{SALES_DESK}/p{run.thread_ts.replace('.', '')}" in seen(card)
    assert f"anyone in <#{DEALS}>" in seen(card)
    assert {"approve", "decline"} <= pressable(card)
    assert pointer["thread_ts"] == run.thread_ts
    assert f"archives/{DEALS}/p{card['ts'].replace('.', '')}" in seen(pointer)
    assert "waits for a decision" in seen(pointer)
    assert pressable(pointer) == set()
    assert "<@" not in seen(pointer), "a pointer notifies nobody"


async def test_the_pointer_says_what_became_of_the_card(on: Stage) -> None:
    """Decided in the other channel: both messages say so; anyone means anyone of that channel."""
    suspension_id = await on.suspend(await on.run(), policy=Approval(by="anyone", channel=DEALS, self_approval=False))
    await on.deliver()
    card = only(on, f"card:{suspension_id}")
    person = on.slack.workspace.person(OSKAR)
    assert person is not None
    approve = next(it for b in card["blocks"] if b["type"] == "actions" for it in b["elements"])
    forged = on.slack.payloads.block_actions(person, "t", [{**approve, "block_id": "b", "action_ts": "1.1"}])
    forged |= {"container": {"type": "message", "message_ts": card["ts"], "channel_id": DEALS}}
    await on.slack.send_interaction("block_actions", forged).settled()
    assert await status(on, suspension_id) is SuspensionStatus.OPEN, "Oskar is in the run's channel, not in the card's"
    await press(on, MARCUS, card, "approve", DEALS)
    await on.deliver()
    pointer = only(on, f"pointer:{suspension_id}")
    assert "Approved" in seen(pointer)
    assert "Approved" in seen(only(on, f"card:{suspension_id}"))
    assert pressable(only(on, f"card:{suspension_id}")) == set()


async def test_a_policy_that_names_the_runs_own_channel_stays_in_the_thread(on: Stage) -> None:
    """No pointer beside the card itself."""
    suspension_id = await on.suspend(await on.run(), policy=Approval(by="anyone", channel=SALES_DESK))
    card = await on.card(suspension_id)
    assert "thread_ts" in card
    assert on.posted(f"pointer:{suspension_id}") == []


# ---- votes -----------------------------------------------------------------------------------------------------------


async def test_the_first_of_two_approvers_sees_the_progress_on_the_card(on: Stage) -> None:
    """hoophq/hoop#1265: a partial approval shows who approved and what is missing; a second vote counts for nothing."""
    suspension_id = await on.suspend(await on.run(), policy=Approval(by=(MARCUS, VERA), count=2, self_approval=False))
    await press(on, MARCUS, await on.card(suspension_id), "approve")
    card = await on.card(suspension_id)
    assert f"1 of 2 approvals: <@{MARCUS}>" in seen(card)
    await press(on, MARCUS, card, "approve")
    assert await status(on, suspension_id) is SuspensionStatus.OPEN
    await press(on, VERA, await on.card(suspension_id), "approve")
    assert await status(on, suspension_id) is SuspensionStatus.APPROVED
    assert f"<@{MARCUS}>, <@{VERA}>" in str((await on.card(suspension_id))["text"])


async def test_high_severity_is_never_one_click(on: Stage) -> None:
    """gravitational/teleport#52348, gravitational/teleport#61094: Approve of a severe action asks again, on the card
    and in Home."""
    suspension_id = await on.suspend(await on.run(), policy=Approval(severity="high"))
    card = await on.card(suspension_id)
    await on.slack.open_home(RITA)
    home = await until(lambda: on.slack.home(RITA))
    for blocks in (card["blocks"], home["blocks"]):
        buttons = [it for b in blocks if b["type"] == "actions" for it in b["elements"] if it["action_id"] == "approve"]
        assert len(buttons) == 1
        assert buttons[0]["confirm"]["confirm"]["text"] == "Approve"


# ---- reminders -------------------------------------------------------------------------------------------------------


def reminders(on: Stage) -> list[Remind]:
    """Return the job of two replicas."""
    return [Remind(PgMaintenance(on.pool, now=on.time, hints=False)) for _ in range(2)]


async def test_those_who_can_still_act_are_reminded_once(on: Stage) -> None:
    """In the card's thread, mentioning who has not approved yet and may; once, over two replicas."""
    fence = await on.run()
    policy = Approval(by=(RITA, MARCUS, VERA), count=2, self_approval=False)
    suspension_id = await on.suspend(fence, policy=policy)
    await press(on, MARCUS, await on.card(suspension_id), "approve")
    one, other = reminders(on)
    on.time.advance(1400)
    assert await one.run_once() == 0
    on.time.advance(110)
    assert await one.run_once() + await other.run_once() == 1
    await on.deliver()
    reminder = only(on, f"notice:{suspension_id}:reminder")
    run = await on.desk.run(fence.run_id)
    assert run is not None
    assert reminder["thread_ts"] == run.thread_ts
    assert f"<@{VERA}>" in reminder["text"]
    assert MARCUS not in seen(reminder)
    assert RITA not in seen(reminder), "she may not approve her own request"
    assert PREVIEW.title in seen(reminder)
    assert pressable(reminder) == set()
    on.time.advance(100)
    assert await one.run_once() + await other.run_once() == 0


async def test_a_reminder_stands_below_the_card_in_its_own_channel(on: Stage) -> None:
    """The approvers look there, not into the thread of the request."""
    suspension_id = await on.suspend(await on.run(), policy=Approval(by=(MARCUS,), channel=DEALS))
    await on.deliver()
    card = only(on, f"card:{suspension_id}")
    on.time.advance(1600)
    await reminders(on)[0].run_once()
    await on.deliver()
    reminder = only(on, f"notice:{suspension_id}:reminder")
    assert reminder["thread_ts"] == card["ts"]
    assert on.slack.message(DEALS, reminder["ts"]) is not None


@pytest.mark.parametrize(
    ("policy", "kind", "mentioned"),
    [
        (Approval(), SuspensionKind.APPROVAL, [f"<@{RITA}>"]),
        (Approval(operators=True), SuspensionKind.APPROVAL, [f"<@{RITA}>", f"<@{OSKAR}>"]),
        (Approval(by=UserGroup(handle="sales-managers")), SuspensionKind.APPROVAL, ["<!subteam^S0SALESMGRS>"]),
        (Approval(by="anyone"), SuspensionKind.APPROVAL, [f"<#{SALES_DESK}>"]),
        (Approval(by=(MARCUS,)), SuspensionKind.OUTCOME, [f"<@{RITA}>", f"<@{OSKAR}>"]),
    ],
    ids=["requester", "operators", "group", "anyone", "outcome"],
)
async def test_a_reminder_mentions_whom_the_policy_names(
    on: Stage, policy: Approval, kind: SuspensionKind, mentioned: list[str]
) -> None:
    """Each policy's own people, in a form that notifies them."""
    await on.directory.learn_groups()
    suspension_id = await on.suspend(await on.run(), policy=policy, kind=kind)
    await on.deliver()
    on.time.advance(1600)
    await reminders(on)[0].run_once()
    await on.deliver()
    text = only(on, f"notice:{suspension_id}:reminder")["text"]
    found = [word for word in text.replace(",", " ").split() if word[:2] in ("<@", "<!", "<#") and "date" not in word]
    assert found == mentioned


async def test_nobody_is_reminded_of_what_was_decided_meanwhile(on: Stage) -> None:
    """Decided between the job and the delivery: nothing is posted, nothing stays owed."""
    suspension_id = await on.suspend(await on.run())
    card = await on.card(suspension_id)
    on.time.advance(1600)
    assert await reminders(on)[0].run_once() == 1
    await press(on, RITA, card, "approve")
    await on.deliver()
    assert on.posted(f"notice:{suspension_id}:reminder") == []
    owed = await on.pool.fetchval("select count(*) from outbox where version > delivered_version")
    assert owed == 0
    assert await reminders(on)[0].run_once() == 0


# ---- places that are closed ------------------------------------------------------------------------------------------


async def test_a_card_whose_place_is_closed_stands_with_each_approver_and_settles_everywhere(on: Stage) -> None:
    """not_in_channel for good: group members and the owner get it directly, one each; a click settles every copy."""
    await on.directory.learn_groups()
    policy = Approval(by=UserGroup(handle="inside-sales"), channel=RANDOM)
    fence = await on.run()
    suspension_id = await on.suspend(fence, policy=policy)
    await on.deliver()
    copies = {user: only(on, f"card:{suspension_id}:{on.slack.dm(user)}") for user in (RITA, MARCUS)}
    for copy in copies.values():
        assert {"approve", "decline"} <= pressable(copy)
        assert f"archives/{SALES_DESK}/p" in seen(copy), "it links back to the thread"
    pointer = only(on, f"pointer:{suspension_id}")
    assert "in direct messages" in seen(pointer)
    (alert,) = on.posted(f"alert:refused:card:{suspension_id}")
    assert "not_in_channel" in seen(alert)
    assert "2 people who may decide" in seen(alert)
    assert f"in <#{RANDOM}>" in seen(alert)
    await on.slack.open_home(MARCUS)
    home = await until(lambda: on.slack.home(MARCUS))
    assert PREVIEW.title in str(home["blocks"])
    await press(on, MARCUS, copies[MARCUS], "approve", on.slack.dm(MARCUS))
    assert await status(on, suspension_id) is SuspensionStatus.APPROVED
    await on.deliver()
    for user in copies:
        settled = only(on, f"card:{suspension_id}:{on.slack.dm(user)}")
        assert "Approved" in seen(settled)
        assert pressable(settled) == set()
    assert len(on.posted(f"alert:refused:card:{suspension_id}")) == 1


async def test_a_card_waits_for_its_approvers_to_be_known_rather_than_being_lost(on: Stage) -> None:
    """The user groups cannot be asked just now: nothing is given up, and later everybody gets the card."""
    policy = Approval(by=UserGroup(handle="sales-managers"), channel=RANDOM)
    suspension_id = await on.suspend(await on.run(), policy=policy)
    on.slack.faults.add("http_error", "usergroups.list", times=1)
    await on.deliver()
    assert (await on.row(f"card:{suspension_id}"))["refused_at"] is None
    on.time.advance(5)
    await on.deliver()
    assert (await on.row(f"card:{suspension_id}"))["refused_at"] is not None
    only(on, f"card:{suspension_id}:{on.slack.dm(MARCUS)}")


async def test_a_departed_approver_does_not_keep_the_card_from_the_others(on: Stage) -> None:
    """fivexl/terraform-aws-sso-elevator#139: one deactivated person among those named; the others get it and decide."""
    on.slack.change_world({"person": VERA, "set": {"kind": "deactivated"}})
    suspension_id = await on.suspend(await on.run(), policy=Approval(by=(VERA, MARCUS), channel=RANDOM))
    await on.deliver()
    copy = only(on, f"card:{suspension_id}:{on.slack.dm(MARCUS)}")
    assert on.posted(f"card:{suspension_id}:{on.slack.dm(VERA)}") == []
    await press(on, MARCUS, copy, "approve", on.slack.dm(MARCUS))
    assert await status(on, suspension_id) is SuspensionStatus.APPROVED


async def test_an_answer_that_its_thread_cannot_show_reaches_who_asked(on: Stage) -> None:
    """The channel was archived: the answer stands in the owner's direct messages."""
    fence = await on.run()
    on.slack.change_world({"channel": SALES_DESK, "set": {"is_archived": True}})
    view = await on.store.load(fence)
    await on.store.answer(fence, Batch(), view.run.news, "Forty-two.")
    await on.deliver()
    (place,) = [r["place"] for r in await on.pool.fetch("select place from outbox where place like 'answer:%:D%'")]
    assert "Forty-two." in seen(only(on, place))


async def test_a_card_whose_place_closes_later_stands_with_those_who_are_still_to_decide(on: Stage) -> None:
    """Archived while it waits: the next change cannot be shown there, so the card goes on in direct messages."""
    suspension_id = await on.suspend(await on.run(), policy=Approval(by=(MARCUS, VERA), count=2))
    await on.deliver()
    for user in (MARCUS, VERA):
        await on.slack.open_home(user)
        await until(partial(shows_in_home, on, user))
    on.slack.change_world({"channel": SALES_DESK, "set": {"is_archived": True}})
    await (await on.slack.click(MARCUS, None, None, "approve", home=True)).settled()
    await on.deliver()
    copy = only(on, f"card:{suspension_id}:{on.slack.dm(VERA)}")
    assert f"1 of 2 approvals: <@{MARCUS}>" in seen(copy)
    await press(on, VERA, copy, "approve", on.slack.dm(VERA))
    assert await status(on, suspension_id) is SuspensionStatus.APPROVED
    await on.deliver()
    assert "Approved" in seen(only(on, f"card:{suspension_id}:{on.slack.dm(MARCUS)}"))


async def test_one_suspension_that_cannot_be_checked_hides_no_other(on: Stage) -> None:
    """A policy's channel is closed and a group is gone: Home and /atlas pending still list the rest."""
    await on.suspend(await on.run(), policy=Approval(by="anyone", channel="C0NOSUCH001"))
    await on.suspend(await on.run(), policy=Approval(by=UserGroup(handle="gone")))
    rita = Actor(on.installation.team_id, RITA, Via.HOME)
    with pytest.raises(CouldNotCheck):
        await on.engine.pending(rita)
    mine = await on.suspend(await on.run())
    assert [suspension.id for suspension, _ in await on.engine.pending(rita)] == [mine]


# ---- alerts ----------------------------------------------------------------------------------------------------------


async def an_alert(on: Stage, key: str = "failed:x", run_id: str | None = None) -> str:
    """Owe an alert twice, deliver, and return its place."""
    for text in ("It broke.", "It broke again."):
        async with on.pool.acquire() as connection:
            alert = Alert(key, "Run x failed: a defect", text, user_id=RITA, channel_id=SALES_DESK, thread_ts="1.2")
            await endings.owe_alert(connection, run_id, alert, on.time())
    await on.deliver()
    return f"alert:{key}"


async def test_an_alert_says_why_the_last_steps_who_where_and_what_to_do(on: Stage) -> None:
    """A failed run's alert, once."""
    fence = await on.run("send <everything> to Henderson")
    await on.store.fail(fence, Batch(), "defect", Closing(detail="It fell over."))
    await on.deliver()
    shown = seen(only(on, f"alert:failed:{fence.run_id}"))
    assert "It fell over." in shown
    assert "Writes: none" in shown
    assert "Last steps" in shown
    assert f"<@{RITA}>" in shown
    run = await on.desk.run(fence.run_id)
    assert run is not None
    assert f"archives/{SALES_DESK}/p{run.thread_ts.replace('.', '')}" in shown
    assert "ask again in the thread: that starts a new run" in shown


async def test_an_alert_is_taken_up_by_an_operator_once_and_says_so(on: Stage) -> None:
    """Nobody else may; the button goes, who and when stand there, every attempt is on record."""
    place = await an_alert(on)
    alert = only(on, place)
    assert "It broke." in seen(alert)
    assert "It broke again." not in seen(alert), "one alert per key"
    assert f"Written by <@{RITA}>" in seen(alert)
    await press(on, MARCUS, alert, "acknowledge", ATLAS_OPS)
    await until(lambda: "taken up by the operators" in str(on.slack.ephemerals(MARCUS, ATLAS_OPS)))
    await on.deliver()
    assert "acknowledge" in pressable(only(on, place))
    await press(on, OSKAR, alert, "acknowledge", ATLAS_OPS)
    await on.deliver()
    assert "Acknowledged by" in seen(only(on, place))
    assert OSKAR in seen(only(on, place))
    assert pressable(only(on, place)) == set()
    audited = await on.pool.fetch("select by, via, allowed from audit where act = 'acknowledge' order by id")
    assert [tuple(row) for row in audited] == [(MARCUS, "button", False), (OSKAR, "button", True)]


async def test_without_operators_the_members_of_the_alert_channel_take_alerts_up(
    pool: "asyncpg.Pool[asyncpg.Record]",
) -> None:
    """Marcus is a member; Vera is not, and a foreign team's press counts for nothing."""
    async with stage(pool, alert_channel=ATLAS_OPS) as on, connected(on):
        place = await an_alert(on)
        alert = only(on, place)
        pressed = next(it for b in alert["blocks"] if b["type"] == "actions" for it in b["elements"])
        for user, team in ((VERA, None), (MARCUS, "T0ELSEWHERE")):
            person = on.slack.workspace.person(user)
            assert person is not None
            payload = on.slack.payloads.block_actions(person, "t", [{**pressed, "block_id": "b", "action_ts": "1.1"}])
            payload["team"] = {**payload["team"], **({"id": team} if team else {})}
            payload |= {"container": {"type": "message", "message_ts": alert["ts"], "channel_id": ATLAS_OPS}}
            await on.slack.send_interaction("block_actions", payload).settled()
        await on.deliver()
        assert "acknowledge" in pressable(only(on, place))
        await press(on, MARCUS, alert, "acknowledge", ATLAS_OPS)
        await on.deliver()
        assert pressable(only(on, place)) == set()


async def test_a_message_that_could_not_be_handled_is_alerted_with_its_writer_and_place(on: Stage) -> None:
    """Slack cannot say who wrote it for over five minutes: given up, its thread is told, and the operators why."""
    message = await on.slack.post_as(VERA, SALES_DESK, "<@U0ATLAS0001> hello")
    await until(lambda: on.pool.fetchval("select count(*) = 1 from inbox"))
    on.slack.faults.add("http_error", "users.info", times=None)
    drain = Drain(on.engine, on.desk, on.directory, Texts(), RealClock(), SystemNames(), {})
    for _ in range(5):
        await drain.once()
        on.time.advance(100)
    await on.deliver()
    (place,) = [row["place"] for row in await on.pool.fetch("select place from outbox where kind = 'alert'")]
    shown = seen(only(on, place))
    assert "It failed 4 times in 5 minutes, last: could not check person" in shown
    assert f"Written by <@{VERA}>" in shown
    assert f"archives/{SALES_DESK}/p{message['ts'].replace('.', '')}" in shown
    assert "may write the message again" in shown
    assert pressable(only(on, place)) == {"acknowledge"}
    told = str(on.slack.bot_messages(SALES_DESK, message["ts"]))
    assert "please write it again later" in told


async def test_an_acknowledgement_that_cannot_be_checked_changes_nothing(on: Stage) -> None:
    """Slack cannot say who presses: nothing is noted, and the person is told to press again."""
    place = await an_alert(on)
    on.slack.faults.add("http_error", "users.info", times=1)
    await press(on, OSKAR, only(on, place), "acknowledge", ATLAS_OPS)
    await until(lambda: "press again" in str(on.slack.ephemerals(OSKAR, ATLAS_OPS)))
    await press(on, OSKAR, only(on, place), "acknowledge", ATLAS_OPS)
    await on.deliver()
    assert pressable(only(on, place)) == set()
