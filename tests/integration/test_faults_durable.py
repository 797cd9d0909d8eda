"""Faults that others reported about approvals that get lost, wrong or doubled effects and durable runs, by reference.

The loop, the stores and PostgreSQL are the real ones; time is the test's. The last test holds that every reference of
the three lists stands in the docstring of a test, here or elsewhere.
"""

import asyncio
import json
import os
import re
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import uuid4

import asyncpg
import pytest

from core import Agent, Approval, DidNotHappen, Happened, Limits, Preview, Scope, ToolContext, User
from core.approvals import Refusal
from core.conversation import CallKey, Message, ModelReply, StoredMessage, ToolCall
from core.errors import ClaimLost, StoreUnavailable
from core.loop import Loop
from core.mail import follow_up
from core.next_act import Conclude, next_act
from core.ports import Alert, Batch, Closing, Fence, InboundEvent, Outcome, Settlement, TraceEntry
from core.run import ActionState, HaltReason
from jobs.heartbeat import Heartbeat
from jobs.reap_orphans import BATCH, ReapOrphans
from jobs.scheduler import Schedule
from storage import sql
from storage.database import open_pool
from storage.maintenance import PgMaintenance
from storage.migrate import migrate
from storage.rows import batch_columns
from storage.worker_store import PgWorkerStore
from tests.conftest import POOLED, STATEMENTS_KEPT
from tests.integration.pgbouncer import new_sessions
from tests.integration.storeworld import DEADLINE_S, OPERATOR, World, an_action, an_ask, clicker, world_on
from tests.integration.test_faults_slack import docstrings
from tests.soak.cluster import running
from tests.unit.coreworld import Deed, Numbers, People, Read, Script, Write, assert_valid, call, says

ASK = Approval(by="requester")
LEASE_S = 90.0
LIFETIME = timedelta(minutes=30)


@pytest.fixture
def world(pool: "asyncpg.Pool[asyncpg.Record]") -> World:
    return world_on(pool)


# ---- a worker on the real store --------------------------------------------------------------------------------------


@dataclass
class Clock:
    """The world's time: who sleeps lets it pass."""

    world: World

    def monotonic(self) -> float:
        return self.world.now.timestamp()

    async def sleep(self, seconds: float) -> None:
        self.world.pass_time(seconds)
        await asyncio.sleep(0)


@dataclass
class Place:
    """A target that does every request anew, with the one write and the one read of these tests. *held*: after an
    effect its answer does not come back until this is set, as for a process that is gone."""

    world: World
    model: Script
    deed: Deed = field(default_factory=lambda: Deed(policy=ASK))
    done: list[str] = field(default_factory=list)
    held: asyncio.Event | None = None
    names: Numbers = field(default_factory=Numbers)
    also: tuple[Any, ...] = ()
    store: Any = None

    def __post_init__(self) -> None:
        self.deed.execute, self.deed.reconcile = self.act, self.look

    async def act(self, ctx: ToolContext) -> Any:
        self.done.append(ctx.idempotency_key)
        if self.held is not None:
            await self.held.wait()
        return {"number": f"Q-{len(self.done)}"}

    async def look(self, ctx: ToolContext) -> Any:
        return Happened(result={"number": "Q-1"}) if ctx.idempotency_key in self.done else DidNotHappen()

    def agent(self) -> Agent:
        async def scopes(user: User) -> Scope:
            return Scope()

        tools = [Write(self.deed), Read(Deed(execute={"seen": 1})), *self.also]
        return Agent(instructions="", tools=tools, scopes=scopes, limits=Limits(), model=self.model)

    def loop(self, fence: Fence, **more: Any) -> Loop:
        agent = self.agent()
        return Loop(
            fence, self.store or self.world.worker, agent, self.model, People(), Clock(self.world), self.names,
            lifetime=LIFETIME, **more,
        )  # fmt: skip

    async def work(self, **more: Any) -> None:
        """Claim what there is, and work until nothing is left to be claimed."""
        while claimed := await self.world.worker.claim(str(uuid4()), 9):
            for each in claimed:
                await self.loop(each.fence, **more).run()

    async def suspended(self) -> str:
        """Start a run and let it come to its first wait."""
        fence = await self.world.started()
        await self.loop(fence).run()
        assert await self.world.state(fence.run_id) == "suspended"
        return fence.run_id

    async def open(self) -> list[Any]:
        return [suspension for suspension, _ in await self.world.desk.pending()]

    async def press(self, card: Any, *, approve: bool = True, user: str = "U1") -> Any:
        return await self.world.desk.decide(card.id, card.token, card.digest, clicker(user), approve=approve)

    async def results(self, run_id: str) -> list[str]:
        rows = await self.world.pool.fetch(
            "select body from messages where run_id = $1 and role = 'tool' order by seq", run_id
        )
        return [json.loads(row["body"])["text"] for row in rows]


# ---- a click, and what is done ---------------------------------------------------------------------------------------


async def test_nothing_acts_before_somebody_said_yes(world: World) -> None:
    """google/adk-go#876: the tool ran before the human answered. However often its run is put back to work."""
    place = Place(world, Script(says("", call()), says("Done.")))
    run_id = await place.suspended()
    for _ in range(3):
        await world.pool.execute("update runs set state = 'running', claimable_at = now() where id = $1", run_id)
        await place.work()
        assert await world.state(run_id) == "suspended"
        assert place.done == []
        assert await world.value("select count(*) from actions") == 0
    (card,) = await place.open()
    await place.press(card)
    await place.work()
    assert (len(place.done), await world.state(run_id)) == (1, "answered")


