"""What the simulator sends and answers, held against Slack's own lists of keys and error codes."""

import json
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from slack_sdk.web.async_client import AsyncWebClient

from bot.simulator import Simulator
from bot.simulator.workspace import CONTOSO, EMIL, RITA, SALES_DESK, AppManifest

SLACK_DATA = Path(os.environ.get("ATLAS_SLACK_DATA", Path(__file__).parents[3] / "shared" / "slack"))
SAMPLES, METHODS = SLACK_DATA / "samples", SLACK_DATA / "methods"
pytestmark = pytest.mark.skipif(not SAMPLES.is_dir(), reason=f"Slack's own data is not at {SLACK_DATA}")

# Keys that real captures and Slack's pages show and the Java samples lack (see each reason).
KNOWN_GAPS = {
    # Event wrappers since 2021 carry these; only some Java samples have been renewed.
    "context_team_id",
    "context_enterprise_id",
    # Bot messages echo with app_id (redacted captures in slack_bolt's and slack_sdk's tests).
    "event.app_id",
    # A message with metadata shows its type to everyone; the payload only where it is asked for.
    "event.metadata.event_type",
    # Slack's pages: a submission carries response_urls for inputs that ask for one.
    "response_urls",
    # The Java samples blank these maps to {}; Slack's pages on block_actions and views show them.
    "state.values",
    "view.state.values",
    "view.blocks",
}
# Kept as Slack sent them by the app itself: their content is the app's own.
OPAQUE = {"blocks", "attachments", "values", "event_payload", "private_metadata", "elements", "user_profile"}


def paths(value: object, at: str = "") -> Iterator[str]:
    """Yield every key path of a payload, without what an app put in itself."""
    if isinstance(value, dict):
        for key, inner in value.items():
            path = f"{at}.{key}" if at else key
            yield path
            if key not in OPAQUE:
                yield from paths(inner, path)
    elif isinstance(value, list):
        for inner in value:
            yield from paths(inner, at)


def sample(name: str) -> set[str]:
    return set(paths(json.loads((SAMPLES / name).read_text("utf-8"))))


def unknown(payload: object, name: str) -> set[str]:
    return set(paths(payload)) - sample(name) - KNOWN_GAPS


@pytest.fixture
async def slack() -> AsyncIterator[Simulator]:
    events = ("app_mention", "message.im", "message.channels", "app_home_opened")
    async with Simulator(manifest=AppManifest(events=events)) as slack:
        slack.triggers.life_s = 3_600  # a busy machine may need more than Slack's 3 s between a click and its form
        yield slack


@pytest.fixture
async def client(slack: Simulator) -> AsyncIterator[AsyncWebClient]:
    async with aiohttp.ClientSession() as session:
        yield AsyncWebClient(token=slack.workspace.bot_token, base_url=slack.api_url, session=session)


def sent(slack: Simulator, kind: str) -> list[dict[str, Any]]:
    return [record["payload"] for record in slack.journal.find({"kind": "event", "type": kind})]


def subtype(slack: Simulator, name: str | None) -> dict[str, Any]:
    return next(event for event in sent(slack, "message") if event["event"].get("subtype") == name)


CARD: list[dict[str, Any]] = [
    {
        "type": "actions",
        "block_id": "b",
        "elements": [
            {"type": "button", "action_id": "go", "text": {"type": "plain_text", "text": "Go"}, "value": "1"},
            {
                "type": "static_select",
                "action_id": "pick",
                "placeholder": {"type": "plain_text", "text": "Pick"},
                "options": [{"text": {"type": "plain_text", "text": "A"}, "value": "a"}],
            },
            {"type": "datepicker", "action_id": "day"},
        ],
    }
]


