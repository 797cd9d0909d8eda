"""Fairness: one person's burst takes neither the room nor the line from others, and each is told their place.

Everything on the real store; where a run works, the real worker and loop carry it, with a model that is let on by hand.
"""

import asyncio
from collections import Counter
from datetime import timedelta
from decimal import Decimal
from typing import Any
from uuid import uuid4

import asyncpg
import pytest

from bot.texts import progress
from bot.wiring import SystemClock, SystemNames
from core import Agent, Message, ModelReply, ToolSpec
from core.loop import Loop
from core.ports import Fence, InboundEvent, OutboxRow
from core.worker import Worker
from storage.desk_store import PgDesk
from storage.worker_store import PgWorkerStore
from tests.benchmarks.subjects import Everybody, scopes
from tests.integration.storeworld import DEADLINE_S, World, world_on

BURST = 500
PER_PERSON = 4
COPIED = (
    "team_id, channel_id, owner, question, route, max_steps, max_tool_calls, max_spend_usd, max_elapsed_ms, scope,"
    " scope_resolved_at, next_seq, state"
)


@pytest.fixture
def world(pool: "asyncpg.Pool[asyncpg.Record]") -> World:
    return world_on(pool)


async def waits(world: World, user: str) -> str:
    """Start a run of that person which nobody has claimed, a moment later than the last one."""
    world.pass_time(1)
    letter = await world.letter(user=user)
    new = world.new_run(letter)
    assert await world.desk.start(letter, new, None) is None
    return new.id


async def copied(world: World, run_id: str, count: int, user: str = "user_id") -> None:
    """Copy a waiting run with its question; *user*: SQL for the person, n is the copy's number."""
    await world.pool.execute(
        f"insert into runs (id, thread_ts, user_id, claimable_at, {COPIED})"
        f" select 'copy' || n, 'copy' || n, {user}, claimable_at + n * interval '1 millisecond', {COPIED}"
        " from runs, generate_series(1, $2::integer) n where id = $1",
        run_id,
        count,
    )
    await world.pool.execute(
        "insert into messages (run_id, seq, role, body) select 'copy' || n, seq, role, body"
        " from messages, generate_series(1, $2::integer) n where run_id = $1",
        run_id,
        count,
    )


class HeldModel:
    """A model that notes whose turn it is and answers when it is let on."""

    def __init__(self) -> None:
        self.at_it: Counter[str] = Counter()
        self.let_on = asyncio.Semaphore(0)
        self.moved = asyncio.Event()

    async def respond(self, messages: list[Message], tools: list[ToolSpec], max_output_tokens: int) -> ModelReply:
        self.at_it[messages[0].text] += 1
        self.moved.set()
        await self.let_on.acquire()
        return ModelReply(text="done", spend_usd=Decimal("0.01"))

    def worst_case_usd(self, messages: list[Message], tools: list[ToolSpec], max_output_tokens: int) -> Decimal:
        return Decimal("0.01")

    async def until(self, question: str, turns: int) -> None:
        """Return when that many turns of runs with that question have begun."""
        async with asyncio.timeout(DEADLINE_S):
            while self.at_it[question] < turns:
                self.moved.clear()
                await self.moved.wait()


class Process:
    """One process's worker on the real store, with caps."""

    def __init__(self, world: World, capacity: int, per_person: int | None = PER_PERSON) -> None:
        self.model = HeldModel()
        self.store = PgWorkerStore(world.pool, per_person=per_person)
        self.desk = PgDesk(world.pool, per_person=per_person)
        self.world = world
        agent = Agent("", [], scopes)

        def make_loop(fence: Fence) -> Loop:
            return Loop(
                fence, self.store, agent, self.model, Everybody(), SystemClock(), SystemNames(),
                lifetime=timedelta(minutes=30),
            )  # fmt: skip

        self.worker = Worker(world.worker_id, self.store, make_loop, SystemClock(), capacity=capacity, poll_s=0.05)

    async def __aenter__(self) -> "Process":
        await self.world.upkeep.register(self.world.worker_id, "host", 1, "worker", 1, holds_lock=False)
        self.running = asyncio.create_task(self.worker.run())
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.worker.drain()
        await self.running


@pytest.mark.parametrize("claimed_at_the_start", [True, False])
async def test_a_burst_of_500_delays_nobodys_first_step(world: World, claimed_at_the_start: bool) -> None:
    """500 runs of one person wait or work: another's first turn begins before any further turn of theirs."""
    letter = await world.letter("burst", user="U1")
    await world.desk.start(letter, world.new_run(letter), None)
    await copied(world, await world.value("select id from runs"), BURST - 1)
    async with Process(world, capacity=PER_PERSON + 2) as process:
        await process.model.until("burst", PER_PERSON)
        asked = await world.letter("mine", user="U2")
        room = process.worker.worker_id_if_room() if claimed_at_the_start else None
        fence = await process.desk.start(asked, world.new_run(asked), room)
        assert (fence is not None) is claimed_at_the_start
        if fence is not None:
            process.worker.adopt(fence)
        await process.model.until("mine", 1)
        assert process.model.at_it == {"burst": PER_PERSON, "mine": 1}


