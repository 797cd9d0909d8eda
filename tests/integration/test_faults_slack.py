"""Faults that others reported about cards, expiry and Slack's mechanics, each by its reference.

The last test holds that every reference of the two lists stands in the docstring of a test, here or elsewhere.
"""

import ast
import asyncio
import json
from collections.abc import AsyncIterator
from functools import cache, partial
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from aiohttp import web

from bot.app import build_app, events_route
from bot.desk import make_agent
from bot.simulator.workspace import MARCUS, RITA, SALES_DESK, VERA
from bot.web import Web
from core.approvals import Via
from core.engine import Actor
from core.run import RunState, SuspensionStatus
from core.tools import Approval
from storage.maintenance import PgMaintenance
from tests.integration.slack_stage import Stage, connected, stage, until


@pytest.fixture
async def on(pool: "asyncpg.Pool[asyncpg.Record]") -> AsyncIterator[Stage]:
    """The stage, connected."""
    async with stage(pool) as on, connected(on):
        yield on


def actions(message: dict[str, Any]) -> list[str]:
    """Return the action ids that a message offers."""
    return [it["action_id"] for block in message["blocks"] if block["type"] == "actions" for it in block["elements"]]


def shown(message: dict[str, Any]) -> str:
    """Return all that a message shows, without the ids of its blocks."""
    return json.dumps([{k: v for k, v in block.items() if k != "block_id"} for block in message["blocks"]])


async def press(on: Stage, user: str, card: dict[str, Any], action: str, **how: Any) -> Any:
    """Click and wait until Slack knows whether it was acked."""
    return await (await on.slack.click(user, SALES_DESK, card["ts"], action, **how)).settled()


# ---- cards -----------------------------------------------------------------------------------------------------------


async def test_a_decision_at_the_command_line_settles_every_copy(on: Stage) -> None:
    """denoland/clawpatrol#595, curie-eng/curie#1084, hoophq/hoop#1715: decided elsewhere, buttons stayed live."""
    suspension_id = await on.suspend(await on.run())
    assert await on.outbox.mirror_card(suspension_id, on.slack.dm(MARCUS))
    await on.deliver()
    found = await on.desk.suspension(suspension_id)
    assert found is not None
    operator = Actor("", "operator:ada", Via.CLI)
    decided = await on.engine.decide(operator, suspension_id, found[0].token, approve=False, reason="not today")
    assert decided.refusal is None
    await on.deliver()
    copies = on.posted(f"card:{suspension_id}") + on.posted(f"card:{suspension_id}:{on.slack.dm(MARCUS)}")
    assert len(copies) == 2
    for copy in copies:
        assert actions(copy) == []
        assert "Declined" in shown(copy)


async def test_expiry_says_the_same_whoever_notices_it(on: Stage) -> None:
    """curie-eng/curie#419, openclaw/openclaw#124076: job, late click, a later process: one edit, the same text."""
    found: list[str] = []
    for notices in ("job", "click", "restart"):
        fence = await on.run(notices)
        suspension_id = await on.suspend(fence)
        card = await on.card(suspension_id)
        before = len(on.slack.journal.find({"kind": "request", "method": "chat.update"}))
        on.time.advance(1_801)
        if notices == "click":
            await press(on, RITA, card, "approve")
        else:
            assert await PgMaintenance(on.pool, now=on.time).expire_due() == 1
        await on.deliver()
        edits = on.slack.journal.find({"kind": "request", "method": "chat.update"})[before:]
        assert len([it for it in edits if it["args"].get("ts") == card["ts"]]) == 1
        now = await on.card(suspension_id)
        assert actions(now) == ["continue"]
        status = next(block for block in now["blocks"] if "Expired" in json.dumps(block))
        words = [part.get("text") for part in status["elements"][0]["elements"] if part["type"] != "date"]
        found.append(json.dumps(words))
        assert await PgMaintenance(on.pool, now=on.time).expire_due() == 0
        assert on.posted(f"notice:{suspension_id}:expired")
    assert len(set(found)) == 1


RELEASED = {
    "card": ({"s", "t", "d"}, {"approve", "decline", "edit"}),
    "halt": ({"r", "n"}, {"continue"}),
    "progress": ({"r"}, {"stop"}),
}


async def test_buttons_that_an_earlier_release_posted_still_work(on: Stage) -> None:
    """curie-eng/curie#1751: a renamed key stranded cards across a deploy. These names stand in Slack for good."""
    fence = await on.run()
    suspension_id = await on.suspend(fence)
    other = await on.run("another")
    await on.halt(other)
    await on.deliver()
    for place, (keys, offered) in RELEASED.items():
        run_id = other.run_id if place == "halt" else fence.run_id
        names = {"card": f"card:{suspension_id}", "halt": f"halt:{run_id}:1", "progress": f"progress:{run_id}"}
        (message,) = on.posted(names[place])
        elements = [it for block in message["blocks"] if block["type"] == "actions" for it in block["elements"]]
        assert {it["action_id"] for it in elements} == offered
        assert all(set(json.loads(it["value"])) == keys for it in elements)
    await on.pool.execute("update suspensions set tool = 'a_tool_of_2024', preview = '{\"headline\": \"old\"}'")
    card = await on.card(suspension_id)
    assert (await press(on, RITA, card, "approve")).state == "acked"
    assert "Approved" in shown(await on.card(suspension_id))


