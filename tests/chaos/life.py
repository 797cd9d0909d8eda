"""One process of Atlas as a case forks it: the production stores, engine, worker, drain, jobs and delivery.

Decides: in which order its parts work, so that a case is the same each time: mail, runs, deliveries, one after the
other until nothing is left to do. Does not: judge. It does what the theatre tells it over a socket, a line a command,
and dies where the plan says. The failure it can cause: composed otherwise than ``bot.wiring``, it would prove
something else; it uses the same classes and leaves out sockets, schedules and real time only.
"""

import asyncio
import json
import logging
import os
import pickle
import signal
import socket
import time
import traceback
from base64 import b64decode, b64encode
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import asyncpg

from bot.delivery import Delivery
from bot.people import SlackDirectory
from bot.simulator.workspace import DEALS, OSKAR
from bot.slack import Installation, web_client, web_session
from bot.texts import Texts
from bot.wiring import SystemNames
from core.approvals import Via
from core.engine import Actor, Engine, Rules
from core.errors import CouldNotCheck, StoreUnavailable
from core.loop import Loop
from core.mail import Drain
from core.ports import Fence, InboundEvent
from core.tools import Limits
from core.worker import Worker
from jobs.expire_suspensions import ExpireSuspensions
from jobs.heartbeat import BEATS_BEFORE_JUDGING, Heartbeat
from jobs.reap_orphans import ReapOrphans
from jobs.remind import Remind
from jobs.retention import Retention
from storage import database
from storage.database import open_pool
from storage.desk_store import PgDesk
from storage.inbox import PgInbox
from storage.maintenance import PgMaintenance
from storage.outbox import PgOutbox
from storage.worker_store import LONG_FROM, PgWorkerStore
from tests.chaos.boundary import LOOKING, Point, Stage, WiredLoop
from tests.chaos.clock import SharedClock
from tests.chaos.target import Scripted, Target, Turn, an_agent

LEASE_S = 90.0
LIFETIME_S = 1800.0
# Rounds of a settle before nobody believes that it ends; seconds that a dead process's lock may take to go.
MOST_ROUNDS = 300
LOCK_GONE_S = 40.0
# PostgreSQL's own clock cannot be skipped: what it bears of a stopped process for 15 s, it bears for 2 s here.
STALLED_S = 2.0
PATIENCE = "idle_in_transaction_session_timeout"
BORNE = database._SESSION[PATIENCE]
# Connections of a process: each one more that is made plans every statement anew, and takes longer than most cases.
POOL = 2
# What connections between two cases are called.
RETIRED = "retired"
OPERATORS = frozenset({OSKAR})
ALERTS = DEALS

Answer = dict[str, Any]


@dataclass(frozen=True)
class Setting:
    """What every process of a case shares."""

    dsn: str
    slack_url: str
    token: str
    log: Path
    ledger: Path
    clock: SharedClock
    script: dict[str, Sequence[Turn]]
    limits: Limits
    plan: tuple[Point, ...]
    installation: Installation
    quick: bool
    long: bool

    def packed(self) -> str:
        """Return everything but the clock, for a process that has it already."""
        return b64encode(pickle.dumps(replace(self, clock=None))).decode()  # type: ignore[arg-type]


class Stuck(AssertionError):
    """Something is left to do for ever."""


class OneAtATime(Worker):
    """A worker that works when told to, so that a case is the same each time."""

    async def work_off(self) -> int:
        """Claim and work until there is nothing to claim; return how many runs were claimed."""
        claimed = 0
        while found := await self._claim():
            claimed += found
            await self.until_idle()
        await self._claim_for_children()
        await self._look_for_strays()
        await self.until_idle()
        while self._children:
            await asyncio.wait(list(self._children.values()))
        return claimed


class _Pulse:
    """Beats by the case's clock."""

    def __init__(self, life: "Life") -> None:
        self.life = life

    async def beat(self) -> datetime:
        beat_at = await self.life.upkeep.beat(self.life.worker_id)
        if beat_at is None:
            await self.life.register()
        return beat_at or self.life.clock.now()

    async def end(self) -> None:
        await self.life.upkeep.unregister(self.life.worker_id)


