"""Web API methods that read: conversations.*, users.*, usergroups.*, team, bots, auth.

Decides what the app may see and how Slack shows it. It changes nothing but memberships
(conversations.open, conversations.join). Failure it can cause: none of its own.
Source: Slack, method reference pages; keys as in java-slack-sdk's samples.
"""

from typing import Any, TypeVar

from bot.simulator.calls import Call, SlackError
from bot.simulator.payloads import bot_profile
from bot.simulator.rooms import Message, Room, Rooms
from bot.simulator.workspace import AppManifest, Person, UserGroup, Workspace

Answer = dict[str, Any]
T = TypeVar("T")
# Slack, conversations.open: "1 to 8 users"
MOST_IN_A_GROUP_DM = 8


class ReadMethods:
    """Everything an app can look up."""

    def __init__(self, workspace: Workspace, manifest: AppManifest, rooms: Rooms) -> None:
        self._workspace = workspace
        self._manifest = manifest
        self._rooms = rooms

    def auth_test(self, call: Call) -> Answer:
        """auth.test for the bot token."""
        return {
            "ok": True,
            "url": f"{call.url}/",
            "team": self._workspace.team_name,
            "user": self._manifest.name.lower(),
            "team_id": self._workspace.team_id,
            "user_id": self._workspace.bot_user_id,
            "bot_id": self._workspace.bot_id,
            "is_enterprise_install": False,
        }

    def team_info(self, call: Call) -> Answer:
        """team.info."""
        team = {
            "id": self._workspace.team_id,
            "name": self._workspace.team_name,
            "url": f"{call.url}/",
            "domain": self._workspace.domain,
            "email_domain": "northwind.example",
            "icon": {"image_default": True},
        }
        if call.text("team") not in (None, self._workspace.team_id):
            raise SlackError("team_not_found")
        return {"ok": True, "team": team}

    def bots_info(self, call: Call) -> Answer:
        """bots.info."""
        if call.text("bot") not in (None, self._workspace.bot_id):
            raise SlackError("bot_not_found")
        profile = bot_profile(self._workspace, self._manifest.name)
        profile.pop("team_id")
        return {"ok": True, "bot": {**profile, "user_id": self._workspace.bot_user_id}}

    def users_info(self, call: Call) -> Answer:
        """users.info; the email needs users:read.email."""
        person = self._workspace.person(call.text("user") or "")
        if person is None:
            raise SlackError("user_not_found")
        return {"ok": True, "user": self.user(person)}

    def users_list(self, call: Call) -> Answer:
        """users.list, paged."""
        people, cursor = _page(self._workspace.people, call, 200)
        return {
            "ok": True,
            "members": [self.user(person) for person in people],
            "cache_ts": 1_790_000_000,
            "response_metadata": {"next_cursor": cursor},
        }

    def usergroups_list(self, call: Call) -> Answer:
        """usergroups.list."""
        groups = [self._group(group, call) for group in self._workspace.user_groups]
        return {"ok": True, "usergroups": groups}

    def usergroup_users(self, call: Call) -> Answer:
        """usergroups.users.list."""
        for group in self._workspace.user_groups:
            if group.id == call.text("usergroup"):
                return {"ok": True, "users": list(group.users)}
        raise SlackError("no_such_subteam")

    def open(self, call: Call) -> Answer:
        """conversations.open: a DM with one person, or (mpim:write) a group DM with up to eight."""
        channel = call.text("channel")
        if channel:
            room = self._rooms.get(channel)
            if room is None or not (room.is_im or room.is_mpim):
                raise SlackError("channel_not_found")
        else:
            given = call.arguments.get("users") or ""
            users = given if isinstance(given, list) else [u for u in str(given).split(",") if u]
            if not users:
                raise SlackError("users_list_not_supplied")
            people = [self._reached(str(user).strip()) for user in users]
            room = self._rooms.dm(people[0].id) if len(people) == 1 else self._group_dm(people)
        shown = self.channel(room) if call.flag("return_im") else {"id": room.id}
        return {"ok": True, "channel": shown}

    def _reached(self, user: str) -> Person:
        person = self._workspace.person(user)
        if person is None:
            raise SlackError("user_not_found")
        if person.kind == "deactivated":
            raise SlackError("user_disabled")
        return person

    def _group_dm(self, people: list[Person]) -> Room:
        if "mpim:write" not in self._manifest.scopes:
            held = ",".join(self._manifest.scopes)
            raise SlackError("missing_scope", needed="mpim:write", provided=held)
        if len(people) > MOST_IN_A_GROUP_DM:
            raise SlackError("too_many_users")
        ids = [person.id for person in people if person.id != self._workspace.bot_user_id]
        return self._rooms.group_dm([*dict.fromkeys(ids), self._workspace.bot_user_id])

    def info(self, call: Call) -> Answer:
        """conversations.info."""
        room = self.seen(call)
        shown = self.channel(room)
        if call.flag("include_num_members"):
            shown["num_members"] = len(room.members)
        return {"ok": True, "channel": shown}

    def listing(self, call: Call) -> Answer:
        """conversations.list, paged, by `types`."""
        types = (call.text("types") or "public_channel").replace(" ", "").split(",")
        if any(t not in ("public_channel", "private_channel", "mpim", "im") for t in types):
            raise SlackError("invalid_types")
        rooms = [
            room
            for room in self._rooms.all.values()
            if kind_of(room) in types
            and (kind_of(room) == "public_channel" or self._workspace.bot_user_id in room.members)
            and not (room.is_archived and call.flag("exclude_archived"))
        ]
        shown, cursor = _page(rooms, call, 100)
        return {
            "ok": True,
            "channels": [self.channel(room) for room in shown],
            "response_metadata": {"next_cursor": cursor},
        }

    def members(self, call: Call) -> Answer:
        """conversations.members, paged."""
        members, cursor = _page(self.seen(call).members, call, 100)
        return {"ok": True, "members": members, "response_metadata": {"next_cursor": cursor}}

    def join(self, call: Call) -> Answer:
        """conversations.join: public channels only."""
        room = self.seen(call)
        if room.is_im or room.is_private:
            raise SlackError("method_not_supported_for_channel_type")
        if room.is_archived:
            raise SlackError("is_archived")
        answer: Answer = {"ok": True}
        if self._workspace.bot_user_id in room.members:
            answer["warning"] = "already_in_channel"
            answer["response_metadata"] = {"warnings": ["already_in_channel"]}
        else:
            room.members.append(self._workspace.bot_user_id)
            self._rooms.announce(room)
        return {**answer, "channel": self.channel(room)}

    def replies(self, call: Call) -> Answer:
        """conversations.replies: the parent first, then replies, oldest first."""
        room = self.seen(call)
        ts = call.text("ts")
        if ts is None or ts not in room.messages:
            raise SlackError("thread_not_found")
        thread = room.thread(ts)
        replies = [m for m in thread if m["ts"] == ts or _within(m, call)]
        page, cursor = _page(replies, call, 1000)
        answer: Answer = {
            "ok": True,
            "messages": [self._shown(message, call) for message in page],
            "has_more": bool(cursor),
        }
        if cursor:
            answer["response_metadata"] = {"next_cursor": cursor}
        return answer

    def history(self, call: Call) -> Answer:
        """conversations.history: newest first, without thread replies."""
        room = self.seen(call)
        if self._workspace.bot_user_id not in room.members:
            raise SlackError("not_in_channel")
        roots = [
            message for message in reversed(room.messages.values()) if _is_root(message) and _within(message, call)
        ]
        page, cursor = _page(roots, call, 100)
        answer: Answer = {
            "ok": True,
            "messages": [self._shown(message, call) for message in page],
            "has_more": bool(cursor),
            "pin_count": 0,
        }
        if cursor:
            answer["response_metadata"] = {"next_cursor": cursor}
        return answer

    def seen(self, call: Call) -> Room:
        """Return a room that the app may know of.

        Raises:
            SlackError: channel_not_found.
        """
        room = self._rooms.all.get(call.text("channel") or "")
        if room is None:
            raise SlackError("channel_not_found")
        hidden = room.is_private or room.is_im
        if hidden and self._workspace.bot_user_id not in room.members:
            raise SlackError("channel_not_found")
        return room

    def user(self, person: Person) -> dict[str, Any]:
        """Return a user object; deactivated ones lose their profile's flags, as in Slack."""
        gone = person.kind == "deactivated"
        bot = person.kind == "bot"
        profile: dict[str, Any] = {
            "title": person.title,
            "phone": "",
            "real_name": person.real_name,
            "real_name_normalized": person.real_name,
            "display_name": person.name,
            "display_name_normalized": person.name,
            "status_text": "",
            "status_emoji": "",
            "avatar_hash": "g" + person.id.lower()[-11:],
            "team": person.team_id,
        }
        if bot:
            profile |= {"bot_id": self._workspace.bot_id, "api_app_id": self._workspace.app_id}
        elif "users:read.email" in self._manifest.scopes and person.email:
            profile["email"] = person.email
        user: dict[str, Any] = {
            "id": person.id,
            "team_id": person.team_id,
            "name": person.name,
            "deleted": gone,
            "color": person.color,
            "real_name": person.real_name,
            "tz": person.tz,
            "tz_label": "Central European Time",
            "tz_offset": person.tz_offset,
            "profile": profile,
            "is_bot": bot,
            "is_app_user": False,
            "updated": 1_790_000_000,
        }
        if not gone:
            user |= {
                "is_admin": person.is_admin,
                "is_owner": False,
                "is_primary_owner": False,
                "is_restricted": person.kind == "guest",
                "is_ultra_restricted": False,
                "is_email_confirmed": True,
            }
        if person.team_id != self._workspace.team_id:
            # an external member is no stranger once a channel is shared with them
            user["is_stranger"] = False
        return user

    def channel(self, room: Room) -> dict[str, Any]:
        """Return a conversation object."""
        if room.is_im:
            return {
                "id": room.id,
                "created": room.created,
                "is_archived": False,
                "is_im": True,
                "is_org_shared": False,
                "user": room.with_user,
                "is_user_deleted": False,
                "priority": 0,
            }
        text = {"value": room.topic, "creator": room.creator, "last_set": room.created}
        return {
            "id": room.id,
            "name": room.name,
            "is_channel": not room.is_private,
            "is_group": room.is_private,
            "is_im": False,
            "is_mpim": room.is_mpim,
            "is_private": room.is_private,
            "created": room.created,
            "is_archived": room.is_archived,
            "is_general": False,
            "unlinked": 0,
            "name_normalized": room.name,
            "is_shared": room.is_ext_shared,
            "is_org_shared": False,
            "is_pending_ext_shared": False,
            "pending_shared": [],
            "creator": room.creator,
            "is_ext_shared": room.is_ext_shared,
            "shared_team_ids": [self._workspace.team_id],
            "pending_connected_team_ids": [],
            "is_member": self._workspace.bot_user_id in room.members,
            "topic": text,
            "purpose": {**text, "value": ""},
            "previous_names": [],
            "context_team_id": self._workspace.team_id,
        }

    def _group(self, group: UserGroup, call: Call) -> dict[str, Any]:
        shown: dict[str, Any] = {
            "id": group.id,
            "team_id": self._workspace.team_id,
            "is_usergroup": True,
            "is_subteam": True,
            "name": group.name,
            "description": "",
            "handle": group.handle,
            "is_external": False,
            "date_create": 1_780_000_000,
            "date_update": 1_780_000_000,
            "date_delete": 0,
            "created_by": self._workspace.people[1].id,
            "updated_by": self._workspace.people[1].id,
            "prefs": {"channels": [], "groups": []},
            "user_count": len(group.users),
        }
        return {**shown, "users": list(group.users)} if call.flag("include_users") else shown

    @staticmethod
    def _shown(message: Message, call: Call) -> Message:
        shown = {key: value for key, value in message.items() if key != "channel"}
        if "metadata" in shown and not call.flag("include_all_metadata"):
            shown["metadata"] = {"event_type": shown["metadata"]["event_type"]}
        return shown


