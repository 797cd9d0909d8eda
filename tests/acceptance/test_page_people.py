"""Several people at the page: four eyes, forms, changes, two cards, expiry, Home; on the real bot and the tests' agent.

Decides whether what the rules promise is what people see, each in their own window. With SCREENS_DIR set
(``docs/screens`` in this repository), it leaves pictures there. The failure it can cause: none outside its stack.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from bot.simulator.workspace import MARCUS, RITA, SALES_DESK, VERA
from tests.acceptance.stack import Stack
from tests.acceptance.test_page_story import CHROMIUM, FLAGS, NARROW, SLOW_MS, WIDE, Visit
from tests.acceptance.workshop import call, results, say, script

playwright_api = pytest.importorskip("playwright.async_api", reason="playwright is not installed")
pytestmark = [pytest.mark.browser, pytest.mark.slow]
expect = playwright_api.expect

Visitor = Callable[..., Awaitable[Visit]]


@pytest.fixture
async def visit(shop: Stack) -> AsyncIterator[Visitor]:
    """Open the page as somebody: `await visit(RITA, place, size=…)`; script errors of any page fail the test."""
    async with playwright_api.async_playwright() as playwright:
        if CHROMIUM is None and not Path(playwright.chromium.executable_path).exists():
            pytest.skip("no Chromium on this machine")
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        troubles: list[str] = []

        async def opened(person: str, place: str = SALES_DESK, size: tuple[int, int] = WIDE) -> Visit:
            context = await browser.new_context(
                viewport={"width": size[0], "height": size[1]}, device_scale_factor=1.5, reduced_motion="reduce"
            )
            context.set_default_timeout(SLOW_MS)
            page = await context.new_page()
            page.on("pageerror", lambda error: troubles.append(str(error)))
            await page.goto(f"{shop.slack.url}/#/as/{person}/{place}")
            await page.wait_for_selector("body[data-ready='1']")
            return Visit(page)

        yield opened
        await browser.close()
        assert troubles == []


def place_of(someone: Visit, person: str = RITA) -> str:
    """Return where somebody is, for others to go there."""
    return str(someone.page.url.partition(f"{person}/")[2])


async def waiting(someone: Visit, action: str) -> Any:
    """Return the newest message of the thread that offers *action*."""
    found = someone.thread.filter(has=someone.page.get_by_test_id(f"action-{action}")).last
    await expect(found).to_be_visible(timeout=SLOW_MS)
    return someone.page.get_by_test_id(f"message-{await found.get_attribute('data-ts')}")


async def whispered(someone: Visit, *words: str) -> None:
    """Expect words in what only this person is shown in the thread."""
    shown = someone.page.locator("#replies .message.ephemeral").last
    for word in words:
        await expect(shown).to_contain_text(word, timeout=SLOW_MS)


async def test_four_eyes_are_two_people_who_did_not_ask(shop: Stack, visit: Visitor) -> None:
    """The asker is refused in private; each of the two sees how far it is, live; only the second one lets it happen."""
    shop.workshop.think = script(call(("pay_four_eyes", {"what": "the new press", "amount": 90_000})), say("Paid."))
    shop.workshop.facts = {"Supplier": "Henderson Manufacturing (4471)", "IBAN": "NL91 ABNA 0417 1643 00"}
    await shop.serve()
    rita = await visit(RITA)
    await rita.ask("@Atlas pay for the new press")
    card = await rita.card()
    await rita.reads(card, "0 of 2 approvals", "not whoever asked", "Henderson Manufacturing (4471)")
    await rita.press(card, "approve", sure=True)
    await whispered(rita, "You asked for this yourself")
    await rita.picture("four-eyes-own-request")
    marcus, vera = await visit(MARCUS, place_of(rita)), await visit(VERA, place_of(rita))
    await marcus.press(await marcus.card(), "approve")
    await expect(marcus.page.get_by_role("dialog")).to_contain_text("Really approve?")
    await marcus.picture("four-eyes-confirm")
    await marcus.page.get_by_test_id("confirm-deny").click()
    await marcus.press(await marcus.card(), "approve", sure=True)
    hers = await vera.card()
    await vera.reads(hers, "1 of 2 approvals", "@Marcus Hale")
    await vera.picture("four-eyes-one-of-two")
    assert shop.workshop.effects() == []
    await marcus.press(await marcus.card(), "approve", sure=True)
    await whispered(marcus, "already")
    await vera.press(hers, "approve", sure=True)
    await rita.reads(card, "Done", "approved by @Marcus Hale, @Vera Lindqvist")
    await rita.picture("four-eyes-done")
    assert [effect.requests for effect in shop.workshop.effects()] == [1]


async def test_edit_with_an_error_first_then_decline_with_the_keyboard_alone(shop: Stack, visit: Visitor) -> None:
    """A wrong amount is said under its field; the edited call asks anew; no mouse is needed to decline it."""
    shop.workshop.think = script(call(("pay", {"what": "rent", "amount": 900})), say("Then not."))
    await shop.serve()
    rita = await visit(RITA)
    await rita.ask("@Atlas pay the rent")
    card = await rita.card()
    await rita.opens(card, "edit")
    amount = rita.form.get_by_label("Amount")
    await expect(amount).to_have_value("900")
    await amount.fill("a lot")
    await rita.submit()
    await expect(rita.form).to_contain_text("Please enter a number.")
    await amount.fill("850")
    await rita.form.get_by_label("What").fill("nothing")
    await rita.submit()
    await expect(rita.form).to_contain_text("there has to be something to do")
    await rita.picture("edit-error")
    await rita.form.get_by_label("What").fill("rent")
    await rita.submit()
    await rita.reads(card, "Replaced by a newer version")
    newer = await rita.card()
    await rita.reads(newer, "Edited by @Rita Reyes", "900", "850")
    await rita.picture("edited")

    keys = rita.page.keyboard
    await rita.opens(newer, "decline", key="Enter")
    await expect(rita.form.get_by_role("textbox")).to_be_focused()
    await keys.type("The landlord owes us a repair")
    while not await rita.page.get_by_test_id("modal-submit").evaluate("node => node === document.activeElement"):
        await keys.press("Tab")
    await rita.submit(key="Enter")
    await rita.reads(newer, "Declined", "The landlord owes us a repair")
    await rita.answered("Then not.")
    assert shop.workshop.effects() == []


async def test_two_cards_in_either_order_and_one_that_changed(shop: Stack, visit: Visitor) -> None:
    """The second is decided first and done; the first has changed meanwhile, shows what, and asks again."""
    shop.workshop.think = script(
        call(("pay", {"what": "rent", "amount": 900}), ("pay", {"what": "heating", "amount": 120})), say("Both paid.")
    )
    shop.workshop.facts = {"Account": "NL91 ABNA 0417 1643 00"}
    await shop.serve()
    rita = await visit(RITA)
    await rita.ask("@Atlas pay rent and heating")
    cards = rita.thread.filter(has=rita.page.get_by_test_id("action-approve"))
    await expect(cards).to_have_count(2, timeout=SLOW_MS)  # the newest of one would be the first
    second = await rita.card()
    first = rita.page.get_by_test_id(f"message-{await cards.first.get_attribute('data-ts')}")
    await rita.picture("two-cards")
    await rita.press(second, "approve")
    await rita.reads(second, "Done")
    shop.workshop.facts = {"Account": "XX00 SOMEWHERE ELSE"}
    await rita.press(first, "approve")
    await rita.reads(first, "Replaced by a newer version")
    newer = await rita.card()
    await rita.reads(newer, "What changed", "NL91 ABNA 0417 1643 00", "XX00 SOMEWHERE ELSE")
    await rita.picture("changed-account")
    narrow = await visit(RITA, place_of(rita), size=NARROW)
    await narrow.reads(await narrow.card(), "XX00 SOMEWHERE ELSE")
    await narrow.picture("changed-narrow")
    await narrow.press(await narrow.card(), "approve")
    await rita.reads(newer, "Done")
    await rita.answered("Both paid.")
    assert sorted(effect.requests for effect in shop.workshop.effects()) == [1, 1]


def until_decided(messages: list[dict[str, Any]]) -> dict[str, Any]:
    """Ask to pay the rent, and again for as long as nobody decided."""
    told = results(messages)
    decided = told and not any(word in told[-1] for word in ("expired", "stopped"))
    return say("Paid.") if decided else call(("pay", {"what": "rent", "amount": 900}))


async def test_first_home_ask_again_stop_and_continue(shop: Stack, visit: Visitor) -> None:
    """A newcomer clicks an example; what expires is asked again; Home stops and continues, and follows on its own."""
    shop.workshop.think = until_decided
    await shop.serve()
    home = await visit(VERA, "home")
    shown = home.page.get_by_test_id("home")
    await expect(shown).to_contain_text("What Atlas can do", timeout=SLOW_MS)
    await home.picture("home-first")
    await home.press(shown, "example.0")
    await expect(home.form).to_contain_text("direct messages", timeout=SLOW_MS)
    await home.page.keyboard.press("Escape")
    await expect(shown).to_contain_text("waiting for a decision", timeout=SLOW_MS)
    await home.press(shown, "stop")
    await expect(shown).to_contain_text("stopped", timeout=SLOW_MS)
    await expect(shown.get_by_test_id("action-continue")).to_be_visible(timeout=SLOW_MS)
    await home.picture("home-stopped")

    rita = await visit(RITA)
    await rita.ask("@Atlas pay the rent")
    card = await rita.card()
    await (await shop.pool()).execute("update suspensions set expires_at = now() where status = 'open'")
    await rita.reads(card, "Expired", "nothing was done")
    again = card.get_by_test_id("action-continue")
    await expect(again).to_have_text("Ask again")
    await rita.press(card, "continue")
    newer = await rita.card()
    await expect(again).to_have_count(0, timeout=SLOW_MS)
    await rita.press(await waiting(rita, "stop"), "stop")
    await rita.reads(newer, "Stopped")
    await rita.picture("stopped")
    mine = await visit(RITA, "home", size=NARROW)
    hers = mine.page.get_by_test_id("home")
    await expect(hers.get_by_test_id("action-continue")).to_be_visible(timeout=SLOW_MS)
    await mine.picture("home-narrow")
    await mine.press(hers, "continue")
    await expect(hers.get_by_test_id("action-approve")).to_be_visible(timeout=SLOW_MS)
    await mine.press(hers, "approve")
    await expect(hers).to_contain_text("answered", timeout=SLOW_MS)
    await rita.answered("Paid.")
    assert [effect.requests for effect in shop.workshop.effects()] == [1]
