"""Stop random processes of one run for a moment, over and over, and continue each.

A program of its own, ``stopper.py RUN SEED MEAN_S``, whose standard input is a pipe from whoever started it: when that
is closed, by its owner's end or death, it continues all that it holds and ends.

It decides which process stands still, and for how long. Of a run are the processes that carry the run's directory in
their environment, and their descendants, also after their parent has ended; no other is ever touched. What a test has
stopped itself (``late.py`` writes that down) stays stopped. The failure it can cause: killed by SIGKILL, it leaves
stopped what it held; ``run.py`` notices its death and continues them.
"""

import os
import random
import select
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

EVERY_S = 0.1
LONGEST = 5  # times the mean
STANDS = 0.1  # of its time each process stands still
STOPPED = "stopped"


@dataclass(frozen=True)
class Seen:
    """A process as /proc showed it. *start* and *pid* together are nobody else's, ever."""

    pid: int
    parent: int
    state: str
    start: int


def look(pid: int) -> Seen | None:
    """Return what /proc says of a process, or None when it is gone. Source: proc(5), /proc/pid/stat."""
    try:
        # Its name, in brackets, may itself have blanks and brackets.
        fields = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()
    except OSError:
        return None
    return Seen(pid, int(fields[1]), fields[0], int(fields[19]))


def tell(seen: Seen, number: signal.Signals) -> None:
    """Send a signal to this very process, and to none that has its number after it."""
    with suppress(ProcessLookupError, PermissionError):
        handle = os.pidfd_open(seen.pid)
        try:
            now = look(seen.pid)
            if now is not None and now.start == seen.start:
                signal.pidfd_send_signal(handle, number)
        finally:
            os.close(handle)


class Family:
    """The processes of a run. *run*: its directory, which stands in the environment of the first of them."""

    def __init__(self, run: Path) -> None:
        self._run = run
        self._ours: dict[tuple[int, int], bool] = {}

    def members(self) -> list[Seen]:
        """Return those that are alive now."""
        numbers = [int(entry.name) for entry in os.scandir("/proc") if entry.name.isdigit()]
        everyone = {pid: seen for pid in numbers if (seen := look(pid))}

        def ours(seen: Seen) -> bool:
            key = (seen.pid, seen.start)
            if key not in self._ours:
                parent = everyone.get(seen.parent)
                self._ours[key] = self._marked(seen.pid) or (parent is not None and ours(parent))
            return self._ours[key]

        return [seen for seen in everyone.values() if ours(seen) and seen.state not in "ZX"]

    def kept_stopped(self, pid: int) -> bool:
        """Tell whether a test wants this process to stand still."""
        return (self._run / STOPPED / str(pid)).exists()

    def go_on(self, seen: Seen) -> None:
        """Continue a process, unless a test has stopped it meanwhile."""
        while True:
            kept = self.kept_stopped(seen.pid)
            tell(seen, signal.SIGSTOP if kept else signal.SIGCONT)
            if kept == self.kept_stopped(seen.pid):
                return

    def _marked(self, pid: int) -> bool:
        try:
            return os.fsencode(self._run) in Path(f"/proc/{pid}/environ").read_bytes()
        except OSError:
            return False


def play(family: Family, chance: random.Random, mean_s: float, over: Callable[[float], bool]) -> int:
    """Stop and continue until *over*, which waits so many seconds at most; return how many stops there were."""
    held: dict[Seen, float] = {}
    stops = 0
    try:
        while not over(EVERY_S):
            now = time.monotonic()
            for seen in [seen for seen, due in held.items() if due <= now]:
                family.go_on(seen)
                del held[seen]
            holding = {seen.pid for seen in held}
            for seen in sorted(family.members(), key=lambda each: each.pid) if mean_s else ():
                meant = chance.random() < STANDS * EVERY_S / mean_s
                if meant and seen.state not in "Tt" and seen.pid not in holding and not family.kept_stopped(seen.pid):
                    # Held before it is stopped: whatever happens now, it is continued.
                    held[seen] = now + min(LONGEST * mean_s, chance.expovariate(1 / mean_s))
                    tell(seen, signal.SIGSTOP)
                    stops += 1
    finally:
        for seen in held:
            family.go_on(seen)
    return stops


def main(arguments: list[str]) -> int:
    """Play until standard input is closed."""
    run, seed, mean_s = arguments
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # nothing cuts short that all is continued

    def over(within_s: float) -> bool:
        return bool(select.select([sys.stdin], [], [], within_s)[0])

    stops = play(Family(Path(run)), random.Random(seed), float(mean_s), over)
    print(f"jitter: {stops} stops, all continued", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
