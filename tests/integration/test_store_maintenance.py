"""The sweeps: who counts as dead, what a crash costs, what expires, what is kept, what operators see."""

import asyncio
from typing import Any
from uuid import uuid4

import asyncpg
import pytest

from core.conversation import CallKey
from core.errors import ClaimLost, InvariantBroken, StoreUnavailable
from core.ports import Batch, Closing, Outcome
from core.run import ActionState, HaltReason, RunState, SuspensionStatus
from jobs.remind import BATCH, Remind
from storage import sql
from storage.database import Database, open_pool
from storage.maintenance import PgMaintenance
from tests.conftest import POOLED
from tests.integration.storeworld import DEADLINE_S, World, an_action, an_ask, clicker, result, turn, world_on


@pytest.fixture
def world(pool: "asyncpg.Pool[asyncpg.Record]") -> World:
    return world_on(pool)


async def _register(world: World, worker_id: str | None = None, lock_key: int = 7, *, holds_lock: bool = False) -> str:
    worker_id = worker_id or world.worker_id
    await world.upkeep.register(worker_id, "host", 1, "worker", lock_key, holds_lock=holds_lock)
    return worker_id


async def _run(world: World, run_id: str) -> tuple[str, int, int, bool]:
    row = await world.pool.fetchrow(
        "select state, crashes, recovery_attempts, charge_due from runs where id = $1", run_id
    )
    assert row is not None
    return tuple(row)


# ---- reaping -------------------------------------------------------------------------------------------------------


async def test_a_beating_worker_keeps_its_runs_and_a_silent_one_loses_them(world: World) -> None:
    await _register(world)
    fence = await world.started()
    world.pass_time(89)
    assert await world.upkeep.reap(lease_s=90, quick=True) == []
    assert await world.upkeep.beat(world.worker_id)
    world.pass_time(89)
    assert await world.upkeep.reap(lease_s=90, quick=True) == []
    world.pass_time(2)
    assert await world.upkeep.reap(lease_s=90, quick=True) == [fence.run_id]
    assert await _run(world, fence.run_id) == ("running", 1, 1, True)
    with pytest.raises(ClaimLost):
        await world.worker.step(fence, Batch())
    assert await world.upkeep.reap(lease_s=90, quick=True) == []
    (claimed,) = await world.worker.claim(str(uuid4()), 9)
    assert (claimed.run.id, claimed.run.charge_due) == (fence.run_id, True)
    assert (await world.upkeep.timeline(fence.run_id))[-2][1].body["alone"] is True


async def test_a_worker_without_a_row_is_dead(world: World) -> None:
    fence = await world.started()
    assert not await world.upkeep.beat(world.worker_id)
    assert await world.upkeep.reap(lease_s=90, quick=False) == [fence.run_id]
    assert await _run(world, fence.run_id) == ("running", 1, 1, True)


async def test_a_killed_process_is_noticed_by_its_free_lock_and_a_late_beat(world: World, direct: str) -> None:
    session = await asyncpg.connect(direct)
    key = -(2**62) - 12345  # its high half does not look like its low half, and the sign is kept
    assert await world.upkeep.hold_lock(session, key)
    await _register(world, lock_key=key, holds_lock=True)
    fence = await world.started()
    world.pass_time(5)
    assert await world.upkeep.reap(lease_s=90, quick=True) == []  # the lock is held: slow is not dead
    await world.upkeep.beat(world.worker_id)
    session.terminate()
    async with asyncio.timeout(DEADLINE_S):
        while await world.value("select exists (select from pg_locks where locktype = 'advisory')"):
            await asyncio.sleep(0.005)
    world.pass_time(3)
    assert await world.upkeep.reap(lease_s=90, quick=True) == []  # a free lock alone proves nothing
    world.pass_time(2)
    assert await world.upkeep.reap(lease_s=90, quick=False) == []
    assert await world.upkeep.reap(lease_s=90, quick=True) == [fence.run_id]


