"""A resumption acts on the turn that was approved and reads the conversation before it afterwards.

Only where every message is proved to be what its writer encoded, so that one that does not decode is found before any
effect, as ever.
"""

from dataclasses import dataclass, field
from datetime import timedelta
from importlib.resources import files
from typing import Any

import asyncpg
import pytest

from bot.wiring import SystemClock
from core import Agent, Approval, Preview, Refused, Scope, ToolContext, User
from core.conversation import CallKey, Message, StoredMessage, ToolCall, Unread
from core.errors import ClaimLost, CouldNotCheck, InvariantBroken, ToolFailed
from core.loop import Loop
from core.ports import Batch, Fence
from core.run import RunView
from storage import sql
from storage.worker_store import LONG_FROM, PgWorkerStore
from tests.integration.storeworld import World, clicker, result, said, turn, world_on
from tests.unit.coreworld import Deed, Numbers, People, Read, Script, Write, call, says

LIFETIME = timedelta(minutes=30)
# NUL, lone surrogates, beyond ASCII, and what looks like an escape.
ODD = "\x00 \ud83d \U0001f600 \\u0000 é"
EARLIER = 21


@pytest.fixture
def world(pool: "asyncpg.Pool[asyncpg.Record]") -> World:
    return world_on(pool)


class Elsewhere(PgWorkerStore):
    """The store of a process that has never seen the run; *unread*: of each load, how many messages it left out."""

    def __init__(self, world: World) -> None:
        super().__init__(world.pool, now=world.time)
        self.unread: list[int] = []

    async def load(self, fence: Fence, *, late: bool = False) -> RunView:
        view = await super().load(fence, late=late)
        self.unread.append(view.unread)
        return view


@dataclass
class Resumed:
    """A run that waits for a click after a long conversation, and what becomes of it elsewhere."""

    world: World
    model: Script = field(default_factory=lambda: Script(says("", call()), says("Done.")))
    deed: Deed = field(default_factory=lambda: Deed(policy=Approval(), execute={"number": "Q-1"}))
    names: Numbers = field(default_factory=Numbers)

    def loop(self, fence: Fence, store: PgWorkerStore) -> Loop:
        async def scopes(user: User) -> Scope:
            return Scope()

        tools = [Write(self.deed), Read(Deed(execute={"seen": 1}))]
        agent = Agent(instructions="", tools=tools, scopes=scopes, model=self.model)
        return Loop(fence, store, agent, self.model, People(), SystemClock(), self.names, lifetime=LIFETIME)

    async def suspended(self, earlier: int = EARLIER) -> str:
        """Return a run that waits, its call at seq *earlier*."""
        fence = await self.world.started()
        said_before: list[StoredMessage] = []
        while (seq := 1 + len(said_before)) < earlier:
            odd = Message(
                role="assistant", text=ODD, raw=b"\x00\xff", calls=(ToolCall(id=ODD, tool="look", arguments={}),)
            )
            said_before += [StoredMessage(seq, odd), result(seq + 1, CallKey(seq, 0), ODD)]
        await self.world.worker.step(fence, Batch(messages=tuple(said_before[: earlier - 1])))
        await self.loop(fence, self.world.worker).run()
        assert await self.world.state(fence.run_id) == "suspended"
        return fence.run_id

    async def press(self, *, approve: bool = True) -> Fence:
        ((card, _),) = await self.world.desk.pending()
        decided = await self.world.desk.decide(
            card.id, card.token, card.digest, clicker(), approve=approve, worker_id=self.world.worker_id
        )
        assert decided.claimed is not None
        return decided.claimed


async def test_an_approved_call_begins_before_the_conversation_is_read_and_the_model_gets_all_of_it(
    world: World,
) -> None:
    resumed, elsewhere = Resumed(world), Elsewhere(world)
    seen: list[list[int]] = []

    def execute(ctx: ToolContext) -> dict[str, str]:
        seen.append(list(elsewhere.unread))
        return {"number": "Q-1"}

    resumed.deed.execute = execute
    run_id = await resumed.suspended()
    fence = await resumed.press()
    await resumed.loop(fence, elsewhere).run()
    assert seen == [[EARLIER]]
    assert elsewhere.unread == [EARLIER, 0]
    assert (resumed.deed.effects, await world.state(run_id)) == (1, "answered")
    shown = await world.desk.show(run_id)
    assert shown is not None
    conversation = [stored.message for stored in shown.messages]
    assert [stored.seq for stored in shown.messages] == list(range(EARLIER + 3))
    assert resumed.model.heard[-1] == conversation[:-1]
    assert (conversation[1].text, conversation[1].raw, conversation[2].text) == (ODD, b"\x00\xff", ODD)
    assert conversation[EARLIER + 1].text == '{"number": "Q-1"}'