class Life:
    """The parts of one process."""

    def __init__(self, setting: Setting, stage: Stage, role: str) -> None:
        self.setting = setting
        self.stage = stage
        self.role = role
        self.clock = setting.clock
        self.worker_id = str(uuid4())
        self.frozen = any(point.fault == "freeze" for point in setting.plan)
        self.lock_key = int.from_bytes(os.urandom(7), "big")
        self.target = Target(setting.ledger, setting.clock)
        self.leaving = asyncio.Event()
        self.eye: asyncpg.Connection[asyncpg.Record] | None = None
        self.kept: asyncpg.Pool[asyncpg.Record] | None = None
        self.wants_alone: list[str] = []
        stage.leave = self.leaving.set
        stage.clock = setting.clock.monotonic
        stage.interject = self._meanwhile

    async def open(self, loop: WiredLoop, former: "Life | None" = None) -> None:
        """Connect, register, and have the database for long enough to judge others by it.

        *former*: what this process was in another case; its connections to PostgreSQL go on.
        """
        setting, stage = self.setting, self.stage
        if former is not None:
            self.eye, self.kept = former.eye, former.kept
        if setting.quick and self.eye is None:
            loop.watching = False
            self.eye = await asyncpg.connect(setting.dsn)
        self.session = web_session()
        client = web_client(setting.token, self.session, setting.slack_url)
        installation = setting.installation
        loop.watching = True
        self.pool = self.kept = self.kept or await open_pool(setting.dsn, size=POOL)
        if self.frozen:
            await self._shorten_patience()
        looking = await self._open_to_look() if LOOKING in setting.plan else self.pool
        now = self.clock.now
        self.upkeep = PgMaintenance(self.pool, now=now, stalled_s=STALLED_S)
        long_from = 0 if setting.long else LONG_FROM
        self.worker_store = stage.port(
            "WorkerStore",
            PgWorkerStore(self.pool, now=now, long_from=long_from),
            PgWorkerStore(looking, now=now, long_from=long_from),
        )
        self.desk = stage.port("Desk", PgDesk(self.pool, now=now), PgDesk(looking, now=now))
        self.outbox = stage.port("Outbox", PgOutbox(self.pool, now=now), PgOutbox(looking, now=now))
        self.inbox = stage.port("Inbox", PgInbox(self.pool, now=now))
        self.sweeps = stage.port("Upkeep", self.upkeep, PgMaintenance(looking, now=now, stalled_s=STALLED_S))
        self.directory = stage.port("Directory", SlackDirectory(client, installation, self.clock))
        self.agent = an_agent(stage, self.target, setting.limits)
        self.model = Scripted(stage, self.target, setting.script)
        self.names = SystemNames()
        self.worker = OneAtATime(
            self.worker_id, self.worker_store, self.make_loop, self.clock, start_alone=self._start_alone
        )
        rules = Rules(lifetime=timedelta(seconds=LIFETIME_S), operators=OPERATORS)
        room = self.worker if self.role == "all" else None
        self.engine = Engine(self.agent, self.desk, self.directory, rules, room)
        self.drain = Drain(
            self.engine, self.desk, self.directory, Texts(), self.clock, self.names, {"model": "scripted"}
        )
        self.delivery = Delivery(
            self.outbox,
            stage.port("Slack", client),
            installation,
            self.clock,
            now,
            alert_channel=ALERTS,
            groups=self.directory.group_ids,
            operators=OPERATORS,
            members=self.directory,
            examples=self.agent.examples,
        )
        self.heartbeat = Heartbeat(_Pulse(self), self.clock, LEASE_S)
        self.reaper = ReapOrphans(self.sweeps, self.heartbeat, LEASE_S)
        for _ in range(BEATS_BEFORE_JUDGING):
            await self.heartbeat.beat()

    async def _shorten_patience(self) -> None:
        """Have every session of this process called as those of Atlas are, and a stopped one be borne for less long."""
        async with self.pool.acquire() as connection:
            borne = await connection.fetchval(f"show {PATIENCE}")
        assert borne in (BORNE, f"{STALLED_S:g}s"), f"{PATIENCE} is {borne}"
        database._SESSION[PATIENCE] = f"{STALLED_S:g}s"  # those that are opened later
        await self._tell_sessions(f"set application_name = 'atlas'; set {PATIENCE} = '{STALLED_S:g}s'")

    async def _tell_sessions(self, command: str) -> None:
        idle = [await self.pool.acquire() for _ in range(self.pool.get_size())]
        for connection in idle:
            await connection.execute(command)
            await self.pool.release(connection)

    async def _open_to_look(self) -> "asyncpg.Pool[asyncpg.Record]":
        """Open connections on which PostgreSQL refuses every write."""

        async def only_look(connection: Any) -> None:
            await connection.execute("set default_transaction_read_only = on")

        return await asyncpg.create_pool(self.setting.dsn, min_size=0, max_size=POOL, init=only_look)

    async def register(self) -> None:
        """Write this process's row, saying whether its session lock is held."""
        held = self.eye is not None and await self.upkeep.hold_lock(self.eye, self.lock_key)
        role = "alone" if self.role == "alone" else "worker"
        await self.upkeep.register(self.worker_id, "here", os.getpid(), role, self.lock_key, holds_lock=held)

    def make_loop(self, fence: Fence) -> Loop:
        """Return the loop of one claim, as bot.wiring makes it."""
        return Loop(
            fence,
            self.worker_store,
            self.agent,
            self.model,
            self.directory,
            self.clock,
            self.names,
            lifetime=timedelta(seconds=LIFETIME_S),
            operators=OPERATORS,
        )

    async def _start_alone(self, run_id: str) -> None:
        self.wants_alone.append(run_id)

    async def retire(self) -> bool:
        """Let go of the case; False: this process cannot play another one.

        One that has something left to do plays no other case. Connections that a fault hit are not kept.
        """
        if self.worker.busy or LOOKING in self.setting.plan:
            return False
        await self.session.close()
        self.target.close()
        if self.stage.fired:
            self.pool.terminate()
            self.kept = None
        else:
            database._SESSION[PATIENCE] = BORNE
            await self._tell_sessions(f"set application_name = '{RETIRED}'; set {PATIENCE} = '{BORNE}'")
        if self.eye is not None:
            await self.eye.execute(f"set application_name = '{RETIRED}'")
        return True

    # -- what the theatre asks for ----------------------------------------------------------------------------

    async def do(self, command: dict[str, Any]) -> Answer:
        """Do one command. An error of the store is an answer: whoever asked is not acked and asks again."""
        asked = dict(command)
        act = getattr(self, f"do_{asked.pop('do')}")
        try:
            answer: Answer = await act(**asked)
        except StoreUnavailable as error:
            return {"unavailable": str(error)}
        return answer

    async def do_put(self, event: dict[str, Any]) -> Answer:
        """Store an event before its ack."""
        return {"fresh": await self.inbox.put(InboundEvent(**event))}

    async def do_mail(self) -> Answer:
        """Drain the inbox once."""
        return {"taken": await self.drain.once()}

    async def do_click(
        self, who: tuple[str, str], suspension: str, token: str, digest: str | None, approve: bool, reason: str | None
    ) -> Answer:
        """Decide as somebody."""
        actor = Actor(*who, Via.BUTTON)
        decided = await self.engine.decide(actor, suspension, token, approve=approve, digest=digest, reason=reason)
        return {"refusal": decided.refusal}

    async def do_edit(self, who: tuple[str, str], suspension: str, token: str, arguments: dict[str, Any]) -> Answer:
        """Edit as somebody."""
        decided = await self.engine.edit(Actor(*who, Via.MODAL), suspension, token, arguments)
        return {"refusal": decided.refusal}

    async def do_continue(self, who: tuple[str, str], run: str, halt: int) -> Answer:
        """Press Continue."""
        continued = await self.engine.continue_run(Actor(*who, Via.BUTTON), run, halt)
        return {"continued": continued.run is not None}

    async def do_stop(self, who: tuple[str, str], run: str | None = None) -> Answer:
        """Press Stop."""
        return {"how": (await self.engine.stop_run(Actor(*who, Via.BUTTON), run)).how}

    async def do_home(self, who: tuple[str, str]) -> Answer:
        """Open the Home: what waits for somebody, and their runs."""
        actor = Actor(*who, Via.HOME)
        try:
            waits = len(await self.engine.pending(actor))
        except CouldNotCheck:
            waits = 0  # as bot.homes: it stays as it was, and is looked at again
        return {"waits": waits, "runs": len(await self.engine.runs(actor))}

    async def do_expire(self) -> Answer:
        """Run the expiry job."""
        return {"expired": await ExpireSuspensions(self.sweeps).run_once()}

    async def do_retention(self) -> Answer:
        """Run the retention job."""
        return {"removed": await Retention(self.sweeps, self.clock).run_once()}

    async def do_remind(self) -> Answer:
        """Run the job that reminds."""
        return {"reminded": await Remind(self.sweeps).run_once()}

    async def do_example(self, event: dict[str, Any], thread: str) -> Answer:
        """Store a click on an example before its ack."""
        return {"fresh": await self.inbox.put_click(InboundEvent(**event), thread)}

    async def do_welcome(self, who: tuple[str, str], channel: str) -> Answer:
        """Tell a newcomer what Atlas can do."""
        return {"told": await self.desk.welcome(*who, channel, "This is what I can do.")}

    async def do_acknowledge(self, who: tuple[str, str], place: str) -> Answer:
        """Take up an alert."""
        done = await self.engine.acknowledge(Actor(*who, Via.BUTTON), place)
        return {"known": done is not None}

    async def do_reap(self, quick: bool, patient: bool = True) -> Answer:
        """Take back what dead processes held."""
        reaped: list[str] = []
        await self.heartbeat.beat()
        until = time.monotonic() + LOCK_GONE_S
        while True:
            while not self.heartbeat.may_judge:  # a beat was lost with its connection, or is long ago by now
                await self.heartbeat.beat()
            reaped += (await self.reaper.run_once(quick=quick)).reaped
            left = await self.pool.fetchval(
                "select count(*) from runs where claimed_by is not null and claimed_by <> $1", self.worker_id
            )
            if not patient or not (left or await self._locked_out()):
                return {"reaped": reaped}
            if time.monotonic() > until:
                raise Stuck(f"{left} runs stay with the dead: {await self._left()}; {await self._sessions()}")
            await asyncio.sleep(0.005)  # the server has not noticed yet that its client is gone

    async def do_alone(self, run: str) -> Answer:
        """Carry one run, as the child process of bot.wiring.work_alone does."""
        claimed = await self.worker_store.claim_one(self.worker_id, run)
        if claimed is not None:
            self.worker.adopt(claimed.fence)
            await self.worker.until_idle()
        return {"claimed": claimed is not None}

    async def do_settle(self, deliver: bool = True) -> Answer:
        """Work until nothing is left to do, skipping to what is due later."""
        await self.heartbeat.beat()
        for _ in range(MOST_ROUNDS):
            did = 0
            for part in (
                (self.drain.once, self._work_off, self._deliver) if deliver else (self.drain.once, self._work_off)
            ):
                try:
                    did += await part()
                except StoreUnavailable:
                    did += 1  # as the process's own loops: looked at again
            if self.wants_alone:
                alone, self.wants_alone = self.wants_alone, []
                return {"alone": alone}
            if did == 0 and not await self._skip_to_next(deliver=deliver):
                return {"alone": []}
        raise Stuck(f"still something to do after {MOST_ROUNDS} rounds: {await self._left()}")

    async def _work_off(self) -> int:
        claimed = await self.worker.work_off()
        await self.worker.until_idle()
        return claimed

    async def _deliver(self) -> int:
        # What comes back late may resend the one request that was in flight, so there must be no second one.
        return await self.delivery.run_once(1 if self.frozen else 20)

    async def _skip_to_next(self, *, deliver: bool) -> bool:
        """Skip to the next thing that is due; False: nothing is."""
        now = self.clock.now()
        due = await self.pool.fetchval(
            """select min(at) from (
                select greatest(next_attempt_at, leased_until) as at from inbox
                where handled_at is null and run_id is null and thread_ts <> ''
                union all
                select greatest(next_attempt_at, leased_until) from outbox
                where $1 and version > delivered_version and refused_at is null
                union all
                select $2::timestamptz + interval '1 second' from runs where state = 'running' and claimed_by is null
                union all
                select $2::timestamptz + interval '5 seconds' from runs where claimed_by = $3
            ) due""",
            deliver,
            now,
            self.worker_id,
        )
        if due is None:
            return False
        self.clock.skip((due - now).total_seconds() + 0.001)
        return True

    async def _locked_out(self) -> bool:
        """Say whether a stopped process is in a transaction: what it locked is due to nobody until that ends."""
        return self.frozen and await self.pool.fetchval(
            """select exists (select from pg_stat_activity where datname = current_database()
                              and application_name = 'atlas' and xact_start is not null and pid <> pg_backend_pid())"""
        )

    async def _sessions(self) -> str:
        """Tell what the other sessions are at, for whoever looks for what holds a case up."""
        rows = await self.pool.fetch(
            """select concat_ws(' ', application_name, state, wait_event, left(query, 60)) as what
               from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"""
        )
        return "; ".join(row["what"] for row in rows)

    async def _left(self) -> str:
        rows = await self.pool.fetch(
            """select 'letter ' || id || ' is not handled' as what from inbox where handled_at is null
               union all
               select place || ' is owed' from outbox where version > delivered_version and refused_at is null
               union all
               select id || case when claimed_by is null then ' is running and not claimed'
                   else ' is claimed by a living process and not worked on' end from runs where state = 'running'"""
        )
        return "; ".join(row["what"] for row in rows)

    async def _meanwhile(self, tool: str) -> None:
        for number, command in self.target.due_meanwhile(tool):
            if command["do"] == "leave":
                self.target.was_done(number)
            await self.do(command)
            self.target.was_done(number)

    async def do_leave(self) -> Answer:
        """Leave cleanly, as at a deploy; the process ends without an answer."""
        self.leaving.set()
        return {}

    async def leave(self) -> None:
        """Give runs back and end, in the order of bot.wiring.Process.stop."""
        await self.worker.drain()
        with suppress(StoreUnavailable):
            await self.delivery.close()
        await self.heartbeat.stop()


