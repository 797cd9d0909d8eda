"""The store as an adversary: PostgreSQL that is not there, takes no writes, has no connection left, or fails over.

Nothing is acked unless it is stored, ``/readyz`` says what is wrong, all heals by itself, and no acknowledged decision
is lost, nobody reaped.
"""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import aiohttp
import asyncpg
import pytest

from bot.simulator.acts import ActRefused
from core.errors import StoreUnavailable
from core.ports import InboundEvent
from storage.database import open_pool
from storage.inbox import PgInbox
from storage.migrate import migrate
from tests.acceptance.stack import SEND_ROUTE, Bot, Stack, stack_of
from tests.acceptance.waiting import wait_until
from tests.acceptance.workshop import Json, Workshop, call, say, script
from tests.invariants import watch
from tests.soak.cluster import Cluster, Wire, kept_port, running, standby_of

pytestmark = pytest.mark.slow
AGAIN_S = (1.0, 1.0, 2.0, 2.0, 4.0, 4.0, 8.0, 8.0)


@asynccontextmanager
async def _shop(cluster: Cluster, directory: Path) -> AsyncIterator[Stack]:
    """The tests' own agent on *cluster*, whose bots are no administrators of it; judged at the end."""
    await cluster.execute("create role bot login")
    await cluster.execute("create database atlas owner bot")
    await cluster.execute("grant all on schema public to bot", "atlas")
    await migrate(_of_the_bots(cluster))
    await watch(_of_the_bots(cluster))
    workshop = Workshop()
    await workshop.start(directory, {})
    workshop.think = script(call(("pay", {"what": "rent"})), say("Paid."))
    try:
        async with stack_of(cluster.dsn("atlas"), directory, workshop) as shop:
            shop.slack.dispatch.retry_schedule_s = AGAIN_S
            yield shop
            await shop.check()
    finally:
        await workshop.stop()


def _of_the_bots(cluster: Cluster) -> str:
    return cluster.dsn("atlas").replace("//atlas@", "//bot@")


async def _says_ready(bot: Bot, address: str = r"serves \S+ as \S+ at (http://\S+)") -> dict[str, str] | None:
    """Return what /readyz finds wrong; None: it is ready."""
    found = re.search(address, bot.log)
    assert found is not None
    async with aiohttp.ClientSession() as session, session.get(f"{found.group(1)}/readyz") as answer:
        problems: dict[str, str] = (await answer.json())["problems"]
        assert (answer.status == 200) == (not problems)
        return problems or None


async def _unacked(shop: Stack, event_of: str) -> None:
    """Wait until Slack has sent something twice without an ack; nothing of it is stored."""
    await wait_until(lambda: len(shop.slack.journal.find({"kind": "unacked"})) >= 2, f"{event_of} is not acked")


WAITS = r"waits for its database at (http://\S+)"


async def test_a_database_that_is_down_at_the_start_is_waited_for(tmp_path: Path) -> None:
    """As when a host comes up: Atlas first, PostgreSQL later. It says that it is not ready, and starts by itself."""
    async with running(fsync="off") as cluster, _shop(cluster, tmp_path) as shop:
        await cluster.stop("fast")
        first, leaves = (shop.spawn("serve", DATABASE_URL=_of_the_bots(cluster)) for _ in range(2))
        for bot in (first, leaves):

            async def waits(bot: Bot = bot) -> bool:
                return re.search(WAITS, bot.log) is not None

            await wait_until(waits, "it waits")
            assert list(await _says_ready(bot, WAITS) or {}) == ["database"]
            assert "check DATABASE_URL" in bot.log
        assert await leaves.terminate() == 0
        await cluster.start()

        async def serves() -> bool:
            return "serves" in first.log and await _says_ready(first) is None

        await wait_until(serves, "it serves")
        thread = await shop.ask("@Atlas pay the rent")
        await shop.press(await shop.card(thread), "approve")
        await shop.until(thread, "answered")
        assert "Traceback" not in first.log + leaves.log


async def test_a_command_without_a_database_says_so_in_a_sentence(tmp_path: Path) -> None:
    """Exit 2, what is wrong, what to do; no traceback."""
    with kept_port() as nothing_there:
        await _starts_without(f"postgresql://atlas@127.0.0.1:{nothing_there.getsockname()[1]}/atlas", tmp_path)


async def _starts_without(dsn: str, directory: Path) -> None:
    async with stack_of(dsn, directory) as stack:
        for command in ("migrate", "runs"):
            bot = stack.spawn(command)
            assert await bot.ended() == 2
            assert f"atlas {command}: the database cannot be reached" in bot.log
            assert "Check DATABASE_URL" in bot.log
            assert "Traceback" not in bot.log


