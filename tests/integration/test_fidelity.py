"""What a model said and a person approved comes back unchanged, whoever goes on with the run; what cannot is refused.

The loop and the store are the real ones. Each resumption is another process's: it has read nothing of the run before.
"""

import asyncio
import json
import math
from collections.abc import Awaitable, Callable
from typing import Any
from uuid import uuid4

import asyncpg
import pytest
from pydantic import BaseModel

from core import Approval, DidNotHappen, Happened, Limits, Preview, Scope, Tool, ToolContext
from core.conversation import Message, ModelReply, ToolCall
from core.ports import Batch, Closing
from core.run import HaltReason
from storage.worker_store import PgWorkerStore
from tests.integration.storeworld import DEADLINE_S, World, clicker, world_on
from tests.integration.test_faults_durable import ASK, LEASE_S, Place
from tests.unit.coreworld import Deed, Script, call, says
from tests.unit.test_core_conversation import same

MEGABYTE = "0123456789abcdé\U0001f600" * 65_536
ODD: dict[str, Any] = {
    "z before a": 1,
    "nul": "\0",
    "lone": "\ud83d",
    "key \udc00\0": {"": [None, True, 1, 1.0]},
    "emoji": "\U0001f600",
    "huge": float("1e400"),
    "nothing": -0.0,
    "nan": math.nan,
    "whole": 10**30,
    "long": MEGABYTE,
}
# As a provider's adapter keeps a reply: fields that nobody here knows, and bytes that are no text.
RAW = b'{"thinking":{"signature":"EqQB\\u0000+=="},"x_new":-0.0,"n":1e400}' + bytes(range(256))
TURN = ModelReply(
    text="\0 \ud83d \U0001f600 \u202e",
    calls=(ToolCall(id="call_1\0", tool="look", arguments=ODD), call(id="call_1")),
    raw=RAW,
)


@pytest.fixture
def world(pool: "asyncpg.Pool[asyncpg.Record]") -> World:
    return world_on(pool)


def another_process(world: World) -> None:
    """From now on the worker's store is one that has read and written nothing yet."""
    world.worker = PgWorkerStore(world.pool, now=world.time)


# ---- what the model said ---------------------------------------------------------------------------------------------


async def approved(world: World, place: Place, run_id: str) -> None:
    (card,) = await place.open()
    assert (await place.press(card)).refusal is None


async def died(world: World, place: Place, run_id: str) -> None:
    """Claimed again, and its process is gone before it did anything."""
    await approved(world, place, run_id)
    assert len(await world.worker.claim(str(uuid4()), 9)) == 1
    world.pass_time(LEASE_S + 1)
    assert await world.upkeep.reap(lease_s=LEASE_S, quick=False) == [run_id]


async def deployed(world: World, place: Place, run_id: str) -> None:
    """Claimed again, and given back by a process that leaves."""
    await approved(world, place, run_id)
    (claimed,) = await world.worker.claim(str(uuid4()), 9)
    await world.worker.release(claimed.fence)


async def halted(world: World, place: Place, run_id: str) -> None:
    """Claimed again, halted, and continued by its owner."""
    await approved(world, place, run_id)
    (claimed,) = await world.worker.claim(str(uuid4()), 9)
    await world.worker.halt(claimed.fence, Batch(), HaltReason.MODEL_UNAVAILABLE, Closing())
    continued = await world.desk.continue_(run_id, 1, clicker(), Limits(), Scope(), None)
    assert continued.run is not None


async def replaced(world: World, place: Place, run_id: str) -> None:
    """The owner wrote something else instead."""
    letter = await world.letter("something else", thread="t")
    assert await world.desk.supersede(letter, run_id, None) is None