async def test_events_carry_no_key_that_slack_does_not_send(slack: Simulator, client: AsyncWebClient) -> None:
    asked = await slack.post_as(RITA, SALES_DESK, "@Atlas hello #deals <x>")
    foreign = await slack.post_as(EMIL, CONTOSO, "@Atlas hello")
    threaded = await slack.post_as(RITA, SALES_DESK, "@Atlas again", asked["ts"])
    await slack.post_as(RITA, slack.dm(RITA), "hello")
    posted = await client.chat_postMessage(
        channel=RITA, text="x", blocks=CARD, metadata={"event_type": "card", "event_payload": {"id": 1}}
    )
    dm = posted["channel"]
    await client.chat_update(channel=dm, ts=posted["ts"], text="y")
    await client.chat_delete(channel=dm, ts=posted["ts"])
    await slack.open_home(RITA)
    mentions = sent(slack, "app_mention")
    assert [event["event"]["ts"] for event in mentions] == [m["ts"] for m in (asked, foreign, threaded)]
    for mention in mentions:
        assert unknown(mention, "events/AppMentionPayload.json") == set()
    assert mentions[1]["is_ext_shared_channel"] is True
    assert mentions[1]["event"]["user_team"] == mentions[1]["event"]["source_team"] == "T0CONTOSO01"
    assert mentions[2]["event"]["thread_ts"] == asked["ts"]
    assert "channel_type" not in mentions[0]["event"]
    plain = [event for event in sent(slack, "message") if "subtype" not in event["event"]]
    assert {event["event"]["channel_type"] for event in plain} == {"im", "channel"}
    for event in plain:
        assert unknown(event, "events/MessagePayload.json") - {"event.user_team", "event.source_team"} == set()
    echo = next(event["event"] for event in plain if event["event"].get("bot_id"))
    assert echo["user"] == "U0ATLAS0001"
    assert echo["app_id"] == "A0ATLAS0001"
    assert echo["bot_profile"]["team_id"] == "T0NORTHWIND"
    assert echo["metadata"] == {"event_type": "card"}
    known = {"event.message.app_id", "event.previous_message.app_id"}
    known |= {
        f"event.{which}.metadata{rest}" for which in ("message", "previous_message") for rest in ("", ".event_type")
    }
    assert unknown(subtype(slack, "message_changed"), "events/MessageChangedPayload.json") - known == set()
    assert unknown(subtype(slack, "message_deleted"), "events/MessageDeletedPayload.json") - known == set()
    (home,) = sent(slack, "app_home_opened")
    assert unknown(home, "events/AppHomeOpenedPayload.json") == set()
    ids = [event["event_id"] for kind in ("app_mention", "message") for event in sent(slack, kind)]
    assert len(ids) == len(set(ids))


async def test_clicks_carry_no_key_that_slack_does_not_send(slack: Simulator, client: AsyncWebClient) -> None:
    asked = await slack.post_as(RITA, SALES_DESK, "quote?")
    posted = await client.chat_postMessage(
        channel=SALES_DESK,
        thread_ts=asked["ts"],
        text="x",
        blocks=CARD,
        metadata={"event_type": "card", "event_payload": {"id": 1}},
    )
    click = await slack.click(RITA, SALES_DESK, posted["ts"], "go")
    assert unknown(click.payload, "app-backend/interactive-components/BlockActionPayload.json") == set()
    assert click.payload["container"] == {
        "type": "message",
        "message_ts": posted["ts"],
        "channel_id": SALES_DESK,
        "is_ephemeral": False,
        "thread_ts": asked["ts"],
    }
    assert click.payload["message"]["metadata"]["event_payload"] == {"id": 1}
    assert click.payload["message"]["ts"] == posted["ts"]
    assert click.payload["actions"][0]["value"] == "1"
    pick = await slack.click(RITA, SALES_DESK, posted["ts"], "pick", selected="a")
    action = pick.payload["actions"][0]
    assert action["selected_option"]["text"]["text"] == "A"
    assert pick.payload["state"]["values"]["b"]["pick"]["selected_option"]["value"] == "a"
    assert pick.payload["state"]["values"]["b"]["day"] == {"type": "datepicker", "selected_date": None}
    assert unknown(pick.payload, "app-backend/interactive-components/BlockActionPayload.json") == set()
    await client.chat_postEphemeral(channel=SALES_DESK, user=RITA, text="x", blocks=CARD)
    (whisper,) = slack.ephemerals(RITA, SALES_DESK)
    private = await slack.click(RITA, SALES_DESK, whisper["ts"], "go")
    assert private.payload["container"]["is_ephemeral"] is True
    assert "message" not in private.payload


async def test_views_and_commands_carry_no_key_that_slack_does_not_send(
    slack: Simulator, client: AsyncWebClient
) -> None:
    posted = await client.chat_postMessage(channel=SALES_DESK, text="x", blocks=CARD)
    click = await slack.click(RITA, SALES_DESK, posted["ts"], "go")
    view = {
        "type": "modal",
        "callback_id": "form",
        "notify_on_close": True,
        "title": {"type": "plain_text", "text": "Form"},
        "submit": {"type": "plain_text", "text": "Send"},
        "close": {"type": "plain_text", "text": "No"},
        "blocks": CARD,
    }
    opened = await client.views_open(trigger_id=click.payload["trigger_id"], view=view)
    submitted = await slack.submit(RITA, opened["view"]["id"])
    assert unknown(submitted.payload, "app-backend/views/ViewSubmissionPayload.json") == set()
    slack.acts.close_view(RITA, opened["view"]["id"])
    (closed,) = slack.journal.find({"kind": "interaction", "what": "view_closed", "state": "pending"})
    assert closed["user"] == RITA
    payload = slack.payloads.view_closed(slack.workspace.people[1], opened["view"], False)
    assert unknown(payload, "app-backend/views/ViewClosedPayload.json") == set()
    command = await slack.command(RITA, SALES_DESK, "/atlas", "show @Rita in #deals")
    assert unknown(command.payload, "app-backend/slash-commands/SlashCommandPayload.json") == set()
    assert all(isinstance(value, str) for value in command.payload.values())
    assert command.payload["is_enterprise_install"] == "false"
    assert command.payload["text"] == "show <@U0RITA00001|rita.reyes> in <#C0DEALS0001|deals>"


