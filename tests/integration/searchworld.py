"""What the search for broken histories moves about: workers that stop before every call, a target, a planned model.

Decides: what an answer that never came looks like, and what a call may do to a run (the table of moves says so). Does
not: choose what happens next. The failure it can cause: a worker that did more than one call at a time could not be
told what it may do; so a ``Gate`` lets one through at a time.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any, ClassVar, TypeVar

import asyncpg

from core import (
    Approval,
    DidNotHappen,
    Happened,
    Message,
    ModelReply,
    Preview,
    Refused,
    Scope,
    Tool,
    ToolCall,
    ToolContext,
    ToolSpec,
)
from core.approvals import Person
from core.errors import ClaimLost, CouldNotCheck, NewsArrived, StoreUnavailable
from core.loop import Loop
from core.ports import Fence
from core.run import MOVES, RunState, RunView
from storage.worker_store import PgWorkerStore
from tests.chaos.boundary import moves_of
from tests.integration.storeworld import World
from tests.unit.coreworld import Nothing, People, assert_valid

T = TypeVar("T")
PRICE = Decimal("0.01")
NEEDS_APPROVAL = frozenset({"send", "order", "wire", "sign"})
BY_NAME = {move.name: move for move in MOVES}


class Killed(BaseException):
    """The process of whoever gets this is dead."""


@contextmanager
def noted(wrong: list[str]) -> Iterator[None]:
    """Note what is found wrong inside: a loop takes every error of what it calls for a defect that it can live with."""
    try:
        yield
    except AssertionError as error:
        wrong.append(str(error))
        raise


# ---- one worker, one call at a time ----------------------------------------------------------------------------------


@dataclass
class Gate:
    """Where a worker's task stops. *at*: the call that it is about to make."""

    at: str | None = None
    dead: bool = False
    working: bool = False
    _told: "asyncio.Future[str] | None" = None

    async def pass_by(
        self, name: str, work: Callable[[], Awaitable[T]], lost: Exception, late: Callable[[], None] | None = None
    ) -> T:
        """Wait to be told; then do *work*, or fall over as told.

        *lost*: what an answer that never came looks like. *late*: sends a request that takes effect some time later.
        """
        if self.dead:
            raise Killed
        assert self.at is None, f"{name} while {self.at} waits"
        self.at = name
        self._told = asyncio.get_running_loop().create_future()
        told = await self._told
        try:
            if told == "late" and late is not None:
                late()
            if told in ("unreachable", "late"):
                raise lost
            if told == "die before":
                self.dead = True
                raise Killed
            answer = await work()
            if told == "die after":
                self.dead = True
                raise Killed
            if told == "unheard":
                raise lost
            return answer
        finally:
            self.working = False

    def tell(self, how: str) -> None:
        """Let it go on."""
        assert self._told is not None
        told, self._told, self.at = self._told, None, None
        self.working = True
        told.set_result(how)


@dataclass
class Hand:
    """A claim that some worker works on, well or badly."""

    worker: "Process"
    fence: Fence
    gate: Gate
    loop: Loop
    task: "asyncio.Task[None]"


@dataclass
class Process:
    """A worker process. *beats*: it still gives signs of life."""

    id: str
    alone: bool = False
    beats: bool = True
    dead: bool = False


class Elsewhere(PgWorkerStore):
    """The store of a process that has never seen the run. *left*: takes "read later" when a load left messages out."""

    def __init__(self, world: World, left: set[str]) -> None:
        super().__init__(world.pool, now=world.time, long_from=0)  # the conversations here are short
        self._left = left

    async def load(self, fence: Fence, *, late: bool = False) -> RunView:
        """As ever."""
        view = await super().load(fence, late=late)
        if view.unread:
            self._left.add("read later")
        return view


class Slowly:
    """The clock of all of them: a sleep is a call as any other, and moves time on for everybody."""

    def __init__(self, world: World, gate: Gate) -> None:
        self.world = world
        self.gate = gate
        self.begun = world.now

    def monotonic(self) -> float:
        return (self.world.now - self.begun).total_seconds()

    async def sleep(self, seconds: float) -> None:
        async def pass_time() -> None:
            self.world.pass_time(seconds)

        await self.gate.pass_by("sleep", pass_time, StoreUnavailable("a sleep is never lost"))


class Instant:
    """The clock of clicks and of the drain, which nobody stops in between."""

    def __init__(self, world: World) -> None:
        self.world = world

    def monotonic(self) -> float:
        return self.world.now.timestamp()

    async def sleep(self, seconds: float) -> None:
        self.world.pass_time(seconds)