@pytest.mark.parametrize("way", [approved, died, deployed, halted, replaced])
async def test_what_the_model_said_comes_back_to_it_unchanged(
    world: World, way: Callable[[World, Place, str], Awaitable[None]]
) -> None:
    """After a confirmation, a crash, a deploy, a halt and a new instruction: text, arguments, order of keys, and the
    bytes of its provider; and the call that cannot be digested is an error result, not the end of the run."""
    place = Place(world, Script(TURN, says("Done.")))
    letter = await world.letter(thread="t")
    fence = await world.desk.start(letter, world.new_run(letter), world.worker_id)
    assert fence is not None
    await place.loop(fence).run()
    assert await world.state(fence.run_id) == "suspended"
    another_process(world)
    await way(world, place, fence.run_id)
    another_process(world)
    await place.work()
    assert await world.state(fence.run_id) == "answered"
    (said,) = [message for message in place.model.heard[-1] if message.role == "assistant"]
    expected = Message(role="assistant", text=TURN.text, calls=TURN.calls, raw=RAW)
    assert same(said.model_dump(), expected.model_dump())
    first, second = [message for message in place.model.heard[-1] if message.role == "tool"]
    assert (first.call_id, second.call_id) == ("call_1\0", "call_1")
    assert json.loads(first.text)["error"] == "invalid_arguments"
    assert len(place.done) == (way is not replaced)


# ---- what is executed ------------------------------------------------------------------------------------------------


class Anything(BaseModel):
    """Any value."""

    what: Any


class Put(Tool[Anything]):
    """A write of any value. *puts*: what was put, in order; *held*: after a put its answer does not come back."""

    name = "put"
    description = "puts"
    writes = True

    def __init__(self, approval: Approval | None) -> None:
        self.approval = approval
        self.puts: list[Any] = []
        self.held = True

    def permitted(self, args: Anything, scope: Scope) -> bool:
        return True

    async def preview(self, args: Anything, ctx: ToolContext) -> Preview:
        return Preview(title="Put it", fields={"characters": str(len(str(args.what)))})

    async def execute(self, args: Anything, ctx: ToolContext) -> Any:
        self.puts.append(args.what)
        if self.held:
            await asyncio.Event().wait()
        return {"put": 1}

    async def reconcile(self, args: Anything, ctx: ToolContext) -> Happened | DidNotHappen:
        return Happened(result={"put": repr(args.what) == repr(self.puts[0])}) if self.puts else DidNotHappen()


BOTH_WAYS = pytest.mark.parametrize("approval", [None, ASK], ids=["freely", "asking"])


@BOTH_WAYS
@pytest.mark.parametrize(
    "what",
    [math.inf, -math.inf, math.nan, float("1e400"), 2**53, -(2**60), 10**30, 2.0**53, "half \ud83d", {"\udc00": 1},
     [[{"deep": [math.nan]}]]],
    ids=["inf", "-inf", "nan", "1e400", "2^53", "-2^60", "10^30", "a whole fraction", "half a pair", "a key", "deep"],
)  # fmt: skip
async def test_what_cannot_be_stored_exactly_is_refused_before_anything_begins(
    world: World, approval: Approval | None, what: Any
) -> None:
    """No card, no intention, no effect; the model is told, and any process goes on from there."""
    tool = Put(approval)
    place = Place(world, Script(says("", call("put", what=what)), says("Then not.")), also=(tool,))
    fence = await world.started()
    await place.loop(fence).run()
    assert await world.state(fence.run_id) == "answered"
    (told,) = await place.results(fence.run_id)
    assert json.loads(told)["error"] == "invalid_arguments"
    assert "cannot be stored exactly" in told
    assert tool.puts == []
    for table in ("suspensions", "actions"):
        assert await world.value(f"select count(*) from {table}") == 0
    another_process(world)
    letter = await world.letter("and now?", thread=await world.value("select thread_ts from runs"))
    parent = await world.desk.last_ended(letter)
    assert parent is not None
    assert same(parent.messages[1].message.calls[0].arguments, {"what": what})


