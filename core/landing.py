"""A write that somebody waits for, seen through although the waiter is cancelled meanwhile.

Decides: when a cancellation (a shutdown, a time limit) reaches whoever waits for a commit: once it is known what became
of it, or after some seconds. Does not: write. The failure it can cause: a commit cut short whose outcome nobody knows;
a task of its own for every commit would prevent that too, at the price of a tenth of the whole step.
"""

import asyncio
from typing import Any, TypeVar

T = TypeVar("T")

# A cancelled waiter waits this much longer to know what became of its write.
CUT_AFTER_S = 3.0


class Landing(asyncio.Future[T]):
    """The outcome of one write, set by whoever writes it."""

    _cut: asyncio.TimerHandle | None = None

    def cancel(self, msg: Any = None) -> bool:
        """Give the wait up, not at once: the task that waits stays asleep, and hears of it when it wakes."""
        if self._cut is None and not self.done():
            self._cut = self.get_loop().call_later(CUT_AFTER_S, super().cancel)
        return False

    async def seen(self) -> T:
        """Wait for the outcome; a caller that was cancelled meanwhile gets it too, and is cancelled at its next wait.

        Raises: what was set; CancelledError when nothing was known in time.
        """
        try:
            return await self
        except asyncio.CancelledError:
            if self.cancelled() or not self.done():
                raise
            task = asyncio.current_task()
            assert task is not None
            task.uncancel()
            task.cancel()  # the same cancellation, once more
            return self.result()
        finally:
            if self._cut is not None:
                self._cut.cancel()
