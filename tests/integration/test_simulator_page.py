"""The page's routes, and those that tests in other processes use; the simulator as a process of its own."""

import asyncio
import json
import re
import signal
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

import aiohttp
import pytest
from aiohttp import web
from slack_sdk.web.async_client import AsyncWebClient

from bot.simulator import Simulator, Workspace
from bot.simulator.workspace import DEALS, MARCUS, OSKAR, RITA, SALES_DESK, VERA

Json = dict[str, Any]
PAGE = {"X-Atlas-Page": "1"}
ROOT = Path(__file__).parents[2]
BUTTON: list[Json] = [
    {
        "type": "actions",
        "block_id": "b",
        "elements": [
            {"type": "button", "action_id": "go", "text": {"type": "plain_text", "text": "Go"}, "value": "v1"}
        ],
    }
]


@pytest.fixture
async def slack() -> AsyncIterator[Simulator]:
    async with Simulator() as slack:
        yield slack


@pytest.fixture
async def session(slack: Simulator) -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(slack.url) as session:
        yield session


@pytest.fixture
async def client(slack: Simulator, session: aiohttp.ClientSession) -> AsyncIterator[AsyncWebClient]:
    async with aiohttp.ClientSession() as own:
        yield AsyncWebClient(token=slack.workspace.bot_token, base_url=slack.api_url, session=own)


Post = Callable[..., Coroutine[Any, Any, Json]]


@pytest.fixture
def post(session: aiohttp.ClientSession) -> Post:
    async def send(path: str, **body: Any) -> Json:
        async with session.post(path, json=body, headers=PAGE) as response:
            assert response.status == 200, await response.text()
            answer: Json = await response.json()
            return answer

    return send


async def state(session: aiohttp.ClientSession, user: str) -> Json:
    async with session.get("/page/state", params={"as": user}) as response:
        snapshot: Json = await response.json()
        return snapshot


async def until(live: aiohttp.ClientWebSocketResponse, event: str, **fields: Any) -> Json:
    """Return the first frame of this kind with these fields."""
    async with asyncio.timeout(60):
        while True:
            frame: Json = await live.receive_json()
            if frame["event"] == event and all(frame.get(key) == value for key, value in fields.items()):
                return frame


async def test_the_snapshot_holds_what_this_person_sees(
    slack: Simulator, session: aiohttp.ClientSession, client: AsyncWebClient, post: Post
) -> None:
    await post("/page/post", **{"as": RITA, "channel": DEALS, "text": "secret @Marcus <b>"})
    await client.chat_postEphemeral(channel=SALES_DESK, user=RITA, text="for Rita")
    seen = await state(session, RITA)
    assert set(seen) == {
        "now",
        "team",
        "me",
        "bot",
        "people",
        "groups",
        "channels",
        "messages",
        "home",
        "views",
        "statuses",
        "panel",
        "unread",
    }
    assert seen["groups"]["S0SALESMGRS"] == "sales-managers"
    assert seen["bot"]["connected"] is False
    assert seen["bot"]["commands"][0]["command"] == "/atlas"
    assert seen["messages"][DEALS][0]["text"] == f"secret <@{MARCUS}> &lt;b&gt;"
    assert seen["messages"][SALES_DESK][0]["ephemeral"] is True
    assert {person["kind"] for person in seen["people"]} == {"member", "guest", "external", "deactivated", "bot"}
    other = await state(session, OSKAR)
    assert DEALS not in other["messages"]
    assert other["messages"][SALES_DESK] == []
    assert [channel["name"] for channel in other["channels"]] == ["sales-desk", "atlas-ops", "random"]
    assert (await state(session, MARCUS))["unread"][DEALS] == 1
    await post("/page/read", **{"as": MARCUS, "channel": DEALS})
    assert (await state(session, MARCUS))["unread"][DEALS] == 0
    assert (await state(session, ""))["me"] == RITA


