"""The workspace page in a real browser, against the real simulator, with a small Bolt app as the bot.

Decides whether a person can see and do in the page what Slack would let them. It says nothing about Atlas itself:
the app here is a few lines of its own. Failure it can cause: none outside; each test has its own server and page.
"""

import asyncio
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from slack_bolt.adapter.socket_mode.aiohttp import AsyncSocketModeHandler
from slack_bolt.async_app import AsyncApp
from slack_sdk.web.async_client import AsyncWebClient

from bot.simulator.server import Simulator
from bot.simulator.workspace import MARCUS, RITA, SALES_DESK

playwright_api = pytest.importorskip("playwright.async_api", reason="playwright is not installed")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = [pytest.mark.browser, pytest.mark.slow]
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
FLAGS += ["--disable-sync", "--no-first-run"]
WIDE, NARROW = (1440, 900), (390, 780)
expect = playwright_api.expect
# Only a failing test waits this long; a busy machine is slow.
SLOW_MS = 120_000
AN_HOUR_S = 3_600.0
expect.set_options(timeout=SLOW_MS)

Opener = Callable[..., Awaitable[Any]]


def plain(text: str) -> dict[str, Any]:
    return {"type": "plain_text", "text": text}


def button(action_id: str, text: str, **more: Any) -> dict[str, Any]:
    return {"type": "button", "action_id": action_id, "text": plain(text), "value": action_id, **more}


def card(*buttons: dict[str, Any], title: str = "Send quote Q-1042") -> list[dict[str, Any]]:
    return [
        {"type": "header", "text": plain(title)},
        {"type": "section", "text": {"type": "mrkdwn", "text": "*Total* 721.60 EUR"}},
        {"type": "actions", "block_id": "choice", "elements": list(buttons)},
    ]


@pytest.fixture
async def slack() -> AsyncIterator[Simulator]:
    async with Simulator() as simulator:
        # What Slack gives 3 s is over when a test says so, however slow the machine is.
        simulator.sockets.ack_window_s = simulator.triggers.life_s = AN_HOUR_S
        yield simulator


@pytest.fixture
def client(slack: Simulator) -> AsyncWebClient:
    return AsyncWebClient(token=slack.workspace.bot_token, base_url=slack.api_url)


@pytest.fixture
async def page_at() -> AsyncIterator[Opener]:
    """Open a page at an address: `await page_at(url, size=NARROW)`; script errors of any page fail the test."""
    async with playwright_api.async_playwright() as playwright:
        bundled = Path(playwright.chromium.executable_path)
        if CHROMIUM is None and not bundled.exists():
            pytest.skip("no Chromium on this machine")
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        troubles: list[str] = []

        async def open_page(address: str, size: tuple[int, int] = WIDE) -> Any:
            context = await browser.new_context(viewport={"width": size[0], "height": size[1]})
            context.set_default_timeout(SLOW_MS)
            page = await context.new_page()
            page.on("pageerror", lambda error: troubles.append(str(error)))
            await page.goto(address)
            await page.wait_for_selector("body[data-ready='1']")
            return page

        yield open_page
        await browser.close()
        assert troubles == []


@pytest.fixture
def page_of(slack: Simulator, page_at: Opener) -> Opener:
    """Open the page as a person at a place: `await page_of(RITA, "C0SALESDESK/thread/…", size=NARROW)`."""

    async def open_page(person: str, place: str = SALES_DESK, size: tuple[int, int] = WIDE) -> Any:
        return await page_at(f"{slack.url}/#/as/{person}/{place}", size)

    return open_page


@pytest.fixture
async def app(slack: Simulator, client: AsyncWebClient) -> AsyncIterator[AsyncApp]:
    """A connected Bolt app without listeners."""
    bolt = AsyncApp(client=client)
    handler = AsyncSocketModeHandler(bolt, slack.workspace.app_token)
    await handler.connect_async()  # type: ignore[no-untyped-call]  # Bolt leaves it bare
    await slack.wait_for(lambda: slack.dispatch.transport.connected)
    yield bolt
    await handler.close_async()  # type: ignore[no-untyped-call]


