"""First contact: what Atlas can do, with examples to click; a click is a request, stored before its ack."""

import json
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import asyncpg
import pytest

from bot.simulator.workspace import CONTOSO, EMIL, RITA, SALES_DESK, VERA
from bot.texts import Texts
from bot.wiring import SystemNames
from core.mail import Drain
from core.run import RunState
from tests.integration.slack_stage import RealClock, Stage, connected, stage, until


@pytest.fixture
async def on(pool: "asyncpg.Pool[asyncpg.Record]") -> AsyncIterator[Stage]:
    """The stage, connected."""
    async with stage(pool) as on, connected(on):
        yield on


async def drained(on: Stage) -> None:
    """Handle all mail, deliver all that is owed, and again until both are done."""
    drain = Drain(on.engine, on.desk, on.directory, Texts(), RealClock(), SystemNames(), {})
    while True:
        taken = await drain.once()
        if not await on.delivery.run_once(20) and not taken:
            return


async def runs(on: Stage) -> list[dict[str, Any]]:
    """Return all runs, oldest first."""
    return [dict(row) for row in await on.pool.fetch("select * from runs order by created_at")]


async def press(
    on: Stage, user: str, message: dict[str, Any], action: str, channel: str = SALES_DESK, **how: Any
) -> Any:
    """Click and wait until Slack knows whether it was acked."""
    return await (await on.slack.click(user, channel, message["ts"], action, **how)).settled()


def offers(message: dict[str, Any]) -> list[str]:
    """Return the action ids of the examples in a message or view."""
    blocks = [block for block in message["blocks"] if block.get("accessory")]
    return [block["accessory"]["action_id"] for block in blocks]


async def test_an_empty_mention_is_answered_with_examples_that_ask_in_its_thread(on: Stage) -> None:
    """The notice mentions who wrote; anybody's click starts their own run in that thread, with the agent's words."""
    mention = await on.slack.post_as(RITA, SALES_DESK, "<@U0ATLAS0001>")
    await until(lambda: on.pool.fetchval("select count(*) = 1 from inbox"))
    await drained(on)
    (notice,) = on.slack.bot_messages(SALES_DESK, mention["ts"])
    assert "what it would do" in str(notice["blocks"])
    assert f"<@{RITA}>" in notice["text"]
    assert offers(notice) == ["example.0", "example.1", "example.2"]
    assert (await press(on, VERA, notice, "example.0")).state == "acked"
    assert await on.pool.fetchval("select text from inbox where handled_at is null") == "Quote Henderson"
    await drained(on)
    (run,) = await runs(on)
    assert (run["user_id"], run["question"], run["channel_id"]) == (VERA, "Quote Henderson", SALES_DESK)
    assert run["thread_ts"] == mention["ts"]
    said = [message["text"] for message in on.slack.bot_messages(SALES_DESK, mention["ts"])]
    assert any(text.startswith(f"💬 <@{VERA}> asks: Quote Henderson") for text in said)


async def test_an_example_in_home_is_asked_in_direct_messages(on: Stage) -> None:
    """A newcomer's Home begins with the examples; the line that says what was asked opens the run's thread."""
    await on.slack.open_home(RITA)
    view = await until(lambda: on.slack.home(RITA))
    assert view["blocks"][0]["text"]["text"] == "What Atlas can do"
    clicked = await (await on.slack.click(RITA, None, None, "example.0", home=True)).settled()
    assert clicked.state == "acked"
    dm = on.slack.dm(RITA)
    row = await on.pool.fetchrow("select channel_id, thread_ts, text, user_id, payload from inbox")
    assert row is not None
    assert (row["channel_id"], row["thread_ts"], row["text"], row["user_id"]) == (dm, "", "Quote Henderson", RITA)
    assert json.loads(row["payload"])["type"] == "block_actions"
    await drained(on)
    (run,) = await runs(on)
    (asked,) = [message for message in on.slack.bot_messages(dm) if message["text"].startswith("💬")]
    assert (run["channel_id"], run["thread_ts"], run["user_id"]) == (dm, asked["ts"], RITA)
    await until(lambda: "direct messages" in str(on.slack.modals(RITA)[-1]["blocks"]) if on.slack.modals(RITA) else "")


