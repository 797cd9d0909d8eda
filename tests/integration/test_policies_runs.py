"""Policies on whole runs: the production wiring in this process, the simulated Slack, a real PostgreSQL.

Who must approve is computed per call; several writes of a turn are several cards; permissions come from user groups and
are read again before anything executes.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import asyncpg
import pytest

from bot.app import build_app
from bot.settings import read_settings
from bot.simulator import Simulator
from bot.simulator.workspace import ATLAS_OPS, MARCUS, OSKAR, RITA, SALES_DESK, VERA
from bot.wiring import Replica, replica
from tests.conftest import POOLER
from tests.integration import policies_agent
from tests.integration.slack_stage import MANIFEST, PATIENT_ACK_S, PATIENT_COMMIT_S, be_patient, until

Message = dict[str, Any]


@dataclass
class Desk:
    """A workspace with Atlas at work in it."""

    slack: Simulator
    atlas: Replica
    pool: "asyncpg.Pool[asyncpg.Record]"

    async def ask(self, text: str, user: str = RITA) -> Message:
        """Mention Atlas; return the message that opens the thread."""
        return await self.slack.post_as(user, SALES_DESK, f"<@U0ATLAS0001> {text}")

    def said(self, thread: Message) -> list[Message]:
        """Return what Atlas said in a thread."""
        return self.slack.bot_messages(SALES_DESK, thread["ts"])

    def cards(self, thread: Message) -> list[Message]:
        """Return the cards of a thread, oldest first."""
        places = [(m, (m.get("metadata") or {}).get("event_payload", {}).get("place", "")) for m in self.said(thread)]
        return [message for message, place in places if place.startswith("card:")]

    async def card(self, thread: Message, title: str, button: str = "approve") -> Message:
        """Wait for the card of that title that has that button."""

        def found() -> Message | None:
            waiting = [m for m in self.cards(thread) if title in str(m["blocks"]) and f"'{button}'" in str(m["blocks"])]
            return waiting[-1] if waiting else None

        card: Message = await until(found)
        return card

    async def press(self, user: str, card: Message, action: str) -> None:
        """Click, and wait for the ack."""
        clicked = await (await self.slack.click(user, SALES_DESK, card["ts"], action)).settled()
        assert clicked.state == "acked"

    async def decline(self, user: str, card: Message) -> None:
        """Press Decline and submit its form without a reason."""
        await self.press(user, card, "decline")
        (form,) = await until(lambda: self.slack.modals(user))
        await (await self.slack.submit(user, form["id"])).settled()

    async def says(self, thread: Message, words: str) -> None:
        """Wait until Atlas says it in the thread."""
        await until(lambda: any(words in str(m.get("blocks")) + str(m.get("text")) for m in self.said(thread)))

    def was_told(self, user: str, words: str) -> bool:
        """Say whether somebody was told that privately."""
        return words in str(self.slack.ephemerals(user, SALES_DESK))

    async def state(self) -> str:
        """Return the only run's state."""
        return str(await self.pool.fetchval("select state from runs"))


@asynccontextmanager
async def serving(
    database: str, directory: Path, slack: Simulator, agent: str = "tests.integration.policies_agent:agent"
) -> AsyncIterator[Replica]:
    """Serve an agent of the tests from this process; a busy machine may be slower than Slack's 3 s."""
    slack.sockets.ack_window_s = slack.triggers.life_s = PATIENT_ACK_S
    settings = read_settings(
        {
            "DATABASE_URL": database,
            **POOLER,
            "ATLAS_DATA_DIR": str(directory),
            "SLACK_BOT_TOKEN": slack.workspace.bot_token,
            "SLACK_APP_TOKEN": slack.workspace.app_token,
            "SLACK_API_URL": slack.api_url,
            "ATLAS_AGENT": agent,
            "ATLAS_OPERATORS": OSKAR,
            "ATLAS_ALERT_CHANNEL": ATLAS_OPS,
            "ATLAS_HTTP_PORT": "0",
            "ATLAS_EXPIRE_EVERY_S": "0.5",
        }
    )
    with patch("bot.wiring.build_app", partial(build_app, commit_within_s=PATIENT_COMMIT_S)):
        async with replica(settings, "all") as atlas:
            be_patient(atlas.app, PATIENT_COMMIT_S)
            try:
                await atlas.start()
                yield atlas
            finally:
                await atlas.stop()


