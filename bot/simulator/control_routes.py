"""HTTP routes for tests in other processes: journal, waiting, faults, sockets, clock, world.

Decides nothing about Slack. A foreign page cannot use them: they take JSON only, from a loopback
Host. Failure it can cause: whoever reaches this port can move the clock and spoil calls.
"""

import json
from collections.abc import Awaitable, Callable

from aiohttp import web

from bot.simulator.clock import Clock
from bot.simulator.faults import Faults
from bot.simulator.journal import Journal, matches
from bot.simulator.loopback import Body, json_body, only_loopback
from bot.simulator.sockets import SocketMode

MAX_WAIT_S = 60.0


class ControlRoutes:
    """Routes `/journal`, `/wait`, `/faults`, `/sockets`, `/clock`, `/world` and `/send`."""

    def __init__(
        self,
        journal: Journal,
        faults: Faults,
        sockets: SocketMode,
        clock: Clock,
        advance: Callable[[float], None],
        change_world: Callable[[Body], None],
        send: Callable[[Body], str],
    ) -> None:
        self._journal_records = journal
        self._pending = faults
        self._socket_mode = sockets
        self._time = clock
        self._advance = advance
        self._change_world = change_world
        self._send = send

    def add_to(self, app: web.Application) -> None:
        """Register every route."""
        controls: dict[str, Callable[[Body], Awaitable[Body]]] = {
            "/faults": self._faults,
            "/clock": self._clock,
            "/sockets": self._sockets_control,
            "/world": self._world,
            "/wait": self._wait,
            "/send": self._send_raw,
        }
        for path, control in controls.items():
            app.router.add_post(path, self._control(control))
        app.router.add_get("/journal", self._journal)
        app.router.add_get("/faults", self._faults_listing)

    def _control(self, control: Callable[[Body], Awaitable[Body]]) -> Callable[[web.Request], Awaitable[web.Response]]:
        async def handler(request: web.Request) -> web.Response:
            only_loopback(request)
            if request.content_type != "application/json":
                # a foreign page cannot send this type without asking first, and is never answered
                raise web.HTTPUnsupportedMediaType(text="application/json is expected")
            body = await json_body(request)
            try:
                return web.json_response(await control(body))
            except (KeyError, TypeError, ValueError) as error:
                raise web.HTTPBadRequest(text=f"{type(error).__name__}: {error}") from error

        return handler

    async def _journal(self, request: web.Request) -> web.Response:
        only_loopback(request)
        since = int(request.query.get("since", "0"))
        records = self._journal_records.since(since)
        kind = request.query.get("kind")
        if kind:
            records = [record for record in records if record["kind"] == kind]
        answer = {"records": records, "next": self._journal_records.last}
        return web.json_response(answer, dumps=lambda value: json.dumps(value, default=str))

    async def _wait(self, body: Body) -> Body:
        """Long-poll: {match: {...}, since?, timeout?} -> the first record that contains it."""
        timeout = min(float(body.get("timeout", 10.0)), MAX_WAIT_S)
        record = await self._journal_records.wait(dict(body.get("match", {})), int(body.get("since", 0)), timeout)
        return {"ok": record is not None, "record": record, "next": self._journal_records.last}

    async def _faults_listing(self, request: web.Request) -> web.Response:
        return web.json_response(self._pending.listing())

    async def _faults(self, body: Body) -> Body:
        """{kind, method?, times?, ...} | {socket: name, times?, ...} | {clear: true}."""
        faults = self._pending
        if body.get("clear"):
            faults.clear()
        elif "socket" in body:
            await self._socket_fault(dict(body))
        else:
            faults.add(**body)
        return {"ok": True, **faults.listing()}

    async def _socket_fault(self, body: Body) -> None:
        name = body.pop("socket")
        if name in ("disconnect", "silence", "cut", "release"):
            await self._sockets_control({"do": name, **body})
            return
        sockets = self._pending.sockets
        if name not in vars(sockets) or name == "refuse_status":
            raise ValueError(f"unknown socket fault {name!r}")
        setattr(sockets, name, int(body.get("times", 1)))
        if "status" in body:
            sockets.refuse_status = int(body["status"])

    async def _clock(self, body: Body) -> Body:
        self._advance(float(body["advance"]))
        return {"ok": True, "now": self._time.now()}

    async def _sockets_control(self, body: Body) -> Body:
        """{do: disconnect|silence|cut|release|replay, reason?, count?, envelope_id?, times?}."""
        sockets = self._socket_mode
        count = body.get("count")
        if body["do"] == "disconnect":
            await sockets.disconnect(body.get("reason", "refresh_requested"), count)
        elif body["do"] == "silence":
            sockets.silence(count)
        elif body["do"] == "cut":
            sockets.cut(count)
        elif body["do"] == "release":
            await sockets.release()
        elif body["do"] == "replay":
            pattern = {"kind": "envelope", "envelope_id": body["envelope_id"]}
            sent = [r for r in self._journal_records.records if matches(r, pattern)]
            if not sent:
                raise ValueError("no such envelope")
            await sockets.replay(sent[0]["envelope"], int(body.get("times", 1)))
        else:
            raise ValueError(f"unknown: {body['do']}")
        return {"ok": True, "open": len(sockets.sockets)}

    async def _send_raw(self, body: Body) -> Body:
        """{event, wrapper?} | {kind, payload}: send a payload as it stands -> its id."""
        return {"ok": True, "id": self._send(body)}

    async def _world(self, body: Body) -> Body:
        """{person, set: {...}} | {group, users: [...]} | {channel, set: {...}} | {token_error}."""
        self._change_world(body)
        return {"ok": True}
