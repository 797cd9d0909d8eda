"""slack-bolt for Python against the simulator: what people do reaches the app, what it says reaches them."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from slack_bolt.adapter.socket_mode.aiohttp import AsyncSocketModeHandler
from slack_bolt.async_app import AsyncApp
from slack_sdk.errors import SlackApiError
from slack_sdk.web.async_client import AsyncWebClient

from bot.simulator import ActRefused, Simulator
from bot.simulator.clock import Clock
from bot.simulator.workspace import BOT_USER_ID, EMIL, MARCUS, RITA, SALES_DESK, VERA

Json = dict[str, Any]


def card(*labels: str) -> list[Json]:
    elements = [
        {"type": "button", "action_id": label.lower(), "text": {"type": "plain_text", "text": label}, "value": "v1"}
        for label in labels
    ]
    return [{"type": "actions", "block_id": "decision", "elements": elements}]


def form(text: str = "Form", depth: int = 0) -> Json:
    return {
        "type": "modal",
        "callback_id": f"form{depth}",
        "notify_on_close": True,
        "title": {"type": "plain_text", "text": text},
        "submit": {"type": "plain_text", "text": "Send"},
        "blocks": [
            {
                "type": "input",
                "block_id": "why",
                "label": {"type": "plain_text", "text": "Why?"},
                "element": {"type": "plain_text_input", "action_id": "text", "max_length": 20},
            }
        ],
    }


def why(text: str) -> Json:
    return {"why": {"text": {"type": "plain_text_input", "value": text}}}


@pytest.fixture
async def slack() -> AsyncIterator[Simulator]:
    async with Simulator() as slack:
        yield slack


@pytest.fixture
def still(monkeypatch: pytest.MonkeyPatch) -> None:
    """No deadline of Slack's comes but by ``advance``, however slow the machine is."""
    monkeypatch.setattr(Clock, "monotonic", lambda clock: clock._offset)


@pytest.fixture
async def app(slack: Simulator) -> AsyncIterator[AsyncApp]:
    """An app without listeners, connected; tests add what they need before people act."""
    async with aiohttp.ClientSession() as session:
        client = AsyncWebClient(token=slack.workspace.bot_token, base_url=slack.api_url, session=session)
        app = AsyncApp(client=client)
        handler = AsyncSocketModeHandler(app, slack.workspace.app_token)
        await handler.connect_async()  # type: ignore[no-untyped-call]
        await slack.wait_for(lambda: slack.sockets.connected)
        yield app
        await handler.close_async()  # type: ignore[no-untyped-call]


@pytest.mark.usefixtures("still")
async def test_mention_say_click_ack_update_and_private_answer(slack: Simulator, app: AsyncApp) -> None:
    @app.event("app_mention")
    async def mentioned(event: Json, say: Any) -> None:
        await say(text=event["text"], blocks=card("Approve"), thread_ts=event["ts"])

    @app.action("approve")
    async def approved(ack: Any, body: Json, client: AsyncWebClient, respond: Any) -> None:
        await ack()
        await client.chat_update(channel=body["channel"]["id"], ts=body["message"]["ts"], text="done", blocks=[])
        await client.chat_postEphemeral(channel=body["channel"]["id"], user=body["user"]["id"], text="by the API")
        await respond("by the URL")

    asked = await slack.post_as(RITA, SALES_DESK, "@Atlas quote")
    posted = (await slack.wait_for(lambda: slack.bot_messages(SALES_DESK, asked["ts"])))[0]
    assert posted["text"] == f"<@{BOT_USER_ID}> quote"
    click = await (await slack.click(MARCUS, SALES_DESK, posted["ts"], "approve")).settled()
    assert click.state == "acked"
    await slack.wait_for(lambda: (slack.message(SALES_DESK, posted["ts"]) or {})["text"] == "done")
    private = await slack.wait_for(
        lambda: slack.ephemerals(MARCUS, SALES_DESK)[1:] and slack.ephemerals(MARCUS, SALES_DESK)
    )
    assert [message["text"] for message in private] == ["by the API", "by the URL"]
    with pytest.raises(ActRefused, match="This button is gone"):
        await slack.click(RITA, SALES_DESK, posted["ts"], "approve")