async def test_frames_reach_those_who_may_see_them(
    slack: Simulator, session: aiohttp.ClientSession, client: AsyncWebClient, post: Post
) -> None:
    async with (
        session.ws_connect("/page/live", params={"as": RITA}) as rita,
        session.ws_connect("/page/live", params={"as": VERA}) as vera,
    ):
        asked = await post("/page/post", **{"as": RITA, "channel": SALES_DESK, "text": "@Atlas hello"})
        frame = await until(vera, "message", channel=SALES_DESK)
        assert frame["message"]["ts"] == asked["ts"]
        posted = await client.chat_postMessage(channel=SALES_DESK, thread_ts=asked["ts"], text="card", blocks=BUTTON)
        await until(rita, "message", channel=SALES_DESK)
        assert (await until(vera, "message"))["message"]["text"] == "card"
        assert (await until(vera, "message"))["message"]["reply_count"] == 1
        await client.assistant_threads_setStatus(channel_id=SALES_DESK, thread_ts=asked["ts"], status="thinks")
        assert (await until(rita, "status"))["status"] == "thinks"
        slack.clock.advance(120)
        assert (await until(rita, "status"))["status"] == ""
        await client.chat_postEphemeral(channel=SALES_DESK, user=RITA, text="for Rita")
        while (frame := await until(rita, "message"))["message"]["text"] != "for Rita":
            assert "ephemeral" not in frame["message"]
        assert frame["message"]["ephemeral"] is True
        click = await post(
            "/page/click",
            **{"as": RITA, "channel": SALES_DESK, "message_ts": posted["ts"], "block_id": "b", "action_id": "go"},
            element={"value": "forged"},
        )
        pending = await until(rita, "interaction", state="pending")
        failed = await until(rita, "interaction", state="failed")
        assert pending["id"] == failed["id"] == click["interaction_id"]
        assert (failed["error"], failed["kind"], failed["message_ts"]) == (
            "dispatch_failed",
            "block_actions",
            posted["ts"],
        )
        slack.views.open(RITA, {"type": "modal", "title": {"type": "plain_text", "text": "x"}, "blocks": []})
        opened = await until(rita, "view")
        await post("/page/view_close", **{"as": RITA, "view_id": opened["view"]["id"]})
        await until(rita, "view_closed", view_id=opened["view"]["id"])
        await client.views_publish(user_id=RITA, view={"type": "home", "blocks": BUTTON})
        assert (await until(rita, "home"))["view"]["type"] == "home"
        opened_dm = await post("/page/dm", **{"as": RITA})
        channels = (await until(rita, "channels"))["channels"]
        assert {"id": opened_dm["channel"], "kind": "im", "with": "U0ATLAS0001"}.items() <= channels[-1].items()
        slack.change_world({"person": VERA, "set": {"kind": "deactivated"}})
        await until(rita, "people")
        before = slack.clock.now()
        slack.advance(60)
        assert before + 60 <= (await until(rita, "clock"))["now"] <= slack.clock.now()
        await client.chat_delete(channel=SALES_DESK, ts=posted["ts"])
        await until(vera, "message_deleted", ts=posted["ts"])
        # what was for Rita alone never came to Vera
        await client.chat_postMessage(channel=SALES_DESK, text="last")
        seen: list[Json] = []
        while not seen or seen[-1].get("message", {}).get("text") != "last":
            seen.append(await vera.receive_json())
        assert not [frame for frame in seen if frame["event"] in ("view", "home", "interaction")]
        assert not [frame for frame in seen if frame.get("message", {}).get("text") == "for Rita"]


async def test_refusals_carry_slacks_words(slack: Simulator, post: Post) -> None:
    asked = await post("/page/post", **{"as": RITA, "channel": SALES_DESK, "text": "x"})
    here = {"as": RITA, "channel": SALES_DESK}
    refused = await post("/page/post", **here, text="/atlas continue", thread_ts=asked["ts"])
    assert refused == {
        "ok": False,
        "error": "slash_in_thread",
        "text": "/atlas is not supported in threads. Sorry!",
    }
    assert (await post("/page/command", **here, command="/what", text=""))["error"] == "invalid_command"
    assert (await post("/page/post", **{"as": OSKAR, "channel": DEALS, "text": "x"}))["error"] == "not_in_channel"
    gone = await post("/page/click", **here, message_ts="1.1", block_id="b", action_id="go", element={})
    assert gone["error"] == "message_not_found"