async def test_untrusted_text_stays_text(slack: Simulator, client: AsyncWebClient, page_of: Opener) -> None:
    hostile = '<img src=x onerror="document.title=1"> &lt;script&gt;document.title=2&lt;/script&gt;'
    await client.chat_postMessage(channel=SALES_DESK, text=hostile)
    await client.chat_postMessage(channel=SALES_DESK, text="md", blocks=[{"type": "markdown", "text": hostile}])
    link = [{"type": "markdown", "text": "[pay here](javascript:document.title=3)"}]
    await client.chat_postMessage(channel=SALES_DESK, text="link", blocks=link)
    page = await page_of(RITA)
    await expect(page.get_by_test_id("messages")).to_contain_text("<script>document.title=2</script>")
    assert await page.locator("#messages :is(img, script)").count() == 0
    assert await page.locator("#messages a[href^='javascript']").count() == 0


MRKDWN = {
    "*bold* _italic_ ~gone~ `code`": "<strong>bold</strong> <em>italic</em> <s>gone</s> <code>code</code>",
    "snake_case_word 2*3*4 a~b~c": "snake_case_word 2*3*4 a~b~c",
    "* not bold * and _ not italic _": "* not bold * and _ not italic _",
    "*bold _both_*": "<strong>bold <em>both</em></strong>",
    "`*not bold*`": "<code>*not bold*</code>",
    "&lt;b&gt; &amp;amp;": "&lt;b&gt; &amp;amp;",
    "&gt; one\n&gt; two\nthree": '<blockquote dir="auto">one<br>two</blockquote>three',
    "&gt;&gt;&gt; all\nthe rest": '<blockquote dir="auto">all<br>the rest</blockquote>',
    "```a *b*\nc```": '<pre class="code" dir="auto">a *b*\nc</pre>',
    "<javascript:alert(1)|x>": "&lt;javascript:alert(1)|x&gt;",
    ":tada: :none_such:": '<span class="emoji" role="img" aria-label="tada" title=":tada:">🎉</span> :none_such:',
    "<!here> <@U1> <#C1>": '<span class="mention mine">@here</span> <span class="mention"><bdi>@Ann Lee</bdi></span> '
    '<a class="mention" href="#/C1">#deals</a>',
    "<!subteam^S1> <!subteam^S2>": '<span class="mention">@sales-managers</span> <span class="mention">@S2</span>',
    "<!date^0^{nope}|long ago>": '<time datetime="1970-01-01T00:00:00.000Z" title="T">{nope}</time>',
}
READ_MRKDWN = """async (text) => {
  const { mrkdwn } = await import('/static/mrkdwn.js');
  const names = { me: 'U9', person: () => ({ name: 'ann', real_name: 'Ann Lee' }),
    channel: () => ({ name: 'deals' }), group: (id) => ({ S1: 'sales-managers' })[id], href: (id) => `#/${id}` };
  const box = document.createElement('div');
  box.append(...mrkdwn(text, names));
  for (const time of box.querySelectorAll('time')) {
    time.title = 'T'; delete time.dataset.pattern; delete time.dataset.stamp;
  }
  return box.innerHTML;
}"""


async def test_mrkdwn_is_read_as_slack_reads_it(page_of: Opener) -> None:
    page = await page_of(RITA)
    read = {text: await page.evaluate(READ_MRKDWN, text) for text in MRKDWN}
    assert read == MRKDWN


