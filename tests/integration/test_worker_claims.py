"""A claim whose answer was lost is found by the worker that holds it, on the real store."""

import asyncio
import os
from contextlib import suppress
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import asyncpg
import pytest

from core.errors import StoreUnavailable
from core.loop import Loop
from core.ports import Fence
from core.worker import Worker
from storage import pulse as pulse_module
from storage.database import open_pool
from storage.maintenance import PgMaintenance
from storage.pulse import Pulse
from tests.conftest import POOLED, with_database
from tests.integration.storeworld import World, world_on

# A beat has 3 s, which a busy machine may need; only where its time is over on purpose is it short.
PATIENCE_S = 60.0


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


async def test_a_process_that_is_taken_for_dead_claims_nothing(world: World) -> None:
    """What it claimed would be taken back at once, as one more crash of a run that did nothing wrong: four such claims,
    and the run would have failed for good."""
    letter = await world.letter()
    assert await world.desk.start(letter, world.new_run(letter), None) is None
    log: list[str] = []
    believed = False

    def make_loop(claimed: Fence) -> Loop:
        loop: Any = Worked(claimed, world, log)
        return loop  # type: ignore[no-any-return]

    worker = Worker(world.worker_id, world.worker, make_loop, SteppedClock(), poll_s=0.01, believed=lambda: believed)
    assert worker.worker_id_if_room() is None
    assert await worker._claim() == 0
    assert await world.value("select count(*) from runs where claim_token is null and state = 'running'") == 1
    believed = True
    assert worker.worker_id_if_room() == world.worker_id
    assert await worker._claim() == 1
    async with asyncio.timeout(60):
        await worker.until_idle()
    assert len(log) == 1


async def test_a_session_that_could_not_say_whether_it_has_the_lock_gives_no_beat(
    world: World, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its beats would go on under a row that still speaks of the session before it: "holds the lock", which another
    session has; once that one ends, a live process would look killed after 4 s without a beat."""
    if POOLED:
        return  # no session is a process's own there, and no lock is taken
    monkeypatch.setattr(pulse_module, "BEAT_TIMEOUT_S", PATIENCE_S)
    key = 2**40 + os.getpid()
    pulse = Pulse(database, world.worker_id, key, "worker")
    held = "select holds_lock from workers where id = $1"
    await pulse.beat()
    assert await world.value(held, world.worker_id) is True
    assert pulse._connection is not None
    pulse._connection.terminate()
    async with world.pool.acquire() as other:
        async with asyncio.timeout(60):
            while not await other.fetchval("select pg_try_advisory_lock($1)", key):
                await asyncio.sleep(0.01)
        async with other.transaction():
            await other.execute("lock table workers in exclusive mode")
            monkeypatch.setattr(pulse_module, "BEAT_TIMEOUT_S", 0.5)
            with pytest.raises(StoreUnavailable):
                await pulse.beat()
        monkeypatch.setattr(pulse_module, "BEAT_TIMEOUT_S", PATIENCE_S)
        async with asyncio.timeout(60):
            while True:
                with suppress(StoreUnavailable):
                    await pulse.beat()
                    break
        assert await world.value(held, world.worker_id) is False
        await other.execute("select pg_advisory_unlock($1)", key)
    await pulse.end()


async def test_a_process_beats_by_its_pool_when_there_is_no_connection_left_for_its_pulse(
    world: World, postgres: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a failover, when everybody connects anew and somebody comes too late: its pool works on."""
    monkeypatch.setattr(pulse_module, "BEAT_TIMEOUT_S", PATIENCE_S)
    name = await world.value("select current_database()")
    role = f"bot_{name}"
    await world.pool.execute(
        f'create role "{role}" login password \'secret\' connection limit 1; grant all on workers to "{role}"'
    )
    parts = urlsplit(with_database(postgres, name))
    dsn = urlunsplit(parts._replace(netloc=f"{role}:secret@{parts.netloc.rpartition('@')[2]}"))
    pool = await open_pool(dsn, size=1)
    pulse = Pulse(dsn, world.worker_id, 7, "worker", pool=pool)
    seen = "select holds_lock, beat_at from workers where id = $1"
    try:
        await pulse.beat()
        (held, first) = (await world.pool.fetch(seen, world.worker_id))[0]
        assert held is False
        await pulse.beat()
        (_, second) = (await world.pool.fetch(seen, world.worker_id))[0]
        assert second > first
        pool.terminate()
        async with asyncio.timeout(60):
            while not await world.value("select holds_lock from workers where id = $1", world.worker_id):
                with suppress(StoreUnavailable):
                    await pulse.beat()
                await asyncio.sleep(0.01)
        await pulse.end()
    finally:
        pool.terminate()
        async with asyncio.timeout(60):
            while await world.value("select count(*) from pg_stat_activity where usename = $1", role):
                await asyncio.sleep(0.01)
        await world.pool.execute(f'drop owned by "{role}"; drop role "{role}"')


async def test_a_database_that_lets_nobody_in_for_a_while_is_away_and_no_defect(world: World, postgres: str) -> None:
    """As when its password is changed under a running server: what is connected goes on, what connects anew waits."""
    name = await world.value("select current_database()")
    role = f"bot_{name}"
    await world.pool.execute(f'create role "{role}" login password \'secret\'; grant all on workers to "{role}"')
    parts = urlsplit(with_database(postgres, name))
    dsn = urlunsplit(parts._replace(netloc=f"{role}:secret@{parts.netloc.rpartition('@')[2]}"))
    pool = await open_pool(dsn, size=1)
    upkeep = PgMaintenance(pool)
    try:
        assert await upkeep.beat(world.worker_id) is None
        await world.pool.execute(f'alter role "{role}" nologin')
        assert await upkeep.beat(world.worker_id) is None
        await pool.expire_connections()
        with pytest.raises(StoreUnavailable):
            await upkeep.beat(world.worker_id)
        await world.pool.execute(f'alter role "{role}" login')
        assert await upkeep.beat(world.worker_id) is None
    finally:
        pool.terminate()
