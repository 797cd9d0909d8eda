"""The story of a quote: asked for, shown, approved once, sent; and each way in which the world says no meanwhile.

Real processes, PostgreSQL, workspace and CRM; the fixture holds the invariants against what each story leaves behind.
"""

import asyncio

from bot.simulator.workspace import MARCUS, RITA, VERA
from tests.acceptance.stack import QUOTE, RITA_EMAIL, Stack, has_button, words
from tests.acceptance.waiting import POLL_S, wait_until


async def test_a_quote_is_drafted_shown_approved_and_sent(stack: Stack) -> None:
    """The send waits for a person with the exact artefact shown; one click sends it once; the answer cites it.

    agno-agi/agno#8029: the assistant said that the mail was sent, and the tool never ran.
    assistant-ui/assistant-ui#5901: the click itself was stored as the tool's result.
    """
    await stack.serve()
    thread = await stack.ask()
    card = await stack.card(thread)
    shown = words(stack.shown(card))
    for part in ("Send quote Q-1042 to Henderson Manufacturing", "SKU-4411", "200", "8,730.00 USD", "10 %"):
        assert part in shown, part
    assert f"<@{RITA}>" in shown
    assert stack.sent() == []
    assert (await stack.run(thread))["state"] == "suspended"

    click = await stack.press(card, "approve")

    assert click.state == "acked"
    await stack.until(thread, "answered")
    await stack.shows(card, "Done")
    assert not has_button(stack.shown(card), "approve")
    assert "8,730.00 USD" in words(stack.shown(card)), "the artefact stays"
    await stack.said(thread, "Quote Q-1042 for Henderson Manufacturing (4471) was sent to")
    assert [(sent["quote"], sent["requests"]) for sent in stack.sent()] == [("Q-1042", 1)]


async def test_the_story_works_with_another_account_item_and_quantity(stack: Stack) -> None:
    """Nothing of the story is tied to one account: Castillo gets 60 relief valves at its own discount."""
    await stack.serve()
    thread = await stack.ask("@Atlas draft and send a quote for Castillo, 60 of SKU-4440")
    card = await stack.card(thread)
    assert "15 %" in words(stack.shown(card))
    assert "4,916.40 USD" in words(stack.shown(card))
    await stack.press(card, "approve")
    await stack.until(thread, "answered")
    assert [sent["account"] for sent in stack.sent()] == ["4480"]


async def test_a_decline_sends_nothing_and_the_model_is_told(stack: Stack) -> None:
    """A no is final: nothing is sent, the model learns that a person declined, and it does not try again."""
    await stack.serve()
    thread = await stack.ask()
    card = await stack.card(thread)
    await stack.decline(card, "the customer changed their mind")
    run = await stack.until(thread, "answered")
    assert "the customer changed their mind" in await stack.shows(card, "Declined")
    await stack.said(thread, "Sending quote Q-1042 was declined, so quote Q-1042 was not sent")
    assert '"error": "declined_by_user"' in (await stack.results(run))[-1]
    assert stack.sent() == []
    assert len(await stack.rows("select id from suspensions")) == 1


async def test_a_changed_discount_asks_again_with_the_difference(stack: Stack) -> None:
    """What was approved is not what would be sent now: a new card shows both, the old one says it was replaced."""
    await stack.serve()
    thread = await stack.ask()
    old = await stack.card(thread)
    stack.crm.books.change_account("4471", {"tier": "silver"})
    await stack.press(old, "approve")
    new = await stack.card(thread, 2)
    assert stack.sent() == []
    shown = words(stack.shown(new))
    for part in ("This changed while it was waiting", "8,730.00 USD", "9,215.00 USD"):
        assert part in shown, part
    assert "Replaced by a newer version" in await stack.shows(old, "Replaced")
    assert (await stack.run(thread))["state"] == "suspended"

    await stack.press(new, "approve")
    await stack.until(thread, "answered")
    await stack.shows(new, "Done")
    assert [(sent["total"], sent["requests"]) for sent in stack.sent()] == [("9215.00", 1)]


async def test_a_credit_hold_stops_an_approved_quote_and_says_why(stack: Stack) -> None:
    """The guard runs again after the approval: nothing is sent, and card, thread and model get its reason."""
    await stack.serve()
    thread = await stack.ask()
    card = await stack.card(thread)
    stack.crm.books.change_account("4471", {"credit_hold": {"reason": "invoice 90011 is overdue"}})
    await stack.press(card, "approve")
    await stack.until(thread, "answered")
    assert "invoice 90011 is overdue" in await stack.shows(card, "Not executed")
    await stack.said(thread, "Sending quote Q-1042 is not possible now: account on credit hold")
    assert stack.sent() == []


