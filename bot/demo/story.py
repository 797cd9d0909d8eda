"""The story, told by itself: every step is played in the workspace and checked against the workspace and the CRM.

Decides: what must be seen at each step, and that a quote goes out exactly as often as somebody approved it. Does not:
reach into Atlas; it sees what people see, plus the CRM's books. The failure it can cause: a check that cannot fail
proves nothing; so each names what it saw, and a step that is off makes the whole story end with 1.
"""

import re
import textwrap
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from bot.demo.panel import AWAY, Json, LeverStuck, Panel
from bot.demo.stage import Stage
from bot.demo.workspace import MARCUS, RITA, Off, Thread, Workspace, button_of, run_of, text_of, together

WIDTH = 80

Step = Callable[[], Awaitable[str]]


@dataclass(frozen=True, slots=True)
class Drafted:
    """A card that waits, with what it is about."""

    thread: Thread
    card: Json
    run: str
    quote: str

    @property
    def named(self) -> str:
        """Return run and quote, as a step's facts show them."""
        return f"run {self.run} · {self.quote}"


class Story:
    """The steps, in the order in which they are told."""

    def __init__(self, stage: Stage, panel: Panel) -> None:
        self.stage = stage
        self.panel = panel
        self.workspace = Workspace(stage.url, stage.http)
        self.approved: list[str] = []
        self.settling: list[Drafted] = []
        self.recovered_s: list[float] = []
        self.totals: list[tuple[str, str]] = []
        self.first: Drafted | None = None

    def steps(self) -> list[tuple[str, Step]]:
        """Return (title, step) in order."""
        return [
            ("asked: the card shows the exact quote", self.ask),
            ("approved: sent once, then answered", self.approve),
            ("follow-up in the thread: a new card", self.follow_up),
            ("declined with a reason: not sent, told", self.decline),
            ("discount changed: asked again, old → new", self.changed),
            ("credit hold: not executed, reason told", self.hold),
            ("permission revoked: not executed", self.revoked),
            ("directory down: not checked; then done", self.directory),
            ("two clicks at once: one counts", self.two_clicks),
            ("another's click, a written “yes”: nothing", self.bystanders),
            ("killed between click and execution", self.killed_before),
            ("killed after the CRM's commit: sent once", self.killed_after),
            ("deploy in the middle of a run", self.deploy),
            ("expired; continued by the owner only", self.expiry),
            ("click after the expiry: told so, nothing", self.late_click),
            ("the same event twice: one run", self.twice),
            ("in the end: cards, books and mail agree", self.books),
        ]

    # ---- the steps --------------------------------------------------------------------------------------------------

    async def ask(self) -> str:
        """Ask for a quote; a sign that it was heard, then a card, and nothing sent."""
        thread = await Thread.opened(
            self.workspace, RITA, "@Atlas draft and send a quote for Henderson, 200 of SKU-4411"
        )
        await thread.shows("")
        sign_s = time.monotonic() - thread.asked_at
        self.first = await self._drafted(thread, "Henderson Manufacturing (4471)", "8,730.00 USD", f"<@{RITA}>")
        await self._expect_sends(self.first.quote, 0)
        # Told, not judged: how fast depends on the machine.
        return f"{self.first.quote} · heard in {sign_s:.1f} s"

    async def approve(self) -> str:
        """Approve it."""
        if self.first is None:
            raise Off("there is no card from the first step")
        took_s = await self._approve(self.first)
        await self.first.thread.shows("was sent to buying@henderson-mfg.example", after=self.first.card["ts"])
        return f"{self.first.quote} · done in {took_s:.1f} s"

    async def follow_up(self) -> str:
        """Ask on in the thread of the first step."""
        if self.first is None:
            raise Off("there is no thread from the first step")
        said = await self.first.thread.say("@Atlas make it 300 and send it")
        drafted = await self._drafted(self.first.thread, "13,095.00 USD", after=said)
        _expect(drafted.run != self.first.run, "the follow-up is the same run")
        await self._approve(drafted)
        return drafted.named

    async def decline(self) -> str:
        """Decline with a reason."""
        drafted = await self._ask("Castillo Packaging", "10 of SKU-4441")
        await drafted.thread.clicked(drafted.card, "decline")
        view = await self.workspace.until(RITA, lambda state: (state["views"] or [None])[-1], "the Decline form")
        reason = {"reason": {"text": {"type": "plain_text_input", "value": "wrong customer"}}}
        sent = await self.workspace.act("view_submit", **{"as": RITA}, view_id=view["id"], values=reason)
        await drafted.thread.acked(str(sent["interaction_id"]))
        await drafted.thread.becomes(drafted.card, "Declined", "wrong customer")
        await drafted.thread.shows("was declined", "wrong customer", after=drafted.card["ts"])
        await self._expect_sends(drafted.quote, 0)
        return drafted.named

    async def changed(self) -> str:
        """Change the discount under a waiting card."""
        drafted = await self._ask("Henderson", "50 of SKU-4440", "4,338.00 USD")
        await self.panel.pull("discount", "12")
        await drafted.thread.approve(drafted.card)
        await drafted.thread.becomes(drafted.card, "Replaced by a newer version")
        newer = await self._drafted(drafted.thread, "10 %", "12 %", "4,241.60 USD", after=drafted.card["ts"])
        await self._expect_sends(drafted.quote, 0)
        await self._approve(newer)
        sent = (await self._sends(drafted.quote))[0]
        _expect(sent["total"] == "4241.60", f"it was sent at {sent['total']}, approved at 4241.60")
        return "4,338.00 → 4,241.60 USD"

    async def hold(self) -> str:
        """Put the account on credit hold under a waiting card."""
        drafted = await self._ask("Henderson", "20 of SKU-4411")
        await self.panel.pull("hold", True)
        await drafted.thread.approve(drafted.card)
        await drafted.thread.becomes(drafted.card, "Not executed", "credit hold")
        await drafted.thread.shows("credit hold", "was not sent", after=drafted.card["ts"])
        await self._expect_sends(drafted.quote, 0)
        return drafted.named

    async def revoked(self) -> str:
        """Take the owner's permission away under a waiting card."""
        drafted = await self._ask("Ironwood Cranes", "4 of SKU-4480")
        await self.panel.pull("role", "viewer")
        await drafted.thread.approve(drafted.card)
        await drafted.thread.becomes(drafted.card, "Not executed", "permission")
        await drafted.thread.shows("was not sent", after=drafted.card["ts"])
        await self._expect_sends(drafted.quote, 0)
        return drafted.named

    async def directory(self) -> str:
        """Approve while nobody can say what the owner may do; then again when somebody can."""
        drafted = await self._ask("Kestrel Aerospace", "2 of SKU-4430")
        await self.panel.pull("directory_down", True)
        await drafted.thread.approve(drafted.card)
        asked_again = await drafted.thread.becomes(drafted.card, "could not", "Waiting for")
        await self._expect_sends(drafted.quote, 0)
        await self.panel.pull("directory_down", False)
        _expect(button_of(asked_again, "approve") is not None, "the card cannot be approved again")
        await self._approve(Drafted(drafted.thread, asked_again, drafted.run, drafted.quote))
        return drafted.named

    async def two_clicks(self) -> str:
        """Press Approve twice at the same instant."""
        drafted = await self._ask("Mesa Verde Breweries", "10 of SKU-4412")
        press = drafted.thread.press
        # Slack takes no edits until both are made: decided by the first click, the card would have no button for a
        # second one that is a moment later.
        async with self._edits_held():
            clicks = await together(press(drafted.card, "approve"), press(drafted.card, "approve"))
        for click in clicks:
            await drafted.thread.acked(click)
        await drafted.thread.becomes(drafted.card, "✅ Done")
        await drafted.thread.shows("already by", after=drafted.card["ts"])
        self.approved.append(drafted.quote)
        await self._expect_sends(drafted.quote, 1)
        return f"{drafted.quote} · one was told"

    async def bystanders(self) -> str:
        """Let somebody else click, and the owner write "yes"; then give a new instruction."""
        drafted = await self._ask("Baker Steel Works", "30 of SKU-4450")
        await drafted.thread.refuses(drafted.card, "approve", MARCUS, "not an approver")
        said = await drafted.thread.say("@Atlas yes")
        await drafted.thread.shows("Text never approves", after=said)
        await self._expect_sends(drafted.quote, 0)
        said = await drafted.thread.say("@Atlas who is Baker Steel Works?")
        await drafted.thread.becomes(drafted.card, "Replaced by a new instruction")
        await drafted.thread.shows("orders@bakersteel.example", after=said)
        return drafted.named

    async def killed_before(self) -> str:
        """Kill Atlas when the click is stored and nothing is executed yet."""
        drafted = await self._ask("Fairbanks Rail Services", "25 of SKU-4420")
        # The check of permissions hangs, so that nothing can be executed before the kill.
        await self.stage.ask_crm("POST", "/admin/faults", {"kind": "hang", "route": "GET /people/{email}"})
        await drafted.thread.approve(drafted.card)
        await self.panel.pull("kill")
        await self._expect_sends(drafted.quote, 0)
        await self.stage.ask_crm("DELETE", "/admin/faults")
        return await self._recovered(drafted)

    async def killed_after(self) -> str:
        """Kill Atlas when the CRM has sent and Atlas has not heard so."""
        drafted = await self._ask("Castillo Packaging", "12 of SKU-4451")
        await self.panel.pull("kill_after_commit")
        await drafted.thread.approve(drafted.card)
        facts = await self._recovered(drafted)
        requests = (await self._sends(drafted.quote))[0]["requests"]
        _expect(requests == 1, f"the CRM was asked {requests} times")
        return facts

    async def deploy(self) -> str:
        """Replace Atlas while it works on a question."""
        slow = {"kind": "slow", "route": "GET /accounts", "seconds": 1.5}
        await self.stage.ask_crm("POST", "/admin/faults", slow)
        thread = await Thread.opened(self.workspace, RITA, "@Atlas draft and send a quote for Kestrel, 1 of SKU-4461")
        await thread.shows("")
        await self.panel.pull("deploy")
        drafted = await self._drafted(thread, "Kestrel Aerospace (4518)")
        drafts = [effect for effect in await self._effects() if effect["quote"] == drafted.quote]
        _expect(len(drafts) == 1, f"{len(drafts)} effects for {drafted.quote}")
        await self._approve(drafted)
        return drafted.named

    async def expiry(self) -> str:
        """Let a card expire; somebody else cannot continue, the owner can."""
        drafted = await self._ask("Ironwood Cranes", "6 of SKU-4440")
        await self._hasten(drafted.run, 0.5)
        expired = await drafted.thread.becomes(drafted.card, "Expired", "nothing was done")
        await self._expect_sends(drafted.quote, 0)
        await drafted.thread.clicked(expired, "continue", MARCUS)
        await drafted.thread.shows("Nothing was continued", person=MARCUS, after=drafted.card["ts"])
        await drafted.thread.clicked(expired, "continue")
        await drafted.thread.loses(drafted.card, "continue")
        again = await self._drafted(drafted.thread, "Ironwood Cranes (4507)", after=drafted.card["ts"])
        _expect(again.quote == drafted.quote, f"another quote: {again.quote}")
        await self._approve(again)
        return drafted.named

    async def late_click(self) -> str:
        """Click on a card that has expired and still shows its buttons."""
        drafted = await self._ask("Castillo Packaging", "5 of SKU-4510")
        # Slack takes no edits until the click was made, so the page still shows the buttons.
        async with self._edits_held():
            await self._hasten(drafted.run, 0.3)
            await self.workspace.until(RITA, lambda _: _never_if(time.monotonic() < self._over_at), "the expiry")
            await drafted.thread.approve(await drafted.thread.now(drafted.card))
        await drafted.thread.shows("expired", "nothing was done", after=drafted.card["ts"])
        await drafted.thread.becomes(drafted.card, "Expired")
        await self._expect_sends(drafted.quote, 0)
        return drafted.named

    async def twice(self) -> str:
        """Deliver one event twice."""
        runs = len(await self._runs())
        await self.panel.pull("twice")
        drafted = await self._ask("Fairbanks Rail Services", "3 of SKU-4481")
        await self._approve(drafted)
        envelopes = [r for r in await self.workspace.journal() if r["kind"] == "envelope"]
        sent = Counter(r["envelope_id"] for r in envelopes)
        _expect(max(sent.values()) > 1, "the workspace delivered nothing twice")
        made = len(await self._runs()) - runs
        _expect(made == 1, f"{made} runs were started")
        return drafted.named

    async def books(self) -> str:
        """Hold the CRM's books, its mail and Atlas's runs against what was approved."""
        for drafted in self.settling:
            await drafted.thread.becomes(drafted.card, "✅ Done")
        sends = Counter(effect["quote"] for effect in await self._effects() if effect["kind"] == "send_quote")
        wanted = Counter(self.approved)
        _expect(sends == wanted, f"sent {dict(sends - wanted)} too often, {dict(wanted - sends)} too seldom")
        mails = Counter(mail["quote"] for mail in (await self.stage.ask_crm("GET", "/outbox"))["emails"])
        _expect(mails == wanted, f"mails {dict(mails)}, approved {dict(wanted)}")
        states = Counter((await self._runs()).values())
        _expect(not states["running"] and not states["suspended"], f"runs left: {dict(states)}")
        assert self.stage.records is not None
        open_actions = await self.stage.records.open_actions()
        _expect(open_actions == 0, f"{open_actions} writes of ended runs have no outcome")
        _expect(not states["failed"], f"{states['failed']} runs failed")
        total = sum(wanted.values())
        self.totals = [
            ("Runs", f"{sum(states.values())} ({', '.join(f'{n} {state}' for state, n in sorted(states.items()))})"),
            ("Approved", f"{total} · sent by the CRM {sum(sends.values())} · mails {sum(mails.values())} · none twice"),
            (
                "Killed",
                f"{len(self.recovered_s)} times · answered {max(self.recovered_s, default=0):.1f} s later at most",
            ),
        ]
        return f"{total} quotes · {sum(states.values())} runs"

    # ---- what steps share -------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def _edits_held(self) -> AsyncIterator[None]:
        fault = {"kind": "ratelimited", "method": "chat.update", "times": None, "retry_after": 1}
        await self.stage.ask_workspace("/faults", fault)
        try:
            yield
        finally:
            await self.stage.ask_workspace("/faults", {"clear": True})

    async def _ask(self, account: str, lines: str, *words: str) -> Drafted:
        thread = await Thread.opened(self.workspace, RITA, f"@Atlas draft and send a quote for {account}, {lines}")
        return await self._drafted(thread, account, *words)

    async def _drafted(self, thread: Thread, *words: str, after: str = "0") -> Drafted:
        card = await thread.card(*words, after=after)
        quote = re.search(r"Q-\d+", text_of(card))
        if quote is None:
            raise Off(f"the card names no quote: {text_of(card)[:200]}")
        return Drafted(thread, card, run_of(card), quote[0])

    async def _approve(self, drafted: Drafted) -> float:
        """Approve, see that it is done, and that the CRM sent it exactly once; return seconds from click to done."""
        began = time.monotonic()
        self.approved.append(drafted.quote)
        await drafted.thread.approve(drafted.card)
        await drafted.thread.becomes(drafted.card, "✅ Done")
        took_s = time.monotonic() - began
        await self._expect_sends(drafted.quote, 1)
        await drafted.thread.shows("was sent to", drafted.quote, after=drafted.card["ts"])
        return took_s

    async def _recovered(self, drafted: Drafted) -> str:
        began = time.monotonic()
        self.approved.append(drafted.quote)
        await drafted.thread.shows("was sent to", drafted.quote, after=drafted.card["ts"])
        took_s = time.monotonic() - began
        await self._expect_sends(drafted.quote, 1)
        # An edit of the card that the dead process had begun is done again when its lease is over: seen in the end.
        self.settling.append(drafted)
        self.recovered_s.append(took_s)
        return f"{drafted.quote} · done in {took_s:.1f} s"

    async def _hasten(self, run: str, seconds: float) -> None:
        assert self.stage.records is not None
        _expect(await self.stage.records.hasten(run, seconds), f"nothing of run {run} waits")
        self._over_at = time.monotonic() + seconds

    async def _runs(self) -> dict[str, str]:
        assert self.stage.records is not None
        return await self.stage.records.runs()

    async def _effects(self) -> list[Json]:
        effects: list[Json] = (await self.stage.ask_crm("GET", "/admin/effects"))["effects"]
        return effects

    async def _sends(self, quote: str) -> list[Json]:
        return [e for e in await self._effects() if e["kind"] == "send_quote" and e["quote"] == quote]

    async def _expect_sends(self, quote: str, times: int) -> None:
        sends = await self._sends(quote)
        _expect(len(sends) == times, f"the CRM sent {quote} {len(sends)} times, not {times}")


