"""The worker: one process's hold on many runs.

Decides: how many runs this process carries, when it looks for more, and how it leaves. Does not: beat (the process's
heartbeat does) or reap. The failure it can cause: a run claimed and not worked on would hang until the lease lapses;
so every claim becomes a task here, and a task that ends without giving its claim up releases it.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from core.errors import ClaimLost, StoreUnavailable
from core.leaving import tell_to_leave
from core.loop import Loop
from core.ports import Clock, Fence, WorkerStore

log = logging.getLogger("atlas.worker")

# How long an effect in flight may still take at a clean shutdown.
EFFECT_GRACE_S = 5.0
ALONE_AT_ONCE = 2
LOOK_EVERY_S = 2.0


@dataclass(slots=True)
class _Carried:
    """A claim of this worker. *loop* None: its task has not begun."""

    fence: Fence
    task: asyncio.Task[None]
    loop: Loop | None = None


class Worker:
    """Claims runs and works on each in a task of its own.

    *make_loop*: builds the loop of one claim. *capacity*: runs at once. *start_alone*: starts a child process for one
    run that takes processes down, and returns when it has ended (None: such runs stay unclaimed here). *believed*: says
    whether others believe this process alive; while they may not, it claims nothing, since every claim of a dead
    process is taken back as a crash of its run.
    """

    def __init__(
        self,
        worker_id: str,
        store: WorkerStore,
        make_loop: Callable[[Fence], Loop],
        clock: Clock,
        *,
        capacity: int = 64,
        poll_s: float = 0.5,
        start_alone: Callable[[str], Awaitable[None]] | None = None,
        believed: Callable[[], bool] = lambda: True,
    ) -> None:
        self.worker_id = worker_id
        self.store = store
        self.make_loop = make_loop
        self.clock = clock
        self.capacity = capacity
        self.poll_s = poll_s
        self.start_alone = start_alone
        self.believed = believed
        self.draining = False
        self._carried: dict[str, _Carried] = {}
        self._children: dict[str, asyncio.Task[None]] = {}
        self._wake = asyncio.Event()
        self._claiming = asyncio.Lock()
        self._next_look = 0.0
        self._next_alone = 0.0
        self._unknown: set[str] = set()

    # -- Room, for the engine ---------------------------------------------------------------------------------

    def worker_id_if_room(self) -> str | None:
        """Return this worker's id when it has room, is not draining, and is believed alive."""
        fit = not self.draining and len(self._carried) < self.capacity and self.believed()
        return self.worker_id if fit else None

    def adopt(self, fence: Fence) -> None:
        """Work on a run that was claimed for this worker; a claim that it works on already is left alone."""
        if fence.claim_token in self._carried:
            return
        task = asyncio.create_task(self._work(fence), name=f"run-{fence.run_id}")
        self._carried[fence.claim_token] = _Carried(fence, task)

    def wake(self) -> None:
        """Look for work now: somebody made a run claimable (a hint; the poll behind it is what counts)."""
        self._wake.set()

    @property
    def busy(self) -> int:
        """Return how many runs are being worked on."""
        return len(self._carried)

    async def until_idle(self) -> None:
        """Return when no run is being worked on."""
        while self._carried:
            await asyncio.wait({carried.task for carried in self._carried.values()})

    # -- claiming ---------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Claim and work until ``drain``."""
        while not self.draining:
            self._wake.clear()
            try:
                found = await self._claim()
                await self._claim_for_children()
                await self._look_for_strays()
            except StoreUnavailable:
                found = 0
            if not found:
                await self._rest()

    async def _rest(self) -> None:
        try:
            async with asyncio.timeout(self.poll_s):
                await self._wake.wait()
        except TimeoutError:
            return

    async def _claim(self) -> int:
        room = self.capacity - len(self._carried)
        if room <= 0 or not self.believed():
            return 0
        async with self._claiming:
            if self.draining:
                return 0
            claimed = await self.store.claim(self.worker_id, room)
            for each in claimed:
                self.adopt(each.fence)
        return len(claimed)

    async def _look_for_strays(self) -> None:
        """Adopt claims of this worker that nobody here works on.

        A commit that claimed a run for us may have taken place although its answer was lost (a cut connection, a
        click that took too long). This process beats, so no lease would ever lapse: it has to look itself. Only what
        is seen in two looks in a row is a stray; an answer that is just arriving is not.
        """
        now = self.clock.monotonic()
        if now < self._next_look:
            return
        self._next_look = now + LOOK_EVERY_S
        held = {fence.claim_token: fence for fence in await self.store.claims_of(self.worker_id)}
        unknown = {token for token in held if token not in self._carried}
        for token in unknown & self._unknown:
            log.warning("run %s: its claim's answer was lost; it goes on here", held[token].run_id)
            self.adopt(held[token])
        self._unknown = unknown

    async def _claim_for_children(self) -> None:
        room = ALONE_AT_ONCE - len(self._children)
        now = self.clock.monotonic()
        if self.start_alone is None or room <= 0 or now < self._next_alone:
            return
        # Such runs are rare and become so by a crash, which is noticed in seconds: not at every hint and every end.
        self._next_alone = now + self.poll_s
        for run_id in await self.store.to_be_alone(room):
            if run_id not in self._children:
                self._children[run_id] = asyncio.create_task(self._child(run_id, self.start_alone))

    async def _child(self, run_id: str, start_alone: Callable[[str], Awaitable[None]]) -> None:
        try:
            await start_alone(run_id)
        except Exception:
            log.exception("run %s: its process did not start or broke", run_id)
            await self.clock.sleep(5.0)
        finally:
            self._children.pop(run_id, None)
            self.wake()

    async def _work(self, fence: Fence) -> None:
        try:
            loop = self._carried[fence.claim_token].loop = self.make_loop(fence)
            if self.draining:
                loop.drain()  # a click's commit claimed it for this process at the last moment
            await loop.run()
        except asyncio.CancelledError:
            if not self.draining:
                raise
        except Exception:
            log.exception("run %s: its loop broke", fence.run_id)
            try:
                # Not at once: whatever broke the loop would break the next one as fast.
                await self.clock.sleep(5.0)
            finally:
                await self._release(fence)
        finally:
            self._carried.pop(fence.claim_token, None)
            self.wake()

    async def _release(self, fence: Fence) -> None:
        try:
            await self.store.release(fence)
        except (ClaimLost, StoreUnavailable):
            log.info("run %s: not released; the next look, or the lapse of the lease, takes it up", fence.run_id)

    # -- leaving ----------------------------------------------------------------------------------------------

    async def drain(self) -> None:
        """Start nothing new; release runs at once, give effects in flight their grace, then cut them short.

        Returns when every run is given back (what was cut short is marked unknown first).
        """
        self.draining = True
        self.wake()
        async with self._claiming:
            pass  # a claim that is under way ends first; what it took is given back with the rest
        for task in self._children.values():
            task.cancel()
        await asyncio.gather(*(self._leave(carried) for carried in list(self._carried.values())))
        await asyncio.gather(*self._children.values(), return_exceptions=True)

    async def _leave(self, carried: _Carried) -> None:
        loop, task = carried.loop, carried.task
        if loop is not None:
            loop.drain()
            tool = loop.calls.in_flight
            if tool is not None:
                await asyncio.wait({task}, timeout=min(tool.timeout_s, EFFECT_GRACE_S))
        tell_to_leave(task)
        await asyncio.wait({task})
        if self._carried.pop(carried.fence.claim_token, None) is not None:
            # Cancelled before it began: nothing of it ran, so nothing of it gave the claim back.
            await self._release(carried.fence)
