"""The heartbeat: this process's sign of life, one row, every second.

Decides: whether this process has had the database for long enough to judge others by it. Does not: reap. Beats go on
during long model and tool calls: slow is not dead. The failure it can cause: a heartbeat that stops while the process
works lets its runs be reaped; the fence then keeps it from writing, but work is done twice. So the beat is at most a
third of the lease, which is asserted at start; and a process that may be taken for dead claims nothing.
"""

import asyncio
import logging
import math
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

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
# The clock that goes on while the host sleeps (a closed laptop): Linux's own one, elsewhere (macOS) the one that
# POSIX calls monotonic. Source: clock_gettime(2) of Linux, clock_gettime(3) of macOS.
_GOES_ON = getattr(time, "CLOCK_BOOTTIME", getattr(time, "CLOCK_MONOTONIC", None))


def asleep_s() -> float:
    """Return for how long this host was suspended, from some moment on, in tenths; time.monotonic() leaves that out."""
    if _GOES_ON is None:
        return 0.0
    return round(time.clock_gettime(_GOES_ON) - time.monotonic(), 1)


class Pulse(Protocol):
    """Where beats go."""

    async def beat(self) -> None:
        """Store one beat, registering the process when its row is gone, and hold its session lock.

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
        self._beats: deque[float] = deque(maxlen=BEATS_IN_A_LEASE)

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
        often = len(self._beats) == BEATS_IN_A_LEASE and self._now() - self._beats[0] < self.lease_s
        return self.may_judge or (self.believed and often)

    async def beat(self) -> None:
        """Beat once. Raises: StoreUnavailable."""
        sent_at = self._now()  # it counts from when it was sent: this process may be stopped meanwhile
        if self._beats and not self.believed:
            self._missed()  # it stood still, perhaps with its whole host: others had no chance to beat, either
        try:
            await self.pulse.beat()
        except StoreUnavailable:
            self._missed()
            raise
        self.streak += 1
        self._beat_at = sent_at
        self._beats.append(sent_at)

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