async def tell(stage: Stage, panel: Panel, say: Callable[[str], None]) -> bool:
    """Play every step and say one line for each; True when all went as they must."""
    story = Story(stage, panel)
    steps = story.steps()
    began = time.monotonic()
    failed: list[int] = []
    for number, (title, step) in enumerate(steps, 1):
        began_step = time.monotonic()
        facts, trouble = "", ""
        try:
            facts = await step()
        except Off as off:
            trouble = str(off)
        except (LeverStuck, *AWAY) as error:
            trouble = f"{type(error).__name__}: {error}"
        say(line(not trouble, number, title, facts, time.monotonic() - began_step))
        if trouble:
            failed.append(number)
            say(textwrap.indent("\n".join(_wrapped(trouble)), " " * 8))
        if number < len(steps):
            await panel.pull("calm")
    took_s = time.monotonic() - began
    say("  " + "─" * (WIDTH - 3))
    stage.keep_logs = bool(failed)
    if failed:
        say(f"  {len(failed)} of {len(steps)} steps are off: {', '.join(map(str, failed))} · {took_s:.0f} s")
        say(f"  Logs: {stage.place}")
    else:
        for name, total in story.totals:
            say(f"  {name:<9} {total}")
        say(f"  All {len(steps)} steps went as they must · {took_s:.0f} s")
    return not failed


def line(good: bool, number: int, title: str, facts: str, seconds: float) -> str:
    """Return one aligned line of at most 80 columns."""
    sign = "✓" if good else "✗"
    return f"  {sign} {number:>2}  {title:<41} {facts:<23} {seconds:>4.1f} s"


def _wrapped(text: str) -> list[str]:
    return [part for line_ in text.splitlines() for part in textwrap.wrap(line_, WIDTH - 8)]


def _expect(holds: bool, text: str) -> None:
    if not holds:
        raise Off(text)


def _never_if(not_yet: bool) -> bool:
    return not not_yet
