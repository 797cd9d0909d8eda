"""What an earlier release left goes on in this one: live runs, cards that wait or were never posted, a letter unread.

The rows are those that the last code of each earlier schema wrote (see ``oldrows``), loaded into that schema; then this
release's migrations run, and this release's stores and loop go on.
"""

import os
from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import pytest

from core import Approval, Limits, Preview, Scope, ToolContext
from core.ports import Batch, Fence
from storage.database import open_pool
from storage.migrate import load_migrations, migrate
from tests.conftest import POOLED, STATEMENTS_KEPT
from tests.integration.oldrows import KEPT, Left, Story, load, read
from tests.integration.storeworld import World, clicker, world_on
from tests.integration.test_faults_durable import LEASE_S, Place
from tests.unit.coreworld import Deed, Script, says

NEWEST = len(load_migrations())
EARLIER = list(range(1, NEWEST))


def kept(schema: int) -> Path:
    return KEPT / f"{schema:04}.jsonl"


async def left_now(world: World) -> Left:
    """Let this release leave the same."""
    return read(await Story(world).write(NEWEST))


@pytest.fixture(params=[*EARLIER, NEWEST], ids=[*(f"schema {n}" for n in EARLIER), "this release"])
async def left(request: pytest.FixtureRequest, pool: "asyncpg.Pool[asyncpg.Record]") -> Left:
    if request.param == NEWEST:
        return await left_now(world_on(pool))
    with kept(request.param).open(encoding="utf-8") as lines:
        return read(lines)


@pytest.fixture
async def upgraded(left: Left, empty_database: str) -> AsyncIterator[World]:
    """A database of the earlier release, with what it left, migrated to this one."""
    await migrate(empty_database, migrations=load_migrations()[: left.schema])
    connection = await asyncpg.connect(empty_database, statement_cache_size=STATEMENTS_KEPT)
    try:
        await load(connection, left)
    finally:
        await connection.close()
    assert len(await migrate(empty_database)) == NEWEST - left.schema
    pool = await open_pool(empty_database, pooler=POOLED, size=4)
    try:
        yield World(pool, left.now, left.dead)
    finally:
        await pool.close()


def test_each_earlier_schema_has_its_kept_rows() -> None:
    """A migration comes with the rows of the schema before it, else nothing is known of that upgrade."""
    assert [schema for schema in EARLIER if not kept(schema).is_file()] == []


async def test_what_this_release_leaves_can_be_kept_rows(pool: "asyncpg.Pool[asyncpg.Record]") -> None:
    """And is, for the next migration, where ATLAS_KEEP_ROWS says."""
    lines = await Story(world_on(pool)).write(NEWEST)
    left = read(lines)
    assert {table for table, _ in left.rows} >= {
        "runs",
        "messages",
        "suspensions",
        "actions",
        "votes",
        "inbox",
        "outbox",
    }
    if directory := os.environ.get("ATLAS_KEEP_ROWS"):
        (Path(directory) / f"{NEWEST:04}.jsonl").write_text("\n".join([*lines, ""]), encoding="utf-8")


async def test_whatever_an_earlier_release_left_goes_on_to_its_end(upgraded: World, left: Left) -> None:
    """curie-eng/curie#1751: pending across a deploy. langchain-ai/langgraph#1965: stored state that no longer loads.

    What waits is decided, what was cut short is recovered and has one effect, the halted run is continued, the letter
    starts a run, and every message that was owed can be shown.
    """
    world, runs = upgraded, left.runs
    two = runs["has one vote of two"]["run"]

    def policy(ctx: ToolContext) -> Approval:
        return Approval(by="anyone", count=2) if ctx.run_id == two else Approval()

    shown = Preview(title="Send quote Q-1", fields={"to": "Henderson"})
    place = Place(world, Script(*[says("Done.") for _ in runs]), deed=Deed(policy=policy, preview=shown))
    cards = {row.ref for row in await world.outbox.take(99, 1.0) if row.kind == "card"}
    assert {runs[name]["suspension"] for name in ("waits", "has one vote of two", "in doubt")} <= cards

    world.pass_time(LEASE_S + 1)
    reaped = await world.upkeep.reap(lease_s=LEASE_S, quick=False)
    assert sorted(reaped) == sorted(runs[name]["run"] for name in ("approved", "executes", "runs"))
    await place.work()
    assert len(place.done) == 2, "what was approved, and what was cut short before it was done"

    owners = {row["id"]: row["user_id"] for row in await world.pool.fetch("select id, user_id from runs")}
    for card in await place.open():
        voter = "U91" if card.run_id == two else owners[card.run_id]
        assert (await place.press(card, user=voter)).refusal is None
    halted = runs["halted"]["run"]
    continued = await world.desk.continue_(halted, 1, clicker(owners[halted]), Limits(), Scope(), None)
    assert continued.run is not None
    (letter,) = await world.desk.take_mail(9, 30.0)
    assert letter.id == runs["letter"]["letter"]
    begun = world.new_run(letter, id="begunanew")
    assert await world.desk.start(letter, begun, None) is None
    await place.work()

    states = await world.pool.fetch("select id, state from runs")
    assert {row["id"]: row["state"] for row in states if row["state"] != "answered"} == {}
    assert len(states) == len(runs)
    # All but the one of which a person said that it had happened already.
    assert (len(place.done), len(set(place.done))) == (6, 6)
    assert await world.value("select count(*) from actions where state <> 'succeeded'") == 0
    world.pass_time(60)
    owed = await world.outbox.take(99, 30.0)
    assert {row.kind for row in owed} >= {"card", "answer", "halt", "progress", "alert"}
    for row in owed:
        inputs = await world.outbox.render_inputs(row)
        assert row.kind == "alert" or inputs.run is not None
    kept_answer = next(row for row in owed if row.place.startswith(f"answer:{runs['answered']['run']}"))
    assert (await world.outbox.render_inputs(kept_answer)).answer == "The answer is 42."


async def test_a_step_under_an_earlier_releases_claim_still_counts(upgraded: World, left: Left) -> None:
    """A worker that was reading when the schema changed under it commits what it holds."""
    run_id = left.runs["runs"]["run"]
    token = await upgraded.value("select claim_token::text from runs where id = $1", run_id)
    fence = Fence(run_id, token)
    before = len((await upgraded.worker.load(fence)).messages)
    await upgraded.worker.step(fence, Batch(steps=1))
    view = await upgraded.worker.load(fence)
    assert (len(view.messages), view.run.step) == (before, 2)
