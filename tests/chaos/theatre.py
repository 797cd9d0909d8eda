"""One case: a database, a Slack, a target, people, and processes that die; what came of it.

Decides: when a process is replaced and what the people do who are waiting. Does not: know what a process does inside.
A person or Slack whose request was not answered repeats it, as they do in life. The failure it can cause: help that
real people do not give would hide a run that hangs; so everything here is a click, a message, or the passing of time.
"""

import asyncio
import os
import re
import shutil
import signal
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from decimal import Decimal
from itertools import count
from pathlib import Path
from typing import Any

import asyncpg

from bot.simulator import Simulator
from bot.simulator.workspace import MARCUS, RITA, SALES_DESK
from bot.slack import Installation, identify, web_client, web_session
from core.approvals import Clicker, Person, Via
from core.next_act import next_act
from core.run import Run, RunState, Suspension, SuspensionKind
from core.tools import Limits, User, UserGroup
from storage.desk_store import PgDesk
from tests.chaos.boundary import Call, Point, calls_of, read_log
from tests.chaos.clock import SharedClock
from tests.chaos.life import ALERTS, LEASE_S, LIFETIME_S, RETIRED, Setting
from tests.chaos.processes import Broke, Process, fork
from tests.chaos.target import NEEDS_APPROVAL, Target, Turn
from tests.chaos.warmth import warm_up
from tests.invariants import Effect, violations

# A killed process is noticed by its free lock and a beat this old, or by its lease.
QUICK_S = 4.5
MOST_ATTEMPTS = 12
MOST_ALONE = 60
_numbers = count(1)


async def _nothing_more(_: "Theatre") -> list[str]:
    return []


@dataclass(frozen=True)
class Scenario:
    """A story. *script*: what the model does for each request. *effects*: how many may have been done at its end.

    *ends*: states in which its runs may be then. *stance*: what people do with cards that come again ("approve",
    "decline"; "": nothing). *forgets*: its runs are removed before its end. *closed*: Slack refuses messages for good.
    *long*: what comes before an approved call is read after it in every case, not only in half of those with a fault.
    *check*: what must hold of it besides.
    """

    name: str
    play: Callable[["Theatre"], Awaitable[None]]
    script: dict[str, Sequence[Turn]]
    effects: tuple[int, ...]
    ends: tuple[str, ...] = ("answered",)
    stance: str = "approve"
    limits: Limits = field(default_factory=lambda: Limits(max_elapsed_s=10_000_000))
    forgets: bool = False
    closed: bool = False
    long: bool = False
    check: Callable[["Theatre"], Awaitable[list[str]]] = _nothing_more


@dataclass
class Report:
    """What came of a case. *fired*: the faults that happened. *wrong*: broken promises.

    *late_requests*: of processes that came back, each for a write that was given up as not done meanwhile.
    """

    scenario: str
    plan: tuple[Point, ...]
    fired: int = 0
    deaths: int = 0
    effects: int = 0
    requests: int = 0
    calls: list[Call] = field(default_factory=list)
    after_first_fault: list[Call] = field(default_factory=list)
    late_requests: int = 0
    acts_after: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)


# What a process that comes back late may touch: its own sign of life, the pace, the record of attempts.
ITS_OWN = ("workers", "pace", "audit", "watched")


