"""What was said: channels, DMs, threads, messages, ephemeral texts and thread statuses.

Decides ids and timestamps and keeps Slack's own message objects; it checks no rights (the Web
API does) and sends nothing (listeners do). Failure it can cause: messages live in memory only.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from bot.simulator.clock import Clock
from bot.simulator.tickets import new_id
from bot.simulator.workspace import Workspace

Message = dict[str, Any]
STATUS_LIFE_S = 120.0


@dataclass
class Room:
    """A channel or a DM with everything in it; `messages` by ts, in order of ts."""

    id: str
    name: str
    members: list[str]
    created: int
    creator: str
    with_user: str | None = None
    is_private: bool = False
    is_archived: bool = False
    is_ext_shared: bool = False
    topic: str = ""
    is_mpim: bool = False
    messages: dict[str, Message] = field(default_factory=dict)
    ephemerals: dict[str, dict[str, Message]] = field(default_factory=dict)
    last_read: dict[str, str] = field(default_factory=dict)

    @property
    def is_im(self) -> bool:
        """Whether this is a direct conversation with the bot."""
        return self.with_user is not None

    def thread(self, ts: str) -> list[Message]:
        """Return the parent with this ts (when it exists) and its replies, oldest first."""
        return [m for m in self.messages.values() if m["ts"] == ts or m.get("thread_ts") == ts]


@dataclass
class Status:
    """A thread's "Atlas is ..." line; it ends at `until` (monotonic seconds)."""

    channel: str
    thread_ts: str
    status: str
    loading_messages: list[str]
    until: float


@dataclass
class Change:
    """One thing that happened in a room: posted, updated, deleted, ephemeral, status, channels."""

    what: str
    room: Room
    message: Message
    previous: Message | None = None
    user: str | None = None


