"""A claim's holder without a database: for tests in which the timing or the faults of the store are the point.

The store keeps one run's view in memory and obeys the same guards (fence, seq, news, stop). It is no model of
PostgreSQL: the real store has its own tests. *before* and *after* run around every move and may raise or wait.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

from pydantic import BaseModel

from core import (
    Agent,
    Approval,
    DidNotHappen,
    Happened,
    Limits,
    Preview,
    Refused,
    Scope,
    Tool,
    ToolContext,
    Unknown,
    User,
)
from core.approvals import Person, arguments_digest, digest_of, idempotency_key
from core.conversation import CallKey, Message, ModelReply, StoredMessage, ToolCall, ToolSpec
from core.errors import ClaimLost, InvariantBroken, NewsArrived
from core.landing import Landing
from core.loop import Loop
from core.ports import Batch, Claimed, Closing, Fence, NewAction, NewSuspension, Outcome, Settlement
from core.run import (
    Action,
    ActionState,
    HaltReason,
    Mail,
    Run,
    RunState,
    RunView,
    Suspension,
    SuspensionKind,
    SuspensionStatus,
)

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
LIFETIME = timedelta(minutes=30)
OWNER = User(team_id="T1", user_id="U1", name="Ada")
FENCE = Fence("k7d2m9qa", "claim-1")
# Only a failing test waits this long; a busy machine is slow.
PATIENCE_S = 60.0


def a_run(**changes: Any) -> Run:
    """Return a running, claimed run with Limits' own defaults."""
    run = Run(
        id=FENCE.run_id, team_id="T1", channel_id="C1", thread_ts="1.0", owner=OWNER, question="hello", route={},
        limits=Limits(), state=RunState.RUNNING, halt_reason=None, fail_reason=None, step=0, spend_usd=Decimal(0),
        tool_calls=0, elapsed_ms=0, scope=Scope(), scope_resolved_at=EPOCH, claim_token=FENCE.claim_token,
        claimed_by="w", stop_requested=None, news=0, recovery_attempts=0, crashes=0, charge_due=False,
        continuations=0, halts=0, next_worst_usd=Decimal(0), dearest_call_usd=Decimal(0), parent_id=None,
        created_at=EPOCH,
    )  # fmt: skip
    return replace(run, **changes)


def asked(text: str = "hello", seq: int = 0) -> StoredMessage:
    """Return a person's message."""
    return StoredMessage(seq, Message(role="user", text=text))


def turn(*calls: ToolCall, seq: int = 1, text: str = "") -> StoredMessage:
    """Return a model's message."""
    return StoredMessage(seq, Message(role="assistant", text=text, calls=calls))


def call(tool: str = "send", id: str = "call_1", **arguments: Any) -> ToolCall:  # noqa: A002
    """Return a call as a model makes it."""
    return ToolCall(id=id, tool=tool, arguments=arguments or {"n": 1})