async def test_answers_carry_no_key_that_slack_does_not_answer(slack: Simulator, client: AsyncWebClient) -> None:
    home = {"type": "home", "blocks": CARD}
    posted = await client.chat_postMessage(channel=SALES_DESK, text="x", blocks=CARD)
    ts = posted["ts"]
    click = await slack.click(RITA, SALES_DESK, ts, "go")
    modal = {"type": "modal", "title": {"type": "plain_text", "text": "Form"}, "blocks": CARD}
    calls: list[tuple[str, dict[str, Any]]] = [
        ("auth.test", {}),
        ("team.info", {}),
        ("bots.info", {"bot": "B0ATLAS0001"}),
        ("users.info", {"user": EMIL}),
        ("users.info", {"user": "U0DORA00001"}),
        ("users.list", {"limit": 3}),
        ("usergroups.list", {"include_users": True}),
        ("usergroups.users.list", {"usergroup": "S0SALESMGRS"}),
        ("conversations.info", {"channel": SALES_DESK, "include_num_members": True}),
        ("conversations.list", {"types": "public_channel,im", "limit": 2}),
        ("conversations.members", {"channel": SALES_DESK, "limit": 2}),
        ("conversations.join", {"channel": SALES_DESK}),
        ("chat.getPermalink", {"channel": SALES_DESK, "message_ts": ts}),
        ("chat.postEphemeral", {"channel": SALES_DESK, "user": RITA, "text": "x"}),
        ("reactions.add", {"channel": SALES_DESK, "timestamp": ts, "name": "eyes"}),
        ("reactions.remove", {"channel": SALES_DESK, "timestamp": ts, "name": "eyes"}),
        ("assistant.threads.setStatus", {"channel_id": SALES_DESK, "thread_ts": ts, "status": "is thinking"}),
        ("views.open", {"trigger_id": click.payload["trigger_id"], "view": modal}),
        ("views.publish", {"user_id": RITA, "view": home}),
        ("chat.delete", {"channel": SALES_DESK, "ts": ts}),
    ]
    for method, arguments in calls:
        answer = await client.api_call(method, json=arguments)
        assert isinstance(answer.data, dict)
        found = unknown(answer.data, f"api/{method}.json")
        assert found == set(), f"{method}: {found}"
    opened = await client.api_call("apps.connections.open", json={}, headers=_app_token(slack))
    assert unknown(opened.data, "api/apps.connections.open.json") == set()


def _app_token(slack: Simulator) -> dict[str, str]:
    return {"Authorization": f"Bearer {slack.workspace.app_token}"}


def _documented(method: str) -> set[str]:
    text = (METHODS / f"{method}.json").read_text("utf-8")
    # "invalid_auth" stands in few lists, and in Slack's own sample answers of methods that do not list it;
    # "invalid_arguments" likewise, in the sample answers of views.*
    sampled = {code for code in ("invalid_auth", "invalid_arguments") if code in text}
    return set(json.loads(text)["errors"]) | sampled | {"invalid_auth"}


