"""Socket Mode connections heal: refresh without a gap, refused tickets, silent loss, a clean close."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest

from bot.simulator.workspace import RITA, SALES_DESK
from core.ports import InboundEvent
from tests.integration.slack_stage import PATIENCE_S, Stage, connected, stage, until


@pytest.fixture
async def on(pool: "asyncpg.Pool[asyncpg.Record]") -> AsyncIterator[Stage]:
    """The stage, not yet connected."""
    async with stage(pool) as on:
        on.slack.sockets.ack_window_s = 3.0  # what is lost with a connection comes again
        yield on


async def mentions_arrive(on: Stage, number: int, words: str = "hello") -> None:
    """Post mentions and wait until each is in the inbox, once."""
    before = await on.pool.fetchval("select count(*) from inbox")
    for at in range(number):
        await on.slack.post_as(RITA, SALES_DESK, f"<@U0ATLAS0001> {words} {at}")
    await until(lambda: on.pool.fetchval("select count(*) >= $1 from inbox", before + number))
    assert await on.pool.fetchval("select count(*) from inbox") == before + number


async def test_a_refresh_of_either_connection_loses_nothing(on: Stage) -> None:
    """Slack asks for a new connection in the middle of traffic; all mentions arrive, once each.

    slackapi/bolt-python#1529: after a refresh "session established", and no event came any more.
    """
    async with connected(on) as socket:
        assert await socket.alive() == 2
        for reason in ("warning", "refresh_requested"):
            await on.slack.sockets.disconnect(reason, 1)
            await mentions_arrive(on, 5, reason)
        await until(socket.alive)
        await until(lambda: len(on.slack.sockets.sockets) >= 2)


@pytest.mark.parametrize("refusal", [409, 500])
async def test_refused_tickets_are_replaced(on: Stage, refusal: int) -> None:
    """After a refresh Slack refuses the next handshakes; new tickets are fetched and both connections come back.

    slackapi/python-slack-sdk#1446: a handshake refused on refresh left a broken client; burnt ticket: the SDK tries the
    same one for ever.
    """
    async with connected(on) as socket:
        on.slack.faults.sockets.refuse_tickets, on.slack.faults.sockets.refuse_status = 4, refusal
        await on.slack.sockets.disconnect("refresh_requested", 2)
        await until(lambda: on.slack.faults.sockets.refuse_tickets == 0)
        await until(lambda: len(on.slack.sockets.sockets) >= 2)
        await until(socket.connected)
        await mentions_arrive(on, 3)


async def test_a_dead_workspace_is_reported_and_healed(on: Stage) -> None:
    """All sockets vanish: connected() says so while it lasts, and true again afterwards."""
    async with connected(on) as socket:
        on.slack.faults.sockets.refuse_tickets = 4
        on.slack.sockets.cut(2)

        async def down() -> bool:
            return not await socket.connected()

        await until(down)
        await until(socket.connected)
        await mentions_arrive(on, 2)


async def test_a_connection_that_is_lost_in_silence_is_replaced(on: Stage) -> None:
    """Nothing passes and nothing closes: the missing pongs give it away, and what Slack resends is stored once."""
    async with connected(on) as socket:
        silent = list(on.slack.sockets.sockets)
        on.slack.sockets.silence(2)
        # That nothing is up may pass between two looks; that these were given up stays so.
        await until(lambda: len(on.slack.sockets.sockets) >= 2 and not set(silent) & set(on.slack.sockets.sockets))
        await until(socket.connected)
        await mentions_arrive(on, 2)


async def test_a_clean_close_waits_for_what_is_being_stored(on: Stage) -> None:
    """Close lets a running listener end and its ack go out; nothing is left running.

    slackapi/bolt-python#964, slackapi/bolt-python#622: shutdowns that hung, or lost an ack.
    """
    entered, leave = asyncio.Event(), asyncio.Event()

    class SlowInbox:
        async def put(self, event: InboundEvent) -> bool:
            entered.set()
            await leave.wait()
            return bool(await on.inbox.put(event))

    async with connected(on, inbox=SlowInbox()) as socket:
        before = set(asyncio.all_tasks())
        await on.slack.post_as(RITA, SALES_DESK, "<@U0ATLAS0001> hello")
        await entered.wait()
        closing = asyncio.create_task(socket.close(PATIENCE_S))
        await asyncio.sleep(0)
        assert not closing.done()
        leave.set()
        await closing
        assert await on.pool.fetchval("select count(*) from inbox") == 1
        await until(lambda: on.slack.journal.find({"kind": "ack"}))  # it was sent; the other end may still read it
        left: list[Any] = [task for task in asyncio.all_tasks() - before if "slack_sdk" in repr(task.get_coro())]
        assert left == []