BROKEN = {
    "a body that is no JSON": "update messages set body = 'broken' where run_id = $1 and seq = 5",
    "a body without its words": """update messages set body = '{"role":"user"}' where run_id = $1 and seq = 5""",
    "a body that is JSON and no message": """update messages set body = '{"role":"bystander","text":""}'
        where run_id = $1 and seq = 5""",
    "the same, of an earlier release": "update messages set body = 'broken', body_hash = null"
    " where run_id = $1 and seq = 5",
    "the approved turn itself": f"update messages set body = 'broken' where run_id = $1 and seq = {EARLIER}",
}


@pytest.mark.parametrize("statement", BROKEN.values(), ids=BROKEN.keys())
async def test_a_message_that_does_not_decode_ends_its_run_before_any_effect(world: World, statement: str) -> None:
    """And that run alone: another one that was approved goes on."""
    resumed, elsewhere = Resumed(world), Elsewhere(world)
    broken = await resumed.suspended()
    await world.pool.execute(statement, broken)
    fence = await resumed.press()
    other = Resumed(world)
    fine = await other.suspended()
    await resumed.loop(fence, elsewhere).run()
    assert (resumed.deed.effects, await world.state(broken)) == (0, "failed")
    assert await world.value("select count(*) from actions where run_id = $1", broken) == 0
    await other.loop(await other.press(), elsewhere).run()
    assert (other.deed.effects, await world.state(fine)) == (1, "answered")


async def test_what_would_not_decode_is_never_among_what_may_stay_unread(world: World) -> None:
    """A hash proves that a body is what was encoded; that it decodes is seen before it is stored."""
    resumed = Resumed(world)
    unchecked: dict[str, Any] = {"id": None, "tool": "look", "arguments": {}}
    resumed.model.lines.insert(0, says("", ToolCall.model_construct(**unchecked)))
    fence = await world.started()
    await resumed.loop(fence, world.worker).run()
    assert await world.state(fence.run_id) == "halted"
    assert await world.value("select count(*) from messages where run_id = $1", fence.run_id) == 1


READ_WHOLE = {
    "written by an earlier release": "update messages set body_hash = null where run_id = $1 and seq = 3",
    "a hash that another PostgreSQL computed": "update messages set body_hash = body_hash + 1 where run_id = $1",
    "a message is missing": "delete from messages where run_id = $1 and seq = 3",
    "decided, and its result is there": "insert into messages (run_id, seq, role, body, body_hash, answers_seq,"
    " answers_position) select $1, 22, 'tool', b, hashtextextended(b, 1), 21, 0"
    """ from (values ('{"role":"tool","text":""}')) as v (b)""",
}


@pytest.mark.parametrize("statement", READ_WHOLE.values(), ids=READ_WHOLE.keys())
async def test_what_is_not_proved_is_read_at_once(world: World, statement: str) -> None:
    resumed, elsewhere = Resumed(world), Elsewhere(world)
    run_id = await resumed.suspended()
    await world.pool.execute(statement, run_id)
    fence = await resumed.press()
    assert (await elsewhere.load(fence, late=True)).unread == 0


async def test_a_short_conversation_is_read_at_once(world: World) -> None:
    resumed, elsewhere = Resumed(world), Elsewhere(world)
    await resumed.suspended(earlier=LONG_FROM - 1)
    fence = await resumed.press()
    view = await elsewhere.load(fence, late=True)
    assert (view.unread, [stored.seq for stored in view.messages]) == (0, list(range(LONG_FROM)))
    anything_is_long = PgWorkerStore(world.pool, now=world.time, long_from=0)
    assert (await anything_is_long.load(fence, late=True)).unread == LONG_FROM - 1


async def test_a_conversation_is_long_from_there_on(world: World) -> None:
    resumed, elsewhere = Resumed(world), Elsewhere(world)
    await resumed.suspended(earlier=LONG_FROM + 1)
    assert (await elsewhere.load(await resumed.press(), late=True)).unread == LONG_FROM + 1


async def test_who_did_not_ask_for_it_and_who_lost_the_claim(world: World) -> None:
    resumed, elsewhere = Resumed(world), Elsewhere(world)
    run_id = await resumed.suspended()
    fence = await resumed.press()
    whole = await elsewhere.load(fence)
    late = await Elsewhere(world).load(fence, late=True)
    assert (whole.unread, late.unread) == (0, EARLIER)
    assert list(late.messages[EARLIER:]) == list(whole.messages[EARLIER:])
    assert (late.run, late.suspensions, len(late.messages)) == (whole.run, whole.suspensions, len(whole.messages))
    await world.pool.execute("update runs set claim_token = null, claimed_by = null where id = $1", run_id)
    with pytest.raises(ClaimLost):
        await Elsewhere(world).load(fence, late=True)


