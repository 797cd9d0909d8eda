"""Passing signs: heard at once, what is done now, suspended as such; best effort, and nothing else waits for them."""

from collections.abc import AsyncIterator

import asyncpg
import pytest

from bot.presence import Presence
from bot.simulator.workspace import RITA, SALES_DESK
from core.ports import Batch
from core.run import RunState
from tests.integration.slack_stage import RealClock, Stage, connected, stage, until


class Later(RealClock):
    """A clock that tests move forward."""

    ahead = 0.0

    def monotonic(self) -> float:
        """Return seconds that only go forward."""
        return super().monotonic() + self.ahead


@pytest.fixture
async def on(pool: "asyncpg.Pool[asyncpg.Record]") -> AsyncIterator[Stage]:
    """The stage; its delivery gives signs."""
    async with stage(pool) as on:
        on.delivery.presence = Presence(on.delivery.client, Later())
        yield on


def presence(on: Stage) -> Presence:
    """Return what gives the signs."""
    assert on.delivery.presence is not None
    return on.delivery.presence


def advance(on: Stage, seconds: float) -> None:
    """Let time pass for the signs."""
    clock = presence(on).clock
    assert isinstance(clock, Later)
    clock.ahead += seconds


async def sent(on: Stage) -> None:
    """Send all that is due."""
    while await presence(on).send_due():
        advance(on, 2)


def status(on: Stage) -> str:
    """Return the one status line that Slack shows."""
    return " ".join(one.status for one in on.slack.rooms.live_statuses())


def sessions(on: Stage) -> list[str]:
    """Return the states of all agent sessions."""
    return [session["status"] for session in on.slack.rooms.sessions.values()]


def calls(on: Stage, method: str) -> int:
    """Return how often a method was called."""
    return len(on.slack.journal.find({"kind": "request", "method": method}))


async def test_a_message_is_seen_to_be_heard_as_soon_as_it_is_stored(on: Stage) -> None:
    """Before there is a run, a card or a line, the thread shows that Atlas is on it."""
    async with connected(on):
        message = await on.slack.post_as(RITA, SALES_DESK, "<@U0ATLAS0001> hello")
        await until(lambda: "arrived" in on.moved)  # stored, and whoever stored it went on
        assert await on.pool.fetchval("select count(*) from inbox") == 1
        await sent(on)
        (shown,) = on.slack.rooms.live_statuses()
        assert (shown.channel, shown.thread_ts, shown.status) == (SALES_DESK, message["ts"], "is on it…")
    advance(on, 100)
    await sent(on)
    assert calls(on, "assistant.threads.setStatus") == 1


async def test_the_status_says_what_a_run_does_and_the_session_that_it_waits(on: Stage) -> None:
    """processing with words; suspended without; a reply ends the status in Slack, and it is set again."""
    fence = await on.run()
    await on.store.step(fence, Batch(steps=1, doing="drafting the quote"))
    await on.deliver()
    await sent(on)
    assert status(on) == "is drafting the quote…"
    assert sessions(on) == ["processing"]
    presence(on).replied(SALES_DESK, on.slack.rooms.live_statuses()[0].thread_ts)
    await sent(on)
    assert calls(on, "assistant.threads.setStatus") == 2
    advance(on, 100)
    await sent(on)
    assert calls(on, "assistant.threads.setStatus") == 3
    await on.halt(fence)
    await on.deliver()
    await sent(on)
    assert status(on) == ""
    assert sessions(on) == ["active"]


async def test_a_suspended_run_is_shown_as_such(on: Stage) -> None:
    """The card asks; the session says suspended, and no status claims that Atlas works."""
    suspension_id = await on.suspend(await on.run())
    await on.card(suspension_id)
    await sent(on)
    assert status(on) == ""
    assert sessions(on) == ["suspended"]
    found = await on.desk.suspension(suspension_id)
    assert found is not None
    assert found[1].state is RunState.SUSPENDED


async def test_what_a_workspace_does_not_have_is_left_alone_for_an_hour(on: Stage) -> None:
    """feature_disabled switches the method off, quietly; cards and lines stand all the same."""
    on.slack.streams.sessions_enabled = False
    fence = await on.run()
    await on.deliver()
    await sent(on)
    assert calls(on, "agents.sessions.setStatus") == 1
    await on.halt(fence)
    await on.deliver()
    await sent(on)
    assert calls(on, "agents.sessions.setStatus") == 1
    assert on.posted(f"progress:{fence.run_id}")
    on.slack.streams.sessions_enabled = True
    advance(on, 3_700)
    await on.run("another")
    await on.deliver()
    await sent(on)
    assert sessions(on) == ["processing"]


async def test_a_refused_or_slow_sign_delays_no_card(on: Stage) -> None:
    """Slack limits the status; the card is posted, and the sign comes after the pause."""
    on.slack.faults.add("ratelimited", "assistant.threads.setStatus", retry_after=30)
    fence = await on.run()
    await on.store.step(fence, Batch(steps=1, doing="reading"))
    await on.deliver()
    await presence(on).send_due()
    assert status(on) == ""
    assert on.posted(f"progress:{fence.run_id}")
    advance(on, 31)
    await sent(on)
    assert status(on) == "is reading…"