class Rooms:
    """All rooms of the workspace. `listeners` are called after each change, in order."""

    def __init__(self, workspace: Workspace, clock: Clock) -> None:
        self._workspace = workspace
        self._clock = clock
        self._last_ts = 0
        self.listeners: list[Callable[[Change], None]] = []
        self.statuses: dict[tuple[str, str], Status] = {}
        self.sessions: dict[tuple[str, str], dict[str, Any]] = {}
        self.all: dict[str, Room] = {}
        born = int(clock.now()) - 86_400 * 30
        for spec in workspace.channels:
            self.all[spec.id] = Room(
                spec.id,
                spec.name,
                list(spec.members),
                born,
                spec.members[-1] if spec.members else workspace.bot_user_id,
                # a group DM is private: who is not in it does not know of it
                is_private=spec.is_private or spec.is_mpim,
                is_archived=spec.is_archived,
                is_ext_shared=spec.is_ext_shared,
                topic=spec.topic,
                is_mpim=spec.is_mpim,
            )

    def next_ts(self) -> str:
        """Return a timestamp id greater than every earlier one."""
        self._last_ts = max(self._last_ts + 1, int(self._clock.now() * 1_000_000))
        return f"{self._last_ts // 1_000_000}.{self._last_ts % 1_000_000:06d}"

    def get(self, channel: str) -> Room | None:
        """Return the room with this id, or the channel with this name (with or without #)."""
        room = self.all.get(channel)
        if room is None:
            name = channel.removeprefix("#")
            room = next((r for r in self.all.values() if not r.is_im and r.name == name), None)
        return room

    def dm(self, user: str) -> Room:
        """Return the DM between this person and the bot, opening it if needed."""
        for room in self.all.values():
            if room.with_user == user:
                return room
        room = Room(
            # stable per person, so that a restart of the page finds the same address
            "D" + user[1:],
            "directmessage",
            [user, self._workspace.bot_user_id],
            int(self._clock.now()),
            user,
            with_user=user,
        )
        self.all[room.id] = room
        self._tell(Change("channels", room, {}))
        return room

    def group_dm(self, users: list[str]) -> Room:
        """Return the group DM of exactly these people, in their order, opening it if needed."""
        for room in self.all.values():
            if room.is_mpim and set(room.members) == set(users):
                return room
        people = [self._workspace.person(user) for user in users]
        name = "mpdm-" + "--".join(person.name if person else "someone" for person in people) + "-1"
        creator = self._workspace.bot_user_id
        room = Room(new_id("C0", 9), name, list(users), int(self._clock.now()), creator, is_private=True, is_mpim=True)
        self.all[room.id] = room
        self._tell(Change("channels", room, {}))
        return room

    def post(self, room: Room, message: Message) -> Message:
        """Store a message (its ts is assigned) and keep its thread's counters."""
        message = {**message, "ts": self.next_ts()}
        thread_ts = message.get("thread_ts")
        parent = room.messages.get(thread_ts) if thread_ts else None
        if parent is not None:
            message["parent_user_id"] = parent.get("user", "")
            self._count_reply(room, parent, message)
        room.messages[message["ts"]] = message
        if message.get("user"):
            room.last_read[message["user"]] = message["ts"]
        if message.get("user") == self._workspace.bot_user_id and thread_ts:
            self.set_status(room, thread_ts, "", [])
        self._tell(Change("posted", room, message))
        if parent is not None:
            self._tell(Change("counted", room, parent))
        return message

    def replace(self, room: Room, message: Message, quiet: bool = False) -> None:
        """Put this version in the place of the message with the same ts."""
        previous = room.messages[message["ts"]]
        room.messages[message["ts"]] = message
        self._tell(Change("counted" if quiet else "updated", room, message, previous))

    def remove(self, room: Room, ts: str) -> None:
        """Delete a message; a parent with replies leaves a tombstone, as in Slack."""
        message = room.messages[ts]
        if message.get("reply_count"):
            kept = {k: v for k, v in message.items() if k in ("ts", "thread_ts", "reply_count")}
            room.messages[ts] = {
                "type": "message",
                "subtype": "tombstone",
                "user": "USLACKBOT",
                "hidden": True,
                "text": "This message was deleted.",
                **kept,
            }
            self._tell(Change("deleted", room, message))
            self._tell(Change("counted", room, room.messages[ts]))
            return
        del room.messages[ts]
        self._tell(Change("deleted", room, message))
        parent = room.messages.get(message.get("thread_ts", ""))
        if parent is not None and parent["ts"] != ts:
            parent["reply_count"] = max(0, parent.get("reply_count", 1) - 1)
            self._tell(Change("counted", room, parent))

    def whisper(self, room: Room, user: str, message: Message) -> Message:
        """Store an ephemeral message for one person."""
        message = {**message, "ts": self.next_ts()}
        room.ephemerals.setdefault(user, {})[message["ts"]] = message
        self._tell(Change("ephemeral", room, message, user=user))
        return message

    def rewhisper(self, room: Room, user: str, message: Message) -> None:
        """Replace an ephemeral message (only a response URL may)."""
        room.ephemerals.setdefault(user, {})[message["ts"]] = message
        self._tell(Change("ephemeral", room, message, user=user))

    def unwhisper(self, room: Room, user: str, ts: str) -> None:
        """Remove an ephemeral message."""
        message = room.ephemerals.get(user, {}).pop(ts, None)
        if message is not None:
            self._tell(Change("deleted", room, message, user=user))

    def set_status(self, room: Room, thread_ts: str, status: str, loading: list[str]) -> None:
        """Set or (with "") clear the status line of a thread."""
        key = (room.id, thread_ts)
        if not status and key not in self.statuses:
            return
        entry = Status(room.id, thread_ts, status, loading, self._clock.monotonic() + STATUS_LIFE_S)
        if status:
            self.statuses[key] = entry
        else:
            del self.statuses[key]
        shown = {"thread_ts": thread_ts, "status": status, "loading_messages": loading}
        self._tell(Change("status", room, shown))

    def live_statuses(self) -> list[Status]:
        """Return the statuses that have not run out (2 minutes)."""
        now = self._clock.monotonic()
        return [status for status in self.statuses.values() if status.until > now]

    def announce(self, room: Room) -> None:
        """Tell listeners that a room itself changed (members, archived, shared)."""
        self._tell(Change("channels", room, {}))

    def _count_reply(self, room: Room, parent: Message, reply: Message) -> None:
        users = list(parent.get("reply_users", []))
        author = reply.get("user")
        if author and author not in users:
            users.append(author)
        parent.update(
            thread_ts=parent["ts"],
            reply_count=parent.get("reply_count", 0) + 1,
            reply_users=users,
            reply_users_count=len(users),
            latest_reply=reply["ts"],
            is_locked=False,
            subscribed=self._workspace.bot_user_id in users,
        )

    def _tell(self, change: Change) -> None:
        for listener in self.listeners:
            listener(change)


def with_block_ids(blocks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a deep copy in which every block has a block_id, every interactive element an id."""
    filled = copy.deepcopy(blocks)
    for block in filled:
        block.setdefault("block_id", new_id("", 5))
        elements = [*block.get("elements", []), block.get("accessory"), block.get("element")]
        for element in elements:
            if isinstance(element, dict) and _interactive(str(element.get("type", ""))):
                element.setdefault("action_id", new_id("", 5))
    return filled


def _interactive(kind: str) -> bool:
    return kind not in ("", "image", "mrkdwn", "plain_text", "url") and not kind.startswith("rich_text_")
