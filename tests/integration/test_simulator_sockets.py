"""Socket Mode and HTTP mode: acks, redelivery, tickets, disconnects and every fault of the transport."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any
from urllib.parse import parse_qs

import aiohttp
import pytest
from aiohttp import web
from slack_sdk.signature import SignatureVerifier

from bot.simulator import Simulator
from bot.simulator.clock import Clock
from bot.simulator.workspace import BOT_USER_ID, RITA, SALES_DESK

Frame = dict[str, Any]


class Line:
    """One raw Socket Mode connection of an app, without any framework."""

    def __init__(self, slack: Simulator, session: aiohttp.ClientSession) -> None:
        self.slack, self.session = slack, session
        self.ws: aiohttp.ClientWebSocketResponse | None = None

    async def ticket(self) -> str:
        headers = {"Authorization": f"Bearer {self.slack.workspace.app_token}"}
        async with self.session.post(f"{self.slack.api_url}apps.connections.open", headers=headers) as response:
            return str((await response.json())["url"])

    async def open(self, url: str | None = None) -> "Line":
        self.ws = await self.session.ws_connect(url or await self.ticket())
        hello = await self.frame()
        assert hello["type"] == "hello"
        return self

    async def frame(self, timeout: float = 60) -> Frame:
        assert self.ws
        message = await self.ws.receive(timeout)
        assert message.type == aiohttp.WSMsgType.TEXT, message
        frame: Frame = json.loads(message.data)
        return frame

    async def ack(self, envelope: Frame, **more: Any) -> None:
        assert self.ws
        await self.ws.send_json({"envelope_id": envelope["envelope_id"], **more})


@pytest.fixture(autouse=True)
def still(monkeypatch: pytest.MonkeyPatch) -> None:
    """No deadline of Slack's comes but by ``advance``, however slow the machine is."""
    monkeypatch.setattr(Clock, "monotonic", lambda clock: clock._offset)


@pytest.fixture
async def slack() -> AsyncIterator[Simulator]:
    async with Simulator() as slack:
        yield slack


@pytest.fixture
async def line(slack: Simulator) -> AsyncIterator[Callable[[], Line]]:
    async with aiohttp.ClientSession() as session:
        lines: list[Line] = []

        def another() -> Line:
            lines.append(Line(slack, session))
            return lines[-1]

        yield another
        for wire in lines:
            if wire.ws is not None:
                await wire.ws.close()


def written(slack: Simulator, **pattern: Any) -> Callable[[], list[Frame]]:
    return lambda: slack.journal.find(pattern)


async def hear(slack: Simulator, text: str = "@Atlas hello") -> None:
    await slack.post_as(RITA, SALES_DESK, text)


async def test_hello_and_envelope_have_slacks_shape(slack: Simulator, line: Callable[[], Line]) -> None:
    wire = line()
    wire.ws = await wire.session.ws_connect(await wire.ticket())
    hello = await wire.frame()
    assert hello["num_connections"] == 1
    assert hello["connection_info"] == {"app_id": "A0ATLAS0001"}
    assert hello["debug_info"]["approximate_connection_time"] == 18060
    await hear(slack)
    envelope = await wire.frame()
    assert set(envelope) == {
        "envelope_id",
        "type",
        "payload",
        "accepts_response_payload",
        "retry_attempt",
        "retry_reason",
    }
    assert (envelope["type"], envelope["retry_attempt"], envelope["retry_reason"]) == ("events_api", 0, "")
    assert envelope["accepts_response_payload"] is False
    await wire.ack(envelope)
    acked = await slack.wait_for(written(slack, kind="ack", envelope_id=envelope["envelope_id"]))
    assert acked[0]["late"] is False
    click_envelope = await slack.command(RITA, SALES_DESK, "/atlas", "help")
    envelope = await wire.frame()
    assert (envelope["type"], envelope["accepts_response_payload"]) == ("slash_commands", True)
    assert "retry_attempt" not in envelope
    await wire.ack(envelope, payload={"text": "at once"})
    assert (await click_envelope.settled()).state == "acked"
    assert [m["text"] for m in slack.ephemerals(RITA, SALES_DESK)] == ["at once"]


async def test_a_ticket_opens_one_connection_and_expires(slack: Simulator, line: Callable[[], Line]) -> None:
    wire = line()
    spent = await wire.ticket()
    await wire.open(spent)
    with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
        await line().open(spent)
    assert refused.value.status == 409
    old = await wire.ticket()
    slack.clock.advance(31)
    with pytest.raises(aiohttp.WSServerHandshakeError):
        await line().open(old)
    slack.faults.sockets.refuse_tickets = 1
    burnt = await wire.ticket()
    for _ in range(2):  # refused once means refused for ever
        with pytest.raises(aiohttp.WSServerHandshakeError):
            await line().open(burnt)
    await line().open()


