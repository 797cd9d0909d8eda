"""Long answers: further messages in the thread, in order, each posted once, whatever happens between two of them."""

from collections.abc import AsyncIterator

import asyncpg
import pytest

from bot.delivery import Delivery
from bot.simulator.workspace import SALES_DESK
from core.ports import Batch
from tests.integration.slack_stage import SETTLED_S, Stage, stage

PARAGRAPHS = [f"Paragraph {n}: " + "Henderson wants 200 pieces. " * 10 for n in range(100)]
ANSWER = "\n\n".join(PARAGRAPHS)


@pytest.fixture
async def on(pool: "asyncpg.Pool[asyncpg.Record]") -> AsyncIterator[Stage]:
    """The stage, without a connection."""
    async with stage(pool, still=True) as on:
        yield on


async def answered(on: Stage, text: str = ANSWER) -> list[str]:
    """Answer a run; return the places of the three messages that its answer needs."""
    fence = await on.run()
    view = await on.store.load(fence)
    await on.store.answer(fence, Batch(), view.run.news, text)
    place: str = await on.pool.fetchval("select place from outbox where kind = 'answer'")
    return [place, f"{place}:part2", f"{place}:part3"]


def standing(on: Stage, places: list[str]) -> list[int]:
    """Return how many messages stand for each place."""
    return [len(on.posted(place)) for place in places]


def told(on: Stage, places: list[str]) -> list[str]:
    """Return the paragraphs of the messages, in the order in which they stand in the thread."""
    messages = sorted((on.posted(place)[0] for place in places), key=lambda message: str(message["ts"]))
    assert [message["metadata"]["event_payload"]["place"] for message in messages] == places
    return [it.strip() for message in messages for it in message["blocks"][0]["text"].split("\n\n")]


async def test_a_long_answer_goes_on_in_further_messages_of_its_thread(on: Stage) -> None:
    """Three markdown messages, cut between paragraphs, that say which part they are; nothing is owed after them."""
    places = await answered(on)
    await on.deliver()
    assert standing(on, places) == [1, 1, 1]
    assert told(on, places) == [it.strip() for it in PARAGRAPHS]
    messages = [on.posted(place)[0] for place in places]
    threads = {message["thread_ts"] for message in messages}
    assert len(threads) == 1
    for at, message in enumerate(messages, start=1):
        assert message["blocks"][0]["type"] == "markdown"
        assert f"Part {at} of 3" in str(message["blocks"][1])
    assert await on.pool.fetchval("select count(*) from outbox where version > delivered_version") == 0
    assert await on.pool.fetchval("select count(*) from outbox where kind = 'answer'") == 3


async def test_a_process_that_dies_between_two_parts_leaves_the_rest_to_another(on: Stage) -> None:
    """One part stands and the process is gone: the next one is owed in the store, and nothing is said twice."""
    places = await answered(on)
    await on.delivery.run_once(1)
    assert standing(on, places) == [1, 0, 0]
    other = Delivery(on.outbox, on.delivery.client, on.installation, on.clock, on.time)
    while await other.run_once(20):
        pass
    assert standing(on, places) == [1, 1, 1]
    assert told(on, places) == [it.strip() for it in PARAGRAPHS]


@pytest.mark.parametrize("part", [0, 1])
@pytest.mark.parametrize("fault", ["store_then_drop", "drop_before", "ratelimited"])
async def test_no_part_is_posted_twice_or_before_the_one_that_it_follows(on: Stage, fault: str, part: int) -> None:
    """An answer lost after Slack stored it, a request that never arrived, a pause: the others wait for this part."""
    places = await answered(on)
    more = {"retry_after": 20} if fault == "ratelimited" else {}
    where = {"metadata": {"event_payload": {"place": places[part]}}}
    on.slack.faults.add(fault, "chat.postMessage", times=1, where=where, **more)  # type: ignore[arg-type]
    await on.deliver()
    assert on.slack.faults.listing()["methods"] == [], "the fault happened"
    assert standing(on, places)[part + 1 :] == [0] * (2 - part), "none goes before this one"
    for _ in range(3):
        on.time.advance(SETTLED_S + 5)
        on.slack.advance(SETTLED_S + 5)
        await on.deliver()
    assert standing(on, places) == [1, 1, 1]
    assert told(on, places) == [it.strip() for it in PARAGRAPHS]


async def test_an_answer_that_its_thread_takes_no_more_goes_on_where_its_owner_reads(on: Stage) -> None:
    """The channel is archived between two parts: the rest stands in the owner's direct messages, once each."""
    places = await answered(on)
    await on.delivery.run_once(1)
    on.slack.change_world({"channel": SALES_DESK, "set": {"is_archived": True}})
    await on.deliver()
    dm = on.slack.dm("U0RITA00001")
    copies = [f"{places[1]}:{dm}", f"{places[1]}:{dm}:part3"]
    assert standing(on, [*places, *copies]) == [1, 0, 0, 1, 1]
    assert told(on, [places[0], *copies]) == [it.strip() for it in PARAGRAPHS]
