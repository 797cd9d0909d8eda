"""The CRM over HTTP, and the carrying out of faults.

Decides status codes and what a faulty request looks like to its caller. What a quote is, and
whether a key was seen, is decided in ``books``. No request is authenticated: listen on loopback.
"""

import asyncio
import json
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Self

from aiohttp import web

from bot.sandbox.books import Books, Rejected
from bot.sandbox.faults import FAULT_KINDS, Fault, Faults
from bot.sandbox.world import Json

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Crm:
    """The service: ``await start()``, then ``url``; ``await stop()`` ends it. Also ``async with``.

    ``books`` may be read directly by a test in the same process and event loop.
    """

    def __init__(
        self,
        host: str = "127.0.0.1",
        port: int = 0,
        state: Path | None = None,
        on_crash: Callable[[], None] | None = None,
    ) -> None:
        """Prepare the service without opening anything but its books.

        Args:
            host: address to listen on.
            port: 0 lets the system choose at the first start; a restart keeps the choice.
            state: SQLite file that outlives the process; None keeps the world in memory.
            on_crash: called instead of going away and coming back on crash_after_commit.
        """
        self.books = Books(state)
        self.faults = Faults()
        self._host = host
        self._port = port
        self._on_crash = on_crash
        self._runner: web.AppRunner | None = None
        self._site: web.TCPSite | None = None
        self._stopping = asyncio.Event()
        self._comeback: asyncio.Task[None] | None = None
        self._kept: socket.socket | None = None

    @property
    def url(self) -> str:
        """Base address without a slash at its end, known once the service was started."""
        return f"http://{self._host}:{self._port}"

    async def start(self) -> str:
        """Listen, and return the url."""
        self._runner = web.AppRunner(self._app(), access_log=None, shutdown_timeout=0.2)
        await self._runner.setup()
        await self._listen()
        return self.url

    async def stop(self) -> None:
        """Stop listening, cut hanging requests and close the books."""
        self._stopping.set()
        if self._comeback is not None:
            self._comeback.cancel()
            await asyncio.gather(self._comeback, return_exceptions=True)
        self._let_go_of_port()
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None
        self.books.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    # -- HTTP ------------------------------------------------------------------------------------

    def _app(self) -> web.Application:
        app = web.Application(middlewares=[self._answer_errors, self._carry_out_faults])
        app.router.add_routes(
            [
                web.get("/healthz", self._health),
                web.get("/accounts", self._find_accounts),
                web.get("/accounts/{id}", self._account),
                web.get("/skus", self._find_skus),
                web.get("/skus/{sku}", self._sku),
                web.get("/tiers", self._tiers),
                web.post("/prices", self._prices),
                web.get("/quotes", self._quotes),
                web.post("/quotes", self._draft_quote),
                web.get("/quotes/{id}", self._quote),
                web.post("/quotes/{id}/send", self._send_quote),
                web.get("/operations/{key}", self._operation),
                web.get("/people", self._people),
                web.get("/people/{email}", self._person),
                web.get("/outbox", self._outbox),
                web.post("/admin/accounts/{id}", self._change_account),
                web.post("/admin/tiers/{name}", self._change_tier),
                web.post("/admin/people/{email}", self._change_person),
                web.get("/admin/faults", self._show_faults),
                web.post("/admin/faults", self._add_fault),
                web.delete("/admin/faults", self._clear_faults),
                web.get("/admin/effects", self._effects),
                web.post("/admin/reset", self._reset),
            ]
        )
        self._routes = sorted(
            f"{route.method} {route.resource.canonical}"
            for route in app.router.routes()
            if route.resource is not None
            and route.method != "HEAD"
            and not route.resource.canonical.startswith("/admin")
        )
        return app

    async def _health(self, _: web.Request) -> web.Response:
        return web.json_response({"ok": True})

    async def _find_accounts(self, request: web.Request) -> web.Response:
        found = self.books.find_accounts(request.query.get("query", ""))
        return web.json_response({"accounts": found})

    async def _account(self, request: web.Request) -> web.Response:
        return web.json_response(self.books.account(request.match_info["id"]))

    async def _find_skus(self, request: web.Request) -> web.Response:
        return web.json_response({"skus": self.books.find_skus(request.query.get("query", ""))})

    async def _sku(self, request: web.Request) -> web.Response:
        return web.json_response(self.books.sku(request.match_info["sku"]))

    async def _tiers(self, _: web.Request) -> web.Response:
        return web.json_response({"tiers": self.books.tiers()})

    async def _prices(self, request: web.Request) -> web.Response:
        return web.json_response(self.books.prices(await _body(request)))

    async def _quotes(self, request: web.Request) -> web.Response:
        return web.json_response({"quotes": self.books.quotes(request.query.get("account"))})

    async def _draft_quote(self, request: web.Request) -> web.Response:
        body = await _body(request)
        status, quote = self.books.draft_quote(_key(request), body)
        return web.json_response(quote, status=status)

    async def _quote(self, request: web.Request) -> web.Response:
        return web.json_response(self.books.quote(request.match_info["id"]))

    async def _send_quote(self, request: web.Request) -> web.Response:
        body = await _body(request)
        status, quote = self.books.send_quote(_key(request), request.match_info["id"], body)
        return web.json_response(quote, status=status)

    async def _operation(self, request: web.Request) -> web.Response:
        return web.json_response(self.books.operation(request.match_info["key"]))

    async def _people(self, _: web.Request) -> web.Response:
        return web.json_response({"people": self.books.people()})

    async def _person(self, request: web.Request) -> web.Response:
        return web.json_response(self.books.person(request.match_info["email"]))

    async def _outbox(self, _: web.Request) -> web.Response:
        return web.json_response({"emails": self.books.outbox()})

    async def _change_account(self, request: web.Request) -> web.Response:
        changed = self.books.change_account(request.match_info["id"], await _body(request))
        return web.json_response(changed)

    async def _change_tier(self, request: web.Request) -> web.Response:
        changed = self.books.change_tier(request.match_info["name"], await _body(request))
        return web.json_response(changed)

    async def _change_person(self, request: web.Request) -> web.Response:
        changed = self.books.change_person(request.match_info["email"], await _body(request))
        return web.json_response(changed)

    async def _show_faults(self, _: web.Request) -> web.Response:
        return web.json_response({"faults": self.faults.shown(), "kinds": FAULT_KINDS, "routes": self._routes})

    async def _add_fault(self, request: web.Request) -> web.Response:
        fault = Fault.parse(await _body(request), self._routes)
        self.faults.add(fault)
        return web.json_response(fault.shown(), status=201)

    async def _clear_faults(self, _: web.Request) -> web.Response:
        self.faults.clear()
        return web.json_response({"faults": []})

    async def _effects(self, _: web.Request) -> web.Response:
        return web.json_response({"effects": self.books.effects()})

    async def _reset(self, _: web.Request) -> web.Response:
        self.faults.clear()
        self.books.reset()
        return web.json_response({"ok": True})

    # -- faults ----------------------------------------------------------------------------------

    @web.middleware
    async def _answer_errors(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            return await handler(request)
        except Rejected as refusal:
            return web.json_response({"error": refusal.error, "message": refusal.message}, status=refusal.status)
        except web.HTTPException as refusal:
            return web.json_response(
                {"error": refusal.reason.lower().replace(" ", "_"), "message": refusal.reason},
                status=refusal.status,
            )

    @web.middleware
    async def _carry_out_faults(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        resource = request.match_info.route.resource
        if resource is None or resource.canonical.startswith("/admin"):
            return await handler(request)
        fault = self.faults.meet(f"{request.method} {resource.canonical}")
        if fault is None:
            return await handler(request)
        return await self._go_wrong(fault, request, handler)

    async def _go_wrong(self, fault: Fault, request: web.Request, handler: Handler) -> web.StreamResponse:
        match fault.kind:
            case "fail":
                raise Rejected(503, "unavailable", "The CRM can't answer just now.")
            case "slow":
                await request.read()
                await self._pause(fault.seconds)
                return await handler(request)
            case "hang":
                await self._pause(fault.seconds)
            case "answer_lost":
                await handler(request)
            case "hang_after_commit":
                await handler(request)
                await self._pause(fault.seconds)
            case "crash_after_commit":
                await handler(request)
                await self._crash(fault.seconds or 0.0)
        return _cut(request)

    async def _pause(self, seconds: float | None) -> None:
        """Wait that long, or until the service stops."""
        try:
            await asyncio.wait_for(self._stopping.wait(), seconds)
        except TimeoutError:
            return

    async def _crash(self, seconds: float) -> None:
        """Be gone for everyone: no listener, every connection cut, whatever it was doing."""
        if self._on_crash is not None:
            self._on_crash()
            return
        if self._site is None:
            return  # gone already: two requests met a crash at once
        await self._site.stop()
        self._site = None
        self._kept = _kept(self._host, self._port)
        if self._runner is not None and self._runner.server is not None:
            for connection in self._runner.server.connections:
                if connection.transport is not None:
                    connection.transport.abort()
        self._comeback = asyncio.create_task(self._come_back(seconds))

    async def _come_back(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        await self._listen()

    async def _listen(self) -> None:
        if self._runner is None:
            return
        self._let_go_of_port()
        self._site = web.TCPSite(self._runner, self._host, self._port)
        await self._site.start()
        self._port = self._runner.addresses[0][1]

    def _let_go_of_port(self) -> None:
        if self._kept is not None:
            self._kept.close()
            self._kept = None


def _kept(host: str, port: int) -> socket.socket | None:
    """Keep a port that nobody listens on from whoever lets the system choose one; None: it cannot be kept."""
    kept = None
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        kept = socket.socket(family, kind, protocol)
        kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # connections that were cut linger on it
        kept.bind(address)
    except OSError:
        if kept is not None:
            kept.close()
        return None
    return kept


def _cut(request: web.Request) -> web.Response:
    """Drop the connection; the response that has to be returned reaches nobody."""
    if request.transport is not None:
        request.transport.abort()
    return web.Response()


async def _body(request: web.Request) -> Json:
    try:
        body = json.loads(await request.text())
    except ValueError:
        raise Rejected(400, "invalid_json", "The body is not JSON.") from None
    if not isinstance(body, dict):
        raise Rejected(400, "invalid_json", "The body is not a JSON object.")
    return body


def _key(request: web.Request) -> str:
    key = request.headers.get("Idempotency-Key", "").strip()
    if not key:
        raise Rejected(400, "key_missing", "Writes need an Idempotency-Key header.")
    if len(key) > 255:
        raise Rejected(400, "key_too_long", "An Idempotency-Key has at most 255 characters.")
    return key