class Directory(People):
    """Everybody is there; *down*: nobody can be looked up."""

    async def person(self, team_id: str, user_id: str, *, fresh: bool = False) -> Person:
        if self.down:
            raise CouldNotCheck("people", "the directory is down")
        return await super().person(team_id, user_id, fresh=fresh)


class Words:
    """core.ports.Voice: something is said."""

    def __getattr__(self, name: str) -> Callable[..., str]:
        return lambda *_args, **_more: name


# ---- the target, its tools, the model --------------------------------------------------------------------------------


@dataclass
class Target:
    """What was done, by key, and what the world is like. *now*: the time of all of them."""

    now: Callable[[], datetime]
    done: Counter[str] = field(default_factory=Counter)
    on_their_way: list[tuple[datetime, str, bool]] = field(default_factory=list)
    price: int = 100
    hold: bool = False
    allowed: bool = True

    def act(self, key: str, *, once: bool) -> None:
        """Do it. *once*: this target honours keys."""
        self.done[key] = 1 if once else self.done[key] + 1

    def arrive(self) -> None:
        """Let every request take effect whose time has come."""
        due = [sent for sent in self.on_their_way if sent[0] <= self.now()]
        self.on_their_way = [sent for sent in self.on_their_way if sent not in due]
        for _, key, once in due:
            self.act(key, once=once)


class Acting(Tool[Nothing]):
    """A tool that stops at its gate. *once*: its target honours keys, so that a late request changes nothing."""

    once: ClassVar[bool] = True

    def __init__(self, target: Target, gate: Gate | None, still_ours: Callable[[], Awaitable[bool]] | None) -> None:
        self.target = target
        self.gate = gate
        self.still_ours = still_ours

    async def _call(self, what: str, work: Callable[[], Awaitable[T]], late: Callable[[], None] | None = None) -> T:
        assert self.gate is not None
        return await self.gate.pass_by(f"{what} {self.name}", work, OSError("the connection broke"), late)

    def permitted(self, args: Nothing, scope: Scope) -> bool:
        return not self.writes or "act" in scope.permissions

    async def preview(self, args: Nothing, ctx: ToolContext) -> Preview:
        async def look() -> Preview:
            return Preview(title=self.name, fields={"n": str(args.n), "price": str(self.target.price)})

        return await self._call("preview", look)

    async def guard(self, args: Nothing, ctx: ToolContext) -> Refused | None:
        async def look() -> Refused | None:
            return Refused(reason="on hold") if self.target.hold else None

        return await self._call("guard", look)

    async def execute(self, args: Nothing, ctx: ToolContext) -> Any:
        async def act() -> Any:
            if not self.writes:
                return {"price": self.target.price}
            if not self.once and not (self.still_ours is not None and await self.still_ours()):
                raise OSError("this request was cut off long ago, as its tool's timeout says")
            self.target.act(ctx.idempotency_key, once=self.once)
            return {"id": ctx.idempotency_key}

        # The last moment at which a request of this attempt may still take effect, and a second before its timeout.
        arrives = self.target.now() + timedelta(seconds=self.timeout_s - 1)

        def late() -> None:
            if self.writes and self.target.now() < arrives:
                self.target.on_their_way.append((arrives, ctx.idempotency_key, self.once))

        return await self._call("execute", act, late)


class Askable(Acting):
    writes = True

    async def reconcile(self, args: Nothing, ctx: ToolContext) -> Happened | DidNotHappen:
        async def look() -> Happened | DidNotHappen:
            self.target.arrive()
            key = ctx.idempotency_key
            return Happened(result={"id": key}) if self.target.done[key] else DidNotHappen()

        return await self._call("reconcile", look)


class Look(Acting):
    name, description = "look", "Read."


class Note(Askable):
    """Its target does every request anew, too."""

    name, description, once = "note", "A write without approval.", False


class Send(Askable):
    name, description = "send", "A write that its requester approves."
    approval = Approval(by="requester")


class Order(Askable):
    """Its target does every request anew."""

    name, description, once = "order", "A write whose target honours no key.", False
    approval = Approval(by="anyone")


class Wire(Acting):
    """Nobody can be asked about it, but its target honours keys."""

    name, description, writes, idempotent_by_key = "wire", "Wire money.", True, True
    approval = Approval(by="requester")


class Sign(Askable):
    name, description = "sign", "Two people must agree."
    approval = Approval(by=("U1", "U2"), count=2)


