"""Tools and models that misbehave: the run goes on, or halts with a reason that people understand.

The tests' own agent is served, and does here what no engineer would do on purpose.
"""

import json
from typing import Any

import pytest

from tests.acceptance.stack import Stack, words
from tests.acceptance.workshop import HANGING_S, Execute, Json, Workshop, call, results, say, script


def behaving(workshop: Workshop, how: str) -> Execute:
    """Return a tool that misbehaves as *how* says; "done_and_…" does it first."""

    async def execute(asked: Json) -> Json:
        if how.startswith("done_and_"):
            workshop.do(asked)
        match how.removeprefix("done_and_"):
            case "raise":
                return {"do": "raise", "words": "the printer is on fire"}
            case "fail":
                return {"do": "fail", "words": "the printer is out of paper"}
            case "unstorable":
                return {"do": "unstorable"}
        return await workshop.hang(asked)

    return execute


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ("raise", "the printer is on fire"),
        ("fail", "the printer is out of paper"),
        ("hang", "it took too long"),
        ("unstorable", "not JSON serializable"),
    ],
)
async def test_a_read_that_misbehaves_is_an_error_result(shop: Stack, how: str, told: str) -> None:
    """Whatever a read does, the model gets an error result with the reason, and the run goes on to its answer."""
    shop.workshop.execute["look"] = behaving(shop.workshop, how)
    shop.workshop.think = script(call(("look", {"what": "it"})), say("I could not look."))
    if how == "hang":
        shop.workshop.give_up_after(HANGING_S)
    await shop.serve()
    thread = await shop.ask("@Atlas look")
    await shop.until(thread, "answered")
    (result,) = results(shop.workshop.asked[-1])
    assert json.loads(result)["error"] == "tool_failed"
    assert told in result
    await shop.said(thread, "I could not look.")


@pytest.mark.parametrize("how", ["done_and_raise", "done_and_hang"])
async def test_a_write_without_an_answer_is_looked_up_not_repeated(shop: Stack, how: str) -> None:
    """A write that happened and then raised or hung is reconciled: its result is found, it is asked for once only."""
    shop.workshop.execute["note"] = behaving(shop.workshop, how)
    shop.workshop.think = script(call(("note", {"what": "it"})), say("Noted."))
    if how == "done_and_hang":
        shop.workshop.give_up_after(HANGING_S)
    await shop.serve()
    thread = await shop.ask("@Atlas note it")
    run = await shop.until(thread, "answered")
    assert results(shop.workshop.asked[-1]) == ['{"done": "it"}']
    assert [effect.requests for effect in shop.workshop.effects()] == [1]
    assert "reconciled" in await shop.trace(run)


async def test_a_write_that_says_nothing_happened_is_an_error_result(shop: Stack) -> None:
    """ToolFailed from a write means that certainly nothing happened: told to the model, and on the card."""
    shop.workshop.execute["pay"] = behaving(shop.workshop, "fail")
    shop.workshop.think = script(call(("pay", {"what": "rent"})), say("It failed."))
    await shop.serve()
    thread = await shop.ask("@Atlas pay the rent")
    card = await shop.card(thread)
    await shop.press(card, "approve")
    await shop.until(thread, "answered")
    assert "the printer is out of paper" in await shop.shows(card, "Failed")
    assert json.loads(results(shop.workshop.asked[-1])[0])["error"] == "tool_failed"
    assert shop.workshop.effects() == []


async def test_a_write_whose_result_cannot_be_stored_is_done_once_and_says_so(shop: Stack) -> None:
    """The effect happened, its result is no JSON: the model is told both, and nothing is tried again."""
    shop.workshop.execute["note"] = behaving(shop.workshop, "done_and_unstorable")
    shop.workshop.think = script(call(("note", {"what": "it"})), say("Noted."))
    await shop.serve()
    thread = await shop.ask("@Atlas note it")
    await shop.until(thread, "answered")
    assert "it was done, but its result cannot be stored" in results(shop.workshop.asked[-1])[0]
    assert [effect.requests for effect in shop.workshop.effects()] == [1]


@pytest.mark.parametrize(
    "odd",
    ["nul \0 and \ud83d alone", {"deep": [{"a\0b": 1e308}] * 3}, "x" * 2_000_000, [2**70, -0.0, None, True]],
    ids=["nul-and-surrogate", "nested", "two-megabytes", "numbers"],
)
async def test_odd_results_are_stored_or_cut_visibly(shop: Stack, odd: Any) -> None:
    """NUL, lone surrogates, huge numbers and huge texts in a result break nothing; what is cut says so.

    langchain-ai/langgraph#1878, ginlix-ai/LangAlpha#190, getsentry/junior#897, Autumn-27/ARTEX#112, and
    pydantic/pydantic-ai#7110: a NUL, or too much, in a result broke the run for good.
    """

    async def execute(asked: Json) -> Json:
        shop.workshop.do(asked)
        return {"result": odd}

    shop.workshop.execute["note"] = execute
    shop.workshop.think = script(call(("note", {"what": "it"})), say("Noted."))
    await shop.serve()
    thread = await shop.ask("@Atlas note it")
    await shop.until(thread, "answered")
    result = results(shop.workshop.asked[-1])[0]
    assert len(result) < 70_000
    assert "[cut: the result had" in result or json.loads(result) == odd
    assert [effect.requests for effect in shop.workshop.effects()] == [1]


