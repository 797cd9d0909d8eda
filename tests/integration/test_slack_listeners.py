"""What people do in Slack, through the real Bolt app over Socket Mode: stored before the ack, judged, answered."""

import asyncio
import json
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import asyncpg
import pytest

from bot.simulator import Simulator
from bot.simulator.workspace import CONTOSO, DEALS, EMIL, GINA, MARCUS, OSKAR, RITA, SALES_DESK, VERA
from core.approvals import Via
from core.engine import Actor
from core.errors import StoreUnavailable
from core.ports import InboundEvent
from core.run import HaltReason, RunState, SuspensionKind, SuspensionStatus
from core.tools import Approval, UserGroup
from tests.integration.slack_stage import LONG, PATIENCE_S, Stage, connected, stage, until


@pytest.fixture
async def on(pool: "asyncpg.Pool[asyncpg.Record]") -> AsyncIterator[Stage]:
    """The stage, connected."""
    async with stage(pool, operators=frozenset({OSKAR})) as on, connected(on):
        yield on


async def status(on: Stage, suspension_id: str) -> SuspensionStatus:
    """Return a suspension's status as stored."""
    found = await on.desk.suspension(suspension_id)
    assert found is not None
    return found[0].status


def whispers(slack: Simulator, user: str, channel: str = SALES_DESK) -> str:
    """Return what somebody was told privately in a channel."""
    return " ".join(str(message.get("text")) for message in slack.ephemerals(user, channel))


def modal_text(slack: Simulator, user: str) -> str:
    """Return what somebody's open modal shows."""
    return str(slack.modals(user)[-1]["blocks"]) if slack.modals(user) else ""


async def press(on: Stage, user: str, card: dict[str, Any], action: str, **how: Any) -> Any:
    """Click and wait until Slack knows whether it was acked."""
    return await (await on.slack.click(user, SALES_DESK, card["ts"], action, **how)).settled()


# ---- messages --------------------------------------------------------------------------------------------------------


async def test_a_mention_is_stored_before_its_ack_with_what_was_typed(on: Stage) -> None:
    """The inbox row holds team, channel, thread, user and the text as typed, unescaped, without the mention."""
    message = await on.slack.post_as(RITA, SALES_DESK, "<@U0ATLAS0001> quote A & B <b> for Henderson")
    letters = await until(lambda: on.desk.take_mail(5, 30))
    (letter,) = letters
    assert (letter.kind, letter.team_id, letter.channel_id) == ("mention", on.installation.team_id, SALES_DESK)
    assert (letter.ts, letter.thread_ts, letter.user_id) == (message["ts"], message["ts"], RITA)
    assert letter.text == "quote A & B <b> for Henderson"
    payload = await on.pool.fetchval("select payload from inbox")
    assert json.loads(payload)["event"]["ts"] == message["ts"]
    assert "token" not in json.loads(payload)


async def test_in_a_dm_every_message_counts_in_a_channel_only_mentions(on: Stage) -> None:
    """A DM needs no mention; chatter in a channel, Atlas's own posts and edits start nothing."""
    dm = on.slack.dm(VERA)
    await on.slack.post_as(RITA, SALES_DESK, "good morning everybody")
    chat = await on.slack.post_as(VERA, dm, "what is SKU-4411?")
    on.slack.acts.edit(VERA, dm, chat["ts"], "what is SKU-4412?")
    await on.deliver()
    mention = await on.slack.post_as(VERA, dm, "<@U0ATLAS0001> and in stock?", chat["ts"])
    await until(lambda: on.pool.fetchval("select count(*) = 2 from inbox"))
    rows = await on.pool.fetch("select kind, channel_id, ts, thread_ts, text from inbox order by ts")
    assert [tuple(row) for row in rows] == [
        ("direct", dm, chat["ts"], chat["ts"], "what is SKU-4411?"),
        ("direct", dm, mention["ts"], chat["ts"], "and in stock?"),
    ]
    await until(lambda: on.moved.count("arrived") == 2)  # the row is seen before whoever stored it goes on