@BOTH_WAYS
@pytest.mark.parametrize(
    "what",
    ["nul \0", "\U0001f600 \u202e <!channel>", -0.0, 5e-324, 2**53 - 1, MEGABYTE, {"\0": [None, True, 1.5]}],
    ids=["nul", "emoji", "-0.0", "tiny", "2^53-1", "a megabyte", "nested"],
)
async def test_what_can_be_stored_is_executed_as_it_is_over_a_crash(
    world: World, approval: Approval | None, what: Any
) -> None:
    """The process dies after the effect; the next one asks about exactly the same thing, and puts nothing again."""
    tool = Put(approval)
    place = Place(world, Script(says("", call("put", what=what)), says("Done.")), also=(tool,))
    fence = await world.started()
    if approval is not None:
        await place.loop(fence).run()
        another_process(world)
        await approved(world, place, fence.run_id)
        (claimed,) = await world.worker.claim(str(uuid4()), 9)
        fence = claimed.fence
    dying = asyncio.ensure_future(place.loop(fence).run())
    try:
        async with asyncio.timeout(DEADLINE_S):
            while not tool.puts:
                await asyncio.sleep(0.005)
        world.pass_time(LEASE_S + 1)
        assert await world.upkeep.reap(lease_s=LEASE_S, quick=False) == [fence.run_id]
        another_process(world)
        await place.work()
    finally:
        dying.cancel()
        await asyncio.gather(dying, return_exceptions=True)
    assert tool.puts == [what]
    assert await place.results(fence.run_id) == ['{"put": true}']
    assert await world.value("select array_agg(state) from actions") == ["succeeded"]
    assert await world.state(fence.run_id) == "answered"


# ---- what is shown ---------------------------------------------------------------------------------------------------


class Wider(Preview):
    """A preview with a field that no row gives back."""

    colour: str = "green"


UNSHOWABLE: dict[str, Callable[[], Preview]] = {
    "half a pair in a copy": lambda: Preview(title="Send").model_copy(update={"text": "half \ud83d"}),
    "no text": lambda: Preview(title="Send").model_copy(update={"title": math.nan}),
    "no JSON": lambda: Preview(title="Send").model_copy(update={"totals": {"sum": object()}}),
    "a field of its own": lambda: Wider(title="Send"),
}


@pytest.mark.parametrize("after_approval", [False, True], ids=["before a card", "after the approval"])
@pytest.mark.parametrize("how", UNSHOWABLE)
async def test_what_cannot_be_shown_exactly_is_refused_before_anything_begins(
    world: World, how: str, after_approval: bool
) -> None:
    """A preview past its own checks: the model is told, nothing is done, and the run is nobody's defect."""
    made: list[Preview] = []

    def preview(ctx: ToolContext) -> Preview:
        made.append(Preview(title="Send") if after_approval and not made else UNSHOWABLE[how]())
        return made[-1]

    place = Place(world, Script(says("", call()), says("Then not.")), deed=Deed(policy=ASK, preview=preview))
    fence = await world.started()
    await place.loop(fence).run()
    if after_approval:
        await approved(world, place, fence.run_id)
        another_process(world)
        await place.work()
    assert await world.state(fence.run_id) == "answered"
    (told,) = await place.results(fence.run_id)
    assert json.loads(told)["error"] == "tool_failed"
    assert "cannot be shown" in told
    assert place.done == []
    assert await world.value("select count(*) from actions") == 0
    assert await world.value("select count(*) from suspensions") == after_approval
    if after_approval:
        assert await world.value("select settled_kind from suspensions") == "not_executed"


@pytest.mark.parametrize(
    "odd",
    [Preview.model_construct(title="nul \0"), Preview(title="Send").model_copy(update={"fields": {"\udc00": "1"}})],
    ids=["a title alone", "half a pair in a key"],
)
async def test_what_can_be_shown_with_a_mark_in_its_place_is_shown_and_executed(world: World, odd: Preview) -> None:
    """Made without its defaults and with a NUL; with a name that is no text: card, digest and row have the same."""
    place = Place(world, Script(says("", call()), says("Done.")), deed=Deed(policy=ASK, preview=lambda ctx: odd))
    run_id = await place.suspended()
    another_process(world)
    await approved(world, place, run_id)
    await place.work()
    assert (len(place.done), await world.state(run_id)) == (1, "answered")
    assert await world.value("select count(*) from suspensions") == 1
