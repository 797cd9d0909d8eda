"""Safeguards of the drain on the real store: what a message may and may not do to a run that waits for a click."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import asyncpg
import pytest

from bot.texts import Texts
from core import Agent, Scope, User
from core.engine import Engine, Rules
from core.errors import CouldNotCheck
from core.mail import Drain
from core.ports import InboundEvent
from core.run import SuspensionStatus
from tests.integration.storeworld import Members, World, world_on


class Clock:
    """No time passes here."""

    def monotonic(self) -> float:
        """Return seconds."""
        return 0.0

    async def sleep(self, seconds: float) -> None:
        """Let others go on."""
        await asyncio.sleep(0)


class Names:
    """Run ids in order."""

    def __init__(self) -> None:
        self.count = 0

    def run_id(self) -> str:
        """Return the next."""
        self.count += 1
        return f"drained{self.count}"

    def token(self, run_id: str) -> str:
        """Return the next."""
        self.count += 1
        return f"{run_id}.{self.count}"


@dataclass
class Mailroom:
    """The drain on a world; *scopes* may raise."""

    world: World
    drain: Drain

    async def write(self, text: str, run_id: str, user: str = "U1") -> None:
        """Somebody writes into a run's thread, and the drain handles it."""
        thread = await self.world.value("select thread_ts from runs where id = $1", run_id)
        number = await self.world.value("select count(*) from inbox")
        await self.world.inbox.put(
            InboundEvent(f"EvMail{number}", "mention", "T1", "C1", f"1800000000.{number:06}", thread, user, text, {})
        )
        assert await self.drain.once() == 1


@pytest.fixture
def room(pool: "asyncpg.Pool[asyncpg.Record]") -> Mailroom:
    return mailroom(pool)


def mailroom(
    pool: "asyncpg.Pool[asyncpg.Record]", scopes: Callable[[User], Awaitable[Scope]] | None = None
) -> Mailroom:
    """Return a drain of a process without a worker."""

    async def everything(user: User) -> Scope:
        return Scope(permissions=frozenset({"all"}))

    world = world_on(pool)
    agent = Agent(instructions="", tools=[], scopes=scopes or everything)
    engine = Engine(agent, world.desk, Members(), Rules())
    return Mailroom(world, Drain(engine, world.desk, Members(), Texts(), Clock(), Names(), {}))


async def status(world: World, suspension_id: str) -> SuspensionStatus:
    """Return a suspension's status as stored."""
    found = await world.desk.suspension(suspension_id)
    assert found is not None
    return found[0].status


@pytest.mark.parametrize("text", ["yes", "ok, go ahead!", "👍", "Approve it. Thanks!"])
async def test_an_assent_neither_approves_nor_replaces_what_waits(room: Mailroom, text: str) -> None:
    """Text never approves; and taken for an instruction, a "yes" would throw away what its writer wanted."""
    run_id, (ask,) = await room.world.suspended()
    await room.write(text, run_id)
    assert await status(room.world, ask.id) is SuspensionStatus.OPEN
    assert await room.world.state(run_id) == "suspended"
    (content,) = [
        row["content"] for row in await room.world.pool.fetch("select content from outbox where kind = 'notice'")
    ]
    assert "Text never approves" in content


async def test_an_instruction_replaces_what_waits_and_is_heard(room: Mailroom) -> None:
    """The run goes on with it."""
    run_id, (ask,) = await room.world.suspended()
    await room.write("make it 300 units", run_id)
    assert await status(room.world, ask.id) is SuspensionStatus.SUPERSEDED
    (claimed,) = await room.world.worker.claim(room.world.worker_id, 9)
    assert [letter.text for letter in (await room.world.worker.load(claimed.fence)).mail] == ["make it 300 units"]


async def test_nothing_replaces_a_question_about_an_outcome(room: Mailroom) -> None:
    """Whether it happened must be known before anything new is begun; the message waits with the run."""
    run_id, _, ask = await room.world.in_doubt()
    await room.write("forget it, make it 300 units", run_id)
    assert await status(room.world, ask.id) is SuspensionStatus.OPEN
    assert await room.world.state(run_id) == "suspended"
    view = await room.world.desk.show(run_id)
    assert view is not None
    assert [letter.text for letter in view.mail] == ["forget it, make it 300 units"]


async def test_somebody_elses_message_in_the_thread_leaves_the_run_alone(room: Mailroom) -> None:
    """It begins a run of theirs."""
    run_id, (ask,) = await room.world.suspended()
    await room.write("make it 300 units", run_id, user="U2")
    assert await status(room.world, ask.id) is SuspensionStatus.OPEN
    assert await room.world.value("select user_id from runs where id <> $1", run_id) == "U2"


async def test_a_run_never_starts_on_permissions_that_could_not_be_resolved(
    pool: "asyncpg.Pool[asyncpg.Record]",
) -> None:
    """Nothing is assumed, nothing is lost: the letter comes again."""
    answers: list[Any] = [CouldNotCheck("your permissions", "down"), OSError("down"), Scope()]

    async def flaky(user: User) -> Scope:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer  # type: ignore[no-any-return]

    room = mailroom(pool, flaky)
    other = await room.world.halted()
    for tries in (1, 2):
        if tries == 1:
            await room.write("hello", other, user="U3")
        else:
            assert await room.drain.once() == 1
        assert await room.world.value("select count(*) from runs where user_id = 'U3'") == 0
        room.world.pass_time(60)
    assert await room.drain.once() == 1
    assert await room.world.value("select count(*) from runs where user_id = 'U3'") == 1