async def test_a_lock_of_another_database_is_not_taken_for_the_workers(world: World, postgres: str) -> None:
    elsewhere = await asyncpg.connect(postgres)
    try:
        assert await world.upkeep.hold_lock(elsewhere, 4711)
        await _register(world, lock_key=4711, holds_lock=True)
        fence = await world.started()
        world.pass_time(5)
        assert await world.upkeep.reap(lease_s=90, quick=True) == [fence.run_id]
    finally:
        await elsewhere.close()


async def test_a_process_without_a_lock_is_judged_by_its_lease_alone(world: World) -> None:
    await _register(world, holds_lock=False)
    await world.started()
    world.pass_time(60)
    assert await world.upkeep.reap(lease_s=90, quick=True) == []


async def test_neighbours_of_a_crash_are_not_charged_over_several_batches(world: World) -> None:
    await _register(world)
    fences = [await world.started() for _ in range(5)]
    world.pass_time(91)
    batches = [await world.upkeep.reap(lease_s=90, quick=False, limit=2) for _ in range(4)]
    assert [len(batch) for batch in batches] == [2, 2, 1, 0]
    for fence in fences:
        assert await _run(world, fence.run_id) == ("running", 1, 0, True)


async def test_neighbours_in_a_process_without_a_row_are_not_charged_either(world: World) -> None:
    fences = [await world.started() for _ in range(3)]
    while await world.upkeep.reap(lease_s=90, quick=False, limit=2):
        pass
    assert {await _run(world, fence.run_id) for fence in fences} == {("running", 1, 0, True)}


async def test_the_longest_dead_go_first(world: World) -> None:
    old, young = await _register(world, str(uuid4())), await _register(world, str(uuid4()))
    runs: dict[str, str] = {}
    for worker_id in (young, old):
        letter = await world.letter()
        fence = await world.desk.start(letter, world.new_run(letter), worker_id)
        assert fence is not None
        runs[worker_id] = fence.run_id
    world.pass_time(50)
    await world.upkeep.beat(young)
    world.pass_time(100)
    assert await world.upkeep.reap(lease_s=90, quick=False, limit=1) == [runs[old]]
    assert await world.upkeep.reap(lease_s=90, quick=False, limit=1) == [runs[young]]


async def test_a_worker_that_comes_back_is_alive_again(world: World) -> None:
    await _register(world)
    first = await world.started()
    world.pass_time(91)
    assert await world.upkeep.reap(lease_s=90, quick=False) == [first.run_id]
    assert await world.upkeep.beat(world.worker_id)
    second = await world.started()
    assert await world.upkeep.reap(lease_s=90, quick=False) == []
    assert (await world.worker.load(second)).run.state is RunState.RUNNING


async def test_two_recoveries_then_a_closing_pass_then_failed(world: World) -> None:
    run_id = (await world.asking())[0].run_id
    for attempt in (1, 2, 3):
        assert await world.upkeep.reap(lease_s=90, quick=False) == [run_id]
        state, _, attempts, _ = await _run(world, run_id)
        assert (state, attempts) == ("running", attempt)
        claimed = await world.worker.claim_one(str(uuid4()), run_id)
        assert claimed is not None
        if attempt == 1:
            await world.worker.suspend(claimed.fence, Batch(), 0, [an_ask(run_id, CallKey(1, 0))], stay_running=True)
            await world.worker.intend(claimed.fence, Batch(), an_action(run_id, CallKey(1, 0)))
    assert await world.upkeep.reap(lease_s=90, quick=False) == [run_id]
    view = await world.desk.show(run_id)
    assert view is not None
    assert (view.run.state, view.run.fail_reason) == (RunState.FAILED, "recovery_exhausted")
    assert [a.state for a in view.actions] == [ActionState.UNKNOWN]
    assert [s.status for s in view.suspensions] == [SuspensionStatus.STOPPED]
    assert not await world.live(run_id)
    assert {f"failure:{run_id}", f"alert:failed:{run_id}"} <= set(await world.places())


# ---- expiry --------------------------------------------------------------------------------------------------------


