"""The conversation's rules: follow-ups, messages meanwhile, new instructions, duplicates, commands, stop."""

import asyncio

from bot.simulator.workspace import MARCUS, OSKAR, RITA, VERA
from tests.acceptance.stack import Stack, has_button, words
from tests.acceptance.waiting import PATIENCE_S, wait_until
from tests.acceptance.workshop import Json, call, results, say, script


async def test_a_follow_up_continues_the_conversation(stack: Stack) -> None:
    """After the answer, a message in the thread starts a run that knows what was said before, with its own budget."""
    await stack.serve()
    thread = await stack.ask("@Atlas draft a quote for Henderson, 200 of SKU-4411")
    await stack.until(thread, "answered")
    await stack.reply(thread, "@Atlas send it")
    card = await stack.card(thread)
    assert "Send quote Q-1042 to Henderson Manufacturing" in words(stack.shown(card))
    await stack.press(card, "approve")
    await stack.until(thread, "answered")
    first, second = await stack.runs(thread)
    assert second["parent_id"] == first["id"]
    assert second["spend_usd"] < 2 * first["spend_usd"]
    assert len(stack.sent()) == 1


async def test_a_message_while_it_runs_joins_the_conversation(shop: Stack) -> None:
    """What the owner writes during a model call is in the next one; no second run starts."""
    gate = asyncio.Event()

    async def think(messages: list[Json]) -> Json:
        if len(shop.workshop.asked) == 1:
            await gate.wait()
            return call(("look", {"what": "first"}))
        return say(f"You said: {[m['text'] for m in messages if m['role'] == 'user']}")

    shop.workshop.think = think
    await shop.serve()
    thread = await shop.ask("@Atlas look at the first")
    await shop.workshop.thinking()
    await shop.reply(thread, "@Atlas and mind the second")
    await wait_until(lambda: shop.value("select count(*) = 2 from inbox where run_id is not null"), "it is attached")
    gate.set()
    await shop.until(thread, "answered")
    await shop.said(thread, "['look at the first', 'and mind the second']")
    assert len(await shop.runs(thread)) == 1


async def test_a_message_during_the_last_model_call_is_not_lost(shop: Stack) -> None:
    """An answer that was overtaken by a message is kept as a step, and the message gets its own answer."""
    gate = asyncio.Event()

    async def think(messages: list[Json]) -> Json:
        if len(shop.workshop.asked) == 1:
            await gate.wait()
            return say("Only the first.")
        return say(f"Now both: {sum(m['role'] == 'user' for m in messages)}")

    shop.workshop.think = think
    await shop.serve()
    thread = await shop.ask("@Atlas the first")
    await shop.workshop.thinking()
    await shop.reply(thread, "@Atlas the second")
    await wait_until(lambda: shop.value("select count(*) = 2 from inbox where run_id is not null"), "it is attached")
    gate.set()
    await shop.said(thread, "Now both: 2")
    await shop.until(thread, "answered")


async def test_a_new_instruction_replaces_what_waits(stack: Stack) -> None:
    """The owner's new instruction closes the open card without executing it; the run goes on with the new one."""
    await stack.serve()
    thread = await stack.ask()
    old = await stack.card(thread)
    await stack.reply(thread, "@Atlas make it 300")
    new = await stack.card(thread, 2)
    await stack.shows(old, "Replaced by a new instruction")
    assert "13,095.00 USD" in words(stack.shown(new))
    await stack.press(new, "approve")
    run = await stack.until(thread, "answered")
    assert [sent["total"] for sent in stack.sent()] == ["13095.00"]
    assert any('"error": "superseded"' in result for result in await stack.results(run))
    assert len(await stack.runs(thread)) == 1


async def test_one_event_delivered_four_times_starts_one_run(stack: Stack) -> None:
    """Slack redelivers what was acked too late, in Socket Mode with the same event id: one run, one answer.

    slackapi/bolt-python#1027, slackapi/bolt-python#868, slackapi/bolt-python#1355: acked slowly, handled 2 to 4 times.
    """
    await stack.serve()
    stack.slack.faults.sockets.duplicate = 1
    thread = await stack.ask("@Atlas who is Baker Steel Works?")
    await stack.until(thread, "answered")
    envelope = stack.slack.journal.find({"kind": "envelope", "envelope": {"type": "events_api"}})[0]["envelope"]

    def acks() -> int:
        return len(stack.slack.journal.find({"kind": "ack", "envelope_id": envelope["envelope_id"]}))

    await wait_until(lambda: acks() == 2, "both deliveries are acked")
    await stack.slack.sockets.replay(envelope, times=2)
    await wait_until(lambda: acks() == 4, "both further deliveries are acked")
    assert len(await stack.rows("select id from inbox")) == 1
    assert len(await stack.runs(thread)) == 1
    await stack.said(thread, "Baker Steel Works (4472)")
    await stack.quiet()
    assert sum("Baker Steel Works (4472)" in text for text in stack.texts(thread)) == 1


