"""A part of the demo comes back as it was told to, and no press is lost between a death and its notice.

The processes are real; what they do is to wait.
"""

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from bot.demo.children import Child, Leash, Part

WITHIN_S = 60.0


class Stand:
    """A part whose process waits for its end; *gate* holds back its start."""

    def __init__(self, log: Path, leash: Leash) -> None:
        self.starts = 0
        self.gate = asyncio.Event()
        self.gate.set()
        self._log, self._leash = log, leash
        self.notes: list[str] = []
        self.part = Part("Atlas", self._spawn, self.notes.append, comeback_s=0.01)

    async def _spawn(self) -> Child:
        self.starts += 1
        program = "import time; print('{}', flush=True); time.sleep(600)"
        child = Child([sys.executable, "-I", "-S", "-c", program], {}, self._log, self._leash)
        await child.start()
        await child.first_line()
        await self.gate.wait()
        return child

    async def until_up(self) -> None:
        async with asyncio.timeout(WITHIN_S):
            while not self.part.up:
                await asyncio.sleep(0.01)

    async def until_started(self, times: int) -> None:
        async with asyncio.timeout(WITHIN_S):
            while self.starts < times:
                await asyncio.sleep(0.01)


@pytest.fixture
async def stand(tmp_path: Path) -> AsyncIterator[Stand]:
    leash = Leash()
    await leash.start()
    made = Stand(tmp_path / "log", leash)
    yield made
    made.gate.set()
    async with asyncio.timeout(WITHIN_S):
        await made.part.off()
        await leash.stop()


async def test_what_was_killed_is_gone_when_the_kill_returns(stand: Stand) -> None:
    stand.part.returns = False
    await stand.part.on()
    await stand.part.killed()
    assert not stand.part.up
    assert not stand.part.redeploy()


async def test_a_start_asked_for_right_after_a_death_is_kept(stand: Stand) -> None:
    stand.part.returns = False
    await stand.part.on()
    await stand.part.killed()
    stand.part.start_now()  # before the death was noted
    await stand.until_up()
    assert stand.starts == 2
    await stand.part.killed()
    async with asyncio.timeout(WITHIN_S):
        while sum("start it when you like" in note for note in stand.notes) < 2:
            await asyncio.sleep(0.01)
    for _ in range(20):
        await asyncio.sleep(0)  # a press that was kept would start it within a few turns of the loop
    assert (stand.starts, stand.part.up) == (2, False)  # one press starts it once


async def test_it_comes_back_by_itself(stand: Stand) -> None:
    await stand.part.on()
    await stand.part.killed()
    await stand.until_started(2)
    await stand.until_up()


async def test_off_while_it_comes_back_ends_it(stand: Stand) -> None:
    await stand.part.on()
    stand.gate.clear()
    await stand.part.killed()
    await stand.until_started(2)
    off = asyncio.create_task(stand.part.off())
    await asyncio.sleep(0)
    stand.gate.set()
    async with asyncio.timeout(WITHIN_S):
        await off
    assert not stand.part.up
    assert not any("is back" in note for note in stand.notes)


async def test_off_while_it_starts_ends_it(stand: Stand) -> None:
    stand.gate.clear()
    on = asyncio.create_task(stand.part.on())
    await stand.until_started(1)
    await stand.part.off()
    stand.gate.set()
    await on
    await stand.part.off()
    assert (stand.starts, stand.part.up) == (1, False)
