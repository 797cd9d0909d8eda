"""A claimed run in this process: what was read, what is not committed yet, and every write's fence.

Decides: what goes into the next commit, and whether a commit whose answer was lost took place. Does not: choose acts.
The failure it can cause: counting a lost commit as failed would append twice; so every batch moves elapsed_ms, which
only the claim's holder writes, and a second read tells. A commit under way is not cut short by a shutdown; one that
is not heard of in time is looked for and written again, and only one of the two counts.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any, TypeVar

from core.agent import Agent
from core.asleep import asleep_s
from core.conversation import CallKey, Message, StoredMessage, edited_text
from core.errors import CouldNotCheck, InvariantBroken, NewsArrived, StoreUnavailable, ToolFailed, words_of
from core.foreign import asked
from core.leaving import heard, told_to_leave
from core.next_act import OpenCall
from core.ports import Batch, Clock, Fence, TraceEntry, WorkerStore
from core.run import Run, RunView
from core.tools import Scope, User

T = TypeVar("T")

log = logging.getLogger("atlas.holder")

# One check (scope, policy, preview, guard) may take this long; a directory that hangs counts as down.
CHECK_TIMEOUT_S = 10.0
# Before a card exists, what cannot be checked is retried this long (DESIGN section 5).
PATIENCE_S = 60.0
# At a shutdown, a commit under way, or a release, may take this much longer; then it is looked for, and written again,
# over another connection, for so long.
COMMIT_GRACE_S = 3.0
AGAIN_WITHIN_S = 5.0


NOTHING = Decimal(0)


@dataclass(slots=True)
class Owed:
    """Amounts that are used and not committed yet."""

    steps: int = 0
    tool_calls: int = 0
    spend_usd: Decimal = NOTHING
    dearest_call_usd: Decimal = NOTHING

    def __bool__(self) -> bool:
        """Say whether there is anything."""
        return bool(self.steps or self.tool_calls or self.spend_usd or self.dearest_call_usd)


class Holder:
    """The holder of one claim. Not shared between tasks.

    *messages*: the conversation, of which the first *stored* are committed. Amounts in ``run`` are as committed.
    *owed*: amounts that the next commit carries. *stale*: the rows changed since they were read. *ended*: a move gave
    the claim up. *unsure*: a shutdown did not learn in time what became of a commit. *draining*: nothing new may start.
    """

    def __init__(self, fence: Fence, store: WorkerStore, clock: Clock) -> None:
        self.fence = fence
        self.store = store
        self.clock = clock
        self.messages: list[StoredMessage] = []
        self.stored = 0
        self.trace: list[TraceEntry] = []
        self.taken_mail: list[int] = []
        self.new_scope: Scope | None = None
        self.owed = Owed()
        self.stale = True
        self.ended = False
        self.unsure = False
        self.draining = False
        self._landed: Batch | None = None
        self._spoken: list[Message] = []
        self._spoken_of: list[StoredMessage] | None = None
        self._view: RunView | None = None
        self._loaded_at = 0.0
        self._mark = clock.monotonic()

    @property
    def loaded(self) -> bool:
        """Say whether the rows were read at all."""
        return self._view is not None

    @property
    def run(self) -> Run:
        """Return the run's row, with the amounts of the last commit."""
        assert self._view is not None
        return self._view.run

    @property
    def view(self) -> RunView:
        """Return what the next act depends on: stored rows, with the results and mail that the next commit carries."""
        assert self._view is not None
        view, mail = self._view, self._view.mail
        if self.taken_mail:
            mail = tuple(letter for letter in mail if letter.inbox_id not in self.taken_mail)
        return RunView(view.run, self.messages, view.suspensions, view.actions, mail, self.now)

    @property
    def now(self) -> datetime:
        """Return the database's time."""
        assert self._view is not None
        return self._view.now + timedelta(seconds=self.clock.monotonic() + asleep_s() - self._loaded_at)

    @property
    def unread(self) -> bool:
        """Say whether the beginning of the conversation was left out: only an approved call may be acted on."""
        assert self._view is not None
        return self._view.unread > 0

    async def reload(self, *, late: bool = False) -> None:
        """Read the rows again, patiently; what is not committed stays. *late*: as ``WorkerStore.load`` has it.

        Raises: ClaimLost.
        """
        view = await self._read(late=late)
        waiting = self.messages[self.stored :] if len(view.messages) == self.stored else []
        if not waiting:
            self.taken_mail = []
        self._view = view
        self._loaded_at = self.clock.monotonic() + asleep_s()
        self.stored = len(view.messages)
        self.messages = [*view.messages, *waiting]
        self.stale = False

    async def _read(self, *, late: bool = False) -> RunView:
        delay = 0.1
        while True:
            try:
                return await self.store.load(self.fence, late=late)
            except StoreUnavailable:
                await self.clock.sleep(delay)
                delay = min(delay * 2, 2.0)

    def spoken(self) -> list[Message]:
        """Return the conversation as the model gets it, in a list of the model's own."""
        if self._spoken_of is not self.messages:
            self._spoken, self._spoken_of = [], self.messages
        self._spoken += [stored.message for stored in self.messages[len(self._spoken) :]]
        return self._spoken.copy()

    def append(self, message: Message, answers: CallKey | None = None) -> None:
        """Add a message to what the next commit carries."""
        self.messages.append(StoredMessage(len(self.messages), message, answers))

    def result(self, call: OpenCall, text: str) -> None:
        """Add a call's one result to what the next commit carries; it says so when a person changed the call."""
        if call.edited_by is not None:
            text = edited_text(text, call.edited_by, call.arguments)
        self.append(Message(role="tool", text=text, call_id=call.call.id), call.key)

    def note(self, kind: str, *, ms: int | None = None, spend_usd: Decimal | None = None, **body: Any) -> None:
        """Add a line for people to what the next commit carries."""
        self.trace.append(TraceEntry(kind, body, ms, spend_usd))

    def take_mail(self) -> None:
        """Add the mail that waits to what the next commit carries."""
        assert self._view is not None
        if not self._view.mail:
            return
        for letter in self.view.mail:
            self.append(Message(role="user", text=letter.text))
            self.taken_mail.append(letter.inbox_id)

    def return_mail(self) -> None:
        """Leave mail that is not committed yet to others: an ending gives it back to the drain."""
        if self.taken_mail:
            self.messages = self.messages[: -len(self.taken_mail)]
            self.taken_mail = []

    def owe(
        self,
        *,
        steps: int = 0,
        tool_calls: int = 0,
        spend_usd: Decimal = Decimal(0),
        call_usd: Decimal = Decimal(0),
    ) -> None:
        """Add amounts to what the next commit carries, whichever it is. *call_usd*: what one model call cost."""
        owed = self.owed
        owed.steps += steps
        owed.tool_calls += tool_calls
        owed.spend_usd += spend_usd + call_usd
        owed.dearest_call_usd = max(owed.dearest_call_usd, call_usd)

    @property
    def uncommitted(self) -> bool:
        """Say whether anything waits for the next commit that must not be lost."""
        return len(self.messages) > self.stored or bool(self.owed)

    def batch(
        self, *, doing: str | None = None, charges_crash: bool = False, notes: Sequence[TraceEntry] = ()
    ) -> Batch:
        """Return everything that is not committed yet. *notes*: trace lines that are true only if this very commit
        takes place."""
        elapsed = max(1, round((self.clock.monotonic() - self._mark) * 1000))
        return Batch(
            messages=tuple(self.messages[self.stored :]),
            trace=(*self.trace, *notes),
            mail=tuple(self.taken_mail),
            steps=self.owed.steps,
            tool_calls=self.owed.tool_calls,
            spend_usd=self.owed.spend_usd,
            dearest_call_usd=self.owed.dearest_call_usd,
            elapsed_ms=elapsed,
            doing=doing,
            charges_crash=charges_crash,
            scope=self.new_scope,
            after_ms=self.run.elapsed_ms,
        )

    async def commit(self, batch: Batch, write: Callable[[Batch], Awaitable[T]], *, lost: bool = False) -> T | None:
        """Write *batch*; when the answer is lost, read whether it took place, else write again.

        *lost*: it was written once, and that answer is lost already.

        Returns: what the write answered; None when it took place but its answer was lost, and, told to leave already,
        when nothing was heard in time (``unsure``). Raises: ClaimLost (also when the lost write ended the claim),
        NewsArrived (nothing written), CancelledError (after it is known what became of the write: ``landed`` tells;
        else ``unsure``).
        """
        writing = asyncio.ensure_future(self._write(batch, write, lost=lost))
        try:
            if not told_to_leave():
                return await asyncio.shield(writing)
            # Told to leave already, and nobody will tell it again: this commit, too, has only its time.
            await asyncio.sleep(0)  # where a cancellation that has yet to be delivered is
        except asyncio.CancelledError:
            await self._seen_through(writing, batch, write)
            raise
        ended = await self._seen_through(writing, batch, write)
        return None if ended is None else ended.result()

    async def _seen_through(
        self, writing: "asyncio.Future[T | None] | None", batch: Batch, write: Callable[[Batch], Awaitable[T]]
    ) -> "asyncio.Future[T | None] | None":
        """Wait at a shutdown for a commit; look for one that was given up on (None), and write it again unless it is
        there.

        The first may still arrive, before or after: both name the same active time before them, so one of them counts.

        Returns: the try that ended; None: nothing was heard, and the run is ``unsure``.
        """
        heard()
        self.unsure = True
        if writing is None or not await self._ends(writing, COMMIT_GRACE_S):
            writing = asyncio.ensure_future(self._write(batch, write, lost=True))
            if not await self._ends(writing, AGAIN_WITHIN_S):
                return None
        self.unsure = False
        return writing

    async def _ends(self, writing: "asyncio.Future[Any]", within_s: float) -> bool:
        """Wait for a write at a shutdown; give it up after *within_s* seconds and say False."""
        await asyncio.wait({writing}, timeout=within_s)
        if not writing.done():
            writing.cancel()
            writing.add_done_callback(self._ended_late)
            return False
        if (error := writing.exception()) is not None:
            log.info("run %s: at shutdown, no word that a write took place: %s", self.fence.run_id, error)
        return True

    def _ended_late(self, writing: "asyncio.Future[Any]") -> None:
        """Take note of a try that was given up on: by now another one counts, or the run was left as it is."""
        if not writing.cancelled() and (error := writing.exception()) is not None:
            log.info("run %s: a commit that was given up on ended: %s", self.fence.run_id, error)

    async def release(self) -> bool:
        """Give the claim back at a shutdown; False: the store did not say that it is."""
        for within_s in (COMMIT_GRACE_S, AGAIN_WITHIN_S):
            releasing = asyncio.ensure_future(self.store.release(self.fence))
            if await self._ends(releasing, within_s) and releasing.exception() is None:
                return True
        return False

    def landed(self, batch: Batch) -> bool:
        """Say whether *batch* was the last one that took place."""
        return self._landed is batch

    async def _write(self, batch: Batch, write: Callable[[Batch], Awaitable[T]], *, lost: bool) -> T | None:
        delay = 0.1
        while True:
            if lost:
                await self.clock.sleep(delay)
                delay = min(delay * 2, 2.0)
                if await self._there(batch):
                    return None
            try:
                answer = await write(batch)
            except (InvariantBroken, NewsArrived):
                # An earlier try whose answer was lost may have landed after the read that missed it, before the news.
                if not lost or not await self._there(batch):
                    raise
                return None
            except StoreUnavailable:
                lost = True
            else:
                self._committed(batch)
                return answer

    async def _there(self, batch: Batch) -> bool:
        """Say whether *batch* took place: the rows say so, or a try that was given up on heard of it meanwhile."""
        if (await self._read()).run.elapsed_ms > self.run.elapsed_ms:
            self._committed(batch)
            self.stale = True
        return self.landed(batch)

    async def step(self, batch: Batch) -> None:
        """Append *batch* in one commit; news makes the view stale. Raises: as ``commit``."""
        news: int | None
        try:
            # The store sees a step through by itself when this task is cancelled meanwhile: no task of its own for it.
            news = await self.store.step(self.fence, batch)
        except StoreUnavailable:
            news = await self.commit(batch, lambda b: self.store.step(self.fence, b), lost=True)
        except asyncio.CancelledError:
            await self._seen_through(None, batch, lambda b: self.store.step(self.fence, b))
            raise
        else:
            self._committed(batch)
        finally:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                await asyncio.sleep(0)  # where that cancellation is delivered
        if news is not None and news != self.run.news:
            self.stale = True

    def _committed(self, batch: Batch) -> None:
        assert self._view is not None
        if self._landed is batch:
            return  # a try that was given up on heard of it as well
        run = self._view.run
        self._mark = self.clock.monotonic()
        self.stored += len(batch.messages)
        self.trace = self.trace[len(batch.trace) :]
        mail = self._view.mail
        if batch.mail:
            mail = tuple(letter for letter in mail if letter.inbox_id not in batch.mail)
            self.taken_mail = [letter for letter in self.taken_mail if letter not in batch.mail]
        self.new_scope = None
        self._landed = batch
        owed = self.owed
        owed.steps -= batch.steps
        owed.tool_calls -= batch.tool_calls
        owed.spend_usd -= batch.spend_usd
        owed.dearest_call_usd = NOTHING
        run = changed(
            run,
            step=run.step + batch.steps,
            spend_usd=run.spend_usd + batch.spend_usd,
            tool_calls=run.tool_calls + batch.tool_calls,
            elapsed_ms=run.elapsed_ms + batch.elapsed_ms,
            dearest_call_usd=max(run.dearest_call_usd, batch.dearest_call_usd),
            charge_due=run.charge_due and not batch.charges_crash,
            scope=batch.scope or run.scope,
        )
        view = self._view
        self._view = RunView(run, view.messages, view.suspensions, view.actions, mail, view.now, view.unread)

    @property
    def run_now(self) -> Run:
        """Return the run's row with the active time used so far, where that has reached its limit."""
        elapsed = self.elapsed_ms
        return self.run if elapsed < self.run.limits.max_elapsed_s * 1000 else changed(self.run, elapsed_ms=elapsed)

    @property
    def elapsed_ms(self) -> int:
        """Return the active time used so far, the uncommitted part included."""
        return self.run.elapsed_ms + round((self.clock.monotonic() - self._mark) * 1000)


