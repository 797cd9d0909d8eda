"""Deploys that change the agent while something waits: what was approved is held against the tools of now."""

import json

from tests.acceptance.stack import Card, Stack, Thread, words
from tests.acceptance.workshop import call, results, say, script


async def _waiting(shop: Stack) -> tuple[Thread, Card]:
    """Let a payment wait for its approval, and end the process that asked."""
    shop.workshop.think = script(call(("pay", {"what": "rent"})), say("That is all."))
    old = await shop.serve()
    thread = await shop.ask("@Atlas pay the rent")
    card = await shop.card(thread)
    assert await old.terminate() == 0
    return thread, card


def _deploy(shop: Stack, before: str, after: str) -> None:
    """Change the agent's module, as a new release would."""
    module = shop.directory / "workshop_agent.py"
    source = module.read_text(encoding="utf-8")
    assert before in source
    module.write_text(source.replace(before, after), encoding="utf-8")


async def test_what_waits_is_approved_after_a_deploy(shop: Stack) -> None:
    """A card of the previous process works: its approval is carried out by the new one, once."""
    thread, card = await _waiting(shop)
    await shop.serve()
    await shop.press(card, "approve")
    await shop.until(thread, "answered")
    await shop.shows(card, "Done")
    assert [effect.requests for effect in shop.workshop.effects()] == [1]


async def test_a_tool_that_is_gone_after_a_deploy_settles_its_card(shop: Stack) -> None:
    """The approved call's tool no longer exists: nothing is executed, card and model say so, the run goes on."""
    thread, card = await _waiting(shop)
    _deploy(shop, "Note(), Pay(),", "Note(),")
    await shop.serve()
    await shop.press(card, "approve")
    await shop.until(thread, "answered")
    assert "the tool changed while this was waiting" in await shop.shows(card, "Not executed")
    assert json.loads(results(shop.workshop.asked[-1])[0])["error"] == "unknown_tool"
    assert shop.workshop.effects() == []


async def test_a_tool_of_another_version_asks_again(shop: Stack) -> None:
    """The digest covers the tool's version: an approval of version 1 does not execute version 2."""
    thread, card = await _waiting(shop)
    _deploy(shop, '    name = "pay"\n', '    name = "pay"\n    version = "2"\n')
    await shop.serve()
    await shop.press(card, "approve")
    again = await shop.card(thread, 2)
    await shop.shows(card, "Replaced by a newer version")
    assert shop.workshop.effects() == []
    assert "pay rent" in words(shop.shown(again))
    await shop.press(again, "approve")
    await shop.until(thread, "answered")
    assert [effect.requests for effect in shop.workshop.effects()] == [1]


async def test_arguments_that_no_longer_fit_after_a_deploy_execute_nothing(shop: Stack) -> None:
    """The argument model got a field without a default: the stored call is invalid now, and only reported."""
    thread, card = await _waiting(shop)
    _deploy(shop, "    amount: int = 0\n", "    amount: int = 0\n    account: str\n")
    await shop.serve()
    await shop.press(card, "approve")
    await shop.until(thread, "answered")
    await shop.shows(card, "Not executed")
    assert json.loads(results(shop.workshop.asked[-1])[0])["error"] == "invalid_arguments"
    assert shop.workshop.effects() == []
