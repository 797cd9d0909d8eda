"""The payloads that Slack sends to an app, field by field.

Decides which keys each payload has (Slack's own samples are the oracle of a test); it sends
nothing and changes nothing. Failure it can cause: a key too many lets a bot rely on something
that Slack never sends.
"""

import re
from typing import Any

from bot.simulator.clock import Clock
from bot.simulator.rooms import Message, Room
from bot.simulator.tickets import new_id, new_uuid
from bot.simulator.workspace import Person, Workspace

Payload = dict[str, Any]
# what a stored message carries for the server and the page only
_OWN_KEYS = ("ephemeral", "reply_users", "metadata_owner")
_MARK = re.compile(r"<@([UW][A-Z0-9]+)(?:\|[^>]*)?>|<#(C[A-Z0-9]+)(?:\|[^>]*)?>|<(https?://[^>|]+)(?:\|([^>]*))?>")


def escape(text: str) -> str:
    """Escape the three characters that Slack escapes, `&` first."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def unescape(text: str) -> str:
    """Undo `escape`."""
    return text.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")


def typed_to_wire(text: str, workspace: Workspace, keep_marks: bool = False) -> str:
    """Turn what a person typed into Slack's wire text: `@Name` becomes `<@U...>`, & < > escape.

    With `keep_marks`, ready `<@U...>` and `<#C...>` sequences pass unchanged.
    """
    marks: list[str] = []

    def keep(match: re.Match[str]) -> str:
        marks.append(match.group(0))
        return f"\x00{len(marks) - 1}\x00"

    if keep_marks:
        text = re.sub(r"<[@#][UWC][A-Z0-9]+>", keep, text)
    text = escape(text)
    names = sorted(
        {
            name
            for person in workspace.people
            for name in (person.name, person.real_name, person.real_name.split(" ")[0])
        },
        key=len,
        reverse=True,
    )
    pattern = "|".join(re.escape(escape(name)) for name in names)
    wire = re.sub(
        rf"(?<![\w.])@({pattern})(?![\w])",
        lambda m: f"<@{found.id}>" if (found := workspace.named(unescape(m[1]))) else m[0],
        text,
        flags=re.IGNORECASE,
    )
    return re.sub(r"\x00(\d+)\x00", lambda m: marks[int(m[1])], wire)


def rich_text(text: str) -> list[dict[str, Any]]:
    """Return the rich_text block that Slack's composer makes of a wire text."""
    elements: list[dict[str, Any]] = []
    at = 0
    for match in _MARK.finditer(text):
        if match.start() > at:
            elements.append({"type": "text", "text": unescape(text[at : match.start()])})
        user, channel, url, label = match.groups()
        if user:
            elements.append({"type": "user", "user_id": user})
        elif channel:
            elements.append({"type": "channel", "channel_id": channel})
        else:
            link = {"type": "link", "url": unescape(url)}
            elements.append({**link, "text": unescape(label)} if label else link)
        at = match.end()
    if at < len(text):
        elements.append({"type": "text", "text": unescape(text[at:])})
    section = {"type": "rich_text_section", "elements": elements}
    return [{"type": "rich_text", "block_id": new_id("", 5), "elements": [section]}]


def bot_profile(workspace: Workspace, name: str) -> Payload:
    """Return the profile that accompanies the bot's own messages."""
    icons = {f"image_{size}": f"https://a.slack-edge.com/80588/img/plugins/app/bot_{size}.png" for size in (36, 48, 72)}
    return {
        "id": workspace.bot_id,
        "deleted": False,
        "name": name,
        "updated": 1_790_000_000,
        "app_id": workspace.app_id,
        "icons": icons,
        "team_id": workspace.team_id,
    }


def public(message: Message) -> Message:
    """Return the message as payloads show it: without what only the simulator keeps."""
    shown = {key: value for key, value in message.items() if key not in _OWN_KEYS}
    if isinstance(shown.get("metadata"), dict):
        shown["metadata"] = {"event_type": shown["metadata"]["event_type"]}
    return shown