async def test_foreign_pages_and_names_are_refused(slack: Simulator, session: aiohttp.ClientSession) -> None:
    body = {"as": RITA, "channel": SALES_DESK, "text": "x"}
    async with session.post("/page/post", json=body) as response:
        assert response.status == 403
    async with session.post("/page/post", json=body, headers={**PAGE, "Host": "evil.example"}) as response:
        assert response.status == 403
    async with session.get("/page/state", params={"as": RITA}, headers={"Host": "evil.example"}) as response:
        assert response.status == 403
    async with session.post("/clock", data='{"advance": 1}', headers={"Content-Type": "text/plain"}) as response:
        assert response.status == 415
    with pytest.raises(aiohttp.WSServerHandshakeError):
        await session.ws_connect("/page/live", params={"as": RITA}, headers={"Origin": "http://evil.example"})
    for path in ("/static/../server.py", "/static/%2e%2e/server.py", "/static/..%2fserver.py", "/static/nothing.js"):
        async with session.get(path) as response:
            assert response.status == 404, path
    assert slack.messages(SALES_DESK) == []


async def test_the_page_and_all_that_it_asks_for_are_served(session: aiohttp.ClientSession) -> None:
    async with session.get("/") as response:
        assert (response.status, response.content_type) == (200, "text/html")
        page = await response.text()
    wanted = set(re.findall(r'(?:src|href)="(/static/[^"]+)"', page))
    assert wanted
    seen: set[str] = set()
    while wanted - seen:
        path = (wanted - seen).pop()
        seen.add(path)
        async with session.get(path) as response:
            assert response.status == 200, path
            text = await response.text()
        if path.endswith(".js"):
            assert response.content_type in ("text/javascript", "application/javascript")
            wanted |= {urljoin(path, name) for name in re.findall(r'(?:from|import)\s+"(\.[^"]+\.js)"', text)}
    assert len(seen) > 3


async def test_journal_faults_clock_and_world_over_http(
    slack: Simulator, session: aiohttp.ClientSession, client: AsyncWebClient, post: Post
) -> None:
    waiting = asyncio.create_task(post("/wait", match={"kind": "request", "args": {"text": "awaited"}}, timeout=60))
    fault = await post("/faults", kind="ratelimited", method="auth.test", times=1, retry_after=3)
    assert fault["methods"][0]["retry_after"] == 3
    await post("/faults", socket="refuse_tickets", times=2, status=500)
    async with session.get("/faults") as response:
        assert (await response.json())["sockets"]["refuse_tickets"] == 2
    await post("/faults", clear=True)
    assert slack.faults.listing()["methods"] == []
    await client.chat_postMessage(channel=SALES_DESK, text="awaited")
    found = await waiting
    assert found["ok"] is True
    assert found["record"]["method"] == "chat.postMessage"
    assert (await post("/wait", match={"kind": "nothing"}, timeout=0.05))["ok"] is False
    async with session.get("/journal", params={"since": str(found["record"]["seq"]), "kind": "answer"}) as response:
        journal = await response.json()
    assert [record["answer"]["ok"] for record in journal["records"]] == [True]
    assert journal["next"] == slack.journal.last
    before = slack.clock.now()
    assert (await post("/clock", advance=1800))["now"] >= before + 1800
    await post("/world", person=RITA, set={"kind": "guest"})
    assert (await client.users_info(user=RITA))["user"]["is_restricted"] is True
    sent = await post("/send", event={"type": "app_mention", "bot_id": "B0OTHER"}, wrapper={"team_id": "T0OTHER"})
    (raw,) = slack.journal.find({"kind": "event", "event_id": sent["id"]})
    assert (raw["payload"]["team_id"], raw["payload"]["event"]["bot_id"]) == ("T0OTHER", "B0OTHER")
    forged = await post("/send", kind="block_actions", payload={"type": "block_actions", "user": {"id": RITA}})
    found = await post("/wait", match={"kind": "interaction", "id": forged["id"], "state": "failed"}, timeout=60)
    assert found["record"]["error"] == "dispatch_failed"
    for path, body in (
        ("/faults", {"kind": "explode"}),
        ("/faults", {"socket": "explode"}),
        ("/world", {"person": "U0NOBODY000", "set": {}}),
        ("/sockets", {"do": "explode"}),
        ("/clock", {"advance": -1}),
    ):
        async with session.post(path, json=body) as response:
            assert response.status == 400, path