async def test_text_made_to_choke_a_reader_is_drawn(client: AsyncWebClient, page_of: Opener) -> None:
    page = await page_of(RITA)
    starts = ("*<a>`b`", "_<", "~`", "<", "[", "**a ", "&gt;", "`")
    await client.chat_postMessage(channel=SALES_DESK, text="*" + "<a>`b`" * 400)
    for start in starts:
        await client.chat_postMessage(channel=SALES_DESK, text=(start * 3000)[:3000])
    for start in ("> ", ">", "[", "**a ", "`", "- ", "  - x\n    ", "|-"):
        block = {"type": "markdown", "text": (start * 12_000)[:11_900] + "x"}
        await client.chat_postMessage(channel=SALES_DESK, text="md", blocks=[block])
    await client.chat_postMessage(channel=SALES_DESK, text="the end")
    await expect(page.get_by_test_id("messages")).to_contain_text("the end")
    await expect(page.locator(".unknown")).to_have_count(0)


async def test_a_card_arrives_and_changes_live_and_blocks_show_no_edited_mark(
    slack: Simulator, client: AsyncWebClient, page_of: Opener
) -> None:
    page = await page_of(RITA)
    posted = await client.chat_postMessage(channel=SALES_DESK, text="card", blocks=card(button("go", "Approve")))
    shown = page.get_by_test_id(f"message-{posted['ts']}")
    await expect(shown.get_by_test_id("action-go")).to_be_visible()
    done = [{"type": "section", "text": {"type": "mrkdwn", "text": f":white_check_mark: Approved by <@{MARCUS}>"}}]
    await client.chat_update(channel=SALES_DESK, ts=posted["ts"], text="done", blocks=done)
    await expect(shown).to_contain_text("✅ Approved by @Marcus Hale")
    await expect(shown.get_by_test_id("action-go")).to_have_count(0)
    await expect(shown.locator(".edited")).to_have_count(0)
    await client.chat_update(channel=SALES_DESK, ts=posted["ts"], text="only words", blocks=[])
    await expect(shown).to_contain_text("only words (edited)")


async def test_a_click_is_pending_until_acked_and_warns_when_it_is_not(
    slack: Simulator, client: AsyncWebClient, app: AsyncApp, page_of: Opener
) -> None:
    async def acked(ack: Any) -> None:
        await ack()

    app.action("fine")(acked)
    blocks = card(button("fine", "Fine"), button("deaf", "Nobody listens"))
    posted = await client.chat_postMessage(channel=SALES_DESK, text="card", blocks=blocks)
    page = await page_of(RITA)
    shown = page.get_by_test_id(f"message-{posted['ts']}")
    await shown.get_by_test_id("action-deaf").click()
    await expect(shown.get_by_test_id("action-deaf")).to_have_attribute("aria-busy", "true")
    await slack.wait_for(lambda: slack.journal.find({"kind": "envelope"}))
    slack.advance(AN_HOUR_S)
    await expect(shown.get_by_test_id("failed-deaf")).to_contain_text("timed out")
    await shown.get_by_test_id("action-fine").click()
    await expect(shown.get_by_test_id("action-fine")).not_to_have_attribute("aria-busy", "true")
    await expect(shown.get_by_test_id("failed-fine")).to_have_count(0)


async def test_what_is_pressed_is_not_redrawn_before_it_is_released(
    slack: Simulator, client: AsyncWebClient, app: AsyncApp, page_of: Opener
) -> None:
    """The card changes under the finger: the click counts all the same, and then the change is seen."""
    clicks: list[str] = []

    async def acked(ack: Any, body: dict[str, Any]) -> None:
        clicks.append(body["user"]["id"])
        await ack()

    app.action("go")(acked)
    place: dict[str, Any] = {"channel": SALES_DESK, "text": "card"}
    posted = await client.chat_postMessage(**place, blocks=card(button("go", "Approve")))
    page = await page_of(RITA)
    lines: list[Any] = []
    page.on("websocket", lambda line: lines.append(line))  # noqa: PLW0108  (Playwright takes no method of a list)
    await page.reload()
    await page.wait_for_selector("body[data-ready='1']")
    shown = page.get_by_test_id(f"message-{posted['ts']}")
    await shown.get_by_test_id("action-go").hover()
    await page.mouse.down()
    async with lines[-1].expect_event("framereceived", lambda frame: "Q-1043" in frame):
        await client.chat_update(
            **place, ts=posted["ts"], blocks=card(button("go", "Approve"), title="Send quote Q-1043")
        )
    await page.evaluate("new Promise((done) => setTimeout(done, 0))")  # the page has read it
    await expect(shown).to_contain_text("Q-1042")
    await page.mouse.up()
    await slack.wait_for(lambda: clicks or None)
    await expect(shown).to_contain_text("Q-1043")
    assert clicks == [RITA]


