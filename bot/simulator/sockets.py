"""Socket Mode: up to ten WebSockets of one app, tickets, envelopes, acks, disconnects.

Decides which socket gets an envelope and whether an ack came in time. Faults are carried out here:
refused handshakes, forgotten acks, duplicate, withheld and reordered envelopes, silent loss.
Failure it can cause: an envelope given to a socket that is silently dead is only noticed after 3 s.
Frames are ASCII with JSON's escapes, so that half of a surrogate pair, which UTF-8 cannot carry, arrives as well.
Source: Slack, "Using Socket Mode"; frames as in slack-go's and bolt's captures.
"""

import asyncio
import contextlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from aiohttp import WSMsgType, web

from bot.simulator.clock import Clock
from bot.simulator.delivery import ACK_WINDOW_S, Parcel
from bot.simulator.faults import Faults
from bot.simulator.journal import Journal
from bot.simulator.tickets import SocketTickets, new_uuid

MAX_SOCKETS = 10
LIFE_S = 18_060
DEBUG_LIFE_S = 360
WARNING_S = 10
Reason = Literal["warning", "refresh_requested", "link_disabled", "too_many_websockets"]


@dataclass(eq=False)
class Socket:
    """One connection of the app. `silent`: neither side hears the other, nothing closes."""

    number: int
    ws: web.WebSocketResponse
    transport: asyncio.BaseTransport | None
    silent: bool = False
    closed: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass
class _Held:
    frames: list[dict[str, Any]] = field(default_factory=list)
    reordered: list[dict[str, Any]] = field(default_factory=list)