class FakeClock:
    """Time that passes only while somebody sleeps."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.slept: list[float] = []

    def monotonic(self) -> float:
        """Return seconds."""
        return self.now

    async def sleep(self, seconds: float) -> None:
        """Let *seconds* pass at once."""
        self.slept.append(seconds)
        self.now += seconds
        await asyncio.sleep(0)


class People:
    """A directory: everybody is active and in the channel; *down*: it cannot be asked."""

    def __init__(self) -> None:
        self.deactivated: set[str] = set()
        self.down = False

    async def person(self, team_id: str, user_id: str, *, fresh: bool = False) -> Person:
        """Return somebody."""
        if self.down:
            raise OSError("directory down")
        return Person(User(team_id=team_id, user_id=user_id, name=user_id), deactivated=user_id in self.deactivated)

    async def in_channel(self, channel_id: str, user_id: str, *, fresh: bool = False) -> bool:
        """Everybody is."""
        return True

    async def in_group(self, handle: str, user_id: str, *, fresh: bool = False) -> bool:
        """Nobody is."""
        return False


class Numbers:
    """Names in order."""

    def __init__(self) -> None:
        self.count = 0

    def run_id(self) -> str:
        """Return the next."""
        return self.token("")[1:].rjust(8, "0")

    def token(self, run_id: str) -> str:
        """Return the next."""
        self.count += 1
        return f"{run_id}.{self.count}"


class Nothing(BaseModel):
    """Arguments of the tools here."""

    n: int = 1


@dataclass
class Deed:
    """What a tool does: each field is a value, an exception to raise, or a function of the context."""

    execute: Any = None
    guard: Any = None
    policy: Any = None
    preview: Any = field(default_factory=lambda: Preview(title="Send"))
    reconcile: Any = field(default_factory=Unknown)
    permitted: Any = True
    effects: int = 0
    keys: list[str] = field(default_factory=list)


async def _give(value: Any, ctx: ToolContext) -> Any:
    if callable(value):
        value = value(ctx)
    if isinstance(value, Awaitable):
        value = await value
    if isinstance(value, BaseException):
        raise value
    return value


class Write(Tool[Nothing]):
    """A write whose every answer the test sets. *effects* counts executions that were begun."""

    name = "send"
    description = "sends"
    writes = True

    def __init__(self, deed: Deed, name: str = "send", **attributes: Any) -> None:
        self.deed = deed
        self.name = name
        self.__dict__.update(attributes)

    def permitted(self, args: Nothing, scope: Scope) -> bool:
        """As set."""
        if isinstance(self.deed.permitted, BaseException):
            raise self.deed.permitted
        return self.deed.permitted  # type: ignore[no-any-return]

    async def policy(self, args: Nothing, ctx: ToolContext) -> Approval | None:
        """As set."""
        return await _give(self.deed.policy, ctx)  # type: ignore[no-any-return]

    async def preview(self, args: Nothing, ctx: ToolContext) -> Preview:
        """As set."""
        return await _give(self.deed.preview, ctx)  # type: ignore[no-any-return]

    async def guard(self, args: Nothing, ctx: ToolContext) -> Refused | None:
        """As set."""
        return await _give(self.deed.guard, ctx)  # type: ignore[no-any-return]

    async def execute(self, args: Nothing, ctx: ToolContext) -> Any:
        """Count an effect, then as set."""
        self.deed.effects += 1
        self.deed.keys.append(ctx.idempotency_key)
        return await _give(self.deed.execute, ctx)

    async def reconcile(self, args: Nothing, ctx: ToolContext) -> Happened | DidNotHappen | Unknown:
        """As set."""
        return await _give(self.deed.reconcile, ctx)  # type: ignore[no-any-return]


class Read(Tool[Nothing]):
    """A read whose answer the test sets."""

    name = "look"
    description = "looks"

    def __init__(self, deed: Deed, **attributes: Any) -> None:
        self.deed = deed
        self.__dict__.update(attributes)

    async def execute(self, args: Nothing, ctx: ToolContext) -> Any:
        """As set."""
        self.deed.effects += 1
        return await _give(self.deed.execute, ctx)


class Script:
    """A model that says its lines in order: a ModelReply, an exception, or a function that returns or awaits one."""

    def __init__(self, *lines: Any, worst: Decimal = Decimal("0.01")) -> None:
        self.lines = list(lines)
        self.heard: list[list[Message]] = []
        self.worst = worst

    async def respond(self, messages: list[Message], tools: list[ToolSpec], max_output_tokens: int) -> ModelReply:
        """Say the next line; check what every provider checks: each call has exactly one result, in its place."""
        assert_valid(messages)
        self.heard.append(messages)
        line = self.lines.pop(0)
        return await _give(line, None)  # type: ignore[arg-type,no-any-return]

    def worst_case_usd(self, messages: list[Message], tools: list[ToolSpec], max_output_tokens: int) -> Decimal:
        """As set."""
        return self.worst


def assert_valid(messages: Sequence[Message]) -> None:
    """Check that each turn's calls have exactly one result each before anything else is said."""
    waiting = 0
    for message in messages:
        if message.role == "tool":
            assert waiting > 0, "a result without a call"
            waiting -= 1
            continue
        assert waiting == 0, "a call without a result"
        waiting = len(message.calls)
    assert waiting == 0, "a call without a result at the end"


