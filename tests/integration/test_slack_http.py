"""HTTP mode: the same listeners behind signed requests; forged, stale and unsigned ones change nothing."""

import hashlib
import hmac
import json
import time
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import urlencode

import aiohttp
import asyncpg
import pytest
from aiohttp import web
from slack_sdk.signature import Clock

from bot.app import build_app, events_route
from bot.simulator.workspace import RITA, SALES_DESK
from core.errors import StoreUnavailable
from core.ports import InboundEvent
from core.run import SuspensionStatus
from tests.integration.slack_stage import PATIENT_COMMIT_S, Stage, be_patient, stage

SECRET = "a-signing-secret"
# Whole seconds: a header has no others.
NOW = int(time.time())


@pytest.fixture(autouse=True)
def still(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time does not go on between a signature and its check: five minutes stay five minutes."""
    monkeypatch.setattr(Clock, "now", lambda clock: float(NOW))


class Door:
    """Posts to the bot's endpoint as Slack would."""

    def __init__(self, on: Stage, url: str) -> None:
        self.on = on
        self.url = url

    async def post(
        self, body: str, kind: str = "application/json", *, secret: str = SECRET, age_s: float = 0.0
    ) -> tuple[int, str]:
        """Post a signed body; return status and text."""
        stamp = str(int(NOW - age_s))
        signature = "v0=" + hmac.new(secret.encode(), f"v0:{stamp}:{body}".encode(), hashlib.sha256).hexdigest()
        headers = {"content-type": kind, "x-slack-request-timestamp": stamp, "x-slack-signature": signature}
        async with self.on.session.post(self.url, data=body, headers=headers) as answer:
            return answer.status, await answer.text()


@pytest.fixture
async def door(pool: "asyncpg.Pool[asyncpg.Record]") -> AsyncIterator[Door]:
    """The app behind its HTTP route."""
    async with stage(pool) as on:
        async for opened in _serve(on, on.inbox):
            yield opened


async def _serve(on: Stage, inbox: Any) -> AsyncIterator[Door]:
    app = build_app(
        on.installation,
        on.engine,
        inbox,
        on.homes,
        on.session,
        api_url=on.slack.api_url,
        signing_secret=SECRET,
        commit_within_s=PATIENT_COMMIT_S,
    )
    be_patient(app, PATIENT_COMMIT_S)
    server = web.Application()
    server.router.add_post("/slack/events", events_route(app))
    runner = web.AppRunner(server, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    try:
        yield Door(on, f"http://127.0.0.1:{port}/slack/events")
    finally:
        await runner.cleanup()


def mention(event_id: str = "Ev1") -> str:
    """Return an event as Slack posts it."""
    event = {"type": "app_mention", "user": RITA, "channel": SALES_DESK, "ts": "1764500000.000100", "text": "hello"}
    wrapper = {"type": "event_callback", "team_id": "T0NORTHWIND", "event_id": event_id, "event": event}
    return json.dumps(wrapper)


async def stored(door: Door) -> int:
    """Return how many events are stored."""
    return int(await door.on.pool.fetchval("select count(*) from inbox"))


async def test_a_signed_event_is_stored_and_answered(door: Door) -> None:
    """200 after the row is there; the same event again is 200 and no second row."""
    assert (await door.post(mention()))[0] == 200
    assert (await door.post(mention()))[0] == 200
    assert await stored(door) == 1


async def test_slacks_url_check_is_answered(door: Door) -> None:
    """The challenge comes back."""
    status, text = await door.post(json.dumps({"type": "url_verification", "challenge": "c-123", "token": "x"}))
    assert status == 200
    assert "c-123" in text


@pytest.mark.parametrize("wrong", [{"secret": "another"}, {"age_s": 301.0}, {"age_s": -301.0}])
async def test_forged_and_replayed_requests_are_refused(door: Door, wrong: dict[str, Any]) -> None:
    """A wrong signature, or a time outside Slack's five minutes: 401, and nothing is stored."""
    status, _ = await door.post(mention(), **wrong)
    assert status == 401
    assert await stored(door) == 0


@pytest.mark.parametrize("age_s", [300.0, -300.0])
async def test_a_request_within_slacks_five_minutes_is_taken(door: Door, age_s: float) -> None:
    """Their last second, on either side."""
    assert (await door.post(mention(), age_s=age_s))[0] == 200
    assert await stored(door) == 1


async def test_an_unsigned_request_is_refused(door: Door) -> None:
    """No signature at all."""
    async with aiohttp.ClientSession() as session, session.post(door.url, data=mention()) as answer:
        assert answer.status == 401
    assert await stored(door) == 0


async def test_a_forged_click_decides_nothing_and_a_signed_one_does(door: Door) -> None:
    """The same click, signed with the wrong and with the right secret."""
    suspension_id = await door.on.suspend(await door.on.run())
    card = await door.on.card(suspension_id)
    value = next(b for b in card["blocks"] if b["type"] == "actions")["elements"][0]["value"]
    payload = {
        "type": "block_actions",
        "team": {"id": "T0NORTHWIND"},
        "user": {"id": RITA, "team_id": "T0NORTHWIND"},
        "container": {"type": "message"},
        "actions": [{"type": "button", "action_id": "approve", "block_id": "b", "value": value}],
    }
    body = urlencode({"payload": json.dumps(payload)})
    form = "application/x-www-form-urlencoded"
    assert (await door.post(body, form, secret="another"))[0] == 401
    found = await door.on.desk.suspension(suspension_id)
    assert found is not None
    assert found[0].status is SuspensionStatus.OPEN
    foreign = urlencode({"payload": json.dumps({**payload, "team": {"id": "T0CONTOSO01"}})})
    assert (await door.post(foreign, form))[0] == 200
    found = await door.on.desk.suspension(suspension_id)
    assert found is not None
    assert found[0].status is SuspensionStatus.OPEN
    assert (await door.post(body, form))[0] == 200
    found = await door.on.desk.suspension(suspension_id)
    assert found is not None
    assert found[0].status is SuspensionStatus.APPROVED


async def test_what_cannot_be_stored_is_answered_503(pool: "asyncpg.Pool[asyncpg.Record]") -> None:
    """Slack then sends it again."""

    class AwayInbox:
        async def put(self, event: InboundEvent) -> bool:
            raise StoreUnavailable("away")

    async with stage(pool) as on:
        async for door in _serve(on, AwayInbox()):
            assert (await door.post(mention()))[0] == 503
