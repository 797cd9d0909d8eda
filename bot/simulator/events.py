"""Which events a change in a room sends to the app.

Decides by the manifest's subscriptions and scopes, and by Slack's rules: a mention in a DM is a
message.im, the bot's own posts come back to it, edits are message_changed. It delivers nothing.
Failure it can cause: an app that is not subscribed hears nothing, as in Slack.
"""

import re

from bot.simulator.delivery import Dispatch
from bot.simulator.payloads import Payload, Payloads, channel_type
from bot.simulator.rooms import Change, Room, Rooms
from bot.simulator.workspace import AppManifest, Workspace

HISTORY_SCOPE = {"im": "im:history", "mpim": "mpim:history", "group": "groups:history", "channel": "channels:history"}
SUBSCRIPTION = {"im": "message.im", "mpim": "message.mpim", "group": "message.groups", "channel": "message.channels"}


class Events:
    """Turns changes into events for the one installed app."""

    def __init__(
        self,
        workspace: Workspace,
        manifest: AppManifest,
        rooms: Rooms,
        payloads: Payloads,
        dispatch: Dispatch,
    ) -> None:
        self._workspace = workspace
        self._manifest = manifest
        self._rooms = rooms
        self._payloads = payloads
        self._dispatch = dispatch
        self._mention = re.compile(rf"<@{workspace.bot_user_id}(\|[^>]*)?>")

    def changed(self, change: Change) -> None:
        """Send what this change means to the app."""
        room, message = change.room, change.message
        if self._workspace.bot_user_id not in room.members or change.user is not None:
            return
        if change.what == "posted":
            own = message.get("bot_id") == self._workspace.bot_id
            if not room.is_im and not own and self._mention.search(message.get("text", "")):
                self._send("app_mention", "app_mentions:read", room, self._payloads.app_mention(room, message))
            self._send_message(room, self._payloads.message(room, message))
        elif change.what == "updated" and change.previous is not None:
            ts = self._rooms.next_ts()
            self._send_message(room, self._payloads.message_changed(room, message, change.previous, ts))
        elif change.what == "deleted":
            ts = self._rooms.next_ts()
            self._send_message(room, self._payloads.message_deleted(room, message, ts))

    def home_opened(self, user: str, tab: str, view: Payload | None) -> None:
        """Send app_home_opened when the app listens to it."""
        room = self._rooms.dm(user)
        event = self._payloads.app_home_opened(user, room.id, tab, view)
        self._send("app_home_opened", None, room, event)

    def _send_message(self, room: Room, event: Payload) -> None:
        kind = channel_type(room)
        self._send(SUBSCRIPTION[kind], HISTORY_SCOPE[kind], room, event)

    def _send(self, subscription: str, scope: str | None, room: Room, event: Payload) -> None:
        if subscription not in self._manifest.events:
            return
        if scope is not None and scope not in self._manifest.scopes:
            return
        self._dispatch.event(self._payloads.wrapper(event, room.is_ext_shared))