class MemoryStore:
    """core.ports.WorkerStore for one run. *moves*: the names of what was written, in order."""

    def __init__(self, view: RunView) -> None:
        self.view = view
        self.moves: list[str] = []
        self.settled: list[Settlement] = []
        self.closing: Closing | None = None
        self.trace: list[str] = []
        self.released = 0
        self.before: Callable[[str], Awaitable[None]] | None = None
        self.after: Callable[[str], Awaitable[None]] | None = None

    # What others write.

    def now(self) -> datetime:
        """Return the store's clock: it stands still unless a test moves the view's."""
        return self.view.now

    def change(self, **changes: Any) -> None:
        """Change columns of the run."""
        self.view = replace(self.view, run=replace(self.view.run, **changes))

    def write_mail(self, text: str) -> None:
        """The owner writes to the live run."""
        mail = Mail(len(self.view.mail) + 100 + self.view.run.news, text, OWNER.user_id)
        self.view = replace(self.view, mail=(*self.view.mail, mail))
        self.change(news=self.view.run.news + 1)

    def decide(self, number: int = -1, status: SuspensionStatus = SuspensionStatus.APPROVED, **changes: Any) -> None:
        """Somebody decides a suspension; the run is claimed again if it was suspended."""
        chosen = self.view.suspensions[number]
        assert chosen.status is SuspensionStatus.OPEN
        votes = ("U1",) if status is SuspensionStatus.APPROVED else ()
        fields: dict[str, Any] = {"decided_at": self.now(), "decided_by": "U1", "votes": votes} | changes
        self._replace(chosen, replace(chosen, status=status, **fields))
        self.change(news=self.view.run.news + 1, state=RunState.RUNNING, claim_token=FENCE.claim_token)

    def _replace(self, old: Suspension, new: Suspension) -> None:
        self.view = replace(self.view, suspensions=tuple(new if s.id == old.id else s for s in self.view.suspensions))

    # WorkerStore.

    async def claim(self, worker_id: str, room: int) -> list[Claimed]:
        """Claim the run, once."""
        await self._around("claim")
        run = self.view.run
        if run.claim_token is not None or run.state is not RunState.RUNNING or not room:
            return []
        self.change(claim_token=FENCE.claim_token)
        if self.after is not None:
            await self.after("claim")
        return [Claimed(FENCE, self.view.run)]

    async def claim_one(self, worker_id: str, run_id: str) -> Claimed | None:
        """Claim the run."""
        return next(iter(await self.claim(worker_id, 1)), None)

    async def claims_of(self, worker_id: str) -> list[Fence]:
        """Return no claim: a lost answer of a claim is tested on the real store."""
        return []

    async def to_be_alone(self, limit: int) -> list[str]:
        """None."""
        return []

    async def load(self, fence: Fence, *, late: bool = False) -> RunView:
        """Return the rows."""
        await self._around("load")
        if self.view.run.claim_token != fence.claim_token or self.view.run.state is not RunState.RUNNING:
            raise ClaimLost(fence.run_id)
        return replace(self.view, messages=list(self.view.messages))

    async def release(self, fence: Fence) -> None:
        """Give the claim back."""
        await self._around("release")
        if self.view.run.claim_token == fence.claim_token:
            self.released += 1
            self.change(claim_token=None)

    async def _around(self, name: str) -> None:
        if self.before is not None:
            await self.before(name)

    async def _move(
        self,
        name: str,
        fence: Fence,
        batch: Batch,
        change: Callable[[], None],
        *,
        seen: int | None = None,
        stop: bool = False,
    ) -> None:
        await self._around(name)
        run = self.view.run
        if run.claim_token != fence.claim_token or run.state is not RunState.RUNNING:
            raise ClaimLost(fence.run_id)
        if batch.messages and batch.messages[0].seq != len(self.view.messages):
            raise InvariantBroken("a gap")
        if (seen is not None and run.news > seen) or (stop and run.stop_requested is not None):
            raise NewsArrived(fence.run_id)
        assert batch.elapsed_ms >= 1
        self.view = replace(
            self.view,
            messages=[*self.view.messages, *batch.messages],
            mail=tuple(m for m in self.view.mail if m.inbox_id not in batch.mail),
        )
        self.change(
            step=run.step + batch.steps,
            spend_usd=run.spend_usd + batch.spend_usd,
            tool_calls=run.tool_calls + batch.tool_calls,
            elapsed_ms=run.elapsed_ms + batch.elapsed_ms,
            dearest_call_usd=max(run.dearest_call_usd, batch.dearest_call_usd),
            charge_due=run.charge_due and not batch.charges_crash,
            crashes=0 if batch.steps else run.crashes,
        )
        self.trace += [entry.kind for entry in batch.trace]
        change()
        self.moves.append(name)
        if self.after is not None:
            await self.after(name)

    async def step(self, fence: Fence, batch: Batch) -> int:
        """Append, seen through as the port says."""
        landing: Landing[int] = Landing()

        async def move() -> None:
            try:
                await self._move("step", fence, batch, lambda: None)
            except Exception as error:  # noqa: BLE001  whoever waits gets it
                landing.set_exception(error)
            else:
                landing.set_result(self.view.run.news)

        moving = asyncio.create_task(move())
        try:
            return await landing.seen()
        finally:
            moving.cancel()

    async def answer(self, fence: Fence, batch: Batch, seen_news: int, text: str) -> None:
        """End."""
        await self._move("answer", fence, batch, lambda: self._end(RunState.ANSWERED), seen=seen_news, stop=True)

    def _end(self, state: RunState, **changes: Any) -> None:
        self.change(state=state, claim_token=None, stop_requested=None, **changes)

    async def intend(self, fence: Fence, batch: Batch, action: NewAction) -> None:
        """Record an intention."""

        def change() -> None:
            new = Action(
                fence.run_id, action.call, action.arguments_digest, action.idempotency_key, action.tool,
                action.arguments, ActionState.INTENDED, self.now(), 0.0, action.timeout_s, action.suspension_id,
            )  # fmt: skip
            same = (action.call, action.arguments_digest)
            others = tuple(a for a in self.view.actions if (a.call, a.arguments_digest) != same)
            self.view = replace(self.view, actions=(*others, new))

        await self._move("intend", fence, batch, change, stop=True)

    async def conclude(
        self, fence: Fence, batch: Batch, outcomes: Sequence[Outcome] = (), settlements: Sequence[Settlement] = ()
    ) -> None:
        """Record outcomes."""
        await self._move("conclude", fence, batch, lambda: self._conclude(outcomes, settlements))

    def _conclude(self, outcomes: Sequence[Outcome], settlements: Sequence[Settlement]) -> None:
        for outcome in outcomes:
            (action,) = (
                a for a in self.view.actions if (a.call, a.arguments_digest) == (outcome.call, outcome.arguments_digest)
            )
            assert action.state in (ActionState.INTENDED, ActionState.UNKNOWN)
            done = replace(action, state=outcome.state, result=outcome.result)
            self.view = replace(self.view, actions=tuple(done if a is action else a for a in self.view.actions))
        self.settled += settlements

    async def suspend(
        self, fence: Fence, batch: Batch, seen_news: int, new: Sequence[NewSuspension], *, stay_running: bool = False
    ) -> None:
        """Open suspensions."""

        def change() -> None:
            for n in new:
                for old in self.view.suspensions:
                    if old.id == n.replaces:
                        self._replace(old, replace(old, status=SuspensionStatus.REPLACED, replaced_by=n.id, votes=()))
                number = 1 + sum(s.call == n.call for s in self.view.suspensions)
                opened = suspension_of(n, fence.run_id, number, self.now())
                self.view = replace(self.view, suspensions=(*self.view.suspensions, opened))
            if not stay_running:
                self.change(state=RunState.SUSPENDED, claim_token=None)

        await self._move("suspend", fence, batch, change, seen=seen_news, stop=True)

    async def rearm(
        self, fence: Fence, batch: Batch, seen_news: int, suspension_id: str, token: str, note: str, *,
        stay_running: bool = False,
    ) -> bool:  # fmt: skip
        """Open it again, or expire it."""
        (old,) = (s for s in self.view.suspensions if s.id == suspension_id)
        over = old.expires_at <= self.now()
        status = SuspensionStatus.EXPIRED if over else SuspensionStatus.OPEN

        def change() -> None:
            self._replace(old, replace(old, status=status, token=token, note=note, votes=(), decided_at=None))
            if not over and not stay_running:
                self.change(state=RunState.SUSPENDED, claim_token=None)

        await self._move("rearm", fence, batch, change, seen=seen_news, stop=True)
        return not over

    async def supersede_open(self, fence: Fence, batch: Batch, seen_news: int) -> None:
        """Close open approvals."""

        def change() -> None:
            for s in self.view.suspensions:
                if s.status is SuspensionStatus.OPEN and s.kind is SuspensionKind.APPROVAL:
                    self._replace(s, replace(s, status=SuspensionStatus.SUPERSEDED))

        await self._move("supersede_open", fence, batch, change, seen=seen_news, stop=True)

    async def wait(self, fence: Fence, batch: Batch, seen_news: int) -> None:
        """Suspend."""
        assert any(s.status is SuspensionStatus.OPEN for s in self.view.suspensions)
        suspended = lambda: self.change(state=RunState.SUSPENDED, claim_token=None)  # noqa: E731
        await self._move("wait", fence, batch, suspended, seen=seen_news, stop=True)

    async def halt(
        self, fence: Fence, batch: Batch, reason: HaltReason, closing: Closing,
        settlements: Sequence[Settlement] = (), outcomes: Sequence[Outcome] = (),
    ) -> None:  # fmt: skip
        """Halt."""

        def change() -> None:
            self._conclude(outcomes, settlements)
            self._end(RunState.HALTED, halt_reason=reason, halts=self.view.run.halts + 1)
            self.closing = closing

        await self._move("halt", fence, batch, change)

    async def fail(
        self, fence: Fence, batch: Batch, reason: str, closing: Closing,
        settlements: Sequence[Settlement] = (), outcomes: Sequence[Outcome] = (),
    ) -> None:  # fmt: skip
        """Fail."""

        def change() -> None:
            self._conclude(outcomes, settlements)
            self._end(RunState.FAILED, fail_reason=reason)
            self.closing = closing

        await self._move("fail", fence, batch, change)


