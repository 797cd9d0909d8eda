"""Ends the demo's programs when the demo is gone, however it went.

Run as a script of its own, standard library only. Its standard input is a pipe from the demo: a line ``+123`` names a
process group that the demo started, ``-123`` one that has ended. When the pipe closes, whatever is still named gets
SIGTERM and, seconds later, SIGKILL. A demo that stops in order leaves nothing named.

Decides nothing else. The failure it can cause: killed itself by SIGKILL together with the demo, it saves nobody.
"""

import os
import signal
import sys
import time
from collections.abc import Iterable
from contextlib import suppress

GRACE_S = 3.0
_SHIELDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def main() -> int:
    """Read the names until the pipe closes, then end what is left."""
    for number in _SHIELDED:
        signal.signal(number, signal.SIG_IGN)
    held: set[int] = set()
    for line in sys.stdin:
        group = int(line[1:])
        if line.startswith("+"):
            held.add(group)
        else:
            held.discard(group)
    _end(held)
    return 0


def _end(held: set[int]) -> None:
    _tell(held, signal.SIGTERM)
    deadline = time.monotonic() + GRACE_S
    while any(map(_alive, held)) and time.monotonic() < deadline:
        time.sleep(0.05)
    _tell(held, signal.SIGKILL)


def _tell(groups: Iterable[int], number: signal.Signals) -> None:
    for group in groups:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(group, number)


def _alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except (ProcessLookupError, PermissionError):
        return False
    return True


if __name__ == "__main__":
    sys.exit(main())
