"""For how long this host was suspended: a closed laptop, a machine that was put to sleep.

Decides: which clock goes on meanwhile. ``time.monotonic()`` leaves a suspension out, while the database's clock,
Slack's and a target system's go on; so whatever compares an age with theirs (a lease, an intention, an approval) adds
this. Does not: belong to what a run may use up; it was not at work. The failure it can cause: left out, a process that
wakes takes what it once held for its own, and acts on it late.
"""

import time

# Linux's own clock, elsewhere (macOS) the one that POSIX calls monotonic. Source: clock_gettime(2) of Linux,
# clock_gettime(3) of macOS.
_GOES_ON = getattr(time, "CLOCK_BOOTTIME", getattr(time, "CLOCK_MONOTONIC", None))


def asleep_s() -> float:
    """Return seconds of suspension since some moment, in tenths: while the host is awake it adds nothing to two times
    that are compared."""
    if _GOES_ON is None:
        return 0.0
    return round(time.clock_gettime(_GOES_ON) - time.monotonic(), 1)