async def test_after_a_no_nothing_is_left_to_run(world: World) -> None:
    """langchain-ai/langchain#37093, google/adk-python#7148: the next node ran the rejected call; a tool of one's own
    never got to see the verdict. This tool looks at nothing at all: it is simply not called."""
    place = Place(world, Script(says("", call()), says("As you wish.")))
    run_id = await place.suspended()
    (card,) = await place.open()
    assert (await place.press(card, approve=False)).refusal is None
    (claimed,) = await world.worker.claim(str(uuid4()), 9)
    act = next_act(await world.worker.load(claimed.fence), LIFETIME)
    assert isinstance(act, Conclude), "what is left to do with the call is to give it its result"
    await place.loop(claimed.fence).run()
    assert (place.done, place.deed.effects, await world.state(run_id)) == ([], 0, "answered")
    (told,) = await place.results(run_id)
    assert '"declined_by_user"' in told
    assert await world.value("select count(*) from actions") == 0


async def test_the_yes_is_spent_and_the_intention_stored_before_the_effect(world: World) -> None:
    """datalayer/agent-runtimes#104: the approval was marked as used after the effect, so that a crash left it good."""
    place = Place(world, Script(says("", call()), says("Done.")))
    await place.suspended()
    (card,) = await place.open()
    assert (await place.press(card)).refusal is None
    assert (await place.press(card)).refusal is Refusal.DECIDED
    seen: list[tuple[str, str, Any]] = []

    async def act(ctx: ToolContext) -> Any:
        row = await world.pool.fetchrow(
            "select s.status, a.state from suspensions s join actions a on a.suspension_id = s.id"
        )
        assert row is not None, "the intention is committed"
        seen.append((row["status"], row["state"], (await place.press(card)).refusal))
        return {"number": "Q-1"}

    place.deed.execute = act
    await place.work()
    assert seen == [("approved", "intended", Refusal.DECIDED)]


async def test_an_effect_whose_result_was_not_stored_is_found_and_not_repeated(world: World) -> None:
    """andrewyng/openworker#443, pydantic/pydantic-ai#5536, crewAIInc/crewAI#5802: an approved effect was replayed, or a
    payment repeated, when the step was tried again. Three processes die in turn: after the effect, before its result
    is stored. The target honours no key, so that a second request would be a second effect."""
    place = Place(world, Script(says("", call()), says("Done.")), held=asyncio.Event())
    run_id = await place.suspended()
    (card,) = await place.open()
    await place.press(card)
    dead: list[asyncio.Task[None]] = []
    asked = 0

    async def look(ctx: ToolContext) -> Any:
        nonlocal asked
        asked += 1
        if asked < 3:
            await asyncio.Event().wait()  # this process dies while it asks
        return await place.look(ctx)

    place.deed.reconcile = look
    for died in range(1, 4):
        (claimed,) = await world.worker.claim(str(uuid4()), 9)
        dead.append(asyncio.ensure_future(place.loop(claimed.fence).run()))
        async with asyncio.timeout(DEADLINE_S):
            while (len(place.done), asked) != (1, died - 1):
                await asyncio.sleep(0.005)
        world.pass_time(LEASE_S + 1)
        assert await world.upkeep.reap(lease_s=LEASE_S, quick=False) == [run_id]
        await world.pool.execute("update runs set recovery_attempts = 1, crashes = 0 where id = $1", run_id)
    await place.work()
    assert (len(place.done), asked) == (1, 3)
    assert await place.results(run_id) == ['{"number": "Q-1"}']
    assert await world.value("select array_agg(state) from actions") == [ActionState.SUCCEEDED.value]
    assert await world.state(run_id) == "answered"
    place.held.set()  # type: ignore[union-attr]
    for task in dead:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
    assert len(await place.results(run_id)) == 1, "whoever comes back late adds nothing"


async def test_of_three_that_wait_one_is_answered_and_two_go_on_waiting(world: World) -> None:
    """agno-agi/agno#9869, agno-agi/agno#9401: answering one of several ended the run, and a click delivered again acted
    again. langchain-ai/langgraph#6626: parallel calls shared one id."""
    calls = [call(id="call_1", n=n) for n in (1, 2, 3)]  # the model's own ids repeat
    place = Place(world, Script(says("", *calls), says("Done.")))
    run_id = await place.suspended()
    cards = await place.open()
    assert len({card.token for card in cards}) == len({card.id for card in cards}) == 3
    await place.press(cards[1])
    await place.work()
    assert (len(place.done), await world.state(run_id)) == (1, "suspended")
    before = await world.everything()
    for _ in range(2):
        assert (await place.press(cards[1])).refusal is Refusal.DECIDED
    await place.work()
    after = await world.everything()
    assert {table: rows for table, rows in after.items() if table != "audit"} == {
        table: rows for table, rows in before.items() if table != "audit"
    }
    assert {card.id for card in await place.open()} == {cards[0].id, cards[2].id}
    for card in (cards[2], cards[0]):
        await place.press(card)
        await place.work()
    assert (len(place.done), len(set(place.done)), await world.state(run_id)) == (3, 3, "answered")


async def test_an_identical_call_asks_again_and_the_model_sees_the_first(world: World) -> None:
    """NousResearch/hermes-agent#4973: approve once became trust for the session. anthropics/claude-code#13897: the
    model did not see that the call was done, repeated it, and the second card said nothing of the first."""
    place = Place(world, Script(says("", call()), says("", call()), says("Done.")))
    run_id = await place.suspended()
    (first,) = await place.open()
    await place.press(first)
    await place.work()
    (second,) = await place.open()
    assert (len(place.done), await world.state(run_id)) == (1, "suspended")
    assert second.digest == first.digest
    assert second.token != first.token
    assert [(m.role, m.text) for m in place.model.heard[1]][-1] == ("tool", '{"number": "Q-1"}')
    (row,) = [row for row in await world.outbox.take(9, 30.0) if row.place == f"card:{second.id}"]
    inputs = await world.outbox.render_inputs(row)
    assert inputs.identical_success_at is not None
    assert (await place.press(first)).refusal is Refusal.DECIDED


