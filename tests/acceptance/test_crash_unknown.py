"""Outcomes that nobody can tell: the question to a person, its expiry, late answers, and what continue does then."""

from tests.acceptance.stack import Card, Stack, Thread, words
from tests.acceptance.waiting import wait_until
from tests.acceptance.workshop import call, results, say, script


async def _asked(shop: Stack, **settings: str) -> tuple[Thread, Card]:
    """Let a process die in a write that nobody can be asked about; return the question to a person about it."""
    shop.workshop.execute["pay_blind"] = shop.workshop.do_and_hang
    shop.workshop.think = script(call(("pay_blind", {"what": "rent"})), say("That is settled."))
    dying = await shop.serve()
    thread = await shop.ask("@Atlas pay the rent blindly")
    await shop.press(await shop.card(thread), "approve")
    await shop.workshop.executing("pay_blind")
    dying.kill()
    shop.workshop.execute.clear()
    await shop.serve(**settings)
    return thread, await shop.card(thread, 2)


async def test_a_message_waits_while_an_outcome_is_asked_for(shop: Stack) -> None:
    """An open outcome cannot be superseded: the owner's message waits for its answer, and is then heard."""
    thread, question = await _asked(shop)
    shop.workshop.think = lambda messages: say(f"Hello. {results(messages)}")
    await shop.reply(thread, "@Atlas never mind, say hello")
    await wait_until(lambda: shop.value("select count(*) = 2 from inbox where run_id is not null"), "it is attached")
    assert await shop.value("select status from suspensions where kind = 'outcome'") == "open"
    assert len(shop.workshop.asked) == 1
    await shop.press(question, "happened")
    await shop.until(thread, "answered")
    said = [message["text"] for message in shop.workshop.asked[-1] if message["role"] == "user"]
    assert said == ["pay the rent blindly", "never mind, say hello"]
    assert [effect.requests for effect in shop.workshop.effects()] == [1]


async def test_an_unanswered_outcome_halts_and_a_continue_asks_again(shop: Stack) -> None:
    """Nobody answers: halted (outcome_unknown) with an alert, nothing repeated; a continue asks again."""
    thread, question = await _asked(shop, ATLAS_EXPIRE_EVERY_S="0.3")
    await shop.let_expire(question)
    run = await shop.until(thread, "outcome_unknown")
    assert "still unknown whether it happened" in await shop.shows(question, "Expired")
    states = await shop.rows("select state from actions")
    assert [row["state"] for row in states] == ["unknown"]
    await wait_until(lambda: len(shop.alerts()) == 2, "an alert for the question and one for the halt")
    card = await shop.halt_card(thread)
    await shop.press(card, "continue", thread=thread)
    again = await shop.card(thread, 3)
    assert "Did it happen?" in words(shop.shown(again))
    await shop.press(again, "happened")
    await shop.until(thread, "answered")
    assert "confirmed_by" in results(shop.workshop.asked[-1])[0]
    assert [effect.requests for effect in shop.workshop.effects()] == [1]
    assert (await shop.run(thread))["id"] == run["id"]


async def test_a_follow_up_after_an_unknown_outcome_is_told_not_to_repeat_it(shop: Stack) -> None:
    """A new message after such a halt starts a follow-up whose conversation says: outcome unknown, do not repeat it."""
    thread, question = await _asked(shop, ATLAS_EXPIRE_EVERY_S="0.3")
    await shop.let_expire(question)
    await shop.until(thread, "outcome_unknown")
    shop.workshop.think = script(say("I cannot tell whether the rent was paid."))
    await shop.reply(thread, "@Atlas was it paid?")
    await shop.said(thread, "I cannot tell whether the rent was paid.")
    assert "do not repeat it" in results(shop.workshop.asked[-1])[0]
    first, second = await shop.runs(thread)
    assert second["parent_id"] == first["id"]
    assert [effect.requests for effect in shop.workshop.effects()] == [1]
