"""The composition root: one process of Atlas, put together, started, and taken apart in order.

Decides: which adapters serve which port, and the order of start and stop. Does not: hold rules. The failure it can
cause: stopping in the wrong order loses grace (events acked after the drain stopped, runs cut before they are given
back); so ``Replica.stop`` names its order.
"""

import asyncio
import logging
import os
import secrets
import signal
import sys
import time
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg

from bot import garbage
from bot.app import build_app, events_route
from bot.delivery import Delivery
from bot.homes import Homes
from bot.listeners.service import InFlight
from bot.loading import Models, load_agent, load_model, route_of
from bot.loopwatch import LoopWatch
from bot.opening import Stores, rules_of, stores
from bot.people import SlackDirectory
from bot.policies import examine_policies
from bot.presence import Presence
from bot.scopes import SlackGroupScopes
from bot.settings import Settings
from bot.slack import CallFailed, Installation, identify, unreachable, web_client, web_session
from bot.socket import SlackSocket
from bot.texts import Texts
from bot.web import Web
from core.engine import Engine
from core.errors import Misconfigured, StoreUnavailable
from core.loop import Loop
from core.mail import Drain
from core.ports import Fence
from core.worker import Worker
from jobs.expire_suspensions import ExpireSuspensions
from jobs.heartbeat import Heartbeat
from jobs.reap_orphans import ReapOrphans
from jobs.remind import Remind
from jobs.retention import Retention
from jobs.scheduler import Schedule
from jobs.update_messages import UpdateMessages
from storage.pulse import Pulse

log = logging.getLogger("atlas")

# Crockford's base 32 without letters that are read as digits: a run id is typed by people.
ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"


class SystemClock:
    """This process's own time."""

    monotonic = staticmethod(time.monotonic)
    """Return seconds that only go forward."""

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        await asyncio.sleep(seconds)


class SystemNames:
    """Randomness from the operating system."""

    def run_id(self) -> str:
        """Return 8 characters, a digit among them: else "continue whatever" could not be told from a request."""
        while True:
            name = "".join(secrets.choice(ALPHABET) for _ in range(8))
            if any(character.isdigit() for character in name):
                return name

    def token(self, run_id: str) -> str:
        """Return "<run>.<128 bits>"."""
        return f"{run_id}.{secrets.token_urlsafe(16)}"


# -- one process ---------------------------------------------------------------------------------------------------

POOL_SIZE = 16
DRAIN_POLL_S = 0.25
QUICK_REAP_S = 0.5
DELIVER_EVERY_S = 2.0
PROGRESS_EVERY_S = 1.0
LINE_EVERY_S, LINE_TOLD = 5.0, 100
HOMES_EVERY_S = 2.0
DATABASE_EVERY_S = 1.0
REMIND_EVERY_S = 10.0
RETENTION_EVERY_S = 3600.0
GROUPS_EVERY_S = 300.0


def now_utc() -> datetime:
    """Return this process's wall clock, for texts only; the database's clock decides everything else."""
    return datetime.now(UTC)