@pytest.fixture
async def desk(database: str, pool: "asyncpg.Pool[asyncpg.Record]", tmp_path: Path) -> AsyncIterator[Desk]:
    """Atlas at work."""
    policies_agent.DONE.clear()
    policies_agent.TURNS.clear()
    async with Simulator(manifest=MANIFEST) as slack, serving(database, tmp_path, slack) as atlas:
        await until(lambda: len(slack.sockets.sockets) >= 2)
        yield Desk(slack, atlas, pool)


async def test_several_writes_of_a_turn_are_several_cards_in_any_order(desk: Desk) -> None:
    """A card each; what is approved is done at once, and the model goes on only when all are decided."""
    thread = await desk.ask("pay 5 apples; pay 6 pears; pay 7 plums")
    for title in ("Pay 5 for apples", "Pay 6 for pears", "Pay 7 for plums"):
        await desk.card(thread, title)
    assert len(desk.cards(thread)) == 3
    assert policies_agent.DONE == [], "nothing happens while everything waits"
    await desk.press(RITA, await desk.card(thread, "Pay 7 for plums"), "approve")
    await until(lambda: policies_agent.DONE == [(7, "plums")])
    await until(lambda: desk.pool.fetchval("select state = 'suspended' from runs"))
    assert len(policies_agent.TURNS) == 1, "the model is not asked while a call has no result"
    await desk.decline(RITA, await desk.card(thread, "Pay 5 for apples"))
    await desk.press(RITA, await desk.card(thread, "Pay 6 for pears"), "approve")
    await desk.says(thread, "Results")
    assert policies_agent.DONE == [(7, "plums"), (6, "pears")]
    results = policies_agent.TURNS[-1]
    assert len(policies_agent.TURNS) == 2
    assert len(results) == 3
    assert sum("declined_by_user" in result for result in results) == 1
    assert await desk.state() == "answered"


async def test_the_policy_is_computed_for_each_call(desk: Desk) -> None:
    """A small amount waits for its requester, a large one for a manager who did not ask; each is judged by its own."""
    thread = await desk.ask("pay 50 paper; pay 500 desks")
    small, large = await desk.card(thread, "Pay 50 for paper"), await desk.card(thread, "Pay 500 for desks")
    assert f"<@{RITA}>" in str(small["blocks"])
    assert "sales-managers" in str(large["blocks"]) or "S0SALESMGRS" in str(large["blocks"])
    await desk.press(MARCUS, small, "approve")
    await desk.press(RITA, large, "approve")
    await until(lambda: len(desk.slack.ephemerals(RITA, SALES_DESK)) == 1)
    await until(lambda: len(desk.slack.ephemerals(MARCUS, SALES_DESK)) == 1)
    assert policies_agent.DONE == []
    await desk.press(MARCUS, large, "approve")
    await desk.press(RITA, small, "approve")
    await desk.says(thread, "Results")
    assert sorted(policies_agent.DONE) == [(50, "paper"), (500, "desks")]
    refused = await desk.pool.fetch("select by, why from audit where not allowed order by by")
    assert {row["by"] for row in refused} == {MARCUS, RITA}


async def test_a_computed_policy_that_names_no_group_of_the_workspace_opens_no_card(desk: Desk) -> None:
    """Nobody could press it: the model is told at once, and nothing is done."""
    thread = await desk.ask("pay 5 ghosts")
    await desk.says(thread, "its approval policy cannot work")
    assert "@ghosts" in policies_agent.TURNS[-1][0]
    assert desk.cards(thread) == []
    assert policies_agent.DONE == []


async def test_two_people_who_did_not_ask_approve_a_severe_call(desk: Desk) -> None:
    """Four eyes: the requester does not count, the first vote is shown, the second one executes it once."""
    thread = await desk.ask("pay 5000 machines")
    card = await desk.card(thread, "Pay 5000 for machines")
    approve = next(it for b in card["blocks"] if b["type"] == "actions" for it in b["elements"])
    assert "confirm" in approve
    await desk.press(RITA, card, "approve")
    await desk.press(MARCUS, card, "approve")
    await desk.says(thread, "1 of 2 approvals")
    assert policies_agent.DONE == []
    await desk.press(VERA, await desk.card(thread, "Pay 5000 for machines"), "approve")
    await desk.says(thread, "Results")
    assert policies_agent.DONE == [(5000, "machines")]
    assert MARCUS in policies_agent.TURNS[-1][0]
    assert VERA in policies_agent.TURNS[-1][0]