async def test_only_the_last_open_sibling_halts_the_run(world: World) -> None:
    fence, (first, second) = await world.asking("send", "send")
    asks = [an_ask(fence.run_id, first, ttl_s=60), an_ask(fence.run_id, second, ttl_s=120)]
    await world.worker.suspend(fence, Batch(), 0, asks)
    world.pass_time(59)
    assert await world.upkeep.expire_due() == 0
    world.pass_time(1)
    assert await world.upkeep.expire_due() == 1
    assert await world.state(fence.run_id) == "suspended"
    world.pass_time(60)
    assert await world.upkeep.expire_due() == 1
    run = await world.desk.run(fence.run_id)
    assert run is not None
    assert (run.state, run.halt_reason, run.halts) == (RunState.HALTED, HaltReason.SUSPENSION_EXPIRED, 1)
    assert not await world.live(run.id)
    assert {f"notice:{ask.id}:expired" for ask in asks} < set(await world.places())


async def test_an_expiry_beside_a_sibling_at_work_is_only_recorded(world: World) -> None:
    fence, (call, _) = await world.asking("send", "send")
    await world.worker.suspend(fence, Batch(), 0, [an_ask(fence.run_id, call)], stay_running=True)
    world.pass_time(1800)
    assert await world.upkeep.expire_due() == 1
    view = await world.worker.load(fence)
    assert (view.run.news, view.suspensions[0].status) == (1, SuspensionStatus.EXPIRED)


async def test_a_silent_outcome_halts_as_unknown_with_an_alert(world: World) -> None:
    run_id, _, _ = await world.in_doubt()
    world.pass_time(1800)
    assert await world.upkeep.expire_due() == 1
    run = await world.desk.run(run_id)
    assert run is not None
    assert run.halt_reason is HaltReason.OUTCOME_UNKNOWN
    assert f"alert:outcome-unknown:{run_id}:1" in await world.places()


async def test_a_halt_by_expiry_gives_mail_back(world: World) -> None:
    run_id, _, _ = await world.in_doubt()
    letter = await world.letter("hello?")
    await world.desk.attach(letter, run_id)
    world.pass_time(1800)
    await world.upkeep.expire_due()
    assert [taken.id for taken in await world.desk.take_mail(9, 30)] == [letter.id]


async def test_hastening_shortens_and_never_lengthens(world: World) -> None:
    run_id, (ask,) = await world.suspended()
    assert await world.upkeep.hasten(run_id, 3600) == 0
    assert await world.upkeep.hasten(run_id, 5) == 1
    assert (await world.places())[f"card:{ask.id}"] == 2
    world.pass_time(5)
    assert await world.upkeep.expire_due() == 1


async def posted(world: World, place: str, channel: str = "C1", ts: str = "1700000001.000100") -> None:
    """Let the message of a place stand in Slack."""
    await world.pool.execute(
        "update outbox set message_channel = $2, message_ts = $3, delivered_version = version where place = $1",
        place,
        channel,
        ts,
    )


async def test_a_reminder_comes_once_beside_each_standing_copy_and_only_near_the_end(world: World) -> None:
    run_id, (ask,) = await world.suspended()
    world.pass_time(1600)
    assert await world.upkeep.to_remind(300) == [], "nobody can have seen a card that stands nowhere"
    await posted(world, f"card:{ask.id}")
    await world.outbox.mirror_card(ask.id, "D7")
    await posted(world, f"card:{ask.id}:D7", "D7", "1700000002.000200")
    world.pass_time(-200)
    assert await world.upkeep.to_remind(300) == [], "more than five minutes are left"
    world.pass_time(200)
    assert await world.upkeep.to_remind(300) == [ask.id]
    assert await world.upkeep.remind(ask.id) == 2
    assert await world.upkeep.remind(ask.id) == 0
    assert await world.upkeep.to_remind(300) == []
    rows = await world.pool.fetch("select * from outbox where place like '%:reminder%' order by place")
    thread = await world.value("select thread_ts from runs where id = $1", run_id)
    assert [(row["channel_id"], row["thread_ts"]) for row in rows] == [("C1", thread), ("D7", "1700000002.000200")]


async def test_a_short_suspension_is_reminded_of_when_a_third_of_its_time_is_left(world: World) -> None:
    _, (ask,) = await world.suspended(ttl_s=60)
    await posted(world, f"card:{ask.id}")
    world.pass_time(39)
    assert await world.upkeep.to_remind(300) == []
    world.pass_time(2)
    assert await world.upkeep.to_remind(300) == [ask.id]


