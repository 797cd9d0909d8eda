"""An ack is Slack's "done": none goes out before the commit that it stands for, whatever was pressed, sent or written.

Each act is stopped in the middle of its commit (a trigger waits there), so that an ack that was sent too early would be
seen. Its ack has all the time that a later one on the same connection takes.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import pytest

from bot.simulator.delivery import Interaction
from bot.simulator.workspace import ATLAS_OPS, OSKAR, RITA, SALES_DESK, VERA
from core.agent import Agent
from core.engine import Engine, Rules
from core.ports import Alert
from core.run import SuspensionKind
from core.tools import Approval
from storage import endings
from tests.integration.slack_stage import LONG, Stage, connected, no_scope, stage, until
from tests.integration.test_slack_edit import Send, open_form, typed

Act = Callable[[], Awaitable[Interaction]]


@asynccontextmanager
async def commits_held(pool: "asyncpg.Pool[asyncpg.Record]") -> AsyncIterator[None]:
    """Stop whoever has written to a run, the outbox or the inbox in its commit, for as long as the block lasts."""
    await pool.execute(
        "create function held() returns trigger language plpgsql as"
        " $$ begin perform pg_advisory_xact_lock_shared(4711); return null; end $$"
    )
    for table in ("runs", "outbox", "inbox"):
        await pool.execute(
            f"create constraint trigger held after insert or update on {table} deferrable initially deferred"
            " for each row execute function held()"
        )
    async with pool.acquire() as holder, holder.transaction():
        await holder.execute("select pg_advisory_xact_lock(4711)")
        yield


async def a_press(on: Stage, action: str, by: str = RITA, **ask: Any) -> Act:
    """Return a press of a card's button."""
    card = await on.card(await on.suspend(await on.run(), **ask))
    return lambda: on.slack.click(by, SALES_DESK, card["ts"], action)


async def a_declined_form(on: Stage) -> Act:
    card = await on.card(await on.suspend(await on.run()))
    await (await on.slack.click(RITA, SALES_DESK, card["ts"], "decline")).settled()
    (view,) = await until(lambda: on.slack.modals(RITA))
    return lambda: on.slack.submit(RITA, view["id"])


async def a_last_page(on: Stage) -> Act:
    card = await on.card(await on.suspend(await on.run(), LONG))
    await (await on.slack.click(RITA, SALES_DESK, card["ts"], "details")).settled()
    await until(lambda: on.slack.modals(RITA) and "Page 1 of" in str(on.slack.modals(RITA)[-1]["blocks"]))
    while on.slack.modals(RITA)[-1]["callback_id"] == "details_next":
        await (await on.slack.submit(RITA, on.slack.modals(RITA)[-1]["id"])).settled()
    return lambda: on.slack.submit(RITA, on.slack.modals(RITA)[-1]["id"])


async def an_edited_form(on: Stage) -> Act:
    form = await open_form(on, RITA, await on.suspend(await on.run()))
    return lambda: on.slack.submit(RITA, form["id"], typed("quote_id", "Q-2000"))


async def a_continue(on: Stage) -> Act:
    fence = await on.run()
    await on.halt(fence)
    await on.deliver()
    (card,) = on.posted(f"halt:{fence.run_id}:1")
    return lambda: on.slack.click(RITA, SALES_DESK, card["ts"], "continue")


async def a_stop(on: Stage) -> Act:
    fence = await on.run()
    await on.suspend(fence)
    await on.deliver()
    (progress,) = on.posted(f"progress:{fence.run_id}")
    return lambda: on.slack.click(RITA, SALES_DESK, progress["ts"], "stop")


async def a_taken_up_alert(on: Stage) -> Act:
    async with on.pool.acquire() as connection:
        await endings.owe_alert(connection, None, Alert("key", "title", "text"), None)
    await on.deliver()
    (alert,) = on.posted("alert:key")
    return lambda: on.slack.click(OSKAR, ATLAS_OPS, alert["ts"], "acknowledge")


async def a_typed_stop(on: Stage) -> Act:
    fence = await on.run()
    await on.suspend(fence)
    return lambda: on.slack.command(RITA, SALES_DESK, "/atlas", f"stop {fence.run_id}")


async def a_typed_continue(on: Stage) -> Act:
    fence = await on.run()
    await on.halt(fence)
    return lambda: on.slack.command(RITA, SALES_DESK, "/atlas", f"continue {fence.run_id}")


OUTCOME = SuspensionKind.OUTCOME
ACTS: dict[str, Callable[[Stage], Awaitable[Act]]] = {
    "approve": lambda on: a_press(on, "approve"),
    "one of two votes": lambda on: a_press(on, "approve", VERA, policy=Approval(by="anyone", count=2)),
    "it happened": lambda on: a_press(on, "happened", kind=OUTCOME),
    "it did not happen": lambda on: a_press(on, "did_not_happen", kind=OUTCOME),
    "decline": a_declined_form,
    "approve on the last page": a_last_page,
    "edit": an_edited_form,
    "continue": a_continue,
    "stop": a_stop,
    "take up an alert": a_taken_up_alert,
    "/atlas stop": a_typed_stop,
    "/atlas continue": a_typed_continue,
}


@pytest.fixture
async def on(pool: "asyncpg.Pool[asyncpg.Record]") -> AsyncIterator[Stage]:
    """The stage with a tool, connected by one connection."""
    async with stage(pool, operators=frozenset({OSKAR}), alert_channel=ATLAS_OPS) as on:
        rules = Rules(operators=frozenset({OSKAR}), alert_channel=ATLAS_OPS)
        on.engine = Engine(Agent(instructions="", tools=[Send()], scopes=no_scope), on.desk, on.directory, rules)
        async with connected(on, count=1):
            yield on


async def its_commit_waits(on: Stage) -> bool:
    found = await on.pool.fetchval(
        "select count(*) from pg_stat_activity where datname = current_database() and wait_event = 'advisory'"
    )
    return bool(found == 1)


async def anything_sent_is_there(on: Stage) -> None:
    """Let a later ack on the same connection arrive: of a command that needs no database."""
    helped = await (await on.slack.command(VERA, SALES_DESK, "/atlas", "help")).settled()
    assert helped.state == "acked"


@pytest.mark.parametrize("name", ACTS)
async def test_what_somebody_does_is_acked_once_it_is_committed(on: Stage, name: str) -> None:
    """Until then Slack knows nothing; should the process die now, it says so, and the person does it again."""
    act = await ACTS[name](on)
    recorded = "select count(*) from audit where allowed"
    before = await on.pool.fetchval(recorded)
    async with commits_held(on.pool):
        done = await act()
        await until(lambda: its_commit_waits(on))
        await anything_sent_is_there(on)
        assert done.state == "pending"
        assert await on.pool.fetchval(recorded) == before
    assert (await done.settled()).state == "acked"
    assert await on.pool.fetchval(recorded) == before + 1


async def test_a_message_is_acked_once_it_is_committed(on: Stage) -> None:
    """The same for what is written."""
    async with commits_held(on.pool):
        await on.slack.post_as(RITA, SALES_DESK, "<@U0ATLAS0001> hello")
        await until(lambda: its_commit_waits(on))
        acks = len(on.slack.journal.find({"kind": "ack"}))
        await anything_sent_is_there(on)
        assert len(on.slack.journal.find({"kind": "ack"})) == acks + 1, "the command's alone"
    await until(lambda: len(on.slack.journal.find({"kind": "ack"})) == acks + 2)
    assert await on.pool.fetchval("select text from inbox") == "hello"