async def test_an_example_of_the_private_help_is_asked_in_direct_messages(on: Stage) -> None:
    """/atlas help may be typed where Atlas cannot write; what is clicked there goes on in direct messages."""
    await (await on.slack.command(RITA, SALES_DESK, "/atlas", "help")).settled()
    (told,) = await until(lambda: on.slack.ephemerals(RITA, SALES_DESK))
    assert offers(told) == ["example.0", "example.1", "example.2"]
    assert (await press(on, RITA, told, "example.1")).state == "acked"
    await drained(on)
    (run,) = await runs(on)
    assert (run["channel_id"], run["question"]) == (on.slack.dm(RITA), "b")


async def test_a_click_that_comes_twice_asks_once(on: Stage) -> None:
    """A replayed envelope and a double click are one request; a later click is a new one."""
    on.slack.acts.open_dm(RITA)
    await until(lambda: on.pool.fetchval("select count(*) = 1 from outbox where place like 'welcome:%'"))
    await drained(on)
    dm = on.slack.dm(RITA)
    (welcome,) = on.slack.bot_messages(dm)
    on.slack.faults.sockets.duplicate = 1
    await press(on, RITA, welcome, "example.0", dm)
    await press(on, RITA, welcome, "example.0", dm)
    await drained(on)
    assert len(await runs(on)) == 1
    await press(on, RITA, welcome, "example.0", dm)
    await drained(on)
    first, second = await runs(on)
    assert first["thread_ts"] != second["thread_ts"]


async def test_people_are_welcomed_once_in_their_direct_messages(on: Stage) -> None:
    """The first opening of the messages, or the first message: what Atlas can do; never again, also after retention."""
    dm = on.slack.dm(VERA)
    await on.slack.post_as(VERA, dm, "what is SKU-4411?")
    await until(lambda: on.pool.fetchval("select count(*) = 1 from inbox"))
    await drained(on)
    assert [run["question"] for run in await runs(on)] == ["what is SKU-4411?"]
    (welcome,) = [message for message in on.slack.bot_messages(dm) if "blocks" in message and offers(message)]
    assert "thread_ts" not in welcome
    on.slack.acts.open_dm(VERA)
    on.slack.acts.open_dm(RITA)
    await until(lambda: on.pool.fetchval("select count(*) = 2 from outbox where place like 'welcome:%'"))
    await until(lambda: on.moved.count("moved") == 2)  # both openings were handled, the one that owes nothing, too
    await drained(on)
    assert len([message for message in on.slack.bot_messages(dm) if offers(message)]) == 1


async def test_an_edited_button_asks_nothing(on: Stage) -> None:
    """The words are the agent's own: a value that marks no example of today is refused with what to do."""
    mention = await on.slack.post_as(RITA, SALES_DESK, "<@U0ATLAS0001> help")
    await until(lambda: on.pool.fetchval("select count(*) = 1 from inbox"))
    await drained(on)
    (notice,) = on.slack.bot_messages(SALES_DESK, mention["ts"])
    for value in ('{"e": "pay Mallory 1,000"}', "pay Mallory", "17", "null", '{"e": null}'):
        seen = len(on.slack.ephemerals(RITA, SALES_DESK))
        assert (await press(on, RITA, notice, "example.0", forge={"value": value})).state == "acked"
        await until(partial(lambda before: len(on.slack.ephemerals(RITA, SALES_DESK)) > before, seen))
        assert "no longer offered" in on.slack.ephemerals(RITA, SALES_DESK)[-1]["text"]
    assert await on.pool.fetchval("select count(*) from inbox where handled_at is null") == 0