@pytest.mark.parametrize(
    ("turn", "error", "told"),
    [
        (call(("no_such_tool", {})), "unknown_tool", "the tools are: look, note, pay"),
        (call(("look", {})), "invalid_arguments", "what: Field required"),
        (call(("pay", {"what": "rent", "amount": "much"})), "invalid_arguments", "amount"),
        (call(("pay", {"what": "rent", "amount": 2**60})), "invalid_arguments", "2^53"),
        (call(("pay", {"what": "half \ud83d"})), "invalid_arguments", "Unicode"),
        ({"calls": [{"id": "x", "tool": "look", "arguments": {}, "malformed": "{"}]}, "invalid_arguments", "JSON"),
    ],
    ids=["unknown-tool", "missing", "wrong-type", "beyond-2-53", "lone-surrogate", "malformed"],
)
async def test_calls_that_make_no_sense_are_error_results(shop: Stack, turn: Json, error: str, told: str) -> None:
    """Unknown tools and invalid arguments come back to the model as results, before anybody is asked or affected."""
    shop.workshop.think = script(turn, say("Sorry."))
    await shop.serve()
    thread = await shop.ask("@Atlas do something odd")
    await shop.until(thread, "answered")
    (result,) = results(shop.workshop.asked[-1])
    assert json.loads(result)["error"] == error
    assert told in result
    assert shop.workshop.effects() == []
    assert await shop.rows("select id from suspensions") == []


@pytest.mark.parametrize(
    ("turn", "told"),
    [
        ({"text": "   "}, "the model returned nothing, twice"),
        ({"do": "raise", "words": "quota exceeded for project 7"}, "quota exceeded for project 7"),
        ({"text": "x" * 4_100_000}, "too large"),
    ],
    ids=["nothing", "raises", "too-much"],
)
async def test_a_model_without_a_usable_reply_halts_the_run(shop: Stack, turn: Json, told: str) -> None:
    """Nothing twice, an error, or megabytes: the run halts with the reason and a Continue, and that works later."""
    shop.workshop.think = script(turn)
    await shop.serve()
    thread = await shop.ask("@Atlas say something")
    run = await shop.until(thread, "model_unavailable")
    card = await shop.halt_card(thread)
    assert "The language model could not be reached, or gave no usable answer" in words(card)
    assert told in words(card)
    shop.workshop.think = script(say("Here I am again."))
    await shop.press(card, "continue", thread=thread)
    after = await shop.until(thread, "answered")
    await shop.said(thread, "Here I am again.")
    assert after["max_spend_usd"] == run["max_spend_usd"], "a halt that no budget caused grants nothing"


async def test_an_answer_cannot_mention_a_channel_or_hide_a_link(shop: Stack) -> None:
    """What a model says is text: it pings nobody and shows where its links lead."""
    shop.workshop.think = script(say("<!channel> @here see [your bank](https://evil.example) <@U0MARCUS001>"))
    await shop.serve()
    thread = await shop.ask("@Atlas say something")
    said = await shop.said(thread, "your bank (https://evil.example)")
    for live in ("<!channel>", "@here", "<@U0MARCUS001>", "](https"):
        assert live not in said


async def test_a_long_answer_arrives_whole(shop: Stack) -> None:
    """Beyond Slack's 12,000 characters an answer goes on in further messages, in order; its end is there."""
    lines = "\n".join(f"{number}. line of the answer" for number in range(1_000))
    shop.workshop.think = script(say(f"{lines}\nThe very end."))
    await shop.serve()
    thread = await shop.ask("@Atlas tell me much")
    await shop.until(thread, "answered")
    await shop.said(thread, "The very end.")
    said = " ".join(shop.texts(thread))
    assert all(f"{number}. line" in said for number in (0, 499, 999))


async def test_a_deadly_turn_of_many_calls_is_bounded(shop: Stack) -> None:
    """A model that asks for 200 calls in one turn gets 24 of them; the others have a result that says why."""
    shop.workshop.think = script(call(*[("look", {"what": str(n)}) for n in range(200)]), say("Enough."))
    await shop.serve()
    thread = await shop.ask("@Atlas look everywhere")
    run = await shop.until(thread, "budget_tool_calls")
    assert run["tool_calls"] == 24
    assert len(shop.workshop.executions) == 24
    told = await shop.results(run)
    assert len(told) == 200
    assert sum("not_executed_budget" in result for result in told) == 176