async def test_a_confirm_dialog_stands_before_the_click(
    slack: Simulator, client: AsyncWebClient, app: AsyncApp, page_of: Opener
) -> None:
    clicks: list[str] = []

    async def declined(ack: Any, body: dict[str, Any]) -> None:
        clicks.append(body["user"]["id"])
        await ack()

    app.action("no")(declined)
    confirm = {"title": plain("Sure?"), "text": plain("No way back"), "confirm": plain("Yes"), "deny": plain("No")}
    blocks = card(button("no", "Decline", style="danger", confirm=confirm))
    await client.chat_postMessage(channel=SALES_DESK, text="card", blocks=blocks)
    page = await page_of(MARCUS)
    await page.get_by_test_id("action-no").click()
    await page.keyboard.press("Escape")
    await expect(page.get_by_test_id("action-no")).to_be_focused()
    await page.get_by_test_id("action-no").click()
    await page.get_by_test_id("confirm-ok").click()
    await slack.wait_for(lambda: clicks or None)
    assert clicks == [MARCUS]


async def test_slash_commands_are_refused_in_threads_with_slacks_words(slack: Simulator, page_of: Opener) -> None:
    root = await slack.post_as(RITA, SALES_DESK, "a question")
    page = await page_of(RITA, f"{SALES_DESK}/thread/{root['ts']}")
    box = page.get_by_test_id("thread-composer")
    await box.fill("/atlas continue")
    await box.press("Enter")
    await expect(page.get_by_test_id("thread-composer-error")).to_have_text(
        "/atlas is not supported in threads. Sorry!"
    )
    await expect(box).to_have_value("/atlas continue")


async def test_completion_mentions_the_bot_and_enter_sends(slack: Simulator, page_of: Opener) -> None:
    page = await page_of(RITA)
    box = page.get_by_test_id("composer")
    await box.press_sequentially("@At")
    await expect(page.get_by_test_id(f"suggest-{slack.workspace.bot_user_id}")).to_be_visible()
    await box.press("Enter")
    await box.press_sequentially("quote <200> & more")
    await box.press("Enter")
    await expect(page.locator("#messages .message").last).to_contain_text("@Atlas quote <200> & more")
    assert slack.messages(SALES_DESK)[-1]["text"].startswith(f"<@{slack.workspace.bot_user_id}> quote &lt;200&gt;")


async def test_ephemeral_text_is_seen_by_its_addressee_alone(client: AsyncWebClient, page_of: Opener) -> None:
    rita, marcus = await page_of(RITA), await page_of(MARCUS)
    await client.chat_postEphemeral(channel=SALES_DESK, user=RITA, text="you may not approve this")
    await client.chat_postMessage(channel=SALES_DESK, text="for everyone")
    await expect(rita.locator(".message.ephemeral")).to_contain_text("Only visible to you")
    await expect(marcus.get_by_test_id("messages")).to_contain_text("for everyone")
    await expect(marcus.get_by_test_id("messages")).not_to_contain_text("you may not approve")


async def test_the_status_line_follows_the_thread(slack: Simulator, client: AsyncWebClient, page_of: Opener) -> None:
    root = await slack.post_as(RITA, SALES_DESK, "a question")
    page = await page_of(RITA, f"{SALES_DESK}/thread/{root['ts']}")
    place = {"channel_id": SALES_DESK, "thread_ts": root["ts"]}
    await client.assistant_threads_setStatus(**place, status="is pricing 200 units")
    await expect(page.get_by_test_id("thread-status")).to_have_text("Atlas is pricing 200 units")
    await client.assistant_threads_setStatus(**place, status="")
    await expect(page.get_by_test_id("thread-status")).to_be_empty()