async def test_another_person_in_the_thread_gets_a_run_of_their_own(stack: Stack) -> None:
    """Somebody else's message in the thread runs on their scope and knows nothing of the owner's results."""
    await stack.serve()
    thread = await stack.ask()
    card = await stack.card(thread)
    await stack.reply(thread, "@Atlas send it", by=VERA)
    await wait_until(lambda: stack.value("select count(*) = 2 from runs"), "a second run")
    await stack.said(thread, "Which quote should I send?")
    owners = {run["user_id"] for run in await stack.runs(thread)}
    assert owners == {RITA, VERA}
    assert has_button(stack.shown(card), "approve")
    assert stack.sent() == []


async def test_stop_while_it_waits_closes_the_card(stack: Stack) -> None:
    """ "@Atlas stop" ends a waiting run: nothing is executed, the card loses its buttons, a late click is refused."""
    await stack.serve()
    thread = await stack.ask()
    card = await stack.card(thread)
    await stack.reply(thread, "@Atlas stop")
    run = await stack.until(thread, "stopped_by_user")
    await stack.shows(card, "Stopped")
    assert not has_button(stack.shown(card), "approve")
    assert run["state"] == "halted"
    assert stack.sent() == []


async def test_the_stop_button_of_the_progress_line_stops_its_owners_run(stack: Stack) -> None:
    """The progress line carries Stop: somebody else's press changes nothing, the owner's ends the run."""
    await stack.serve()
    thread = await stack.ask()
    card = await stack.card(thread)
    progress = await wait_until(
        lambda: next((m for m in stack.slack.bot_messages(thread.channel, thread.ts) if has_button(m, "stop")), None),
        "a message with Stop",
    )
    await stack.press(progress, "stop", by=VERA, thread=thread)
    await stack.whispered(thread, "no run of yours to stop", to=VERA)
    assert (await stack.run(thread))["state"] == "suspended"
    await stack.press(progress, "stop", thread=thread)
    await stack.until(thread, "stopped_by_user")
    await stack.shows(card, "Stopped")
    assert stack.sent() == []


async def test_stop_while_it_runs_lets_the_write_in_flight_end(shop: Stack) -> None:
    """A stop during a write waits for its outcome, starts nothing more, and halts."""
    gate = asyncio.Event()

    async def slowly(asked: Json) -> Json:
        await gate.wait()
        return shop.workshop.do(asked)

    shop.workshop.execute["note"] = slowly
    shop.workshop.think = script(call(("note", {"what": "one"})), call(("note", {"what": "two"})), say("Both noted."))
    shop.workshop.give_up_after(PATIENCE_S)
    await shop.serve()
    thread = await shop.ask("@Atlas note one, then two")
    await shop.workshop.executing("note")
    await shop.reply(thread, "@Atlas stop")
    await wait_until(lambda: shop.value("select stop_requested is not null from runs"), "the stop is recorded")
    gate.set()
    run = await shop.until(thread, "stopped_by_user")
    assert [effect.what for effect in shop.workshop.effects()] == ["one"]
    assert run["claim_token"] is None


async def test_commands_in_a_thread(stack: Stack) -> None:
    """In threads, where slash commands do not work, a mention does: help, runs, and an honest nothing-to-continue."""
    await stack.serve()
    thread = await stack.ask("@Atlas help")
    helped = await stack.said(thread, "waits for a click")
    assert "Draft and send a quote for Henderson" in helped
    await stack.reply(thread, "@Atlas continue")
    await stack.said(thread, "No stopped run of yours is there to continue")
    await stack.reply(thread, "@Atlas runs")
    await stack.said(thread, "You have no runs yet")
    assert await stack.runs(thread) == []


