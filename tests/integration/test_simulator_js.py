"""The simulator speaks Slack, not our own dialect: Slack's JavaScript framework works against it unchanged."""

import asyncio
import os
import shutil
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from bot.simulator import Simulator
from bot.simulator.workspace import MARCUS, RITA, SALES_DESK
from tests.integration.slack_stage import PATIENCE_S

JS = Path(__file__).parents[1] / "js"
NODE, NPM = shutil.which("node"), shutil.which("npm")
pytestmark = pytest.mark.skipif(not NODE or not NPM, reason="node and npm are needed for Slack's JavaScript framework")


@pytest.fixture(scope="module")
def installed() -> None:
    """Install exactly what the lock file says, unless that is what is there."""
    marker, lock = JS / "node_modules" / ".package-lock.json", JS / "package-lock.json"
    if marker.exists() and marker.stat().st_mtime >= lock.stat().st_mtime:
        return
    assert NPM
    subprocess.run([NPM, "ci", "--no-audit", "--no-fund"], cwd=JS, check=True, timeout=300, capture_output=True)


@pytest.fixture
async def slack(installed: None) -> AsyncIterator[Simulator]:
    """A workspace to which the JavaScript app is connected."""
    assert NODE
    async with Simulator() as slack:
        # Slack gives 3 s; on a busy machine the app may need more.
        slack.sockets.ack_window_s = slack.triggers.life_s = PATIENCE_S
        there = slack.addresses()
        app = await asyncio.create_subprocess_exec(
            NODE,
            "smoke.js",
            cwd=JS,
            env={
                "PATH": os.environ["PATH"],
                "SLACK_API_URL": there["api_url"],
                "SLACK_BOT_TOKEN": there["bot_token"],
                "SLACK_APP_TOKEN": there["app_token"],
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        assert app.stdout
        reading = asyncio.create_task(app.stdout.read())
        try:
            await slack.wait_for(lambda: slack.sockets.connected or app.returncode is not None, PATIENCE_S)
            assert slack.sockets.connected, (await reading).decode()
            yield slack
        finally:
            if app.returncode is None:
                app.terminate()
            assert await asyncio.wait_for(app.wait(), PATIENCE_S) == 0, (await reading).decode()
            output = (await reading).decode()
            assert "ERROR" not in output, output


async def test_mention_card_click_update_and_private_answer(slack: Simulator) -> None:
    asked = await slack.post_as(RITA, SALES_DESK, "@Atlas quote & <send>")
    card = (await slack.wait_for(lambda: slack.bot_messages(SALES_DESK, asked["ts"])))[0]
    assert card["text"] == f"heard: {asked['text']}"
    assert "&amp; &lt;send&gt;" in asked["text"]
    click = await slack.click(MARCUS, SALES_DESK, card["ts"], "approve")
    assert (await click.settled()).state == "acked"
    await slack.wait_for(lambda: slack.bot_messages(SALES_DESK, asked["ts"])[0]["text"] == "approved")
    assert "blocks" not in slack.bot_messages(SALES_DESK, asked["ts"])[0]
    private = await slack.wait_for(lambda: slack.ephemerals(MARCUS, SALES_DESK))
    assert private[0]["text"] == "only you see this, marcus.hale"
    assert slack.ephemerals(RITA, SALES_DESK) == []


async def test_modal_with_errors_then_accepted(slack: Simulator) -> None:
    asked = await slack.post_as(RITA, SALES_DESK, "@Atlas quote")
    card = (await slack.wait_for(lambda: slack.bot_messages(SALES_DESK, asked["ts"])))[0]
    await slack.click(RITA, SALES_DESK, card["ts"], "decline")
    view = (await slack.wait_for(lambda: slack.modals(RITA)))[0]
    refused = await slack.submit(RITA, view["id"], {"why": {"text": {"type": "plain_text_input", "value": "no"}}})
    assert (await refused.settled()).answer == {"response_action": "errors", "errors": {"why": "say more"}}
    assert [open_view["id"] for open_view in slack.modals(RITA)] == [view["id"]]
    accepted = await slack.submit(RITA, view["id"], {"why": {"text": {"type": "plain_text_input", "value": "dear"}}})
    await accepted.settled()
    await slack.wait_for(lambda: not slack.modals(RITA))
    told = await slack.wait_for(lambda: slack.bot_messages(slack.dm(RITA)))
    assert told[0]["text"] == "declined: dear (kept)"


async def test_command_direct_message_and_home(slack: Simulator) -> None:
    await (await slack.command(RITA, SALES_DESK, "/atlas", "runs")).settled()
    at_once = await slack.wait_for(lambda: slack.ephemerals(RITA, SALES_DESK))
    assert [message["text"] for message in at_once] == ["at once: runs"]
    later = await slack.wait_for(lambda: slack.bot_messages(SALES_DESK))
    assert later[0]["text"] == "later: runs"
    await slack.post_as(RITA, slack.dm(RITA), "@Atlas hello")
    answer = await slack.wait_for(lambda: slack.bot_messages(slack.dm(RITA)))
    assert answer[0]["text"] == "dm: <@U0ATLAS0001> hello"
    await slack.open_home(RITA)
    home = await slack.wait_for(lambda: slack.home(RITA))
    assert home["blocks"][0]["text"]["text"] == "Nothing waits"
    # the bot's own post came back to it and was left alone: no endless conversation with itself
    assert len(slack.bot_messages(slack.dm(RITA))) == 1
