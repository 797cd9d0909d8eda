"""No older version of a card stays over a newer one, whoever was slow: each place where it could is stopped and moved.

The real store and the simulated Slack; what is late here waits for an event of the test, never for time.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import asyncpg
import pytest

from bot.delivery import LEASE_S, Delivery
from bot.simulator.workspace import RITA
from core.approvals import Via
from core.engine import Actor
from core.ports import OutboxRow, RenderInputs
from storage.outbox import PgOutbox
from tests.integration.slack_stage import RealClock, Stage, stage, until

Happening = Callable[[], Awaitable[None]]


@pytest.fixture
async def on(pool: "asyncpg.Pool[asyncpg.Record]") -> AsyncIterator[Stage]:
    """The stage, without a connection."""
    async with stage(pool) as on:
        yield on


class Between(PgOutbox):
    """The real outbox; *happens* takes place once, between the two reads of a rendering."""

    happens: Happening | None = None
    reads = 0

    async def current_version(self, row: OutboxRow) -> int:
        """Read, then let it happen if this was the first read."""
        version = await super().current_version(row)
        await self._between()
        return version

    async def render_inputs(self, row: OutboxRow) -> RenderInputs:
        """Read, then let it happen if this was the first read."""
        inputs = await super().render_inputs(row)
        await self._between()
        return inputs

    async def _between(self) -> None:
        self.reads += 1
        if self.reads == 1 and self.happens is not None:
            await self.happens()


class LateClient:
    """The real client, whose next edit waits for *go*."""

    def __init__(self, real: Any) -> None:
        self._real = real
        self.waiting = asyncio.Event()
        self.go = asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        """Return what the real one has."""
        return getattr(self._real, name)

    async def chat_update(self, **how: Any) -> Any:
        """Edit, late."""
        self.waiting.set()
        await self.go.wait()
        return await self._real.chat_update(**how)


class JumpingClock(RealClock):
    """This process's time; *ahead*: how long it was stopped."""

    ahead = 0.0

    def monotonic(self) -> float:
        """Return seconds."""
        return super().monotonic() + self.ahead


def another(on: Stage, **parts: Any) -> Delivery:
    """Return one more replica's delivery, with *parts* of its own."""
    mine = on.delivery
    return Delivery(
        parts.get("outbox", on.outbox), parts.get("client", mine.client), on.installation,
        parts.get("clock", on.clock), on.time, request_timeout_s=parts.get("request_timeout_s", 10.0),
    )  # fmt: skip


async def approve(on: Stage, suspension_id: str) -> None:
    """Approve as Rita, past Slack."""
    found = await on.desk.suspension(suspension_id)
    assert found is not None
    actor = Actor(on.installation.team_id, RITA, Via.BUTTON)
    decided = await on.engine.decide(actor, suspension_id, found[0].token, approve=True, digest=found[0].digest)
    assert decided.refusal is None


async def is_current(on: Stage, suspension_id: str) -> None:
    """Check that the one card shows the decision, and that the store knows it."""
    await on.deliver()
    (message,) = on.posted(f"card:{suspension_id}")
    assert "running" in str(message["blocks"])
    assert "'action_id': 'approve'" not in str(message["blocks"])
    row = await on.row(f"card:{suspension_id}")
    assert row["delivered_version"] == row["version"]


async def nudge(on: Stage, suspension_id: str) -> None:
    """Owe one more version of a card, as a change does."""
    await on.pool.execute(
        "update outbox set version = version + 1, next_attempt_at = '-infinity' where place = $1",
        f"card:{suspension_id}",
    )


async def test_a_decision_between_the_reads_of_a_rendering_is_shown(on: Stage) -> None:
    """The version is read first; read second, it would say that the decision is shown, and it never would be."""
    suspension_id = await on.suspend(await on.run())
    await on.card(suspension_id)
    await nudge(on, suspension_id)
    outbox = Between(on.pool, now=on.time)
    outbox.happens = lambda: approve(on, suspension_id)
    assert await another(on, outbox=outbox).run_once(20) >= 1
    assert outbox.reads >= 2
    await is_current(on, suspension_id)


async def test_an_edit_that_arrives_after_a_newer_one_is_followed_by_what_is_wanted_now(on: Stage) -> None:
    """Its sender finds its lease gone, and writes the newest version over its own."""
    suspension_id = await on.suspend(await on.run())
    await on.card(suspension_id)
    await nudge(on, suspension_id)
    late = LateClient(on.delivery.client)
    slow = asyncio.create_task(another(on, client=late).run_once(20))
    await until(late.waiting.is_set)
    on.time.advance(LEASE_S + 1)
    await approve(on, suspension_id)
    await is_current(on, suspension_id)
    late.go.set()
    await slow
    await is_current(on, suspension_id)


async def test_a_process_that_was_stopped_past_its_turn_sends_no_edit(on: Stage) -> None:
    """Its edit could arrive when the lease is somebody else's; it gives the row back instead."""
    suspension_id = await on.suspend(await on.run())
    await on.card(suspension_id)
    await nudge(on, suspension_id)
    clock = JumpingClock()
    outbox = Between(on.pool, now=on.time)

    async def stop_for_a_while() -> None:
        clock.ahead = LEASE_S - 1

    outbox.happens = stop_for_a_while
    before = on.slack.journal.last
    delivery = another(on, outbox=outbox, clock=clock)
    assert await delivery.run_once(20) >= 1
    assert not on.slack.journal.find({"kind": "request", "method": "chat.update"}, before)
    await approve(on, suspension_id)
    await is_current(on, suspension_id)
