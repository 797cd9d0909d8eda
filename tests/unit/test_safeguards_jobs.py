"""Safeguards of the jobs: an outage of the database must reap nobody."""

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import pytest

from core.asleep import asleep_s
from core.errors import Misconfigured, StoreUnavailable
from jobs.heartbeat import BEATS_AFTER_AN_OUTAGE, BELIEVED_ALIVE_S, Heartbeat
from jobs.reap_orphans import BATCH, ReapOrphans
from jobs.scheduler import Schedule
from storage.maintenance import QUICK_AFTER_S


class Clock:
    """No time passes here by itself."""

    seconds = 0.0

    def monotonic(self) -> float:
        """Return seconds."""
        return self.seconds

    async def sleep(self, seconds: float) -> None:
        """Let others go on."""
        await asyncio.sleep(0)


MORNING = datetime(2026, 3, 2, 9, tzinfo=UTC)


class Pulse:
    """Where beats go; *away*: the database is; *ahead_s*: how far its clock was set ahead."""

    def __init__(self, clock: "Clock | None" = None) -> None:
        self.clock = clock or Clock()
        self.away = False
        self.ahead_s = 0.0

    async def beat(self) -> datetime:
        """Store one."""
        if self.away:
            raise StoreUnavailable("away")
        return MORNING + timedelta(seconds=self.clock.seconds + self.ahead_s)

    async def end(self) -> None:
        """Leave."""


class Orphans:
    """So many orphans wait."""

    def __init__(self, waiting: int) -> None:
        self.waiting = waiting
        self.asked = 0
        self.since: list[datetime] = []

    async def reap(self, *, lease_s: float, quick: bool, since: datetime, limit: int) -> Sequence[str]:
        """Take some."""
        self.asked += 1
        self.since.append(since)
        taken = min(limit, self.waiting)
        self.waiting -= taken
        return [f"run{self.asked}.{number}" for number in range(taken)]


async def test_leases_are_judged_only_after_three_beats_in_a_row() -> None:
    """Whoever just got the database back sees old beats everywhere: those of processes that could not beat either, and
    are back a little later than this one."""
    pulse, orphans = Pulse(), Orphans(5)
    heartbeat = Heartbeat(pulse, Clock(), lease_s=90)
    reap = ReapOrphans(orphans, heartbeat, lease_s=90)
    for _ in range(2):
        await heartbeat.beat()
        assert (await reap.run_once()).reaped == (await reap.run_once(quick=True)).reaped == ()
    pulse.away = True
    with pytest.raises(StoreUnavailable):
        await heartbeat.beat()
    pulse.away = False
    for _ in range(BEATS_AFTER_AN_OUTAGE - 1):
        await heartbeat.beat()
        assert (await reap.run_once()).reaped == (await reap.run_once(quick=True)).reaped == ()
    assert orphans.asked == 0
    await heartbeat.beat()
    assert len((await reap.run_once()).reaped) == 5


async def test_a_database_that_comes_and_goes_leaves_no_dead_process_its_runs() -> None:
    """It fails every tenth beat, so that nobody has had it for ten in a row: whoever was silent for a whole lease of
    such beats is dead. After an outage for most of the lease nobody is, the others had no chance to beat."""
    clock, orphans = Clock(), Orphans(1)
    pulse = Pulse(clock)
    heartbeat = Heartbeat(pulse, clock, lease_s=90)
    reap = ReapOrphans(orphans, heartbeat, lease_s=90)

    async def beats(number: int) -> None:
        for _ in range(number):
            clock.seconds += 1
            if pulse.away:
                with pytest.raises(StoreUnavailable):
                    await heartbeat.beat()
            else:
                await heartbeat.beat()

    async def flap() -> None:
        pulse.away = True
        await beats(1)
        pulse.away = False
        await beats(9)

    await flap()
    assert (await reap.run_once()).reaped == ()
    for _ in range(2):
        await flap()
    assert (await reap.run_once(quick=True)).reaped == ()
    assert (await reap.run_once()).reaped == ("run1.0",)
    pulse.away = True
    await beats(75)
    pulse.away = False
    await beats(9)
    assert ((await reap.run_once()).reaped, orphans.asked) == ((), 1)