async def test_whatever_else_is_attached_the_approved_call_runs(world: World) -> None:
    """microsoft/agent-framework#8410: a resume failed silently when an unrelated provider was attached.
    openai/openai-agents-python#4244: approvals were ignored when a context was passed at resume."""
    broken = RuntimeError("out of order")
    unrelated = Deed(policy=broken, preview=broken, guard=broken, execute=broken, reconcile=broken, permitted=broken)
    guarded: list[str] = []

    def guard(ctx: ToolContext) -> None:
        guarded.append(ctx.run_id)

    model = Script(says("", call()), says("Done."))
    place = Place(world, model, also=(Write(unrelated, "unrelated"),))
    place.deed.guard = guard
    run_id = await place.suspended()
    (card,) = await place.open()
    await place.press(card)
    await place.work(operators=frozenset({"U9"}), model_for=lambda run: model)
    assert (len(place.done), guarded[-1], await world.state(run_id)) == (1, run_id, "answered")
    assert unrelated.effects == 0


async def test_every_kind_of_wrong_button_has_its_own_answer(world: World) -> None:
    """langchain-ai/langgraph#8836: a resume by an unknown id was silently ignored."""
    _, (ask,) = await world.suspended()
    decide = world.desk.decide
    unknown = [
        await decide("nowhere", ask.token, ask.digest, clicker(), approve=True),
        await decide(f"{ask.id}x", ask.token, ask.digest, clicker(), approve=True),
        await decide(ask.id, ask.token, "0" * 64, clicker(), approve=True),
    ]
    assert [one.refusal for one in unknown] == [Refusal.UNKNOWN] * 3
    assert (await decide(ask.id, ask.token, ask.digest, clicker(), approve=True)).refusal is None
    assert (await decide(ask.id, ask.token, ask.digest, clicker(), approve=True)).refusal is Refusal.DECIDED
    _, (late,) = await world.suspended()
    world.pass_time(1801)
    assert (await decide(late.id, late.token, late.digest, clicker(), approve=True)).refusal is Refusal.EXPIRED


async def test_a_click_is_never_lost_while_its_card_is_still_being_committed(world: World) -> None:
    """earendil-works/absurd#61: an event between "not there yet" and "I wait" was lost. The card is part of the commit
    that suspends, so that nobody can press it before; who does so in the same moment is behind it, and is heard."""
    fence, (key,) = await world.asking()
    ask = an_ask(fence.run_id, key)
    press = (ask.id, ask.token, ask.digest, clicker())
    async with world.pool.acquire() as holder:
        transaction = holder.transaction()
        await transaction.start()
        await holder.execute("select from runs where id = $1 for update", fence.run_id)
        suspending = asyncio.ensure_future(world.worker.suspend(fence, Batch(), 0, [ask]))
        await world._until_waiting(1)
        assert await world.value("select count(*) from outbox where kind = 'card'") == 0, "nothing to press yet"
        assert (await world.desk.decide(*press, approve=True)).refusal is Refusal.UNKNOWN
        await transaction.rollback()
    await suspending
    assert await world.value("select count(*) from outbox where place = $1", f"card:{ask.id}") == 1
    assert (await world.desk.decide(*press, approve=True)).refusal is None
    assert await world.state(fence.run_id) == "running"


# ---- sub-runs, and runs that nobody in Slack started -----------------------------------------------------------------


async def test_every_run_has_an_address_in_slack_for_as_long_as_it_lives(world: World) -> None:
    """curie-eng/curie#766: an approval raised outside Slack had no card, and its reply went to an address that died
    with its caller. Here an operator's command goes on with a run while no process of its asker is left: card and
    answer stand at the address on the run's own row, which PostgreSQL lets nobody leave empty.
    vercel/eve#2520: the settlement of a child run's approval never reached the parent's channel. What continues a run
    or follows it up has the same address."""
    empty = await world.pool.fetch(
        "select table_name || '.' || column_name as at from information_schema.columns where table_schema = 'public'"
        " and is_nullable = 'YES' and (table_name, column_name) in (('runs', 'team_id'), ('runs', 'channel_id'),"
        " ('runs', 'thread_ts'), ('outbox', 'channel_id'), ('suspensions', 'run_id'))"
    )
    assert empty == []
    place = Place(world, Script(says("", call()), says("Done.")))
    letter = await world.letter(thread="1700000000.5")
    fence = await world.desk.start(letter, world.new_run(letter), world.worker_id)
    assert fence is not None
    await world.worker.halt(fence, Batch(), HaltReason.BUDGET_STEPS, Closing())
    continued = await world.desk.continue_(fence.run_id, 1, OPERATOR, Limits(), None, None, reason="asked by phone")
    assert continued.run is not None
    await place.work()
    (card,) = await place.open()
    await place.press(card)
    await place.work()
    follow_up = await world.letter(thread="1700000000.5")
    child = await world.desk.start(follow_up, world.new_run(follow_up, parent_id=fence.run_id), world.worker_id)
    assert child is not None
    place.model.lines += [says("", call()), says("Done again.")]
    await place.loop(child).run()
    (second,) = await place.open()
    assert second.run_id == child.run_id
    await place.press(second)
    await place.work()
    rows = await world.pool.fetch("select place, channel_id, thread_ts, version from outbox")
    at = {row["place"]: (row["channel_id"], row["thread_ts"]) for row in rows}
    assert {f"card:{card.id}", f"card:{second.id}"} < set(at)
    assert sum(each.startswith((f"answer:{fence.run_id}:", f"answer:{child.run_id}:")) for each in at) == 2
    assert set(at.values()) == {("C1", "1700000000.5")}
    settled = await world.pool.fetch("select id, settled_kind from suspensions order by opened_at")
    assert [tuple(row) for row in settled] == [(card.id, "done"), (second.id, "done")]
    assert all(row["version"] > 1 for row in rows if row["place"].startswith("card:")), "the cards are owed anew"
    assert len(place.done) == 2