async def test_an_event_that_cannot_be_stored_is_not_acked_and_comes_again(
    pool: "asyncpg.Pool[asyncpg.Record]",
) -> None:
    """The store is away at first: no ack, Slack sends it again, and it is stored once."""

    class FlakyInbox:
        calls = 0

        def __init__(self, real: Any) -> None:
            self.real = real

        async def put(self, event: InboundEvent) -> bool:
            self.calls += 1
            if self.calls == 1:
                raise StoreUnavailable("away")
            return bool(await self.real.put(event))

    async with stage(pool) as on:
        inbox = FlakyInbox(on.inbox)
        async with connected(on, inbox=inbox):
            await on.slack.post_as(RITA, SALES_DESK, "<@U0ATLAS0001> hello")
            await until(lambda: on.pool.fetchval("select count(*) = 1 from inbox"))
            assert inbox.calls >= 2


async def test_an_envelope_that_comes_twice_is_one_message(on: Stage) -> None:
    """Duplicated deliveries are acked and stored once.

    slackapi/bolt-js#2487: the same envelope again, its retry_attempt 0 again.
    """
    on.slack.faults.sockets.duplicate = 2
    await on.slack.post_as(RITA, SALES_DESK, "<@U0ATLAS0001> hello")
    await until(lambda: on.pool.fetchval("select count(*) = 1 from inbox"))
    await until(lambda: len(on.slack.journal.find({"kind": "ack"})) >= 2)
    assert await on.pool.fetchval("select count(*) from inbox") == 1


# ---- clicks ----------------------------------------------------------------------------------------------------------


async def test_a_click_is_committed_then_acked_and_the_card_follows(on: Stage) -> None:
    """Rita approves: the decision is stored by her verified id, and the card says so.

    openclaw/openclaw#71023: the click edited the card and never reached what resolves it.
    """
    suspension_id = await on.suspend(await on.run())
    card = await on.card(suspension_id)
    clicked = await press(on, RITA, card, "approve")
    assert clicked.state == "acked"
    found = await on.desk.suspension(suspension_id)
    assert found is not None
    assert (found[0].status, found[0].decided_by) == (SuspensionStatus.APPROVED, RITA)
    assert "running" in str((await on.card(suspension_id))["blocks"])
    assert whispers(on.slack, RITA) == ""
    assert "moved" in on.moved


async def test_two_clicks_at_once_decide_once(on: Stage) -> None:
    """One wins; the other is told who decided."""
    policy = Approval(by="anyone")
    suspension_id = await on.suspend(await on.run(), policy=policy)
    card = await on.card(suspension_id)
    first, second = await asyncio.gather(press(on, MARCUS, card, "approve"), press(on, VERA, card, "approve"))
    assert (first.state, second.state) == ("acked", "acked")
    told = await until(lambda: whispers(on.slack, MARCUS) or whispers(on.slack, VERA))
    assert "Approved already by" in told
    assert await on.pool.fetchval("select count(*) from audit where act = 'approve' and allowed") == 1


@pytest.mark.parametrize(
    ("policy", "user", "words"),
    [
        (Approval(), MARCUS, "You are not an approver"),
        (Approval(by=(MARCUS,)), RITA, f"<@{MARCUS}> may"),
        (Approval(by="anyone", self_approval=False), RITA, "You asked for this yourself"),
        (Approval(by=UserGroup(handle="sales-managers")), VERA, "You are not an approver"),
        (Approval(by=UserGroup(handle="no-such-group")), VERA, "could not check"),
    ],
)
async def test_a_refused_click_is_private_and_changes_nothing(
    on: Stage, policy: Approval, user: str, words: str
) -> None:
    """Each class has its text; nobody else sees anything.

    NousResearch/hermes-agent#36848, NousResearch/hermes-agent#6735: anyone could press Approve.

    vercel/eve#2212: a refused click looked approved, since the card was edited on the click.
    """
    suspension_id = await on.suspend(await on.run(), policy=policy)
    card = await on.card(suspension_id)
    assert (await press(on, user, card, "approve")).state == "acked"
    await until(lambda: words in whispers(on.slack, user))
    assert await status(on, suspension_id) is SuspensionStatus.OPEN
    assert (await on.card(suspension_id))["blocks"] == card["blocks"]


