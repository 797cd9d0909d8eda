"""What people do in the workspace: post, edit, click, submit, type a command, open Home.

Decides what Slack's own client would refuse, builds the payload, hands it to delivery and applies
the app's answer (response_action, command answers). Failure it can cause: it acts as anyone,
also as deactivated or external people, so that a bot's own checks can be tested.
"""

import re
from typing import Any

from bot.simulator.calls import SlackError
from bot.simulator.delivery import Dispatch, Interaction
from bot.simulator.elements import action_of, entry_of, find_element, input_errors
from bot.simulator.events import Events
from bot.simulator.hooks import Hooks
from bot.simulator.payloads import Payload, Payloads, channel_name, rich_text, typed_to_wire
from bot.simulator.rooms import Message, Room, Rooms
from bot.simulator.suggestions import KINDS, MIN_QUERY, Suggestions
from bot.simulator.tickets import Triggers, new_uuid
from bot.simulator.view_methods import refuse_view
from bot.simulator.views import Views, initial_values
from bot.simulator.workspace import AppManifest, Person, Workspace

Values = dict[str, dict[str, Any]]


class ActRefused(Exception):
    """Slack's client would not do this; `text` is what it tells the person."""

    def __init__(self, code: str, text: str, errors: dict[str, str] | None = None) -> None:
        super().__init__(f"{code}: {text}")
        self.code = code
        self.text = text
        self.errors = errors or {}


