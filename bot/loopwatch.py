"""The watch over the event loop: code that blocks it (a tool that sleeps or computes without awaiting) gets a name.

Decides: when the loop counts as blocked, who is named, and when it is given up. Does not: end the block, which no
thread can. While it lasts nothing is acked and nobody's run moves, and nothing but this thread could say so. A block
without an end would stop one process after the other that takes the run up; so after some minutes the process ends at
once, as by a kill, and is started again. The failure it can cause: blaming code for a pause of the whole host, or of
this process; so only what this thread itself saw counts: two looks in a row are a block, minutes of looks its end.
"""

import asyncio
import logging
import os
import sys
import threading
import time
from types import FrameType

log = logging.getLogger("atlas.loop")

TURN_EVERY_S = 0.5
BLOCKED_S = 1.5
# Others have taken its runs long since (a lease is 90 s); by default no run may take longer, either.
GIVE_UP_AFTER_S = 300.0
# Source: sysexits.h, "temporary failure".
EX_TEMPFAIL = 75


class LoopWatch:
    """Watches the event loop that starts it, from a thread of its own. *blocked_ms*: how long it was blocked so far.

    *give_up_after_s*: a loop blocked for so long is given up, and the process with it.
    """

    def __init__(self, give_up_after_s: float = GIVE_UP_AFTER_S) -> None:
        self.blocked_ms = 0
        self.give_up_after_s = give_up_after_s
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
        late, named, looks = 0.0, False, 0
        while not self._stopped.wait(TURN_EVERY_S):
            before, late = late, time.monotonic() - self._turned
            looks = looks + 1 if late >= BLOCKED_S else 0
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
            elif looks * TURN_EVERY_S >= self.give_up_after_s:
                where = _where(sys._current_frames().get(self._loop_thread))
                log.critical("the event loop is blocked for good, this process ends: %s", where)
                os._exit(EX_TEMPFAIL)


def _where(frame: FrameType | None) -> str:
    """Return the innermost calls of a thread, innermost first."""
    names: list[str] = []
    while frame is not None and len(names) < 5:
        code = frame.f_code
        names.append(f"{code.co_qualname} ({code.co_filename}:{frame.f_lineno})")
        frame = frame.f_back
    return " < ".join(names)