class Theatre:
    """The case while it is played."""

    def __init__(self, setting: Setting, scenario: Scenario, slack: Simulator, house: "House", target: Target) -> None:
        self.setting = setting
        self.house = house
        self.quick = setting.quick
        self.scenario = scenario
        self.slack = slack
        self.desk = PgDesk(house.pool, now=setting.clock.now)
        self.target = target
        self.report = Report(scenario.name, setting.plan)
        self.process: Process | None = None
        self.frozen: list[Process] = []
        self.acked: Counter[tuple[str, str]] = Counter()
        self._may_freeze = any(point.fault == "freeze" for point in setting.plan)
        self._skipped = 0.0
        self.arrived_late = ""
        self.requested_late = ""
        self.thread = ""

    # -- processes --------------------------------------------------------------------------------------------

    async def do(self, command: str, **more: Any) -> dict[str, Any]:
        """Have a living process do *command*; whoever gets no answer asks again, of the next process."""
        for _ in range(MOST_ATTEMPTS):
            process = await self._alive()
            process.tell(do=command, **more)
            answer = await self._heard(process)
            if process in self.frozen:
                self.process = None
                await self._after_the_lease()
            elif answer is None:
                await self._replace(process)
            elif "unavailable" not in answer:
                return answer
        raise Broke(f"{command} was never answered")

    async def _heard(self, process: Process) -> dict[str, Any] | None:
        """Return its next answer; None: it is gone, or has just become one of the frozen."""
        if self._may_freeze and not self.frozen:
            frozen, answer = await process.heard_unless_frozen(self.setting.log)
            if frozen:
                self.frozen.append(process)
        else:
            answer = await process.heard()
        self._catch_up()
        return answer

    async def _after_the_lease(self) -> None:
        """Have another process take back what a frozen one held."""
        self.pass_time(LEASE_S + 1)
        await self.do("reap", quick=False)

    async def _alive(self) -> Process:
        self._catch_up()
        if self.process is None:
            self.process = await self.house.survivor(self.setting) or await fork(self.setting, "all")
        return self.process

    async def _replace(self, dead: Process) -> None:
        """Notice a process's end, and have another take back what it held."""
        killed = dead.bury()
        self.process = None
        if killed:
            self.report.deaths += 1
            await self._note_next_act()
            self.pass_time(QUICK_S if self.quick else LEASE_S + 1)
        await self.do("reap", quick=self.quick if killed else True)

    async def _note_next_act(self) -> None:
        """Note what the runs are to do next, by their rows at this death."""
        for run in await self.runs():
            view = await self.desk.show(run.id)
            if view is not None and run.state is RunState.RUNNING:
                act = type(next_act(view, timedelta(seconds=LIFETIME_S))).__name__
                states = ",".join(sorted(action.state.value for action in view.actions))
                self.report.acts_after.append(f"{act}({states})")

    def _catch_up(self) -> None:
        """Let Slack's clock follow."""
        ahead = self.setting.clock.ahead_s
        if ahead > self._skipped:
            self.slack.clock.advance(ahead - self._skipped)
            self._skipped = ahead

    def pass_time(self, seconds: float) -> None:
        """Let time pass."""
        self.setting.clock.skip(seconds)
        self._catch_up()

    async def deploy(self) -> None:
        """Replace the process by a new one, cleanly."""
        process = await self._alive()
        process.tell(do="leave")
        answer = await self._heard(process)
        if process in self.frozen:
            self.process = None
            await self._after_the_lease()
        elif answer is None:
            await self._replace(process)

    async def settle(self, *, deliver: bool = True) -> None:
        """Work until nothing is left to do; runs that take processes down get one of their own."""
        for _ in range(MOST_ALONE):
            answer = await self.do("settle", deliver=deliver)
            if not answer["alone"]:
                return
            for run in answer["alone"]:
                await self._carry_alone(run)
        raise Broke("runs want a process of their own again and again")

    async def _carry_alone(self, run: str) -> None:
        child = await fork(self.setting, "alone")
        for command in ({"do": "alone", "run": run}, {"do": "leave"}):
            child.tell(**command)
            answer = await self._heard(child)
            if child in self.frozen:
                await self._after_the_lease()
                return
            if answer is None:
                break
        killed = child.bury()
        if killed:
            self.report.deaths += 1
            self.pass_time(QUICK_S if self.quick else LEASE_S + 1)
        await self.do("reap", quick=self.quick if killed else True)

    # -- people -----------------------------------------------------------------------------------------------

    async def say(self, text: str, *, user: str = RITA, settle: bool = True) -> None:
        """Mention Atlas in the thread (the first opens it); Slack sends the event again until it is acked."""
        await self.do("put", event=await self.event(text, user))
        if settle:
            await self.settle()

    async def event(self, text: str, user: str = RITA) -> dict[str, Any]:
        """Return the event of a message that somebody has just posted in the thread."""
        message = await self.slack.post_as(user, SALES_DESK, text, self.thread or None)
        self.thread = self.thread or message["ts"]
        number = next(_numbers)
        return {
            "event_id": f"Ev{os.getpid()}_{number}",
            "kind": "mention",
            "team_id": self.team,
            "channel_id": SALES_DESK,
            "ts": message["ts"],
            "thread_ts": self.thread,
            "user_id": user,
            "text": text,
            "payload": {},
        }

    @property
    def team(self) -> str:
        """Return the workspace's id."""
        return self.slack.workspace.team_id

    async def open_cards(self, kind: SuspensionKind = SuspensionKind.APPROVAL) -> list[Suspension]:
        """Return the open suspensions, oldest first."""
        return [s for s, _ in await self.desk.pending() if s.kind is kind]

    async def runs(self) -> list[Run]:
        """Return all runs, newest first."""
        return await self.desk.runs(team_id=None, user_id=None, limit=100)

    async def click(
        self, card: Suspension, *, approve: bool = True, user: str = RITA, settle: bool = True
    ) -> str | None:
        """Press a button of a card; Slack shows an error until it is acked, and the person presses again."""
        answer = await self.do(
            "click", who=(self.team, user), suspension=card.id, token=card.token, digest=card.digest,
            approve=approve, reason=None if approve else "not now",
        )  # fmt: skip
        self.acked[card.id, user] += 1
        if settle:
            await self.settle()
        refusal: str | None = answer["refusal"]
        return refusal

    async def decide(self, *, approve: bool = True, users: Sequence[str] = (RITA,)) -> None:
        """Decide the open approvals, each by all of *users*, oldest first."""
        for card in await self.open_cards():
            for user in users:
                await self.click(card, approve=approve, user=user)

    async def outcome_cards(self) -> list[Suspension]:
        """Return the open cards that ask whether something happened."""
        return await self.open_cards(SuspensionKind.OUTCOME)

    async def approve_elsewhere(self, card: Suspension) -> None:
        """Approve in a process without a worker: the run waits to be claimed."""
        by = Clicker(RITA, Via.BUTTON, Person(User(team_id=self.team, user_id=RITA, name="Rita")))
        await self.desk.decide(card.id, card.token, card.digest, by, approve=True)

    async def say_meanwhile(self, tool: str, text: str) -> None:
        """Mention Atlas while *tool* executes; the drain takes it at once."""
        if not self.thread:
            self.thread = (await self.slack.post_as(RITA, SALES_DESK, "hello all"))["ts"]
        self.target.meanwhile(tool, do="put", event=await self.event(text))
        self.target.meanwhile(tool, do="mail")

    async def let_expire(self) -> None:
        """Let the time of every open card pass, and the job run."""
        self.pass_time(LIFETIME_S + 1)
        await self.do("expire")
        await self.settle()

    async def alerts(self) -> list[str]:
        """Return the places of the alerts that stand in the alert channel."""
        shown = [message.get("metadata") or {} for message in self.slack.bot_messages(ALERTS)]
        return [str(metadata["event_payload"]["place"]) for metadata in shown if "event_payload" in metadata]

    async def press_continue(self) -> None:
        """Press Continue on what is halted."""
        for run in await self.runs():
            if run.state is RunState.HALTED:
                await self.do("continue", who=(self.team, RITA), run=run.id, halt=run.halts)
        await self.settle()

    async def stop(self, user: str = RITA) -> None:
        """Press Stop."""
        for run in await self.runs():
            if run.state in (RunState.RUNNING, RunState.SUSPENDED):
                await self.do("stop", who=(self.team, user), run=run.id)
        await self.settle()

    async def rest(self) -> None:
        """Bring everything to its end: late interjections, cards that came again, outcomes that a person must tell."""
        for number, command in self.target.due_meanwhile():
            await self.do(**{"command": command.pop("do"), **command})
            self.target.was_done(number)
        for _ in range(MOST_ATTEMPTS):
            await self.settle()
            if asked := await self.open_cards(SuspensionKind.OUTCOME):
                for card in asked:
                    await self.tell_outcome(card)
            elif self.scenario.stance and (cards := await self.open_cards()):
                for card in cards:
                    for user in policy_users(card):
                        await self.click(card, approve=self.scenario.stance == "approve", user=user)
            else:
                return
        raise Broke("cards come again and again")

    async def tell_outcome(self, card: Suspension) -> None:
        """Look into the target system, and say on the card whether it happened."""
        view = await self.desk.show(card.run_id)
        assert view is not None
        keys = {action.idempotency_key for action in view.actions if action.call == card.call}
        happened = any(key in keys for key, _ in self.target.effects())
        await self.click(card, approve=happened)

    # -- processes that come back --------------------------------------------------------------------------------

    async def thaw(self) -> None:
        """Let what was frozen go on, long after others have finished its work; it may change nothing."""
        pool = self.house.pool
        for process in self.frozen:
            before, said, done = await everything(pool), self._posts(), len(self.target.effects())
            asked, in_flight = len(self.target.requested()), self.target.begun(process.pid)
            os.kill(process.pid, signal.SIGCONT)
            if await process.heard() is not None:
                process.end()
            else:
                process.bury()
            after = await everything(pool)
            for table, rows in before.items():
                if changed := [row for row in after[table] if row not in rows]:
                    self.report.wrong.append(f"what came back changed {table}: {changed}")
            await self._judge_late_posts(said, self._posts()[len(said) :])
            late = self.target.requested()[asked:]
            if len(late) > 1 or not set(late) <= in_flight:
                self.report.wrong.append(f"what came back requested {late}, while {in_flight} was in flight")
            await self._judge_late_request(self.target.effects()[done:])
        self.frozen = []

    async def _judge_late_request(self, done: list[tuple[str, str]]) -> None:
        """Let no more happen than the request that was in flight, of a write that is recorded as not done by now.

        Its run was stopped meanwhile, or a person said so: nobody asked for it again, so its key was new to the target.
        """
        if not done:
            return
        (key, _), *more = done
        action = await self.house.pool.fetchrow("select * from actions where idempotency_key = $1", key)
        if more or action is None or action["state"] != "failed":
            self.report.wrong.append(f"what came back had effects of its own: {done}")
            return
        self.report.late_requests += 1
        call = (action["run_id"], action["call_seq"], action["call_position"])
        self.requested_late = f"{call}: an effect, but its action says failed"

    async def _judge_alert(self, ts: str, given: dict[str, Any]) -> None:
        """Let an alert that was edited late look as it does when it is sent anew."""
        await self.house.pool.execute("update outbox set version = version + 1 where message_ts = $1", ts)
        await self.settle()
        anew = [
            r["args"] for r in self.slack.journal.records if r["kind"] == "request" and r["method"] == "chat.update"
        ]
        stands = next(request for request in reversed(anew) if request["ts"] == ts)
        anyway = [_VERSION.sub("", _look(request)) for request in (stands, given)]
        if anyway[0] != anyway[1]:
            self.report.wrong.append(f"what came back left an alert as {_look(given)}, not {_look(stands)}")

    async def _judge_late_posts(self, said: list[dict[str, Any]], posted: list[dict[str, Any]]) -> None:
        """Let no more come than the request to Slack that was in flight, and what puts it right again.

        Slack knows no keys: that one request arrives late. An edit that came over a newer one is followed by what
        stood before it.
        """
        point = self.setting.plan[0]
        if posted and point.call.startswith("Slack.") and point.phase == "before":
            in_flight, *posted = posted
            if point.call == "Slack.chat_postMessage":
                self.arrived_late = str(in_flight["metadata"]["event_payload"]["place"])
            else:
                stood = next(_look(given) for given in reversed(said) if given.get("ts") == in_flight["ts"])
                posted = [given for given in posted if _look(given) != stood or given["ts"] != in_flight["ts"]]
        # An edit whose lease was lost is followed by what is wanted now (see below). Of an alert, which tells its run's
        # last steps, that may be more than what stood.
        alerts = {given["ts"]: given for given in posted if given["channel"] == ALERTS and "ts" in given}
        for ts, given in alerts.items():
            await self._judge_alert(ts, given)
        posted = [given for given in posted if given not in alerts.values()]
        if posted:
            self.report.wrong.append(f"what came back posted: {posted}")

    def _posts(self) -> list[dict[str, Any]]:
        """Return what was posted, and what was edited into something else than it showed already.

        An edit whose lease was lost is sent again as what is wanted now, so that no older one can stand: from a process
        that comes back late, that is the text that stands.
        """
        shown: dict[tuple[str, str], str] = {}
        said: list[dict[str, Any]] = []
        for record in self.slack.journal.records:
            if record["kind"] != "request" or not record["method"].startswith("chat."):
                continue
            given = record["args"]
            place = (str(given.get("channel")), str(given.get("ts")))
            look = _look(given)
            if record["method"] == "chat.update" and shown.get(place) == look:
                continue
            shown[place] = look
            said.append(given)
        return said

    def _tells_of_late_post(self, line: str) -> bool:
        """Say whether *line* says no more than that one message arrived twice, the second time late."""
        alert = self.arrived_late.startswith("alert:") and "messages in the alert channel" in line
        return line == f"{self.arrived_late}: posted 2 times" or alert

    # -- judging ----------------------------------------------------------------------------------------------

    async def judge(self, pool: "asyncpg.Pool[asyncpg.Record]") -> None:
        """Hold everything against the invariants and the story's own end."""
        report = self.report
        done = self.target.effects()
        report.effects, report.requests = len(done), self.target.requests()
        wrong = await violations(
            pool, [Effect(key) for key, _ in done], self.slack, ALERTS, needs_approval=NEEDS_APPROVAL
        )
        recorded = Counter(
            (row["suspension_id"], row["by"]) for row in await pool.fetch('select suspension_id, "by" from audit')
        )
        wrong += [
            f"{times} acknowledged clicks of {user} on {card}, {recorded[card, user]} recorded"
            for (card, user), times in self.acked.items()
            if recorded[card, user] < times
        ]
        if self.requested_late:
            wrong = [line for line in wrong if line != self.requested_late]
        if self.arrived_late:
            wrong = [line for line in wrong if not self._tells_of_late_post(line)]
        if self.scenario.closed:
            wrong = [line for line in wrong if "Slack refused it" not in line]
        if len(done) - report.late_requests not in self.scenario.effects:
            wrong.append(f"{len(done)} effects, where {self.scenario.effects} may be: {done}")
        runs = await self.runs()
        for run in runs:
            if run.state.value not in self.scenario.ends:
                reason = run.halt_reason or run.fail_reason or ""
                wrong.append(f"run {run.id} is {run.state} {reason}, not {' or '.join(self.scenario.ends)}")
            if run.spend_usd > run.limits.max_spend_usd:
                wrong.append(f"run {run.id} spent {run.spend_usd} of {run.limits.max_spend_usd}")
        spent = sum((run.spend_usd for run in runs), Decimal(0))
        if self.target.billed() > spent and not self.scenario.forgets:
            wrong.append(f"the provider billed {self.target.billed()}, the runs know of {spent}")
        report.wrong += wrong