class Acts:
    """Everything a person can do; `user` is always a user id."""

    def __init__(
        self,
        workspace: Workspace,
        manifest: AppManifest,
        rooms: Rooms,
        views: Views,
        payloads: Payloads,
        triggers: Triggers,
        hooks: Hooks,
        events: Events,
        dispatch: Dispatch,
    ) -> None:
        self._workspace = workspace
        self._manifest = manifest
        self._rooms = rooms
        self._views = views
        self._payloads = payloads
        self._triggers = triggers
        self._hooks = hooks
        self._events = events
        self._dispatch = dispatch
        self._entered: dict[tuple[str, str], Values] = {}
        self.suggestions = Suggestions(payloads, dispatch)

    def post(
        self,
        user: str,
        channel: str,
        text: str,
        thread_ts: str | None = None,
        keep_marks: bool = False,
    ) -> Message:
        """Post typed text as this person; return the stored message.

        Raises:
            ActRefused: slash_in_thread, not_in_channel, is_archived, no_text, read_only.
        """
        person, room = self._person(user), self._room(user, channel)
        if not text.strip():
            raise ActRefused("no_text", "There is nothing to send.")
        if thread_ts and text.startswith("/"):
            command = text.split(" ", 1)[0].strip()
            raise ActRefused("slash_in_thread", f"{command} is not supported in threads. Sorry!")
        if room.is_archived:
            raise ActRefused("is_archived", "This channel is archived.")
        if room.is_im and (not self._manifest.messages_tab or self._manifest.messages_tab_read_only):
            raise ActRefused("read_only", "Sending messages to this app has been turned off.")
        wire = typed_to_wire(text, self._workspace, keep_marks)
        message: Message = {
            "type": "message",
            "user": user,
            "text": wire,
            "client_msg_id": new_uuid(),
            "team": person.team_id,
            "blocks": rich_text(wire),
        }
        if person.team_id != self._workspace.team_id:
            message |= {"user_team": person.team_id, "source_team": person.team_id}
        if thread_ts:
            if thread_ts not in room.messages:
                raise ActRefused("thread_not_found", "This thread was deleted.")
            message["thread_ts"] = thread_ts
        return self._rooms.post(room, message)

    def edit(self, user: str, channel: str, ts: str, text: str) -> Message:
        """Edit one's own message."""
        room = self._room(user, channel)
        message = self._own(room, user, ts)
        wire = typed_to_wire(text, self._workspace, keep_marks=True)
        edited = {"user": user, "ts": self._rooms.next_ts()}
        fresh = {**message, "text": wire, "blocks": rich_text(wire), "edited": edited}
        self._rooms.replace(room, fresh)
        return fresh

    def delete(self, user: str, channel: str, ts: str) -> None:
        """Delete one's own message."""
        room = self._room(user, channel)
        self._own(room, user, ts)
        self._rooms.remove(room, ts)

    def click(
        self,
        user: str,
        action_id: str,
        *,
        channel: str | None = None,
        ts: str | None = None,
        view_id: str | None = None,
        home: bool = False,
        block_id: str | None = None,
        selected: object = None,
        values: Values | None = None,
        forge: dict[str, Any] | None = None,
    ) -> Interaction:
        """Use an element of a message, an open modal or Home.

        `selected` is the new value of a select, picker or checkbox list; `values` are further
        entered values; `forge` overrides fields of the action, to test a bot's own checks.

        Raises:
            ActRefused: the message, view or element is not there for this person.
        """
        person = self._person(user)
        if home or view_id:
            return self._click_view(person, action_id, view_id, block_id, selected, values, forge)
        room, message, ephemeral = self._seen(user, channel, ts)
        blocks = message.get("blocks", [])
        place, action, entry = self._use(user, message["ts"], blocks, action_id, block_id, selected, forge)
        state = self._entered.setdefault((user, message["ts"]), {})
        _merge(state, values or {})
        if entry is not None:
            state.setdefault(place, {})[action_id] = entry
        trigger_id = self._triggers.issue(user)
        payload = self._payloads.block_actions(person, trigger_id, [action])
        shown_state = initial_values(blocks)
        _merge(shown_state, state)
        payload |= {
            **_where(room, message, ephemeral),
            "state": {"values": shown_state},
            "response_url": self._hooks.action_url(room, user, message, ephemeral),
        }
        return self._dispatch.interaction(
            "block_actions", user, payload, _ignore,
            channel=room.id, message_ts=message["ts"], action_id=action_id,
        )  # fmt: skip

    def suggest(
        self,
        user: str,
        action_id: str,
        value: str,
        *,
        channel: str | None = None,
        ts: str | None = None,
        view_id: str | None = None,
        home: bool = False,
        block_id: str | None = None,
    ) -> Interaction:
        """Type into an external select: the app is asked for options, which may be chosen once it answered.

        Raises:
            ActRefused: it is not there, or fewer characters than its min_query_length were typed.
        """
        person = self._person(user)
        if home or view_id:
            view = self._seen_view(person, view_id)
            holder, blocks = str(view["id"]), view["blocks"]
            where: Payload = {"container": {"type": "view", "view_id": view["id"]}, "view": dict(view)}
        else:
            room, message, ephemeral = self._seen(user, channel, ts)
            holder, blocks, where = message["ts"], message.get("blocks", []), _where(room, message, ephemeral)
        place, element = self._found(blocks, action_id, block_id)
        if element["type"] not in KINDS:
            raise ActRefused("not_external", "This menu has its options already.")
        if len(value) < element.get("min_query_length", MIN_QUERY):
            raise ActRefused("query_too_short", "Type more to see options.")
        return self.suggestions.ask(person, holder, place, element, value, where)

    def command(self, user: str, channel: str, command: str, text: str = "") -> Interaction:
        """Type a slash command outside a thread.

        Raises:
            ActRefused: the app has no such command, or the person is of another team.
        """
        person, room = self._person(user), self._room(user, channel)
        known = next((c for c in self._manifest.commands if c.command == command), None)
        foreign = person.team_id != self._workspace.team_id
        if known is None or foreign or "commands" not in self._manifest.scopes:
            raise ActRefused(
                "invalid_command",
                f'{command} is not a valid command. In Slack, all messages that start with the "/" '
                "character are interpreted as commands.",
            )
        wire = self._command_text(text) if known.should_escape else text
        trigger_id = self._triggers.issue(user)
        url = self._hooks.command_url(room, user)
        payload = self._payloads.slash_command(person, room, command, wire, trigger_id, url)
        return self._dispatch.interaction("command", user, payload, self._command_answered, channel=room.id)

    def submit(self, user: str, view_id: str, values: Values | None = None) -> Interaction:
        """Submit an open modal with these entered values on top of those it holds.

        Raises:
            ActRefused: not open, not submittable, or invalid_input with `errors` per block.
        """
        person = self._person(user)
        view = self._view(user, view_id)
        if not view.get("submit"):
            raise ActRefused("no_submit", "This view cannot be submitted.")
        self._views.enter(view, values or {})
        errors = input_errors(view["blocks"], view["state"]["values"])
        if errors:
            self._views.show_errors(user, view, errors)
            raise ActRefused("invalid_input", "Please check the marked fields.", errors)
        payload = self._payloads.view_submission(person, self._triggers.issue(user, view_id), dict(view))
        return self._dispatch.interaction("view_submission", user, payload, self._submission_answered)

    def close_view(self, user: str, view_id: str, everything: bool = False) -> None:
        """Close a modal (and what is above it), or the whole stack; notify where asked for."""
        person = self._person(user)
        stack = self._views.stacks.get(user, [])
        bottom = stack[0]["id"] if everything and stack else view_id
        for view in self._views.close(user, bottom):
            if view["notify_on_close"]:
                payload = self._payloads.view_closed(person, view, everything)
                self._dispatch.interaction("view_closed", user, payload, _ignore)

    def open_home(self, user: str, tab: str = "home") -> None:
        """Open the app's Home (or Messages) tab."""
        self._person(user)
        self._events.home_opened(user, tab, self._views.homes.get(user))

    def open_dm(self, user: str) -> Room:
        """Open the DM with the bot: Slack calls it the Messages tab of the app's Home."""
        self._person(user)
        room = self._rooms.dm(user)
        self._events.home_opened(user, "messages", self._views.homes.get(user))
        return room

    def _click_view(
        self,
        person: Person,
        action_id: str,
        view_id: str | None,
        block_id: str | None,
        selected: object,
        values: Values | None,
        forge: dict[str, Any] | None,
    ) -> Interaction:
        view = self._seen_view(person, view_id)
        used = self._use(person.id, view["id"], view["blocks"], action_id, block_id, selected, forge)
        place, action, entry = used
        self._views.enter(view, values or {})
        if entry is not None:
            self._views.enter(view, {place: {action_id: entry}})
        modal = view["id"] if view["type"] == "modal" else None
        trigger_id = self._triggers.issue(person.id, modal)
        payload = self._payloads.block_actions(person, trigger_id, [action])
        payload |= {"container": {"type": "view", "view_id": view["id"]}, "view": dict(view)}
        return self._dispatch.interaction("block_actions", person.id, payload, _ignore, action_id=action_id)

    def _use(
        self,
        user: str,
        holder: str,
        blocks: list[dict[str, Any]],
        action_id: str,
        block_id: str | None,
        selected: object,
        forge: dict[str, Any] | None,
    ) -> tuple[str, Payload, dict[str, Any] | None]:
        place, element = self._found(blocks, action_id, block_id)
        element = self.suggestions.offered(user, holder, place, element)
        try:
            action = action_of(element, place, selected, self._rooms.next_ts())
            return place, {**action, **(forge or {})}, entry_of(element, selected)
        except ValueError as error:
            raise ActRefused("invalid_selection", str(error)) from error

    def _found(self, blocks: list[dict[str, Any]], action_id: str, block_id: str | None) -> tuple[str, dict[str, Any]]:
        if not self._manifest.interactivity:
            raise ActRefused("no_interactivity", "This app is not configured to handle interactive responses.")
        found = find_element(blocks, action_id, block_id)
        if found is None:
            raise ActRefused("element_not_found", "This button is gone.")
        return found

    def _seen(self, user: str, channel: str | None, ts: str | None) -> tuple[Room, Message, bool]:
        """Return a message that this person sees, with its room and whether only they see it."""
        room = self._room(user, channel or "")
        whispers = room.ephemerals.get(user, {})
        message = whispers.get(ts or "") or room.messages.get(ts or "")
        if message is None:
            raise ActRefused("message_not_found", "This message is gone.")
        return room, message, message["ts"] in whispers

    def _seen_view(self, person: Person, view_id: str | None) -> Payload:
        view = self._view(person.id, view_id) if view_id else self._views.homes.get(person.id)
        if view is None:
            raise ActRefused("view_not_found", "Home is empty.")
        return view

    def _command_text(self, text: str) -> str:
        """Turn @Name and #channel into the escaped forms that should_escape asks for."""
        wire = typed_to_wire(text, self._workspace, keep_marks=True)

        def person(match: re.Match[str]) -> str:
            known = self._workspace.person(match[1])
            return f"<@{match[1]}|{known.name}>" if known else match[0]

        def channel(match: re.Match[str]) -> str:
            room = self._rooms.get(match[1])
            return f"<#{room.id}|{room.name}>" if room else match[0]

        wire = re.sub(r"<@([UW][A-Z0-9]+)>", person, wire)
        return re.sub(r"(?<![\w&])#([a-z0-9_-]+)", channel, wire)

    def _command_answered(self, interaction: Interaction, answer: Payload) -> None:
        if answer:
            self._hooks.command_answer(interaction.channel or "", interaction.user, answer)

    def _submission_answered(self, interaction: Interaction, answer: Payload) -> None:
        user = interaction.user
        view = self._views.find(interaction.payload["view"]["id"])
        if view is None:
            return
        action = answer.get("response_action")
        try:
            if action == "errors":
                self._views.show_errors(user, view, dict(answer.get("errors", {})))
            elif action == "update":
                refuse_view(answer.get("view"), "modal")
                self._views.update(view, answer["view"])
            elif action == "push":
                refuse_view(answer.get("view"), "modal")
                self._views.push(user, answer["view"])
            elif action == "clear":
                self._views.close(user, self._views.stacks[user][0]["id"])
            else:
                self._views.close(user, view["id"])
        except SlackError as error:
            # Slack's client says that the app's answer was not understood
            interaction.error = f"invalid_response:{error.extra}"
            self._views.show_errors(user, view, {"": "We had some trouble connecting. Try again?"})

    def _person(self, user: str) -> Person:
        person = self._workspace.person(user)
        if person is None or person.kind == "bot":
            raise ActRefused("user_not_found", "There is no such person.")
        return person

    def _room(self, user: str, channel: str) -> Room:
        room = self._rooms.get(channel)
        if room is None:
            raise ActRefused("channel_not_found", "There is no such channel.")
        if user not in room.members:
            raise ActRefused("not_in_channel", f"You are not a member of #{room.name}.")
        return room

    def _own(self, room: Room, user: str, ts: str) -> Message:
        message = room.messages.get(ts)
        if message is None or message.get("user") != user:
            raise ActRefused("message_not_found", "This is not your message.")
        return message

    def _view(self, user: str, view_id: str) -> Payload:
        view = self._views.find(view_id)
        if view is None or self._views.owner(view_id) != user:
            raise ActRefused("view_not_found", "This dialog is closed.")
        return view


def _ignore(interaction: Interaction, answer: Payload) -> None:
    return None


def _where(room: Room, message: Message, ephemeral: bool) -> Payload:
    """Return what an interaction payload says of the message in which it happened."""
    container = {"type": "message", "message_ts": message["ts"], "channel_id": room.id, "is_ephemeral": ephemeral}
    if message.get("thread_ts"):
        container["thread_ts"] = message["thread_ts"]
    where: Payload = {"container": container, "channel": {"id": room.id, "name": channel_name(room)}}
    if not ephemeral:
        where["message"] = {k: v for k, v in message.items() if k != "streaming_state"}
    return where


def _merge(into: Values, values: Values) -> None:
    for block_id, actions in values.items():
        into.setdefault(block_id, {}).update(actions)