class SocketMode:
    """The server's end of Socket Mode; a `Transport`."""

    def __init__(self, clock: Clock, journal: Journal, faults: Faults, app_id: str) -> None:
        self._clock = clock
        self._journal = journal
        self._faults = faults
        self._app_id = app_id
        self.tickets = SocketTickets(clock)
        self.sockets: list[Socket] = []
        self.on_connected: list[Callable[[bool], None]] = []
        self._turn = 0
        self._count = 0
        self._waiting: dict[str, Parcel] = {}
        self._held = _Held()
        self.ack_window_s = ACK_WINDOW_S

    @property
    def connected(self) -> bool:
        """Whether at least one socket is open."""
        return bool(self.sockets)

    async def link(self, request: web.Request) -> web.StreamResponse:
        """Serve one WebSocket (`GET /link/?ticket=...`)."""
        if self._faults.take_socket("refuse_tickets"):
            self.tickets.redeem(request.query.get("ticket", ""))  # refused for good: burnt
            status = self._faults.sockets.refuse_status
            self._journal.write("socket", what="refused", status=status, reason="fault")
            return web.Response(status=status)
        debug = self.tickets.redeem(request.query.get("ticket", ""))
        if debug is None:
            self._journal.write("socket", what="refused", status=409, reason="ticket")
            return web.Response(status=409, text="ticket spent, expired or unknown")
        # pings are answered by hand: a silent socket must not pong; a hung client delays a close by 1 s at most
        ws = web.WebSocketResponse(autoping=False, max_msg_size=0, timeout=1.0)
        await ws.prepare(request)
        if len(self.sockets) >= MAX_SOCKETS:
            await ws.send_json(self._disconnect_frame("too_many_websockets"))
            await ws.close()
            self._journal.write("socket", what="refused", status=101, reason="too_many_websockets")
            return ws
        self._count += 1
        socket = Socket(self._count, ws, request.transport)
        life = DEBUG_LIFE_S if debug else LIFE_S
        await self._hello(socket, life)
        ageing = asyncio.ensure_future(self._age(socket, life))
        try:
            async for frame in ws:
                if frame.type == WSMsgType.PING and not socket.silent:
                    await ws.pong(frame.data)
                elif frame.type == WSMsgType.TEXT and not socket.silent:
                    self._received(socket, frame.data)
        finally:
            ageing.cancel()
            self._gone(socket)
        return ws

    async def attempt(self, parcel: Parcel) -> str | None:
        """Send one envelope to one socket and wait for its ack; see `Transport`."""
        if not self.sockets:
            return "not_connected"
        envelope = self._envelope(parcel)
        self._waiting[envelope["envelope_id"]] = parcel
        await self._send_or_hold(envelope)
        if await self._clock.within(parcel.acked, self.ack_window_s):
            return None
        return "timeout"

    async def disconnect(self, reason: Reason = "refresh_requested", count: int | None = None) -> None:
        """Send a disconnect frame on `count` sockets (None: all); close unless it is a warning."""
        for socket in self.sockets[:count]:
            await self._write(socket, self._disconnect_frame(reason))
            self._journal.write("socket", what="disconnect", number=socket.number, reason=reason)
            if reason != "warning":
                await self._close(socket)

    def silence(self, count: int | None = None) -> None:
        """Lose `count` connections (None: all) without a word: nothing passes, nothing closes."""
        for socket in self.sockets[:count]:
            socket.silent = True
            self._journal.write("socket", what="silent", number=socket.number)

    def cut(self, count: int | None = None) -> None:
        """Abort `count` TCP connections (None: all)."""
        for socket in self.sockets[:count]:
            self._journal.write("socket", what="cut", number=socket.number)
            if isinstance(socket.transport, asyncio.WriteTransport):
                socket.transport.abort()

    async def release(self) -> None:
        """Send the envelopes that were withheld, oldest first."""
        frames, self._held.frames = self._held.frames, []
        for frame in frames:
            await self._send(frame)

    async def replay(self, envelope: dict[str, Any], times: int = 1) -> None:
        """Send an envelope (from the journal) again, unchanged."""
        for _ in range(times):
            await self._send(envelope)

    async def close(self) -> None:
        """Close every socket."""
        for socket in list(self.sockets):
            await self._close(socket)

    async def _hello(self, socket: Socket, life: int) -> None:
        hello = {
            "type": "hello",
            "num_connections": len(self.sockets) + 1,
            "debug_info": {
                "host": "applink-simulator-1",
                "started": "2026-11-29 00:00:00.000",
                "build_number": 100,
                "approximate_connection_time": life,
            },
            "connection_info": {"app_id": self._app_id},
        }
        await self._write(socket, hello)
        self.sockets.append(socket)
        self._journal.write("socket", what="open", number=socket.number, open=len(self.sockets))
        self._tell()

    async def _age(self, socket: Socket, life: float) -> None:
        await self._clock.sleep(life - WARNING_S)
        await self._write(socket, self._disconnect_frame("warning"))
        await self._clock.sleep(WARNING_S)
        await self._write(socket, self._disconnect_frame("refresh_requested"))
        await self._close(socket)

    def _gone(self, socket: Socket) -> None:
        socket.closed.set()
        if socket in self.sockets:
            self.sockets.remove(socket)
            self._journal.write("socket", what="closed", number=socket.number, open=len(self.sockets))
            self._tell()

    def _tell(self) -> None:
        for listener in self.on_connected:
            listener(self.connected)

    def _disconnect_frame(self, reason: Reason) -> dict[str, Any]:
        return {
            "type": "disconnect",
            "reason": reason,
            "debug_info": {"host": "applink-simulator-1"},
        }

    def _envelope(self, parcel: Parcel) -> dict[str, Any]:
        envelope: dict[str, Any] = {
            "envelope_id": new_uuid(),
            "payload": parcel.payload,
            "type": parcel.type,
            "accepts_response_payload": parcel.accepts_response_payload,
        }
        if parcel.type == "events_api":
            envelope["retry_attempt"] = parcel.retry_attempt
            envelope["retry_reason"] = "timeout" if parcel.retry_attempt else ""
        return envelope

    async def _send_or_hold(self, envelope: dict[str, Any]) -> None:
        if self._faults.take_socket("withhold"):
            self._journal.write("fault", what="withhold", envelope_id=envelope["envelope_id"])
            self._held.frames.append(envelope)
            return
        if self._faults.take_socket("reorder"):
            self._held.reordered.append(envelope)
            if self._faults.sockets.reorder == 0:
                frames, self._held.reordered = self._held.reordered[::-1], []
                for frame in frames:
                    await self._send(frame)
            return
        await self._send(envelope)
        if self._faults.take_socket("duplicate"):
            await self._send(envelope)

    async def _send(self, envelope: dict[str, Any]) -> None:
        if not self.sockets:
            return
        socket = self.sockets[self._turn % len(self.sockets)]
        self._turn += 1
        self._journal.write(
            "envelope",
            socket=socket.number,
            lost=socket.silent,
            envelope_id=envelope["envelope_id"],
            envelope=envelope,
        )
        await self._write(socket, envelope)

    async def _write(self, socket: Socket, frame: dict[str, Any]) -> None:
        if socket.silent or socket.ws.closed:
            return
        # a socket that dies while it is written to is removed by its reader
        with contextlib.suppress(ConnectionError, RuntimeError):
            await socket.ws.send_str(json.dumps(frame))

    async def _close(self, socket: Socket) -> None:
        if socket.silent:
            if isinstance(socket.transport, asyncio.WriteTransport):
                socket.transport.abort()
        else:
            # drain=False: a client that reads nothing more must not hold up the others
            await socket.ws.close(drain=False)
        self._gone(socket)

    def _received(self, socket: Socket, text: str) -> None:
        try:
            frame = json.loads(text)
            envelope_id = str(frame["envelope_id"])
        except (ValueError, KeyError, TypeError):
            self._journal.write("socket", what="not_an_ack", number=socket.number, text=text[:500])
            return
        payload = frame.get("payload") or {}
        parcel = self._waiting.get(envelope_id)
        forgotten = parcel is not None and self._faults.take_socket("forget_acks")
        self._journal.write(
            "ack",
            envelope_id=envelope_id,
            socket=socket.number,
            payload=payload,
            known=parcel is not None,
            forgotten=forgotten,
            late=parcel is None or parcel.acked.done(),
        )
        if parcel is None or forgotten:
            return
        self._waiting.pop(envelope_id)
        if not parcel.acked.done():
            parcel.acked.set_result(payload if isinstance(payload, dict) else {"text": payload})
