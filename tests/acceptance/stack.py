"""Atlas as people run it: real processes, PostgreSQL, a workspace, a CRM; and hands to act in it.

The workspace and the CRM serve from the test's own event loop over real sockets; each bot is a child process with
nothing but the documented environment. Decides nothing about what is right: tests and ``tests.invariants`` do.
Failure it can cause: a bot left behind, so ``close`` ends every process of each bot's session.
"""

import asyncio
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import asyncpg

from bot.sandbox import Crm, Fault
from bot.simulator import AppManifest, Interaction, Simulator
from bot.simulator.acts import ActRefused
from bot.simulator.elements import find_element
from bot.simulator.workspace import ATLAS_OPS, OSKAR, RITA, SALES_DESK
from tests.acceptance.waiting import PATIENCE_S, POLL_S, wait_until
from tests.acceptance.workshop import Workshop
from tests.invariants import Effect, violations

ROOT = Path(__file__).parents[2]
RITA_EMAIL = "rita.reyes@northwind.example"
QUOTE = "@Atlas draft and send a quote for Henderson, 200 of SKU-4411"
# Slack gives 3 s, and a bot on a busy machine may need more; how often a person then presses at most.
ACK_WINDOW_S, PRESSES = 10.0, 8
# How often somebody who waits for a form looks, before they press its button again.
FORM_LOOKS = 300
SEND_ROUTE, DRAFT_ROUTE = "POST /quotes/{id}/send", "POST /quotes"

Row = dict[str, Any]
Message = dict[str, Any]


def words(message: Message) -> str:
    """Return all text that a message shows, mentions as <@U…>, in order."""
    shown: list[str] = []

    def gather(part: object) -> None:
        if isinstance(part, list):
            for each in part:
                gather(each)
        elif isinstance(part, dict):
            if part.get("type") == "user":
                shown.append(f"<@{part['user_id']}>")
            if part.get("type") == "date":
                shown.append(str(part.get("fallback")))
            for key, value in part.items():
                if key == "text" and isinstance(value, str):
                    shown.append(value)
                elif isinstance(value, dict | list):
                    gather(value)

    gather(message.get("blocks", []))
    return " ".join(shown) or str(message.get("text", ""))


def has_button(message: Message, action_id: str) -> bool:
    """Say whether a message has that button."""
    return find_element(message.get("blocks", []), action_id, None) is not None


@dataclass
class Thread:
    """A thread in a channel, by its first message."""

    channel: str
    ts: str


@dataclass
class Card:
    """A suspension's message."""

    suspension_id: str
    channel: str
    ts: str


