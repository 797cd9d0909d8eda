"""The database goes away: dropped connections, an outage longer than a beat; everything heals by itself."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import asyncpg

from tests.acceptance.stack import Stack
from tests.acceptance.waiting import wait_until
from tests.acceptance.workshop import Json, call, say, script


async def _cut(admin: "asyncpg.Connection[asyncpg.Record]", name: str) -> None:
    await admin.execute("select pg_terminate_backend(pid) from pg_stat_activity where datname = $1", name)


@asynccontextmanager
async def _outage(stack: Stack, postgres: str) -> AsyncIterator[None]:
    """Take the bots' database away: nobody can connect, and every connection is gone."""
    name = urlsplit(stack.dsn).path.removeprefix("/")
    admin = await asyncpg.connect(postgres)
    try:
        await admin.execute(f'alter database "{name}" with allow_connections false')
        await _cut(admin, name)
        yield
        await admin.execute(f'alter database "{name}" with allow_connections true')
    finally:
        await admin.close()


async def test_connections_lost_during_a_model_call_cost_nothing(shop: Stack, postgres: str) -> None:
    """Every connection is cut while the model thinks: its reply is stored after reconnecting, it is asked once.

    langchain-ai/langgraph#5675: an idle connection dropped meanwhile broke the run.
    """
    gate = asyncio.Event()

    async def think(_: list[Json]) -> Json:
        await gate.wait()
        return say("Still here.")

    shop.workshop.think = think
    await shop.serve()
    thread = await shop.ask("@Atlas think")
    await shop.workshop.thinking()
    admin = await asyncpg.connect(postgres)
    try:
        await _cut(admin, urlsplit(shop.dsn).path.removeprefix("/"))
    finally:
        await admin.close()
    gate.set()
    run = await shop.until(thread, "answered")
    assert len(shop.workshop.asked) == 1
    assert (run["crashes"], run["recovery_attempts"]) == (0, 0)


async def test_an_outage_loses_no_message_and_reaps_nobody(shop: Stack, postgres: str) -> None:
    """Down for longer than the lease: what comes is not acked and comes again; no running run is reaped."""
    gate = asyncio.Event()

    async def think(messages: list[Json]) -> Json:
        if "slow" in messages[0]["text"]:
            await gate.wait()
        return say(f"Answer to: {messages[0]['text']}")

    shop.workshop.think = think
    shop.slack.dispatch.retry_schedule_s = (1.0, 2.0, 4.0, 8.0, 16.0)
    await shop.serve(ATLAS_LEASE_S="5")
    await shop.serve(ATLAS_LEASE_S="5")
    slow = await shop.ask("@Atlas slow")
    await shop.workshop.thinking()
    async with _outage(shop, postgres):
        late = await shop.ask("@Atlas meanwhile")
        await wait_until(
            lambda: len(shop.slack.journal.find({"kind": "unacked"})) >= 2, "it is sent again and not acked (over 6 s)"
        )
    gate.set()
    await shop.said(late, "Answer to: meanwhile")
    run = await shop.until(slow, "answered")
    assert (run["crashes"], run["recovery_attempts"]) == (0, 0)
    assert "reaped" not in await shop.trace(run)
    assert len(await shop.runs(late)) == 1


async def test_a_click_during_an_outage_fails_visibly_and_works_later(shop: Stack, postgres: str) -> None:
    """A decision that cannot be committed is not acked: Slack shows its error, nothing happens, a later click works."""
    shop.workshop.think = script(call(("pay", {"what": "rent"})), say("Paid."))
    await shop.serve()
    thread = await shop.ask("@Atlas pay the rent")
    card = await shop.card(thread)
    async with _outage(shop, postgres):
        click = await (await shop.click(card, "approve")).settled()
        assert click.state == "failed"
    assert shop.workshop.effects() == []
    await wait_until(lambda: shop.value("select status = 'open' from suspensions"), "the card still waits")

    async def decided() -> bool:
        return (await shop.press(card, "approve")).state == "acked"

    await wait_until(decided, "a later click is taken")
    await shop.until(thread, "answered")
    assert [effect.requests for effect in shop.workshop.effects()] == [1]
    assert shop.whispers(thread) == []


async def test_a_process_that_leaves_while_its_commit_waits_for_a_lock_gives_its_run_back(shop: Stack) -> None:
    """SIGTERM while another session holds the run's row, for longer than a commit is waited for: no crash, no recovery;
    the next process goes on, and nothing was said or paid for twice."""
    gate = asyncio.Event()

    async def think(messages: list[Json]) -> Json:
        await gate.wait()
        return script(call(("look", {"what": "rent"})), say("Looked."))(messages)

    async def waiting() -> int:
        found = "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"
        return int(await shop.value(found))

    shop.workshop.think = think
    leaving = await shop.serve()
    thread = await shop.ask("@Atlas look")
    await shop.workshop.thinking()
    other = await asyncpg.connect(shop.dsn)
    try:
        transaction = other.transaction()
        await transaction.start()
        await other.execute("select from runs where thread_ts = $1 for update", thread.ts)
        gate.set()
        await wait_until(waiting, "the step waits for the lock")
        leaving.process.terminate()

        async def written_again() -> bool:
            return await waiting() == 2

        await wait_until(written_again, "it was given up on, and is written again")
        await transaction.rollback()
    finally:
        await other.close()
    assert await leaving.ended() == 0
    run = await shop.run(thread)
    assert (run["claim_token"], run["step"], run["crashes"], run["charge_due"]) == (None, 1, 0, False)
    await shop.serve()
    run = await shop.until(thread, "answered")
    assert (run["step"], run["crashes"], run["recovery_attempts"]) == (2, 0, 0)
    assert "reaped" not in await shop.trace(run)
    assert (len(shop.workshop.asked), len(await shop.results(run))) == (2, 1)
