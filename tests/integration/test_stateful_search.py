"""A search for a history that breaks a promise: Hypothesis moves workers, clicks, clocks, crashes and letters at will.

The loop, the engine, the drain and the stores are the real ones, on a real database. Only time and the order of things
are the search's: a worker stops before every call that it makes to its store, its tools or its model, and goes on when
it is told to, with an answer, without one, or not at all. What each call may do to a run comes from the table of moves.

ATLAS_STATEFUL_EXAMPLES=N searches N histories at random; without it a few, always the same.
"""

import asyncio
import os
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import count
from typing import Any, ClassVar, TypeVar, cast
from urllib.parse import urlsplit, urlunsplit
from uuid import UUID, uuid5

import asyncpg
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from core import Agent, Limits, Scope, User
from core.approvals import Via
from core.engine import Actor, Engine, Rules
from core.loop import Loop
from core.mail import Drain
from core.ports import Fence, InboundEvent
from core.run import FailReason, RunState
from core.words import is_bare_assent
from storage.migrate import migrate
from tests.integration.searchworld import (
    NEEDS_APPROVAL,
    Directory,
    Elsewhere,
    Gate,
    Hand,
    Instant,
    Judged,
    Killed,
    Look,
    Note,
    Order,
    Planned,
    Process,
    Send,
    Sign,
    Slowly,
    Target,
    Wire,
    Words,
    claims,
)
from tests.integration.storeworld import TABLES, World
from tests.invariants import Effect, _conversations, _effects, _read, watch
from tests.unit.coreworld import Numbers

T = TypeVar("T")
EXAMPLES = os.environ.get("ATLAS_STATEFUL_EXAMPLES")
LIFETIME = timedelta(minutes=30)
LIMITS = Limits(max_steps=5, max_tool_calls=7, max_spend_usd=Decimal("0.06"), max_elapsed_s=10_000_000)
LEASE_S = 90.0
# A broken history is made short only when somebody looks at it: that takes longer than finding it.
PHASES = (Phase.generate, Phase.shrink) if EXAMPLES else (Phase.generate,)
PEOPLE = ("U1", "U2", "U3")
TOOLS = ("order", "note", "send", "order", "note", "wire", "sign", "look")
HEALING_ROUNDS = 40
# Calls to one that is waited for, at most.
SOON = 25
# Calls from a request that broke off to the next one, if nobody waits in between.
AT_ONCE = 9
A_TURN_TAKES_AT_MOST_S = 30.0
# What a model will do: the tools that it calls, turn by turn.
PLANS = st.lists(st.lists(st.sampled_from(TOOLS), min_size=1, max_size=3), min_size=1, max_size=2).map(
    lambda turns: "do: " + "/".join(" ".join(turn) for turn in turns)
)
# Plans that soon come to a write whose target honours no key; or any.
BEGINNINGS = st.one_of(
    st.sampled_from(("do: note order", "do: order/note", "do: look note", "do: note sign/order")), PLANS
)
# Calls at which it hurts, and how what was asked of the world breaks off there.
CALLS = st.sampled_from(
    ("execute", "execute", "execute", "conclude", "intend", "suspend", "model", "reconcile", "answer", "step", "step")
)
# "late": the connection breaks, and the request takes effect a second before its timeout. "outlived": the host hangs
# past its lease; its run is taken over, or only taken away, and then it wakes.
BREAKS = st.sampled_from(
    ("die after", "die after", "unheard", "die before", "unreachable", "late", "late", "outlived", "taken away")
)
# What each fence, and each belief about a request that broke, stands against comes first; then anything.
FAULTS = st.one_of(
    st.tuples(st.sampled_from(("step", "intend", "conclude", "suspend")), st.sampled_from(("taken away", "outlived"))),
    st.tuples(st.sampled_from(("execute note", "execute order", "execute")), st.sampled_from(("late", "die after"))),
    st.tuples(CALLS, BREAKS),
)


# ---- the machine -----------------------------------------------------------------------------------------------------


