"""Where a process may die: every call of a port, numbered, and what goes wrong at the one that the plan names.

Decides: what counts as a boundary, and makes the fault happen exactly there. Does not: choose faults (series does) or
judge what came of them (theatre does). Calls are noted in a file that outlives the process, so that a successor goes
on counting. The failure it can cause: a port that is not tracked is never killed at; ``series`` compares with
core.ports.
"""

import asyncio
import contextvars
import json
import os
import signal
from asyncio import selector_events
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakSet

import aiohttp

from core.errors import CouldNotCheck

T = TypeVar("T")

# Ports whose calls are statements on PostgreSQL: "during" is after a statement was sent, before its answer came.
STORES = ("WorkerStore", "Desk", "Outbox", "Inbox", "Upkeep")
# Calls with an effect outside: "during" is after it took place, before its answer came.
EFFECTS = ("Tool.execute", "Model.respond", "Slack.chat_postMessage", "Slack.chat_update")
# Plain functions: nothing can be lost between.
INSTANT = ("Tool.permitted",)
# Stores that only look: a run of each scenario gives them connections on which PostgreSQL refuses every write.
READS = frozenset({
    "WorkerStore.load", "WorkerStore.to_be_alone", "WorkerStore.claims_of", "Desk.live_run", "Desk.last_ended",
    "Desk.suspension", "Desk.run", "Desk.runs", "Desk.thread_runs", "Desk.pending", "Desk.show",
    "Outbox.render_inputs", "Outbox.current_version", "Upkeep.to_remind",
})  # fmt: skip


def looks(name: str) -> bool:
    """Say whether calls of *name* leave the world outside their process as it was."""
    return name in READS or (not name.startswith(STORES) and name not in EFFECTS)


@dataclass(frozen=True, slots=True)
class Point:
    """A fault at the *number*-th call of *call* (from 1), counted over all processes of a case.

    *phase*: "before", "midway" (inside a transaction), "during", "after", or "late" (the request is on its way and
    takes effect after the process died). *send*: which of the call's statements, for "midway" and "during" of stores.
    *fault*: "kill" (SIGKILL), "cut" (every connection of the process breaks), "leave" (a clean shutdown begins) or
    "freeze" (SIGSTOP).
    """

    call: str
    number: int
    phase: str
    fault: str
    send: int = 0

    def __str__(self) -> str:
        return f"{self.fault} {self.phase} {self.call}#{self.number}"


# No fault: reads get connections on which PostgreSQL refuses every write.
LOOKING = Point("reads", 1, "before", "look")


@dataclass(frozen=True, slots=True)
class Call:
    """A finished call as the log has it. *sends*: statements sent; *moves*: of the table of moves, or READ_LATE.

    *before*, *after*: which state of the world outside its process it found and left, numbered in the order in which
    they came to be; None: another call that acts was under way. *untouched*, *left*: the same for the connections.
    """

    name: str
    number: int
    sends: int
    moves: tuple[str, ...]
    before: int | None = None
    after: int | None = None
    untouched: int | None = None
    left: int | None = None


@dataclass(slots=True)
class _Mark:
    name: str
    number: int
    point: Point | None
    sends: int = 0
    fired: bool = False
    more: list[Point] = field(default_factory=list)


_current: contextvars.ContextVar[_Mark | None] = contextvars.ContextVar("call", default=None)


class Lost(ConnectionError):
    """The answer of a request never came."""


def _lost(name: str) -> Exception:
    """Return what a lost answer looks like to the caller of *name*, by its port's contract."""
    if name.startswith("Directory."):
        return CouldNotCheck("people", "the connection broke")
    if name.startswith("Slack."):
        return aiohttp.ServerDisconnectedError()
    return Lost("the connection broke")