async def test_the_panel_draws_and_sets_whatever_controls_it_is_given(page_at: Opener) -> None:
    held: dict[str, Any] = {"hold": False, "tier": "b"}
    log: list[dict[str, Any]] = []

    async def state(_: web.Request) -> web.Response:
        options = [{"value": "a", "label": "A"}, {"value": "b", "label": "B"}]
        hold = {"id": "hold", "label": "Credit hold", "kind": "toggle", "value": held["hold"]}
        tier = {"id": "tier", "label": "Tier", "kind": "select", "value": held["tier"], "options": options}
        return web.json_response({"groups": [{"title": "Henderson", "controls": [hold, tier]}], "log": log})

    async def change(request: web.Request) -> web.Response:
        wish = await request.json()
        held[wish["id"]] = wish["value"]
        log.append({"at": 0, "text": f"{wish['id']} is {wish['value']}"})
        return web.json_response({"ok": True, "text": "done"})

    panel = web.Application()
    panel.add_routes([web.get("/panel/state", state), web.post("/panel/set", change)])
    async with TestServer(panel) as server, Simulator(panel_url=str(server.make_url("")).rstrip("/")) as slack:
        page = await page_at(slack.url)
        await expect(page.get_by_test_id("panel")).to_be_visible()
        await page.get_by_test_id("control-hold").click()
        await expect(page.get_by_test_id("control-hold")).to_have_attribute("aria-checked", "true")
        await page.get_by_test_id("control-tier").select_option("a")
        await expect(page.get_by_test_id("panel-log")).to_contain_text("tier is a")
        held["hold"] = False
        await expect(page.get_by_test_id("control-hold")).to_have_attribute("aria-checked", "false")
        assert held == {"hold": False, "tier": "a"}


async def test_a_panel_that_is_opened_again_pulls_no_lever_of_before(page_at: Opener) -> None:
    """What it said when it was closed may be another's by now: nothing of it can be pressed until it is said anew."""
    run, wishes, said = "first", [], asyncio.Event()
    said.set()

    async def state(_: web.Request) -> web.Response:
        await said.wait()
        lever = {"id": run, "label": "Let it expire", "kind": "button"}
        return web.json_response({"groups": [{"title": "Waiting", "controls": [lever]}], "log": []})

    async def change(request: web.Request) -> web.Response:
        wishes.append((await request.json())["id"])
        return web.json_response({"ok": True})

    panel = web.Application()
    panel.add_routes([web.get("/panel/state", state), web.post("/panel/set", change)])
    async with TestServer(panel) as server, Simulator(panel_url=str(server.make_url("")).rstrip("/")) as slack:
        page = await page_at(slack.url)
        await expect(page.get_by_test_id("control-first")).to_be_visible()
        toggle = page.get_by_test_id("panel-toggle")
        await toggle.click()
        await expect(page.get_by_test_id("panel")).to_be_hidden()
        said.clear()
        run = "second"
        await toggle.click()
        await expect(page.get_by_test_id("panel")).to_be_visible()
        await expect(page.locator("#panel-groups")).to_have_js_property("inert", True)
        said.set()
        await page.get_by_role("button", name="Let it expire").click()
        await slack.wait_for(lambda: wishes or None)
        assert wishes == ["second"]


FORM: dict[str, Any] = {
    "type": "modal",
    "callback_id": "edit",
    "title": plain("Edit the quote"),
    "submit": plain("Save"),
    "notify_on_close": True,
    "blocks": [
        {
            "type": "input", "block_id": "qty", "label": plain("Quantity"),
            "element": {"type": "number_input", "action_id": "n", "is_decimal_allowed": False, "min_value": "1"},
        },
        {
            "type": "input", "block_id": "note", "label": plain("Note"), "optional": True,
            "element": {"type": "plain_text_input", "action_id": "t", "multiline": True},
        },
        {
            "type": "input", "block_id": "way", "label": plain("Way"),
            "element": {
                "type": "static_select", "action_id": "w",
                "options": [{"text": plain("Sea"), "value": "sea"}, {"text": plain("Air"), "value": "air"}],
            },
        },
    ],
}  # fmt: skip