async def test_with_all_room_taken_by_a_burst_another_goes_after_one_step_of_it(world: World) -> None:
    """Without a cap below the capacity: the first place that is free is the other person's, not the burst's."""
    letter = await world.letter("burst", user="U1")
    await world.desk.start(letter, world.new_run(letter), None)
    await copied(world, await world.value("select id from runs"), BURST - 1)
    async with Process(world, capacity=2, per_person=None) as process:
        await process.model.until("burst", 2)
        asked = await world.letter("mine", user="U2")
        assert await process.desk.start(asked, world.new_run(asked), process.worker.worker_id_if_room()) is None
        process.model.let_on.release()
        await process.model.until("mine", 1)
        assert process.model.at_it == {"burst": 2, "mine": 1}


async def test_nobody_holds_more_than_the_cap_and_the_others_fill_the_room(world: World) -> None:
    """The cap counts what live processes hold; it binds a start as well as a claim, and frees with each end."""
    store = PgWorkerStore(world.pool, now=world.time, per_person=2)
    desk = PgDesk(world.pool, now=world.time, per_person=2)
    await world.upkeep.register(world.worker_id, "host", 1, "worker", 1, holds_lock=False)
    mine = [await waits(world, "U1") for _ in range(4)]
    other = await waits(world, "U2")
    assert {one.run.id for one in await store.claim(world.worker_id, 9)} == {*mine[:2], other}
    assert await store.claim(world.worker_id, 9) == []
    letter = await world.letter(user="U1")
    assert await desk.start(letter, world.new_run(letter), world.worker_id) is None
    letter = await world.letter(user="U2")
    assert await desk.start(letter, world.new_run(letter), world.worker_id) is not None
    await world.pool.execute("update runs set claim_token = null, claimed_by = null, state = 'suspended' where id = $1",
                             mine[0])  # fmt: skip
    assert [one.run.id for one in await store.claim(world.worker_id, 9)] == [mine[2]]


async def test_what_a_dead_process_holds_takes_nobodys_room(world: World) -> None:
    """A person's runs that hang on a dead process count no more once it is known dead."""
    store = PgWorkerStore(world.pool, now=world.time, per_person=1)
    dead = str(uuid4())
    await world.upkeep.register(dead, "host", 1, "worker", 1, holds_lock=False)
    await world.upkeep.register(world.worker_id, "host", 2, "worker", 2, holds_lock=False)
    first, second = await waits(world, "U1"), await waits(world, "U1")
    assert [one.run.id for one in await store.claim(dead, 9)] == [first]
    assert await store.claim(world.worker_id, 9) == []
    await world.pool.execute("update workers set died_at = now() where id = $1", dead)
    assert [one.run.id for one in await store.claim(world.worker_id, 9)] == [second]


async def test_a_person_behind_thousands_of_somebody_elses_runs_is_claimed_at_once(world: World) -> None:
    """What a claim reads is bounded by people, so no number of runs hides another person's first one."""
    store = PgWorkerStore(world.pool, now=world.time, per_person=2)
    await world.upkeep.register(world.worker_id, "host", 1, "worker", 1, holds_lock=False)
    await copied(world, await waits(world, "U5"), 3000)
    world.pass_time(60)
    # One whose name comes before and one whose name comes after that of the burst.
    others = {await waits(world, "U1"), await waits(world, "U9")}
    claimed = [one.run for one in await store.claim(world.worker_id, 9)]
    assert Counter(run.owner.user_id for run in claimed) == {"U1": 1, "U5": 2, "U9": 1}
    assert others <= {run.id for run in claimed}
    assert len(claimed) == 4


async def test_of_more_people_than_a_claim_looks_at_the_longest_waiting_go_too(world: World) -> None:
    """700 people wait: whoever has waited longest is claimed, wherever their name stands."""
    store = PgWorkerStore(world.pool, now=world.time, per_person=2)
    first = await waits(world, "Z")
    await copied(world, first, 700, "'U' || lpad(n::text, 4, '0')")
    (claimed,) = await store.claim(world.worker_id, 1)
    assert claimed.run.id == first
    assert len(await store.claim(world.worker_id, 700)) == 700