async def test_every_error_is_documented_for_its_method(slack: Simulator, client: AsyncWebClient) -> None:
    """Call every method with what is wrong in many ways; each error must stand in Slack's list."""
    posted = await client.chat_postMessage(channel=SALES_DESK, text="x", blocks=CARD)
    other = await slack.post_as(RITA, SALES_DESK, "mine")
    wrong: list[dict[str, Any]] = [
        {},
        {"channel": "C0NOWHERE00", "text": "x"},
        {"channel": "C0RANDOM001", "text": "x", "ts": "1.1", "timestamp": "1.1", "name": "eyes"},
        {"channel": SALES_DESK},
        {"channel": SALES_DESK, "text": "x", "blocks": "nothing"},
        {"channel": SALES_DESK, "text": "x", "blocks": [{"type": "nothing"}], "user": RITA, "ts": posted["ts"]},
        {"channel": SALES_DESK, "text": "x", "markdown_text": "y", "user": RITA, "ts": posted["ts"]},
        {"channel": SALES_DESK, "text": "x" * 40_001, "user": RITA, "ts": posted["ts"]},
        {"channel": SALES_DESK, "text": "x", "metadata": {"event_type": 1}, "ts": posted["ts"]},
        {"channel": SALES_DESK, "text": "x", "attachments": [{}] * 101, "user": RITA, "ts": posted["ts"]},
        {"channel": SALES_DESK, "text": "x", "ts": other["ts"], "timestamp": other["ts"], "name": "eyes"},
        {"channel": SALES_DESK, "text": "x", "thread_ts": posted["ts"], "user": "U0NOBODY000"},
        {"channel": SALES_DESK, "ts": "1.1", "message_ts": "1.1", "cursor": "?", "oldest": "?"},
        {"channel": SALES_DESK, "ts": posted["ts"], "oldest": "?", "text": "x", "markdown_text": ""},
        {"channel": SALES_DESK, "ts": posted["ts"], "cursor": "?", "chunks": [{"type": "?"}]},
        {"users": "U0DORA00001"},
        {"users": "U0NOBODY000"},
        {"users": "U0RITA00001,U0MARCUS001"},
        {"types": "everything"},
        {"trigger_id": "1", "view": {"type": "modal"}},
        {"trigger_id": "1", "view": {"type": "modal", "title": {"type": "plain_text", "text": "x"}, "blocks": []}},
        {"user_id": "U0NOBODY000", "view": {"type": "home", "blocks": []}},
        {"view_id": "V0", "view": {"type": "home", "blocks": []}},
        {"channel_id": SALES_DESK, "thread_ts": "1.1", "status": "x", "prompts": []},
        {"channel_id": SALES_DESK, "thread_ts": posted["ts"], "loading_messages": ["x"] * 11, "prompts": [1] * 5},
        {"channel_id": "C0NOWHERE00", "thread_ts": "1.1", "status": "x", "prompts": []},
        {"usergroup": "S0", "bot": "B0", "user": "U0", "team": "T0"},
    ]
    seen: dict[str, set[str]] = {}
    tokens = [slack.workspace.bot_token, slack.workspace.app_token, "xoxb-wrong", ""]
    files = {path.stem for path in METHODS.glob("*.json")}
    # last: the calls that change what the others meet (they let the bot into #random, delete the message)
    last = ("chat.delete", "conversations.join")
    methods = sorted((m for m in slack.web_api.methods if m in files), key=lambda m: (m in last, m))
    async with aiohttp.ClientSession() as session:
        for method in methods:
            for token in tokens:
                for arguments in wrong if token == slack.workspace.bot_token else wrong[:1]:
                    headers = {"Authorization": f"Bearer {token}"} if token else {}
                    async with session.post(slack.api_url + method, json=arguments, headers=headers) as response:
                        assert response.status == 200
                        answer = await response.json()
                    if not answer["ok"]:
                        seen.setdefault(method, set()).add(answer["error"])
    undocumented = {m: codes - _documented(m) for m, codes in seen.items() if codes - _documented(m)}
    assert undocumented == {}
    assert len(methods) >= 30
    # the sweep reaches the errors themselves, not only the token checks in front of them
    assert {"channel_not_found", "not_in_channel", "no_text", "invalid_blocks", "invalid_blocks_format"} <= seen[
        "chat.postMessage"
    ]
    assert {"msg_too_long", "cant_update_message", "message_not_found", "markdown_text_conflict"} <= seen["chat.update"]
    assert {"invalid_trigger_id", "invalid_arguments"} <= seen["views.open"]


async def test_a_missing_oauth_scope_says_what_is_needed(slack: Simulator) -> None:
    async with (
        Simulator(manifest=AppManifest(scopes=("app_mentions:read", "channels:read"))) as narrow,
        aiohttp.ClientSession() as session,
    ):
        headers = {"Authorization": f"Bearer {narrow.workspace.bot_token}"}
        url = narrow.api_url + "chat.postMessage"
        async with session.post(url, json={"channel": SALES_DESK, "text": "x"}, headers=headers) as response:
            assert await response.json() == {
                "ok": False,
                "error": "missing_scope",
                "needed": "chat:write",
                "provided": "app_mentions:read,channels:read",
            }
            assert response.headers["x-oauth-scopes"] == "app_mentions:read,channels:read"
            assert response.headers["x-accepted-oauth-scopes"] == "chat:write"
        url = narrow.api_url + "conversations.list?types=public_channel,im"
        async with session.get(url, headers=headers) as response:
            assert (await response.json())["needed"] == "im:read"
