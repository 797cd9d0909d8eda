"""Web API methods that write messages: chat.*, reactions.*, statuses and streams.

Decides rights, limits and the stored message, as Slack documents them; events and the page follow
from the store. Failure it can cause: a rule that is stricter here than in Slack fails a good bot.
Source: Slack, method reference pages; error codes as in slack-api-ref.
"""

import copy
import json
from typing import Any

from bot.simulator.blockkit import MARKDOWN_CHARS, lint_blocks
from bot.simulator.calls import Call, SlackError
from bot.simulator.clock import Clock
from bot.simulator.payloads import bot_profile
from bot.simulator.rooms import Message, Room, Rooms, with_block_ids
from bot.simulator.workspace import AppManifest, Workspace

Answer = dict[str, Any]
POST_CHARS = 40_000
UPDATE_CHARS = 4_000
METADATA_BYTES = 16_000
ATTACHMENTS = 100


class ChatMethods:
    """The chat.* family for one app."""

    def __init__(self, workspace: Workspace, manifest: AppManifest, rooms: Rooms, clock: Clock) -> None:
        self._workspace = workspace
        self._manifest = manifest
        self._rooms = rooms
        self._clock = clock
        # what happens to a reply under a parent that does not exist: Slack documents neither
        self.refuse_orphan_replies = False

    def room(self, call: Call, name: str = "channel", outside: str = "not_in_channel") -> Room:
        """Return the room that a write names by id, #name or (a DM) user id.

        Raises:
            SlackError: channel_not_found, or `outside` for a public channel without the bot
                (chat.delete and reactions.* document no not_in_channel).
        """
        channel = call.need(name, "channel_not_found")
        if channel[:1] in ("U", "W"):
            person = self._workspace.person(channel)
            if person is None or person.kind in ("deactivated", "bot"):
                raise SlackError("channel_not_found")
            room = self._rooms.dm(channel)
        else:
            found = self._rooms.get(channel)
            if found is None:
                raise SlackError("channel_not_found")
            room = found
        if self._workspace.bot_user_id not in room.members:
            raise SlackError("channel_not_found" if room.is_private else outside)
        return room

    def writable(self, call: Call, name: str = "channel") -> Room:
        """Return the room of a new message; see `room`."""
        room = self.room(call, name)
        if room.is_archived:
            raise SlackError("is_archived")
        if room.is_im and not self._manifest.messages_tab:
            raise SlackError("messages_tab_disabled")
        return room

    def post_message(self, call: Call) -> Answer:
        """chat.postMessage."""
        room = self.writable(call)
        content, warnings = self.content(call)
        thread_ts = self._thread(call, room)
        message = self._rooms.post(room, {**self.authored(), **content, **thread_ts})
        answer: Answer = {"ok": True, "channel": room.id, "ts": message["ts"], "message": _shown(message)}
        if warnings:
            answer["warning"] = ",".join(warnings)
            answer["response_metadata"] = {"warnings": warnings}
        return answer

    def update(self, call: Call) -> Answer:
        """chat.update: only own, not ephemeral, not streaming; text alone drops the blocks."""
        channel = call.need("channel", "channel_not_found")
        room = self._rooms.get(channel) if channel[:1] in ("C", "D", "G") else None
        if room is None or self._workspace.bot_user_id not in room.members:
            raise SlackError("channel_not_found")
        message = self._own(call, room, "cant_update_message")
        if room.is_archived:
            raise SlackError("is_inactive")
        if message.get("streaming_state") == "in_progress":
            raise SlackError("streaming_state_conflict")
        if len(call.text("text") or "") > UPDATE_CHARS:
            raise SlackError("msg_too_long")
        keeps = "attachments" in message and "attachments" not in call.arguments
        content, _ = self.content(call, no_text_error=not keeps)
        updated = {k: v for k, v in message.items() if k not in ("blocks", "edited", "attachments")}
        updated.update(content)
        if "text" not in content:
            updated["text"] = message.get("text", "")
        if keeps:
            updated["attachments"] = message["attachments"]
        if call.arguments.get("metadata") == {}:
            updated.pop("metadata", None)
        if "blocks" not in content:
            # the "(edited)" mark is Slack's for text-only updates
            updated["edited"] = {"user": message["user"], "ts": self._rooms.next_ts()}
        self._rooms.replace(room, updated)
        return {
            "ok": True,
            "channel": room.id,
            "ts": updated["ts"],
            "text": updated["text"],
            "message": _shown(updated),
        }

    def delete(self, call: Call) -> Answer:
        """chat.delete."""
        room = self.room(call, outside="channel_not_found")
        message = self._own(call, room, "cant_delete_message")
        self._rooms.remove(room, message["ts"])
        return {"ok": True, "channel": room.id, "ts": message["ts"]}

    def post_ephemeral(self, call: Call) -> Answer:
        """chat.postEphemeral: seen by one member of the channel, gone on reload in Slack."""
        room = self.writable(call)
        user = call.need("user", "user_not_in_channel")
        if user not in room.members:
            raise SlackError("user_not_in_channel")
        content, _ = self.content(call, long_error="msg_too_long")
        message = {**self.authored(), **content, **self._thread(call, room)}
        stored = self._rooms.whisper(room, user, {**message, "ephemeral": True})
        return {"ok": True, "message_ts": stored["ts"]}

    def permalink(self, call: Call) -> Answer:
        """chat.getPermalink: an address of this simulator's page."""
        room = self._rooms.get(call.need("channel", "channel_not_found"))
        if room is None or self._workspace.bot_user_id not in room.members:
            raise SlackError("channel_not_found")
        ts = call.need("message_ts", "message_not_found")
        message = room.messages.get(ts)
        if message is None:
            raise SlackError("message_not_found")
        link = f"{call.url}/archives/{room.id}/p{ts.replace('.', '')}"
        parent = message.get("thread_ts")
        if parent and parent != ts:
            link += f"?thread_ts={parent}&cid={room.id}"
        return {"ok": True, "channel": room.id, "permalink": link}

    def react(self, call: Call) -> Answer:
        """reactions.add."""
        message, name = self._reacted(call)
        reactions = message.setdefault("reactions", [])
        entry = next((r for r in reactions if r["name"] == name), None)
        bot = self._workspace.bot_user_id
        if entry is not None and bot in entry["users"]:
            raise SlackError("already_reacted")
        if entry is None:
            entry = {"name": name, "users": [], "count": 0}
            reactions.append(entry)
        entry["users"].append(bot)
        entry["count"] += 1
        self._rooms.replace(self.room(call), message, quiet=True)
        return {"ok": True}

    def unreact(self, call: Call) -> Answer:
        """reactions.remove."""
        message, name = self._reacted(call)
        bot = self._workspace.bot_user_id
        entry = next((r for r in message.get("reactions", []) if r["name"] == name), None)
        if entry is None or bot not in entry["users"]:
            raise SlackError("no_reaction")
        entry["users"].remove(bot)
        entry["count"] -= 1
        message["reactions"] = [r for r in message["reactions"] if r["count"]]
        self._rooms.replace(self.room(call), message, quiet=True)
        return {"ok": True}

    def authored(self) -> Message:
        """Return the fields that every message of the bot carries."""
        return {
            "type": "message",
            "user": self._workspace.bot_user_id,
            "bot_id": self._workspace.bot_id,
            "app_id": self._workspace.app_id,
            "team": self._workspace.team_id,
            "bot_profile": bot_profile(self._workspace, self._manifest.name),
        }

    def content(
        self, call: Call, no_text_error: bool = True, long_error: str | None = None
    ) -> tuple[Message, list[str]]:
        """Check and return text, blocks, attachments and metadata, with warnings.

        Raises:
            SlackError: no_text, markdown_text_conflict, invalid_blocks(_format), msg_too_long,
                too_many_attachments, metadata_* errors.
        """
        text = call.text("text")
        markdown = call.text("markdown_text")
        blocks = call.arguments.get("blocks")
        attachments = call.arguments.get("attachments")
        warnings: list[str] = []
        content: Message = {}
        if markdown is not None:
            if text is not None or blocks:
                raise SlackError("markdown_text_conflict")
            if len(markdown) > MARKDOWN_CHARS:
                # the only documented "too long" of chat.postMessage speaks of blocks
                raise SlackError(long_error or _too_long(call.method))
            text, blocks = markdown, [{"type": "markdown", "text": markdown}]
        if text is None and not blocks and not attachments and no_text_error and blocks != []:
            raise SlackError("no_text")
        if text is None and blocks == [] and call.method != "chat.update":
            raise SlackError("no_text")
        if text is not None and len(text) > POST_CHARS:
            if long_error:
                raise SlackError(long_error)
            text = text[:POST_CHARS]
            warnings.append("message_truncated")
        if text is not None or blocks:
            # what Slack stores for blocks that come without a fallback text
            content["text"] = text if text is not None else "This content can't be displayed."
        if blocks is not None:
            check_blocks(blocks)
            if blocks:
                content["blocks"] = with_block_ids(blocks)
        if attachments is not None:
            if not isinstance(attachments, list) or len(attachments) > ATTACHMENTS:
                raise SlackError("too_many_attachments")
            if attachments:
                content["attachments"] = [{"id": n, **copy.deepcopy(a)} for n, a in enumerate(attachments, 1)]
        if call.arguments.get("metadata"):
            content["metadata"] = check_metadata(call.arguments["metadata"])
        return content, warnings

    def _thread(self, call: Call, room: Room) -> Message:
        thread_ts = call.text("thread_ts")
        if thread_ts is None:
            return {}
        parent = room.messages.get(thread_ts)
        orphan = parent is None and self.refuse_orphan_replies
        # Slack: "avoid using a reply's ts value; use its parent instead"
        reply = parent is not None and parent.get("thread_ts", thread_ts) != thread_ts
        if orphan or reply:
            raise SlackError("cannot_reply_to_message")
        if call.method == "chat.postMessage" and call.flag("reply_broadcast"):
            return {"thread_ts": thread_ts, "subtype": "thread_broadcast"}
        return {"thread_ts": thread_ts}

    def _own(self, call: Call, room: Room, error: str) -> Message:
        message = room.messages.get(call.need("ts", "message_not_found"))
        if message is None or message.get("subtype") == "tombstone":
            raise SlackError("message_not_found")
        if message.get("bot_id") != self._workspace.bot_id:
            raise SlackError(error)
        return message

    def _reacted(self, call: Call) -> tuple[Message, str]:
        room = self.room(call, outside="channel_not_found")
        name = call.need("name", "invalid_name").strip(":")
        message = room.messages.get(call.need("timestamp", "no_item_specified"))
        if message is None:
            raise SlackError("message_not_found")
        return message, name