@pytest.mark.usefixtures("still")
async def test_a_direct_message_with_a_mention_is_one_message_event(slack: Simulator, app: AsyncApp) -> None:
    seen: list[Json] = []

    @app.event("message")
    async def heard(event: Json, say: Any) -> None:
        seen.append(event)
        await say("hello")

    @app.event("app_mention")
    async def mentioned(event: Json) -> None:
        seen.append(event)

    dm = slack.dm(RITA)
    await slack.post_as(RITA, dm, "@Atlas hello")
    await slack.wait_for(lambda: slack.bot_messages(dm))
    # the echo of the bot's own post is sent and acked, and reaches no listener
    await slack.wait_for(lambda: len(slack.journal.find({"kind": "ack"})) == 2)
    assert [(event["type"], event["channel_type"]) for event in seen] == [("message", "im")]


@pytest.mark.usefixtures("still")
async def test_modal_errors_update_push_three_deep_and_clear(slack: Simulator, app: AsyncApp) -> None:
    refused: list[str] = []
    said: list[Json] = []

    @app.action("open")
    async def opened(ack: Any, body: Json, client: AsyncWebClient) -> None:
        await ack()
        await client.views_open(trigger_id=body["trigger_id"], view=form())
        try:
            await client.views_open(trigger_id=body["trigger_id"], view=form())
        except SlackApiError as error:
            refused.append(error.response["error"])

    @app.view("form0")
    async def first(ack: Any, view: Json) -> None:
        text = view["state"]["values"]["why"]["text"]["value"]
        said.append(view)
        if text == "error":
            await ack(response_action="errors", errors={"why": "not this"})
        elif text == "update":
            await ack(response_action="update", view=form("Updated"))
        else:
            await ack(response_action="push", view=form("Second", 1))

    @app.view("form1")
    async def second(ack: Any) -> None:
        await ack(response_action="clear")

    @app.view_closed("form0")
    async def closed(ack: Any, body: Json) -> None:
        await ack()
        said.append(body)

    posted = await app.client.chat_postMessage(channel=SALES_DESK, text="x", blocks=card("Open"))
    await slack.click(RITA, SALES_DESK, posted["ts"], "open")
    view = (await slack.wait_for(lambda: slack.modals(RITA)))[0]
    await slack.wait_for(lambda: refused)
    assert refused == ["exchanged_trigger_id"]
    assert view["state"]["values"] == why(None)  # type: ignore[arg-type]
    for text in ("", "x" * 21):
        with pytest.raises(ActRefused, match="invalid_input"):
            await slack.submit(RITA, view["id"], why(text))
    await (await slack.submit(RITA, view["id"], why("error"))).settled()
    errors = slack.journal.find({"kind": "view", "what": "errors", "errors": {"why": "not this"}})
    assert len(errors) == 1
    await (await slack.submit(RITA, view["id"], why("update"))).settled()
    assert slack.modals(RITA)[0]["title"]["text"] == "Updated"
    assert slack.modals(RITA)[0]["id"] == view["id"]
    assert slack.modals(RITA)[0]["hash"] != said[0]["hash"]
    await (await slack.submit(RITA, view["id"], why("push"))).settled()
    stack = slack.modals(RITA)
    assert [open_view["title"]["text"] for open_view in stack] == ["Updated", "Second"]
    assert (stack[1]["previous_view_id"], stack[1]["root_view_id"]) == (view["id"], view["id"])
    await (await slack.submit(RITA, stack[1]["id"], why("done"))).settled()
    assert slack.modals(RITA) == []
    await slack.click(RITA, SALES_DESK, posted["ts"], "open")
    view = (await slack.wait_for(lambda: slack.modals(RITA)))[0]
    slack.acts.close_view(RITA, view["id"])
    await slack.wait_for(lambda: said[-1]["type"] == "view_closed")
    assert said[-1]["is_cleared"] is False