class Replica:
    """One process of Atlas and what it runs. *role*: "all", "bot" (listeners, delivery) or "worker" (runs)."""

    def __init__(self, settings: Settings, opened: Stores, installation: Installation, session: Any, role: str) -> None:
        self.settings = settings
        self.stores = opened
        self.role = role
        self.agent = load_agent(settings.agent)
        self.models = Models(self.agent, settings.model)
        self.worker_id = str(uuid.uuid4())
        self.clock = SystemClock()
        self.names = SystemNames()
        self.installation = installation
        self.client = web_client(settings.bot_token, session, settings.slack_api_url)
        self.directory = SlackDirectory(self.client, installation, self.clock)
        if isinstance(self.agent.scopes, SlackGroupScopes):
            self.agent.scopes.bind(self.directory)
        kind = "alone" if role == "alone" else "worker"
        pooler = settings.behind_pooler
        key = secrets.randbits(62)
        self.pulse = Pulse(opened.dsn, self.worker_id, key, kind, pooler=pooler, pool=opened.pool)
        self.heartbeat = Heartbeat(self.pulse, self.clock, settings.lease_s)
        self.worker = Worker(
            self.worker_id,
            opened.worker,
            self.make_loop,
            self.clock,
            capacity=settings.runs_at_once,
            start_alone=start_alone,
            believed=lambda: self.heartbeat.believed,
        )
        room = self.worker if role in ("all", "worker") else None
        self.engine = Engine(self.agent, opened.desk, self.directory, rules_of(settings), room)
        self.in_flight = InFlight()
        self.presence = Presence(self.client, self.clock)
        self.delivery = Delivery(
            opened.outbox,
            self.client,
            installation,
            self.clock,
            now_utc,
            alert_channel=settings.alert_channel,
            groups=self.directory.group_ids,
            operators=settings.operators,
            members=self.directory,
            examples=self.agent.examples,
            presence=self.presence,
            owner=self.worker_id,
        )
        self.drain = Drain(
            self.engine,
            opened.desk,
            self.directory,
            Texts(),
            self.clock,
            self.names,
            route_of(self.agent, settings.model),
        )
        self.homes = Homes(
            self.engine,
            self.client,
            installation,
            self.clock,
            examples=self.agent.examples,
            groups=self.directory.group_ids,
        )
        self.mail_due = asyncio.Event()
        self.schedule = Schedule()
        self.loop_watch = LoopWatch()
        self.app = build_app(
            installation,
            self.engine,
            opened.inbox,
            self.homes,
            session,
            api_url=settings.slack_api_url,
            signing_secret="" if settings.socket_mode else settings.signing_secret,
            examples=self.agent.examples,
            groups=self.directory.group_ids,
            arrived=self.mail_due.set,
            heard=self.presence.heard,
            moved=self.moved,
            in_flight=self.in_flight,
        )
        self.connections = SlackSocket(self.app, settings.app_token, self.in_flight) if settings.socket_mode else None
        self.web = Web(settings.http_host, settings.http_port, self.readiness, self.metrics)
        self._tasks: list[asyncio.Task[None]] = []
        self._stopping = False

    def make_loop(self, fence: Fence) -> Loop:
        """Return the loop of one claim."""
        return Loop(
            fence,
            self.stores.worker,
            self.agent,
            self.models.default,
            self.directory,
            self.clock,
            self.names,
            lifetime=timedelta(seconds=self.settings.suspension_ttl_s),
            operators=self.settings.operators,
            model_for=self.models,
        )

    def moved(self) -> None:
        """Somebody's act was recorded: there may be work and messages to deliver."""
        self.worker.wake()
        self.delivery.wake()

    # -- start and stop ---------------------------------------------------------------------------------------

    async def start(self) -> str:
        """Start everything that the role runs; return the address of the HTTP port."""
        self.loop_watch.start()
        if self.role in ("all", "bot") and not self.settings.socket_mode:
            self.web.app.router.add_post("/slack/events", events_route(self.app))
        # Before anything is taken up: a port that is somebody else's refuses the start.
        address = await self.web.start()
        await self.heartbeat.beat()
        self._spawn(self.heartbeat.run(), "heartbeat")
        self._spawn(self._listen(), "hints")
        if self.role in ("all", "worker"):
            self._spawn(self.worker.run(), "worker")
        self._jobs()
        self.schedule.start()
        if self.role in ("all", "bot"):
            self._spawn(self._drain_mail(), "mail")
            self._spawn(self.delivery.run(), "delivery")
            self._spawn(self.presence.run(), "presence")
            self._spawn(self.directory.learn_groups(), "groups")
        if self.connections is not None and self.role in ("all", "bot"):
            await self.connections.start()
        return address

    def _spawn(self, work: Any, name: str) -> None:
        task = asyncio.create_task(work, name=name)
        task.add_done_callback(self._ended)
        self._tasks.append(task)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            # A part that died would leave its work undone in silence: the process leaves, and is started again.
            log.critical("%s ended: %r; this process leaves", task.get_name(), error)
            if not self._stopping:
                os.kill(os.getpid(), signal.SIGTERM)

    def _jobs(self) -> None:
        settings, maintenance = self.settings, self.stores.maintenance
        reaper = ReapOrphans(maintenance, self.heartbeat, settings.lease_s)
        expiry = ExpireSuspensions(maintenance)
        reminders = Remind(maintenance)
        retention = Retention(maintenance, self.clock)

        async def noticed() -> None:
            if (await reaper.run_once(quick=True)).reaped:
                self.moved()

        async def reminded() -> None:
            if await reminders.run_once():
                self.moved()

        async def expired() -> None:
            if await expiry.run_once():
                self.moved()

        self.schedule.every(settings.reap_every_s, "reap orphans", reaper.run_once)
        self.schedule.every(min(QUICK_REAP_S, settings.reap_every_s), "notice killed processes", noticed)
        self.schedule.every(settings.expire_every_s, "expire suspensions", expired)
        self.schedule.every(min(REMIND_EVERY_S, settings.expire_every_s), "remind", reminded)
        self.schedule.every(RETENTION_EVERY_S, "retention", retention.run_once)
        if self.role in ("all", "bot"):
            self.schedule.every(DELIVER_EVERY_S, "update messages", UpdateMessages(self.delivery).run_once)
            self.schedule.every(HOMES_EVERY_S, "refresh homes", self.homes.run_once)
            self.schedule.every(PROGRESS_EVERY_S, "refresh progress", self._refresh_progress)
            self.schedule.every(LINE_EVERY_S, "refresh places in line", self._refresh_line)
            # A card can mention, and so notify, only a group whose id is known.
            self.schedule.every(GROUPS_EVERY_S, "learn user groups", self.directory.learn_groups)

    async def _refresh_progress(self) -> None:
        if await self.stores.outbox.refresh_progress(50, PROGRESS_EVERY_S):
            self.delivery.wake()

    async def _refresh_line(self) -> None:
        if await self.stores.outbox.refresh_line(LINE_TOLD, 2 * LINE_EVERY_S):
            self.delivery.wake()

    async def _drain_mail(self) -> None:
        while True:
            self.mail_due.clear()
            taken = 0
            try:
                taken = await self.drain.once()
            except StoreUnavailable as error:
                log.warning("the inbox cannot be read: %s", error)
            if taken:
                self.moved()
                continue
            with suppress(TimeoutError):
                async with asyncio.timeout(DRAIN_POLL_S):
                    await self.mail_due.wait()

    async def _listen(self) -> None:
        """Take the database's hints (NOTIFY); polling stands behind every one of them."""
        if self.settings.behind_pooler:
            return
        while True:
            with suppress(OSError, asyncpg.PostgresError, asyncpg.InterfaceError, TimeoutError):
                connection = await asyncpg.connect(self.stores.dsn, timeout=5)
                try:
                    await connection.add_listener("atlas_work", lambda *_: self.worker.wake())
                    await connection.add_listener("atlas_outbox", lambda *_: self.delivery.wake())
                    gone = asyncio.Event()
                    connection.add_termination_listener(lambda *_, gone=gone: gone.set())
                    await gone.wait()
                finally:
                    connection.terminate()
            await asyncio.sleep(1.0)

    async def stop(self) -> None:
        """Leave: no new events, runs given back, jobs ended, what is owed delivered, and only then the last beat."""
        self._stopping = True
        if self.connections is not None and self.role in ("all", "bot"):
            await self.connections.close()
        await self.worker.drain()
        await self.schedule.stop()
        if self.role in ("all", "bot"):
            with suppress(StoreUnavailable, TimeoutError):
                async with asyncio.timeout(2.0):
                    await self.delivery.close()
        await self.web.stop()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.heartbeat.stop()
        self.loop_watch.stop()

    # -- what operators ask -----------------------------------------------------------------------------------

    async def readiness(self) -> dict[str, str]:
        """Return what is wrong, by part; empty when ready."""
        wrong: dict[str, str] = {}
        try:
            async with asyncio.timeout(2.0):
                if not await self.stores.maintenance.ready():
                    wrong["database"] = "read-only"
        except (StoreUnavailable, TimeoutError) as error:
            wrong["database"] = str(error) or "no answer"
        if self.connections is not None and self.role in ("all", "bot") and not await self.connections.connected():
            wrong["slack"] = "no Socket Mode connection"
        if self._stopping:
            wrong["process"] = "shutting down"
        return wrong

    async def metrics(self) -> dict[str, float]:
        """Return figures, by name without the atlas_ prefix."""
        figures: dict[str, float] = {
            "runs_here": self.worker.busy,
            "heartbeat_streak": self.heartbeat.streak,
            "event_loop_blocked_seconds": self.loop_watch.blocked_ms / 1000,
        }
        if self.connections is not None:
            figures["slack_connections"] = await self.connections.alive()
        try:
            counts = await self.stores.maintenance.counts()
        except StoreUnavailable:
            return figures | {"database_up": 0}
        figures |= {f'runs{{state="{state}"}}': number for state, number in counts.runs.items()}
        return figures | {
            "database_up": 1,
            "runs_claimable": counts.claimable,
            "outbox_owed": counts.owed,
            "outbox_oldest_owed_seconds": counts.oldest_owed_s,
            "outbox_refused": counts.refused,
            "suspensions_open": counts.open_suspensions,
            "inbox_unhandled": counts.unhandled_mail,
            "workers_alive": counts.workers_alive,
        }


