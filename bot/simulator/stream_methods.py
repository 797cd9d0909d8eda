"""Web API methods of the agent surface: thread status, agent sessions, streamed messages.

Decides when a message streams and what its chunks add up to. Failure it can cause: Slack changes
these methods often; an error code here may be newer than the bot.
Source: Slack, method reference of assistant.threads.*, agents.sessions.*, chat.*Stream.
"""

import copy
from typing import Any

from bot.simulator.blockkit import MARKDOWN_CHARS
from bot.simulator.calls import Call, SlackError
from bot.simulator.chat_methods import Answer, ChatMethods, check_blocks, check_metadata
from bot.simulator.rooms import Message, Room, Rooms, with_block_ids
from bot.simulator.workspace import Workspace

SESSION_STATES = ("active", "processing", "suspended", "closed")
TASK_STATES = ("pending", "in_progress", "complete", "error")
MAX_LOADING_MESSAGES = 10


class StreamMethods:
    """assistant.threads.*, agents.sessions.* and the three stream calls."""

    def __init__(self, workspace: Workspace, rooms: Rooms, chat: ChatMethods) -> None:
        self._workspace = workspace
        self._rooms = rooms
        self._chat = chat
        self.sessions_enabled = True
        self.titles: dict[tuple[str, str], str] = {}
        self.prompts: dict[tuple[str, str], list[Any]] = {}

    def set_status(self, call: Call) -> Answer:
        """assistant.threads.setStatus: shown as "Atlas <status>", "" clears, ends after 2 min."""
        room, thread_ts = self._thread(call)
        loading = call.arguments.get("loading_messages") or []
        if not isinstance(loading, list) or len(loading) > MAX_LOADING_MESSAGES:
            raise SlackError("invalid_array_arg")
        status = str(call.arguments.get("status") or "")
        self._rooms.set_status(room, thread_ts, status, [str(text) for text in loading])
        return {"ok": True}

    def set_title(self, call: Call) -> Answer:
        """assistant.threads.setTitle."""
        room, thread_ts = self._thread(call)
        self.titles[room.id, thread_ts] = call.text("title") or ""
        return {"ok": True}

    def set_prompts(self, call: Call) -> Answer:
        """assistant.threads.setSuggestedPrompts: at most four."""
        prompts = call.arguments.get("prompts")
        if not isinstance(prompts, list) or len(prompts) > 4:
            raise SlackError("invalid_array_arg")
        room, thread_ts = self._thread(call)
        self.prompts[room.id, thread_ts] = prompts
        return {"ok": True}

    def set_session(self, call: Call) -> Answer:
        """agents.sessions.setStatus: one of four states; may be off for a workspace."""
        if not self.sessions_enabled:
            raise SlackError("feature_disabled")
        room = self._room(call)
        status = call.text("status")
        if status not in SESSION_STATES:
            raise SlackError("invalid_arguments")
        key = (room.id, call.text("thread_ts") or "")
        self._rooms.sessions[key] = {"status": status, "title": call.text("title")}
        return {"ok": True}

    def start(self, call: Call) -> Answer:
        """chat.startStream: in a thread; in channels the recipient must be named."""
        room = self._chat.writable(call)
        thread_ts = call.need("thread_ts", "invalid_arg_name")
        if not room.is_im:
            user = call.need("recipient_user_id", "missing_recipient_user_id")
            call.need("recipient_team_id", "missing_recipient_team_id")
            if self._workspace.person(user) is None:
                raise SlackError("user_not_found")
        message: Message = {
            **self._chat.authored(),
            "text": "",
            "thread_ts": thread_ts,
            "streaming_state": "in_progress",
        }
        _add(message, call)
        stored = self._rooms.post(room, message)
        return {"ok": True, "channel": room.id, "ts": stored["ts"]}

    def append(self, call: Call) -> Answer:
        """chat.appendStream."""
        room, message = self._streaming(call)
        if not call.text("markdown_text") and not call.arguments.get("chunks"):
            raise SlackError("no_text")
        _add(message, call)
        self._rooms.replace(room, message)
        return {"ok": True, "channel": room.id, "ts": message["ts"]}

    def stop(self, call: Call) -> Answer:
        """chat.stopStream: final blocks and metadata; the message is an ordinary one from here."""
        room, message = self._streaming(call)
        _add(message, call)
        blocks = call.arguments.get("blocks")
        if blocks:
            check_blocks(blocks)
            message["blocks"] = [*message.get("blocks", []), *with_block_ids(blocks)]
        if call.arguments.get("metadata"):
            message["metadata"] = check_metadata(call.arguments["metadata"])
        message["streaming_state"] = "completed"
        self._rooms.replace(room, message)
        return {"ok": True, "channel": room.id, "ts": message["ts"], "message": message}

    def _streaming(self, call: Call) -> tuple[Room, Message]:
        room = self._chat.room(call)
        message = room.messages.get(call.need("ts", "message_not_found"))
        if message is None:
            raise SlackError("message_not_found")
        if message.get("bot_id") != self._workspace.bot_id:
            raise SlackError("message_not_owned_by_app")
        if message.get("streaming_state") != "in_progress":
            raise SlackError("message_not_in_streaming_state")
        return room, copy.deepcopy(message)

    def _room(self, call: Call) -> Room:
        room = self._rooms.get(call.need("channel_id", "channel_not_found"))
        if room is None or self._workspace.bot_user_id not in room.members:
            raise SlackError("channel_not_found")
        return room

    def _thread(self, call: Call) -> tuple[Room, str]:
        room = self._room(call)
        thread_ts = call.text("thread_ts")
        if thread_ts is None or thread_ts not in room.messages:
            raise SlackError("invalid_thread_ts")
        return room, thread_ts