class Stage:
    """One process's view of the plan: counts calls, fires faults.

    *moves_of*: what a finished store call did in terms of the table of moves. *leave*: begins a clean shutdown.
    *intended_at*: when the last intention was about to be stored, by *clock*.
    """

    def __init__(self, log: Path, plan: Iterable[Point]) -> None:
        self.plan = {(point.call, point.number): point for point in plan}
        self.transports: WeakSet[Any] = WeakSet()
        self.leave: Callable[[], None] = lambda: None
        self.interject: Callable[[str], Awaitable[None]] = _nothing
        self.late = False
        self.fired = False
        self.clock: Callable[[], float] = lambda: 0.0
        self.intended_at = 0.0
        self._counts = Counter(name for name, kind in _entries(log) if kind == "enter")
        self.log = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def note(self, kind: str, **fields: Any) -> None:
        """Append a line to the log that outlives this process."""
        os.write(self.log, (json.dumps({"kind": kind, **fields}) + "\n").encode())

    # -- calls ------------------------------------------------------------------------------------------------

    def port(self, name: str, target: Any, looking: Any = None) -> Any:
        """Return *target* with every public async method tracked as *name*.method. *looking*: does those of READS."""
        return Tracked(self, name, target, looking or target)

    async def track(
        self, name: str, work: Callable[[], Awaitable[T]], moves: Callable[[T], tuple[str, ...]] | None = None
    ) -> T:
        """Do *work* as one call of *name*. A fault of the plan may end this process, or raise Lost."""
        mark = self._enter(name)
        if mark.point is not None and mark.point.phase == "before":
            await self._fire(mark)
        self.late = mark.point is not None and mark.point.phase == "late"
        token = _current.set(mark)
        did: tuple[str, ...] = ()
        try:
            result = await work()
            did = moves(result) if moves is not None else ()
        finally:
            _current.reset(token)
            self.note("leave", name=name, number=mark.number, sends=mark.sends, moves=did)
            if mark.point is not None and mark.point.phase != "before" and not mark.fired:
                await self._fire(mark)
        unheard = mark.point is not None and mark.point.phase in ("during", "late") and mark.point.fault == "cut"
        if unheard and not name.startswith(STORES):
            raise _lost(name)
        return result

    def instantly(self, name: str, work: Callable[[], T]) -> T:
        """Do a plain function as one call of *name*."""
        mark = self._enter(name)
        if mark.point is not None and mark.point.phase == "before":
            self._fire_now(mark)
        result = work()
        self.note("leave", name=name, number=mark.number, sends=0, moves=())
        if mark.point is not None and not mark.fired:
            self._fire_now(mark)
        return result

    def _enter(self, name: str) -> _Mark:
        self._counts[name] += 1
        number = self._counts[name]
        if name == "WorkerStore.intend":
            self.intended_at = self.clock()
        self.note("enter", name=name, number=number)
        return _Mark(name, number, self.plan.get((name, number)))

    def sent(self) -> None:
        """A statement went out on some connection to PostgreSQL."""
        mark = _current.get()
        if mark is None:
            return
        mark.sends += 1
        point = mark.point
        if point is not None and point.phase in ("midway", "during") and point.send == mark.sends and not mark.fired:
            self._fire_now(mark)

    async def _fire(self, mark: _Mark) -> None:
        self._fire_now(mark)
        await asyncio.sleep(0)  # aborted transports say so in the next round of the loop

    def _fire_now(self, mark: _Mark) -> None:
        assert mark.point is not None
        mark.fired = self.fired = True
        self.note("fired", point=str(mark.point))
        match mark.point.fault:
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "freeze":
                os.kill(os.getpid(), signal.SIGSTOP)
            case "cut":
                for transport in list(self.transports):
                    transport.abort()
            case "leave":
                self.leave()
            case other:
                raise AssertionError(other)


class Tracked:
    """A port whose public methods are boundaries. *looking*: does those of READS."""

    def __init__(self, stage: Stage, name: str, target: Any, looking: Any) -> None:
        self._stage = stage
        self._name = name
        self._target = target
        self._looking = looking

    def __getattr__(self, method: str) -> Any:
        name = f"{self._name}.{method}"
        found = getattr(self._looking if name in READS else self._target, method)
        if method.startswith("_") or not asyncio.iscoroutinefunction(found):
            return found

        async def call(*args: Any, **more: Any) -> Any:
            return await self._stage.track(
                name, lambda: found(*args, **more), lambda result: _did(name, args, more, result)
            )

        return call


async def _nothing(_: str) -> None:
    return None


# ---- what a call did in terms of the table of moves ------------------------------------------------------------------

_SAME = {
    "WorkerStore.release": "release", "WorkerStore.step": "step", "WorkerStore.intend": "intend",
    "WorkerStore.conclude": "conclude", "WorkerStore.wait": "wait", "WorkerStore.answer": "answer",
    "WorkerStore.supersede_open": "step", "WorkerStore.fail": "fail", "Desk.start": "start",
    "Desk.supersede": "supersede",
}  # fmt: skip


# A load that left messages unread.
READ_LATE = "read late"


def _did(name: str, args: tuple[Any, ...], more: dict[str, Any], result: Any) -> tuple[str, ...]:
    late = name == "WorkerStore.load" and result.unread
    return (READ_LATE,) if late else moves_of(name, args, more, result)