def kind_of(room: Room) -> str:
    """Return the conversation type as `types` names it."""
    if room.is_im:
        return "im"
    return "mpim" if room.is_mpim else "private_channel" if room.is_private else "public_channel"


def _is_root(message: Message) -> bool:
    broadcast = message.get("subtype") == "thread_broadcast"
    return broadcast or bool(message.get("thread_ts", message["ts"]) == message["ts"])


def _within(message: Message, call: Call) -> bool:
    for name, error in (("oldest", "invalid_ts_oldest"), ("latest", "invalid_ts_latest")):
        try:
            float(call.text(name) or 0)
        except ValueError as wrong:
            raise SlackError(error) from wrong
    ts, inclusive = float(message["ts"]), call.flag("inclusive")
    oldest, latest = float(call.text("oldest") or 0), float(call.text("latest") or "inf")
    return oldest < ts < latest or (inclusive and ts in (oldest, latest))


def _page(items: list[T], call: Call, default: int) -> tuple[list[T], str]:
    """Return one page and the cursor of the next ("" at the end)."""
    cursor = call.text("cursor")
    start = 0
    if cursor is not None:
        if not cursor.startswith("next:") or not cursor[5:].isdigit():
            raise SlackError("invalid_cursor")
        start = int(cursor[5:])
    limit = call.number("limit", default, 1000)
    more = len(items) > start + limit
    return items[start : start + limit], f"next:{start + limit}" if more else ""