# Block ids carry the version of what they show.
_VERSION = re.compile(r"'block_id': 'v\d+")


def _look(given: dict[str, Any]) -> str:
    return f"{given.get('text')} {given.get('blocks')}"


async def everything(pool: "asyncpg.Pool[asyncpg.Record]") -> dict[str, list[str]]:
    """Return every row that a process which lost its claims may not touch."""
    tables = await pool.fetch(
        "select tablename from pg_tables where schemaname = 'public' and tablename <> all ($1)", list(ITS_OWN)
    )
    return {
        table: [row["row"] for row in await pool.fetch(f"select t::text as row from {table} t")]
        for (table,) in (tuple(row) for row in tables)
    }


def policy_users(card: Suspension) -> Sequence[str]:
    """Return who answers a card that came again."""
    by = card.policy.by
    if isinstance(by, UserGroup):
        return (MARCUS,)
    return by if isinstance(by, tuple) else (RITA,)


# Messages and trace hang on no key (storage/migrations/0002): a run's removal leaves them.
EMPTY = """
    delete from messages; delete from trace; delete from runs; delete from inbox; delete from outbox;
    delete from audit; delete from pace; delete from workers; delete from watched;
"""
TABLES = "runs, messages, suspensions, actions, trace, inbox, outbox, audit, pace, workers, watched"
_GONE_S = 30.0
# Rows that are gone stay in their pages until somebody clears them away.
CLEARED_EVERY = 50
OURS = "theatre"