# ---- recovery --------------------------------------------------------------------------------------------------------


async def test_a_reaper_with_an_old_list_takes_nothing_that_was_handed_on(world: World) -> None:
    """dbos-inc/dbos-transact-py#742: a pass with an old list ran what another had already handed back. Here a reaper
    has found two orphans, and is stopped while it takes the first; the second is taken by another, and claimed by a
    living process; then the first reaper goes on through its list."""
    fences = [await world.started(user=f"U{n}") for n in range(2)]
    for nth, fence in enumerate(fences):
        dead = str(uuid4())
        await world.upkeep.register(dead, "here", nth, "worker", nth, holds_lock=False)
        await world.pool.execute("update runs set claimed_by = $2 where id = $1", fence.run_id, dead)
        world.pass_time(1)  # so that the first one's process is silent for longer, and its run is taken first
    world.pass_time(LEASE_S + 1)
    await world.upkeep.register(living := str(uuid4()), "here", 9, "worker", 9, holds_lock=False)
    first, second = (fence.run_id for fence in fences)
    await world.pool.execute(
        "create function held() returns trigger language plpgsql as"
        " $$ begin perform pg_advisory_xact_lock_shared(4711); return new; end $$"
    )
    await world.pool.execute(
        f"create trigger held before update on runs for each row when (old.id = '{first}') execute function held()"
    )
    async with asyncio.timeout(DEADLINE_S), world.pool.acquire() as holder, holder.transaction():
        await holder.execute("select pg_advisory_xact_lock(4711)")
        slow = asyncio.ensure_future(world.upkeep.reap(lease_s=LEASE_S, quick=False))
        await world._until_waiting(1)
        assert await world.upkeep.reap(lease_s=LEASE_S, quick=False) == [second]
        (claimed,) = await world.worker.claim(living, 9)
        assert claimed.fence.run_id == second
    assert await slow == [first]
    held = await world.pool.fetch("select id, claim_token::text, claimed_by::text from runs order by id")
    assert [tuple(row) for row in held] == [(first, None, None), (second, claimed.fence.claim_token, living)]
    assert await world.value("select count(*) from trace where kind = 'reaped' and run_id = $1", second) == 1
    await world.worker.step(claimed.fence, Batch())


async def test_a_reaper_that_waited_for_another_takes_nothing_that_was_handed_on(world: World) -> None:
    """The second one waits for the first to say who is dead; what it finds then is somebody else's already."""
    fence = await world.started()
    await world.upkeep.register(world.worker_id, "here", 1, "worker", 1, holds_lock=False)
    world.pass_time(LEASE_S + 1)
    new_worker = str(uuid4())
    await world.upkeep.register(new_worker, "here", 2, "worker", 2, holds_lock=False)
    async with world.pool.acquire() as first:
        transaction = first.transaction()
        await transaction.start()
        marked = await sql.mark_dead_workers.rows(
            first, lease_s=LEASE_S, quick=False, quick_after_s=4.0, since=None, now=world.time()
        )
        assert len(marked) == 1
        second = asyncio.ensure_future(world.upkeep.reap(lease_s=LEASE_S, quick=False))
        await world._until_waiting(1)
        reaped = await sql.reap_runs.rows(first, room=20, now=world.time())
        assert [row["id"] for row in reaped] == [fence.run_id]
        await first.execute("update runs set claim_token = $1, claimed_by = $2", uuid4(), new_worker)
        await transaction.commit()
    assert await second == []
    assert str(await world.value("select claimed_by from runs where claim_token is not null")) == new_worker
    assert await world.value("select count(*) from trace where kind = 'reaped'") == 1
    with pytest.raises(ClaimLost):
        await world.worker.step(fence, Batch())


async def test_reaping_waits_for_no_lock_and_no_room(world: World) -> None:
    """procrastinate-org/procrastinate#1408: the job that frees stalled jobs was itself stalled. A session that will
    never go on holds one of five rows; no worker has room; the reaper takes the four, and the fifth once it is free."""
    fences = [await world.started() for _ in range(5)]
    world.pass_time(LEASE_S + 1)
    async with world.pool.acquire() as stalled:
        transaction = stalled.transaction()
        await transaction.start()
        await stalled.execute("select from runs where id = $1 for update", fences[2].run_id)
        async with asyncio.timeout(DEADLINE_S):
            taken = await world.upkeep.reap(lease_s=LEASE_S, quick=False)
        assert sorted(taken) == sorted(fence.run_id for at, fence in enumerate(fences) if at != 2)
        await transaction.rollback()
    assert await world.upkeep.reap(lease_s=LEASE_S, quick=False) == [fences[2].run_id]


