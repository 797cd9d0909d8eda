"""Time that all processes of a case share and that nobody waits for: a sleep moves it on.

Decides: what "now" is for the stores, the tools' clock and the target. Does not: move by itself other than with real
time. It lies in shared memory, so a fork made later, and one that was stopped meanwhile, see the same moment. The
failure it can cause: sleeping tasks side by side move it further than one of them would; nothing may rely on it being
exact.
"""

import asyncio
import mmap
import struct
import time
from datetime import UTC, datetime, timedelta


class SharedClock:
    """core.ports.Clock, and the stores' *now*. Make it before forking."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, 8)

    @property
    def ahead_s(self) -> float:
        """Return how many seconds were skipped so far."""
        return float(struct.unpack("d", self._memory[:8])[0])

    def reset(self) -> None:
        """Begin again with the present: another case."""
        self._memory[:8] = bytes(8)

    def skip(self, seconds: float) -> None:
        """Move on."""
        self._memory[:8] = struct.pack("d", self.ahead_s + max(0.0, seconds))

    def now(self) -> datetime:
        """Return the moment, as the stores are to see it."""
        return datetime.now(UTC) + timedelta(seconds=self.ahead_s)

    def monotonic(self) -> float:
        """Return seconds that only go forward."""
        return time.monotonic() + self.ahead_s

    async def sleep(self, seconds: float) -> None:
        """Skip *seconds*; others get their turn."""
        self.skip(seconds)
        await asyncio.sleep(0)