class House:
    """A database in which one case after the other is played, and the connections that watch it."""

    def __init__(self, dsn: str, pool: "asyncpg.Pool[asyncpg.Record]", installation: Installation) -> None:
        self.dsn = dsn
        self.pool = pool
        self.installation = installation
        self.clock = SharedClock()
        self._played = 0
        self._survivor: Process | None = None

    async def survivor(self, setting: Setting) -> Process | None:
        """Return the process that outlived the last case, as one of this case; None: there is none."""
        process, self._survivor = self._survivor, None
        if process is not None:
            process.tell(do="begin", setting=setting.packed())
            await process.heard()
        return process

    async def retire(self, process: Process) -> None:
        """Keep a process that outlived its case for the next one, if it can be; else it ends."""
        process.tell(do="retire")
        answer = await process.heard()
        if answer is None or not answer["retired"]:
            process.end()
        else:
            self._survivor = process

    def close(self) -> None:
        """End what is left."""
        if self._survivor is not None:
            self._survivor.end()

    async def empty(self) -> None:
        """Empty the database once no process of an earlier case is connected to it any more."""
        self._played += 1
        async with self.pool.acquire() as connection:
            async with asyncio.timeout(_GONE_S):
                while await connection.fetchval(
                    "select count(*) from pg_stat_activity where datname = current_database()"
                    " and backend_type = 'client backend' and application_name <> all ($1)",
                    [OURS, RETIRED],
                ):
                    await asyncio.sleep(0.002)
            await connection.execute(EMPTY)
            if self._played % CLEARED_EVERY == 0:
                await connection.execute(f"vacuum {TABLES}")