async def test_a_card_is_never_rebuilt_from_a_read(on: Stage) -> None:
    """curie-eng/curie#1073: settled from what history returned, it lost all but a line. No history is read at all."""
    suspension_id = await on.suspend(await on.run())
    card = await on.card(suspension_id)
    for method in ("conversations.history", "conversations.replies"):
        on.slack.faults.add("error", method, times=None, error="internal_error")
    await press(on, RITA, card, "approve")
    settled = shown(await on.card(suspension_id))
    assert "SKU-4411" in settled
    assert "8,730.00 USD" in settled
    for method in ("conversations.history", "conversations.replies"):
        assert on.slack.journal.find({"kind": "request", "method": method}) == []


async def test_no_get_changes_anything_and_no_button_is_a_link(pool: "asyncpg.Pool[asyncpg.Record]") -> None:
    """activepieces/activepieces#6671, activepieces/activepieces#11665: a GET approved; buttons were links."""

    async def nothing() -> dict[str, Any]:
        return {}

    async with stage(pool) as on:
        door = Web("127.0.0.1", 0, nothing, nothing)
        app = build_app(on.installation, on.engine, on.inbox, on.homes, on.session, signing_secret="secret")
        door.app.router.add_post("/slack/events", events_route(app))
        base = await door.start()
        try:
            suspension_id = await on.suspend(await on.run())
            card = await on.card(suspension_id)
            elements = [it for block in card["blocks"] if block["type"] == "actions" for it in block["elements"]]
            assert not [it for it in elements if "url" in it]
            before = await on.pool.fetch("select * from suspensions")
            for route in door.app.router.routes():
                assert isinstance(route.resource, web.PlainResource)
                url = f"{base}{route.resource.canonical}?{json.loads(elements[0]['value'])}"
                async with on.session.get(url) as answer:
                    assert (answer.status == 405) == (route.resource.canonical == "/slack/events")
            assert await on.pool.fetch("select * from suspensions") == before
        finally:
            await door.stop()


async def test_reads_ask_nobody_and_each_write_has_its_own_card_on_record(on: Stage) -> None:
    """PostHog/posthog#71616: approvals were removed again for their friction. Only what leaves the house asks."""
    agent = make_agent("http://127.0.0.1:9")
    asking = {tool.name for tool in agent.tools if tool.approval is not None}
    assert asking == {"send_quote"}
    assert all(tool.writes for tool in agent.tools if tool.approval is not None)
    fence = await on.run()
    suspension_id = await on.suspend(fence)
    await press(on, RITA, await on.card(suspension_id), "approve")
    view = await on.desk.show(fence.run_id)
    assert view is not None
    assert [one.status for one in view.suspensions] == [SuspensionStatus.APPROVED]
    row = await on.pool.fetchrow("select run_id, act, by, allowed from audit")
    assert row is not None
    assert tuple(row) == (fence.run_id, "approve", RITA, True)


# ---- Slack's deliveries ----------------------------------------------------------------------------------------------


async def test_what_comes_while_nobody_is_connected_is_taken_from_its_retry(
    pool: "asyncpg.Pool[asyncpg.Record]",
) -> None:
    """vercel/chat#666, slackapi/bolt-python#1484: a retry may be the only delivery; it is stored as one."""
    async with stage(pool) as on:
        await on.slack.post_as(RITA, SALES_DESK, "<@U0ATLAS0001> hello")
        await until(lambda: on.slack.journal.find({"kind": "unacked"}))
        async with connected(on):
            on.slack.advance(400)
            await until(lambda: on.pool.fetchval("select count(*) = 1 from inbox"))
            retry = json.loads(await on.pool.fetchval("select payload from inbox"))["retry"]
            assert int(retry["number"]) >= 1
            assert retry["reason"]


async def test_acks_that_never_arrive_start_one_run(on: Stage) -> None:
    """slackapi/python-slack-sdk#1280: unacked envelopes come again, minutes later: one row, none lost."""
    on.slack.faults.sockets.forget_acks = 2
    on.slack.sockets.ack_window_s = 3.0
    await on.slack.post_as(RITA, SALES_DESK, "<@U0ATLAS0001> hello")
    await until(lambda: len(on.slack.journal.find({"kind": "unacked"})) >= 1)
    on.slack.advance(500)
    await until(lambda: on.slack.faults.sockets.forget_acks == 0)
    await until(lambda: len(on.slack.journal.find({"kind": "ack"})) >= 1)
    assert await on.pool.fetchval("select count(*) from inbox") == 1


