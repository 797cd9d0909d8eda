"""How fast clicks are acked while much else goes on: a real process of Atlas, a workspace of its own, rate limits on.

Before a round, 500 runs of 40 people suspend over 60 channels and 50 runs begin to work on a model that takes one to
two seconds a turn. Then, for 30 seconds and at fixed times whatever comes back, every tenth of a second brings one
valid click and four that must be refused: of somebody who may not, with a wrong token, on what is decided already.
Measured is what Slack would measure: from an envelope that leaves the workspace to its ack that arrives there. The
failure it can cause: workspace and clicks share a process, so what slows them counts as Atlas's.
"""

import asyncio
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import asyncpg
import psutil

from bot.simulator import AppManifest, Interaction, Simulator
from bot.simulator.acts import ActRefused
from bot.simulator.workspace import ATLAS_OPS, BOT_USER_ID, OSKAR, ChannelSpec, Person, UserGroup, Workspace
from core.approvals import Refusal
from tests.acceptance.stack import Bot, has_button
from tests.benchmarks.acks_agent import GROUP
from tests.benchmarks.server import Server, pct

ROOT = Path(__file__).parents[2]
CHANNELS, PEOPLE, MANAGERS = 60, 40, 5
SUSPENDED, WORKING = 500, 50
SECONDS, VALID_A_SECOND = 30, 10
# Of five clicks one is valid; the others take turns.
REFUSED_KINDS = ("not_an_approver", "wrong_token", "decided", "not_an_approver")
LIMIT_MS = 300.0
ACK_WINDOW_S = 3.0
PATIENCE_S = 300.0
QUIET_S = 5.0


@dataclass
class Card:
    """A card as it stands in the workspace, with what its Approve button carries."""

    suspension: str
    token: str
    digest: str
    channel: str
    ts: str
    owner: str
    grouped: bool

    def value(self, token: str | None = None) -> str:
        """Return the button's value, with another token for a forged one."""
        return json.dumps({"s": self.suspension, "t": token or self.token, "d": self.digest}, separators=(",", ":"))


def cast() -> Workspace:
    """Return 40 people in 60 channels, five of them in the user group that approves what is large."""
    people = [
        Person(_person(n), f"person.{n}", f"Person {n}", email=f"person.{n}@northwind.example") for n in range(PEOPLE)
    ]
    everyone = [person.id for person in people]
    workspace = Workspace()
    workspace.people += people
    workspace.channels += [
        ChannelSpec(f"C0BENCH{n:04}", f"team-{n}", [BOT_USER_ID, *everyone]) for n in range(CHANNELS)
    ]
    workspace.user_groups += [UserGroup("S0MANAGERS1", GROUP, "Managers", everyone[-MANAGERS:])]
    return workspace


def _person(number: int) -> str:
    return f"U0BENCH{number:04}"


async def acks(server: Server) -> None:
    """Measure one round; the line says how many acks there were, how many are missing, and how long they took."""
    suspended, working = server.n(SUSPENDED, least=30), server.n(WORKING, least=5)
    seconds = server.n(SECONDS, least=2)
    async with server.database() as dsn:
        manifest = AppManifest.load(ROOT / "manifest.yml")
        with tempfile.TemporaryDirectory() as directory:
            async with Simulator(cast(), manifest) as slack:
                bot = served(slack, dsn, Path(directory))
                try:
                    await bot.ready(PATIENCE_S)
                    round_ = Round(slack, bot, dsn, random.Random(server.round))
                    await round_.prepare(suspended, working)
                    server.emit(await round_.measure(seconds))
                finally:
                    bot.end()
                    if os.environ.get("BENCH_LOG"):
                        print(bot.log, file=sys.stderr)


def served(slack: Simulator, dsn: str, directory: Path) -> Bot:
    output = directory / "bot.log"
    settings = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(ROOT),
        "DATABASE_URL": dsn,
        "SLACK_BOT_TOKEN": slack.workspace.bot_token,
        "SLACK_APP_TOKEN": slack.workspace.app_token,
        "SLACK_API_URL": slack.api_url,
        "ATLAS_AGENT": "tests.benchmarks.acks_agent:agent",
        "ATLAS_ALERT_CHANNEL": ATLAS_OPS,
        "ATLAS_OPERATORS": OSKAR,
        "ATLAS_HTTP_PORT": "0",
    }
    with output.open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "bot", "serve"],
            cwd=directory,
            env=settings,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    return Bot(process, output)


