"""Who was told to leave: the tasks of runs that a shutdown has cancelled.

Decides: nothing; it remembers. A task's own count of cancellations cannot tell: what a task group of somebody else's
code leaves behind (Python 3.11) looks the same, and so does a cancellation that such code swallows. Does not: end
anything. The failure it can cause: a run that is taken to be told although it is not would give up on a slow commit.
"""

import asyncio
from typing import Any
from weakref import WeakSet

_told: "WeakSet[asyncio.Task[Any]]" = WeakSet()


def tell_to_leave(task: "asyncio.Task[Any]") -> None:
    """Cancel *task*, once and for all: whatever becomes of the cancellation, it is known to have been told."""
    _told.add(task)
    task.cancel()


def heard() -> None:
    """Note that the current task was cancelled by whoever may do so."""
    task = asyncio.current_task()
    assert task is not None
    _told.add(task)


def told_to_leave() -> bool:
    """Say whether the current task was told to leave."""
    return asyncio.current_task() in _told