async def test_a_database_that_takes_no_writes_acks_nothing_and_heals(tmp_path: Path) -> None:
    """As during a failover: read-only for a while. What comes is not acked, comes again, and is done once."""
    async with running(fsync="off") as cluster, _shop(cluster, tmp_path) as shop:
        bot = await shop.serve(DATABASE_URL=_of_the_bots(cluster))
        waiting = await shop.ask("@Atlas pay the rent")
        card = await shop.card(waiting)
        await cluster.execute("alter system set default_transaction_read_only = on")
        await cluster.execute("select pg_reload_conf()")

        async def says_why() -> bool:
            return "read" in str(await _says_ready(bot))

        await wait_until(says_why, "/readyz says that it takes no writes")
        late = await shop.ask("@Atlas pay the rent")
        click = await (await shop.click(card, "approve")).settled()
        assert click.state == "failed"
        await _unacked(shop, "the message")
        assert await shop.runs(late) == []
        await cluster.execute("alter system reset default_transaction_read_only")
        await cluster.execute("select pg_reload_conf()")

        async def ready() -> bool:
            return await _says_ready(bot) is None

        await wait_until(ready, "/readyz says yes")
        await shop.press(card, "approve")
        await shop.press(await shop.card(late), "approve")
        for thread in (waiting, late):
            await shop.until(thread, "answered")
        assert [effect.requests for effect in shop.workshop.effects()] == [1, 1]


async def test_a_database_that_is_down_for_longer_than_the_lease_reaps_nobody_and_loses_nothing(tmp_path: Path) -> None:
    """It crashes while one request thinks, one card waits and one was just approved; for longer than the lease nothing
    is acked, and both processes say that they are not ready. Then all goes on where it stood."""
    lease_s = 5.0
    async with running(fsync="off") as cluster, _shop(cluster, tmp_path) as shop:

        async def think(messages: list[Json]) -> Json:
            if "slow" in messages[0]["text"]:
                await shop.workshop.released.wait()
                return say("At last.")
            return script(call(("pay", {"what": messages[0]["text"]})), say("Paid."))(messages)

        async def slowly(asked: Json) -> Json:
            done = shop.workshop.do(asked)
            if asked["what"] == "approved":
                await shop.workshop.released.wait()
            return done

        shop.workshop.think = think
        shop.workshop.execute["pay"] = slowly
        settings = {"DATABASE_URL": _of_the_bots(cluster), "ATLAS_LEASE_S": str(lease_s)}
        bots = [await shop.serve(**settings) for _ in range(2)]
        slow = await shop.ask("@Atlas slow")
        waiting = await shop.ask("@Atlas waiting")
        card = await shop.card(waiting)
        approved = await shop.ask("@Atlas approved")
        assert (await shop.press(await shop.card(approved), "approve")).state == "acked"
        await shop.workshop.executing("pay")
        down_at = asyncio.get_running_loop().time()
        await cluster.stop("immediate")
        for bot in bots:

            async def says_why(bot: Bot = bot) -> bool:
                return "database" in (await _says_ready(bot) or {})

            await wait_until(says_why, "/readyz says that the database is away")
        late = await shop.ask("@Atlas late")
        assert (await (await shop.click(card, "approve")).settled()).state == "failed"
        await _unacked(shop, "the message")
        assert asyncio.get_running_loop().time() - down_at > lease_s
        await cluster.start()
        for bot in bots:

            async def ready(bot: Bot = bot) -> bool:
                return await _says_ready(bot) is None

            await wait_until(ready, "/readyz says yes")
        shop.workshop.released.set()
        await shop.press(card, "approve")
        await shop.press(await shop.card(late), "approve")
        for thread in (slow, waiting, approved, late):
            run = await shop.until(thread, "answered")
            assert (run["crashes"], run["recovery_attempts"]) == (0, 0)
            assert "reaped" not in await shop.trace(run)
            assert len(await shop.runs(thread)) == 1
        assert sorted((effect.what, effect.requests) for effect in shop.workshop.effects()) == [
            ("approved", 1), ("late", 1), ("waiting", 1),
        ]  # fmt: skip


async def test_a_database_without_a_connection_left_acks_nothing_and_heals(tmp_path: Path) -> None:
    """Somebody else took every connection: nothing is lost, and all goes on once there are some again."""
    async with running(fsync="off", max_connections="30") as cluster, _shop(cluster, tmp_path) as shop:
        bot = await shop.serve(DATABASE_URL=_of_the_bots(cluster))
        hogs = await _take_all(cluster)
        try:
            await wait_until(lambda: _says_ready(bot), "/readyz says no")
            thread = await shop.ask("@Atlas pay the rent")
            await _unacked(shop, "the message")
        finally:
            for hog in hogs:
                hog.terminate()
        await shop.press(await shop.card(thread), "approve")
        await shop.until(thread, "answered")
        assert [effect.requests for effect in shop.workshop.effects()] == [1]


async def _take_all(cluster: Cluster) -> "list[asyncpg.Connection[asyncpg.Record]]":
    """Take every connection there is for anybody who is no administrator, those of the bots included.

    Nothing but the number says that they are all taken: a refusal may count an administrator who is just leaving.
    """
    counted = await cluster.value(
        "select current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int"
        " - coalesce(current_setting('reserved_connections', true), '0')::int"
    )
    hogs: list[asyncpg.Connection[asyncpg.Record]] = []

    async def all_taken() -> bool:
        with suppress(asyncpg.TooManyConnectionsError, asyncpg.CannotConnectNowError):
            while len(hogs) < int(str(counted)):
                dsn = _of_the_bots(cluster)
                hogs.append(await asyncpg.connect(dsn, server_settings={"application_name": "hog"}))
            return True
        await cluster.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity where usename = 'bot' and application_name <> 'hog'"
        )
        return False

    await wait_until(all_taken, f"all {counted} connections are taken")
    return hogs