@pytest.mark.usefixtures("still")
async def test_trigger_ids_live_three_seconds(slack: Simulator, app: AsyncApp) -> None:
    go = asyncio.Event()
    errors: list[str] = []

    @app.action("open")
    async def opened(ack: Any, body: Json, client: AsyncWebClient) -> None:
        await ack()
        await go.wait()
        for trigger_id in (body["trigger_id"], "1.2.3"):
            try:
                await client.views_open(trigger_id=trigger_id, view=form())
            except SlackApiError as error:
                errors.append(error.response["error"])

    posted = await app.client.chat_postMessage(channel=SALES_DESK, text="x", blocks=card("Open"))
    await (await slack.click(RITA, SALES_DESK, posted["ts"], "open")).settled()
    slack.clock.advance(3.1)
    go.set()
    await slack.wait_for(lambda: len(errors) == 2)
    assert errors == ["expired_trigger_id", "invalid_trigger_id"]


@pytest.mark.usefixtures("still")
async def test_response_urls_take_five_posts_within_half_an_hour(slack: Simulator, app: AsyncApp) -> None:
    posted = await app.client.chat_postMessage(channel=SALES_DESK, text="x", blocks=card("Go"))

    @app.action("go")
    async def clicked(ack: Any) -> None:
        await ack()

    click = await slack.click(RITA, SALES_DESK, posted["ts"], "go")
    url = click.payload["response_url"]
    async with aiohttp.ClientSession() as session:
        statuses = []
        for number in range(6):
            async with session.post(url, json={"text": f"{number}"}) as response:
                statuses.append((response.status, "" if response.status == 200 else (await response.json())["error"]))
        assert statuses == [(200, "")] * 5 + [(404, "used_url")]
        assert len(slack.ephemerals(RITA, SALES_DESK)) == 5
        click = await slack.click(RITA, SALES_DESK, posted["ts"], "go")
        url = click.payload["response_url"]
        body: Json = {"text": "replaced", "replace_original": True}
        async with session.post(url, json=body) as response:
            assert response.status == 200
        stored = slack.message(SALES_DESK, posted["ts"])
        assert stored
        assert stored["text"] == "replaced"
        slack.clock.advance(1801)
        async with session.post(url, json={"delete_original": True}) as response:
            assert (await response.json())["error"] == "expired_url"
        assert slack.message(SALES_DESK, posted["ts"])


@pytest.mark.usefixtures("still")
async def test_commands_answer_privately_and_later_and_are_refused_in_threads(slack: Simulator, app: AsyncApp) -> None:
    @app.command("/atlas")
    async def command(ack: Any, command: Json, respond: Any) -> None:
        await ack(f"at once {command['text']}")
        await respond(text="in place of it?", replace_original=True)

    done = await (await slack.command(VERA, SALES_DESK, "/atlas", "show <1>")).settled()
    assert done.state == "acked"
    said = await slack.wait_for(lambda: slack.ephemerals(VERA, SALES_DESK)[1:] and slack.ephemerals(VERA, SALES_DESK))
    # Slack promises no order between the ack's own text and a post to the response URL
    assert {message["text"] for message in said} == {"at once show &lt;1&gt;", "in place of it?"}
    asked = await slack.post_as(RITA, SALES_DESK, "question")
    with pytest.raises(ActRefused, match=r"is not supported in threads\. Sorry!"):
        await slack.post_as(RITA, SALES_DESK, "/atlas continue", asked["ts"])
    for user, text in ((RITA, "/nothing"), (EMIL, "/atlas")):
        channel = SALES_DESK if user == RITA else "C0CONTOSO01"
        with pytest.raises(ActRefused, match="is not a valid command"):
            await slack.command(user, channel, text)


