"""What goes wrong in a soak, and what people do meanwhile.

Decides: by a seeded source of chance, which fault comes when. Does not: judge. People here do what people do: they ask,
press what stands before them, press again when Slack says that it failed, and look into the CRM when they are asked
whether something happened. The failure it can cause: a fault that nothing heals from in real life either.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import asyncpg

from bot.sandbox import Fault
from bot.simulator.acts import ActRefused
from bot.simulator.workspace import DEALS, MARCUS, RITA, SALES_DESK
from bot.slack import REQUEST_TIMEOUT_S
from tests.acceptance.stack import Bot, Card, Stack
from tests.soak.cluster import Cluster, Wire

# A database that is restarting, or a connection that was cut: the people of the soak look again.
DOWN = (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError)
ASKED = (
    "draft and send a quote for Henderson, 200 of SKU-4411",
    "draft a quote for Henderson, {n} of SKU-4411",
    "draft and send a quote for Henderson, {n} of SKU-4411",
)
SLACK_FAULTS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("ratelimited", {"retry_after": 1}),
    ("http_error", {"status": 500}),
    ("delay", {"seconds": 2.0}),
    ("delay", {"seconds": REQUEST_TIMEOUT_S + 2.0}),  # nobody waits for it any more, and it takes effect all the same
    ("store_then_drop", {}),
    ("drop_before", {}),
    ("store_then_error", {"error": "internal_error"}),
)
SOCKET_FAULTS = ("forget_acks", "duplicate", "reorder", "withhold", "refuse_tickets")
# Until all processes are there; only a failing soak waits this long.
READY_S = 180.0
CRM_FAULTS = ("fail", "slow", "answer_lost", "crash_after_commit")


class Replicas:
    """The processes. Whoever dies is replaced at once, as a supervisor does."""

    def __init__(self, stack: Stack, dsn: str, number: int) -> None:
        self.stack = stack
        self.number = number
        self.settings = {
            "DATABASE_URL": dsn,
            "ATLAS_LEASE_S": "6",
            "ATLAS_SUSPENSION_TTL_S": "120",
        }
        self.bots: list[Bot] = []

    async def start(self) -> None:
        """Start them all and wait until they are ready."""
        self.bots = [self.stack.spawn("serve", **self.settings) for _ in range(self.number)]
        await self.all_ready()

    async def all_ready(self) -> None:
        """Wait until as many as there should be are ready; whoever ends meanwhile is replaced.

        One that was told to leave takes a while; one that began while something was down may end because of it.
        """
        async with asyncio.timeout(READY_S):
            await asyncio.gather(*map(self._ready, range(len(self.bots))))

    async def _ready(self, place: int) -> None:
        while True:
            bot = self.bots[place]
            try:
                await bot.ready(within=READY_S)
            except AssertionError:
                if bot.process.poll() is None:
                    raise
                self.bots[place] = self.stack.spawn("serve", **self.settings)
            else:
                return

    def kill(self, chance: random.Random) -> None:
        """SIGKILL one of them."""
        chance.choice(self.bots).kill()

    def replace(self) -> int:
        """Start a new one for each that ended; return how many."""
        ended = [bot for bot in self.bots if bot.process.poll() is not None]
        for bot in ended:
            self.bots.remove(bot)
            self.bots.append(self.stack.spawn("serve", **self.settings))
        return len(ended)


class Weather:
    """The faults, one after the other. *counts*: how often each came."""

    def __init__(self, chance: random.Random, stack: Stack, replicas: Replicas, cluster: Cluster, wire: Wire) -> None:
        self.chance = chance
        self.stack = stack
        self.replicas = replicas
        self.cluster = cluster
        self.wire = wire
        self.counts: Counter[str] = Counter()
        # (how often, name, what): a restart of the database stops everybody, so it is the rarest.
        self.kinds: tuple[tuple[int, str, Callable[[], Awaitable[None]]], ...] = (
            (5, "SIGKILL of a process", self._kill),
            (1, "deploy of a process", self._deploy),
            (1, "PostgreSQL restarted, fast", lambda: self._restart("fast")),
            (1, "PostgreSQL restarted, immediate", lambda: self._restart("immediate")),
            (3, "all connections cut", self._cut),
            (6, "Slack answers wrongly", self._slack),
            (4, "events doubled, reordered, withheld, acks forgotten", self._socket),
            (5, "the CRM breaks", self._crm),
        )

    async def storm(self, seconds: float, pause_s: float) -> None:
        """Let it blow for that long, a fault every *pause_s* seconds or so; every kind comes at least once."""
        until = asyncio.get_running_loop().time() + seconds
        first = list(self.kinds)
        self.chance.shuffle(first)
        while first or asyncio.get_running_loop().time() < until:
            kind = first.pop() if first else self.chance.choices(self.kinds, [often for often, _, _ in self.kinds])[0]
            await kind[2]()
            self.counts[kind[1]] += 1
            self.replicas.replace()
            await asyncio.sleep(pause_s * self.chance.uniform(0.5, 1.5))

    async def clear(self) -> None:
        """Let everything be well from now on."""
        self.stack.slack.faults.clear()
        self.stack.crm.faults.clear()
        self.replicas.replace()
        await self.replicas.all_ready()

    async def _kill(self) -> None:
        self.replicas.kill(self.chance)

    async def _deploy(self) -> None:
        self.chance.choice(self.replicas.bots).process.terminate()

    async def _restart(self, how: str) -> None:
        await self.cluster.stop(how)
        await asyncio.sleep(self.chance.uniform(0.0, 2.0))
        await self.cluster.start()

    async def _cut(self) -> None:
        self.wire.cut()

    async def _slack(self) -> None:
        kind, settings = self.chance.choice(SLACK_FAULTS)
        method = self.chance.choice(("*", "chat.postMessage", "chat.update"))
        self.stack.slack.faults.add(kind, method, times=self.chance.randint(1, 4), **settings)  # type: ignore[arg-type]

    async def _socket(self) -> None:
        sockets = self.stack.slack.faults.sockets
        name = self.chance.choice(SOCKET_FAULTS)
        setattr(sockets, name, getattr(sockets, name) + self.chance.randint(1, 3))

    async def _crm(self) -> None:
        route = self.chance.choice(("*", "POST /quotes", "POST /quotes/{id}/send", "GET /people/{email}"))
        kind = self.chance.choice(CRM_FAULTS)
        seconds = {"slow": 1.0, "crash_after_commit": 0.5}.get(kind)
        self.stack.crm.faults.add(Fault(kind, route, self.chance.randint(1, 2), seconds))


class Crowd:
    """The people. *asked*: how many requests they made."""

    def __init__(self, chance: random.Random, stack: Stack) -> None:
        self.chance = chance
        self.stack = stack
        self.asked = 0
        self.pressed: Counter[str] = Counter()

    async def ask(self, seconds: float, pause_s: float) -> None:
        """Ask something every *pause_s* seconds, for that long."""
        until = asyncio.get_running_loop().time() + seconds
        while asyncio.get_running_loop().time() < until:
            text = self.chance.choice(ASKED).format(n=self.chance.randint(1, 400))
            who = self.chance.choice((RITA, RITA, MARCUS))
            # Slack takes a message a second in each channel: what they are told of hundreds of runs needs several.
            where = self.chance.choice((SALES_DESK, DEALS, self.stack.slack.dm(who)))
            await self.stack.slack.post_as(who, where, f"@Atlas {text}")
            self.asked += 1
            await asyncio.sleep(pause_s * self.chance.uniform(0.2, 1.8))

    async def press(self) -> None:
        """Press what stands there, until cancelled."""
        while True:
            try:
                await self.press_once()
            except DOWN:
                self.pressed["while the database was down"] += 1
            await asyncio.sleep(0.3)

    async def press_once(self) -> int:
        """Decide every card that stands in Slack now; return how many."""
        rows = await self.stack.rows(
            "select s.id, s.kind, s.run_id, s.call_seq, s.call_position, r.user_id, o.message_channel, o.message_ts"
            " from suspensions s join runs r on r.id = s.run_id join outbox o on o.place = 'card:' || s.id"
            " where s.status = 'open' and o.message_ts is not null and o.delivered_version > 0 order by s.opened_at"
        )
        for row in rows:
            await self._press_card(row)
        return len(rows)

    async def _press_card(self, row: dict[str, Any]) -> None:
        card = Card(row["id"], row["message_channel"], row["message_ts"])
        if row["kind"] == "outcome":
            act = "happened" if await self._happened(row) else "did_not_happen"
        else:
            act = "approve"
        by = row["user_id"]
        presses = [by] * self.chance.choice((1, 1, 2)) + self.chance.choice(([], [], [MARCUS]))
        try:
            clicks = [await self.stack.click(card, act, by=who) for who in presses]
        except ActRefused:
            return  # the button is gone by now
        for click in clicks:
            self.pressed[(await click.settled()).state] += 1

    async def _happened(self, row: dict[str, Any]) -> bool:
        """Look into the CRM."""
        keys = await self.stack.rows(
            "select idempotency_key as key from actions where run_id = $1 and call_seq = $2 and call_position = $3",
            row["run_id"], row["call_seq"], row["call_position"],
        )  # fmt: skip
        done = {effect["key"] for effect in self.stack.crm.books.effects()}
        return any(each["key"] in done for each in keys)
