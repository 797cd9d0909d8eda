"""Socket Mode: two connections at all times, healed when the SDK cannot heal itself.

Decides: when a connection counts as dead. Does not: handle what arrives (the app does). Two connections because the
SDK closes the old socket before it opens the new one, and what Slack sends in between is lost to it. The failure it
can cause: after a refused handshake the SDK tries the same spent ticket for ever; the watchdog takes it away, and
replaces a client that stays dead. Source: slack_sdk 3.48, ``socket_mode.aiohttp``.
"""

import asyncio
import logging

from slack_bolt.adapter.socket_mode.aiohttp import AsyncSocketModeHandler
from slack_bolt.async_app import AsyncApp
from slack_sdk.socket_mode.aiohttp import SocketModeClient
from slack_sdk.socket_mode.request import SocketModeRequest

from bot.listeners.service import InFlight

log = logging.getLogger("atlas.socket")
SDK_LOG = logging.getLogger("atlas.socket.sdk")

PING_EVERY_S = 3.0
LOOK_EVERY_S = 0.5
NEW_TICKET_AFTER_S = 3.0
NEW_CLIENT_AFTER_S = 12.0


class _Counted(AsyncSocketModeHandler):
    """Bolt's handler, with every request counted until its ack is sent."""

    in_flight: InFlight
    leaving = False

    async def handle(self, client: SocketModeClient, req: SocketModeRequest) -> None:  # type: ignore[override]
        """Handle one envelope; when leaving, none: its ack could no longer be sent, so nothing of it may be stored."""
        if self.leaving:
            log.info("%s came while leaving; Slack sends it again, or tells the person", req.envelope_id)
            return
        async with self.in_flight.one():
            await super().handle(client, req)


class SlackSocket:
    """Keeps *count* connections of one app open. Call ``start``, then ``close``."""

    def __init__(self, app: AsyncApp, app_token: str, in_flight: InFlight, *, count: int = 2) -> None:
        self.app = app
        self.app_token = app_token
        self.in_flight = in_flight
        self.count = count
        self._handlers: list[_Counted] = []
        self._down_for: list[float] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._watchdog: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin to connect and return at once; ``connected`` tells when it is done."""
        for at in range(self.count):
            self._handlers.append(self._connect())
            self._down_for.append(0.0)
            log.debug("connection %d begins", at)
        self._watchdog = asyncio.create_task(self._watch())

    async def connected(self) -> bool:
        """Say whether at least one connection is up."""
        return await self.alive() > 0

    async def alive(self) -> int:
        """Return how many connections are up."""
        return sum([await handler.client.is_connected() for handler in self._handlers])

    async def close(self, drain_s: float = 3.0) -> None:
        """Take no more, let running listeners end and send their acks, for at most *drain_s*, then disconnect."""
        for handler in self._handlers:
            handler.leaving = True
        if not await self.in_flight.idle(drain_s):
            log.warning("%d listeners are still running; Slack sends their events again", self.in_flight.count)
        if self._watchdog is not None:
            self._watchdog.cancel()
            await asyncio.gather(self._watchdog, return_exceptions=True)
        for handler in self._handlers:
            await self._end(handler)
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _connect(self) -> _Counted:
        handler = _Counted(self.app, self.app_token, logger=SDK_LOG, ping_interval=PING_EVERY_S)
        handler.in_flight = self.in_flight
        task = asyncio.create_task(handler.connect_async())  # type: ignore[no-untyped-call]
        self._tasks.add(task)
        task.add_done_callback(self._connect_ended)
        return handler

    def _connect_ended(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.warning("a connection could not be made: %s; it is tried again", task.exception())

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            for at, handler in enumerate(self._handlers):
                if await handler.client.is_connected():
                    self._down_for[at] = 0.0
                    continue
                self._down_for[at] += LOOK_EVERY_S
                if self._down_for[at] >= NEW_CLIENT_AFTER_S:
                    log.warning("connection %d stays down; a new client takes its place", at)
                    self._handlers[at] = self._connect()
                    self._down_for[at] = 0.0
                    await self._end(handler)
                elif self._down_for[at] >= NEW_TICKET_AFTER_S:
                    # Its ticket may be spent; the SDK would try the same for ever.
                    handler.client.wss_uri = None

    async def _end(self, handler: _Counted) -> None:
        client = handler.client
        try:
            async with asyncio.timeout(3):
                await client.close()  # type: ignore[no-untyped-call]
        except (OSError, TimeoutError, RuntimeError) as error:
            log.info("a connection did not close cleanly: %s", error)
        tasks = [client.message_processor, client.message_receiver, client.current_session_monitor]
        ending = [task for task in tasks if task is not None]
        for task in ending:
            task.cancel()
        await asyncio.gather(*ending, return_exceptions=True)
