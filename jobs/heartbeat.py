"""The heartbeat: this process's sign of life, one row, every second.

Decides: whether this process has had the database for long enough to judge others by it. Does not: reap. Beats go on
during long model and tool calls: slow is not dead. The failure it can cause: a heartbeat that stops while the process
works lets its runs be reaped; the fence then keeps it from writing, but work is done twice. So the beat is at most a
third of the lease, which is asserted at start; and a process that may be taken for dead claims nothing.
"""

import asyncio
import logging
import math
from collections import deque
from collections.abc import Callable
from datetime import datetime
from typing import Protocol

from core.asleep import asleep_s
from core.errors import Misconfigured, StoreUnavailable
from core.ports import Clock

log = logging.getLogger("atlas.heartbeat")

BEAT_EVERY_S = 1.0
# An outage of the database must reap nobody: only after this many beats in a row may this process judge leases.
BEATS_BEFORE_JUDGING = 3
# Everybody was away then, and a process on a busy machine needs longer than three beats of another to be back.
BEATS_AFTER_AN_OUTAGE = 10
# Where a database comes and goes nobody may have it for so long: with this many beats within a lease, in a row or not,
# whoever was silent for all of it is gone.
BEATS_IN_A_LEASE = 20
# Others may take a process whose session lock is free for dead this long after its last beat (storage.maintenance).
BELIEVED_ALIVE_S = 4.0
# A beat takes up to 3 s to arrive (storage.pulse); the time between two differs by more from one clock to the other
# only when one of them was set.
STEP_S = 4.0


class Pulse(Protocol):
    """Where beats go."""

    async def beat(self) -> datetime:
        """Store one beat, registering the process when its row is gone, and hold its session lock. Return when it was,
        by the database's clock, by which everybody's beats are judged.

        Raises: StoreUnavailable."""
        ...

    async def end(self) -> None:
        """Remove the row and the lock: a clean leave."""
        ...


class Heartbeat:
    """Beats until stopped. *streak*: beats in a row since the last failure. *asleep*: as ``asleep_s``; a test's own."""

    def __init__(self, pulse: Pulse, clock: Clock, lease_s: float, asleep: Callable[[], float] = asleep_s) -> None:
        if lease_s < 3 * BEAT_EVERY_S:
            raise Misconfigured([f"ATLAS_LEASE_S={lease_s:g} is below {3 * BEAT_EVERY_S:g} s, three beats: raise it"])
        self.pulse = pulse
        self.clock = clock
        self.asleep = asleep
        self.lease_s = lease_s
        self.streak = 0
        self._wanted = BEATS_BEFORE_JUDGING
        self._beat_at = -math.inf
        # When each was sent, by this process's clock, and when it was, by the database's.
        self._beats: deque[tuple[float, datetime]] = deque(maxlen=BEATS_IN_A_LEASE)

    def _now(self) -> float:
        """Return seconds that pass while the host is suspended, too: everybody's last beat is as old after it."""
        return self.clock.monotonic() + self.asleep()

    @property
    def believed(self) -> bool:
        """Say whether nobody can have taken this process for dead: what it claims now is not taken from it at once."""
        return self._now() - self._beat_at < BELIEVED_ALIVE_S

    @property
    def may_judge(self) -> bool:
        """Say whether this process has had the database for three beats; after an outage, or a pause, for ten."""
        return self.believed and self.streak >= self._wanted

    @property
    def may_judge_leases(self) -> bool:
        """Say whether a lapsed lease may be believed: also of a database that comes and goes."""
        often = len(self._beats) == BEATS_IN_A_LEASE and self._now() - self._beats[0][0] < self.lease_s
        return self.may_judge or (self.believed and often)

    @property
    def since(self) -> datetime:
        """Return since when this process may judge, by the database's clock: nobody who has beaten since is dead.

        Else a process (or its whole host) that is stopped between looking at ``may_judge`` and judging, or a database
        whose clock steps forward, would find everybody's last beat old, its own among them.
        """
        return self._beats[-self._wanted if self.may_judge else 0][1]

    async def beat(self) -> None:
        """Beat once. Raises: StoreUnavailable."""
        sent_at = self._now()  # it counts from when it was sent: this process may be stopped meanwhile
        if self._beats and not self.believed:
            self._missed()  # it stood still, perhaps with its whole host: others had no chance to beat, either
        try:
            beat_at = await self.pulse.beat()
        except StoreUnavailable:
            self._missed()
            raise
        if self._beats and abs((beat_at - self._beats[-1][1]).total_seconds() - (sent_at - self._beat_at)) > STEP_S:
            self._missed()  # the database's clock was set: others need their time to beat by it
        self.streak += 1
        self._beat_at = sent_at
        self._beats.append((sent_at, beat_at))

    def _missed(self) -> None:
        self.streak = 0
        self._wanted = BEATS_AFTER_AN_OUTAGE

    async def run(self) -> None:
        """Beat every second until cancelled."""
        while True:
            try:
                await self.beat()
            except StoreUnavailable as error:
                log.warning("no beat: %s", error)
            await self.clock.sleep(BEAT_EVERY_S)

    async def stop(self) -> None:
        """Leave cleanly."""
        try:
            async with asyncio.timeout(2.0):
                await self.pulse.end()
        except (StoreUnavailable, TimeoutError):
            log.info("left without saying so; the lease will lapse")