@pytest.mark.usefixtures("still")
async def test_home_opens_is_published_and_its_buttons_work(slack: Simulator, app: AsyncApp) -> None:
    tabs: list[Json] = []

    @app.event("app_home_opened")
    async def opened(event: Json, client: AsyncWebClient) -> None:
        tabs.append(event)
        await client.views_publish(user_id=event["user"], view={"type": "home", "blocks": card("Go")})

    @app.action("go")
    async def clicked(ack: Any, body: Json, client: AsyncWebClient) -> None:
        await ack()
        tabs.append(body)
        await client.views_open(trigger_id=body["trigger_id"], view=form())

    await slack.open_home(RITA)
    first = await slack.wait_for(lambda: slack.home(RITA))
    assert "view" not in tabs[0]
    click = await (await slack.click(RITA, None, None, "go", home=True)).settled()
    assert click.payload["container"] == {"type": "view", "view_id": first["id"]}
    assert "response_url" not in click.payload
    await slack.wait_for(lambda: slack.modals(RITA))
    await slack.open_home(RITA)
    await slack.wait_for(lambda: len(tabs) == 3)
    assert tabs[2]["view"]["id"] == first["id"]


@pytest.mark.usefixtures("still")
async def test_an_edited_button_value_can_be_forged_to_test_the_apps_own_check(slack: Simulator, app: AsyncApp) -> None:
    values: list[str] = []

    @app.action("go")
    async def clicked(ack: Any, action: Json) -> None:
        await ack()
        values.append(action["value"])

    posted = await app.client.chat_postMessage(channel=SALES_DESK, text="x", blocks=card("Go"))
    await (await slack.click(RITA, SALES_DESK, posted["ts"], "go", forge={"value": "v2"})).settled()
    await (await slack.click(RITA, SALES_DESK, posted["ts"], "go")).settled()
    await slack.wait_for(lambda: len(values) == 2)
    assert values == ["v2", "v1"]


@pytest.mark.slow  # Bolt looks for a dead connection only every few seconds
async def test_bolt_heals_a_refresh_and_a_cut(slack: Simulator, app: AsyncApp) -> None:
    heard: list[str] = []
    # What is lost comes again soon, however often: not after Slack's minute, and then its five.
    slack.dispatch.retry_schedule_s = (1.0,) * 100

    @app.event("app_mention")
    async def mentioned(event: Json) -> None:
        heard.append(event["text"].split()[-1])

    await slack.sockets.disconnect("refresh_requested")
    await slack.wait_for(lambda: slack.journal.find({"kind": "socket", "what": "open"})[1:])
    await slack.post_as(RITA, SALES_DESK, "@Atlas one")
    # Bolt connects twice after a refresh, so an event may be lost with the socket in between and come again,
    # or its ack may be lost and it is heard twice: nothing is lost for good, which is all that Slack promises
    await slack.wait_for(lambda: "one" in heard)
    opened = len(slack.journal.find({"kind": "socket", "what": "open"}))
    slack.sockets.cut()
    await slack.wait_for(lambda: slack.journal.find({"kind": "socket", "what": "open"})[opened:])
    await slack.post_as(RITA, SALES_DESK, "@Atlas two")
    await slack.wait_for(lambda: "two" in heard)


def external(kind: str = "external_select", **more: Any) -> Json:
    return {"type": kind, "action_id": "account", "placeholder": {"type": "plain_text", "text": "Account"}, **more}


def option(value: str, text: str = "") -> Json:
    return {"text": {"type": "plain_text", "text": text or value.title()}, "value": value}