def check_blocks(blocks: object) -> None:
    """Refuse blocks that Slack would refuse on a message.

    Raises:
        SlackError: invalid_blocks_format, invalid_blocks (with every finding).
    """
    if not isinstance(blocks, list):
        raise SlackError("invalid_blocks_format")
    found = lint_blocks(blocks)
    if found:
        raise SlackError("invalid_blocks", errors=found, response_metadata={"messages": found})


def check_metadata(metadata: object) -> dict[str, Any]:
    """Return valid message metadata.

    Raises:
        SlackError: invalid_metadata_format, metadata_too_large.
    """
    if (
        not isinstance(metadata, dict)
        or not isinstance(metadata.get("event_type"), str)
        or not metadata["event_type"]
        or not isinstance(metadata.get("event_payload"), dict)
    ):
        raise SlackError("invalid_metadata_format")
    if len(json.dumps(metadata).encode()) > METADATA_BYTES:
        raise SlackError("metadata_too_large")
    return {"event_type": metadata["event_type"], "event_payload": metadata["event_payload"]}


def _too_long(method: str) -> str:
    return "msg_too_long" if method != "chat.postMessage" else "msg_blocks_too_long"


def _shown(message: Message) -> Message:
    return {key: value for key, value in message.items() if key != "ephemeral"}
