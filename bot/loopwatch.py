"""The watch over the event loop: code that blocks it (a tool that sleeps or computes without awaiting) gets a name.

Decides: when the loop counts as blocked, and who is named. Does not: end the block, which no thread can. While it
lasts nothing is acked and nobody's run moves, and nothing but this thread could say so. The failure it can cause:
blaming code for a pause of the whole host; so only what this thread itself saw in two looks in a row is a block.
"""

import asyncio
import logging
import sys
import threading
import time
from types import FrameType

log = logging.getLogger("atlas.loop")

TURN_EVERY_S = 0.5
BLOCKED_S = 1.5


class LoopWatch:
    """Watches the event loop that starts it, from a thread of its own. *blocked_ms*: how long it was blocked so far."""

    def __init__(self) -> None:
        self.blocked_ms = 0
        self._turned = time.monotonic()
        self._stopped = threading.Event()
        self._loop_thread = threading.get_ident()
        self._loop: asyncio.AbstractEventLoop | None = None

    def start(self) -> None:
        """Watch the running loop."""
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        self._turn()
        threading.Thread(target=self._watch, name="loop-watch", daemon=True).start()

    def stop(self) -> None:
        """Watch no longer."""
        self._stopped.set()

    def _turn(self) -> None:
        self._turned = time.monotonic()
        if self._loop is not None and not self._stopped.is_set():
            self._loop.call_later(TURN_EVERY_S, self._turn)

    def _watch(self) -> None:
        late, named = 0.0, False
        while not self._stopped.wait(TURN_EVERY_S):
            before, late = late, time.monotonic() - self._turned
            if late < BLOCKED_S:
                if named:
                    self.blocked_ms += round(before * 1000)
                    log.error("the event loop turns again after about %.1f s", before)
                named = False
            elif before >= BLOCKED_S - TURN_EVERY_S and not named:
                named = True
                where = _where(sys._current_frames().get(self._loop_thread))
                log.error(
                    "the event loop is blocked (no ack, no step of any run) by code that does not await: %s", where
                )


def _where(frame: FrameType | None) -> str:
    """Return the innermost calls of a thread, innermost first."""
    names: list[str] = []
    while frame is not None and len(names) < 5:
        code = frame.f_code
        names.append(f"{code.co_qualname} ({code.co_filename}:{frame.f_lineno})")
        frame = frame.f_back
    return " < ".join(names)