async def test_a_modal_keeps_entries_through_errors_and_sends_slacks_state(
    slack: Simulator, client: AsyncWebClient, app: AsyncApp, page_of: Opener
) -> None:
    sent: list[dict[str, Any]] = []

    async def opened(ack: Any, body: dict[str, Any], client: AsyncWebClient) -> None:
        await ack()
        await client.views_open(trigger_id=body["trigger_id"], view=FORM)

    async def saved(ack: Any, view: dict[str, Any]) -> None:
        sent.append(view["state"]["values"])
        if view["state"]["values"]["qty"]["n"]["value"] == "7":
            await ack(response_action="errors", errors={"qty": "Not in sevens"})
        else:
            await ack()

    app.action("edit")(opened)
    app.view("edit")(saved)
    await client.chat_postMessage(channel=SALES_DESK, text="card", blocks=card(button("edit", "Edit")))
    page = await page_of(RITA)
    await page.get_by_test_id("action-edit").click()
    await expect(page.get_by_test_id("action-n")).to_be_focused()
    await page.get_by_test_id("modal-submit").click()
    await expect(page.get_by_test_id("error-qty")).to_contain_text("required")
    await page.get_by_test_id("action-n").fill("7")
    await page.get_by_test_id("action-t").fill("as agreed")
    await page.get_by_test_id("action-w").select_option("air")
    await page.get_by_test_id("modal-submit").click()
    await expect(page.get_by_test_id("error-qty")).to_contain_text("Not in sevens")
    await expect(page.get_by_test_id("action-t")).to_have_value("as agreed")
    await page.get_by_test_id("action-n").fill("8")
    await page.get_by_test_id("modal-submit").click()
    await expect(page.get_by_test_id("modal")).not_to_be_visible()
    await expect(page.get_by_test_id("action-edit")).to_be_focused()
    assert [values["qty"]["n"]["value"] for values in sent] == ["7", "8"]
    assert sent[-1]["note"]["t"]["value"] == "as agreed"
    assert sent[-1]["way"]["w"]["selected_option"]["value"] == "air"


async def test_home_is_drawn_and_permalinks_open_in_place(
    slack: Simulator, client: AsyncWebClient, page_of: Opener
) -> None:
    root = await slack.post_as(RITA, SALES_DESK, "a question")
    reply = await client.chat_postMessage(channel=SALES_DESK, text="the card", thread_ts=root["ts"])
    address = (await client.chat_getPermalink(channel=SALES_DESK, message_ts=reply["ts"]))["permalink"]
    text = {"type": "mrkdwn", "text": f"Waiting for you: <{address}|open>"}
    await client.views_publish(user_id=RITA, view={"type": "home", "blocks": [{"type": "section", "text": text}]})
    page = await page_of(RITA, "home")
    await page.get_by_test_id("home").get_by_role("link", name="open").click()
    await expect(page.get_by_test_id("thread").get_by_test_id(f"message-{reply['ts']}")).to_be_focused()
    await page.goto(address)
    await expect(page.get_by_test_id("thread").get_by_test_id(f"message-{reply['ts']}")).to_be_visible()


async def test_a_cut_connection_heals_and_shows_what_was_missed(
    slack: Simulator, client: AsyncWebClient, page_of: Opener
) -> None:
    page = await page_of(RITA)
    await page.get_by_test_id("composer").fill("half a thought")
    slack.live.close()
    await client.chat_postMessage(channel=SALES_DESK, text="said in between")
    await expect(page.get_by_test_id("messages")).to_contain_text("said in between")
    await page.wait_for_selector("body[data-ready='1']")
    await client.chat_postMessage(channel=SALES_DESK, text="and afterwards")
    await expect(page.get_by_test_id("messages")).to_contain_text("and afterwards")
    await expect(page.get_by_test_id("composer")).to_have_value("half a thought")