@asynccontextmanager
async def house(dsn: str) -> AsyncIterator[House]:
    """Lend a house on a watched database."""
    await warm_up(dsn)
    async with Simulator() as slack, web_session() as session:
        installation = await identify(web_client(slack.workspace.bot_token, session, slack.api_url))
    async with asyncpg.create_pool(
        dsn, min_size=1, max_size=2, max_inactive_connection_lifetime=0, server_settings={"application_name": OURS}
    ) as pool:
        lent = House(dsn, pool, installation)
        try:
            yield lent
        finally:
            lent.close()


# ---- a case ----------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def theatre(house: House, scenario: Scenario, plan: tuple[Point, ...]) -> AsyncIterator[Theatre]:
    """Lend a theatre in a house, emptied first; its processes end with it."""
    place = Path(tempfile.mkdtemp(prefix="atlas-chaos-", dir="/tmp"))
    await house.empty()
    house.clock.reset()
    target = Target(place / "ledger", house.clock)
    if any(point.fault == "freeze" for point in plan):
        target.honour_keys()
    # A request on its way is the harder for whoever comes soon.
    late = any(point.phase == "late" for point in plan)
    toss = sum(map(ord, "".join(map(str, plan))))
    quick = late or toss % 2 == 0
    played: Theatre | None = None
    try:
        async with Simulator() as slack:
            setting = Setting(
                house.dsn,
                slack.api_url,
                slack.workspace.bot_token,
                place / "log",
                place / "ledger",
                house.clock,
                scenario.script,
                scenario.limits,
                plan,
                house.installation,
                quick,
                scenario.long or (bool(plan) and toss // 2 % 2 == 0),
            )
            played = Theatre(setting, scenario, slack, house, target)
            try:
                yield played
                if played.process is not None and not played.report.wrong:
                    await house.retire(played.process)
                    played.process = None
            finally:
                for process in (played.process, *played.frozen):
                    if process is not None:
                        process.end()
    finally:
        target.close()
        shutil.rmtree(place)


async def play(house: House, scenario: Scenario, plan: tuple[Point, ...] = ()) -> Report:
    """Play one case and return what came of it."""
    async with theatre(house, scenario, plan) as played:
        pool, report = house.pool, played.report
        try:
            await scenario.play(played)
            await played.rest()
            await played.thaw()
            await played.judge(pool)
            report.wrong += await scenario.check(played)
        except (AssertionError, TimeoutError) as error:
            report.wrong.append(f"{type(error).__name__}: {error}")
        log = read_log(played.setting.log)
        fired = [at for at, line in enumerate(log) if line["kind"] == "fired"]
        report.fired = len(fired)
        if not plan:
            report.calls = calls_of(log)
        if fired and [point.fault for point in plan] == ["kill"]:
            # The recovery: until everything is settled. What the story does then, it does as without a fault.
            settled = [at for at, line in enumerate(log) if at > fired[0] and line.get("settled")]
            report.after_first_fault = calls_of(log[fired[0] : settled[0] if settled else None])
        return report