@asynccontextmanager
async def replica(settings: Settings, role: str) -> AsyncIterator[Replica]:
    """Lend a replica that is put together and not started. Raises: Misconfigured, StoreUnavailable."""
    async with AsyncExitStack() as stack:
        agent = load_agent(settings.agent)
        load_model(agent, settings.model)  # before anything is opened: the likeliest mistake
        opened = await stack.enter_async_context(stores(settings, size=POOL_SIZE))
        session = await stack.enter_async_context(web_session())
        client = web_client(settings.bot_token, session, settings.slack_api_url)
        try:
            installation = await identify(client)
        except CallFailed as error:
            raise Misconfigured([unreachable(settings.slack_api_url, error.failure)]) from error
        if settings.socket_mode:
            await refused_app_token(settings, client)
        if role != "alone":
            # The worker that starts such a child has been checked itself.
            verdict = await examine_policies(agent, client, SlackDirectory(client, installation, SystemClock()))
            if verdict.problems:
                raise Misconfigured([f"ATLAS_AGENT={settings.agent}: {problem}" for problem in verdict.problems])
        yield Replica(settings, opened, installation, session, role)


async def refused_app_token(settings: Settings, client: Any) -> None:
    """Raise Misconfigured when Slack refuses the app token; Bolt itself would try again for ever."""
    from slack_sdk.errors import SlackApiError

    try:
        await client.apps_connections_open(app_token=settings.app_token)
    except SlackApiError as error:
        code = str(error.response.get("error"))
        if code in ("invalid_auth", "not_authed", "not_allowed_token_type", "token_revoked", "account_inactive"):
            fix = "make an app-level token with connections:write (xapp-…)"
            raise Misconfigured([f"SLACK_APP_TOKEN is refused by Slack ({code}): {fix}"]) from error


