"""Suspensions that nobody decides, and halts: expiry by the job and by a late click, and who may continue what."""

import pytest

from bot.simulator.workspace import VERA
from tests.acceptance.stack import Card, Stack, Thread, has_button, words
from tests.acceptance.waiting import wait_until
from tests.acceptance.workshop import call, results, say, script

NEVER = "3600"


async def _expired_card(stack: Stack, thread: Thread, card: Card) -> str:
    """Return what an expired card says, once everything that expiry owes was delivered."""
    await stack.until(thread, "suspension_expired")
    said = await stack.shows(card, "Expired")
    await stack.said(thread, "Expired, nothing was done: Send quote Q-1042")
    await stack.quiet()
    return said


async def _edits(stack: Stack, card: Card, since: int) -> int:
    """Count the edits of a card after a record of the journal."""
    return len(stack.slack.journal.find({"kind": "request", "method": "chat.update", "args": {"ts": card.ts}}, since))


async def test_expiry_by_the_job_and_by_a_late_click_say_the_same(stack: Stack) -> None:
    """Whoever notices first, job or click: one edit of the card, the same text, one line to the requester.

    fivexl/terraform-aws-sso-elevator#26, fivexl/terraform-aws-sso-elevator#42: no word on expiry.
    """
    job = await stack.serve(ATLAS_EXPIRE_EVERY_S="0.3")
    thread = await stack.ask()
    card = await stack.card(thread)
    since = stack.slack.journal.last
    await stack.let_expire(card)
    by_job = await _expired_card(stack, thread, card)
    assert await _edits(stack, card, since) == 1
    assert await job.terminate() == 0

    await stack.serve(ATLAS_EXPIRE_EVERY_S=NEVER)
    second = await stack.ask()
    late = await stack.card(second)
    since = stack.slack.journal.last
    await stack.let_expire(late)
    assert (await stack.run(second))["state"] == "suspended", "nobody has noticed yet"
    click = await stack.press(late, "approve")
    assert click.state == "acked"
    await stack.whispered(second, "This request expired")
    by_click = await _until_expired(stack, second, late)
    assert await _edits(stack, late, since) == 1
    assert _timeless(by_click) == _timeless(by_job).replace("Q-1042", "Q-1043")
    assert stack.sent() == []


async def _until_expired(stack: Stack, thread: Thread, card: Card) -> str:
    await stack.until(thread, "suspension_expired")
    said = await stack.shows(card, "Expired")
    await stack.quiet()
    return said


def _timeless(text: str) -> str:
    """Return a card's text without its times and its digest."""
    return " ".join(word for word in text.split() if ":" not in word and not _hex(word))


def _hex(word: str) -> bool:
    return len(word.strip("`")) == 8 and all(character in "0123456789abcdef" for character in word.strip("`"))


async def test_ask_again_on_an_expired_card_goes_on_and_tells_the_model(stack: Stack) -> None:
    """The owner presses Ask again: the model learns that it expired (not that it was declined) and asks anew.

    MoonshotAI/kimi-cli#1823: a timeout was reported to the model as a refusal.
    """
    await stack.serve(ATLAS_EXPIRE_EVERY_S="0.3")
    thread = await stack.ask()
    card = await stack.card(thread)
    await stack.let_expire(card)
    await stack.until(thread, "suspension_expired")
    await wait_until(lambda: has_button(stack.shown(card), "continue"), "Ask again")
    await stack.press(card, "continue")
    again = await stack.card(thread, 2)
    await stack.press(again, "approve")
    run = await stack.until(thread, "answered")
    assert [sent["requests"] for sent in stack.sent()] == [1]
    assert any('"error": "expired"' in result for result in await stack.results(run))
    assert not any("declined" in result for result in await stack.results(run))


@pytest.mark.limits(max_steps=2)
async def test_the_owner_continues_a_halted_run_once_per_halt(shop: Stack) -> None:
    """Somebody else's press does nothing; two presses of the owner at once continue once; the old card is dead."""
    looks = [call(("look", {"what": str(n)})) for n in range(20)]
    shop.workshop.think = script(*looks)
    await shop.serve()
    await shop.serve()
    thread = await shop.ask("@Atlas look around")
    run = await shop.until(thread, "budget_steps")
    card = await shop.halt_card(thread)
    assert "2 steps, $0.02" in words(card)
    await shop.press(card, "continue", by=VERA, thread=thread)
    await shop.whispered(thread, "Nothing was continued", to=VERA)
    assert (await shop.run(thread))["continuations"] == 0

    both = [await shop.click(card, "continue", thread=thread), await shop.click(card, "continue", thread=thread)]
    await shop.press_all(both)
    run = await shop.until(thread, "budget_steps")
    await wait_until(lambda: shop.value("select halts = 2 from runs"), "the second halt")
    run = await shop.run(thread)
    assert (run["continuations"], run["step"], run["max_steps"]) == (1, 6, 6)
    await shop.quiet()
    old = shop.slack.message(thread.channel, card["ts"])
    assert old is not None
    assert not has_button(old, "continue")
    new = await shop.halt_card(thread)
    assert new["ts"] != card["ts"]