async def test_a_call_of_three_leases_is_not_taken_for_dead(world: World) -> None:
    """janbjorge/pgqueuer#323: a job of 60 s was handed out again at 30 s although nothing blocked. The process beats
    while its model thinks for three leases; another one reaps after each beat."""
    place = Place(world, Script())
    go_on = asyncio.Event()

    async def think() -> ModelReply:
        await go_on.wait()
        return says("At last.")

    place.model.lines.append(lambda _: think())
    fence = await world.started()
    beats = 0
    reaped: list[str] = []

    class Pulse:
        async def beat(self) -> datetime:
            beat_at = await world.upkeep.beat(world.worker_id)
            assert beat_at is not None
            return beat_at

        async def end(self) -> None:
            await world.upkeep.unregister(world.worker_id)

    class Beats(Clock):
        async def sleep(self, seconds: float) -> None:
            nonlocal beats
            await super().sleep(seconds)
            beats += 1
            reaped.extend((await reaper.run_once()).reaped + (await reaper.run_once(quick=True)).reaped)
            if beats == 3 * LEASE_S:
                go_on.set()

    await world.upkeep.register(world.worker_id, "here", 1, "worker", 1, holds_lock=False)
    heartbeat = Heartbeat(Pulse(), Beats(world), LEASE_S)
    reaper = ReapOrphans(PgMaintenance(world.pool, now=world.time), heartbeat, LEASE_S)
    beating = asyncio.ensure_future(heartbeat.run())
    try:
        await place.loop(fence).run()
    finally:
        beating.cancel()
        with suppress(asyncio.CancelledError):
            await beating
    assert beats >= 3 * LEASE_S
    assert (reaped, len(place.model.heard), await world.state(fence.run_id)) == ([], 1, "answered")


async def test_two_workers_recover_one_run_and_one_result_is_stored(world: World) -> None:
    """dbos-inc/dbos-transact-ts#1205: two processes that recovered one waiting run returned different messages.
    langchain-ai/langgraph#4397: several results for one call after an approval."""
    place = Place(world, Script(says("", call()), says("One."), says("Another.")))
    run_id = await place.suspended()
    (card,) = await place.open()
    await place.press(card)

    async def recover() -> str | None:
        claimed = await world.worker.claim_one(str(uuid4()), run_id)
        if claimed is not None:
            await place.loop(claimed.fence).run()
        return claimed.fence.claim_token if claimed is not None else None

    outcomes = await world.behind_lock(run_id, recover, recover, recover)
    assert sorted(outcome is None for outcome in outcomes) == [False, True, True]
    assert (len(place.done), await place.results(run_id)) == (1, ['{"number": "Q-1"}'])
    answers = await world.pool.fetch("select content from outbox where kind = 'answer'")
    assert len(answers) == 1
    with pytest.raises(asyncpg.UniqueViolationError):
        await world.pool.execute(
            "insert into messages (run_id, seq, role, body, answers_seq, answers_position)"
            " select run_id, 99, role, body, answers_seq, answers_position from messages where role = 'tool'"
        )


@pytest.mark.slow
async def test_a_database_that_restarts_under_the_reaper_costs_one_round() -> None:
    """dbos-inc/dbos-transact-py#716: PostgreSQL was restarted in a recovery, the error logged, and the runs stayed
    where they were for ever. Here it restarts between two batches; the next round that may judge takes the rest."""
    async with running(fsync="off") as cluster:
        await cluster.execute("create database atlas")
        await migrate(cluster.dsn("atlas"))
        pool = await open_pool(cluster.dsn("atlas"), size=2)
        try:
            world = world_on(pool)
            fences = [await world.started(user=f"U{n}") for n in range(2 * BATCH + 5)]
            world.pass_time(LEASE_S + 1)
            await world.upkeep.register(other := str(uuid4()), "here", 2, "worker", 2, holds_lock=False)
            rounds: list[int] = []

            class Restarted:
                async def reap(self, *, lease_s: float, quick: bool, since: datetime, limit: int) -> list[str]:
                    if rounds == [BATCH]:
                        await cluster.stop("immediate")
                    try:
                        taken = await world.upkeep.reap(lease_s=lease_s, quick=quick, since=since, limit=limit)
                    except StoreUnavailable:
                        rounds.append(-1)
                        await cluster.start()
                        raise
                    rounds.append(len(taken))
                    return taken

            class Pulse:
                async def beat(self) -> datetime:
                    return await world.upkeep.beat(other) or world.now

                async def end(self) -> None:
                    await world.upkeep.unregister(other)

            heartbeat = Heartbeat(Pulse(), Clock(world), LEASE_S)
            schedule = Schedule()
            schedule.every(0.05, "reap", ReapOrphans(Restarted(), heartbeat, LEASE_S).run_once)
            for _ in range(3):
                await heartbeat.beat()
            schedule.start()
            try:
                async with asyncio.timeout(2 * DEADLINE_S):
                    while sum(taken for taken in rounds if taken > 0) < len(fences):
                        await asyncio.sleep(0.01)
            finally:
                await schedule.stop()
            assert rounds[:2] == [BATCH, -1]
            claimed = await world.worker.claim(other, len(fences))
            assert {each.fence.run_id for each in claimed} == {fence.run_id for fence in fences}
            assert await world.value("select max(crashes) from runs") == 1, "none is charged twice"
        finally:
            await pool.close()


class Stopping:
    """A worker's store before whose *nth* call of *move* the owner stops the run."""

    def __init__(self, world: World, run_id: str, move: str, nth: int) -> None:
        self._world, self._run_id, self._move, self._left = world, run_id, move, nth
        self.came = False

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._world.worker, name)

        async def called(*args: Any, **more: Any) -> Any:
            if name == self._move:
                self._left -= 1
                if self._left == 0:
                    self.came = True
                    await self._world.desk.stop(self._run_id, clicker())
            return await found(*args, **more)

        return called if asyncio.iscoroutinefunction(found) else found