@pytest.mark.parametrize("suspended", [False, True])
async def test_a_host_that_stood_still_judges_nobody_at_once(suspended: bool) -> None:
    """A machine that was paused with all that runs on it: everybody's last beat is old, and a job that is overdue may
    come before the first beat. *suspended*: asleep, so that its monotonic clock stood still as well."""
    clock, orphans, asleep = Clock(), Orphans(1), 0.0
    pulse = Pulse(clock)
    heartbeat = Heartbeat(pulse, clock, lease_s=90, asleep=lambda: asleep)
    reap = ReapOrphans(orphans, heartbeat, lease_s=90)
    for _ in range(30):
        clock.seconds += 1
        await heartbeat.beat()
    if suspended:
        asleep = pulse.ahead_s = 100.0
    else:
        clock.seconds += 100
    for _ in range(BEATS_AFTER_AN_OUTAGE):
        assert (await reap.run_once()).reaped == (await reap.run_once(quick=True)).reaped == ()
        clock.seconds += 1
        await heartbeat.beat()
    assert (await reap.run_once()).reaped == ("run1.0",)


async def test_nobody_is_dead_who_has_beaten_since_this_process_may_judge() -> None:
    """Whatever lies between looking whether it may and the judgement: a pause, or a step of the database's clock, makes
    all beats old at once, its own among them."""
    clock, orphans = Clock(), Orphans(1)
    heartbeat = Heartbeat(Pulse(clock), clock, lease_s=90)
    for _ in range(30):
        clock.seconds += 1
        await heartbeat.beat()
    await ReapOrphans(orphans, heartbeat, lease_s=90).run_once()
    assert orphans.since == [MORNING + timedelta(seconds=28)]  # the third last of 30


@pytest.mark.parametrize("step_s", [100.0, -100.0])
async def test_a_database_clock_that_was_set_lets_everybody_beat_by_it_first(step_s: float) -> None:
    clock, orphans = Clock(), Orphans(1)
    pulse = Pulse(clock)
    heartbeat = Heartbeat(pulse, clock, lease_s=90)
    reap = ReapOrphans(orphans, heartbeat, lease_s=90)

    async def second() -> None:
        clock.seconds += 1
        await heartbeat.beat()

    for _ in range(5):
        await second()
    pulse.ahead_s = step_s
    await second()
    for _ in range(BEATS_AFTER_AN_OUTAGE - 1):
        assert (await reap.run_once()).reaped == (await reap.run_once(quick=True)).reaped == ()
        await second()
    assert (await reap.run_once()).reaped == ("run1.0",)
    assert orphans.since == [MORNING + timedelta(seconds=6 + step_s)]


def test_for_how_long_this_host_was_suspended_stands_still_while_it_is_awake() -> None:
    """In tenths, so that it adds nothing to two times that are compared."""
    before = asleep_s()
    assert before == round(before, 1)
    assert asleep_s() == before


async def test_a_process_whose_beats_fail_is_soon_not_believed_alive() -> None:
    """Every claim of a process that is taken for dead is taken back as a crash of its run."""
    clock = Clock()
    pulse = Pulse(clock)
    heartbeat = Heartbeat(pulse, clock, lease_s=90)
    believed = [heartbeat.believed]
    await heartbeat.beat()
    believed.append(heartbeat.believed)
    pulse.away = True
    clock.seconds += BELIEVED_ALIVE_S
    with pytest.raises(StoreUnavailable):
        await heartbeat.beat()
    believed.append(heartbeat.believed)
    pulse.away = False
    await heartbeat.beat()
    believed.append(heartbeat.believed)
    assert believed == [False, True, False, True]
    assert BELIEVED_ALIVE_S <= QUICK_AFTER_S


async def test_every_orphan_is_handed_back_in_one_round() -> None:
    """The next round is a minute away."""
    orphans, heartbeat = Orphans(2 * BATCH + 3), Heartbeat(Pulse(), Clock(), lease_s=90)
    for _ in range(3):
        await heartbeat.beat()
    assert len((await ReapOrphans(orphans, heartbeat, 90).run_once()).reaped) == 2 * BATCH + 3


async def test_a_clock_that_is_set_back_stops_no_job() -> None:
    """APScheduler goes by the wall clock: an hour back, and nothing would be reaped or expired for an hour."""
    schedule, ran = Schedule(), asyncio.Event()

    async def job() -> None:
        ran.set()

    schedule.every(0.05, "sweep", job)
    schedule.start()
    try:
        async with asyncio.timeout(60):
            await ran.wait()
            # What it looks like to the schedule: its next time is an hour off.
            schedule._scheduler.get_job("sweep").modify(next_run_time=datetime.now(UTC) + timedelta(hours=1))
            ran.clear()
            await ran.wait()
    finally:
        await schedule.stop()


def test_a_lease_shorter_than_three_beats_is_refused() -> None:
    """It would take live processes for dead.

    janbjorge/pgqueuer#430: beats came less often than the window in which jobs were taken again.
    """
    with pytest.raises(Misconfigured, match="raise it"):
        Heartbeat(Pulse(), Clock(), lease_s=2.9)