async def test_nobody_is_reminded_of_what_is_decided(world: World) -> None:
    _, (ask,) = await world.suspended()
    await posted(world, f"card:{ask.id}")
    world.pass_time(1600)
    await world.desk.decide(ask.id, ask.token, ask.digest, clicker(), approve=False)
    assert await world.upkeep.to_remind(300) == []
    assert await world.upkeep.remind(ask.id) == 0


async def test_a_crowd_is_reminded_of_in_one_round(world: World) -> None:
    asks = [(await world.suspended())[1][0] for _ in range(BATCH + 3)]
    for ask in asks:
        await posted(world, f"card:{ask.id}")
    world.pass_time(1600)
    assert await Remind(world.upkeep).run_once() == len(asks)
    assert await Remind(world.upkeep).run_once() == 0
    assert await world.value("select count(*) from outbox where place like '%:reminder'") == len(asks)


async def test_cards_whose_places_are_closed_do_not_hide_others_that_must_be_reminded_of(world: World) -> None:
    refused = [(await world.suspended())[1][0] for _ in range(BATCH)]
    world.pass_time(1)
    _, (later,) = await world.suspended()
    for ask in (*refused, later):
        await posted(world, f"card:{ask.id}")
    await world.pool.execute(
        "update outbox set refused_at = now() where kind = 'card' and ref = any($1)", [ask.id for ask in refused]
    )
    world.pass_time(1600)
    assert await Remind(world.upkeep).run_once() == 1
    assert await world.value("select ref from outbox where place like '%:reminder'") == later.id


# ---- retention -----------------------------------------------------------------------------------------------------

DAY = 86_400


async def test_retention_removes_what_ended_long_ago_and_never_an_unknown_action(world: World) -> None:
    answered = await world.started(thread="t")
    await world.worker.answer(answered, Batch(messages=(turn(1, text="x"),)), 0, "x")
    fence, (ask,) = await world.approved()
    action = an_action(fence.run_id, ask.call, suspension_id=ask.id)
    await world.worker.intend(fence, Batch(), action)
    await world.worker.halt(fence, Batch(), HaltReason.OUTCOME_UNKNOWN, Closing())
    waiting, _ = await world.suspended()
    follow_up = await world.letter(thread="t")
    await world.desk.start(follow_up, world.new_run(follow_up, parent_id=answered.run_id), world.worker_id)
    world.pass_time(31 * DAY)
    while await world.upkeep.retention(2):
        pass
    left = {row["id"] for row in await world.pool.fetch("select id from runs")}
    assert answered.run_id not in left
    assert {fence.run_id, waiting} < left
    assert await world.value("select count(*) from messages where run_id = $1", answered.run_id) == 0
    assert await world.value("select count(*) from outbox where run_id = $1", answered.run_id) == 0
    assert await world.value("select count(*) from runs where parent_id is not null") == 0
    assert await world.value("select count(*) from inbox where handled_at is not null") == 0
    assert await world.value("select count(*) from audit where run_id = $1", fence.run_id) == 1
    world.pass_time(365 * DAY)
    await world.upkeep.retention(100)
    assert await world.value("select count(*) from audit") == 0


# ---- looking -------------------------------------------------------------------------------------------------------


async def test_counts_tell_what_is_there(world: World) -> None:
    await _register(world)
    await world.suspended()
    await world.halted()
    fence = await world.started()
    await world.worker.release(fence)
    await world.letter()
    world.pass_time(10)
    counts = await world.upkeep.counts()
    assert counts.runs == {"suspended": 1, "halted": 1, "running": 1}
    assert (counts.claimable, counts.open_suspensions, counts.unhandled_mail, counts.workers_alive) == (1, 1, 1, 1)
    assert counts.owed == 5
    await world.upkeep.unregister(world.worker_id)
    assert (await world.upkeep.counts()).workers_alive == 0


