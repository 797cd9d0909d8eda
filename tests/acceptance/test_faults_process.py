"""Faults that others reported about whole processes, each by its reference."""

from bot.simulator.workspace import RITA
from tests.acceptance.stack import Stack
from tests.acceptance.waiting import wait_until
from tests.acceptance.workshop import call, say, script


async def test_sigterm_ends_a_process_cleanly_with_every_click_acked(shop: Stack) -> None:
    """slackapi/bolt-python#964, slackapi/bolt-python#622: shutdowns that hung, lost an ack or left a stack trace."""
    shop.workshop.think = script(call(("pay", {"what": "rent"})), say("Paid."))
    first = await shop.serve()
    thread = await shop.ask("@Atlas pay the rent")
    card = await shop.card(thread)
    clicked = await shop.click(card, "approve", RITA)
    code = await first.terminate()
    assert code == 0
    assert "Traceback" not in first.log
    settled = await clicked.settled()
    second = await shop.serve()
    if settled.state != "acked":
        # It went down before the click was stored: Slack said so, and the person presses again.
        assert [row["status"] for row in await shop.rows("select status from suspensions")] == ["open"]
        assert (await shop.press(card, "approve")).state == "acked"
    await shop.until(thread, "answered")
    assert [effect.requests for effect in shop.workshop.effects()] == [1]
    assert await second.terminate() == 0
    assert "Traceback" not in second.log
    await shop.serve()


async def test_a_suspension_that_expires_while_nothing_runs_is_closed_by_the_next_process(shop: Stack) -> None:
    """curie-eng/curie#419, fivexl/terraform-aws-sso-elevator#26: the card expires once a process is there again, and
    its requester is told; nobody has to press anything."""
    shop.workshop.think = script(call(("pay", {"what": "rent"})), say("Paid."))
    bot = await shop.serve()
    thread = await shop.ask("@Atlas pay the rent")
    card = await shop.card(thread)
    await bot.terminate()
    await (await shop.pool()).execute("update suspensions set expires_at = now() - interval '1 minute'")
    await shop.serve()
    await shop.shows(card, "Expired")
    await wait_until(lambda: [text for text in shop.texts(thread) if "Expired, nothing was done" in text], "a word")
    assert shop.workshop.effects() == []