LINES = "\n".join(
    f"{n:03d}  SKU-{4400 + n}  {'قطعة 🧰' if n % 7 == 0 else 'bracket'}  {n * 4.1:.2f}" for n in range(200)
)
LINES += "\n" + "longword" * 60 + "\n" + "one line that is long " * 30


@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["wide", "narrow"])
async def test_long_cards_never_push_the_page_sideways(
    client: AsyncWebClient, page_of: Opener, size: tuple[int, int]
) -> None:
    pre = {"type": "rich_text_preformatted", "elements": [{"type": "text", "text": LINES}]}
    blocks = card(button("go", "Approve"), title="شركة الخليج " + "Firmenname" * 12)
    blocks.insert(2, {"type": "rich_text", "elements": [pre]})
    posted = await client.chat_postMessage(channel=SALES_DESK, text="long", blocks=blocks)
    page = await page_of(RITA, size=size)
    await expect(page.get_by_test_id(f"message-{posted['ts']}")).to_contain_text("199  SKU-4599")
    sideways = "[document.documentElement, ...document.querySelectorAll('.scroll, .message, .blocks')]"
    assert await page.evaluate(f"{sideways}.filter(e => e.scrollWidth > e.clientWidth + 1).length") == 0


async def test_a_narrow_window_shows_one_pane_at_a_time(slack: Simulator, page_of: Opener) -> None:
    root = await slack.post_as(MARCUS, SALES_DESK, "a question")
    page = await page_of(RITA, "", size=NARROW)
    await expect(page.get_by_test_id("main")).to_be_hidden()
    await page.get_by_test_id(f"channel-{SALES_DESK}").click()
    await expect(page.get_by_test_id("sidebar")).to_be_hidden()
    await page.get_by_test_id(f"reply-{root['ts']}").click()
    await expect(page.get_by_test_id("main")).to_be_hidden()
    await page.get_by_test_id("thread-back").click()
    await page.get_by_test_id("back").click()
    await expect(page.get_by_test_id("sidebar")).to_be_visible()


async def test_the_keyboard_alone_suffices(
    slack: Simulator, client: AsyncWebClient, app: AsyncApp, page_of: Opener
) -> None:
    clicks: list[str] = []

    async def approved(ack: Any, body: dict[str, Any]) -> None:
        clicks.append(body["user"]["id"])
        await ack()

    app.action("go")(approved)
    root = await slack.post_as(RITA, SALES_DESK, "a question")
    await client.chat_postMessage(
        channel=SALES_DESK, thread_ts=root["ts"], text="card", blocks=card(button("go", "Approve"))
    )
    page = await page_of(RITA)
    keys = page.keyboard
    await page.get_by_test_id("switcher").focus()
    await keys.press("Enter")
    await expect(page.get_by_test_id(f"person-{RITA}")).to_be_focused()
    await keys.press("ArrowDown")
    await keys.press("Enter")
    await expect(page.get_by_test_id("switcher")).to_contain_text("Marcus Hale")
    await page.wait_for_selector("body[data-ready='1']")
    await page.get_by_test_id("composer").focus()
    await keys.press("ArrowUp")
    await expect(page.get_by_test_id(f"message-{root['ts']}")).to_be_focused()
    await keys.press("Enter")
    await expect(page.get_by_test_id("thread-composer")).to_be_focused()
    await keys.press("ArrowUp")
    await keys.press("Tab")
    await expect(page.get_by_test_id("action-go")).to_be_focused()
    await keys.press("Enter")
    await slack.wait_for(lambda: clicks or None)
    assert clicks == [MARCUS]
    await keys.press("Escape")
    await expect(page.get_by_test_id("thread")).to_be_hidden()