@pytest.mark.usefixtures("still")
async def test_an_external_select_is_filled_by_the_app(slack: Simulator, app: AsyncApp) -> None:
    """What is typed reaches the app with its place; only what it answered can be chosen, by whom it answered."""
    asked: list[Json] = []
    chosen: list[Json] = []

    @app.options("account")
    async def options(ack: Any, payload: Json, body: Json) -> None:
        asked.append(body)
        await ack(options=[option(f"{body['value']}-1", "One"), option(f"{body['value']}-2")])

    @app.action("account")
    async def picked(ack: Any, action: Json) -> None:
        await ack()
        chosen.append(action)

    elements = [external(min_query_length=2, initial_option=option("first"))]
    posted = await app.client.chat_postMessage(
        channel=SALES_DESK, text="pick", blocks=[{"type": "actions", "block_id": "who", "elements": elements}]
    )
    place = {"channel": SALES_DESK, "ts": posted["ts"]}
    with pytest.raises(ActRefused, match="query_too_short"):
        slack.acts.suggest(RITA, "account", "h", **place)
    with pytest.raises(ActRefused, match="invalid_selection"):
        await slack.click(RITA, SALES_DESK, posted["ts"], "account", selected="hen-1")
    interaction = await slack.acts.suggest(RITA, "account", "hen", **place).settled()
    assert (interaction.state, interaction.error) == ("acked", "")
    (body,) = asked
    assert (body["type"], body["action_id"], body["block_id"]) == ("block_suggestion", "account", "who")
    assert body["container"]["message_ts"] == posted["ts"]
    assert body["message"]["ts"] == posted["ts"]
    assert not {"trigger_id", "response_url", "actions"} & set(body)
    for value in ("hen-1", "first"):
        assert (await (await slack.click(RITA, SALES_DESK, posted["ts"], "account", selected=value)).settled()).state
    await slack.wait_for(lambda: len(chosen) == 2)
    assert [action["selected_option"]["value"] for action in chosen] == ["hen-1", "first"]
    with pytest.raises(ActRefused, match="invalid_selection"):
        await slack.click(MARCUS, SALES_DESK, posted["ts"], "account", selected="hen-1")


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        ({"option_groups": [{"label": {"type": "plain_text", "text": "A"}, "options": [option("x")]}]}, ""),
        ({"options": []}, ""),
        ({"options": [option(f"o{n}") for n in range(101)]}, "no more than 100 items"),
        ({"options": [option("x", "t" * 76)]}, "must be less than 76 characters"),
        ({}, "neither options nor option_groups"),
    ],
)
@pytest.mark.usefixtures("still")
async def test_an_answer_with_options_is_held_to_slacks_limits(
    slack: Simulator, app: AsyncApp, answer: Json, error: str
) -> None:
    @app.options("account")
    async def options(ack: Any) -> None:
        await ack(answer)

    view = form()
    view["blocks"][0]["element"] = external("multi_external_select", min_query_length=0)
    shown = slack.views.open(RITA, view)
    interaction = await slack.acts.suggest(RITA, "account", "", view_id=shown["id"]).settled()
    assert interaction.state == "acked"
    assert error in interaction.error if error else interaction.error == ""


@pytest.mark.usefixtures("still")
async def test_a_static_select_is_never_asked_about(slack: Simulator, app: AsyncApp) -> None:
    posted = await app.client.chat_postMessage(channel=SALES_DESK, text="x", blocks=card("Approve"))
    with pytest.raises(ActRefused, match="not_external"):
        slack.acts.suggest(RITA, "approve", "abc", channel=SALES_DESK, ts=posted["ts"])


@pytest.mark.usefixtures("still")
async def test_file_inputs_are_refused_in_plain_words(slack: Simulator, app: AsyncApp) -> None:
    """Slack has them; there are no files here, so a bot that asks for one learns it at once."""
    view = form()
    view["blocks"][0]["element"] = {"type": "file_input", "action_id": "upload"}
    with pytest.raises(SlackApiError) as refused:
        await app.client.views_publish(user_id=RITA, view={**view, "type": "home"})
    assert "this simulator has no files" in str(refused.value.response)


@pytest.mark.usefixtures("still")
async def test_half_a_surrogate_pair_arrives(slack: Simulator, app: AsyncApp) -> None:
    """No browser can send one, another program can: it is delivered and acked like any other text."""
    heard: list[str] = []

    @app.event("app_mention")
    async def mentioned(event: Json) -> None:
        heard.append(event["text"])

    await slack.post_as(RITA, SALES_DESK, "@Atlas \ud83d é")
    await slack.wait_for(lambda: bool(heard))
    assert heard == [f"<@{BOT_USER_ID}> \ud83d é"]