@pytest.mark.parametrize("policy", [None, ASK], ids=["freely", "asking"])
async def test_a_stop_at_any_point_leaves_a_conversation_that_can_go_on(world: World, policy: Approval | None) -> None:
    """langchain-ai/langgraph#6726, langchain-ai/langgraph#5672: a cancelled turn left calls without results, and every
    provider refused the next one. The owner stops before each of the store's moves in turn, then asks for more."""
    came = 0
    for move in ("load", "step", "intend", "conclude", "suspend", "answer"):
        for nth in (1, 2):
            lines = [says("", call("look"), call(id="c2")), says("", call("look", id="c3")), says("Done.")]
            place = Place(world, Script(*lines), deed=Deed(policy=policy))
            fence = await world.started(thread=f"{move}.{nth}")
            place.store = stopping = Stopping(world, fence.run_id, move, nth)
            await place.loop(fence).run()
            for card in await place.open():
                await place.press(card)
            await place.work()
            came += stopping.came
            assert await world.state(fence.run_id) == ("halted" if stopping.came else "answered")
            if not stopping.came:
                continue
            letter = await world.letter("and now?", thread=f"{move}.{nth}")
            parent = await world.desk.last_ended(letter)
            assert parent is not None
            assert parent.run.id == fence.run_id
            going_on = follow_up(parent, letter.text)
            assert_valid([stored.message for stored in going_on])
            assert len(place.done) == sum(action.state is ActionState.SUCCEEDED for action in parent.actions)
    assert came >= 6


# ---- what is stored --------------------------------------------------------------------------------------------------

HOSTILE = "nul \x00, lone \ud83d, low \udc00, emoji \U0001f600, <!channel> & \u202e"


@pytest.mark.parametrize("odd", [HOSTILE, HOSTILE + "0123456789" * 200_000], ids=["hostile", "two-megabytes"])
async def test_no_text_is_too_odd_for_any_column(world: World, odd: str) -> None:
    """langchain-ai/langgraph#1878, ginlix-ai/LangAlpha#190, getsentry/junior#897, Autumn-27/ARTEX#112: a NUL in a
    tool's result broke the store, and since it was in the conversation already, every resume after it. Here each
    field that a person, a model or a tool can fill is filled with it; the run goes on."""
    numbers = {"nan": float("nan"), "endless": float("-inf"), "huge": float("1e400"), "nothing": -0.0}
    number = await world.value("select count(*) from inbox")
    event = InboundEvent(f"Ev{number}", "mention", "T1", "C1", "9.5", "9.5", "U1", odd, {"text": odd, odd: [odd]})
    assert await world.inbox.put(event)
    (letter,) = await world.desk.take_mail(9, 30.0)
    owner = User(team_id="T1", user_id="U1", name=odd, email=odd)
    scope = Scope(permissions=frozenset({odd}), attributes={odd: odd})
    new = replace(world.new_run(letter), owner=owner, question=odd, scope=scope, route={"model": odd})
    fence = await world.desk.start(letter, new, world.worker_id)
    assert fence is not None
    asked = Message(
        role="assistant",
        text=odd,
        raw=b"\x00\xff",
        calls=(ToolCall(id=odd, tool=odd, arguments={odd: odd, **numbers}),),
    )
    trace = (TraceEntry("model", {"words": odd, odd: numbers}, 1, Decimal("0.01")),)
    spent = Batch(messages=(StoredMessage(1, asked),), trace=trace, steps=1, tool_calls=1, doing=odd)
    await world.worker.step(fence, replace(spent, spend_usd=Decimal("0.01"), scope=scope))
    key = CallKey(1, 0)
    clean = {"text": odd.replace("\ud83d", "").replace("\udc00", "")}
    ask = an_ask(fence.run_id, key, arguments=clean, note=odd, alert=odd)
    ask = replace(ask, preview=Preview(title=odd, fields={odd: odd}, lines=[{odd: odd}], totals={odd: odd}, text=odd))
    await world.worker.suspend(fence, Batch(), 0, [ask])
    by = clicker()
    assert by.person is not None
    by = replace(by, person=replace(by.person, user=owner))
    decided = await world.desk.decide(
        ask.id, ask.token, ask.digest, by, approve=True, reason=odd, worker_id=world.worker_id
    )
    assert decided.claimed is not None
    action = an_action(fence.run_id, key, clean, suspension_id=ask.id)
    await world.worker.intend(decided.claimed, Batch(), action)
    outcome = Outcome(key, action.arguments_digest, ActionState.SUCCEEDED, odd)
    answer = StoredMessage(2, Message(role="tool", text=odd, call_id=odd), key)
    settled = Settlement(ask.id, "done", odd, odd)
    await world.worker.conclude(decided.claimed, Batch(messages=(answer,)), [outcome], [settled])
    another_process = PgWorkerStore(world.pool, now=world.time)
    view = await another_process.load(decided.claimed)
    # By their text: no number is equal to NaN, and 0 is to -0.0.
    assert [repr(stored.message) for stored in view.messages[1:]] == [repr(asked), repr(answer.message)]
    closing = Closing(detail=odd, alert=Alert(HOSTILE, odd, odd))
    await world.worker.halt(decided.claimed, Batch(), HaltReason.MODEL_UNAVAILABLE, closing)
    shown = await world.desk.show(fence.run_id)
    assert shown is not None
    assert len(shown.messages) == 3
    for row in await world.outbox.take(99, 30.0):
        await world.outbox.render_inputs(row)
    # What cannot be stored is replaced where people see it, and the rest of the text is still there.
    question = await world.value("select question from runs")
    assert "emoji \U0001f600" in question
    assert "lone" in question
    continued = await world.desk.continue_(fence.run_id, 1, by, Limits(), scope, world.worker_id, reason=odd)
    assert continued.run is not None


