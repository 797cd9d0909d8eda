"""Processes die by SIGKILL where it hurts, and others go on: nothing is lost, nothing happens twice."""

import asyncio
from decimal import Decimal

import pytest

from tests.acceptance.stack import DRAFT_ROUTE, QUOTE, SEND_ROUTE, Stack, has_button, words
from tests.acceptance.waiting import wait_until
from tests.acceptance.workshop import HANGING_S, Json, call, say, script


async def test_a_crash_mid_write_does_not_repeat_the_write(stack: Stack) -> None:
    """The CRM commits the quote, the process dies before the result is stored: exactly 1 quote, and an answer."""
    dying = await stack.serve()
    stack.fault("hang_after_commit", DRAFT_ROUTE)
    thread = await stack.ask("@Atlas draft a quote for Henderson, 200 of SKU-4411")
    await wait_until(stack.drafted, "the CRM commits the quote")
    dying.kill()
    await stack.serve()
    await stack.until(thread, "answered")
    await stack.said(thread, "Quote Q-1042 for Henderson Manufacturing (4471) is drafted")
    assert len(stack.crm.books.quotes("4471")) == 1
    assert [effect["requests"] for effect in stack.drafted()] == [1]


async def test_a_crash_while_an_approved_quote_is_sent_does_not_send_it_again(stack: Stack) -> None:
    """The same for the approved send: one email, the card ends as Done, no second approval is asked for."""
    dying = await stack.serve()
    thread = await stack.ask()
    card = await stack.card(thread)
    stack.fault("hang_after_commit", SEND_ROUTE)
    await stack.press(card, "approve")
    await wait_until(stack.sent, "the CRM sends the quote")
    dying.kill()
    await stack.serve()
    await stack.until(thread, "answered")
    await stack.shows(card, "Done")
    assert len(stack.crm.books.outbox()) == 1
    assert [effect["requests"] for effect in stack.sent()] == [1]
    assert len(await stack.rows("select id from suspensions")) == 1


@pytest.mark.limits(max_spend_usd="0.50")
async def test_a_resumed_run_keeps_its_spent_budget(shop: Stack) -> None:
    """After 0.18 was spent the process dies; the resumed run has spent at least 0.18, and the limit still stops it."""
    gate = asyncio.Event()

    async def think(messages: list[Json]) -> Json:
        turn = sum(message["role"] == "assistant" for message in messages)
        if turn == 0:
            return call(("look", {"what": "first"}), spend="0.18")
        if len(shop.workshop.asked) == 2:
            await gate.wait()  # the process is killed while it waits for this
        return call(("look", {"what": "again"}), spend="0.18")

    shop.workshop.think = think
    dying = await shop.serve()
    thread = await shop.ask("@Atlas look")
    await shop.workshop.thinking(2)
    assert (await shop.run(thread))["spend_usd"] == Decimal("0.18")
    dying.kill()
    await shop.serve()
    run = await shop.until(thread, "halted")
    gate.set()
    assert run["halt_reason"] == "budget_spend"
    # The call that the crash cut short may have been billed: it is charged as the dearest one so far.
    assert run["spend_usd"] == Decimal("0.36")
    assert run["spend_usd"] <= run["max_spend_usd"]
    assert "$0.36" in words(await shop.halt_card(thread))


async def test_a_kill_between_the_ack_and_the_run_loses_no_message(stack: Stack) -> None:
    """The message is acked and stored, its run is not started yet (the directory is down), the process dies."""
    dying = await stack.serve()
    stack.directory_down()
    thread = await stack.ask()
    await wait_until(lambda: stack.slack.journal.find({"kind": "ack", "known": True}), "the ack")
    await stack.said(thread, "I could not check what you may do")
    assert await stack.runs(thread) == []
    dying.kill()
    stack.crm.faults.clear()
    await stack.serve()
    card = await stack.card(thread)
    await stack.press(card, "approve")
    await stack.until(thread, "answered")
    assert len(stack.sent()) == 1


async def test_a_kill_between_the_click_and_the_execution_loses_no_decision(stack: Stack) -> None:
    """The approval is recorded and acked, its execution not begun (the guard hangs): another process carries it out.

    openai/openai-agents-python#2487, openai/openai-agents-python#4244, openai/openai-agents-python#5141: an approved
    run paused again for ever in the process that restored it.

    PostHog/posthog#66212: the card said approved for ever although the answer was lost. Here it says that it is under
    way for as long as it is, and what came of it then.
    """
    dying = await stack.serve()
    thread = await stack.ask()
    card = await stack.card(thread)
    stack.fault("hang", "GET /accounts/{id}")
    click = await stack.press(card, "approve")
    assert click.state == "acked"
    await wait_until(lambda: not stack.crm.faults.shown(), "the guard is on its way")
    assert await stack.rows("select state from actions where tool = 'send_quote'") == []
    under_way = await stack.shows(card, "running")
    assert not has_button(stack.shown(card), "approve")
    dying.kill()
    assert words(stack.shown(card)) == under_way
    assert "Done" not in under_way
    await stack.serve()
    await stack.until(thread, "answered")
    assert "running" not in await stack.shows(card, "Done")
    assert [effect["requests"] for effect in stack.sent()] == [1]
    decisions = await stack.rows("select act from audit where suspension_id = $1 and allowed", card.suspension_id)
    assert decisions == [{"act": "approve"}]