async def test_a_member_of_the_user_group_approves(on: Stage) -> None:
    """The group is asked of Slack, by handle."""
    suspension_id = await on.suspend(await on.run(), policy=Approval(by=UserGroup(handle="sales-managers")))
    await press(on, MARCUS, await on.card(suspension_id), "approve")
    assert await status(on, suspension_id) is SuspensionStatus.APPROVED


async def test_guests_externals_and_the_deactivated_are_refused(on: Stage) -> None:
    """ "Anyone" means members of the workspace; facts come from Slack, not from the payload."""
    for user, channel in ((GINA, DEALS), (EMIL, CONTOSO)):
        suspension_id = await on.suspend(await on.run(channel=channel), policy=Approval(by="anyone"))
        card = await on.card(suspension_id)
        await (await on.slack.click(user, channel, card["ts"], "approve")).settled()
        await until(partial(lambda who, where: "not" in whispers(on.slack, who, where), user, channel))
        assert await status(on, suspension_id) is SuspensionStatus.OPEN
    suspension_id = await on.suspend(await on.run(), policy=Approval(by="anyone"))
    card = await on.card(suspension_id)
    on.slack.change_world({"person": VERA, "set": {"kind": "deactivated"}})
    await press(on, VERA, card, "approve")
    await until(lambda: "not an approver" in whispers(on.slack, VERA))
    assert await status(on, suspension_id) is SuspensionStatus.OPEN


async def test_late_and_forged_clicks_change_nothing(on: Stage) -> None:
    """Expired, another card's token, another digest, no JSON at all: each is answered and refused."""
    suspension_id = await on.suspend(await on.run(), policy=Approval(by="anyone"))
    other_id = await on.suspend(await on.run(user=VERA), policy=Approval(by="anyone"))
    card, other = await on.card(suspension_id), await on.card(other_id)
    press_value = json.loads(next(b for b in card["blocks"] if b["type"] == "actions")["elements"][0]["value"])
    other_value = json.loads(next(b for b in other["blocks"] if b["type"] == "actions")["elements"][0]["value"])
    forged: list[Any] = [
        {**press_value, "t": other_value["t"]},
        {**press_value, "d": "0" * 64},
        {k: v for k, v in press_value.items() if k != "d"},
        {**press_value, "s": "k7d2m9qa.nothere"},
        {**press_value, "s": ["list"]},
        "not json",
        17,
    ]
    for value in forged:
        text = value if isinstance(value, str) else json.dumps(value)
        seen = len(on.slack.ephemerals(MARCUS, SALES_DESK))
        clicked = await press(on, MARCUS, card, "approve", forge={"value": text})
        assert clicked.state == "acked"
        await until(partial(lambda before: len(on.slack.ephemerals(MARCUS, SALES_DESK)) > before, seen))
        assert await status(on, suspension_id) is SuspensionStatus.OPEN, value
        assert await status(on, other_id) is SuspensionStatus.OPEN
    on.time.advance(1801)
    await press(on, MARCUS, card, "approve")
    await until(lambda: "expired" in whispers(on.slack, MARCUS))
    assert await status(on, suspension_id) is SuspensionStatus.EXPIRED


async def test_what_cannot_be_committed_in_time_is_not_acked(pool: "asyncpg.Pool[asyncpg.Record]") -> None:
    """A locked row or a store that is away: Slack shows its error, nothing is decided, the next click works.

    vercel/chat (chat.ts): a failed callback was only logged, and the click vanished.
    """
    async with stage(pool) as on:
        suspension_id = await on.suspend(await on.run())
        card = await on.card(suspension_id)
        async with pool.acquire() as connection, connection.transaction(), connected(on, commit_within_s=0.4):
            on.slack.sockets.ack_window_s, patient = 3.0, on.slack.sockets.ack_window_s
            await connection.execute("select 1 from runs for update")
            failed = await press(on, RITA, card, "approve")
        assert failed.state != "acked"
        assert await status(on, suspension_id) is SuspensionStatus.OPEN
        on.slack.sockets.ack_window_s = patient
        async with connected(on):
            assert (await press(on, RITA, card, "approve")).state == "acked"
        assert await status(on, suspension_id) is SuspensionStatus.APPROVED


