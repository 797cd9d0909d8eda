"""A claim whose answer was lost is found by the worker that holds it, on the real store."""

import asyncio
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import asyncpg
import pytest

from core.loop import Loop
from core.ports import Fence
from core.worker import Worker
from tests.integration.storeworld import World, world_on


@pytest.fixture
def world(pool: "asyncpg.Pool[asyncpg.Record]") -> World:
    return world_on(pool)


@dataclass
class SteppedClock:
    """A clock whose seconds pass as fast as somebody sleeps or looks."""

    seconds: float = 0.0

    def monotonic(self) -> float:
        self.seconds += 1.0
        return self.seconds

    async def sleep(self, seconds: float) -> None:
        self.seconds += seconds
        await asyncio.sleep(0)


@dataclass
class Worked:
    """Stands in for the loop: notes that the run was worked on, then gives it back."""

    fence: Fence
    world: World
    log: list[str] = field(default_factory=list)
    calls: Any = field(default_factory=lambda: SimpleNamespace(in_flight=None))

    async def run(self) -> None:
        self.log.append(self.fence.run_id)
        await self.world.pool.execute("update runs set state = 'halted', halt_reason = 'stopped_by_user', "
                                      "claim_token = null, claimed_by = null, ended_at = now() where id = $1",
                                      self.fence.run_id)  # fmt: skip

    def drain(self) -> None:
        return


async def test_a_claim_whose_answer_was_lost_is_taken_up_by_its_own_worker(world: World) -> None:
    """A click's commit claimed the run, but its answer never arrived: the process beats, so it has to look itself."""
    fence = await world.started()  # claimed in the database; the worker below was never told
    log: list[str] = []

    def make_loop(claimed: Fence) -> Loop:
        loop: Any = Worked(claimed, world, log)
        return loop  # type: ignore[no-any-return]

    worker = Worker(world.worker_id, world.worker, make_loop, SteppedClock(), poll_s=0.01)
    running = asyncio.create_task(worker.run())
    async with asyncio.timeout(60):
        while not log:
            await asyncio.sleep(0.01)
        await worker.drain()
        await running
    assert log == [fence.run_id]