def _add(message: Message, call: Call) -> None:
    """Add markdown_text and chunks to a streaming message: its text, task cards and blocks."""
    text = str(message.get("text", "")) + (call.text("markdown_text") or "")
    blocks: list[dict[str, Any]] = [block for block in message.get("blocks", []) if block["type"] != "markdown"]
    chunks = call.arguments.get("chunks") or []
    if not isinstance(chunks, list):
        raise SlackError("invalid_chunks")
    for chunk in chunks:
        kind = chunk.get("type") if isinstance(chunk, dict) else None
        if kind == "markdown_text":
            text += str(chunk.get("text", ""))
        elif kind == "task_update" and chunk.get("status", "pending") in TASK_STATES:
            _task(blocks, chunk)
        elif kind == "plan_update":
            _plan(blocks)["title"] = str(chunk.get("title", ""))
        elif kind == "blocks":
            check_blocks(chunk.get("blocks"))
            blocks += with_block_ids(chunk["blocks"])
        else:
            raise SlackError("invalid_chunks")
    if len(text) > MARKDOWN_CHARS:
        raise SlackError("msg_blocks_too_long")
    if len(blocks) >= 50:
        raise SlackError("msg_blocks_too_many")
    message["text"] = text
    if text:
        blocks.append({"type": "markdown", "text": text, "block_id": "stream"})
    message["blocks"] = blocks


def _plan(blocks: list[dict[str, Any]]) -> dict[str, Any]:
    plan = next((block for block in blocks if block["type"] == "plan"), None)
    if plan is None:
        plan = {"type": "plan", "title": "", "tasks": [], "block_id": "plan"}
        blocks.insert(0, plan)
    return plan


def _task(blocks: list[dict[str, Any]], chunk: dict[str, Any]) -> None:
    tasks = _plan(blocks)["tasks"]
    card = next((task for task in tasks if task["task_id"] == chunk.get("id")), None)
    if card is None:
        card = {"type": "task_card", "task_id": chunk.get("id"), "title": "", "status": "pending"}
        tasks.append(card)
    for key in ("title", "status", "details", "output", "sources"):
        if chunk.get(key) is not None:
            card[key] = chunk[key]
