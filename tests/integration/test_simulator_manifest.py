"""The installed app is what its manifest says: events, commands, tabs and scopes that it lacks do not work."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml
from slack_sdk.errors import SlackApiError
from slack_sdk.web.async_client import AsyncWebClient

from bot.simulator import ActRefused, AppManifest, Simulator
from bot.simulator.workspace import RITA, SALES_DESK

Json = dict[str, Any]
LEAST: Json = {
    "display_information": {"name": "Atlas"},
    "features": {
        "app_home": {"home_tab_enabled": False, "messages_tab_enabled": True, "messages_tab_read_only_enabled": False},
        "bot_user": {"display_name": "Atlas the agent", "always_online": True},
        "slash_commands": [{"command": "/desk", "description": "Control", "should_escape": False}],
    },
    "oauth_config": {"scopes": {"bot": ["app_mentions:read", "chat:write", "commands", "im:history"]}},
    "settings": {
        "event_subscriptions": {"bot_events": ["app_mention", "message.im"]},
        "interactivity": {"is_enabled": True},
        "socket_mode_enabled": True,
    },
}
BUTTON: list[Json] = [
    {
        "type": "actions",
        "elements": [{"type": "button", "action_id": "go", "text": {"type": "plain_text", "text": "Go"}}],
    }
]


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


def client_of(slack: Simulator, session: aiohttp.ClientSession) -> AsyncWebClient:
    return AsyncWebClient(token=slack.workspace.bot_token, base_url=slack.api_url, session=session)


async def error_of(awaitable: Any) -> str:
    with pytest.raises(SlackApiError) as refused:
        await awaitable
    return str(refused.value.response["error"])


def event_types(slack: Simulator) -> list[str]:
    return [record["type"] for record in slack.journal.find({"kind": "event"})]


async def test_a_manifest_file_decides_events_commands_tabs_and_scopes(
    tmp_path: Path, session: aiohttp.ClientSession
) -> None:
    file = tmp_path / "manifest.yml"
    file.write_text(yaml.safe_dump(LEAST))
    async with Simulator(manifest=file) as slack:
        client = client_of(slack, session)
        await slack.post_as(RITA, SALES_DESK, "@Atlas hello")
        await slack.post_as(RITA, SALES_DESK, "not for the bot")
        await slack.post_as(RITA, slack.dm(RITA), "hello")
        await slack.open_home(RITA)
        assert event_types(slack) == ["app_mention", "message"]
        posted = await client.chat_postMessage(channel=SALES_DESK, text="x", blocks=BUTTON)
        assert posted["message"]["bot_profile"]["name"] == "Atlas the agent"
        assert await error_of(client.views_publish(user_id=RITA, view={"type": "home", "blocks": []})) == "not_enabled"
        assert await error_of(client.users_info(user=RITA)) == "missing_scope"
        assert await error_of(client.conversations_history(channel=SALES_DESK)) == "missing_scope"
        await client.conversations_history(channel=slack.dm(RITA))
        command = await slack.command(RITA, SALES_DESK, "/desk", "a <b>")
        assert command.payload["text"] == "a <b>"
        with pytest.raises(ActRefused, match="not a valid command"):
            await slack.command(RITA, SALES_DESK, "/atlas", "help")


@pytest.mark.parametrize(
    ("without", "expected"),
    [("app_mentions:read", ["message"]), ("im:history", ["app_mention"]), ("chat:write", ["app_mention", "message"])],
)
async def test_an_event_needs_its_scope(without: str, expected: list[str]) -> None:
    whole = AppManifest.from_document(LEAST)
    scopes = tuple(scope for scope in whole.scopes if scope != without)
    async with Simulator(manifest=AppManifest(scopes=scopes, events=whole.events)) as slack:
        await slack.post_as(RITA, SALES_DESK, "@Atlas hello")
        await slack.post_as(RITA, slack.dm(RITA), "hello")
        assert event_types(slack) == expected


async def test_tabs_and_interactivity_that_are_off(session: aiohttp.ClientSession) -> None:
    async with Simulator(manifest=AppManifest(messages_tab=False, interactivity=False)) as slack:
        client = client_of(slack, session)
        assert await error_of(client.chat_postMessage(channel=RITA, text="x")) == "messages_tab_disabled"
        with pytest.raises(ActRefused, match="turned off"):
            await slack.post_as(RITA, slack.dm(RITA), "hello")
        posted = await client.chat_postMessage(channel=SALES_DESK, text="x", blocks=BUTTON)
        with pytest.raises(ActRefused, match="not configured to handle interactive responses"):
            await slack.click(RITA, SALES_DESK, posted["ts"], "go")
    async with Simulator(manifest=AppManifest(messages_tab_read_only=True)) as slack:
        await client_of(slack, session).chat_postMessage(channel=RITA, text="the bot may still write")
        with pytest.raises(ActRefused, match="turned off"):
            await slack.post_as(RITA, slack.dm(RITA), "hello")


async def test_our_own_manifest_is_taken(session: aiohttp.ClientSession) -> None:
    own = Path(__file__).parents[2] / "manifest.yml"
    async with Simulator(manifest=own) as slack:
        assert "app_mention" in slack.manifest.events
        assert [command.command for command in slack.manifest.commands] == ["/atlas"]
        await client_of(slack, session).chat_postMessage(channel=SALES_DESK, text="x")