async def test_ready_means_reachable_and_writable(world: World, direct: str) -> None:
    assert await world.upkeep.ready()
    standby = await asyncpg.create_pool(
        direct, min_size=1, max_size=1, server_settings={"default_transaction_read_only": "on"}
    )
    try:
        assert not await PgMaintenance(standby).ready()
        with pytest.raises(StoreUnavailable):
            await PgMaintenance(standby).beat(world.worker_id)
    finally:
        await standby.close()
    with pytest.raises(StoreUnavailable):
        await PgMaintenance(standby).ready()


async def test_a_database_out_of_reach_is_unavailable_and_a_defect_is_not(world: World) -> None:
    with pytest.raises(StoreUnavailable):
        pool = await open_pool("postgresql://atlas@127.0.0.1:1/atlas")
        await pool.close()
    with pytest.raises(InvariantBroken):
        await world.upkeep.beat("not a uuid")


async def test_a_wrong_number_of_arguments_is_a_defect_and_a_lost_connection_is_not(database: str) -> None:
    """asyncpg says InterfaceError to both: the one would be tried again for ever, the other heals by itself."""
    pool = await open_pool(database, pooler=POOLED, size=1)
    try:
        store = Database(pool, None, hints=False)
        with pytest.raises(InvariantBroken, match="called wrongly"):
            async with store.connection() as connection:
                await connection.fetchval("select $1::integer", 1, 2)
        with pytest.raises(InvariantBroken, match="called wrongly"):
            async with store.transaction() as connection:
                await connection.fetchval("select $1::integer")
        with pytest.raises(StoreUnavailable):
            async with store.connection() as connection:
                connection.terminate()
                await connection.fetchval("select 1")
        async with store.connection() as connection:
            assert await connection.fetchval("select $1::integer", 7) == 7
    finally:
        await pool.close()


async def test_everything_works_without_prepared_statements_or_hints(database: str) -> None:
    """As behind a transaction pooler: no statement is kept, nothing is listened for.

    MagicStack/asyncpg#198, MagicStack/asyncpg#1058: statements prepared in a session that the next one is not given.
    """
    pool = await open_pool(database, pooler=True, size=2)
    try:
        world = world_on(pool)
        fence, (ask,) = await world.approved()
        action = an_action(fence.run_id, ask.call)
        await world.worker.intend(fence, Batch(), action)
        done = Outcome(ask.call, action.arguments_digest, ActionState.SUCCEEDED)
        await world.worker.conclude(fence, Batch(messages=(result(2, ask.call),)), [done])
        await world.worker.answer(fence, Batch(messages=(turn(3, text="sent"),)), 1, "sent")
        assert await world.state(fence.run_id) == "answered"
    finally:
        await pool.close()


async def test_waking_others_is_a_hint_from_outside_the_step_path(world: World, direct: str) -> None:
    heard: list[tuple[str, str]] = []
    listener = await asyncpg.connect(direct)
    try:
        for channel in ("atlas_work", "atlas_outbox", "atlas_mail"):
            await listener.add_listener(channel, lambda _c, _p, name, text: heard.append((name, text)))
        fence = await world.started()
        await world.worker.step(fence, Batch(messages=(turn(1, "send"),), steps=1))
        await world.worker.suspend(fence, Batch(), 0, [ask := an_ask(fence.run_id, CallKey(1, 0))])
        before = await _heard_up_to(world, heard, "a")
        assert [name for name, _ in before] == ["atlas_mail", "atlas_outbox", "atlas_work"]
        await world.desk.decide(ask.id, ask.token, ask.digest, clicker(), approve=True)
        after = await _heard_up_to(world, heard, "b")
        assert ("atlas_work", fence.run_id) in after
    finally:
        await listener.close()


async def _heard_up_to(world: World, heard: list[tuple[str, str]], mark: str) -> list[tuple[str, str]]:
    """Return what was heard until our own mark arrives (notifications come in commit order)."""
    await world.pool.execute("select pg_notify('atlas_work', $1)", mark)
    async with asyncio.timeout(DEADLINE_S):
        while ("atlas_work", mark) not in heard:
            await asyncio.sleep(0.005)
    return list(heard)