async def test_only_the_app_token_opens_connections(slack: Simulator, line: Callable[[], Line]) -> None:
    url = f"{slack.api_url}apps.connections.open"
    session = line().session
    answers = []
    for token in (slack.workspace.bot_token, "xapp-other", None):
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        async with session.post(url, headers=headers, data={"token": slack.workspace.app_token}) as response:
            answers.append((await response.json())["error"])
    assert answers == ["not_allowed_token_type", "invalid_auth", "not_authed"]


async def test_ten_connections_share_the_traffic_and_the_eleventh_is_refused(
    slack: Simulator, line: Callable[[], Line]
) -> None:
    wires = [await line().open() for _ in range(10)]
    late = line()
    late.ws = await late.session.ws_connect(await late.ticket())
    assert (await late.frame())["reason"] == "too_many_websockets"
    for _ in wires:
        await hear(slack)
    envelopes = [await wire.frame() for wire in wires]
    assert len({envelope["envelope_id"] for envelope in envelopes}) == 10
    for wire, envelope in zip(wires, envelopes, strict=True):
        await wire.ack(envelope)


async def test_an_unacked_event_comes_again_with_the_same_event_id(slack: Simulator, line: Callable[[], Line]) -> None:
    wire = await line().open()
    await hear(slack)
    first = await wire.frame()
    seen = [first]
    for gap in (4, 63, 303):  # the 3 s window, then 1 s, 60 s, 300 s
        await slack.wait_for(written(slack, kind="envelope", envelope_id=seen[-1]["envelope_id"]))
        slack.clock.advance(3)
        await slack.wait_for(written(slack, kind="unacked", attempt=len(seen) - 1))
        slack.clock.advance(gap - 3)
        seen.append(await wire.frame())
    assert [envelope["retry_attempt"] for envelope in seen] == [0, 1, 2, 3]
    assert {envelope["retry_reason"] for envelope in seen[1:]} == {"timeout"}
    assert len({envelope["payload"]["event_id"] for envelope in seen}) == 1
    assert len({envelope["envelope_id"] for envelope in seen}) == 4
    slack.clock.advance(3)
    lost = await slack.wait_for(written(slack, kind="event_lost"))
    assert lost[0]["event_id"] == first["payload"]["event_id"]


async def test_a_deadline_counts_from_the_moment_at_which_it_was_set(slack: Simulator) -> None:
    """Time may be moved before the timer has its first turn: then it is over all the same, not put off by as much."""
    waited = asyncio.create_task(slack.clock.within(asyncio.get_running_loop().create_future(), 3))
    await asyncio.sleep(0)  # it was called, no more
    slack.clock.advance(3)
    async with asyncio.timeout(60):
        assert await waited is False


async def test_a_late_ack_stops_the_redelivery(slack: Simulator, line: Callable[[], Line]) -> None:
    wire = await line().open()
    await hear(slack)
    envelope = await wire.frame()
    slack.clock.advance(3)
    await slack.wait_for(written(slack, kind="unacked"))
    await wire.ack(envelope)
    await slack.wait_for(written(slack, kind="ack"))
    slack.clock.advance(400)
    await hear(slack, "@Atlas second")
    following = await wire.frame()
    assert following["payload"]["event"]["text"].endswith("second")
    await wire.ack(following)


async def test_an_event_waits_for_the_app_and_a_click_does_not(slack: Simulator, line: Callable[[], Line]) -> None:
    await hear(slack)
    await slack.wait_for(written(slack, kind="unacked", reason="not_connected"))
    command = await slack.command(RITA, SALES_DESK, "/atlas", "help")
    assert (await command.settled()).state == "failed"
    assert command.error == "dispatch_failed"
    wire = await line().open()
    slack.clock.advance(1)
    envelope = await wire.frame()
    assert (envelope["retry_attempt"], envelope["retry_reason"]) == (1, "timeout")
    await wire.ack(envelope)


async def test_a_click_without_an_ack_fails_after_three_seconds_and_never_comes_again(
    slack: Simulator, line: Callable[[], Line]
) -> None:
    wire = await line().open()
    command = await slack.command(RITA, SALES_DESK, "/atlas", "help")
    envelope = await wire.frame()
    slack.clock.advance(3)
    assert (await command.settled()).error == "operation_timeout"
    await wire.ack(envelope, payload={"text": "too late"})
    await slack.wait_for(written(slack, kind="ack", known=True))
    assert slack.ephemerals(RITA, SALES_DESK) == []
    slack.clock.advance(400)
    await hear(slack)
    following = await wire.frame()
    assert following["type"] == "events_api"
    await wire.ack(following)


