"""The jobs that sweep, on the real store: all that is due in one round, in batches that stay small."""

from datetime import datetime
from itertools import pairwise

import asyncpg
import pytest

from jobs import expire_suspensions, retention
from jobs.heartbeat import BEATS_AFTER_AN_OUTAGE, Heartbeat
from jobs.reap_orphans import ReapOrphans
from tests.benchmarks.crowd import copies
from tests.integration.storeworld import World, world_on
from tests.unit.coreworld import FakeClock

DAY_S = 86_400
BATCH = 5


@pytest.fixture
def world(pool: "asyncpg.Pool[asyncpg.Record]") -> World:
    return world_on(pool)


class Pauses:
    """The pauses of a job. *left*: how many runs there were in each."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.left: list[int] = []

    async def sleep(self, seconds: float) -> None:
        """Look, instead of waiting."""
        assert seconds > 0
        self.left.append(await self.world.value("select count(*) from runs"))


async def test_retention_removes_all_that_is_old_with_a_pause_after_each_small_batch(
    world: World, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between two batches nothing is locked, so that steps of live runs get through."""
    monkeypatch.setattr(retention, "BATCH", BATCH)
    waits, _ = await world.suspended()
    await copies(database, waits, 13, "old", "state = 'answered', ended_at = now()")
    world.pass_time(31 * DAY_S)
    pauses = Pauses(world)
    await retention.Retention(world.upkeep, pauses).run_once()
    counts = [14, *pauses.left, await world.value("select count(*) from runs")]
    assert counts[-1] == 1
    assert max(before - after for before, after in pairwise(counts)) == BATCH
    assert await world.value("select count(*) from messages where run_id <> $1", waits) == 0


async def test_all_that_is_due_expires_in_one_round(
    world: World, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many more they are than a batch: the next round is a while away."""
    monkeypatch.setattr(expire_suspensions, "BATCH", BATCH)
    run_id, _ = await world.suspended()
    await copies(database, run_id, 12, "due")
    assert await world.value("select count(*) from suspensions where status = 'open'") == 13
    world.pass_time(1801)
    assert await expire_suspensions.ExpireSuspensions(world.upkeep).run_once() == 13
    assert await world.value("select array_agg(distinct state) from runs") == ["halted"]
    assert await world.value("select count(*) from outbox where place like 'notice:%:expired'") == 13


class Beats:
    """Where beats go: the row of the world's one process."""

    def __init__(self, world: World) -> None:
        self.world = world

    async def beat(self) -> datetime:
        """Beat, registering the process first."""
        beat_at = await self.world.upkeep.beat(self.world.worker_id)
        if beat_at is None:
            await self.world.upkeep.register(self.world.worker_id, "here", 1, "worker", 7, holds_lock=False)
        return beat_at or self.world.now

    async def end(self) -> None:
        """Leave."""


async def test_a_host_that_slept_takes_no_run_from_itself(world: World) -> None:
    """A laptop that was closed: PostgreSQL's time went on, this process's monotonic clock did not, and the job that
    reaps is due before the next beat."""
    clock, asleep = FakeClock(), 0.0
    heartbeat = Heartbeat(Beats(world), clock, 90.0, asleep=lambda: asleep)
    reaper = ReapOrphans(world.upkeep, heartbeat, 90.0)

    async def second() -> None:
        await heartbeat.beat()
        clock.now += 1
        world.pass_time(1)

    for _ in range(20):
        await second()
    fence = await world.started()
    assert fence.claim_token in {held.claim_token for held in await world.worker.claims_of(world.worker_id)}
    asleep = 600.0
    world.pass_time(600)
    for _ in range(BEATS_AFTER_AN_OUTAGE + 1):
        assert (await reaper.run_once()).reaped == ()
        await second()
    assert await world.value("select crashes from runs where id = $1", fence.run_id) == 0
    assert await world.value("select claim_token::text from runs where id = $1", fence.run_id) == fence.claim_token
