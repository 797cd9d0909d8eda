"""A write that is waited for is seen through although the waiter is cancelled, and the cancellation is not lost."""

import asyncio

import pytest

from core import landing
from core.landing import Landing


async def waiter(outcome: Landing[int], heard: list[object]) -> None:
    heard.append(await outcome.seen())
    await asyncio.sleep(3600)
    heard.append("went on")


async def begun(outcome: Landing[int], heard: list[object]) -> "asyncio.Task[None]":
    task = asyncio.create_task(waiter(outcome, heard))
    await asyncio.sleep(0)
    return task


async def test_a_cancelled_waiter_hears_what_became_of_its_write_and_is_cancelled_then() -> None:
    """The outcome first, the cancellation at the next wait; it is still the one that was asked for."""
    outcome: Landing[int] = Landing()
    heard: list[object] = []
    task = await begun(outcome, heard)
    task.cancel()
    for _ in range(5):
        await asyncio.sleep(0)
    assert (task.done(), heard) == (False, [])
    outcome.set_result(7)
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (heard, task.cancelling()) == ([7], 1)


async def test_a_failed_write_is_heard_by_a_cancelled_waiter() -> None:
    """Its error is raised, not the cancellation in its place: the caller may have to look at what it left."""
    outcome: Landing[int] = Landing()
    task = await begun(outcome, [])
    task.cancel()
    await asyncio.sleep(0)
    outcome.set_exception(ValueError("refused"))
    with pytest.raises(ValueError, match="refused"):
        await task


async def test_a_write_of_which_nothing_is_heard_holds_nobody_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """After the grace the waiter is let go, and whoever writes finds that nobody waits."""
    monkeypatch.setattr(landing, "CUT_AFTER_S", 0.01)
    outcome: Landing[int] = Landing()
    heard: list[object] = []
    task = await begun(outcome, heard)
    task.cancel()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (outcome.done(), outcome.cancelled(), heard) == (True, True, [])


async def test_a_time_limit_around_it_is_one_still() -> None:
    """``asyncio.timeout`` raises TimeoutError as ever; what was written meanwhile is known."""
    outcome: Landing[int] = Landing()
    heard: list[object] = []
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            asyncio.get_running_loop().call_later(0.05, outcome.set_result, 3)
            heard.append(await outcome.seen())
            await asyncio.sleep(3600)
    assert heard == [3]
    await asyncio.sleep(0)


async def test_nobody_cancelled_nothing_special() -> None:
    """A plain wait: the outcome, and no timer left behind."""
    outcome: Landing[int] = Landing()
    heard: list[object] = []
    task = await begun(outcome, heard)
    outcome.set_result(1)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert heard == [1]
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