async def serve(settings: Settings, role: str = "all") -> int:
    """Run one process until SIGTERM or SIGINT, waiting for its database first; return the exit code.

    Raises: Misconfigured, StoreUnavailable (an embedded database that does not start)."""
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
    while not stopped.is_set():
        try:
            return await _serve(settings, role, stopped)
        except StoreUnavailable as error:
            if settings.database_url is None:
                raise
            await _wait_for_database(settings, str(error), stopped)
    return 0


async def _wait_for_database(settings: Settings, problem: str, stopped: asyncio.Event) -> None:
    """Say that the process is not ready, and why, until the database takes writes or the process is told to leave."""

    async def problems() -> dict[str, str]:
        return {"database": problem}

    async def figures() -> dict[str, float]:
        return {"database_up": 0}

    web = Web(settings.http_host, settings.http_port, problems, figures)
    try:
        with _port_named(settings):
            address = await web.start()
        log.warning("atlas waits for its database at %s", address)
        while not stopped.is_set():
            log.warning("the database: %s; check DATABASE_URL, and that PostgreSQL is running and lets you in", problem)
            with suppress(TimeoutError):
                async with asyncio.timeout(DATABASE_EVERY_S):
                    await stopped.wait()
            try:
                async with stores(settings, size=1) as opened:
                    if await opened.maintenance.ready():
                        return
                    problem = "read-only"
            except StoreUnavailable as error:
                problem = str(error)
    finally:
        await web.stop()


