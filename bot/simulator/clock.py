"""The workspace's clock, which tests may move forward.

Decides what "now" is for every deadline that Slack sets: ack windows, retries, trigger ids,
response URLs, rate tiers. It never moves back and never moves by itself faster than real time.
Failure it can cause: advancing while an envelope is on its way makes that envelope late.
"""

import asyncio
import time
from typing import Any


class Clock:
    """Real time plus an offset that only grows."""

    def __init__(self) -> None:
        self._offset = 0.0
        self._sleepers: set[asyncio.Future[None]] = set()

    def now(self) -> float:
        """Return the workspace's wall clock in seconds since the epoch."""
        return time.time() + self._offset

    def monotonic(self) -> float:
        """Return seconds on a clock that never goes back, moved by `advance` as well."""
        return time.monotonic() + self._offset

    def advance(self, seconds: float) -> None:
        """Move the clock forward by `seconds` (>= 0) and wake whoever is due."""
        if seconds < 0:
            raise ValueError("the clock moves forward only")
        self._offset += seconds
        for sleeper in list(self._sleepers):
            if not sleeper.done():
                sleeper.set_result(None)

    async def sleep(self, seconds: float) -> None:
        """Sleep until `seconds` have passed on this clock."""
        await self._until(self.monotonic() + seconds)

    async def _until(self, deadline: float) -> None:
        while (left := deadline - self.monotonic()) > 0:
            sleeper: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._sleepers.add(sleeper)
            try:
                await asyncio.wait([sleeper], timeout=left)
            finally:
                self._sleepers.discard(sleeper)

    async def within(self, future: "asyncio.Future[Any]", seconds: float) -> bool:
        """Return whether `future` is done before `seconds` have passed on this clock."""
        if future.done():
            return True
        # the time counts from here, not from when the timer gets its turn: whoever advances the clock may come between
        timer = asyncio.ensure_future(self._until(self.monotonic() + seconds))
        try:
            await asyncio.wait({future, timer}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            timer.cancel()
        return future.done()
