"""A process dies while it delivers a message: another one takes it over at once, and it still stands once."""

from typing import Any

from tests.acceptance.stack import QUOTE, Stack
from tests.acceptance.waiting import wait_until

# Below the bot's own timeout, so that a message that is still on its way is one that can be found.
LATE_S = 8.0


async def test_a_card_whose_deliverer_was_killed_waits_for_no_lease(stack: Stack) -> None:
    """Its lease is made to last an hour: only the death of its owner frees it. The card stands once, and works."""
    dying = await stack.serve()
    stack.slack.faults.add("delay", "chat.postMessage", times=None, seconds=LATE_S)
    thread = await stack.ask(QUOTE)

    async def seized() -> list[dict[str, Any]]:
        return await stack.rows(
            "update outbox set leased_until = now() + interval '1 hour'"
            " where kind = 'card' and lease_token is not null and posting_since is not null"
            " returning place, lease_owner"
        )

    (seizure,) = await wait_until(seized, "the card is on its way")
    workers = await stack.rows("select id from workers where died_at is null")
    assert [worker["id"] for worker in workers] == [seizure["lease_owner"]], "the lease is its process's own"
    dying.kill()
    stack.slack.faults.clear()
    await stack.serve()

    async def stands() -> bool:
        row = await stack.rows("select message_ts from outbox where place = $1", seizure["place"])
        return row[0]["message_ts"] is not None

    await wait_until(stands, "another process has settled where the card stands")
    card = await stack.card(thread)
    await stack.press(card, "approve")
    await stack.until(thread, "answered")
    await stack.shows(card, "Done")