async def test_a_killed_process_is_noticed_and_its_runs_go_on_elsewhere(shop: Stack) -> None:
    """With another replica up, the runs of a killed process go on within seconds, long before any lease lapses.

    janbjorge/pgqueuer#475: a picked job of a killed container stayed picked.
    """
    gate = asyncio.Event()

    async def think(messages: list[Json]) -> Json:
        if not gate.is_set():
            await shop.workshop.released.wait()
        return say("Here I am.")

    shop.workshop.think = think
    first, second = await shop.serve(), await shop.serve()
    threads = [await shop.ask(f"@Atlas number {n}") for n in range(4)]
    await shop.workshop.thinking(4)
    gate.set()
    pids = {row["pid"]: row["n"] for row in await shop.rows(
        "select w.pid, count(*) as n from runs r join workers w on w.id = r.claimed_by group by w.pid"
    )}  # fmt: skip
    victim = max((first, second), key=lambda bot: pids.get(bot.process.pid, 0))
    orphans = pids[victim.process.pid]
    asked = len(shop.workshop.asked)
    victim.kill()
    await wait_until(lambda: len(shop.workshop.asked) >= asked + orphans, "the orphans are asked again")
    shop.workshop.released.set()
    for thread in threads:
        await shop.until(thread, "answered")
    # By the database's clock, from its last beat; a process that only its lease gives away is 90 s silent by then.
    silent = await shop.value("select max(extract(epoch from died_at - beat_at)) from workers where died_at > beat_at")
    assert silent < 89


async def test_a_deploy_during_a_model_call_goes_on_elsewhere_at_once(shop: Stack) -> None:
    """SIGTERM while the model thinks: exit code 0, the run is released (no recovery attempt) and answered elsewhere.

    graphile/worker#526, oban-bg/oban#856: a stop left jobs locked for hours.
    """

    async def think(messages: list[Json]) -> Json:
        if len(shop.workshop.asked) == 1:
            await shop.workshop.released.wait()
        return say("After the deploy.")

    shop.workshop.think = think
    old = await shop.serve()
    thread = await shop.ask("@Atlas think")
    await shop.workshop.thinking()
    await shop.serve()
    assert await old.terminate() == 0
    run = await shop.until(thread, "answered")
    assert (run["recovery_attempts"], run["crashes"]) == (0, 0)
    await shop.said(thread, "After the deploy.")
    assert "reaped" not in await shop.trace(run)


async def test_a_deploy_during_a_write_lets_it_end(shop: Stack) -> None:
    """SIGTERM while a write is on its way: it gets its grace, its result is stored, nothing is done twice."""
    gate = asyncio.Event()

    async def slowly(asked: Json) -> Json:
        await gate.wait()
        return shop.workshop.do(asked)

    shop.workshop.execute["note"] = slowly
    shop.workshop.think = script(call(("note", {"what": "it"})), say("Noted."))
    old = await shop.serve()
    thread = await shop.ask("@Atlas note it")
    await shop.workshop.executing("note")
    old.process.terminate()
    await wait_until(lambda: "leaving" in old.log, "the bot begins to leave")
    gate.set()
    assert await old.ended() == 0
    await shop.serve()
    run = await shop.until(thread, "answered")
    assert [effect.requests for effect in shop.workshop.effects()] == [1]
    assert "reaped" not in await shop.trace(run)


async def test_a_deploy_during_a_write_that_does_not_end_is_reconciled(shop: Stack) -> None:
    """SIGTERM while a write hangs after it took place: it is marked unknown, and the next process finds it done."""
    shop.workshop.execute["note"] = shop.workshop.do_and_hang
    shop.workshop.give_up_after(HANGING_S)
    shop.workshop.think = script(call(("note", {"what": "it"})), say("Noted."))
    old = await shop.serve()
    thread = await shop.ask("@Atlas note it")
    await shop.workshop.executing("note")
    assert await old.terminate() == 0
    await shop.serve()
    run = await shop.until(thread, "answered")
    assert [effect.requests for effect in shop.workshop.effects()] == [1]
    assert run["recovery_attempts"] == 0