def test_nobody_takes_an_unread_message_for_a_message() -> None:
    for name in ("message", "answers"):
        with pytest.raises(InvariantBroken, match="7 was not read"):
            getattr(Unread(7), name)


OTHERWISE: dict[str, Any] = {
    "declined": ({}, False),
    "refused by its guard": ({"guard": Refused(reason="on hold")}, True),
    "no longer permitted": ({"permitted": False}, True),
    "failed at its target": ({"execute": ToolFailed("no such account")}, True),
}


@pytest.mark.parametrize(("deed", "approve"), OTHERWISE.values(), ids=OTHERWISE.keys())
async def test_whatever_becomes_of_the_call_the_model_gets_the_whole_conversation(
    world: World, deed: dict[str, Any], approve: bool
) -> None:
    resumed, elsewhere = Resumed(world), Elsewhere(world)
    run_id = await resumed.suspended()
    fence = await resumed.press(approve=approve)
    for name, value in deed.items():
        setattr(resumed.deed, name, value)
    await resumed.loop(fence, elsewhere).run()
    shown = await world.desk.show(run_id)
    assert shown is not None
    assert await world.state(run_id) == "answered"
    assert resumed.model.heard[-1] == [stored.message for stored in shown.messages][:-1]


async def test_a_card_that_opens_again_needs_no_more_than_its_turn(world: World) -> None:
    """What could not be checked, and what changed: the same card, or the next one, at a call whose place is right."""
    resumed, elsewhere = Resumed(world), Elsewhere(world)
    run_id = await resumed.suspended()
    resumed.deed.guard = CouldNotCheck("the guard", "down")
    await resumed.loop(await resumed.press(), elsewhere).run()
    assert await world.state(run_id) == "suspended"
    resumed.deed.guard = None
    resumed.deed.preview = Preview(title="Send something else")
    await resumed.loop(await resumed.press(), elsewhere).run()
    assert await world.state(run_id) == "suspended"
    ((card, _),) = await world.desk.pending()
    assert (card.call, card.preview["title"]) == (CallKey(EARLIER, 0), "Send something else")
    assert elsewhere.unread == [EARLIER] * 2
    await resumed.loop(await resumed.press(), elsewhere).run()
    assert (resumed.deed.effects, await world.state(run_id)) == (1, "answered")


async def test_a_crash_that_is_not_charged_yet_reads_the_whole_conversation_first(world: World) -> None:
    """What the lost model call may have cost is worked out from all that it would have been given."""
    resumed, elsewhere = Resumed(world), Elsewhere(world)
    run_id = await resumed.suspended()
    fence = await resumed.press()
    await world.pool.execute("update runs set charge_due = true where id = $1", run_id)
    await resumed.loop(fence, elsewhere).run()
    assert elsewhere.unread[:2] == [EARLIER, 0]
    assert (resumed.deed.effects, await world.state(run_id)) == (1, "answered")


async def test_the_last_pass_of_a_lost_run_reads_the_whole_conversation_first(world: World) -> None:
    """It gives every call of the conversation its end, and acts on nothing."""
    resumed, elsewhere = Resumed(world), Elsewhere(world)
    run_id = await resumed.suspended()
    fence = await resumed.press()
    await world.pool.execute("update runs set recovery_attempts = 3 where id = $1", run_id)
    await resumed.loop(fence, elsewhere).run()
    assert elsewhere.unread == [EARLIER, 0]
    assert resumed.deed.effects == 0
    assert await world.value("select fail_reason from runs where id = $1", run_id) == "recovery_exhausted"


def test_every_way_to_write_a_message_says_what_it_was() -> None:
    """Each statement that adds messages writes the hash with the one number of the encoding."""
    statements = [
        text for file in (files("storage") / "queries").iterdir() for text in file.read_text().split("-- name: ")
    ]
    adding = [text for text in statements if "insert into messages" in text]
    assert len(adding) == 7
    for text in adding:
        assert text.count("hashtextextended(m.body, 1)") == 1, text.split("(")[0]
    assert "hashtextextended(m.body, 1)" in sql.load_run.text


async def test_mail_and_a_second_turn_end_what_may_stay_unread(world: World) -> None:
    """Only the last turn is acted on: an approval of an earlier one is no reason to leave anything unread."""
    resumed, elsewhere = Resumed(world), Elsewhere(world)
    await resumed.suspended()
    fence = await resumed.press()
    done = (result(EARLIER + 1, CallKey(EARLIER, 0)), said(EARLIER + 2, "and?"), turn(EARLIER + 3, "look"))
    await world.worker.step(fence, Batch(messages=done, steps=1))
    assert (await elsewhere.load(fence, late=True)).unread == 0