async def test_disconnect_reasons_warning_stays_open_refresh_closes(slack: Simulator, line: Callable[[], Line]) -> None:
    wire = await line().open()
    await slack.sockets.disconnect("warning")
    assert await wire.frame() == {
        "type": "disconnect",
        "reason": "warning",
        "debug_info": {"host": "applink-simulator-1"},
    }
    assert slack.sockets.connected
    await slack.sockets.disconnect("refresh_requested")
    assert (await wire.frame())["reason"] == "refresh_requested"
    assert wire.ws
    assert (await wire.ws.receive(60)).type in (aiohttp.WSMsgType.CLOSE, aiohttp.WSMsgType.CLOSED)
    await slack.wait_for(lambda: not slack.sockets.connected)


async def test_a_connection_is_refreshed_at_the_end_of_its_life(slack: Simulator, line: Callable[[], Line]) -> None:
    wire = line()
    await wire.open(await wire.ticket())
    slack.clock.advance(18_050)
    assert (await wire.frame())["reason"] == "warning"
    slack.clock.advance(10)
    assert (await wire.frame())["reason"] == "refresh_requested"


async def test_silent_loss_gives_no_pong_no_frame_and_no_close(slack: Simulator, line: Callable[[], Line]) -> None:
    wire = await line().open()
    slack.sockets.silence()
    await hear(slack)
    lost = await slack.wait_for(written(slack, kind="envelope"))
    assert lost[0]["lost"] is True
    assert wire.ws
    await wire.ws.ping(b"sdk-ping-pong:1")
    await wire.ws.send_json({"envelope_id": lost[0]["envelope_id"]})
    slack.clock.advance(3)
    await slack.wait_for(written(slack, kind="unacked"))
    assert slack.journal.find({"kind": "ack"}) == []
    other = await line().open()
    slack.clock.advance(1)
    # redelivered to whichever connection is next; what the silent one gets is lost again
    again = await slack.wait_for(lambda: written(slack, kind="envelope")()[1:])
    if again[0]["lost"]:
        slack.clock.advance(3)
        await slack.wait_for(written(slack, kind="unacked", attempt=1))
        slack.clock.advance(60)
    envelope = await other.frame()
    assert envelope["payload"]["event_id"] == lost[0]["envelope"]["payload"]["event_id"]
    await other.ack(envelope)


async def test_duplicate_reordered_withheld_and_forgotten(slack: Simulator, line: Callable[[], Line]) -> None:
    wire = await line().open()
    slack.faults.sockets.duplicate = 1
    await hear(slack, "@Atlas one")
    first, twin = await wire.frame(), await wire.frame()
    assert first == twin
    await wire.ack(first)
    slack.faults.sockets.reorder = 2
    await hear(slack, "@Atlas two")
    await hear(slack, "@Atlas three")
    texts = []
    for _ in range(2):
        envelope = await wire.frame()
        texts.append(envelope["payload"]["event"]["text"].split()[-1])
        await wire.ack(envelope)
    assert texts == ["three", "two"]
    slack.faults.sockets.withhold = 1
    await hear(slack, "@Atlas four")
    await slack.wait_for(written(slack, kind="fault", what="withhold"))
    await hear(slack, "@Atlas five")
    five = await wire.frame()
    assert five["payload"]["event"]["text"].endswith("five")
    await wire.ack(five)
    await slack.sockets.release()
    four = await wire.frame()
    assert four["payload"]["event"]["text"].endswith("four")
    # The first ack that comes is forgotten, and those before were only sent.
    await slack.wait_for(written(slack, kind="ack", envelope_id=five["envelope_id"]))
    slack.faults.sockets.forget_acks = 1
    await wire.ack(four)
    await slack.wait_for(written(slack, kind="ack", forgotten=True))
    slack.clock.advance(3)
    await slack.wait_for(written(slack, kind="unacked"))
    slack.clock.advance(1)
    again = await wire.frame()
    assert again["payload"]["event_id"] == four["payload"]["event_id"]
    await wire.ack(again)
    await slack.sockets.replay(four, times=2)
    assert [(await wire.frame())["envelope_id"] for _ in range(2)] == [four["envelope_id"]] * 2


# --- HTTP mode ------------------------------------------------------------------------------------------------------

Handler = Callable[[web.Request, str], Awaitable[web.Response]]