@pytest.mark.limits(max_steps=1)
async def test_a_stale_continue_button_continues_nothing(shop: Stack) -> None:
    """The button carries the halt's number: pressed from a stale client after a later halt, it does nothing."""
    shop.workshop.think = script(*[call(("look", {"what": str(n)})) for n in range(20)])
    await shop.serve()
    thread = await shop.ask("@Atlas look around")
    await shop.until(thread, "budget_steps")
    first = await shop.halt_card(thread)
    stale = next(e["value"] for b in first["blocks"] if b["type"] == "actions" for e in b["elements"])
    await shop.press(first, "continue", thread=thread)
    await wait_until(lambda: shop.value("select halts = 2 and state = 'halted' from runs"), "the second halt")
    await shop.quiet()
    second = await shop.halt_card(thread)
    await shop.press(second, "continue", thread=thread, forge={"value": stale})
    await shop.whispered(thread, "Nothing was continued")
    assert (await shop.run(thread))["continuations"] == 1


@pytest.mark.limits(max_steps=1)
async def test_continue_in_the_thread_and_by_command(shop: Stack) -> None:
    """ "@Atlas continue" and /atlas continue do what the button does, for the owner only; others find nothing.

    slackapi/bolt-python#873, slackapi/bolt-python#1177, slackapi/bolt-js#1816, NousResearch/hermes-agent#25355: no
    slash command works inside a thread.
    """
    shop.workshop.think = script(*[call(("look", {"what": str(n)})) for n in range(20)])
    await shop.serve()
    thread = await shop.ask("@Atlas look around")
    run = await shop.until(thread, "budget_steps")
    await shop.halt_card(thread)
    theirs = await shop.command(f"continue {run['id']}", by=VERA)
    nobodys = run["id"][::-1]
    like_none = (await shop.command(f"continue {nobodys}", by=VERA)).replace(nobodys, run["id"])
    assert theirs == like_none, "it looks like one that is not there"
    await shop.reply(thread, "@Atlas continue", by=VERA)
    await shop.said(thread, "No stopped run of yours is there to continue")
    assert (await shop.run(thread))["continuations"] == 0
    await shop.reply(thread, "@Atlas continue")
    await wait_until(lambda: shop.value("select halts = 2 and state = 'halted' from runs"), "the second halt")
    await shop.command("continue")
    await wait_until(lambda: shop.value("select halts = 3 and state = 'halted' from runs"), "the third halt")
    assert (await shop.run(thread))["continuations"] == 2


@pytest.mark.limits(max_spend_usd="0.20")
async def test_a_spend_halt_keeps_what_was_spent_and_grants_more(shop: Stack) -> None:
    """The budget is never reset: after a continue the spend goes on from where it was, under the new ceiling."""
    shop.workshop.think = script(
        call(("look", {"what": "first"}), spend="0.12"), call(("look", {"what": "second"}), spend="0.05"), say("Seen.")
    )
    await shop.serve()
    thread = await shop.ask("@Atlas look twice")
    run = await shop.until(thread, "budget_spend")
    assert f"{run['spend_usd']:.2f}" == "0.12"
    card = await shop.halt_card(thread)
    assert "$0.12" in words(card)
    await shop.press(card, "continue", thread=thread)
    run = await shop.until(thread, "answered")
    assert f"{run['spend_usd']:.2f}" == "0.18"
    assert run["max_spend_usd"] > run["spend_usd"]


@pytest.mark.limits(max_tool_calls=1)
async def test_calls_over_the_limit_are_not_executed_and_the_model_is_told(shop: Stack) -> None:
    """Calls over the limit get a result that says so, nothing of them happens, and a continue grants more calls."""
    shop.workshop.think = script(
        call(("note", {"what": "one"}), ("note", {"what": "two"})), call(("note", {"what": "two"})), say("Both.")
    )
    await shop.serve()
    thread = await shop.ask("@Atlas note one and two")
    run = await shop.until(thread, "budget_tool_calls")
    assert [effect.what for effect in shop.workshop.effects()] == ["one"]
    assert "not_executed_budget" in (await shop.results(run))[1] + (await shop.results(run))[0]
    await shop.press(await shop.halt_card(thread), "continue", thread=thread)
    await shop.until(thread, "answered")
    assert any("not_executed_budget" in result for result in results(shop.workshop.asked[-1]))
    assert [effect.what for effect in shop.workshop.effects()] == ["one", "two"]


@pytest.mark.limits(max_steps=1)
async def test_a_follow_up_retires_the_old_continue(shop: Stack) -> None:
    """After a new message in the thread the halted run cannot come back beside it: its Continue is retired."""
    shop.workshop.think = script(call(("look", {"what": "it"})), say("Seen."))
    await shop.serve()
    thread = await shop.ask("@Atlas look")
    await shop.until(thread, "budget_steps")
    card = await shop.halt_card(thread)
    await shop.reply(thread, "@Atlas leave it, just say something")
    await wait_until(lambda: shop.value("select count(*) = 2 from runs"), "the follow-up")
    await wait_until(lambda: shop.value("select count(*) = 0 from runs where state = 'running'"), "its end")
    await shop.quiet()
    old = shop.slack.message(thread.channel, card["ts"])
    assert old is not None
    assert not has_button(old, "continue")
    first, second = await shop.runs(thread)
    assert second["parent_id"] == first["id"]