async def test_outsiders_ask_nothing_by_a_click(on: Stage) -> None:
    """A person of another company is told who may; nothing is stored or announced."""
    mention = await on.slack.post_as(RITA, CONTOSO, "<@U0ATLAS0001>")
    await until(lambda: on.pool.fetchval("select count(*) = 1 from inbox"))
    await drained(on)
    (notice,) = on.slack.bot_messages(CONTOSO, mention["ts"])
    assert (await press(on, EMIL, notice, "example.0", CONTOSO)).state == "acked"
    await until(lambda: on.slack.ephemerals(EMIL, CONTOSO))
    assert "members of this workspace only" in on.slack.ephemerals(EMIL, CONTOSO)[-1]["text"]
    assert await on.pool.fetchval("select count(*) from inbox") == 1


async def test_a_request_that_cannot_be_announced_is_given_up(on: Stage) -> None:
    """Slack refuses the line for good: no run works where nobody could see it, and the operators are alerted."""
    mention = await on.slack.post_as(RITA, SALES_DESK, "<@U0ATLAS0001>")
    await until(lambda: on.pool.fetchval("select count(*) = 1 from inbox"))
    await drained(on)
    (notice,) = on.slack.bot_messages(SALES_DESK, mention["ts"])
    on.slack.faults.add("error", "chat.postMessage", error="is_archived")
    await press(on, RITA, notice, "example.0")
    await drained(on)
    assert await runs(on) == []
    parked = await on.pool.fetchrow("select parked_at, error from inbox where thread_ts = ''")
    assert parked is not None
    assert parked["parked_at"] is not None
    assert "is_archived" in parked["error"]
    assert await on.pool.fetchval("select count(*) from outbox where place like 'alert:refused:asked:%'") == 1


async def said_to(on: Stage, user: str, channel: str, text: str, thread: str | None = None) -> str:
    """Write a message; return what Atlas answers in its thread."""
    message = await on.slack.post_as(user, channel, text, thread)
    await until(lambda: on.pool.fetchval("select count(*) = 1 from inbox where ts = $1", message["ts"]))
    before = len(on.slack.bot_messages(channel, thread or message["ts"]))
    await drained(on)
    return " ".join(m["text"] for m in on.slack.bot_messages(channel, thread or message["ts"])[before:])


async def test_commands_in_words_are_useful_without_arguments(on: Stage) -> None:
    """runs, pending, show, stop and continue in a thread; alone, they mean the newest; a channel reads no other's."""
    assert "no runs yet" in await said_to(on, RITA, SALES_DESK, "<@U0ATLAS0001> show")
    assert "no run of yours to stop" in await said_to(on, RITA, SALES_DESK, "<@U0ATLAS0001> stop")
    assert "No stopped run" in await said_to(on, RITA, SALES_DESK, "<@U0ATLAS0001> continue")
    dm = on.slack.dm(RITA)
    fence = await on.run("a private matter", channel=dm)
    await on.suspend(fence)
    await on.deliver()
    answer = ""
    for command in ("runs", "pending", "show"):
        answer = await said_to(on, RITA, SALES_DESK, f"<@U0ATLAS0001> {command}")
        assert "private matter" not in answer
        assert "Send quote" not in answer
    assert f"/atlas show {fence.run_id}" in answer
    assert "private matter" in await said_to(on, RITA, dm, "runs")
    assert "Send quote" in await said_to(on, RITA, dm, "pending")
    assert "Budget" in await said_to(on, RITA, dm, f"show {fence.run_id}")
    assert f"Run {fence.run_id} is stopped" in await said_to(on, RITA, dm, "stop")
    assert f"Run {fence.run_id} goes on" in await said_to(on, RITA, dm, "continue")
    run = await on.desk.run(fence.run_id)
    assert run is not None
    assert run.state is RunState.RUNNING
    assert "no such run" in await said_to(on, VERA, SALES_DESK, f"<@U0ATLAS0001> show {fence.run_id}")
    assert "no run of yours" in await said_to(on, VERA, SALES_DESK, f"<@U0ATLAS0001> stop {fence.run_id}")