async def test_a_burst_of_messages_is_drained_in_turn_with_other_peoples(world: World) -> None:
    """60 messages of one person are stored before one of another: it is among the very next that are taken."""
    for n in range(60):
        ts = f"1700001000.{n:06}"
        assert await world.inbox.put(InboundEvent(f"EvB{n}", "mention", "T1", "C1", ts, ts, "U1", "burst", {}))
    assert await world.inbox.put(
        InboundEvent("EvM", "mention", "T1", "C1", "1700002000.1", "1700002000.1", "U2", "mine", {})
    )
    taken = [letter.text for letter in await world.desk.take_mail(20, 30.0)]
    assert sorted(taken) == ["burst"] * 19 + ["mine"]
    assert [letter.text for letter in await world.desk.take_mail(50, 30.0)] == ["burst"] * 41


# ---- the place in line ---------------------------------------------------------------------------------------------


async def line(world: World, run_id: str) -> tuple[int | None, str]:
    """Return a run's place and its progress line, as they would be delivered now."""
    (row,) = await world.pool.fetch("select * from outbox where place = $1", f"progress:{run_id}")
    wanted: dict[str, Any] = {name: row[name] for name in OutboxRow.__slots__ if name in row}
    inputs = await world.outbox.render_inputs(OutboxRow(**{**dict.fromkeys(OutboxRow.__slots__), **wanted}))
    assert inputs.run is not None
    return inputs.in_line, "".join(map(str, progress(inputs.run, inputs.doing, inputs.in_line)))


async def test_who_waits_is_told_their_place_in_the_order_of_the_claims(world: World) -> None:
    await world.upkeep.register(world.worker_id, "host", 1, "worker", 1, holds_lock=False)
    burst = [await waits(world, "U1") for _ in range(3)]
    other = await waits(world, "U2")
    places = {run_id: (await line(world, run_id))[0] for run_id in (*burst, other)}
    assert places == {burst[0]: 1, other: 2, burst[1]: 3, burst[2]: 4}
    assert (await line(world, burst[2]))[1] == "⏳ In line: place 4"
    order = []
    while claimed := await world.worker.claim(world.worker_id, 1):
        order.append(claimed[0].run.id)
    assert order == sorted(places, key=lambda run_id: places[run_id] or 0)
    place, told = await line(world, burst[2])
    assert place is None
    assert told.startswith("⏳ Working on it · step 1 of at most")


async def test_places_are_told_anew_as_the_line_moves(world: World) -> None:
    """Not at each step: only when somebody moved up a good way, and never for a line that was just drawn."""
    await world.upkeep.register(world.worker_id, "host", 1, "worker", 1, holds_lock=False)
    runs = [await waits(world, f"U{n}") for n in range(9)]
    await world.pool.execute("update outbox set delivered_version = version, updated_at = $1", world.now)
    assert await world.outbox.refresh_line(100, 10.0) == 0
    world.pass_time(11)
    assert await world.outbox.refresh_line(100, 10.0) == 9
    delivered = "update outbox set delivered_version = version, updated_at = $1"
    await world.pool.execute(delivered, world.now)
    world.pass_time(11)
    assert await world.outbox.refresh_line(100, 10.0) == 0
    await world.worker.claim(world.worker_id, 1)
    moved = await world.outbox.refresh_line(100, 10.0)
    assert 0 < moved < 8
    assert (await line(world, runs[1]))[0] == 1
    await world.pool.execute(delivered, world.now)
    world.pass_time(11)
    await world.worker.claim(world.worker_id, 9)
    assert await world.outbox.refresh_line(100, 10.0) == 0


async def test_whoever_has_the_last_key_of_many_is_served_behind_a_burst(world: World) -> None:
    """One person's burst fills the oldest places; a hundred others with lower keys wait again whenever one is done: the
    last key, which waits longer than all of them, is served first all the same."""
    await world.upkeep.register(world.worker_id, "host", 1, "worker", 1, holds_lock=False)
    burst, last = await waits(world, "A"), await waits(world, "Z")
    # Beside its claimed run, the burst's rows are older than everybody and more than a claim reads of the oldest.
    held = await world.worker.claim_one(world.worker_id, burst)
    assert held is not None
    await copied(world, last, 300, "case when n <= 100 then 'A' else 'B' || n end")
    await world.pool.execute(
        "update runs set claimable_at = claimable_at + case user_id when 'A' then -1 when 'Z' then 0 else 1 end"
        " * interval '1 hour' where claim_token is null"
    )
    for _ in range(50):
        assert await world.worker.claim(world.worker_id, 4)
        ids = await world.pool.fetch("select id, user_id from runs where claim_token is not null and id <> $1", burst)
        if last in {row["id"] for row in ids}:
            return
        # Done, and there again at once.
        await world.pool.execute(
            "update runs set claim_token = null, claimed_by = null where claim_token is not null and id <> $1", burst
        )
    pytest.fail("the last one starves")