async def test_decline_asks_for_a_reason_and_stores_it(on: Stage) -> None:
    """The form opens before any database work; its submit declines with the reason."""
    suspension_id = await on.suspend(await on.run())
    card = await on.card(suspension_id)
    await press(on, RITA, card, "decline")
    (view,) = await until(lambda: on.slack.modals(RITA))
    assert await status(on, suspension_id) is SuspensionStatus.OPEN
    typed = {"reason": {"text": {"type": "plain_text_input", "value": " too expensive <!channel> "}}}
    await (await on.slack.submit(RITA, view["id"], typed)).settled()
    found = await on.desk.suspension(suspension_id)
    assert found is not None
    assert (found[0].status, found[0].reason) == (SuspensionStatus.DECLINED, "too expensive <!channel>")
    assert on.slack.modals(RITA) == []
    assert "Declined" in str((await on.card(suspension_id))["blocks"])


async def test_a_decline_that_is_refused_says_so_in_its_modal(on: Stage) -> None:
    """Vera may not decline Rita's request; the modal tells her."""
    suspension_id = await on.suspend(await on.run())
    card = await on.card(suspension_id)
    await press(on, VERA, card, "decline")
    (view,) = await until(lambda: on.slack.modals(VERA))
    await (await on.slack.submit(VERA, view["id"])).settled()
    await until(lambda: "not an approver" in modal_text(on.slack, VERA))
    assert await status(on, suspension_id) is SuspensionStatus.OPEN


async def test_a_long_artefact_is_approved_on_the_last_page_of_its_details(on: Stage) -> None:
    """Details opens, pages on, and its last submit approves with the card's token and digest."""
    suspension_id = await on.suspend(await on.run(), LONG)
    card = await on.card(suspension_id)
    await press(on, RITA, card, "details")
    await until(lambda: "Page 1 of" in modal_text(on.slack, RITA))
    pages = 1
    while on.slack.modals(RITA)[-1]["callback_id"] == "details_next":
        shown = on.slack.modals(RITA)[-1]
        await (await on.slack.submit(RITA, shown["id"])).settled()
        pages += 1
        await until(partial(lambda page: f"Page {page} of" in modal_text(on.slack, RITA), pages))
        assert await status(on, suspension_id) is SuspensionStatus.OPEN
    assert "SKU-0199" in modal_text(on.slack, RITA)
    await (await on.slack.submit(RITA, on.slack.modals(RITA)[-1]["id"])).settled()
    assert await status(on, suspension_id) is SuspensionStatus.APPROVED
    audited = await on.pool.fetchval("select via from audit where act = 'approve' and allowed")
    assert audited == "modal"


async def test_an_outcome_is_answered_by_its_owner_or_an_operator(on: Stage) -> None:
    """It happened, or it did not; others are refused."""
    happened = await on.suspend(await on.run(), kind=SuspensionKind.OUTCOME)
    await press(on, MARCUS, await on.card(happened), "happened")
    assert await status(on, happened) is SuspensionStatus.OPEN
    await press(on, OSKAR, await on.card(happened), "happened")
    assert await status(on, happened) is SuspensionStatus.HAPPENED
    not_happened = await on.suspend(await on.run(user=VERA), kind=SuspensionKind.OUTCOME)
    await press(on, VERA, await on.card(not_happened), "did_not_happen")
    assert await status(on, not_happened) is SuspensionStatus.DID_NOT_HAPPEN


async def test_continue_is_the_owners_once_per_halt(on: Stage) -> None:
    """Somebody else's press, and a second one, continue nothing and say so."""
    fence = await on.run()
    await on.halt(fence)
    await on.deliver()
    (card,) = on.posted(f"halt:{fence.run_id}:1") or on.posted(f"halt:{fence.run_id}")
    await press(on, MARCUS, card, "continue")
    await until(lambda: "Nothing was continued: only the person who asked can" in whispers(on.slack, MARCUS))
    await press(on, RITA, card, "continue")
    run = await on.desk.run(fence.run_id)
    assert run is not None
    assert (run.state, run.limits.max_steps) == (RunState.RUNNING, 16)
    await press(on, RITA, card, "continue")
    await until(lambda: f"Nothing was continued: run {fence.run_id} goes on already" in whispers(on.slack, RITA))