class Receiver:
    """An app's request URL; `answer` decides, `calls` remembers (headers, body)."""

    def __init__(self) -> None:
        self.calls: list[tuple[dict[str, str], str]] = []
        self.answer: Callable[[str], web.Response] = lambda body: web.Response()
        self.hang: asyncio.Event | None = None
        self.url = ""
        self.runner: web.AppRunner | None = None

    async def serve(self, request: web.Request) -> web.Response:
        body = await request.text()
        self.calls.append(({key.lower(): value for key, value in request.headers.items()}, body))
        if self.hang is not None:
            await self.hang.wait()
        return self.answer(body)


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    receiver = Receiver()
    app = web.Application()
    app.router.add_post("/slack/events", receiver.serve)
    receiver.runner = web.AppRunner(app, shutdown_timeout=0.1)
    await receiver.runner.setup()
    await web.TCPSite(receiver.runner, "127.0.0.1", 0).start()
    receiver.url = f"http://127.0.0.1:{receiver.runner.addresses[0][1]}/slack/events"
    yield receiver
    if receiver.hang:
        receiver.hang.set()
    await receiver.runner.cleanup()


async def test_http_mode_signs_and_retries_with_slacks_headers(receiver: Receiver) -> None:
    async with Simulator(request_url=receiver.url) as slack:
        receiver.answer = lambda body: web.Response(status=500)
        await hear(slack)
        await slack.wait_for(written(slack, kind="unacked", reason="http_error"))
        slack.clock.advance(1)
        await slack.wait_for(lambda: len(receiver.calls) == 2)
        await slack.wait_for(lambda: written(slack, kind="unacked")()[1:])
        receiver.answer = lambda body: web.Response()
        slack.clock.advance(60)
        await slack.wait_for(lambda: len(receiver.calls) == 3)
        for headers, body in receiver.calls:
            verifier = SignatureVerifier(slack.workspace.signing_secret)
            assert (
                verifier.generate_signature(timestamp=headers["x-slack-request-timestamp"], body=body)
                == (headers["x-slack-signature"])
            )
        retries = [(h.get("x-slack-retry-num"), h.get("x-slack-retry-reason")) for h, _ in receiver.calls]
        assert retries == [(None, None), ("1", "http_error"), ("2", "http_error")]
        assert len({json.loads(body)["event_id"] for _, body in receiver.calls}) == 1


async def test_http_mode_times_out_after_three_seconds_and_honours_no_retry(receiver: Receiver) -> None:
    async with Simulator(request_url=receiver.url) as slack:
        receiver.hang = asyncio.Event()
        await hear(slack)
        await slack.wait_for(lambda: receiver.calls)
        slack.clock.advance(3)
        await slack.wait_for(written(slack, kind="unacked", reason="http_timeout"))
        receiver.hang.set()
        receiver.hang = None
        receiver.answer = lambda body: web.Response(status=503, headers={"x-slack-no-retry": "1"})
        slack.clock.advance(1)
        await slack.wait_for(written(slack, kind="event_lost"))
        assert len(receiver.calls) == 2


async def test_http_mode_interactions_are_forms_and_their_body_is_the_answer(receiver: Receiver) -> None:
    async with Simulator(request_url=receiver.url) as slack:
        assert slack.http_mode
        receiver.answer = lambda body: web.Response(text=json.loads(body)["challenge"])
        assert await slack.http_mode.verify()
        receiver.answer = lambda body: web.json_response({"text": "at once"})
        command = await slack.command(RITA, SALES_DESK, "/atlas", "a & b")
        assert (await command.settled()).state == "acked"
        assert parse_qs(receiver.calls[-1][1])["text"] == ["a &amp; b"]
        assert [m["text"] for m in slack.ephemerals(RITA, SALES_DESK)] == ["at once"]
        view = {
            "type": "modal",
            "title": {"type": "plain_text", "text": "Form"},
            "submit": {"type": "plain_text", "text": "Send"},
            "blocks": [{"type": "divider"}],
        }
        opened = slack.views.open(RITA, view)
        receiver.answer = lambda body: web.Response()
        submitted = await slack.submit(RITA, opened["id"])
        await submitted.settled()
        assert json.loads(parse_qs(receiver.calls[-1][1])["payload"][0])["type"] == "view_submission"
        assert slack.modals(RITA) == []
        assert receiver.runner
        await receiver.runner.cleanup()
        failed = await slack.command(RITA, SALES_DESK, "/atlas", "again")
        assert (await failed.settled()).state == "failed"


async def test_the_bot_hears_nothing_of_rooms_it_is_not_in(slack: Simulator, line: Callable[[], Line]) -> None:
    wire = await line().open()
    await slack.post_as(RITA, "C0RANDOM001", f"<@{BOT_USER_ID}> hello?")
    await hear(slack, "not for anyone")
    await hear(slack, "@Atlas for you")
    envelope = await wire.frame()
    assert envelope["payload"]["event"]["text"].endswith("for you")
    await wire.ack(envelope)
