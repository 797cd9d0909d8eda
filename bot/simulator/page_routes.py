"""HTTP routes of the page: its files, snapshots, live frames, acts of people, the panel.

Decides nothing about Slack: it turns requests into acts. Only pages of this server may post (a
header that no foreign page can send, a loopback Host).
Failure it can cause: whoever reaches this port can act as anyone; it listens on loopback only.
"""

import asyncio
import inspect
import json
import mimetypes
from collections.abc import Awaitable, Callable
from importlib.resources import files
from typing import Any

import aiohttp
from aiohttp import WSMsgType, web

from bot.simulator.acts import ActRefused, Acts
from bot.simulator.live import Live
from bot.simulator.loopback import HEADER, Body, json_body, only_loopback, only_own_page
from bot.simulator.workspace import Workspace


class PageRoutes:
    """Routes under `/`, `/static`, `/archives`, `/page` and `/panel`."""

    def __init__(self, workspace: Workspace, acts: Acts, live: Live, panel_url: str | None) -> None:
        self._workspace = workspace
        self._acts = acts
        self._live_state = live
        self._panel_url = panel_url.rstrip("/") if panel_url else None
        self._session: aiohttp.ClientSession | None = None
        self._sockets: set[web.WebSocketResponse] = set()

    def add_to(self, app: web.Application) -> None:
        """Register every route."""
        posts: dict[str, Callable[[Body], Any]] = {
            "/page/post": self._post,
            "/page/click": self._click,
            "/page/suggest": self._suggest,
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
        app.router.add_get("/", self._index)
        app.router.add_get("/archives/{channel}/p{ts}", self._archive)
        app.router.add_get("/static/{path:.+}", self._static)
        app.router.add_get("/page/state", self._state)
        app.router.add_get("/page/live", self._live)
        app.router.add_get("/panel/state", self._panel_state)
        app.router.add_post("/panel/set", self._panel_set)

    async def close(self) -> None:
        """Close the panel's client session and every page's socket."""
        for ws in list(self._sockets):
            await ws.close(drain=False)
        if self._session is not None:
            await self._session.close()

    # --- the page ------------------------------------------------------------------------------

    async def _index(self, request: web.Request) -> web.Response:
        only_loopback(request)
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
        only_loopback(request)
        return _page_file(request.match_info["path"])

    async def _state(self, request: web.Request) -> web.Response:
        only_loopback(request)
        # a page that was opened without saying as whom begins as the first person
        first = next(person.id for person in self._workspace.people if person.kind != "bot")
        user = self._user(request.query.get("as") or first)
        return web.json_response(self._live_state.snapshot(user))

    async def _live(self, request: web.Request) -> web.StreamResponse:
        only_loopback(request)
        user = self._user(request.query.get("as", ""))
        origin = request.headers.get("Origin")
        if origin is not None and origin.split("//", 1)[-1] != request.host:
            raise web.HTTPForbidden(text="foreign page")
        ws = web.WebSocketResponse(heartbeat=20)
        await ws.prepare(request)
        queue = self._live_state.subscribe(user)
        self._sockets.add(ws)

        async def pump() -> None:
            while (frame := await queue.get()) is not None:
                await ws.send_str(json.dumps(frame))
            await ws.close()

        pumping = asyncio.ensure_future(pump())
        try:
            async for message in ws:
                if message.type in (WSMsgType.CLOSE, WSMsgType.ERROR):
                    break
        finally:
            pumping.cancel()
            self._sockets.discard(ws)
            self._live_state.unsubscribe(queue)
        return ws

    def _act(self, act: Callable[[Body], Any]) -> Callable[[web.Request], Awaitable[web.Response]]:
        async def handler(request: web.Request) -> web.Response:
            only_own_page(request)
            body = await json_body(request)
            try:
                answer = act(body)
                if inspect.isawaitable(answer):
                    answer = await answer
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
        message = self._acts.post(body["as"], body["channel"], text, thread_ts)
        return {"ok": True, "ts": message["ts"]}

    def _click(self, body: Body) -> Body:
        interaction = self._acts.click(
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

    async def _suggest(self, body: Body) -> Body:
        """Ask the app for an external select's options; answer with them."""
        interaction = self._acts.suggest(
            body["as"],
            body["action_id"],
            str(body["value"]),
            channel=body.get("channel"),
            ts=body.get("message_ts"),
            view_id=body.get("view_id"),
            home=bool(body.get("home")),
            block_id=body.get("block_id"),
        )
        await interaction.settled()
        if interaction.state == "failed" or interaction.error:
            return {"ok": False, "error": interaction.error, "text": "The options could not be loaded. Try again."}
        return {"ok": True, **{k: v for k, v in interaction.answer.items() if k in ("options", "option_groups")}}

    def _command(self, body: Body) -> Body:
        interaction = self._acts.command(body["as"], body["channel"], body["command"], str(body.get("text", "")))
        return {"ok": True, "interaction_id": interaction.id}

    def _submit(self, body: Body) -> Body:
        interaction = self._acts.submit(body["as"], body["view_id"], body.get("values") or {})
        return {"ok": True, "interaction_id": interaction.id}

    def _view_close(self, body: Body) -> Body:
        self._acts.close_view(body["as"], body["view_id"], bool(body.get("all")))
        return {"ok": True}

    def _home_open(self, body: Body) -> Body:
        self._acts.open_home(body["as"], str(body.get("tab", "home")))
        return {"ok": True}

    def _dm(self, body: Body) -> Body:
        return {"ok": True, "channel": self._acts.open_dm(body["as"]).id}

    def _edit(self, body: Body) -> Body:
        self._acts.edit(body["as"], body["channel"], body["ts"], str(body["text"]))
        return {"ok": True}

    def _delete(self, body: Body) -> Body:
        self._acts.delete(body["as"], body["channel"], body["ts"])
        return {"ok": True}

    def _read(self, body: Body) -> Body:
        self._live_state.read(body["as"], body["channel"])
        return {"ok": True}

    # --- the panel -----------------------------------------------------------------------------

    async def _panel_state(self, request: web.Request) -> web.Response:
        return await self._forward("GET", "/panel/state", None)

    async def _panel_set(self, request: web.Request) -> web.Response:
        only_own_page(request)
        return await self._forward("POST", "/panel/set", await json_body(request))

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

    def _user(self, user: str) -> str:
        person = self._workspace.person(user)
        if person is None or person.kind == "bot":
            raise web.HTTPNotFound(text=f"no such person: {user}")
        return user


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