async def test_an_external_select_is_searched_and_chosen_with_the_keyboard(
    slack: Simulator, client: AsyncWebClient, app: AsyncApp, page_of: Opener
) -> None:
    chosen: list[str] = []

    @app.options("account")
    async def options(ack: Any, payload: dict[str, Any]) -> None:
        names = [name for name in ("Henderson", "Hensley", "Castillo") if payload["value"].lower() in name.lower()]
        await ack(options=[{"text": plain(name), "value": name.lower()} for name in names])

    @app.action("account")
    async def picked(ack: Any, action: dict[str, Any]) -> None:
        await ack()
        chosen.append(action["selected_option"]["value"])

    element = {
        "type": "external_select",
        "action_id": "account",
        "placeholder": plain("Account"),
        "min_query_length": 2,
    }
    blocks: list[dict[str, Any]] = [{"type": "actions", "block_id": "who", "elements": [element]}]
    posted = await client.chat_postMessage(channel=SALES_DESK, text="pick", blocks=blocks)
    page = await page_of(RITA)
    box = page.get_by_role("combobox", name="Account")
    await box.fill("h")
    await expect(page.get_by_role("listbox")).to_contain_text("at least 2 characters")
    await box.fill("hen")
    await expect(page.get_by_role("option")).to_have_text(["Henderson", "Hensley"])
    await box.press("ArrowDown")
    await box.press("ArrowDown")
    await box.press("Enter")
    await expect(page.get_by_test_id("chosen-hensley")).to_be_visible()
    await slack.wait_for(lambda: chosen == ["hensley"])
    await page.get_by_role("combobox", name="Account").fill("zzz")
    await expect(page.get_by_role("listbox")).to_contain_text("Nothing matches")
    # The message is drawn anew under who types: the words stay, and are looked for once more.
    more = {"type": "section", "text": plain("Or none")}
    await client.chat_update(channel=SALES_DESK, ts=posted["ts"], text="pick", blocks=[*blocks, more])
    await expect(page.get_by_test_id("messages")).to_contain_text("Or none")
    await expect(page.get_by_role("combobox", name="Account")).to_have_value("zzz")
    await expect(page.get_by_role("listbox")).to_contain_text("Nothing matches")


async def test_a_group_dm_goes_by_the_people_in_it(slack: Simulator, client: AsyncWebClient, page_of: Opener) -> None:
    opened = await client.conversations_open(users=[RITA, MARCUS])
    group = opened["channel"]["id"]
    await client.chat_postMessage(channel=group, text="Hello both of you")
    page = await page_of(RITA)
    place = page.get_by_test_id(f"channel-{group}")
    await expect(place).to_contain_text("Marcus, Atlas")
    await expect(place).to_contain_text("1")
    await place.click()
    await expect(page.get_by_test_id("messages")).to_contain_text("Hello both of you")
    await expect(page.get_by_role("combobox", name="Message Marcus, Atlas")).to_be_visible()


async def test_what_a_lever_did_is_said_where_no_message_stands(slack: Simulator, page_of: Opener) -> None:
    """A toast over the thread hid what had just changed in it."""
    for size in (WIDE, NARROW):
        page = await page_of(RITA, size=size)
        toast, pane = await page.evaluate(SHOW_A_TOAST)
        assert toast["width"] > 0
        apart = toast["x"] + toast["width"] <= pane["x"] or toast["y"] + toast["height"] <= pane["y"]
        assert apart, (size, toast, pane)


# Where it stands, before the page can take it away again.
SHOW_A_TOAST = """async () => {
  const { toast } = await import('/static/dialogs.js');
  toast('The discount is 12 % now. '.repeat(3));
  const shown = document.querySelector('[data-testid=toast]');
  for (const one of shown.getAnimations()) one.finish();
  return [shown, document.querySelector('#main-scroll')].map((node) => node.getBoundingClientRect().toJSON());
}"""