async def test_a_revoked_permission_stops_an_approved_quote(stack: Stack) -> None:
    """The owner's scope is resolved again after the approval: what they may no longer do is not done."""
    await stack.serve()
    thread = await stack.ask()
    card = await stack.card(thread)
    stack.crm.books.change_person(RITA_EMAIL, {"permissions": ["accounts.read", "quotes.read", "prices.read"]})
    await stack.press(card, "approve")
    await stack.until(thread, "answered")
    assert "your permissions changed while this was waiting" in await stack.shows(card, "Not executed")
    await stack.said(thread, "is not permitted")
    assert stack.sent() == []


async def test_a_directory_that_is_down_sends_nothing_and_the_same_card_asks_again(stack: Stack) -> None:
    """What cannot be checked is not done: the same card is armed again, and pressing it once more works later."""
    await stack.serve()
    thread = await stack.ask()
    card = await stack.card(thread)
    stack.directory_down()
    await stack.press(card, "approve")
    await stack.shows(card, "Could not check your permissions")
    assert (await stack.until(thread, "suspended"))["state"] == "suspended"
    assert has_button(stack.shown(card), "approve")
    assert stack.sent() == []

    stack.crm.faults.clear()
    await stack.press(card, "approve")
    await stack.until(thread, "answered")
    await stack.shows(card, "Done")
    assert [sent["requests"] for sent in stack.sent()] == [1]
    assert len(await stack.rows("select id from suspensions")) == 1


async def test_two_approvals_at_the_same_instant_resume_once(stack: Stack) -> None:
    """Two clicks in two processes at one moment (both wait on the run's lock): one decides, the other is told so."""
    await stack.serve()
    await stack.serve()
    thread = await stack.ask()
    card = await stack.card(thread)
    async with (await stack.pool()).acquire() as connection, connection.transaction():
        run = await stack.run(thread)
        await connection.fetchval("select id from runs where id = $1 for update", run["id"])
        clicks = [await stack.click(card, "approve"), await stack.click(card, "approve")]

        # Released before the bots give the clicks up; on a busy machine one may come later, as in life.
        waiting = (
            "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()"
        )
        deadline = asyncio.get_running_loop().time() + 2.0
        while asyncio.get_running_loop().time() < deadline and await stack.value(waiting) < 2:
            await asyncio.sleep(POLL_S)
    await stack.press_all(clicks)
    await stack.until(thread, "answered")
    await stack.whispered(thread, "Approved already by")
    assert [sent["requests"] for sent in stack.sent()] == [1]
    allowed = await stack.rows("select allowed from audit where act = 'approve' order by allowed")
    refused, approved = [row["allowed"] for row in allowed][-2:]
    assert (refused, approved) == (False, True)


async def test_a_click_of_somebody_else_is_refused_in_private(stack: Stack) -> None:
    """Who may not approve is told so alone, with who may; the shared card stays as it is, and the attempt is kept."""
    await stack.serve()
    thread = await stack.ask()
    card = await stack.card(thread)
    before = words(stack.shown(card))
    edits = stack.slack.journal.last
    await stack.press(card, "approve", by=VERA)
    told = await stack.whispered(thread, "You are not an approver of this request", to=VERA)
    assert f"<@{RITA}>" in told
    assert stack.whispers(thread, MARCUS) == []
    assert words(stack.shown(card)) == before
    assert stack.slack.journal.find({"kind": "request", "method": "chat.update", "args": {"ts": card.ts}}, edits) == []
    assert (await stack.run(thread))["state"] == "suspended"
    kept = await stack.rows("select distinct by, allowed from audit where act = 'approve'")
    assert kept == [{"by": VERA, "allowed": False}]

    await stack.press(card, "approve")
    await stack.until(thread, "answered")
    assert len(stack.sent()) == 1


async def test_yes_in_text_never_approves(stack: Stack) -> None:
    """A bare assent changes nothing and is answered with how to approve; the card still waits.

    NousResearch/hermes-agent#2002, NousResearch/hermes-agent#1888: a plain yes to another question ran what waited.
    """
    await stack.serve()
    thread = await stack.ask()
    card = await stack.card(thread)
    await stack.reply(thread, "@Atlas yes, go ahead!")
    await stack.said(thread, "Text never approves anything")
    await stack.reply(thread, "@Atlas approve", by=MARCUS)
    await wait_until(
        lambda: stack.value("select count(*) = 3 from inbox where handled_at is not null"), "all messages are handled"
    )
    assert stack.sent() == []
    assert (await stack.runs(thread))[0]["state"] == "suspended"
    assert has_button(stack.shown(card), "approve")


async def test_a_viewer_may_look_but_not_draft(stack: Stack) -> None:
    """Scopes come from the directory: for a viewer nothing is drafted, nothing asked, and the answer says why."""
    await stack.serve()
    thread = await stack.ask(QUOTE, by=VERA)
    await stack.until(thread, "answered")
    await stack.said(thread, "Drafting the quote is not permitted")
    assert stack.drafted() == []
    assert await stack.rows("select id from suspensions") == []