class Payloads:
    """Builds every payload for one workspace and one installed app."""

    def __init__(self, workspace: Workspace, clock: Clock) -> None:
        self._workspace = workspace
        self._clock = clock

    def wrapper(self, event: Payload, ext_shared: bool) -> Payload:
        """Wrap an event as the Events API does. Source: Slack, "Events API", callback fields."""
        team = self._workspace.team_id
        return {
            "token": self._workspace.verification_token,
            "team_id": team,
            "context_team_id": team,
            "context_enterprise_id": None,
            "api_app_id": self._workspace.app_id,
            "event": event,
            "type": "event_callback",
            "event_id": new_id("Ev0", 9),
            "event_time": int(self._clock.now()),
            "authorizations": [
                {
                    "enterprise_id": None,
                    "team_id": team,
                    "user_id": self._workspace.bot_user_id,
                    "is_bot": True,
                    "is_enterprise_install": False,
                }
            ],
            "is_ext_shared_channel": ext_shared,
            "event_context": f"4-{new_uuid()}",
        }

    def app_mention(self, room: Room, message: Message) -> Payload:
        """Return the app_mention event for a channel message that names the bot."""
        event = {
            "type": "app_mention",
            **self._pick(message, "user", "text", "ts", "client_msg_id", "team", "blocks"),
            "channel": room.id,
            "event_ts": message["ts"],
        }
        # parent_user_id is absent from Slack's sample of this event, present in its message event
        return {**event, **self._pick(message, "thread_ts", "edited", "user_team", "source_team", "user_profile")}

    def message(self, room: Room, message: Message) -> Payload:
        """Return the message.channels / .groups / .im / .mpim event of a new message."""
        shown = {k: v for k, v in public(message).items() if k not in ("reply_count", "subscribed")}
        return {
            **shown,
            "channel": room.id,
            "channel_type": channel_type(room),
            "event_ts": message["ts"],
        }

    def message_changed(self, room: Room, message: Message, previous: Message, event_ts: str) -> Payload:
        """Return the message_changed event."""
        return {
            "type": "message",
            "subtype": "message_changed",
            "hidden": True,
            "channel": room.id,
            "channel_type": channel_type(room),
            "message": public(message),
            "previous_message": public(previous),
            "ts": event_ts,
            "event_ts": event_ts,
        }

    def message_deleted(self, room: Room, previous: Message, event_ts: str) -> Payload:
        """Return the message_deleted event."""
        return {
            "type": "message",
            "subtype": "message_deleted",
            "hidden": True,
            "channel": room.id,
            "channel_type": channel_type(room),
            "deleted_ts": previous["ts"],
            "previous_message": public(previous),
            "ts": event_ts,
            "event_ts": event_ts,
        }

    def app_home_opened(self, user: str, channel: str, tab: str, view: Payload | None) -> Payload:
        """Return the app_home_opened event; `view` is there once a Home was published."""
        event = {
            "type": "app_home_opened",
            "user": user,
            "channel": channel,
            "tab": tab,
            "event_ts": f"{self._clock.now():.6f}",
        }
        return {**event, "view": view} if view is not None else event

    def block_actions(self, person: Person, trigger_id: str, actions: list[Payload]) -> Payload:
        """Return the part of block_actions that messages and views share."""
        return {**self._interactive("block_actions", person, trigger_id), "actions": actions}

    def block_suggestion(self, person: Person, action_id: str, block_id: str, value: str) -> Payload:
        """Return the part of block_suggestion that messages and views share; it opens nothing: no trigger_id."""
        payload = self._interactive("block_suggestion", person, "")
        del payload["trigger_id"]
        return {**payload, "action_id": action_id, "block_id": block_id, "value": value}

    def view_submission(self, person: Person, trigger_id: str, view: Payload) -> Payload:
        """Return view_submission; response_urls stay empty (no response_url_enabled inputs)."""
        payload = self._interactive("view_submission", person, trigger_id)
        return {**payload, "view": view, "response_urls": []}

    def view_closed(self, person: Person, view: Payload, cleared: bool) -> Payload:
        """Return view_closed."""
        payload = self._interactive("view_closed", person, "")
        del payload["trigger_id"]
        return {**payload, "view": view, "is_cleared": cleared}

    def slash_command(
        self, person: Person, room: Room, command: str, text: str, trigger_id: str, response_url: str
    ) -> Payload:
        """Return a slash command: string fields only, and no thread."""
        return {
            "token": self._workspace.verification_token,
            "team_id": self._workspace.team_id,
            "team_domain": self._workspace.domain,
            "channel_id": room.id,
            "channel_name": channel_name(room),
            "user_id": person.id,
            "user_name": person.name,
            "command": command,
            "text": text,
            "api_app_id": self._workspace.app_id,
            "is_enterprise_install": "false",
            "response_url": response_url,
            "trigger_id": trigger_id,
        }

    def _interactive(self, kind: str, person: Person, trigger_id: str) -> Payload:
        return {
            "type": kind,
            "user": {
                "id": person.id,
                "username": person.name,
                "name": person.name,
                "team_id": person.team_id,
            },
            "api_app_id": self._workspace.app_id,
            "token": self._workspace.verification_token,
            "trigger_id": trigger_id,
            "team": {"id": self._workspace.team_id, "domain": self._workspace.domain},
            "enterprise": None,
            "is_enterprise_install": False,
        }

    @staticmethod
    def _pick(message: Message, *keys: str) -> Payload:
        return {key: message[key] for key in keys if key in message}


def channel_type(room: Room) -> str:
    """Return im, mpim, group or channel."""
    return "im" if room.is_im else "mpim" if room.is_mpim else "group" if room.is_private else "channel"


def channel_name(room: Room) -> str:
    """Return the name as interaction payloads give it."""
    if room.is_im:
        return "directmessage"
    # a group DM goes by its own name, mpdm-…
    return "privategroup" if room.is_private and not room.is_mpim else room.name