async def test_a_failover_to_the_synchronous_standby_loses_no_acked_decision(tmp_path: Path) -> None:
    """The primary dies while three cards are being approved and a fourth request executes; the standby is promoted."""
    async with running(fsync="off") as primary, standby_of(primary, "standby") as standby:
        await primary.execute("alter system set synchronous_standby_names = 'standby'")
        await primary.execute("select pg_reload_conf()")
        await _in_step(primary)
        await primary.execute("create database atlas")
        await migrate(primary.dsn("atlas"))
        await watch(primary.dsn("atlas"))
        wire = Wire(primary.port)
        await wire.start()
        try:
            async with stack_of(wire.leading(primary.dsn("atlas")), tmp_path) as stack:
                stack.slack.dispatch.retry_schedule_s = AGAIN_S
                await _failover(stack, primary, standby, wire)
                await stack.check()
        finally:
            await wire.stop()


async def test_what_the_standby_never_took_is_not_acked_however_often_it_comes() -> None:
    """The synchronous standby is away: a commit stands on the primary, its writer gives up, and nothing is acked that a
    failover would lose; neither is its retry, which finds it there. Once the standby is back, it is there once."""
    async with running(fsync="off") as primary, standby_of(primary, "standby") as standby:
        await primary.execute("alter system set synchronous_standby_names = 'standby'")
        await primary.execute("select pg_reload_conf()")
        await _in_step(primary)
        await primary.execute("create database atlas")
        await migrate(primary.dsn("atlas"))
        pool = await open_pool(primary.dsn("atlas"), size=2)
        try:
            await standby.stop("immediate")
            event = InboundEvent("Ev1", "mention", "T1", "C1", "1.0", "1.0", "U1", "hello", {})
            for _ in range(2):
                storing = asyncio.ensure_future(PgInbox(pool).put(event))
                await wait_until(lambda: _waiting(primary), "the commit waits for the standby")
                assert not storing.done()
                storing.cancel()  # as a listener does whose time for the ack is over
                with suppress(asyncio.CancelledError, StoreUnavailable):
                    raise AssertionError(f"somebody was told that it is stored: {await storing}")
                assert await primary.value("select count(*) from inbox", "atlas") == 1, "it stands on the primary"
            await standby.start()
            await _in_step(primary)
            assert await PgInbox(pool).put(event) is False, "known already"
            await wait_until(lambda: _arrived(standby), "the standby has it too")
        finally:
            await pool.close()


async def _waiting(primary: Cluster) -> bool:
    # By its statement: what PostgreSQL does by itself (autovacuum) waits for the standby, too.
    return (
        await primary.value(
            "select count(*) from pg_stat_activity where wait_event = 'SyncRep' and backend_type = 'client backend'"
            " and (query like '%put_event%' or query like '%await_earlier_commits%')"
        )
        == 1
    )


async def _arrived(standby: Cluster) -> bool:
    return await standby.value("select count(*) from inbox", "atlas") == 1


async def _in_step(primary: Cluster) -> None:
    async def synchronous() -> bool:
        return await primary.value("select count(*) from pg_stat_replication where sync_state = 'sync'") == 1

    await wait_until(synchronous, "the standby is a synchronous one")


async def _failover(stack: Stack, primary: Cluster, standby: Cluster, wire: Wire) -> None:
    for _ in range(2):
        await stack.serve()
    executing = await stack.ask()
    threads = [await stack.ask() for _ in range(3)]
    cards = [await stack.card(thread) for thread in (executing, *threads)]
    stack.fault("hang_after_commit", SEND_ROUTE, times=1, seconds=4.0)
    assert (await stack.press(cards[0], "approve")).state == "acked"
    await wait_until(stack.sent, "the CRM sends the first quote")
    clicks = [await stack.click(card, "approve") for card in cards[1:]]
    await wait_until(lambda: any(click.state == "acked" for click in clicks), "some click is acked")
    await primary.stop("immediate")
    await standby.execute("select pg_promote()")
    wire.to = standby.port
    wire.cut()
    settled = [await click.settled() for click in clicks]
    acked = [card for card, click in zip(cards[1:], settled, strict=True) if click.state == "acked"]
    for card in acked:
        decided = await standby.value(
            f"select status = 'approved' from suspensions where id = '{card.suspension_id}'", "atlas"
        )
        assert decided, f"an acked decision on {card.suspension_id} is lost"
    for card in cards[1:]:
        if card not in acked:
            with suppress(ActRefused):  # recorded, though its ack was lost: the button is gone by now
                await stack.press(card, "approve")
    for thread in (executing, *threads):
        await stack.until(thread, "answered")
    assert len(stack.sent()) == len(cards)