async def test_an_approver_who_left_the_group_meanwhile_does_not_count(desk: Desk) -> None:
    """The vote is held against the group of the moment of execution: nothing is paid, and it is asked again."""
    thread = await desk.ask("pay 500 desks")
    card = await desk.card(thread, "Pay 500 for desks")
    # The click is judged on facts that are 60 s old at most, the execution on fresh ones.
    await desk.atlas.directory.in_group("sales-managers", MARCUS, fresh=True)
    desk.slack.change_world({"group": "sales-managers", "users": [VERA]})
    await desk.press(MARCUS, card, "approve")
    await desk.says(thread, "who must approve this changed while it was waiting")
    assert policies_agent.DONE == []
    await desk.press(VERA, await desk.card(thread, "who must approve"), "approve")
    await desk.says(thread, "Results")
    assert policies_agent.DONE == [(500, "desks")]


async def test_permissions_from_user_groups_are_read_again_at_resumption(desk: Desk) -> None:
    """Rita leaves the group between the card and the click: nothing executes, the thread and the model are told."""
    thread = await desk.ask("pay 5 apples")
    card = await desk.card(thread, "Pay 5 for apples")
    desk.slack.change_world({"group": "inside-sales", "users": [MARCUS]})
    await desk.press(RITA, card, "approve")
    await desk.says(thread, "your permissions changed while this was waiting")
    await desk.says(thread, "Results")
    assert policies_agent.DONE == []
    assert "not_permitted" in policies_agent.TURNS[-1][0]


async def test_who_is_in_no_group_may_do_nothing(desk: Desk) -> None:
    """Vera is in none of the groups: no card, the model is told."""
    thread = await desk.ask("pay 5 apples", VERA)
    await desk.says(thread, "not_permitted")
    assert desk.cards(thread) == []
    assert policies_agent.DONE == []


async def test_who_edits_a_call_counts_as_its_requester(desk: Desk) -> None:
    """Vera edits Rita's call through the form: a new card on the new amount, which neither of the two may approve."""
    thread = await desk.ask("pay 5000 machines")
    card = await desk.card(thread, "Pay 5000 for machines")
    await desk.press(VERA, card, "edit")
    await until(lambda: "One moment" not in str(desk.slack.modals(VERA) or "One moment"))
    form = desk.slack.modals(VERA)[-1]
    shown = next(block["element"]["type"] for block in form["blocks"] if block.get("block_id") == "amount")
    typed = {"amount": {"value": {"type": shown, "value": "6000"}}}
    await (await desk.slack.submit(VERA, form["id"], typed)).settled()
    edited = await desk.card(thread, "Pay 6000 for machines")
    assert f"Edited by @{VERA}" in str(edited["blocks"]) or f"'{VERA}'" in str(edited["blocks"])
    for banned in (VERA, RITA):
        await desk.press(banned, edited, "approve")
        await until(partial(desk.was_told, banned, "asked for this yourself"))
    await desk.press(MARCUS, edited, "approve")
    await desk.says(thread, "1 of 2 approvals")
    await desk.press(OSKAR, await desk.card(thread, "Pay 6000 for machines"), "approve")
    await desk.says(thread, "Results")
    assert policies_agent.DONE == [(6000, "machines")]


async def test_no_path_executes_without_a_decided_suspension(desk: Desk) -> None:
    """agno-agi/agno#8386: a run put back to work by force meets its open suspension, waits again, and does nothing."""
    thread = await desk.ask("pay 5 apples")
    await desk.card(thread, "Pay 5 for apples")
    for _ in range(2):
        await desk.pool.execute("update runs set state = 'running', claimable_at = now()")
        desk.atlas.worker.wake()
        await until(lambda: desk.pool.fetchval("select state = 'suspended' from runs"))
    assert policies_agent.DONE == []
    assert await desk.pool.fetchval("select count(*) from actions") == 0
    await desk.press(RITA, await desk.card(thread, "Pay 5 for apples"), "approve")
    await desk.says(thread, "Results")
    orphans = await desk.pool.fetchval(
        "select count(*) from actions a left join suspensions s on s.id = a.suspension_id "
        "where s.status is distinct from 'approved'"
    )
    assert (policies_agent.DONE, orphans) == ([(5, "apples")], 0)


async def test_a_card_that_waits_is_reminded_of_by_the_running_process(desk: Desk) -> None:
    """The schedule has the job: a third of the time is left, and the thread is told once."""
    thread = await desk.ask("pay 5 apples")
    await desk.card(thread, "Pay 5 for apples")
    await desk.pool.execute(
        "update suspensions set opened_at = now() - interval '20 minutes', expires_at = now() + interval '4 minutes'"
    )
    await desk.says(thread, "still waits")