async def checked(clock: Clock, what: str, ask: Callable[[], Awaitable[T]], patience_s: float) -> T:
    """Ask somebody else's code or service; retry with backoff for *patience_s* seconds.

    Raises: CouldNotCheck; ToolFailed passes (the tool itself says what is wrong).
    """
    deadline = clock.monotonic() + patience_s
    delay = 0.5
    while True:
        try:
            return await asked(ask, CHECK_TIMEOUT_S)
        except ToolFailed:
            raise
        except Exception as error:
            if clock.monotonic() + delay > deadline:
                raise CouldNotCheck(what, words_of(error)) from error
        await clock.sleep(delay)
        delay = min(delay * 2, 8.0)


def changed(record: Run, **changes: Any) -> Run:
    """Return *record* with some fields changed: ``dataclasses.replace`` without its checks, once a step."""
    new = object.__new__(Run)
    new.__dict__.update(record.__dict__, **changes)
    return new


async def resolved(clock: Clock, agent: Agent, owner: User, patience_s: float) -> Scope:
    """Resolve what *owner* may touch now. Raises: CouldNotCheck, also for an answer that is no Scope; ToolFailed."""

    async def ask() -> Scope:
        return of_kind(await agent.scopes(owner), Scope)

    return await checked(clock, "your permissions", ask, patience_s)


def of_kind(value: Any, kind: type[T]) -> T:
    """Return *value*, an answer of somebody else's code, if it is what it must be. Raises: TypeError."""
    if not isinstance(value, kind):
        raise TypeError(f"it returned {type(value).__name__}, not {kind.__name__}")
    return value


def people_of(ids: Sequence[str]) -> str:
    """Return mentions for texts of ours that are escaped except for these: "@U1 and @U2"."""
    return " and ".join(f"@{user_id}" for user_id in ids)