async def test_an_empty_mention_says_what_atlas_can_do(stack: Stack) -> None:
    """A mention without words gets the help with its examples, and starts nothing."""
    await stack.serve()
    thread = await stack.ask("@Atlas")
    await stack.said(thread, "Price 50 of SKU-4440 for Castillo Packaging")
    assert await stack.runs(thread) == []


async def test_slash_commands_answer_in_private(stack: Stack) -> None:
    """/atlas help, runs, pending, show, stop: each answers its typist alone; others' runs look like none."""
    await stack.serve()
    assert "waits for a click" in await stack.command("help")
    thread = await stack.ask()
    card = await stack.card(thread)
    run = await stack.run(thread)
    assert run["id"] in await stack.command("runs")
    assert "Send quote Q-1042" in await stack.command("pending")
    assert run["id"] in await stack.command(f"show {run['id']}")
    assert run["id"] not in await stack.command("runs", by=VERA)
    assert "no such run" in await stack.command(f"show {run['id']}", by=VERA)
    await stack.command(f"stop {run['id']}", by=VERA)
    assert (await stack.run(thread))["state"] == "suspended"
    await stack.command(f"stop {run['id']}", by=OSKAR)
    assert (await stack.until(thread, "stopped_by_user"))["state"] == "halted"
    await stack.shows(card, "Stopped")


async def test_a_direct_message_needs_no_mention(stack: Stack) -> None:
    """In a DM everything is meant for Atlas, and the answer comes there."""
    await stack.serve()
    thread = await stack.ask("who is Baker Steel Works?", channel=stack.slack.dm(RITA))
    await stack.until(thread, "answered")
    await stack.said(thread, "Baker Steel Works (4472)")


async def test_two_writes_of_one_turn_are_decided_in_either_order(shop: Stack) -> None:
    """Two calls that need a person get a card each with a token each; the second may be decided first."""
    shop.workshop.think = script(call(("pay", {"what": "rent"}), ("pay", {"what": "power"})), say("All done."))
    await shop.serve()
    thread = await shop.ask("@Atlas pay rent and power")
    rent, power = await shop.card(thread, 1), await shop.card(thread, 2)
    assert "pay rent" in words(shop.shown(rent))
    tokens = await shop.rows("select distinct token from suspensions")
    assert len(tokens) == 2
    await shop.press(power, "approve")
    await shop.shows(power, "Done")
    assert [effect.what for effect in shop.workshop.effects()] == ["power"]
    await shop.until(thread, "suspended")
    assert has_button(shop.shown(rent), "approve")
    await shop.decline(rent)
    await shop.until(thread, "answered")
    await shop.shows(rent, "Declined")
    told = results(shop.workshop.asked[-1])
    assert "declined_by_user" in told[1 if "power" in told[0] else 0]
    assert [effect.what for effect in shop.workshop.effects()] == ["power"]


async def test_two_writes_approved_together_run_once_each(shop: Stack) -> None:
    """Both cards of one turn approved at once, by different people: each effect once, one answer."""
    shop.workshop.think = script(
        call(("pay_openly", {"what": "rent"}), ("pay_openly", {"what": "power"})), say("All done.")
    )
    await shop.serve()
    await shop.serve()
    thread = await shop.ask("@Atlas pay rent and power")
    rent, power = await shop.card(thread, 1), await shop.card(thread, 2)
    clicks = [await shop.click(rent, "approve", by=MARCUS), await shop.click(power, "approve", by=RITA)]
    await shop.press_all(clicks)
    await shop.until(thread, "answered")
    assert sorted((effect.what, effect.requests) for effect in shop.workshop.effects()) == [("power", 1), ("rent", 1)]


async def test_an_identical_later_call_asks_again(shop: Stack) -> None:
    """There is no approve-always: the same call in a later turn gets its own card, which says that one succeeded.

    NousResearch/hermes-agent#4973, anthropics/claude-code#13897: approved once meant approved for good; or the second
    card said nothing of the first.
    """
    shop.workshop.think = script(call(("pay", {"what": "rent"})), call(("pay", {"what": "rent"})), say("Twice."))
    await shop.serve()
    thread = await shop.ask("@Atlas pay the rent twice")
    first = await shop.card(thread)
    await shop.press(first, "approve")
    second = await shop.card(thread, 2)
    assert "An identical one succeeded" in words(shop.shown(second))
    assert len(shop.workshop.effects("rent")) == 1
    await shop.press(second, "approve")
    await shop.until(thread, "answered")
    assert len(shop.workshop.effects("rent")) == 2
