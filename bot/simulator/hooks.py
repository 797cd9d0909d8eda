"""Response URLs and command answers: what an app says back outside the Web API.

Decides where such an answer lands: ephemeral for one person, in the channel, in the place of the
message that was clicked. Failure it can cause: answers past 5 uses or 30 minutes are refused,
which a bot only sees in the HTTP status. Source: Slack, "Handling user interaction".
"""

import asyncio
from collections.abc import Callable
from typing import Any

from aiohttp import web

from bot.simulator.calls import Call, SlackError
from bot.simulator.chat_methods import ChatMethods
from bot.simulator.faults import Faults
from bot.simulator.journal import Journal
from bot.simulator.rooms import Message, Room, Rooms
from bot.simulator.tickets import ResponseUrl, ResponseUrls
from bot.simulator.tiers import RateTiers
from bot.simulator.webapi import drop


class Hooks:
    """Serves `/actions/...` and `/commands/...`."""

    def __init__(
        self,
        rooms: Rooms,
        chat: ChatMethods,
        urls: ResponseUrls,
        journal: Journal,
        faults: Faults,
        tiers: RateTiers,
        url: Callable[[], str],
        team_id: str,
    ) -> None:
        self._rooms = rooms
        self._chat = chat
        self._urls = urls
        self._journal = journal
        self._faults = faults
        self._tiers = tiers
        self._url = url
        self._team_id = team_id

    def action_url(self, room: Room, user: str, message: Message, ephemeral: bool) -> str:
        """Return the response URL of a click."""
        secret = self._urls.issue(room.id, user, message["ts"], ephemeral, message.get("thread_ts"))
        return f"{self._url()}/actions/{self._team_id}/{secret}"

    def command_url(self, room: Room, user: str) -> str:
        """Return the response URL of a command."""
        return f"{self._url()}/commands/{self._team_id}/{self._urls.issue(room.id, user)}"

    def command_answer(self, channel: str, user: str, answer: dict[str, Any]) -> None:
        """Show what the app answered in the ack of a command; what Slack refuses is journalled."""
        try:
            self._say(self._rooms.all[channel], user, answer, None)
        except SlackError as error:
            self._journal.write("refused", what="command_answer", error=error.code, **error.extra)

    async def serve(self, request: web.Request) -> web.StreamResponse:
        """Take one post to a response URL."""
        secret = request.match_info["secret"]
        try:
            body = await request.json()
            if not isinstance(body, dict):
                raise ValueError("an object is expected")
        except ValueError:
            return web.Response(status=400, text="invalid_payload")
        number = self._journal.write("request", method="response_url", args=body)["seq"]
        fault = self._faults.take("response_url", body)
        if fault is not None:
            self._journal.write("fault", what=fault.kind, method="response_url", request=number)
            if fault.kind == "delay":
                await asyncio.sleep(fault.seconds)
            elif fault.kind == "drop_before":
                return await drop(request)
            elif fault.kind == "ratelimited":
                headers = {"Retry-After": str(fault.retry_after)}
                return web.Response(status=429, headers=headers, text="rate_limited")
            elif fault.kind in ("http_error", "error"):
                return web.Response(status=fault.status, text=fault.error)
        retry_after = self._tiers.refuse("response_url", secret)
        if retry_after is not None:
            return web.Response(status=429, headers={"Retry-After": str(retry_after)}, text="rate_limited")
        target = self._urls.use(secret)
        if isinstance(target, str):
            return self._refuse(404, target, number)
        try:
            self._apply(target, body)
        except SlackError as error:
            return self._refuse(400, error.code, number)
        self._journal.write("answer", method="response_url", request=number, status=200)
        if fault is not None and fault.kind == "store_then_drop":
            return await drop(request)
        return web.Response(text="ok")

    def _refuse(self, status: int, error: str, number: int) -> web.Response:
        answer = {"ok": False, "error": error}
        self._journal.write("answer", method="response_url", request=number, status=status, answer=answer)
        return web.json_response(answer, status=status)

    def _apply(self, target: ResponseUrl, body: dict[str, Any]) -> None:
        room = self._rooms.all[target.channel]
        # for commands neither replace nor delete reaches an earlier answer
        if target.message_ts is not None:
            if body.get("delete_original"):
                self._delete(room, target, target.message_ts)
                return
            if body.get("replace_original"):
                self._replace(room, target, target.message_ts, body)
                return
        self._say(room, target.user, body, target.thread_ts if target.message_ts else None)

    def _delete(self, room: Room, target: ResponseUrl, ts: str) -> None:
        if target.ephemeral:
            self._rooms.unwhisper(room, target.user, ts)
        elif ts in room.messages:
            self._rooms.remove(room, ts)

    def _replace(self, room: Room, target: ResponseUrl, ts: str, body: dict[str, Any]) -> None:
        content, _ = self._chat.content(Call("response_url", body, self._url()))
        old = room.ephemerals.get(target.user, {}).get(ts) if target.ephemeral else room.messages.get(ts)
        if old is None:
            raise SlackError("message_not_found")
        kept = {k: v for k, v in old.items() if k not in ("blocks", "attachments", "text")}
        fresh = {**kept, **content}
        if target.ephemeral:
            self._rooms.rewhisper(room, target.user, fresh)
        else:
            self._rooms.replace(room, fresh)

    def _say(self, room: Room, user: str, body: dict[str, Any], thread_ts: str | None) -> None:
        content, _ = self._chat.content(Call("response_url", body, self._url()))
        message: Message = {**self._chat.authored(), **content}
        if body.get("response_type") == "in_channel":
            if body.get("thread_ts"):
                message["thread_ts"] = str(body["thread_ts"])
            self._rooms.post(room, message)
            return
        if thread_ts:
            message["thread_ts"] = thread_ts
        self._rooms.whisper(room, user, {**message, "ephemeral": True})