async def test_fifty_at_once_are_all_acked_the_first_time(on: Stage) -> None:
    """slackapi/bolt-python#1355, slackapi/bolt-python#1201: a blocked loop acked late, and Slack sent all again."""
    fences = [await on.run(f"run {n}") for n in range(4)]
    suspended = [await on.suspend(fence, policy=Approval(by="anyone")) for fence in fences]
    cards = [await on.card(one) for one in suspended]
    posts = [on.slack.post_as(user, SALES_DESK, f"<@U0ATLAS0001> {n}") for n in range(25) for user in (RITA, VERA)]
    clicks = [press(on, MARCUS, card, "approve") for card in cards]
    done = await asyncio.gather(*posts, *clicks)
    assert {one.state for one in done[50:]} == {"acked"}
    await until(lambda: on.pool.fetchval("select count(*) = 50 from inbox where handled_at is null"))
    assert on.slack.journal.find({"kind": "unacked"}) == []


async def test_a_form_whose_trigger_ran_out_says_so_privately(on: Stage) -> None:
    """slackapi/bolt-python#306, slackapi/bolt-python#772, slackapi/bolt-python#886: expired_trigger_id. Forms open
    before any other work, and where Slack still refuses them, the person is told to press again; nothing is decided."""
    suspension_id = await on.suspend(await on.run())
    card = await on.card(suspension_id)
    for number, action in enumerate(("decline", "edit")):
        on.slack.faults.add("error", "views.open", error="expired_trigger_id")
        since = len(on.slack.journal.find({"kind": "request"}))
        assert (await press(on, RITA, card, action)).state == "acked"
        await until(partial(lambda before: len(on.slack.ephemerals(RITA, SALES_DESK)) > before, number))
        assert "press the button again" in on.slack.ephemerals(RITA, SALES_DESK)[-1]["text"]
        first = on.slack.journal.find({"kind": "request"})[since]
        assert first["method"] == "views.open"
    found = await on.desk.suspension(suspension_id)
    assert found is not None
    assert found[0].status is SuspensionStatus.OPEN
    assert found[1].state is RunState.SUSPENDED


# ---- the lists -------------------------------------------------------------------------------------------------------

CARD_STATE_EXPIRY_AND_MECHANICS = (
    "denoland/clawpatrol#595", "curie-eng/curie#1084", "hoophq/hoop#1715", "curie-eng/curie#419",
    "openclaw/openclaw#124076", "curie-eng/curie#1751", "curie-eng/curie#1073", "activepieces/activepieces#6671",
    "activepieces/activepieces#11665", "n8n-io/n8n#13144", "hoophq/hoop#1265", "slackapi/bolt-python#1027",
    "slackapi/bolt-python#868", "slackapi/bolt-python#1355", "slackapi/bolt-js#2487",
    "slackapi/slack-github-action#513", "openai/openai-agents-python#2487", "openai/openai-agents-python#4244",
    "openai/openai-agents-python#5141", "vellum-ai/vellum-assistant#37007", "MoonshotAI/kimi-cli#1823",
    "fivexl/terraform-aws-sso-elevator#26", "fivexl/terraform-aws-sso-elevator#42", "slackapi/bolt-python#873",
    "slackapi/bolt-python#1177", "slackapi/bolt-js#1816", "NousResearch/hermes-agent#25355", "PostHog/posthog#71616",
)  # fmt: skip
KNOWN_ISSUES_OF_THE_SDK = (
    "slackapi/bolt-python#1529", "slackapi/python-slack-sdk#1446", "burnt ticket", "slackapi/python-slack-sdk#1280",
    "slackapi/bolt-js#2487", "vercel/chat#666", "slackapi/bolt-python#1484", "slackapi/bolt-python#868",
    "slackapi/bolt-python#1027", "slackapi/bolt-python#1355", "slackapi/bolt-python#1201", "slackapi/bolt-python#306",
    "slackapi/bolt-python#772", "slackapi/bolt-python#886", "slackapi/bolt-python#873", "slackapi/bolt-js#1816",
    "slackapi/bolt-python#964", "slackapi/bolt-python#622", "NousResearch/hermes-agent#36848",
    "NousResearch/hermes-agent#6735",
)  # fmt: skip


@cache
def docstrings() -> dict[str, str]:
    """Return the docstring of every test of this repository, by file and name."""
    found: dict[str, str] = {}
    for file in sorted(Path(__file__).parents[1].glob("*/test_*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                found[f"{file.name}::{node.name}"] = ast.get_docstring(node) or ""
    return found


@pytest.mark.parametrize("reference", sorted({*CARD_STATE_EXPIRY_AND_MECHANICS, *KNOWN_ISSUES_OF_THE_SDK}))
def test_every_reported_fault_is_the_case_of_a_test(reference: str) -> None:
    """Each reference stands in a test's docstring, as a whole word."""
    told = [name for name, words in docstrings().items() if reference in words.replace(",", " ").replace(":", " ")]
    assert told, f"no test names {reference}"
