"""What each person sees, as a snapshot and as live frames.

Decides who may see what: members their channels, one person an ephemeral text, a modal, a Home.
It takes no commands. Failure it can cause: a page that falls behind by more than `QUEUE` frames
is cut off and has to load the snapshot again.
"""

import asyncio
from collections.abc import Callable
from typing import Any

from bot.simulator.clock import Clock
from bot.simulator.delivery import Interaction
from bot.simulator.rooms import Change, Message, Room, Rooms
from bot.simulator.views import ViewChange, Views
from bot.simulator.workspace import AppManifest, Workspace

Frame = dict[str, Any]
QUEUE = 10_000


class Live:
    """Snapshots and frames for the pages that are open."""

    def __init__(
        self,
        workspace: Workspace,
        manifest: AppManifest,
        rooms: Rooms,
        views: Views,
        clock: Clock,
        connected: Callable[[], bool],
        panel: bool,
    ) -> None:
        self._workspace = workspace
        self._manifest = manifest
        self._rooms = rooms
        self._views = views
        self._clock = clock
        self._connected = connected
        self._panel = panel
        self._pages: dict[asyncio.Queue[Frame | None], str] = {}

    def subscribe(self, user: str) -> "asyncio.Queue[Frame | None]":
        """Return a queue of this person's frames; None in it means: cut off, load again."""
        queue: asyncio.Queue[Frame | None] = asyncio.Queue(QUEUE)
        self._pages[queue] = user
        return queue

    def unsubscribe(self, queue: "asyncio.Queue[Frame | None]") -> None:
        """Forget a page."""
        self._pages.pop(queue, None)

    def snapshot(self, user: str) -> dict[str, Any]:
        """Return all that this person sees."""
        rooms = [room for room in self._rooms.all.values() if user in room.members]
        return {
            "now": self._clock.now(),
            "team": {"id": self._workspace.team_id, "name": self._workspace.team_name},
            "me": user,
            "bot": self._bot(),
            "people": self.people(),
            "groups": {group.id: group.handle for group in self._workspace.user_groups},
            "channels": self.channels(user),
            "messages": {room.id: self._messages(room, user) for room in rooms},
            "home": self._views.homes.get(user),
            "views": list(self._views.stacks.get(user, [])),
            "statuses": [
                {
                    "channel": status.channel,
                    "thread_ts": status.thread_ts,
                    "status": status.status,
                    "loading_messages": status.loading_messages,
                }
                for status in self._rooms.live_statuses()
                if user in self._rooms.all[status.channel].members
            ],
            "panel": self._panel,
            "unread": {room.id: self._unread(room, user) for room in rooms},
        }

    def people(self) -> list[dict[str, Any]]:
        """Return everyone, as the page shows them."""
        return [
            {
                "id": person.id,
                "name": person.name,
                "real_name": person.real_name,
                "title": person.title,
                "kind": person.kind,
                "team_id": person.team_id,
                "color": person.color,
            }
            for person in self._workspace.people
        ]

    def channels(self, user: str) -> list[dict[str, Any]]:
        """Return this person's channels and DM."""
        return [
            {
                "id": room.id,
                "name": room.name,
                "kind": "im" if room.is_im else "mpim" if room.is_mpim else "channel",
                "members": list(room.members),
                "is_ext_shared": room.is_ext_shared,
                "is_private": room.is_private,
                "is_archived": room.is_archived,
                "topic": room.topic,
                "with": self._workspace.bot_user_id if room.is_im else None,
            }
            for room in self._rooms.all.values()
            if user in room.members
        ]

    def room_changed(self, change: Change) -> None:
        """Turn a change in a room into frames."""
        room, message = change.room, change.message
        audience = [change.user] if change.user else list(room.members)
        if change.what == "channels":
            for user in self._users(room.members):
                self._send([user], {"event": "channels", "channels": self.channels(user)})
        elif change.what == "status":
            self._send(audience, {"event": "status", "channel": room.id, **message})
        elif change.what == "deleted":
            frame = {"event": "message_deleted", "channel": room.id, "ts": message["ts"]}
            self._send(audience, frame)
        else:
            self._send(audience, {"event": "message", "channel": room.id, "message": message})

    def view_changed(self, change: ViewChange) -> None:
        """Turn a change of a view into frames."""
        if change.what == "closed":
            frame: Frame = {"event": "view_closed", "view_id": change.view["id"]}
        elif change.what == "errors":
            frame = {"event": "view_errors", "view_id": change.view["id"], "errors": change.errors}
        elif change.what == "home":
            frame = {"event": "home", "view": dict(change.view)}
        else:
            frame = {"event": "view", "view": dict(change.view)}
        self._send([change.user], frame)

    def interaction(self, interaction: Interaction) -> None:
        """Show how an interaction fares, to the person whose it is."""
        frame = {
            "event": "interaction",
            "id": interaction.id,
            "state": interaction.state,
            "kind": interaction.kind,
            "channel": interaction.channel,
            "message_ts": interaction.message_ts,
            "action_id": interaction.action_id,
            "error": interaction.error,
        }
        self._send([interaction.user], frame)

    def bot(self, connected: bool) -> None:
        """Show that the app came or went."""
        self._send(None, {"event": "bot", "connected": connected})

    def people_changed(self) -> None:
        """Show a change among the people."""
        self._send(None, {"event": "people", "people": self.people()})

    def clock_moved(self) -> None:
        """Show the new time."""
        self._send(None, {"event": "clock", "now": self._clock.now()})

    def read(self, user: str, channel: str) -> None:
        """Note that this person has seen everything in this channel."""
        room = self._rooms.all.get(channel)
        if room is not None and room.messages:
            room.last_read[user] = max(room.messages)

    def close(self) -> None:
        """Cut off every page."""
        for queue in list(self._pages):
            self._cut(queue)

    def _bot(self) -> dict[str, Any]:
        return {
            "user_id": self._workspace.bot_user_id,
            "name": self._manifest.name,
            "app_id": self._workspace.app_id,
            "connected": self._connected(),
            "commands": [
                {"command": c.command, "description": c.description, "usage_hint": c.usage_hint}
                for c in self._manifest.commands
            ],
        }

    def _messages(self, room: Room, user: str) -> list[Message]:
        own = room.ephemerals.get(user, {})
        both = [*room.messages.values(), *own.values()]
        return sorted(both, key=lambda message: str(message["ts"]))

    @staticmethod
    def _unread(room: Room, user: str) -> int:
        seen = room.last_read.get(user, "")
        return sum(1 for m in room.messages.values() if m["ts"] > seen and m.get("user") != user)

    def _users(self, among: list[str]) -> list[str]:
        return [user for user in set(self._pages.values()) if user in among]

    def _send(self, users: list[str] | None, frame: Frame) -> None:
        for queue, user in list(self._pages.items()):
            if users is not None and user not in users:
                continue
            try:
                # a copy: the stored object may change before the frame is written
                queue.put_nowait(_copied(frame))
            except asyncio.QueueFull:
                self._cut(queue)

    def _cut(self, queue: "asyncio.Queue[Frame | None]") -> None:
        self._pages.pop(queue, None)
        while queue.full():
            queue.get_nowait()
        queue.put_nowait(None)


def _copied(frame: Frame) -> Frame:
    return {k: dict(v) if isinstance(v, dict) else v for k, v in frame.items()}