async def test_stop_is_the_owners(on: Stage) -> None:
    """The progress line's Stop ends a suspended run; a stranger's does not."""
    fence = await on.run()
    suspension_id = await on.suspend(fence)
    await on.deliver()
    (progress,) = on.posted(f"progress:{fence.run_id}")
    await press(on, VERA, progress, "stop")
    assert await status(on, suspension_id) is SuspensionStatus.OPEN
    await press(on, RITA, progress, "stop")
    run = await on.desk.run(fence.run_id)
    assert run is not None
    assert (run.state, run.halt_reason) == (RunState.HALTED, HaltReason.STOPPED_BY_USER)


# ---- commands and Home -----------------------------------------------------------------------------------------------


async def say(on: Stage, user: str, text: str) -> str:
    """Type /atlas and return the private answer."""
    seen = len(on.slack.ephemerals(user, SALES_DESK))
    command = await (await on.slack.command(user, SALES_DESK, "/atlas", text)).settled()
    assert command.state == "acked"
    await until(lambda: len(on.slack.ephemerals(user, SALES_DESK)) > seen)
    answer = on.slack.ephemerals(user, SALES_DESK)[-1]
    return str(answer.get("text")) + str(answer.get("blocks"))


async def test_each_command_answers_privately(on: Stage) -> None:
    """Help with examples, runs, show, pending, continue, stop: useful without arguments, refused for others."""
    assert "You have no runs yet" in await say(on, RITA, "runs")
    assert "Quote Henderson" in await say(on, RITA, "")
    assert "no command" in await say(on, RITA, "dance <now>")
    assert "no run of yours to stop" in await say(on, RITA, "stop")
    fence = await on.run()
    suspension_id = await on.suspend(fence)
    await on.deliver()
    assert fence.run_id in await say(on, RITA, "runs")
    assert "Budget: 1 of 12 steps" in await say(on, RITA, "show")
    assert "Budget" in await say(on, RITA, f"show {fence.run_id}")
    assert "There is no such run" in await say(on, VERA, f"show {fence.run_id}")
    assert "Send quote Q-1042" in await say(on, RITA, "pending")
    assert "Nothing waits" in await say(on, VERA, "pending")
    assert "No stopped run" in await say(on, RITA, "continue")
    assert "no run of yours to stop" in await say(on, VERA, f"stop {fence.run_id}")
    assert await status(on, suspension_id) is SuspensionStatus.OPEN
    assert "is stopped" in await say(on, RITA, "stop")
    refused = "Nothing was continued: "
    assert f"{refused}no run of yours is called “{fence.run_id}”" in await say(on, VERA, f"continue {fence.run_id}")
    assert f"{refused}no run of yours is called “k7d2m9qa”" in await say(on, RITA, "continue k7d2m9qa")
    assert "goes on" in await say(on, RITA, "continue")
    assert f"{refused}run {fence.run_id} goes on already" in await say(on, RITA, f"continue {fence.run_id}")
    assert "x" * 90 in await say(on, RITA, "x" * 3_900)


async def test_home_shows_what_waits_and_its_buttons_work(on: Stage) -> None:
    """The Home is drawn when opened; Approve on it decides by the same rules, and it is drawn anew."""
    suspension_id = await on.suspend(await on.run())
    await on.deliver()
    await on.slack.open_home(RITA)
    view = await until(lambda: on.slack.home(RITA))
    assert "Send quote Q-1042 to Henderson" in str(view["blocks"])
    assert "Quote Henderson" in str(view["blocks"])
    clicked = await (await on.slack.click(RITA, None, None, "approve", home=True)).settled()
    assert clicked.state == "acked"
    assert await status(on, suspension_id) is SuspensionStatus.APPROVED
    assert await on.pool.fetchval("select via from audit where act = 'approve' and allowed") == "home"
    await until(lambda: "Nothing waits for your decision" in str((on.slack.home(RITA) or {}).get("blocks")))
    await on.slack.open_home(VERA)
    view = await until(lambda: on.slack.home(VERA))
    assert "Send quote" not in str(view["blocks"])