@dataclass
class Bench:
    """What all histories share: one loop, one database, emptied for each."""

    runner: asyncio.Runner
    pool: "asyncpg.Pool[asyncpg.Record]"
    moves_seen: set[str] = field(default_factory=set)

    def run(self, doing: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(doing)


class Machine(RuleBasedStateMachine):
    """One history. Lists are addressed by any number, modulo their length."""

    bench: ClassVar[Bench]

    @initialize(first=BEGINNINGS, second=PLANS, agreed=st.booleans(), faults=st.lists(FAULTS, min_size=1, max_size=3))
    def begin(self, first: str, second: str, agreed: bool, faults: list[tuple[str, str]]) -> None:
        """Two people have asked for something, some of it is under way, and it has gone wrong already."""
        self._empty()
        self.write("U1", "1.0", first, False, 0)
        self.write("U2", "2.0", second, True, 0)
        if agreed:
            self.run(self._let_them_work(40))
            self.every_promise_holds()
            self.agree(0)
        for before, how in faults:
            self.run(self._let_them_work(1))
            self.break_off_at(0, before, how)
            self.run(self._outlived())

    async def _outlived(self) -> None:
        await self._pass_time(LEASE_S + 1)
        await self.upkeep.reap(lease_s=LEASE_S, quick=False)

    def _empty(self) -> None:
        self.run = self.bench.run
        self.run(self.bench.pool.execute(f"truncate {', '.join(TABLES)}, watched restart identity cascade"))
        self.world = World(self.bench.pool, datetime.now(UTC), "")
        self.target = Target(self.world.time)
        self.people = Directory()
        self.names = Numbers()
        self.numbers = count(1)
        self.wrong: list[str] = []
        self.hands: list[Hand] = []
        self.processes: list[Process] = []
        self.cards: list[tuple[str, str, str]] = []
        self.amounts: dict[str, tuple[Any, ...]] = {}
        self.room: Process | None = None
        for _ in range(3):
            self._hire()
        desk = self._judged("Desk", self.world.desk, None)
        agent = self._agent(None, None)
        self.engine = Engine(agent, desk, self.people, Rules(lifetime=LIFETIME), self)
        route = {"model": "planned"}
        self.drain = Drain(self.engine, desk, self.people, cast(Any, Words()), Instant(self.world), self.names, route)
        self.upkeep = self._judged("Upkeep", self.world.upkeep, None)

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        try:
            self.run(self._heal())
            self.run(self._judge_the_end())
        finally:
            self.run(self._bury(list(self.hands)))

    # -- building ---------------------------------------------------------------------------------------------

    def _judged(self, name: str, store: Any, gate: Gate | None) -> Any:
        return Judged(name, store, self.bench.pool, gate, lambda: self.world.pass_time(0.001), self.wrong)

    def _agent(self, gate: Gate | None, still_ours: Callable[[], Awaitable[bool]] | None) -> Agent:
        async def scopes(user: User) -> Scope:
            return Scope(permissions=frozenset({"act"} if self.target.allowed else ()))

        kinds = (Look, Note, Send, Order, Wire, Sign)
        tools = [kind(self.target, gate, still_ours) for kind in kinds]
        return Agent(instructions="", tools=tools, scopes=scopes, limits=LIMITS, model=Planned(gate, self.wrong))

    def _hire(self, *, alone: bool = False) -> Process:
        number = next(self.numbers)
        process = Process(str(uuid5(UUID(int=0), str(number))), alone)
        self.processes.append(process)
        role = "alone" if alone else "worker"
        self.run_now(self.world.upkeep.register(process.id, "here", number, role, number, holds_lock=False))
        return process

    def run_now(self, doing: Coroutine[Any, Any, T]) -> T:
        return self.bench.run(doing)

    # core.engine.Room

    def worker_id_if_room(self) -> str | None:
        return self.room.id if self.room is not None and not self.room.dead else None

    def adopt(self, fence: Fence) -> None:
        worker = next(p for p in self.processes if p.id == self.worker_id_if_room())
        self._take(worker, fence)

    def _take(self, worker: Process, fence: Fence) -> None:
        gate = Gate()
        # Of the others, each claim is that of a process which has never seen the run.
        first = worker is self.processes[0]
        kept = self.world.worker if first else Elsewhere(self.world, self.bench.moves_seen)
        store = self._judged("WorkerStore", kept, gate)

        async def still_ours() -> bool:
            return (await claims(self.bench.pool)).get(fence.run_id) == (RunState.RUNNING, fence.claim_token)

        agent = self._agent(gate, still_ours)
        assert agent.model is not None
        loop = Loop(
            fence, store, agent, agent.model, self.people, Slowly(self.world, gate), self.names, lifetime=LIFETIME
        )
        task = asyncio.get_running_loop().create_task(loop.run())
        self.hands.append(Hand(worker, fence, gate, loop, task))

    # -- stepping ---------------------------------------------------------------------------------------------

    async def _settled(self, hand: Hand) -> None:
        """Wait until a hand stops at its next call, or has ended."""
        async with asyncio.timeout(A_TURN_TAKES_AT_MOST_S):
            while not hand.task.done() and (hand.gate.working or hand.gate.at is None):
                await asyncio.sleep(0)
                if hand.gate.working:
                    await asyncio.sleep(0.0005)

    async def _go(self, hand: Hand, how: str = "go", times: int = 1) -> None:
        for number in range(times):
            await self._settled(hand)
            if hand.task.done():
                break
            last = number == times - 1
            if last and how in ("outlived", "taken away"):
                await self._outlive(hand.worker, taken_over=how == "outlived")
                await self._settled(hand)
                how = "go"  # and it wakes
            if not hand.task.done():
                hand.gate.tell(how if last else "go")
            await self._settled(hand)
        if hand.gate.dead:
            await self._kill(hand.worker)
        self._collect()
        if how == "late":
            await self._go(hand, "go", AT_ONCE)  # before the request takes effect

    async def _kill(self, process: Process) -> None:
        process.dead = True
        process.beats = False
        await self._bury([hand for hand in self.hands if hand.worker is process])

    async def _bury(self, hands: list[Hand]) -> None:
        for hand in hands:
            await self._settled(hand)
            hand.gate.dead = True
            if not hand.task.done():
                hand.gate.tell("die before")
            with suppress(Killed):
                async with asyncio.timeout(A_TURN_TAKES_AT_MOST_S):
                    await hand.task
        self._collect()

    def _collect(self) -> None:
        """Let go of what has ended; a defect of the loop is a defect found."""
        for hand in [hand for hand in self.hands if hand.task.done()]:
            self.hands.remove(hand)
            error = None if hand.task.cancelled() else hand.task.exception()
            if error is not None and not isinstance(error, Killed):
                raise error

    @property
    def living(self) -> list[Process]:
        return [process for process in self.processes if not process.dead and not process.alone]

    # -- rules: people ----------------------------------------------------------------------------------------

    @rule(
        user=st.sampled_from(("U1", "U1", "U2")),
        thread=st.sampled_from(("1.0", "1.0", "2.0")),
        text=st.one_of(
            PLANS,
            st.sampled_from(("yes", "thanks", "continue", "stop", "and something else")),
        ),
        drained=st.booleans(),
        into=st.integers(0, 3),
    )
    def write(self, user: str, thread: str, text: str, drained: bool, into: int) -> None:
        number = next(self.numbers)
        ts = f"{number}.5"
        event = InboundEvent(f"Ev{number}", "mention", "T1", "C1", ts, thread, user, text, {})
        assert self.run(self.world.inbox.put(event))
        assert not self.run(self.world.inbox.put(event)), "Slack sends it again"
        if drained:
            self.take_mail(into)

    @rule(into=st.integers(0, 3))
    def take_mail(self, into: int) -> None:
        self._into(into)
        self.run(self._drained())

    async def _drained(self) -> None:
        # One at a time: side by side their order would be PostgreSQL's, and no history could be played again.
        while await self.drain.once(limit=1):
            pass

    def _into(self, into: int) -> None:
        self.room = self.living[into % len(self.living)] if into and self.living else None

    @rule(
        which=st.integers(0, 50),
        old=st.booleans(),
        user=st.sampled_from(PEOPLE),
        act=st.sampled_from(("approve", "approve", "approve", "decline", "edit")),
        into=st.integers(0, 3),
    )
    def click(self, which: int, old: bool, user: str, act: str, into: int) -> None:
        """Press a button of the newest cards, or of any that ever stood there."""
        cards = self.cards if old else self.cards[-3:]
        if cards:
            self._into(into)
            self.run(self._click(cards[which % len(cards)], user, act))

    async def _click(self, card: tuple[str, str, str], user: str, act: str) -> None:
        suspension, token, digest = card
        actor = Actor("T1", user, Via.BUTTON)
        before = await self.bench.pool.fetchrow("select status, token from suspensions where id = $1", suspension)
        if act == "edit":
            decided = await self.engine.edit(actor, suspension, token, {"n": 7})
        else:
            decided = await self.engine.decide(actor, suspension, token, approve=act == "approve", digest=digest)
        assert before is not None
        open_before = (before["status"], before["token"]) == ("open", token)
        late_outcome = before["status"] == "expired"
        assert decided.refusal is not None or open_before or late_outcome, f"{act} of a spent button: {before}"

    @rule(which=st.integers(0, 20), user=st.sampled_from(("U1", "U1", "U2")))
    def stop(self, which: int, user: str) -> None:
        if run_id := self._any_run(which):
            self.run(self.engine.stop_run(Actor("T1", user, Via.BUTTON), run_id))

    @rule(
        which=st.integers(0, 20),
        user=st.sampled_from(("U1", "U1", "U2")),
        back=st.integers(0, 1),
        into=st.integers(0, 3),
    )
    def go_on(self, which: int, user: str, back: int, into: int) -> None:
        """Press Continue, perhaps of an older halt."""
        if run_id := self._any_run(which):
            self._into(into)
            self.run(self._continue(run_id, user, back))

    async def _continue(self, run_id: str, user: str, back: int) -> None:
        run = await self.world.desk.run(run_id)
        assert run is not None
        number = run.halts - back
        continued = await self.engine.continue_run(Actor("T1", user, Via.BUTTON), run_id, number)
        legal = run.state is RunState.HALTED and run.owner.user_id == user and back == 0
        assert legal or continued.run is None, f"continue of a {run.state} run"

    def _any_run(self, which: int) -> str | None:
        ids = sorted(self.amounts)
        return ids[which % len(ids)] if ids else None

    # -- rules: workers ---------------------------------------------------------------------------------------

    @rule(which=st.integers(0, 5), room=st.integers(1, 2), heard=st.booleans())
    def claim(self, which: int, room: int, heard: bool) -> None:
        """Claim; *heard* false: the answer was lost, and the worker finds its strays later."""
        if self.living:
            self.run(self._claim(self.living[which % len(self.living)], room, heard=heard))

    async def _claim(self, worker: Process, room: int, *, heard: bool = True) -> None:
        store = self._judged("WorkerStore", self.world.worker, None)
        claimed = await store.claim(worker.id, room)
        if heard:
            for each in claimed:
                self._take(worker, each.fence)

    @rule(which=st.integers(0, 5))
    def look_for_strays(self, which: int) -> None:
        if self.living:
            self.run(self._strays(self.living[which % len(self.living)]))

    async def _strays(self, worker: Process) -> None:
        known = {hand.fence for hand in self.hands}
        for fence in await self.world.worker.claims_of(worker.id):
            if fence not in known:
                self._take(worker, fence)

    @rule()
    def claim_alone(self) -> None:
        """A process of its own for a run that took others down."""
        self.run(self._alone())

    async def _alone(self) -> None:
        store = self._judged("WorkerStore", self.world.worker, None)
        for run_id in await store.to_be_alone(2):
            number = next(self.numbers)
            child = Process(str(uuid5(UUID(int=0), str(number))), alone=True)
            self.processes.append(child)
            await self.world.upkeep.register(child.id, "here", number, "alone", number, holds_lock=False)
            claimed = await store.claim_one(child.id, run_id)
            if claimed is not None:
                self._take(child, claimed.fence)

    @rule(times=st.sampled_from((40, 20, 10)))
    def let_them_work(self, times: int) -> None:
        """Without disturbance for a while: whoever has room claims, and all go on."""
        self.run(self._let_them_work(times))

    async def _let_them_work(self, times: int) -> None:
        await self._drained()
        if self.living:
            await self._claim(self.living[0], 2)
        for hand in list(self.hands):
            if hand in self.hands:
                await self._go(hand, "go", times)

    @rule(into=st.integers(0, 3))
    def agree(self, into: int) -> None:
        """Everybody approves what waits for them."""
        self._into(into)
        self.run(self._agree())

    async def _agree(self) -> None:
        for suspension, _ in await self.world.desk.pending():
            for user in PEOPLE:
                await self._click((suspension.id, suspension.token, suspension.digest), user, "approve")

    @rule(which=st.integers(0, 10), times=st.integers(1, 9))
    def work(self, which: int, times: int) -> None:
        if self.hands:
            self.run(self._go(self.hands[which % len(self.hands)], "go", times))

    @rule(
        which=st.integers(0, 10),
        times=st.integers(1, 5),
        how=BREAKS,
    )
    def break_off(self, which: int, times: int, how: str) -> None:
        if self.hands:
            self.run(self._go(self.hands[which % len(self.hands)], how, times))
        if not self.living:
            self._hire()

    @rule(
        which=st.integers(0, 10),
        before=CALLS,
        how=BREAKS,
    )
    def break_off_at(self, which: int, before: str, how: str) -> None:
        """The same at a call where it hurts, if that comes soon."""
        if self.hands:
            self.run(self._break_off_at(self.hands[which % len(self.hands)], before, how))
        if not self.living:
            self._hire()

    async def _break_off_at(self, hand: Hand, before: str, how: str) -> None:
        for _ in range(SOON):
            await self._settled(hand)
            if hand.task.done() or (hand.gate.at or "").startswith(before):
                break
            await self._go(hand)
        if not hand.task.done():
            await self._go(hand, how)

    @rule(which=st.integers(0, 10), taken_over=st.booleans())
    def outlive(self, which: int, taken_over: bool) -> None:
        """A host hangs past its lease, and another takes over what it had; it works on whenever it likes."""
        if self.hands:
            self.run(self._outlive(self.hands[which % len(self.hands)].worker, taken_over=taken_over))

    async def _outlive(self, worker: Process, *, taken_over: bool) -> None:
        worker.beats = False
        await self._outlived()
        others = [process for process in self.living if process is not worker and process.beats]
        if others and taken_over:
            await self._claim(others[0], 5)
            for hand in [hand for hand in self.hands if hand.worker is others[0]]:
                await self._go(hand, "go", 6)

    @rule(which=st.integers(0, 10))
    def leave(self, which: int) -> None:
        """A deploy: this hand gives its run back at the next safe point."""
        if self.hands:
            self.hands[which % len(self.hands)].loop.drain()

    @rule(which=st.integers(0, 5))
    def fall_silent(self, which: int) -> None:
        """A hung host: it beats no more, and works on whenever it likes."""
        if self.living:
            worker = self.living[which % len(self.living)]
            worker.beats = not worker.beats

    # -- rules: time, jobs, the world -------------------------------------------------------------------------

    @rule(seconds=st.sampled_from((0.5, 3.0, 40.0, 95.0, 700.0, 1801.0)), reaped=st.booleans())
    def pass_time(self, seconds: float, reaped: bool) -> None:
        self.run(self._pass_time(seconds))
        if reaped:
            self.reap()

    async def _pass_time(self, seconds: float) -> None:
        self.world.pass_time(seconds)
        for process in self.processes:
            if process.beats and not process.dead:
                await self.world.upkeep.beat(process.id)

    @rule()
    def reap(self) -> None:
        self.run(self.upkeep.reap(lease_s=LEASE_S, quick=False))

    @rule()
    def expire(self) -> None:
        self.run(self.upkeep.expire_due())

    @rule(what=st.sampled_from(("price", "hold", "allowed", "down")))
    def change(self, what: str) -> None:
        match what:
            case "price":
                self.target.price += 1
            case "hold":
                self.target.hold = not self.target.hold
            case "allowed":
                self.target.allowed = not self.target.allowed
            case "down":
                self.people.down = not self.people.down

    # -- what holds after each --------------------------------------------------------------------------------

    @invariant()
    def every_promise_holds(self) -> None:
        if hasattr(self, "world"):
            self.run(self._promises())

    async def _promises(self) -> None:
        self.target.arrive()
        rows = await _read(self.bench.pool)
        effects = [Effect(key) for key, times in self.target.done.items() for _ in range(times)]
        wrong = self.wrong + [str(row["what"]) for row in rows.watched]
        wrong += _effects(rows, effects, NEEDS_APPROVAL)
        wrong += _conversations(rows)
        for run in rows.runs:
            wrong += self._amounts(run)
            if run["fail_reason"] == FailReason.DEFECT.value:
                wrong.append(f"{run['id']} failed by a defect: {[t['body'] for t in rows.of(rows.trace, run)][-1:]}")
            if run["claim_token"] is not None and run["state"] != "running":
                wrong.append(f"{run['id']} is {run['state']} and claimed")
            if run["state"] in ("answered", "failed", "halted"):
                wrong += [f"{run['id']} has ended, {a['tool']} is intended" for a in _of(rows.actions, run, "intended")]
                wrong += [f"{run['id']} has ended, a card is open" for _ in _of(rows.suspensions, run, "open")]
            if run["state"] == "suspended" and not _of(rows.suspensions, run, "open"):
                wrong.append(f"{run['id']} waits for nobody")
        opened = Counter(
            (s["run_id"], s["call_seq"], s["call_position"]) for s in rows.suspensions if s["status"] == "open"
        )
        wrong += [f"{call}: {number} open suspensions" for call, number in opened.items() if number > 1]
        assert not wrong, "\n".join(wrong)
        for s in rows.suspensions:
            card = (s["id"], s["token"], s["digest"])
            if card not in self.cards:
                self.cards.append(card)
        self.bench.moves_seen |= {str(entry["kind"]) for entry in rows.trace}

    def _amounts(self, run: dict[str, Any]) -> Iterator[str]:
        now = (run["step"], run["spend_usd"], run["tool_calls"], run["elapsed_ms"], run["halts"])
        before = self.amounts.get(run["id"], now)
        if any(new < old for new, old in zip(now, before, strict=True)):
            yield f"{run['id']}: amounts went from {before} to {now}"
        self.amounts[run["id"]] = now
        limits = (run["max_steps"], run["max_spend_usd"], run["max_tool_calls"])
        if any(used > limit for used, limit in zip(now, limits, strict=False)):
            yield f"{run['id']}: used {now[:3]} of {limits}"

    # -- the end ----------------------------------------------------------------------------------------------

    async def _heal(self) -> None:
        """Let everything go well from now on: late comers first, then work until nothing is left to do."""
        self.target.hold, self.target.allowed, self.people.down = False, True, False
        self.room = None
        for hand in list(self.hands):
            if hand in self.hands:
                await self._go(hand)
        if not self.living:
            process = Process(str(uuid5(UUID(int=0), str(next(self.numbers)))))
            self.processes.append(process)
            await self.world.upkeep.register(process.id, "here", 1, "worker", 1, holds_lock=False)
        for process in self.living:
            process.beats = True
        for _ in range(HEALING_ROUNDS):
            await self._pass_time(35)
            await self._drained()
            await self.upkeep.reap(lease_s=LEASE_S, quick=False)
            await self._claim(self.living[0], 20)
            for process in self.living:
                await self._strays(process)
            await self._alone()
            while self.hands:
                await self._go(self.hands[0], "go", 50)
            await self._promises()
            if await self._idle():
                return
        runs = await self.bench.pool.fetch("select id, state, claimed_by, crashes, recovery_attempts from runs")
        mail = await self.bench.pool.fetch(
            "select id, run_id, attempts, next_attempt_at, leased_until from inbox"
            " where handled_at is null and parked_at is null"
        )
        raise AssertionError(f"never at rest: {[dict(row) for row in (*runs, *mail)]}, at {self.world.time()}")

    async def _idle(self) -> bool:
        running = await self.bench.pool.fetchval("select count(*) from runs where state = 'running'")
        mail = await self.bench.pool.fetch(
            "select i.text, r.state from inbox i left join runs r on r.id = i.run_id"
            " where i.handled_at is null and i.parked_at is null"
        )
        # A bare assent that came just before its run was suspended replaces nothing: it waits as long as the run does.
        return not running and all(row["state"] == "suspended" and is_bare_assent(row["text"]) for row in mail)

    async def _judge_the_end(self) -> None:
        """At rest, what was approved and is called done was done once, and each run's money adds up."""
        rows = await _read(self.bench.pool)
        for run in rows.runs:
            traced = sum((t["spend_usd"] or Decimal(0) for t in rows.of(rows.trace, run)), Decimal(0))
            assert traced == run["spend_usd"], f"{run['id']}: spent {run['spend_usd']}, its trace says {traced}"
        keys = {action["idempotency_key"] for action in rows.actions if action["state"] == "succeeded"}
        told = any(s["kind"] == "outcome" for s in rows.suspensions)
        assert told or all(self.target.done[key] == 1 for key in keys)


def _of(rows: list[dict[str, Any]], run: dict[str, Any], state: str) -> list[dict[str, Any]]:
    return [row for row in rows if row["run_id"] == run["id"] and row.get("state", row.get("status")) == state]


# ---- the search ------------------------------------------------------------------------------------------------------


@pytest.fixture
def bench(postgres: str) -> Iterator[Bench]:
    """A loop and a database for all histories of a test."""
    name = f"atlas_search_{os.getpid()}"

    async def admin(*statements: str) -> None:
        connection = await asyncpg.connect(postgres)
        try:
            for statement in statements:
                await connection.execute(statement)
        finally:
            await connection.close()

    async def opened() -> "asyncpg.Pool[asyncpg.Record]":
        await admin(f'drop database if exists "{name}"', f'create database "{name}"')
        dsn = urlunsplit(urlsplit(postgres)._replace(path=f"/{name}"))
        await migrate(dsn)
        await watch(dsn)
        return await asyncpg.create_pool(dsn, min_size=1, max_size=4)

    with asyncio.Runner() as runner:
        pool = runner.run(opened())
        try:
            yield Bench(runner, pool)
        finally:
            runner.run(pool.close())
            runner.run(admin(f'drop database if exists "{name}" with (force)'))


@pytest.mark.slow
def test_no_history_breaks_a_promise(bench: Bench) -> None:
    class Search(Machine):
        pass

    Search.bench = bench
    run_state_machine_as_test(
        Search,
        settings=settings(
            max_examples=int(EXAMPLES or 20),
            stateful_step_count=60 if EXAMPLES else 45,
            derandomize=EXAMPLES is None,
            database=None,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            print_blob=True,
            phases=PHASES,
        ),
    )
    # A search that never got anywhere finds nothing: these came up.
    came_up = {"claimed", "model", "reaped", "suspended", "suspension.approved", "answered", "read later"}
    assert came_up <= bench.moves_seen, bench.moves_seen