def suspension_of(n: NewSuspension, run_id: str, number: int, now: datetime) -> Suspension:
    """Return the row of a new suspension."""
    return Suspension(
        id=n.id, run_id=run_id, call=n.call, number=number, kind=n.kind, status=SuspensionStatus.OPEN, token=n.token,
        tool=n.tool, tool_version=n.tool_version, arguments=n.arguments, preview=n.preview.model_dump(mode="json"),
        digest=n.digest, policy=n.policy, asked_by=n.asked_by, opened_at=now,
        expires_at=now + timedelta(seconds=n.ttl_s), replaces=n.replaces, note=n.note,
    )  # fmt: skip


def a_suspension(
    status: SuspensionStatus = SuspensionStatus.APPROVED,
    *,
    position: int = 0,
    number: int = 1,
    kind: SuspensionKind = SuspensionKind.APPROVAL,
    **changes: Any,
) -> Suspension:
    """Return a suspension of the call at *position* of the turn at seq 1, decided just now unless open."""
    arguments = {"n": 1}
    preview = Preview(title="Send")
    decided = status is not SuspensionStatus.OPEN
    row = Suspension(
        id=f"s{position}.{number}.{kind}", run_id=FENCE.run_id, call=CallKey(1, position), number=number, kind=kind,
        status=status, token=f"t{position}.{number}", tool="send", tool_version="1", arguments=arguments,
        preview=preview.model_dump(mode="json"), digest=digest_of("send", "1", arguments, preview), policy=Approval(),
        asked_by="U1", opened_at=EPOCH, expires_at=EPOCH + LIFETIME,
        votes=("U1",) if status is SuspensionStatus.APPROVED else (),
        decided_at=EPOCH if decided else None, decided_by="U1" if decided else None,
    )  # fmt: skip
    return replace(row, **changes)


