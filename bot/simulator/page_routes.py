"""HTTP routes of the page and of tests in other processes.

Decides nothing about Slack: it turns requests into acts, snapshots, faults and clock moves. Only
pages of this server may post (a header that no foreign page can send, a loopback Host).
Failure it can cause: whoever reaches this port can act as anyone; it listens on loopback only.
"""

import json
import mimetypes
from collections.abc import Awaitable, Callable
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import aiohttp
from aiohttp import WSMsgType, web

from bot.simulator.acts import ActRefused
from bot.simulator.journal import matches

if TYPE_CHECKING:
    from bot.simulator.server import Simulator

HEADER = "X-Atlas-Page"
LOOPBACK = ("127.0.0.1", "localhost", "[::1]", "::1")
Body = dict[str, Any]
MAX_WAIT_S = 60.0


class PageRoutes:
    """Routes under `/`, `/static`, `/page`, `/panel`, and `/journal`, `/wait`, `/faults`, ..."""

    def __init__(self, simulator: "Simulator", panel_url: str | None) -> None:
        self._simulator = simulator
        self._panel_url = panel_url.rstrip("/") if panel_url else None
        self._session: aiohttp.ClientSession | None = None
        self._sockets: set[web.WebSocketResponse] = set()

    def add_to(self, app: web.Application) -> None:
        """Register every route."""
        posts: dict[str, Callable[[Body], Any]] = {
            "/page/post": self._post,
            "/page/click": self._click,
            "/page/command": self._command,
            "/page/view_submit": self._submit,
            "/page/view_close": self._view_close,
            "/page/home_open": self._home_open,
            "/page/dm": self._dm,
            "/page/edit": self._edit,
            "/page/delete": self._delete,
            "/page/read": self._read,
        }
        for path, act in posts.items():
            app.router.add_post(path, self._act(act))
        controls: dict[str, Callable[[Body], Awaitable[Body]]] = {
            "/faults": self._faults,
            "/clock": self._clock,
            "/sockets": self._sockets_control,
            "/world": self._world,
        }
        for path, control in controls.items():
            app.router.add_post(path, self._control(control))
        app.router.add_get("/", self._index)
        app.router.add_get("/archives/{channel}/p{ts}", self._archive)
        app.router.add_get("/static/{path:.+}", self._static)
        app.router.add_get("/page/state", self._state)
        app.router.add_get("/page/live", self._live)
        app.router.add_get("/panel/state", self._panel_state)
        app.router.add_post("/panel/set", self._panel_set)
        app.router.add_get("/journal", self._journal)
        app.router.add_post("/wait", self._control(self._wait))
        app.router.add_get("/faults", self._faults_listing)

    async def close(self) -> None:
        """Close the panel's client session and every page's socket."""
        for ws in list(self._sockets):
            await ws.close(drain=False)
        if self._session is not None:
            await self._session.close()

    # --- the page ------------------------------------------------------------------------------

    async def _index(self, request: web.Request) -> web.Response:
        _only_loopback(request)
        return _page_file("index.html")

    async def _archive(self, request: web.Request) -> web.Response:
        """Lead a permalink to the page: `/?channel=C&ts=T[&thread_ts=T]`."""
        digits = request.match_info["ts"]
        place = f"channel={request.match_info['channel']}&ts={digits[:-6]}.{digits[-6:]}"
        thread = request.query.get("thread_ts", "")
        if thread.replace(".", "").isdigit():
            place += f"&thread_ts={thread}"
        raise web.HTTPFound(f"/?{place}")

    async def _static(self, request: web.Request) -> web.Response:
        _only_loopback(request)
        return _page_file(request.match_info["path"])

    async def _state(self, request: web.Request) -> web.Response:
        _only_loopback(request)
        # a page that was opened without saying as whom begins as the first person
        first = next(person.id for person in self._simulator.workspace.people if person.kind != "bot")
        user = self._user(request.query.get("as") or first)
        return web.json_response(self._simulator.live.snapshot(user))

    async def _live(self, request: web.Request) -> web.StreamResponse:
        _only_loopback(request)
        user = self._user(request.query.get("as", ""))
        origin = request.headers.get("Origin")
        if origin is not None and origin.split("//", 1)[-1] != request.host:
            raise web.HTTPForbidden(text="foreign page")
        ws = web.WebSocketResponse(heartbeat=20)
        await ws.prepare(request)
        queue = self._simulator.live.subscribe(user)
        self._sockets.add(ws)

        async def pump() -> None:
            while (frame := await queue.get()) is not None:
                await ws.send_str(json.dumps(frame, ensure_ascii=False))
            await ws.close()

        pumping = self._simulator.background(pump())
        try:
            async for message in ws:
                if message.type in (WSMsgType.CLOSE, WSMsgType.ERROR):
                    break
        finally:
            pumping.cancel()
            self._sockets.discard(ws)
            self._simulator.live.unsubscribe(queue)
        return ws

    def _act(self, act: Callable[[Body], Any]) -> Callable[[web.Request], Awaitable[web.Response]]:
        async def handler(request: web.Request) -> web.Response:
            _only_loopback(request)
            if request.headers.get(HEADER) != "1":
                raise web.HTTPForbidden(text=f"the header {HEADER}: 1 is missing")
            body = await _json(request)
            try:
                answer = act(body)
            except ActRefused as refused:
                answer = {"ok": False, "error": refused.code, "text": refused.text}
                if refused.errors:
                    answer["errors"] = refused.errors
            except KeyError as missing:
                raise web.HTTPBadRequest(text=f"missing: {missing}") from missing
            return web.json_response(answer)

        return handler

    def _post(self, body: Body) -> Body:
        text, thread_ts = str(body["text"]), body.get("thread_ts")
        if text.startswith("/") and not thread_ts:
            name, _, rest = text.partition(" ")
            return self._command({**body, "command": name, "text": rest})
        message = self._simulator.acts.post(body["as"], body["channel"], text, thread_ts)
        return {"ok": True, "ts": message["ts"]}

    def _click(self, body: Body) -> Body:
        interaction = self._simulator.acts.click(
            body["as"],
            body["action_id"],
            channel=body.get("channel"),
            ts=body.get("message_ts"),
            view_id=body.get("view_id"),
            home=bool(body.get("home")),
            block_id=body.get("block_id"),
            selected=body.get("selected"),
            values=body.get("state_values"),
        )
        return {"ok": True, "interaction_id": interaction.id}

    def _command(self, body: Body) -> Body:
        interaction = self._simulator.acts.command(
            body["as"], body["channel"], body["command"], str(body.get("text", ""))
        )
        return {"ok": True, "interaction_id": interaction.id}

    def _submit(self, body: Body) -> Body:
        interaction = self._simulator.acts.submit(body["as"], body["view_id"], body.get("values") or {})
        return {"ok": True, "interaction_id": interaction.id}

    def _view_close(self, body: Body) -> Body:
        self._simulator.acts.close_view(body["as"], body["view_id"], bool(body.get("all")))
        return {"ok": True}

    def _home_open(self, body: Body) -> Body:
        self._simulator.acts.open_home(body["as"], str(body.get("tab", "home")))
        return {"ok": True}

    def _dm(self, body: Body) -> Body:
        return {"ok": True, "channel": self._simulator.acts.open_dm(body["as"]).id}

    def _edit(self, body: Body) -> Body:
        self._simulator.acts.edit(body["as"], body["channel"], body["ts"], str(body["text"]))
        return {"ok": True}

    def _delete(self, body: Body) -> Body:
        self._simulator.acts.delete(body["as"], body["channel"], body["ts"])
        return {"ok": True}

    def _read(self, body: Body) -> Body:
        self._simulator.live.read(body["as"], body["channel"])
        return {"ok": True}

    # --- the panel -----------------------------------------------------------------------------

    async def _panel_state(self, request: web.Request) -> web.Response:
        return await self._forward("GET", "/panel/state", None)

    async def _panel_set(self, request: web.Request) -> web.Response:
        _only_loopback(request)
        if request.headers.get(HEADER) != "1":
            raise web.HTTPForbidden(text=f"the header {HEADER}: 1 is missing")
        return await self._forward("POST", "/panel/set", await _json(request))

    async def _forward(self, method: str, path: str, body: Body | None) -> web.Response:
        if self._panel_url is None:
            return web.json_response({"ok": False, "groups": [], "log": [], "text": "no panel"})
        if self._session is None:
            self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=30))
        headers = {HEADER: "1"}
        try:
            async with self._session.request(method, self._panel_url + path, json=body, headers=headers) as response:
                return web.json_response(await response.json(content_type=None))
        except (aiohttp.ClientError, OSError, ValueError) as error:
            answer = {"ok": False, "groups": [], "log": [], "text": f"panel unreachable: {error}"}
            return web.json_response(answer, status=502)

    # --- tests in other processes -----------------------------------------------------------------

    def _control(self, control: Callable[[Body], Awaitable[Body]]) -> Callable[[web.Request], Awaitable[web.Response]]:
        async def handler(request: web.Request) -> web.Response:
            _only_loopback(request)
            if request.content_type != "application/json":
                # a foreign page cannot send this type without asking first, and is never answered
                raise web.HTTPUnsupportedMediaType(text="application/json is expected")
            body = await _json(request)
            try:
                return web.json_response(await control(body))
            except (KeyError, TypeError, ValueError) as error:
                raise web.HTTPBadRequest(text=f"{type(error).__name__}: {error}") from error

        return handler

    async def _journal(self, request: web.Request) -> web.Response:
        _only_loopback(request)
        since = int(request.query.get("since", "0"))
        records = self._simulator.journal.since(since)
        kind = request.query.get("kind")
        if kind:
            records = [record for record in records if record["kind"] == kind]
        answer = {"records": records, "next": self._simulator.journal.last}
        return web.json_response(answer, dumps=lambda value: json.dumps(value, default=str))

    async def _wait(self, body: Body) -> Body:
        """Long-poll: {match: {...}, since?, timeout?} -> the first record that contains it."""
        timeout = min(float(body.get("timeout", 10.0)), MAX_WAIT_S)
        record = await self._simulator.journal.wait(dict(body.get("match", {})), int(body.get("since", 0)), timeout)
        return {"ok": record is not None, "record": record, "next": self._simulator.journal.last}

    async def _faults_listing(self, request: web.Request) -> web.Response:
        return web.json_response(self._simulator.faults.listing())

    async def _faults(self, body: Body) -> Body:
        """{kind, method?, times?, ...} | {socket: name, times?, ...} | {clear: true}."""
        faults = self._simulator.faults
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
        sockets = self._simulator.faults.sockets
        if name not in vars(sockets) or name == "refuse_status":
            raise ValueError(f"unknown socket fault {name!r}")
        setattr(sockets, name, int(body.get("times", 1)))
        if "status" in body:
            sockets.refuse_status = int(body["status"])

    async def _clock(self, body: Body) -> Body:
        self._simulator.advance(float(body["advance"]))
        return {"ok": True, "now": self._simulator.clock.now()}

    async def _sockets_control(self, body: Body) -> Body:
        """{do: disconnect|silence|cut|release|replay, reason?, count?, envelope_id?, times?}."""
        sockets = self._simulator.sockets
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
            sent = [r for r in self._simulator.journal.records if matches(r, pattern)]
            if not sent:
                raise ValueError("no such envelope")
            await sockets.replay(sent[0]["envelope"], int(body.get("times", 1)))
        else:
            raise ValueError(f"unknown: {body['do']}")
        return {"ok": True, "open": len(sockets.sockets)}

    async def _world(self, body: Body) -> Body:
        """{person, set: {...}} | {group, users: [...]} | {channel, set: {...}} | {token_error}."""
        self._simulator.change_world(body)
        return {"ok": True}

    def _user(self, user: str) -> str:
        person = self._simulator.workspace.person(user)
        if person is None or person.kind == "bot":
            raise web.HTTPNotFound(text=f"no such person: {user}")
        return user


def _only_loopback(request: web.Request) -> None:
    """Refuse names that lead here from elsewhere (DNS rebinding)."""
    host = request.host.rsplit(":", 1)[0] if not request.host.endswith("]") else request.host
    if host not in LOOPBACK:
        raise web.HTTPForbidden(text="loopback only")


async def _json(request: web.Request) -> Body:
    try:
        body = await request.json()
    except ValueError as error:
        raise web.HTTPBadRequest(text="not JSON") from error
    if not isinstance(body, dict):
        raise web.HTTPBadRequest(text="an object is expected")
    return body


def _page_file(path: str) -> web.Response:
    parts = path.split("/")
    if any(part in ("", ".", "..") or "\\" in part for part in parts):
        raise web.HTTPNotFound()
    place = files("bot.simulator").joinpath("page", *parts)
    if not place.is_file():
        raise web.HTTPNotFound(text=f"no page file {path}")
    kind = mimetypes.guess_type(path)[0] or "application/octet-stream"
    headers = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
    charset = "utf-8" if kind.startswith("text/") or kind.endswith(("javascript", "json")) else None
    return web.Response(body=place.read_bytes(), content_type=kind, charset=charset, headers=headers)