class Bot:
    """One ``python -m bot serve``."""

    def __init__(self, process: "subprocess.Popen[bytes]", output: Path) -> None:
        self.process = process
        self.output = output
        self.url = ""

    @property
    def log(self) -> str:
        """Return what it wrote so far."""
        return self.output.read_text(encoding="utf-8", errors="replace")

    async def ready(self, within: float = PATIENCE_S) -> "Bot":
        """Wait until it says that it is ready."""

        def still_there() -> None:
            if self.process.poll() is not None:
                raise AssertionError(f"the bot ended with {self.process.returncode}:\n{self.log}")

        def address() -> str | None:
            still_there()
            found = re.search(r"serves \S+ as \S+ at (http://\S+)\s", self.log)
            return found.group(1) if found else None

        self.url = url = await wait_until(address, "the bot says where it listens", within)
        async with aiohttp.ClientSession() as session:

            async def is_ready() -> bool:
                still_there()
                try:
                    async with session.get(f"{url}/readyz") as answer:
                        return answer.status == 200
                except aiohttp.ClientError:
                    return False

            await wait_until(is_ready, f"{url}/readyz says yes", within)
        return self

    def kill(self) -> None:
        """SIGKILL this process alone."""
        self.process.kill()
        self.process.wait()

    async def terminate(self, within: float = PATIENCE_S) -> int:
        """SIGTERM; return the exit code."""
        self.process.terminate()
        return await self.ended(within)

    async def ended(self, within: float = PATIENCE_S) -> int:
        """Wait for its end; return the exit code."""
        await wait_until(lambda: self.process.poll() is not None, "the bot ends", within)
        return self.process.returncode

    def end(self) -> None:
        """SIGKILL whatever is left of its session."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


class Stack:
    """Everything that a story needs. ``workshop`` is there when the tests' own agent is served."""

    def __init__(self, slack: Simulator, crm: Crm, dsn: str, directory: Path, workshop: Workshop | None) -> None:
        self.slack = slack
        self.crm = crm
        self.dsn = dsn
        self.directory = directory
        self.bots: list[Bot] = []
        self._unchecked_known: set[int] = set()
        self._workshop = workshop
        self._pool: asyncpg.Pool[asyncpg.Record] | None = None

    # -- processes --------------------------------------------------------------------------------------------

    @property
    def workshop(self) -> Workshop:
        """Return the workshop of a test that serves the tests' own agent."""
        assert self._workshop is not None
        return self._workshop

    def environment(self, **settings: str) -> dict[str, str]:
        """Return a bot's whole environment; *settings* come last, and an empty one unsets."""
        documented = {
            "DATABASE_URL": self.dsn,
            "SLACK_BOT_TOKEN": self.slack.workspace.bot_token,
            "SLACK_APP_TOKEN": self.slack.workspace.app_token,
            "SLACK_API_URL": self.slack.api_url,
            "ATLAS_ALERT_CHANNEL": ATLAS_OPS,
            "ATLAS_OPERATORS": OSKAR,
            "ATLAS_CRM_URL": self.crm.url,
            "ATLAS_HTTP_PORT": "0",
            "ATLAS_REAP_EVERY_S": "0.5",
            "ATLAS_EXPIRE_EVERY_S": "0.5",
        }
        if self._workshop is not None:
            documented["ATLAS_AGENT"] = "workshop_agent:agent"
        merged = {**documented, **settings}
        system = {name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ}
        return {**system, **{name: value for name, value in merged.items() if value}}

    def spawn(self, *arguments: str, **settings: str) -> Bot:
        """Start ``python -m bot …`` in a session of its own, without waiting for it."""
        output = self.directory / f"bot-{len(self.bots) + 1}.log"
        with output.open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "bot", *arguments],
                cwd=self.directory,
                env=self.environment(**settings),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        bot = Bot(process, output)
        self.bots.append(bot)
        return bot

    async def serve(self, **settings: str) -> Bot:
        """Start one more replica and wait until it is ready."""
        return await self.spawn("serve", **settings).ready()

    async def close(self) -> None:
        """End every process and connection."""
        for bot in self.bots:
            bot.end()
        if self._pool is not None:
            await self._pool.close()

    # -- rows -------------------------------------------------------------------------------------------------

    async def pool(self) -> "asyncpg.Pool[asyncpg.Record]":
        """Return connections to the bots' database."""
        if self._pool is None:
            self._pool = await asyncpg.create_pool(self.dsn, min_size=1, max_size=4)
        return self._pool

    async def rows(self, sql: str, *arguments: object) -> list[Row]:
        """Return rows."""
        return [dict(row) for row in await (await self.pool()).fetch(sql, *arguments)]

    async def value(self, sql: str, *arguments: object) -> Any:
        """Return one value."""
        return await (await self.pool()).fetchval(sql, *arguments)

    async def runs(self, thread: Thread) -> list[Row]:
        """Return a thread's runs, oldest first."""
        return await self.rows("select * from runs where thread_ts = $1 order by created_at", thread.ts)

    async def run(self, thread: Thread) -> Row:
        """Return a thread's newest run, once there is one."""
        return (await wait_until(lambda: self.runs(thread), "a run of this thread"))[-1]

    async def until(self, thread: Thread, *states: str, within: float = PATIENCE_S) -> Row:
        """Wait until the thread's newest run is in one of *states* (or reason, for a halt); return it."""

        async def look() -> Row | None:
            runs = await self.runs(thread)
            return runs[-1] if runs and {runs[-1]["state"], runs[-1]["halt_reason"]} & set(states) else None

        try:
            return await wait_until(look, f"a run that is {' or '.join(states)}", within)
        except AssertionError as error:
            runs = [(r["id"], r["state"], r["halt_reason"], r["detail"]) for r in await self.runs(thread)]
            raise AssertionError(f"{error}; runs: {runs}; thread: {self.texts(thread)}") from error

    async def results(self, run: Row) -> list[str]:
        """Return the texts of a run's tool results."""
        rows = await self.rows("select body from messages where run_id = $1 and role = 'tool' order by seq", run["id"])
        return [json.loads(row["body"])["text"] for row in rows]

    async def trace(self, run: Row) -> list[str]:
        """Return the kinds of a run's trace."""
        return [
            row["kind"] for row in await self.rows("select kind from trace where run_id = $1 order by id", run["id"])
        ]

    # -- people -----------------------------------------------------------------------------------------------

    async def ask(self, text: str = QUOTE, by: str = RITA, channel: str = SALES_DESK) -> Thread:
        """Start a thread."""
        message = await self.slack.post_as(by, channel, text)
        return Thread(channel, message["ts"])

    async def reply(self, thread: Thread, text: str, by: str = RITA) -> Message:
        """Write into a thread."""
        return await self.slack.post_as(by, thread.channel, text, thread.ts)

    async def press(
        self, card: "Card | Message | None", action: str, by: str = RITA, thread: Thread | None = None, **how: Any
    ) -> Interaction:
        """Press a button and wait for Slack's verdict; press again, as people do, when Slack says that it failed or
        Atlas that it could not check who it was. *card* None: on Home."""
        await self._unchecked()
        interaction = await (await self.click(card, action, by, thread, **how)).settled()
        for _ in range(PRESSES - 1):
            if interaction.state == "acked" and not (await self._unchecked())[by]:
                break
            try:
                again = await self.click(card, action, by, thread, **how)
            except ActRefused:
                again = self._repeat(interaction)  # taken all the same: the button is gone, but not yet from their eyes
            interaction = await again.settled()
        return interaction

    async def press_all(self, clicks: Sequence[Interaction]) -> None:
        """Wait for Slack's verdicts on clicks made together; what failed, or could not be checked, is pressed again by
        its maker, who still sees what they saw, until all are taken."""
        for _ in range(PRESSES):
            await asyncio.gather(*(click.settled() for click in clicks))
            unchecked = await self._unchecked()
            again: list[Interaction] = []
            for click in clicks:
                if click.state != "acked":
                    again.append(click)
                elif unchecked[click.user]:
                    unchecked[click.user] -= 1
                    again.append(click)
            if not again:
                return
            clicks = [self._repeat(click) for click in again]
        raise AssertionError(f"clicks that are never taken: {[(click.user, click.error) for click in clicks]}")

    def _repeat(self, click: Interaction) -> Interaction:
        """Press the same button again as its maker saw it then, whatever it looks like by now."""
        return self.slack.send_interaction(click.kind, click.payload)

    async def _unchecked(self) -> Counter[str]:
        """Count whose acts Atlas has refused since this was last asked, because Slack did not say in time who they are.

        They are on record before they are acked; people are told to press again.
        """
        rows = await self.rows("select id, by from audit where why like 'could_not_check:%'")
        new = [row for row in rows if row["id"] not in self._unchecked_known]
        self._unchecked_known |= {row["id"] for row in new}
        return Counter(row["by"] for row in new)

    async def click(
        self,
        card: "Card | Message | None",
        action: str,
        by: str = RITA,
        thread: Thread | None = None,
        **how: Any,
    ) -> Interaction:
        """Press a button, without waiting. *card* None: on Home; *how*: as in ``Acts.click``."""
        if card is None:
            return await self.slack.click(by, None, None, action, home=True, **how)
        if isinstance(card, Card):
            return await self.slack.click(by, card.channel, card.ts, action, **how)
        return await self.slack.click(by, thread.channel if thread else SALES_DESK, card["ts"], action, **how)

    async def form(self, card: Card, action: str, look: Callable[[], Message | None], by: str = RITA) -> Message:
        """Press a button until *look* sees the form that it opens: it can come too late for Slack, and is lost then."""

        async def opened() -> Message | None:
            await self.press(card, action, by)
            for _ in range(FORM_LOOKS):
                if (seen := look()) is not None:
                    return seen
                await asyncio.sleep(POLL_S)
            return None

        return await wait_until(opened, f"the form that {action} opens")

    async def submit(self, view_id: str, values: Row | None = None, by: str = RITA) -> Interaction:
        """Submit a form and wait for Slack's verdict; submit it again, as people do, when Slack says that it failed."""
        interaction = await (await self.slack.submit(by, view_id, values)).settled()
        for _ in range(PRESSES - 1):
            if interaction.state == "acked":
                break
            interaction = await (await self.slack.submit(by, view_id, values)).settled()
        return interaction

    async def fill(
        self, card: Card, action: str, callback_id: str, typed: Callable[[Message], Row], by: str = RITA
    ) -> Interaction:
        """Open a card's form, fill it in and submit it; the whole again when Atlas could not check who it was."""

        def look() -> Message | None:
            return next((view for view in self.slack.modals(by) if view["callback_id"] == callback_id), None)

        for _ in range(PRESSES):
            form = await self.form(card, action, look, by)
            submitted = await self.submit(form["id"], typed(form), by)
            if not (await self._unchecked())[by]:
                return submitted
        raise AssertionError(f"Atlas can never check who {by} is")

    async def decline(self, card: Card, reason: str = "", by: str = RITA) -> Interaction:
        """Press Decline, wait for its form, and submit it (with a reason)."""
        typed = {"reason": {"text": {"type": "plain_text_input", "value": reason}}} if reason else {}
        return await self.fill(card, "decline", "decline_reason", lambda _: typed, by)

    async def command(self, text: str, by: str = RITA, channel: str = SALES_DESK) -> str:
        """Type /atlas …; return what only this person is shown for it."""
        before = len(self.slack.ephemerals(by, channel))
        interaction = await (await self.slack.command(by, channel, "/atlas", text)).settled()
        for _ in range(PRESSES - 1):
            if interaction.state == "acked":
                break
            interaction = await (await self.slack.command(by, channel, "/atlas", text)).settled()
        assert interaction.state == "acked", interaction.error
        shown = await wait_until(lambda: self.slack.ephemerals(by, channel)[before:], f"an answer to /atlas {text}")
        return " ".join(words(message) for message in shown)

    # -- what people see --------------------------------------------------------------------------------------

    def texts(self, thread: Thread) -> list[str]:
        """Return what the bot's messages of a thread say now, oldest first."""
        return [words(message) for message in self.slack.bot_messages(thread.channel, thread.ts)]

    async def said(self, thread: Thread, text: str, within: float = PATIENCE_S) -> str:
        """Wait until a message of the bot in the thread says *text*; return all that it says."""
        try:
            return await wait_until(
                lambda: next((said for said in self.texts(thread) if text in said), None), f"“{text}”", within
            )
        except AssertionError as error:
            raise AssertionError(f"{error}; the thread says: {self.texts(thread)}") from error

    async def whispered(self, thread: Thread, text: str, to: str = RITA, within: float = PATIENCE_S) -> str:
        """Wait until this person alone is shown *text*."""
        try:
            return await wait_until(
                lambda: next((w for w in self.whispers(thread, to) if text in w), None), f"“{text}” to {to}", within
            )
        except AssertionError as error:
            raise AssertionError(f"{error}; they were shown: {self.whispers(thread, to)}") from error

    def whispers(self, thread: Thread, to: str = RITA) -> list[str]:
        """Return what only this person was shown in the thread's channel."""
        return [words(message) for message in self.slack.ephemerals(to, thread.channel)]

    async def card(self, thread: Thread, number: int = 1, within: float = PATIENCE_S) -> Card:
        """Return the thread's *number*-th card, once it stands in Slack as wanted."""

        async def look() -> Card | None:
            cards = await self.rows(
                "select s.id, o.message_channel, o.message_ts, o.version = o.delivered_version as stands"
                " from suspensions s join runs r on r.id = s.run_id join outbox o on o.place = 'card:' || s.id"
                " where r.thread_ts = $1 order by s.opened_at, s.call_seq, s.call_position, s.number",
                thread.ts,
            )
            if len(cards) < number or not cards[number - 1]["stands"]:
                return None
            row = cards[number - 1]
            return Card(row["id"], row["message_channel"], row["message_ts"])

        try:
            return await wait_until(look, f"card {number}", within)
        except AssertionError as error:
            raise AssertionError(f"{error}; the thread says: {self.texts(thread)}") from error

    def shown(self, card: Card) -> Message:
        """Return a card's message as it is now."""
        message = self.slack.message(card.channel, card.ts)
        assert message is not None
        return message

    async def shows(self, card: Card, text: str, within: float = PATIENCE_S) -> str:
        """Wait until a card says *text*; return all that it says."""
        try:
            return await wait_until(
                lambda: words(self.shown(card)) if text in words(self.shown(card)) else None, f"“{text}”", within
            )
        except AssertionError as error:
            raise AssertionError(f"{error}; the card says: {words(self.shown(card))}") from error

    async def halt_card(self, thread: Thread, within: float = PATIENCE_S) -> Message:
        """Return the thread's message with a Continue (or Ask again) button."""

        def look() -> Message | None:
            messages = self.slack.bot_messages(thread.channel, thread.ts)
            return next((message for message in reversed(messages) if has_button(message, "continue")), None)

        try:
            return await wait_until(look, "a message with Continue", within)
        except AssertionError as error:
            raise AssertionError(f"{error}; the thread says: {self.texts(thread)}") from error

    async def let_expire(self, card: Card) -> None:
        """Let a card's time be over now: on a busy machine a short one is over before anybody has seen the card."""
        await (await self.pool()).execute(
            "update suspensions set expires_at = now() where id = $1 and status = 'open'", card.suspension_id
        )

    def alerts(self) -> list[str]:
        """Return what the alert channel says."""
        return [words(message) for message in self.slack.bot_messages(ATLAS_OPS)]

    # -- the world --------------------------------------------------------------------------------------------

    def fault(self, kind: str, route: str, times: int | None = 1, seconds: float | None = None) -> None:
        """Let requests to the CRM go wrong."""
        self.crm.faults.add(Fault(kind, route, times, seconds))

    def directory_down(self) -> None:
        """Let every question about people fail, until ``crm.faults.clear()``."""
        self.fault("fail", "GET /people/{email}", times=None)

    def sent(self) -> list[Row]:
        """Return the quotes that the CRM sent."""
        return [effect for effect in self.crm.books.effects() if effect["kind"] == "send_quote"]

    def drafted(self) -> list[Row]:
        """Return the quotes that the CRM drafted."""
        return [effect for effect in self.crm.books.effects() if effect["kind"] == "draft_quote"]

    # -- the end ----------------------------------------------------------------------------------------------

    async def quiet(self, within: float = 2 * PATIENCE_S) -> None:
        """Wait until nothing is left to do for the bots: no run works, no mail, nothing owed to Slack."""
        sql = """
            select (select count(*) from runs where state = 'running') as running,
                   (select count(*) from inbox where handled_at is null and parked_at is null) as mail,
                   (select count(*) from outbox where version > delivered_version and refused_at is null) as owed
        """

        async def look() -> bool:
            return not any((await self.rows(sql))[0].values())

        try:
            await wait_until(look, "nothing is left to do", within)
        except AssertionError as error:
            owed = await self.rows("select place, last_error from outbox where version > delivered_version")
            running = await self.rows("select id, state, doing, claimed_by, crashes from runs where state = 'running'")
            raise AssertionError(f"{error}; owed: {owed}; running: {running}") from error

    async def check(self) -> None:
        """Wait until all is quiet, then hold the invariants against database, effects and Slack's journal."""
        await self.quiet()
        broken = await violations(
            await self.pool(), self._effects(), self.slack, ATLAS_OPS, needs_approval=self._needs_approval()
        )
        assert not broken, "invariants broken:\n" + "\n".join(broken)

    def _effects(self) -> Sequence[Effect]:
        crm = [Effect(e["key"], e["requests"]) for e in self.crm.books.effects()]
        if self._workshop is None:
            return crm
        return [*crm, *(Effect(e.key, e.requests) for e in self._workshop.effects())]

    def _needs_approval(self) -> frozenset[str]:
        return frozenset({"send_quote", "pay", "pay_openly", "pay_four_eyes", "pay_blind"})


@contextlib.asynccontextmanager
async def stack_of(dsn: str, directory: Path, workshop: Workshop | None = None) -> Any:
    """Bring workspace and CRM up for one test; bots are started by the test."""
    manifest = ROOT / "manifest.yml"
    chosen: AppManifest | Path = manifest if manifest.exists() else AppManifest()
    async with Simulator(manifest=chosen) as slack, Crm() as crm:
        slack.sockets.ack_window_s = slack.triggers.life_s = ACK_WINDOW_S
        stack = Stack(slack, crm, dsn, directory, workshop)
        try:
            yield stack
        finally:
            await stack.close()
            for bot in stack.bots:
                print(f"---- {bot.output.name} ({bot.process.returncode})\n{bot.log[-20000:]}")
            await asyncio.sleep(0)
