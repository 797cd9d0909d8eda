"""Somebody else's code (tools, models, scopes, policies), awaited so that nothing it does takes more than its own call.

Decides: how long it may take, how long it may take to end once told to, and that whatever it raises, exits included,
is an error of that call. Does not: judge what it returned. The failure it can cause: code that swallows its
cancellation would hold its run, and the shutdown of the whole process, for ever; so it is left behind.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Generator
from functools import partial
from types import CoroutineType, coroutine
from typing import Any, TypeVar

from core.errors import AtlasError, words_of
from core.leaving import heard, told_to_leave

T = TypeVar("T")

log = logging.getLogger("atlas.foreign")

# Code that was cancelled (its time is up, the process is leaving) may clean up this long.
LET_GO_S = 2.0


class CutShort(AtlasError):
    """Somebody else's code was cancelled or exited from within: its own failure, not a shutdown of ours."""


async def asked(ask: Callable[[], Awaitable[T]], timeout_s: float) -> T:
    """Await somebody else's code for at most *timeout_s* seconds, and LET_GO_S more to clean up.

    Raises: TimeoutError; whatever it raises; CutShort for a cancellation, an exit or another BaseException of its own.
    CancelledError only when this task is the one that was cancelled.
    """
    try:
        answer: Awaitable[T] = ask()
        begun = answer if type(answer) is CoroutineType else _awaiting(answer)
        # Most checks answer at once: they need no timer, which would cost more than they do.
        awaited = begun.send(None)
    except StopIteration as end:
        value: T = end.value
        return value
    except asyncio.CancelledError as error:
        raise _cancelled_within() from error
    except Exception:
        raise
    except BaseException as error:
        raise _cut_short(error) from error
    task = asyncio.current_task()
    assert task is not None
    before = task.cancelling()
    limit = asyncio.timeout(timeout_s)
    try:
        async with limit:
            value = await _rest(begun, awaited, limit)
    except asyncio.CancelledError as error:
        if told_to_leave():
            raise
        if limit.expired():
            _forget_own(task, before)
            raise TimeoutError from error
        if task.cancelling() > before:
            heard()
            raise
        raise _cancelled_within() from error
    except BaseException:
        _forget_own(task, before)
        raise
    _forget_own(task, before)
    return value


def _forget_own(task: "asyncio.Task[Any]", before: int) -> None:
    """Take back what a task group of somebody else's code left on *task*: it would look like a shutdown for ever."""
    while task.cancelling() > before and not told_to_leave():
        task.uncancel()


def _cancelled_within() -> CutShort:
    return CutShort("it was cancelled from within")


async def _awaiting(answer: Awaitable[T]) -> T:
    return await answer


def _cut_short(error: BaseException) -> CutShort:
    if isinstance(error, SystemExit):
        return CutShort("it tried to exit the process")
    return CutShort(f"it raised {type(error).__name__}: {words_of(error)}")


@coroutine
def _rest(begun: Coroutine[Any, Any, T], awaited: Any, limit: asyncio.Timeout) -> Generator[Any, Any, T]:
    """Go on with a coroutine that has *awaited* something, as if it had been awaited from the beginning.

    Raises: the first CancelledError by which it was told to end, when it has not ended LET_GO_S seconds later.
    """
    leaving = _Leaving(limit)
    try:
        while True:
            try:
                sent = yield awaited
            except GeneratorExit:
                begun.close()  # the event loop itself is gone
                raise
            except BaseException as error:  # noqa: BLE001  thrown in from outside, cancellation above all: it is for the coroutine
                if leaving.is_over(error):
                    _leave_behind(begun)
                    raise leaving.first from None
                go_on: Callable[[], Any] = partial(begun.throw, error)
            else:
                go_on = partial(begun.send, sent)
            try:
                awaited = go_on()
            except StopIteration as end:
                value: T = end.value
                return value
            except (Exception, asyncio.CancelledError):
                raise
            except BaseException as error:
                raise _cut_short(error) from error
    finally:
        leaving.stop()


class _Leaving:
    """How a coroutine takes its cancellation: because *limit* is over, or this task was told to leave.

    Any other is an affair of its own: a time limit within, a task group, somebody it waited for that was cancelled.
    *first*: the CancelledError by which it was told.
    """

    def __init__(self, limit: asyncio.Timeout) -> None:
        self._limit = limit
        self.first: BaseException = asyncio.CancelledError()
        self._timer: asyncio.TimerHandle | None = None
        self._over = False

    def is_over(self, thrown: BaseException) -> bool:
        """Note what was thrown in; say whether the time to let go is over."""
        if not isinstance(thrown, asyncio.CancelledError):
            return False
        task = asyncio.current_task()
        assert task is not None
        if self._over:
            task.uncancel()  # this cancellation was ours alone
            return True
        if self._timer is None and (told_to_leave() or self._limit.expired()):
            self.first = thrown
            self._timer = asyncio.get_running_loop().call_later(LET_GO_S, self._time_is_up, task)
        return False

    def _time_is_up(self, task: asyncio.Task[Any]) -> None:
        self._over = True
        task.cancel()

    def stop(self) -> None:
        """Watch no longer."""
        if self._timer is not None:
            self._timer.cancel()


def _leave_behind(begun: Coroutine[Any, Any, Any]) -> None:
    name = _place_of(begun)
    log.error("%s does not end when it is cancelled; it is left behind (it must not swallow CancelledError)", name)
    try:
        begun.close()
    except BaseException as error:  # noqa: BLE001  it swallows this end, too
        log.debug("%s does not close: %r", name, error)


def _place_of(begun: Coroutine[Any, Any, Any]) -> str:
    """Return where a coroutine waits: itself, and what it awaits, down to the last."""
    inner: Any = begun
    names = [f"{inner.__qualname__} ({inner.cr_code.co_filename})"]
    while type(inner.cr_await) is CoroutineType:
        inner = inner.cr_await
        names.append(inner.__qualname__)
    return " > ".join(names)