@contextmanager
def _port_named(settings: Settings) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        where = f"{settings.http_host}:{settings.http_port}"
        raise Misconfigured([f"cannot listen on {where} ({error}); set ATLAS_HTTP_HOST and ATLAS_HTTP_PORT"]) from error


async def _serve(settings: Settings, role: str, stopped: asyncio.Event) -> int:
    async with replica(settings, role) as running:
        try:
            with _port_named(settings):
                address = await running.start()
            garbage.settle()
            log.info("atlas serves %s as %s at %s", settings.agent, role, address)
            await stopped.wait()
            log.info("leaving")
        finally:
            await running.stop()
    return 0


# A clean leave of a child takes its tool's grace and a few commits; one whose event loop is blocked never leaves.
ALONE_LEAVES_WITHIN_S = 20.0


async def start_alone(run_id: str) -> None:
    """Carry one run in a child process; return when it has ended, killing it when cancelled.

    Raises: RuntimeError when it could not do its work (Slack or PostgreSQL away): the next one is not started at once.
    """
    child = await asyncio.create_subprocess_exec(sys.executable, "-m", "bot", "work-alone", run_id)
    try:
        if await child.wait() > 0:
            raise RuntimeError(f"the process that carries run {run_id} ended with exit code {child.returncode}")
    finally:
        if child.returncode is None:
            child.terminate()
            try:
                async with asyncio.timeout(ALONE_LEAVES_WITHIN_S):
                    await child.wait()
            except TimeoutError:
                log.error("run %s: its process does not leave; it is killed", run_id)
                child.kill()
                await child.wait()


async def work_alone(settings: Settings, run_id: str) -> int:
    """Claim one run and work on it until its next stop; the child of ``start_alone``."""
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
    async with replica(settings, "alone") as running:
        running.loop_watch.start()
        await running.heartbeat.beat()
        beating = asyncio.create_task(running.heartbeat.run())
        try:
            claimed = await running.stores.worker.claim_one(running.worker_id, run_id)
            if claimed is not None:
                running.worker.adopt(claimed.fence)
                leaving = asyncio.create_task(stopped.wait())
                working = asyncio.create_task(running.worker.until_idle())
                await asyncio.wait({leaving, working}, return_when=asyncio.FIRST_COMPLETED)
                leaving.cancel()
                working.cancel()
        finally:
            await running.worker.drain()
            beating.cancel()
            await asyncio.gather(beating, return_exceptions=True)
            await running.heartbeat.stop()
            running.loop_watch.stop()
    return 0