@dataclass
class Round:
    slack: Simulator
    bot: Bot
    dsn: str
    dice: random.Random
    cards: list[Card] = field(default_factory=list)
    decided: list[Card] = field(default_factory=list)
    clicks: dict[str, list[Interaction]] = field(default_factory=lambda: defaultdict(list))

    async def prepare(self, suspended: int, working: int) -> None:
        """Bring everything to where it is when the clicks begin."""
        connection = await asyncpg.connect(self.dsn)
        try:
            for n in range(suspended):
                await self._ask(n, f"@Atlas send {n}")
                if n % 50 == 49:  # as fast as they are heard, so that no envelope waits for its ack too long
                    await _until(lambda n=n: self._count(connection, "select count(*) from inbox"), n + 1)  # type: ignore[misc]
            stands = "select count(*) from outbox where kind = 'card' and version = delivered_version"
            await _until(lambda: self._count(connection, stands), suspended)
            # As they are some minutes later: edits of progress lines are paced at 50 a minute, and nobody reads them.
            await connection.execute("update outbox set delivered_version = version where kind = 'progress'")
            for n in range(working):
                await self._ask(n, f"@Atlas work {n}")
            at_it = "select count(*) from runs where state = 'running' and step > 0"
            await _until(lambda: self._count(connection, at_it), working)
            rows = await connection.fetch(
                "select s.id, s.token, s.digest, o.message_channel, o.message_ts, r.user_id, s.tool = 'send_large'"
                " from suspensions s join runs r on r.id = s.run_id join outbox o on o.place = 'card:' || s.id"
                " where s.status = 'open'"
            )
            await connection.execute("vacuum analyze")
        finally:
            await connection.close()
        self.cards = [Card(*row) for row in rows]
        self.dice.shuffle(self.cards)

    async def _ask(self, n: int, text: str) -> None:
        await self.slack.post_as(_person(n % PEOPLE), f"C0BENCH{n % CHANNELS:04}", text)

    async def _count(self, connection: "asyncpg.Connection[asyncpg.Record]", sql: str) -> int:
        count: int = await connection.fetchval(sql)
        return count

    async def measure(self, seconds: int) -> dict[str, Any]:
        """Click, and return the line."""
        process, slack, suspended = psutil.Process(self.bot.process.pid), self.slack, len(self.cards)
        begun = time.perf_counter(), cpu_of(process)
        await asyncio.sleep(QUIET_S)
        quiet = (cpu_of(process) - begun[1]) / (time.perf_counter() - begun[0])
        slack.tiers.enabled = True
        since, used, load = slack.journal.last, cpu_of(process), os.getloadavg()[0]
        cpu, own = time.perf_counter(), time.process_time()
        await self._click(seconds)
        took, bot_cpu, own = time.perf_counter() - cpu, cpu_of(process) - used, time.process_time() - own
        everyone = [click for clicks in self.clicks.values() for click in clicks]
        await asyncio.gather(*(click.settled() for click in everyone))
        lat, missing = self._acked(since)
        outcomes = await self._outcomes()
        return {
            "peer": "atlas",
            "bench": "acks",
            "suspended": suspended,
            "seconds": round(took, 2),
            "per_s": round(len(everyone) / took, 1),
            "clicks": {kind: len(clicks) for kind, clicks in self.clicks.items()},
            "acks": len(lat),
            "missing": missing,
            "p50_ms": round(pct(lat, 0.50), 1),
            "p95_ms": round(pct(lat, 0.95), 1),
            "p99_ms": round(pct(lat, 0.99), 1),
            "max_ms": round(max(lat), 1),
            "kept": missing == 0 and pct(lat, 0.99) < LIMIT_MS,
            **outcomes,
            "bot_cpu_share": round(bot_cpu / took, 2),
            "quiet_cpu_share": round(quiet, 2),
            "cpu_ms_per_click": round(1000 * (bot_cpu - quiet * took) / len(everyone), 2),
            "workspace_cpu_share": round(own / took, 2),
            "load_before": round(load, 1),
        }

    async def _click(self, seconds: int) -> None:
        loop = asyncio.get_running_loop()
        begun = loop.time()
        refused = 0
        for tick in range(seconds * VALID_A_SECOND * 5):
            await asyncio.sleep(max(0.0, begun + tick / (VALID_A_SECOND * 5) - loop.time()))
            if tick % 5 == 0:
                card = self.cards.pop()
                self._press("valid", card, self._approver(card), card.value())
                self.decided.append(card)
                continue
            kind = REFUSED_KINDS[refused % len(REFUSED_KINDS)]
            refused += 1
            # Not the newest: its decision may still be on its way, which would be another kind.
            old = self.decided[: -2 * VALID_A_SECOND]
            if kind == "decided" and old:
                card = self.dice.choice(old)
                self._press(kind, card, self._approver(card), card.value())
            elif kind == "wrong_token":
                card = self.dice.choice(self.cards)
                self._press(kind, card, self._approver(card), card.value(card.token[:-6] + "forged"))
            else:
                card = self.dice.choice(self.cards)
                self._press("not_an_approver", card, self._stranger(card), card.value())

    def _press(self, kind: str, card: Card, by: str, value: str) -> None:
        """Press Approve on a card; where it shows none any more, as somebody whose screen still does."""
        message = self.slack.message(card.channel, card.ts)
        assert message is not None
        shown = card
        if not has_button(message, "approve"):
            beside = (other for other in self.cards if other.channel == card.channel)
            shown = next(beside, self.cards[0])
        with suppress(ActRefused):
            click = self.slack.acts.click(by, "approve", channel=shown.channel, ts=shown.ts, forge={"value": value})
            self.clicks[kind].append(click)

    def _approver(self, card: Card) -> str:
        if not card.grouped:
            return card.owner
        return self.dice.choice([who for who in map(_person, range(PEOPLE - MANAGERS, PEOPLE)) if who != card.owner])

    def _stranger(self, card: Card) -> str:
        return self.dice.choice([who for who in map(_person, range(PEOPLE - MANAGERS)) if who != card.owner])

    def _acked(self, since: int) -> tuple[list[float], int]:
        """Return the milliseconds of every ack, and how many envelopes of clicks had none in time."""
        sent: dict[str, float] = {}
        lat: list[float] = []
        for record in self.slack.journal.since(since):
            if record["kind"] == "envelope" and record["envelope"]["type"] == "interactive":
                sent.setdefault(record["envelope_id"], record["t"])
            elif record["kind"] == "ack" and record["envelope_id"] in sent:
                lat.append(1000 * (record["t"] - sent.pop(record["envelope_id"])))
        late = sum(each > 1000 * ACK_WINDOW_S for each in lat)
        return lat, len(sent) + late

    async def _outcomes(self) -> dict[str, int]:
        """Return what became of the clicks, from the audit."""
        connection = await asyncpg.connect(self.dsn)
        try:
            rows = await connection.fetch(
                "select allowed, split_part(why, ':', 1) as why from audit where act = 'approve'"
            )
            again = await connection.fetchval("select count(*) from suspensions where note like 'Could not check%'")
        finally:
            await connection.close()
        return {
            "approved": sum(row["allowed"] for row in rows),
            "refused": sum(not row["allowed"] for row in rows),
            "unchecked": sum(row["why"] == Refusal.COULD_NOT_CHECK.value for row in rows),
            "asked_again": again,
        }


def cpu_of(process: psutil.Process) -> float:
    used = process.cpu_times()
    return float(used.user + used.system)


async def _until(count: Callable[[], Any], wanted: int) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while (seen := await count()) < wanted:
        assert time.monotonic() < deadline, f"{seen} of {wanted} within {PATIENCE_S:g} s"
        await asyncio.sleep(0.1)


def acks_table(lines: Sequence[dict[str, Any]]) -> str:
    """Return the rounds as a Markdown table; nothing when none was measured."""
    measured = [line for line in lines if line.get("bench") == "acks"]
    if not measured:
        return ""
    names = (
        "acks",
        "missing",
        "p50_ms",
        "p95_ms",
        "p99_ms",
        "max_ms",
        "approved",
        "refused",
        "load_before",
        "load",
        "kept",
    )
    rows = ["| acks, round | " + " | ".join(names) + " |", "|" + " --- |" * (len(names) + 1)]
    rows += [f"| {line['round']} | " + " | ".join(str(line[name]) for name in names) + " |" for line in measured]
    return "\n".join(rows)