async def _serve(setting: Setting, role: str, line: socket.socket, loop: WiredLoop) -> None:
    life = Life(setting, loop.stage, role)
    reader, writer = await asyncio.open_connection(sock=line)
    try:
        loop.stage.note("born")
        await life.open(loop)
        writer.write(b'{"born": true}\n')
        leaving = asyncio.create_task(life.leaving.wait())
        while raw := await reader.readline():
            command = json.loads(raw)
            if command["do"] == "retire":
                writer.write((json.dumps({"retired": await life.retire()}) + "\n").encode())
                continue
            if command["do"] == "begin":
                life = await _begin(life, command["setting"], loop)
                leaving.cancel()
                leaving = asyncio.create_task(life.leaving.wait())
                writer.write(b'{"born": true}\n')
                continue
            doing = asyncio.create_task(life.do(command))
            await asyncio.wait({doing, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if life.leaving.is_set():
                await life.leave()
                return
            answer = await doing
            loop.stage.note("told", settled=command["do"] == "settle" and answer.get("alone") == [])
            writer.write((json.dumps(answer, default=str) + "\n").encode())
    except Exception as error:  # noqa: BLE001  whatever it is, the case is told; a silent end would look like a fault
        why = "".join(traceback.format_exception(error)[-2:])
        writer.write((json.dumps({"broke": f"{type(error).__name__}: {error}: {why}"}) + "\n").encode())
        await writer.drain()


async def _begin(former: Life, setting: str, loop: WiredLoop) -> Life:
    """Be the process of another case: everything is made anew, but for the connections to PostgreSQL."""
    given: Setting = replace(pickle.loads(b64decode(setting)), clock=former.clock)
    stage = Stage(given.log, given.plan)
    stage.transports = loop.stage.transports
    os.close(loop.stage.log)
    loop.stage = stage
    stage.note("born")
    life = Life(given, stage, former.role)
    await life.open(loop, former)
    return life


def live(setting: Setting, role: str, line: socket.socket) -> None:
    """Be a process of Atlas until told to leave, killed, or cut off from the theatre. Never returns."""
    code = 1
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        logging.disable(logging.CRITICAL)
        stage = Stage(setting.log, setting.plan)
        loop = WiredLoop(stage)
        asyncio.set_event_loop(loop)
        loop.run_until_complete(_serve(setting, role, line, loop))
        code = 0
    finally:
        os._exit(code)