def moves_of(name: str, args: tuple[Any, ...], more: dict[str, Any], result: Any) -> tuple[str, ...]:
    """Return the moves of core.run.MOVES that a finished call made."""
    if name in _SAME:
        return (_SAME[name],)
    match name:
        case "WorkerStore.claim" | "WorkerStore.claim_one":
            return ("claim",) if result else ()
        case "WorkerStore.suspend":
            again = any(new.replaces is not None for new in args[3])
            return ("resuspend",) if again else ("suspend",)
        case "WorkerStore.rearm":
            return ("rearm",) if result else ("expire",)
        case "WorkerStore.halt":
            return ("halt", "stop") if args[2].value == "stopped_by_user" else ("halt",)
        case "Desk.decide" | "Desk.edit" if result.refusal is None:
            if result.pending_votes:
                return ("vote",)
            return ("edit",) if name == "Desk.edit" else ("decide",)
        case "Desk.decide" if str(result.refusal) == "expired":
            return ("expire",)
        case "Desk.stop":
            return ("stop",) if result.how == "halted" else ()
        case "Desk.continue_":
            return ("continue",) if result.run is not None else ()
        case "Upkeep.reap":
            return ("reap",) if result else ()
        case "Upkeep.expire_due":
            return ("expire",) if result else ()
        case _:
            return ()


# ---- the log ---------------------------------------------------------------------------------------------------------


def read_log(path: Path) -> list[dict[str, Any]]:
    """Return the log's lines."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def _entries(path: Path) -> list[tuple[str, str]]:
    return [(line.get("name", ""), line["kind"]) for line in read_log(path)]


class _Under:
    """Calls under way that may change something, and the number of the state that stands between them."""

    def __init__(self) -> None:
        self.state = 0
        self._open: set[tuple[str, int]] = set()
        self._disturbed: set[tuple[str, int]] = set()

    def otherwise(self, *, born: bool) -> None:
        """Somebody was told something, or a process was born: what follows happens in another world."""
        self.state += 1
        if born:
            self._open.clear()  # what its predecessor had under way died with it

    def enter(self, call: tuple[str, int], *, acts: bool) -> int | None:
        """Return the state that *call* finds."""
        found = None if self._open else self.state
        if acts:
            self._disturbed |= {call, *self._open} if self._open else set()
            self._open.add(call)
        return found

    def leave(self, call: tuple[str, int], *, acts: bool) -> int | None:
        """Return the state that *call* left."""
        if acts:
            self.state += 1
            self._open.discard(call)
        return None if self._open or call in self._disturbed else self.state


def calls_of(log: list[dict[str, Any]]) -> list[Call]:
    """Return the finished calls of a log, in the order in which they ended."""
    world, wires = _Under(), _Under()
    found: dict[tuple[str, int], tuple[int | None, int | None]] = {}
    calls: list[Call] = []
    for line in log:
        if line["kind"] not in ("enter", "leave"):
            world.otherwise(born=line["kind"] == "born")
            wires.otherwise(born=line["kind"] == "born")
            continue
        name = line["name"]
        call, acts, stores = (name, line["number"]), not looks(name), name.startswith(STORES)
        if line["kind"] == "enter":
            found[call] = world.enter(call, acts=acts), wires.enter(call, acts=stores)
        elif call in found:
            before, untouched = found.pop(call)
            after, left = world.leave(call, acts=acts), wires.leave(call, acts=stores)
            moves = tuple(line["moves"])
            calls.append(Call(*call, line["sends"], moves, before, after, untouched, left))
    return calls


# ---- connections whose statements are seen ---------------------------------------------------------------------------


class _Wire(selector_events._SelectorSocketTransport):  # type: ignore[misc,name-defined]
    """A connection to PostgreSQL that tells the stage of everything it sends."""

    def write(self, data: Any) -> None:
        super().write(data)
        # A statement to run: Bind, or a simple Query. Whether it had to be prepared before depends on the connection's
        # age. Source: PostgreSQL, message formats of the frontend/backend protocol.
        if data[:1] in (b"B", b"Q"):
            self._loop.stage.sent()

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(list_of_data))


class WiredLoop(asyncio.SelectorEventLoop):
    """An event loop whose connections to PostgreSQL, opened while *watching*, are seen by the stage."""

    def __init__(self, stage: Stage) -> None:
        super().__init__()
        self.stage = stage
        self.watching = False

    def _make_socket_transport(
        self, sock: Any, protocol: Any, waiter: Any = None, *, extra: Any = None, server: Any = None, **more: Any
    ) -> Any:
        if self.watching and type(protocol).__module__.startswith("asyncpg"):
            wire = _Wire(self, sock, protocol, waiter, extra, server, **more)
            self.stage.transports.add(wire)
            return wire
        make = super()._make_socket_transport  # type: ignore[misc]
        return make(sock, protocol, waiter, extra=extra, server=server, **more)
