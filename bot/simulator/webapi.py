"""The Web API's front door: tokens, oauth scopes, rate limits, faults, answers, the journal.

Decides in Slack's order whether a call reaches its method: token, method, scope, rate limit.
Failure it can cause: an answer without Slack's headers or error codes teaches a bot the wrong
thing; a test holds every code against Slack's own lists.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from bot.simulator.calls import Call, SlackError, arguments_of
from bot.simulator.faults import Faults, MethodFault
from bot.simulator.journal import Journal
from bot.simulator.rooms import Rooms
from bot.simulator.tickets import new_id
from bot.simulator.tiers import RateTiers
from bot.simulator.workspace import AppManifest, Workspace

Answer = dict[str, Any]
Handler = Callable[[Call], Answer]
READ = ("channels:read", "groups:read", "im:read", "mpim:read")
HISTORY = ("channels:history", "groups:history", "im:history", "mpim:history")


@dataclass(frozen=True)
class Method:
    """A method, the oauth scopes of which one is needed, and the kind of its token.

    `by_kind`: the three scopes are for public, private and direct conversations, and the one of
    the named channel's kind is needed.
    """

    run: Handler
    scopes: tuple[str, ...] = ()
    by_kind: bool = False
    app_token: bool = False


class WebApi:
    """Serves `/api/{method}`."""

    def __init__(
        self,
        workspace: Workspace,
        manifest: AppManifest,
        rooms: Rooms,
        journal: Journal,
        faults: Faults,
        tiers: RateTiers,
        methods: dict[str, Method],
        url: Callable[[], str],
    ) -> None:
        self._workspace = workspace
        self._manifest = manifest
        self._rooms = rooms
        self._journal = journal
        self._faults = faults
        self._tiers = tiers
        self.methods = methods
        self._url = url
        # None while tokens are good; token_revoked, account_inactive, ... when they are not
        self.token_error: str | None = None

    async def serve(self, request: web.Request) -> web.StreamResponse:
        """Answer one call; always 200 unless rate limited or spoiled by a fault."""
        name = request.match_info["method"]
        refused: SlackError | None = None
        arguments: dict[str, Any] = {}
        try:
            arguments = await arguments_of(request)
        except SlackError as error:
            refused = error
        token = _token(request, arguments, name)
        call_id = self._journal.write("request", method=name, token=_token_kind(token), args=arguments)["seq"]
        fault = self._faults.take(name, arguments)
        if fault is not None:
            self._journal.write("fault", what=fault.kind, method=name, request=call_id)
            spoiled = await self._spoil_before(fault, request, name, call_id)
            if spoiled is not None:
                return spoiled
        method = self.methods.get(name)
        try:
            if refused is not None:
                raise refused
            if method is None:
                raise SlackError("unknown_method", req_method=name)
            self._check_rights(method, name, token, arguments)
            retry_after = self._tiers.refuse(name, str(arguments.get("channel", "")))
            if retry_after is not None:
                return self._limited(retry_after, name, call_id)
            answer = method.run(Call(name, arguments, self._url()))
        except SlackError as error:
            answer = {"ok": False, "error": error.code, **error.extra}
        if fault is not None and fault.kind == "store_then_drop":
            self._journal.write("answer", method=name, request=call_id, dropped=True, answer=answer)
            return await drop(request)
        status = 200
        if fault is not None and fault.kind == "store_then_error":
            status = 200 if fault.error else fault.status
            answer = {"ok": False, "error": fault.error or "fatal_error"}
        return self._answer(answer, name, call_id, status, method)

    async def _spoil_before(
        self, fault: MethodFault, request: web.Request, name: str, call_id: int
    ) -> web.StreamResponse | None:
        if fault.kind == "delay":
            await asyncio.sleep(fault.seconds)
            return None
        if fault.kind == "drop_before":
            self._journal.write("answer", method=name, request=call_id, dropped=True)
            return await drop(request)
        if fault.kind == "ratelimited":
            return self._limited(fault.retry_after, name, call_id)
        if fault.kind == "http_error":
            self._journal.write("answer", method=name, request=call_id, status=fault.status)
            return web.Response(status=fault.status, text="fault")
        if fault.kind == "error":
            return self._answer({"ok": False, "error": fault.error}, name, call_id)
        return None

    def _check_rights(self, method: Method, name: str, token: str | None, arguments: dict[str, Any]) -> None:
        if not token:
            raise SlackError("not_authed")
        wanted = self._workspace.app_token if method.app_token else self._workspace.bot_token
        if token not in (self._workspace.app_token, self._workspace.bot_token):
            raise SlackError("invalid_auth")
        if self.token_error is not None:
            raise SlackError(self.token_error)
        if token != wanted:
            raise SlackError("not_allowed_token_type")
        scopes = method.scopes
        if method.by_kind:
            scopes = self._scopes_for(name, scopes, arguments)
        held = self._manifest.scopes
        if scopes and not any(scope in held for scope in scopes):
            raise SlackError("missing_scope", needed=",".join(scopes), provided=",".join(held))

    def _scopes_for(self, name: str, scopes: tuple[str, ...], arguments: dict[str, Any]) -> tuple[str, ...]:
        if name == "conversations.list":
            kinds = str(arguments.get("types") or "public_channel").split(",")
            place = {"public_channel": 0, "private_channel": 1, "im": 2, "mpim": 3}
            needed = [scopes[place[k.strip()]] for k in kinds if k.strip() in place]
            lacking = [scope for scope in needed if scope not in self._manifest.scopes]
            return tuple(lacking) or scopes
        room = self._rooms.all.get(str(arguments.get("channel", "")))
        if room is None:
            return scopes
        return (scopes[2 if room.is_im else 3 if room.is_mpim else 1 if room.is_private else 0],)

    def _limited(self, retry_after: int, name: str, call_id: int) -> web.Response:
        answer = {"ok": False, "error": "ratelimited"}
        return self._answer(answer, name, call_id, 429, headers={"Retry-After": str(retry_after)})

    def _answer(
        self,
        answer: Answer,
        name: str,
        call_id: int,
        status: int = 200,
        method: Method | None = None,
        headers: dict[str, str] | None = None,
    ) -> web.Response:
        self._journal.write("answer", method=name, request=call_id, status=status, answer=answer)
        shown = {
            "x-slack-req-id": new_id("", 32).lower(),
            "x-oauth-scopes": ",".join(self._manifest.scopes),
            "x-accepted-oauth-scopes": ",".join(method.scopes) if method else "",
            **(headers or {}),
        }
        return web.json_response(answer, status=status, headers=shown)


async def drop(request: web.Request) -> web.Response:
    """Close the connection without an answer."""
    if isinstance(request.transport, asyncio.WriteTransport):
        request.transport.abort()
    return web.Response(status=500)


def _token(request: web.Request, arguments: dict[str, Any], method: str) -> str | None:
    given = arguments.pop("token", None)
    header = request.headers.get("Authorization", "")
    if header.startswith("Bearer "):
        return header.removeprefix("Bearer ").strip()
    # an app-level token counts in the header only
    return str(given) if given and method != "apps.connections.open" else None


def _token_kind(token: str | None) -> str:
    """Return only the kind: journals are shared, tokens are not."""
    return token.split("-")[0] if token and "-" in token else "none" if not token else "unknown"