async def test_no_row_names_a_class_or_a_module(world: World) -> None:
    """langchain-ai/langgraph#1965: module paths in stored state broke after a rename. No row holds the path of anything
    in the code, whatever moves have been made."""
    place = Place(world, Script(says("", call("look"), call()), says("", call("gone")), says("Done.")))
    run_id = await place.suspended()
    (card,) = await place.open()
    await place.press(card)
    await place.work()
    await world.in_doubt()
    await world.halted()
    assert await world.state(run_id) == "answered"
    written = {table: " ".join(rows) for table, rows in (await world.everything()).items()}
    assert all(written[table] for table in ("runs", "messages", "suspensions", "actions", "trace", "inbox", "outbox"))
    paths = re.compile(
        r"\b(core|storage|bot|jobs|tests|pydantic|asyncpg|builtins|decimal|datetime)\.[a-zA-Z_]\w*", re.ASCII
    )
    for table, text in written.items():
        assert paths.findall(text) == [], table
        assert "__main__" not in text
        assert "<class" not in text


def _incompressible() -> str:
    return os.urandom(1000).hex()


async def _bytes_of_a_step(world: World, messages: int, more: int) -> int:
    """Return the smallest write-ahead log of one more step at so many messages: PostgreSQL's own count, of that
    statement alone."""
    fence = await world.started(user=f"U{messages}")
    at = 1
    while at < messages:
        add = min(100, messages - at)
        batch = Batch(
            messages=tuple(StoredMessage(at + n, Message(role="user", text=_incompressible())) for n in range(add))
        )
        await world.worker.step(fence, batch)
        at += add
    found = []
    for n in range(more):
        batch = Batch(
            messages=(StoredMessage(at + n, Message(role="user", text=_incompressible())),), steps=1, elapsed_ms=1
        )
        arguments = (fence.run_id, fence.claim_token, *batch_columns(batch), None, False, None)
        (row,) = await world.pool.fetch(f"explain (analyze, wal, format json) {sql.step_run.text}", *arguments)
        writes = list(_writes(json.loads(row[0])[0]["Plan"]))
        if not any(write.get("WAL FPI") for write in writes):  # after a checkpoint a page is first logged whole
            found.append(sum(int(write["WAL Bytes"]) for write in writes))
    return min(found)