async def test_a_process_stopped_in_the_middle_of_a_statement_does_not_keep_its_run(
    world: World, database: str
) -> None:
    """It named a statement inside a transaction and stopped before it ran it: no time limit of the session covers that;
    whoever reaps ends the session, and the run goes on."""
    fence = await world.started()
    await world.upkeep.register(world.worker_id, "host", 1, "worker", 1, holds_lock=False)
    world.pass_time(91)
    upkeep = PgMaintenance(world.pool, now=world.time, stalled_s=0.0)
    stopped: Any = await asyncpg.connect(database, server_settings={"application_name": "atlas"})
    try:
        await stopped.execute("begin")
        await stopped.execute("select from runs where id = $1 for update", fence.run_id)
        # PostgreSQL's answer to the naming is never read, as if the process had been stopped.
        stopped._transport.pause_reading()
        asked = asyncio.create_task(stopped.fetch("select $1::integer", 1))
        async with asyncio.timeout(DEADLINE_S):
            while not await world.value(
                "select count(*) from pg_stat_activity where state = 'active' and wait_event = 'ClientRead'"
                " and datname = current_database()"
            ):
                await asyncio.sleep(0.01)
            assert await world.upkeep.reap(lease_s=90.0, quick=False) == []  # 15 s are not over
            while await upkeep.reap(lease_s=90.0, quick=False) != [fence.run_id]:
                await asyncio.sleep(0.01)
    finally:
        stopped.terminate()
    await asyncio.wait({asked})
    assert asked.exception() is not None


async def test_a_process_stopped_before_it_read_what_it_claimed_does_not_keep_it(world: World, database: str) -> None:
    """What a claim returns is more than a socket takes: PostgreSQL waits for the reader, and commits after it only."""
    for number in range(60):
        letter = await world.letter("x" * 60_000, user=f"U{number}")
        assert await world.desk.start(letter, world.new_run(letter), None) is None
    upkeep = PgMaintenance(world.pool, now=world.time, stalled_s=0.0)
    stopped: Any = await asyncpg.connect(database, server_settings={"application_name": "atlas"})
    try:
        claim = await stopped.prepare(sql.claim_runs.text)
        stopped._transport.pause_reading()
        asked = asyncio.create_task(claim.fetch(str(uuid4()), 60, None, "", None))
        async with asyncio.timeout(DEADLINE_S):
            while not await world.value(
                "select count(*) from pg_stat_activity where state = 'active' and wait_event = 'ClientWrite'"
                " and datname = current_database()"
            ):
                await asyncio.sleep(0.01)
            assert await world.worker.claim(world.worker_id, 60) == []
            # Its session may end while a claim looks: the first one gets what is free by then, the next one the rest.
            claimed: list[str] = []
            while len(claimed) < 60:
                await upkeep.reap(lease_s=90.0, quick=False)
                claimed += [one.run.id for one in await world.worker.claim(world.worker_id, 60)]
                await asyncio.sleep(0.01)
            assert len(set(claimed)) == 60
    finally:
        stopped.terminate()
    await asyncio.wait({asked})
    assert asked.exception() is not None


async def test_a_run_whose_rows_do_not_load_keeps_no_other_from_being_reaped(world: World) -> None:
    await _register(world)
    broken, sound = await world.started(), await world.started()
    await world.pool.execute("update runs set owner = '{}', recovery_attempts = 4 where id = $1", broken.run_id)
    world.pass_time(91)
    assert sorted(await world.upkeep.reap(lease_s=90, quick=False)) == sorted([broken.run_id, sound.run_id])
    assert await _run(world, sound.run_id) == ("running", 1, 0, True)
    (claimed,) = await world.worker.claim(str(uuid4()), 1)
    assert claimed.run.id == sound.run_id


async def test_a_run_whose_rows_do_not_load_keeps_no_other_from_expiring(world: World) -> None:
    broken, _ = await world.suspended()
    world.pass_time(1)
    sound, _ = await world.suspended()
    await world.pool.execute("update runs set owner = '{}' where id = $1", broken)
    world.pass_time(1801)
    assert await world.upkeep.expire_due() == 1
    assert [await world.state(run) for run in (broken, sound)] == ["suspended", "halted"]