async def test_a_write_that_never_arrived_is_done_once_after_the_crash(shop: Stack) -> None:
    """Intended, never executed, process dead: believed only when it cannot be on its way any more, then done once."""
    shop.workshop.execute["note"] = shop.workshop.hang
    shop.workshop.give_up_after(HANGING_S)
    shop.workshop.think = script(call(("note", {"what": "it"})), say("Noted."))
    dying = await shop.serve()
    thread = await shop.ask("@Atlas note it")
    await shop.workshop.executing("note")
    dying.kill()
    del shop.workshop.execute["note"]
    await shop.serve()
    await shop.until(thread, "answered")
    assert [effect.requests for effect in shop.workshop.effects()] == [1]
    waited = await shop.value(
        "select extract(epoch from max(a.intended_at) - min(t.at)) >= 8 from actions a join trace t using (run_id)"
        " where t.kind = 'started'"
    )
    assert waited is True, "its own timeout (3 s) and 5 s more had passed"


@pytest.mark.parametrize("answer", ["happened", "did_not_happen"])
async def test_an_unknown_outcome_asks_a_person(shop: Stack, answer: str) -> None:
    """A crash in a write that nobody can be asked about: an outcome card and an alert; the person's word is believed.

    It happened: the run goes on, nothing is repeated. It did not: every check again, then it is done once.
    """
    shop.workshop.execute["pay_blind"] = shop.workshop.do_and_hang if answer == "happened" else shop.workshop.hang
    shop.workshop.think = script(call(("pay_blind", {"what": "rent"})), say("That is settled."))
    dying = await shop.serve()
    thread = await shop.ask("@Atlas pay the rent blindly")
    card = await shop.card(thread)
    await shop.press(card, "approve")
    await shop.workshop.executing("pay_blind")
    dying.kill()
    shop.workshop.execute.clear()
    await shop.serve()
    question = await shop.card(thread, 2)
    assert "Did it happen?" in words(shop.shown(question))
    assert "Outcome unknown" in await shop.shows(card, "Outcome unknown")
    await wait_until(lambda: any("pay_blind may or may not have happened" in alert for alert in shop.alerts()), "alert")
    assert not has_button(shop.shown(question), "approve")
    await shop.press(question, answer)
    run = await shop.until(thread, "answered")
    await shop.shows(question, "It happened" if answer == "happened" else "It did not happen")
    said = await shop.shows(card, "Done")
    assert ("a person confirmed it" in said) == (answer == "happened")
    assert [effect.requests for effect in shop.workshop.effects()] == [1]
    assert run["crashes"] == 0


@pytest.mark.slow
@pytest.mark.parametrize("tool", ["look", "note"], ids=["a-read", "a-write"])
async def test_a_run_that_kills_its_processes_fails_with_one_alert_and_its_neighbours_are_answered(
    shop: Stack, tool: str
) -> None:
    """Two recoveries, then failed (recovery_exhausted) and one alert; runs that shared the process are all answered."""

    def think(messages: list[Json]) -> Json:
        if "poison" in messages[0]["text"]:
            return call((tool, {"what": "poison"}))
        return say("Fine.") if shop.workshop.released.is_set() else call(("look", {"what": "healthy"}))

    async def look(asked: Json) -> Json:
        if asked["what"] == "poison":
            return {"do": "die"}
        await shop.workshop.released.wait()
        return {"result": "seen"}

    shop.workshop.think = think
    shop.workshop.execute |= {"look": look, "note": look}
    shop.workshop.give_up_after(HANGING_S)  # so that "it did not happen" is believed soon
    bot = await shop.serve()
    healthy = [await shop.ask(f"@Atlas healthy {n}") for n in range(3)]
    await shop.workshop.executing("look", 3)
    poison = await shop.ask("@Atlas poison")
    await bot.ended()
    await shop.serve()
    shop.workshop.released.set()
    run = None
    for _ in range(4):
        done = asyncio.create_task(shop.until(poison, "failed"))
        gone = asyncio.create_task(shop.bots[-1].ended(within=150))
        await asyncio.wait({done, gone}, return_when=asyncio.FIRST_COMPLETED)
        if done.done():
            run = done.result()
            gone.cancel()
            break
        done.cancel()
        await shop.serve()
    assert run is not None
    assert run["fail_reason"] == "recovery_exhausted"
    for thread in healthy:
        answered = await shop.until(thread, "answered")
        assert answered["recovery_attempts"] == 0
    await wait_until(shop.alerts, "the alert")
    assert len(shop.alerts()) == 1
    await shop.said(poison, "It was interrupted more often than it may be picked up again")


async def test_a_second_question_is_answered_by_the_process_that_survived(stack: Stack) -> None:
    """A killed replica takes nothing with it: new messages go to the other one."""
    first = await stack.serve()
    sockets = stack.slack.sockets
    await wait_until(lambda: len(sockets.sockets) == 2, "both its sockets are open")
    its_own = list(sockets.sockets)
    await stack.serve()
    first.kill()
    await wait_until(lambda: not any(each in sockets.sockets for each in its_own), "its sockets are gone")
    thread = await stack.ask(QUOTE)
    await stack.card(thread)
