"""Processes that are not dead: stopped past their lease and woken again, or killed while Slack was being told."""

import os
import signal

import pytest

from tests.acceptance.stack import Bot, Stack
from tests.acceptance.waiting import wait_until
from tests.acceptance.workshop import Json, call, say, script

# Below the bot's own timeout, so that a message that is still on its way is one that can be found.
LATE_S = 8.0


async def _noticed(zombie: Bot, run_id: str) -> None:
    """Wait until it has tried to write what it still had, and was refused."""
    await wait_until(lambda: f"run {run_id}: its claim is lost" in zombie.log, "the zombie learns that it lost the run")


async def test_a_worker_that_wakes_after_its_lease_changes_nothing(shop: Stack) -> None:
    """SIGSTOP in a model call until another process has finished the run; SIGCONT: its late reply is dropped."""

    async def think(_: list[Json]) -> Json:
        if len(shop.workshop.asked) == 1:
            await shop.workshop.released.wait()
            return call(("note", {"what": "the zombie's"}))
        return say("Without the zombie.")

    shop.workshop.think = think
    zombie = await shop.serve(ATLAS_LEASE_S="8")
    thread = await shop.ask("@Atlas think")
    await shop.workshop.thinking()
    os.kill(zombie.process.pid, signal.SIGSTOP)
    await shop.serve(ATLAS_LEASE_S="8")
    run = await shop.until(thread, "answered")
    messages = await shop.value("select count(*) from messages")
    os.kill(zombie.process.pid, signal.SIGCONT)
    shop.workshop.released.set()

    async def alive_again() -> bool:
        beating = "select count(*) = 2 from workers where died_at is null and beat_at > now() - interval '5 seconds'"
        return bool(await shop.value(beating))

    await wait_until(alive_again, "both beat again")
    await _noticed(zombie, run["id"])
    later = await shop.ask("@Atlas and now?")
    await shop.until(later, "answered")
    assert shop.workshop.effects() == []
    assert await shop.value("select count(*) from messages where run_id = $1", run["id"]) == messages
    assert (await shop.runs(thread))[0]["step"] == 1


async def test_a_worker_stopped_in_a_write_resends_at_most_the_same_request(shop: Stack) -> None:
    """SIGSTOP while a write is on its way: the other process finds it done; awake again, the zombie adds nothing."""

    async def slowly(asked: Json) -> Json:
        done = shop.workshop.do(asked)
        await shop.workshop.released.wait()
        return done

    shop.workshop.execute["pay"] = slowly
    shop.workshop.think = script(call(("pay", {"what": "rent"})), say("Paid."))
    zombie = await shop.serve(ATLAS_LEASE_S="8")
    thread = await shop.ask("@Atlas pay the rent")
    card = await shop.card(thread)
    await shop.press(card, "approve")
    await shop.workshop.executing("pay")
    os.kill(zombie.process.pid, signal.SIGSTOP)
    await shop.serve(ATLAS_LEASE_S="8")
    run = await shop.until(thread, "answered")
    os.kill(zombie.process.pid, signal.SIGCONT)
    shop.workshop.released.set()
    await _noticed(zombie, run["id"])
    await shop.shows(card, "Done")
    later = await shop.ask("@Atlas anything else?")
    await wait_until(lambda: shop.value("select count(*) = 2 from runs"), "the next run")
    second = await shop.card(later)
    await shop.decline(second)
    await shop.until(later, "answered")
    assert [effect.requests for effect in shop.workshop.effects()] == [1]


@pytest.mark.slow
async def test_a_kill_while_a_card_is_posted_leaves_one_card(shop: Stack) -> None:
    """Slack stores the card after its sender died: the other process finds it and posts no second one."""
    shop.workshop.think = script(call(("pay", {"what": "rent"})), say("Paid."))
    dying = await shop.serve()
    shop.slack.faults.add("delay", "chat.postMessage", times=None, seconds=LATE_S)
    thread = await shop.ask("@Atlas pay the rent")

    def on_its_way() -> bool:
        posts = shop.slack.journal.find({"kind": "request", "method": "chat.postMessage"})
        return any(post["args"]["metadata"]["event_payload"]["place"].startswith("card:") for post in posts)

    await wait_until(on_its_way, "the card's post is on its way")
    dying.kill()
    shop.slack.faults.clear()
    await shop.serve()
    card = await shop.card(thread)
    assert sum("pay rent" in text for text in shop.texts(thread)) == 1
    await shop.press(card, "approve")
    await shop.until(thread, "answered")
    await shop.shows(card, "Done")
