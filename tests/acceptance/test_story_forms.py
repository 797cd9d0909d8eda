"""Forms around an approval: Details of what does not fit, Approve on its last page, Decline, Edit, and Home."""

from typing import Any

from bot.simulator.workspace import RITA, VERA
from tests.acceptance.stack import Stack, has_button, words
from tests.acceptance.waiting import wait_until
from tests.acceptance.workshop import call, results, say, script


def _page(stack: Stack, number: int) -> dict[str, Any] | None:
    """Return that page of the open details, if it is what is shown."""
    return next((view for view in stack.slack.modals(RITA) if f"Page {number} of" in words(view)), None)


async def _turned(stack: Stack, number: int) -> dict[str, Any]:
    return await wait_until(lambda: _page(stack, number), f"page {number} of the details")


def _amount(form: dict[str, Any]) -> dict[str, Any]:
    """Return what is typed into an edit form to make the amount 850."""
    field = next(block for block in form["blocks"] if block.get("block_id") == "amount")
    return {"amount": {field["element"]["action_id"]: {"type": field["element"]["type"], "value": "850"}}}


async def test_an_artefact_that_does_not_fit_is_approved_on_its_last_page(shop: Stack) -> None:
    """Nobody approves a cut-off artefact: the card has Details and Decline only, Approve is the last page's submit."""
    shop.workshop.facts = {f"Clause {number}": f"{number} " + "whereas " * 60 for number in range(30)}
    shop.workshop.think = script(call(("pay", {"what": "rent"})), say("Paid."))
    await shop.serve()
    thread = await shop.ask("@Atlas pay the rent")
    card = await shop.card(thread)
    assert not has_button(shop.shown(card), "approve")
    pages = 1
    read = ""
    view = await shop.form(card, "details", lambda: _page(shop, 1))
    while True:
        read += words(view)
        last = view["callback_id"] == "details_approve"
        submitted = await shop.submit(view["id"])
        assert submitted.state == "acked"
        if last:
            break
        assert shop.workshop.effects() == []
        pages += 1
        view = await _turned(shop, pages)
    assert pages > 1
    assert [number for number in range(30) if f"{number} whereas" not in read] == []
    await shop.until(thread, "answered")
    await shop.shows(card, "Done")
    assert [effect.requests for effect in shop.workshop.effects()] == [1]


async def test_an_edited_call_gets_its_own_card_and_that_is_what_executes(shop: Stack) -> None:
    """Edit replaces the call's arguments: a new card, approved on its own; the model is told that a person did it."""
    shop.workshop.think = script(call(("pay", {"what": "rent", "amount": 900})), say("Paid."))
    await shop.serve()
    thread = await shop.ask("@Atlas pay the rent")
    old = await shop.card(thread)
    edited = await shop.fill(old, "edit", "edit_arguments", _amount)
    assert edited.state == "acked"
    new = await shop.card(thread, 2)
    await shop.shows(old, "Replaced by a newer version")
    assert "850" in words(shop.shown(new))
    assert "Edited by" in words(shop.shown(new))
    assert shop.workshop.effects() == []

    await shop.press(new, "approve")
    await shop.until(thread, "answered")
    await shop.shows(new, "Done")
    assert [asked["amount"] for asked in shop.workshop.executions if asked["tool"] == "pay"] == [850]
    assert len(results(shop.workshop.asked[-1])) == 1


async def test_an_edit_that_is_not_valid_is_refused_in_its_form(shop: Stack) -> None:
    """What the argument model refuses stays in the form with its error; the card still waits. Others may not edit."""
    shop.workshop.think = script(call(("pay", {"what": "rent", "amount": 900})), say("Paid."))
    await shop.serve()
    thread = await shop.ask("@Atlas pay the rent")
    card = await shop.card(thread)
    await shop.fill(card, "edit", "edit_arguments", lambda _: {}, VERA)
    await wait_until(
        lambda: any("not an approver" in words(view) for view in shop.slack.modals(VERA)), "the refusal in the form"
    )
    assert has_button(shop.shown(card), "approve")
    assert await shop.value("select status from suspensions") == "open"


async def test_a_decline_form_opened_before_somebody_approved_declines_nothing(shop: Stack) -> None:
    """The form was open while somebody else approved: submitting it changes nothing and says who was first."""
    shop.workshop.think = script(call(("pay_openly", {"what": "rent"})), say("Paid."))
    await shop.serve()
    thread = await shop.ask("@Atlas pay the rent")
    card = await shop.card(thread)
    form = await shop.form(card, "decline", lambda: next(iter(shop.slack.modals(RITA)), None))
    await shop.press(card, "approve", by=VERA)
    await shop.until(thread, "answered")
    await shop.submit(form["id"])
    await wait_until(
        lambda: any("Approved already by" in words(view) for view in shop.slack.modals(RITA)), "who was first"
    )
    assert "Done" in await shop.shows(card, "Done")
    assert [effect.requests for effect in shop.workshop.effects()] == [1]


async def test_home_shows_what_waits_and_takes_the_same_click(stack: Stack) -> None:
    """App Home lists what waits with the same buttons: an approval there sends the quote and settles the card."""
    await stack.serve()
    thread = await stack.ask()
    card = await stack.card(thread)
    await stack.slack.open_home(RITA)

    def home() -> dict[str, Any] | None:
        view = stack.slack.home(RITA)
        return view if view is not None and "Send quote Q-1042" in words(view) else None

    view = await wait_until(home, "Home shows what waits")
    assert has_button(view, "approve")
    assert (await stack.press(None, "approve")).state == "acked"
    await stack.until(thread, "answered")
    await stack.shows(card, "Done")
    assert len(stack.sent()) == 1
    assert await stack.value("select via from audit where act = 'approve' and allowed") == "home"
