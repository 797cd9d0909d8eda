"""The log of a process: an outage says the same a few times a second, and is to fill no disk.

Decides: that the very same warning is written again only after a while, with how often it came meanwhile. Does not:
touch errors, or any line that says something new. The failure it can cause: none that hides a first sign.
"""

import logging
import time

AGAIN_AFTER_S = 30.0
_MOST_KEPT = 500


class Repeats(logging.Filter):
    """Lets the same warning of the same part through once in AGAIN_AFTER_S seconds."""

    def __init__(self) -> None:
        super().__init__()
        self._seen: dict[tuple[str, str], tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Say whether the line is written; add how often it was not."""
        if record.levelno != logging.WARNING:
            return True
        words = record.getMessage()
        key, now = (record.name, words), time.monotonic()
        written, skipped = self._seen.get(key, (-AGAIN_AFTER_S, 0))
        if now - written < AGAIN_AFTER_S:
            self._seen[key] = (written, skipped + 1)
            return False
        if len(self._seen) >= _MOST_KEPT:
            self._seen.clear()
        self._seen[key] = (now, 0)
        if skipped:
            record.msg, record.args = f"{words} (and {skipped} times since)", ()
        return True
