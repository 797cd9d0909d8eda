"""Waiting for a condition with a deadline: the only way in which these tests wait."""

import asyncio
import inspect
import os
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, overload

T = TypeVar("T")
POLL_S = 0.03
# Generous, since it is only a deadline: a busy machine is slow, and only a failing test waits this long.
PATIENCE_S = float(os.environ.get("ATLAS_TESTS_PATIENCE_S", "150"))


@overload
async def wait_until(look: Callable[[], Awaitable[T | None]], what: str, within: float = PATIENCE_S) -> T: ...
@overload
async def wait_until(look: Callable[[], T | None], what: str, within: float = PATIENCE_S) -> T: ...
async def wait_until(look: Callable[[], Any], what: str, within: float = PATIENCE_S) -> Any:
    """Return the first truthy thing that *look* sees. Fails, saying *what* was waited for, after *within* seconds."""
    deadline = asyncio.get_running_loop().time() + within
    while True:
        seen = look()
        value = await seen if inspect.isawaitable(seen) else seen
        if value:
            return value
        if asyncio.get_running_loop().time() > deadline:
            raise AssertionError(f"not within {within:g} s: {what} (last seen: {value!r})")
        await asyncio.sleep(POLL_S)