class Planned:
    """A model that does what the newest plan says ("do: note send / look"), turn by turn, then answers."""

    def __init__(self, gate: Gate | None, wrong: list[str]) -> None:
        self.gate = gate
        self.wrong = wrong

    def worst_case_usd(self, messages: list[Message], tools: list[ToolSpec], max_output_tokens: int) -> Decimal:
        return PRICE

    async def respond(self, messages: list[Message], tools: list[ToolSpec], max_output_tokens: int) -> ModelReply:
        async def reply() -> ModelReply:
            with noted(self.wrong):
                assert_valid(messages)
            turns, since = [[""]], 0
            for message in messages:
                if message.role == "user" and message.text.startswith("do: "):
                    turns, since = [turn.split() for turn in message.text[4:].split("/")], 0
                since += message.role == "assistant"
            wanted = turns[since] if since < len(turns) else []
            calls = tuple(
                ToolCall(id=f"call_{n}", tool=tool, arguments={"n": n}) for n, tool in enumerate(wanted, 1) if tool
            )
            return ModelReply(text="Done." if not calls else "", calls=calls, spend_usd=PRICE)

        assert self.gate is not None
        return await self.gate.pass_by("model", reply, OSError("the model's connection broke"))


# ---- every move, held against the table ------------------------------------------------------------------------------


class Judged:
    """A store whose every call is held against the table of moves; it stops at *gate*, if it has one."""

    def __init__(
        self,
        name: str,
        store: Any,
        pool: "asyncpg.Pool[asyncpg.Record]",
        gate: Gate | None,
        tick: Any,
        wrong: list[str],
    ) -> None:
        self._wrong = wrong
        self._name = name
        self._store = store
        self._pool = pool
        self._gate = gate
        self._tick = tick

    def __getattr__(self, method: str) -> Any:
        found = getattr(self._store, method)
        if not asyncio.iscoroutinefunction(found):
            return found

        async def call(*args: Any, **more: Any) -> Any:
            if self._gate is None:
                return await self._judge(method, args, more)
            lost = StoreUnavailable("the connection broke")
            return await self._gate.pass_by(method, lambda: self._judge(method, args, more), lost)

        return call

    async def _judge(self, method: str, args: tuple[Any, ...], more: dict[str, Any]) -> Any:
        with noted(self._wrong):
            return await self._judged(method, args, more)

    async def _judged(self, method: str, args: tuple[Any, ...], more: dict[str, Any]) -> Any:
        self._tick()
        before = await claims(self._pool)
        fence = args[0] if args and isinstance(args[0], Fence) else None
        held = fence is not None and before.get(fence.run_id) == (RunState.RUNNING, fence.claim_token)
        try:
            result = await getattr(self._store, method)(*args, **more)
        except ClaimLost:
            assert not held, f"{method} says that a claim is lost which {fence} holds"
            assert await claims(self._pool) == before
            raise
        except NewsArrived:
            assert held
            assert await claims(self._pool) == before
            raise
        assert fence is None or held or method == "release", f"{method} was done without a claim"
        self._hold(method, args, more, result, before, await claims(self._pool))
        return result

    def _hold(
        self, method: str, args: tuple[Any, ...], more: dict[str, Any], result: Any, before: "Claims", after: "Claims"
    ) -> None:
        refused = method == "edit" and result.refusal is not None
        # An edit that comes too late expires the card, as any late click does.
        names = {*moves_of(f"{self._name}.{'decide' if refused else method}", args, more, result)}
        if "reap" in names:
            names.add("fail")  # a run reaped from its closing pass
        allowed = {(source, BY_NAME[name].target) for name in names for source in BY_NAME[name].sources}
        if method == "stop" and result.how == "requested":
            allowed.add((RunState.SUSPENDED, RunState.RUNNING))  # what was begun is looked at first
        for run_id, (state, _) in after.items():
            was = before[run_id][0] if run_id in before else None
            if was != state:
                assert (was, state) in allowed, f"{method} took run {run_id} from {was} to {state}"
        if names == {"decide"}:
            assert before[args[0].partition(".")[0]][0] in BY_NAME["decide"].sources


Claims = dict[str, tuple[RunState, str | None]]


async def claims(pool: "asyncpg.Pool[asyncpg.Record]") -> Claims:
    rows = await pool.fetch("select id, state, claim_token::text as token from runs")
    return {row["id"]: (RunState(row["state"]), row["token"]) for row in rows}