async def test_home_follows_what_happens_elsewhere(on: Stage) -> None:
    """While it may be open, it is published again when something of its person changed, and only then."""
    fence = await on.run()
    await on.slack.open_home(RITA)
    view = await until(lambda: on.slack.home(RITA))
    assert "working" in str(view["blocks"])
    assert await on.in_flight.idle(PATIENCE_S)  # it stands in Slack before whoever published it knows
    assert await on.homes.run_once() == 0
    suspension_id = await on.suspend(fence)
    assert await on.homes.run_once() == 1
    assert "Send quote Q-1042 to Henderson" in str((on.slack.home(RITA) or {})["blocks"])
    assert await on.homes.run_once() == 0
    await press(on, RITA, await on.card(suspension_id), "decline")
    (form,) = await until(lambda: on.slack.modals(RITA))
    await (await on.slack.submit(RITA, form["id"])).settled()
    assert await on.homes.run_once() == 1
    assert "Nothing waits for your decision" in str((on.slack.home(RITA) or {})["blocks"])
    assert await on.pool.fetchval("select count(*) from audit where allowed") == 1


async def test_a_home_that_slack_refuses_for_good_is_not_tried_over_and_over(on: Stage) -> None:
    """Somebody who left has no Home: refused once, said once, and taken up again only when it is opened again."""

    def published() -> int:
        return sum(r["kind"] == "request" and r["method"] == "views.publish" for r in on.slack.journal.records)

    await on.homes.opened("T0NORTHWIND", "U0DORA00001")
    assert published() == 1
    assert [await on.homes.run_once() for _ in range(3)] == [0, 0, 0]
    assert published() == 1


async def test_many_open_homes_take_turns_and_slacks_pause_is_kept(on: Stage) -> None:
    """No look draws more than a few; when Slack asks for a pause nothing is published until it is over."""
    people = [person.id for person in on.slack.workspace.people if person.kind == "member"]
    for user in people:
        await on.homes.opened(on.installation.team_id, user)
    for user in people:
        await on.suspend(await on.run(user=user))
    on.slack.faults.add("ratelimited", "views.publish", retry_after=30)
    assert await on.homes.run_once() == 0
    published = len(on.slack.journal.find({"kind": "request", "method": "views.publish"}))
    assert await on.homes.run_once() == 0
    assert len(on.slack.journal.find({"kind": "request", "method": "views.publish"})) == published


async def test_a_halted_run_is_continued_and_a_live_one_stopped_in_home(on: Stage) -> None:
    """The same buttons as in the thread; a run that a newer message took over offers neither."""
    fence = await on.run("an old question")
    await on.halt(fence)
    await on.slack.open_home(RITA)
    view = await until(lambda: on.slack.home(RITA))
    assert "archives/C0SALESDESK/p" in str(view["blocks"])
    clicked = await (await on.slack.click(RITA, None, None, "continue", home=True)).settled()
    assert clicked.state == "acked"
    run = await on.desk.run(fence.run_id)
    assert run is not None
    assert run.state is RunState.RUNNING
    await until(lambda: has_action(on, "stop"))
    await (await on.slack.click(RITA, None, None, "stop", home=True)).settled()
    run = await on.desk.run(fence.run_id)
    assert run is not None
    assert (run.state, run.halt_reason) == (RunState.HALTED, HaltReason.STOPPED_BY_USER)
    assert await on.in_flight.idle(PATIENCE_S)  # the press draws the Home, too, after its ack
    await on.pool.execute("update runs set followed_up = true")
    await on.homes.run_once()
    assert not has_action(on, "continue")


def has_action(on: Stage, action: str) -> bool:
    """Say whether Rita's Home has a button of this action."""
    return f"'action_id': '{action}'" in str((on.slack.home(RITA) or {}).get("blocks"))


async def test_every_entry_point_asks_the_same_authorizer(on: Stage) -> None:
    """The engine refuses the same person the same way, whichever door is used."""
    suspension_id = await on.suspend(await on.run())
    found = await on.desk.suspension(suspension_id)
    assert found is not None
    verdicts = set()
    for via in (Via.BUTTON, Via.MODAL, Via.HOME, Via.COMMAND, Via.MENTION):
        actor = Actor(on.installation.team_id, MARCUS, via)
        decided = await on.engine.decide(actor, suspension_id, found[0].token, approve=True)
        verdicts.add(decided.refusal)
    assert len(verdicts) == 1
    assert None not in verdicts