def _writes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Return the parts of a plan that change rows."""
    if plan["Node Type"] == "ModifyTable":
        yield plan
    else:
        for part in plan.get("Plans", ()):
            yield from _writes(part)


async def test_a_step_costs_the_same_however_long_the_conversation(world: World) -> None:
    """langchain-ai/langgraph#7547, theexperiencecompany/gaia#818, bytedance/deer-flow#3011: storage grew by the square
    of the conversation, to 17 and 135 GB for one thread."""
    short = await _bytes_of_a_step(world, 10, 12)
    long = await _bytes_of_a_step(world, 1000, 12)
    assert 2000 < short < 3200
    assert long <= 1.1 * short


@pytest.fixture(params=["UTC", "Asia/Kathmandu", "America/St_Johns"])
async def zone(request: pytest.FixtureRequest, database: str) -> AsyncIterator[str]:
    """Let this process and every session of the database live in another time zone."""
    before = os.environ.get("TZ")
    admin = await asyncpg.connect(database, statement_cache_size=STATEMENTS_KEPT)
    try:
        name = await admin.fetchval("select current_database()")
        await admin.execute(f"alter database \"{name}\" set timezone to '{request.param}'")
    finally:
        await admin.close()
    await new_sessions(database)
    os.environ["TZ"] = request.param
    time.tzset()
    yield request.param
    if before is None:
        del os.environ["TZ"]
    else:
        os.environ["TZ"] = before
    time.tzset()


async def test_time_is_the_same_in_every_zone(database: str, zone: str) -> None:
    """MagicStack/asyncpg#1139, Skyvern-AI/skyvern#3617: aware times met columns without a zone. No such column, and the
    windows are as long in zones that are hours and odd minutes away."""
    pool = await open_pool(database, pooler=POOLED, size=3)
    try:
        world = world_on(pool)
        assert await world.value("show timezone") == zone
        columns = await pool.fetch(
            "select table_name, column_name, data_type from information_schema.columns where table_schema = 'public'"
            " and (data_type like 'time%' or data_type like 'date%')"
        )
        assert len(columns) > 15
        assert {column["data_type"] for column in columns} == {"timestamp with time zone"}
        _, (one,) = await world.suspended()
        _, (other,) = await world.suspended()
        await world.upkeep.register(world.worker_id, "here", 1, "worker", 1, holds_lock=False)
        fence = await world.started()
        world.pass_time(LEASE_S - 1)
        assert await world.upkeep.reap(lease_s=LEASE_S, quick=False) == []
        world.pass_time(2)
        assert await world.upkeep.reap(lease_s=LEASE_S, quick=False) == [fence.run_id]
        world.pass_time(1799 - LEASE_S - 1)
        assert (await world.desk.decide(one.id, one.token, one.digest, clicker(), approve=True)).refusal is None
        world.pass_time(2)
        late = await world.desk.decide(other.id, other.token, other.digest, clicker(), approve=True)
        assert late.refusal is Refusal.EXPIRED
        assert late.suspension is not None
        assert (late.suspension.expires_at - late.suspension.opened_at).total_seconds() == 1800
    finally:
        await pool.close()


async def test_runs_that_wait_cost_no_connection_and_no_query(database: str) -> None:
    """dbos-inc/dbos-transact-ts#1267: waiters that polled emptied the pool, and what would free them starved. Thousands
    that wait need as many statements of every job, and as many connections, as one does."""
    asked: list[str] = []

    async def listen(connection: Any) -> None:
        connection.add_query_logger(lambda record: asked.append(record.query))

    async with asyncpg.create_pool(
        database, min_size=1, max_size=2, init=listen, statement_cache_size=STATEMENTS_KEPT
    ) as pool:
        world = world_on(pool)
        run_id, (ask,) = await world.suspended()
        counts: list[int] = []
        for _ in range(2):
            asked.clear()
            await _all_jobs(world)
            counts.append(len(asked))
            await pool.execute(
                "insert into runs (id, team_id, channel_id, thread_ts, user_id, owner, question, route, max_steps,"
                " max_tool_calls, max_spend_usd, max_elapsed_ms, state, scope, scope_resolved_at)"
                " select 'many' || n, team_id, channel_id, 't' || n, 'U' || n, owner, question, route, max_steps,"
                " max_tool_calls, max_spend_usd, max_elapsed_ms, state, scope, scope_resolved_at"
                " from runs, generate_series(1, 5000) n where id = $1 on conflict (id) do nothing",
                run_id,
            )
            await pool.execute(
                "insert into suspensions (id, run_id, call_seq, call_position, number, kind, status, token, tool,"
                " tool_version, arguments, preview, digest, policy, asked_by, opened_at, expires_at)"
                " select 'many' || n || '.s', 'many' || n, 1, 0, 1, 'approval', 'open', 'many' || n || '.t', tool,"
                " tool_version, arguments, preview, digest, policy, asked_by, opened_at, expires_at"
                " from suspensions, generate_series(1, 5000) n where id = $1 on conflict (id) do nothing",
                ask.id,
            )
        assert await world.value("select count(*) from runs where state = 'suspended'") == 5001
        assert counts[0] == counts[1] > 12, asked
        assert (await world.desk.decide(ask.id, ask.token, ask.digest, clicker(), approve=True)).refusal is None


async def _all_jobs(world: World) -> None:
    """Do once what a process does all the time."""
    await world.upkeep.beat(world.worker_id)
    await world.upkeep.reap(lease_s=LEASE_S, quick=True)
    await world.upkeep.expire_due()
    await world.upkeep.to_remind(600.0, 50)
    await world.upkeep.retention()
    await world.upkeep.counts()
    await world.upkeep.ready()
    await world.worker.claim(world.worker_id, 8)
    await world.worker.claims_of(world.worker_id)
    await world.worker.to_be_alone(2)
    await world.desk.take_mail(9, 30)
    await world.outbox.take(20, 30)
    await world.outbox.refresh_progress(20, 3)
    await world.outbox.refresh_line(20, 3)


# ---- the lists -------------------------------------------------------------------------------------------------------

CLICK_SEEMS_TO_WORK = (
    "openclaw/openclaw#71023", "PostHog/posthog#66212", "vercel/eve#2212", "vercel/eve#2520", "agno-agi/agno#8029",
    "assistant-ui/assistant-ui#5901", "curie-eng/curie#766", "microsoft/agent-framework#8410", "vercel/chat (chat.ts)",
)  # fmt: skip
WRONG_THING_TWICE_OR_DESPITE_A_NO = (
    "langchain-ai/langgraph#4397", "langchain-ai/langchain#37093", "google/adk-python#7148", "google/adk-go#876",
    "andrewyng/openworker#443", "crewAIInc/crewAI#5802", "datalayer/agent-runtimes#104", "agno-agi/agno#9869",
    "agno-agi/agno#9401", "NousResearch/hermes-agent#2002", "NousResearch/hermes-agent#1888",
    "NousResearch/hermes-agent#4973", "anthropics/claude-code#13897",
)  # fmt: skip
DURABLE_RUNS = (
    "dbos-inc/dbos-transact-py#742", "dbos-inc/dbos-transact-py#716", "dbos-inc/dbos-transact-ts#1205",
    "janbjorge/pgqueuer#430", "janbjorge/pgqueuer#323", "janbjorge/pgqueuer#475",
    "procrastinate-org/procrastinate#1408", "pydantic/pydantic-ai#5536", "earendil-works/absurd#61",
    "langchain-ai/langgraph#8836", "langchain-ai/langgraph#6626", "openai/openai-agents-python#4244",
    "openai/openai-agents-python#2487", "openai/openai-agents-python#5141", "getsentry/sentry#69252",
    "mozilla/bugbug#6873", "langchain-ai/langgraph#1878", "ginlix-ai/LangAlpha#190", "getsentry/junior#897",
    "Autumn-27/ARTEX#112", "langchain-ai/langgraph#7547", "theexperiencecompany/gaia#818", "bytedance/deer-flow#3011",
    "pydantic/pydantic-ai#7110", "langchain-ai/langgraph#1965", "MagicStack/asyncpg#1139", "Skyvern-AI/skyvern#3617",
    "langchain-ai/langgraph#5675", "dbos-inc/dbos-transact-ts#1267", "langchain-ai/langgraph#6726",
    "langchain-ai/langgraph#5672", "graphile/worker#526", "oban-bg/oban#856", "MagicStack/asyncpg#198",
    "MagicStack/asyncpg#1058",
)  # fmt: skip


@pytest.mark.parametrize("reference", sorted({*CLICK_SEEMS_TO_WORK, *WRONG_THING_TWICE_OR_DESPITE_A_NO, *DURABLE_RUNS}))
def test_every_reported_fault_is_the_case_of_a_test(reference: str) -> None:
    """Each reference stands in a test's docstring, as a whole word."""
    words = re.compile(rf"(?<![\w/-]){re.escape(reference)}(?![\w])")
    assert [name for name, said in docstrings().items() if words.search(said)], f"no test names {reference}"