async def test_the_panel_is_forwarded_and_its_absence_is_said(slack: Simulator, session: aiohttp.ClientSession) -> None:
    async with session.get("/panel/state") as response:
        assert (await response.json())["groups"] == []
    assert (await state(session, RITA))["panel"] is False
    asked: list[Json] = []

    async def shown(request: web.Request) -> web.Response:
        return web.json_response({"groups": [{"title": "World", "controls": []}], "log": []})

    async def changed(request: web.Request) -> web.Response:
        asked.append(await request.json())
        return web.json_response({"ok": True})

    app = web.Application()
    app.router.add_get("/panel/state", shown)
    app.router.add_post("/panel/set", changed)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    panel_url = f"http://127.0.0.1:{runner.addresses[0][1]}/"
    async with Simulator(panel_url=panel_url) as other, aiohttp.ClientSession(other.url) as page:
        async with page.get("/panel/state") as response:
            assert (await response.json())["groups"][0]["title"] == "World"
        async with page.post("/panel/set", json={"id": "hold", "value": True}) as response:
            assert response.status == 403
        async with page.post("/panel/set", json={"id": "hold", "value": True}, headers=PAGE) as response:
            assert (await response.json()) == {"ok": True}
        assert asked == [{"id": "hold", "value": True}]
        await runner.cleanup()
        async with page.get("/panel/state") as response:
            assert response.status == 502


async def test_as_a_process_it_prints_its_addresses_and_ends_cleanly(tmp_path: Path) -> None:
    config = tmp_path / "workspace.json"
    config.write_text(json.dumps({"team_name": "Other Sales", "bot_token": "xoxb-other"}))
    journal = tmp_path / "journal.jsonl"
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "bot.simulator", "--config", str(config), "--journal", str(journal), "--rate-tiers"),
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stdout
    there = json.loads(await asyncio.wait_for(process.stdout.readline(), 120))
    assert set(there) == {"url", "api_url", "app_token", "bot_token", "signing_secret"}
    assert there["bot_token"] == "xoxb-other"
    async with aiohttp.ClientSession() as session:
        headers = {"Authorization": f"Bearer {there['bot_token']}"}
        async with session.post(f"{there['api_url']}auth.test", headers=headers) as response:
            assert (await response.json())["team"] == "Other Sales"
        # an open page must not keep the server from ending
        live = await session.ws_connect(f"{there['url']}/page/live", params={"as": RITA})
        process.send_signal(signal.SIGTERM)
        _, errors = await asyncio.wait_for(process.communicate(), 120)
        await live.close()
    assert (process.returncode, errors.decode()) == (0, "")
    lines = [json.loads(line) for line in journal.read_text("utf-8").splitlines()]
    assert [line["seq"] for line in lines] == list(range(1, len(lines) + 1))
    assert lines[0]["method"] == "auth.test"


@pytest.mark.parametrize("content", ['{"colour": "red"}', "not json", '{"people": [{"name": "x"}]}'])
async def test_a_config_that_cannot_be_used_is_one_clear_line(tmp_path: Path, content: str) -> None:
    config = tmp_path / "workspace.json"
    config.write_text(content)
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "bot.simulator", "--config", str(config)),
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    _, errors = await asyncio.wait_for(process.communicate(), 120)
    assert process.returncode == 2
    assert errors.decode().startswith("simulator: ")
    assert len(errors.decode().splitlines()) == 1


def test_the_default_workspace_has_one_of_each_kind_and_unique_ids() -> None:
    workspace = Workspace()
    ids = [person.id for person in workspace.people] + [channel.id for channel in workspace.channels]
    ids += [group.id for group in workspace.user_groups]
    assert len(ids) == len(set(ids))
    for person in workspace.people:
        assert workspace.named(person.real_name) is person
    assert workspace.named("rita") is workspace.person(RITA)
