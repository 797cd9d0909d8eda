"""Somebody else's code has time limits, task groups and children of its own: none of these is a shutdown of ours."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from core import foreign
from core import holder as holder_module
from core.errors import StoreUnavailable
from core.foreign import CutShort, asked
from core.leaving import tell_to_leave
from core.run import ActionState, RunState
from core.worker import Worker
from tests.unit.coreworld import PATIENCE_S, Deed, call, says, world

GOES_ON_S = 0.05


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Code that was told to end has no time for it: whoever is told by mistake does not come to its end."""
    monkeypatch.setattr(foreign, "LET_GO_S", 0.0)


async def for_ever() -> None:
    await asyncio.Event().wait()


async def fails() -> None:
    raise ValueError


async def waits_for_what_it_cancelled() -> str:
    child = asyncio.create_task(for_ever())
    await asyncio.sleep(0)
    child.cancel()
    try:
        await child
    except asyncio.CancelledError:
        await asyncio.sleep(GOES_ON_S)
    return "fine"


async def has_a_limit_of_its_own() -> str:
    for _ in range(3):
        try:
            async with asyncio.timeout(0):
                await for_ever()
        except TimeoutError:
            await asyncio.sleep(GOES_ON_S)
    return "fine"


async def has_a_group_that_failed() -> str:
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(fails())
            group.create_task(for_ever())
    except* ValueError:
        await asyncio.sleep(GOES_ON_S)
    return "fine"


AFFAIRS = [waits_for_what_it_cancelled, has_a_limit_of_its_own, has_a_group_that_failed]


@pytest.mark.parametrize("code", AFFAIRS)
async def test_what_code_cancels_within_itself_neither_ends_it_nor_counts_afterwards(
    code: Callable[[], Awaitable[str]],
) -> None:
    task = asyncio.current_task()
    assert task is not None
    for _ in range(2):
        assert await asked(code, PATIENCE_S) == "fine"
        assert task.cancelling() == 0


@pytest.mark.parametrize("code", AFFAIRS)
async def test_its_own_affairs_do_not_hide_that_its_time_is_up(code: Callable[[], Awaitable[str]]) -> None:
    async def then_hangs() -> None:
        await code()
        await for_ever()

    task = asyncio.current_task()
    assert task is not None
    with pytest.raises(TimeoutError):
        await asked(then_hangs, 4 * GOES_ON_S)
    assert task.cancelling() == 0


async def test_a_cancellation_that_it_lets_out_is_its_own_failure_after_a_group_too() -> None:
    async def lets_out() -> None:
        child = asyncio.create_task(for_ever())
        await asyncio.sleep(0)
        child.cancel()
        await child

    assert await asked(has_a_group_that_failed, PATIENCE_S) == "fine"
    with pytest.raises(CutShort):
        await asked(lets_out, PATIENCE_S)


async def swallows() -> str:
    while True:
        try:
            await for_ever()
        except asyncio.CancelledError:
            continue


@pytest.mark.parametrize("before", [None, *AFFAIRS])
async def test_who_was_told_to_leave_leaves_whatever_the_code_does(before: Callable[[], Awaitable[str]] | None) -> None:
    """Also code that had affairs of its own before; what swallows its cancellation is left behind."""
    begun = asyncio.Event()

    async def code() -> str:
        if before is not None:
            await before()
        begun.set()
        return await swallows()

    task = asyncio.create_task(asked(code, PATIENCE_S))
    await asyncio.wait_for(begun.wait(), PATIENCE_S)
    tell_to_leave(task)
    await asyncio.wait_for(asyncio.wait({task}), PATIENCE_S)
    assert task.cancelled()


async def test_a_slow_commit_after_a_tool_whose_group_failed_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was taken for a run that leaves, which gives up on a commit: the result was stored without its outcome."""
    monkeypatch.setattr(foreign, "LET_GO_S", PATIENCE_S)
    monkeypatch.setattr(holder_module, "COMMIT_GRACE_S", 0.0)
    monkeypatch.setattr(holder_module, "AGAIN_WITHIN_S", 0.0)
    looked: list[Any] = []

    async def in_a_group(_: Any) -> str:
        looked.append(await has_a_group_that_failed())
        return "found"

    look = Deed(execute=in_a_group)
    made = world(says("", call("look"), call()), says("Done."), deed=Deed(execute={"number": "Q-1"}), look=look)
    down = 500

    async def away(name: str) -> None:
        nonlocal down
        if name == "conclude" and down:
            down -= 1
            raise StoreUnavailable("away for a while")

    made.store.before = away
    await made.go()
    assert (looked, down, made.run.state) == (["fine"], 0, RunState.ANSWERED)
    assert [action.state for action in made.store.view.actions] == [ActionState.SUCCEEDED]


async def test_a_worker_that_leaves_waits_for_no_model_that_swallows_it() -> None:
    begun = asyncio.Event()

    async def clings(_: Any) -> Any:
        begun.set()
        return await swallows()

    made = world(clings, run={"claim_token": None})
    worker = Worker("w", made.store, lambda fence: made.loop(), made.clock, poll_s=0.01)
    running = asyncio.create_task(worker.run())
    await asyncio.wait_for(begun.wait(), PATIENCE_S)
    await asyncio.wait_for(worker.drain(), PATIENCE_S)
    await running
    assert (made.run.claim_token, made.store.released) == (None, 1)
    assert made.run.spend_usd > 0
