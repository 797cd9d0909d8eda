"""A pytest plugin (`-p tests.integration.storecalls`): which methods of the store a run called.

Decides: every public coroutine of the store's classes counts that this very process called at least once (so not in a
worker of xdist, nor in a process that a test starts). The names stand in the file that ATLAS_STORE_CALLS names once the
run is over. The failure it can cause: a method that only such a process calls is missing.
"""

import functools
import inspect
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from storage.desk_store import PgDesk
from storage.inbox import PgInbox
from storage.maintenance import PgMaintenance
from storage.outbox import PgOutbox
from storage.worker_store import PgWorkerStore

_CLASSES: tuple[type, ...] = (PgWorkerStore, PgDesk, PgOutbox, PgInbox, PgMaintenance)
_called: set[str] = set()


def methods() -> dict[str, tuple[type, Callable[..., Any]]]:
    """Return every public coroutine of the store, by class and name."""
    return {
        f"{cls.__name__}.{name}": (cls, function)
        for cls in _CLASSES
        for name, function in inspect.getmembers(cls, inspect.iscoroutinefunction)
        if not name.startswith("_")
    }


def pytest_configure() -> None:
    """Note each call from now on."""
    for title, (cls, function) in methods().items():
        setattr(cls, function.__name__, _noted(title, function))


def _noted(title: str, function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    async def call(*args: Any, **named: Any) -> Any:
        _called.add(title)
        return await function(*args, **named)

    return call


def pytest_sessionfinish() -> None:
    """Write the names down."""
    Path(os.environ["ATLAS_STORE_CALLS"]).write_text("\n".join(sorted(_called)), encoding="utf-8")