def an_action(state: ActionState = ActionState.INTENDED, *, position: int = 0, **changes: Any) -> Action:
    """Return the action of the call at *position* of the turn at seq 1."""
    key, arguments = CallKey(1, position), {"n": 1}
    digest = arguments_digest(arguments)
    row = Action(
        FENCE.run_id, key, digest, idempotency_key(FENCE.run_id, key, digest), "send",
        arguments, state, EPOCH, 1000.0, 30.0, None,
    )  # fmt: skip
    return replace(row, **changes)


async def scope_of(user: User) -> Scope:
    """Return a scope."""
    return Scope(permissions=frozenset({"all"}))


@dataclass
class World:
    """A loop on a memory store. *deed* is the write's, *look* the read's."""

    store: MemoryStore
    model: Script
    deed: Deed
    look: Deed
    clock: FakeClock
    people: People
    agent: Agent
    names: Numbers

    def loop(self) -> Loop:
        """Return a loop of a new process on the same rows."""
        return Loop(
            FENCE, self.store, self.agent, self.model, self.people, self.clock, self.names,
            lifetime=LIFETIME, operators=frozenset({"UOP"}),
        )  # fmt: skip

    async def go(self) -> None:
        """Work until the loop gives the run up; a hang is a failure."""
        async with asyncio.timeout(PATIENCE_S):
            await self.loop().run()

    @property
    def run(self) -> Run:
        """Return the run's row."""
        return self.store.view.run

    def results(self) -> list[str]:
        """Return the texts of the results, in order."""
        return [m.message.text for m in self.store.view.messages if m.message.role == "tool"]


def world(
    *lines: Any,
    messages: Sequence[StoredMessage] = (),
    suspensions: Sequence[Suspension] = (),
    actions: Sequence[Action] = (),
    deed: Deed | None = None,
    look: Deed | None = None,
    worst: Decimal = Decimal("0.01"),
    run: dict[str, Any] | None = None,
    scopes: Any = scope_of,
    **attributes: Any,
) -> World:
    """Return a world whose model says *lines*. *attributes*: of the write tool."""
    deed, look = deed or Deed(execute={"ok": True}), look or Deed(execute={"seen": 1})
    view = RunView(a_run(**(run or {})), list(messages) or [asked()], tuple(suspensions), tuple(actions), (), EPOCH)
    agent = Agent(instructions="", tools=[Write(deed, **attributes), Read(look)], scopes=scopes)
    return World(MemoryStore(view), Script(*lines, worst=worst), deed, look, FakeClock(), People(), agent, Numbers())


def says(text: str = "", *calls: ToolCall, usd: str = "0.01") -> ModelReply:
    """Return a model's reply."""
    return ModelReply(text=text, calls=calls, spend_usd=Decimal(usd))
