"""Modal stacks and Home tabs, one of each per person.

Decides ids, hashes, the stack (3 deep) and which values a person has entered. It checks no
trigger ids and sends nothing. Failure it can cause: open modals do not survive a restart.
"""

import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from bot.simulator.clock import Clock
from bot.simulator.rooms import with_block_ids
from bot.simulator.tickets import new_id
from bot.simulator.workspace import Workspace

View = dict[str, Any]
MAX_STACK = 3


@dataclass
class ViewChange:
    """One thing that happened to a view: opened, updated, closed, home, errors."""

    what: str
    user: str
    view: View
    errors: dict[str, str] = field(default_factory=dict)


class Views:
    """Every open modal (bottom first per person) and every published Home."""

    def __init__(self, workspace: Workspace, clock: Clock) -> None:
        self._workspace = workspace
        self._clock = clock
        self.stacks: dict[str, list[View]] = {}
        self.homes: dict[str, View] = {}
        self.listeners: list[Callable[[ViewChange], None]] = []

    def find(self, view_id: str | None = None, external_id: str | None = None) -> View | None:
        """Return an open modal or a Home by id or external id."""
        views = [view for stack in self.stacks.values() for view in stack]
        for view in [*views, *self.homes.values()]:
            if view_id and view["id"] == view_id:
                return view
            if external_id and view["external_id"] == external_id:
                return view
        return None

    def owner(self, view_id: str) -> str | None:
        """Return the person to whom the view is shown."""
        for user, stack in self.stacks.items():
            if any(view["id"] == view_id for view in stack):
                return user
        return next((u for u, view in self.homes.items() if view["id"] == view_id), None)

    def open(self, user: str, given: View) -> View:
        """Open a modal: a new stack that replaces whatever was open."""
        for view in reversed(self.stacks.pop(user, [])):
            self._tell(ViewChange("closed", user, view))
        return self._place(user, given)

    def push(self, user: str, given: View) -> View | None:
        """Put a modal on top of the stack; None when three are open."""
        if len(self.stacks.get(user, [])) >= MAX_STACK:
            return None
        return self._place(user, given)

    def update(self, view: View, given: View) -> View:
        """Replace a view's content in place; entered values of kept blocks stay."""
        user = self.owner(view["id"]) or ""
        kept = {key: view[key] for key in ("id", "root_view_id", "previous_view_id")}
        fresh = {**self._built(given), **kept}
        known = {block["block_id"] for block in fresh["blocks"]}
        values = {b: v for b, v in view["state"]["values"].items() if b in known}
        fresh["state"] = {"values": {**fresh["state"]["values"], **values}}
        view.clear()
        view.update(fresh)
        self._tell(ViewChange("home" if view["type"] == "home" else "updated", user, view))
        return view

    def publish(self, user: str, given: View) -> View:
        """Show a Home tab; its id stays the same for a person."""
        known = self.homes.get(user)
        if known is not None:
            return self.update(known, given)
        view = self._built(given)
        view["root_view_id"] = view["id"]
        self.homes[user] = view
        self._tell(ViewChange("home", user, view))
        return view

    def close(self, user: str, view_id: str) -> list[View]:
        """Close this modal and everything above it; return what closed, top first."""
        stack = self.stacks.get(user, [])
        place = next((i for i, view in enumerate(stack) if view["id"] == view_id), None)
        if place is None:
            return []
        closed = stack[place:][::-1]
        del stack[place:]
        for view in closed:
            self._tell(ViewChange("closed", user, view))
        return closed

    def enter(self, view: View, values: dict[str, Any]) -> None:
        """Record what a person has entered: {block_id: {action_id: {type, value|...}}}."""
        for block_id, actions in values.items():
            view["state"]["values"].setdefault(block_id, {}).update(actions)

    def show_errors(self, user: str, view: View, errors: dict[str, str]) -> None:
        """Show the errors of a refused submission at their blocks."""
        self._tell(ViewChange("errors", user, view, errors))

    def _place(self, user: str, given: View) -> View:
        stack = self.stacks.setdefault(user, [])
        view = self._built(given)
        view["root_view_id"] = stack[0]["id"] if stack else view["id"]
        view["previous_view_id"] = stack[-1]["id"] if stack else None
        stack.append(view)
        self._tell(ViewChange("opened", user, view))
        return view

    def _built(self, given: View) -> View:
        blocks = with_block_ids(given.get("blocks", []))
        return {
            "id": new_id("V", 10),
            "team_id": self._workspace.team_id,
            "type": given["type"],
            "blocks": blocks,
            "private_metadata": given.get("private_metadata", ""),
            "callback_id": given.get("callback_id", ""),
            "state": {"values": initial_values(blocks)},
            "hash": f"{int(self._clock.now())}.{secrets.token_hex(4)}",
            "title": given.get("title") or {"type": "plain_text", "text": "View Title", "emoji": True},
            "clear_on_close": bool(given.get("clear_on_close", False)),
            "notify_on_close": bool(given.get("notify_on_close", False)),
            "submit_disabled": bool(given.get("submit_disabled", False)),
            "close": given.get("close"),
            "submit": given.get("submit"),
            "previous_view_id": None,
            "root_view_id": "",
            "app_id": self._workspace.app_id,
            "external_id": given.get("external_id", ""),
            "app_installed_team_id": self._workspace.team_id,
            "bot_id": self._workspace.bot_id,
        }

    def _tell(self, change: ViewChange) -> None:
        for listener in self.listeners:
            listener(change)


_INITIAL = {
    "initial_value": "value",
    "initial_option": "selected_option",
    "initial_options": "selected_options",
    "initial_user": "selected_user",
    "initial_users": "selected_users",
    "initial_channel": "selected_channel",
    "initial_channels": "selected_channels",
    "initial_conversation": "selected_conversation",
    "initial_conversations": "selected_conversations",
    "initial_date": "selected_date",
    "initial_time": "selected_time",
    "initial_date_time": "selected_date_time",
}
_EMPTY: dict[str, tuple[str, Any]] = {
    "plain_text_input": ("value", None),
    "number_input": ("value", None),
    "email_text_input": ("value", None),
    "url_text_input": ("value", None),
    "rich_text_input": ("rich_text_value", None),
    "file_input": ("files", []),
    "checkboxes": ("selected_options", []),
    "radio_buttons": ("selected_option", None),
    "datepicker": ("selected_date", None),
    "timepicker": ("selected_time", None),
    "datetimepicker": ("selected_date_time", None),
}
_SELECTS = {
    "static_select": "option",
    "external_select": "option",
    "users_select": "user",
    "channels_select": "channel",
    "conversations_select": "conversation",
}


def initial_values(blocks: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return `state.values` as Slack fills it before anyone types."""
    values: dict[str, dict[str, Any]] = {}
    for block in blocks:
        elements = [block.get("element"), block.get("accessory")]
        if block["type"] == "actions":
            elements += block.get("elements", [])
        for element in elements:
            if not isinstance(element, dict):
                continue
            entry = initial_entry(element)
            if entry is not None:
                values.setdefault(block["block_id"], {})[element["action_id"]] = entry
    return values


def initial_entry(element: dict[str, Any]) -> dict[str, Any] | None:
    """Return one element's entry in `state.values`, None for elements without a state."""
    kind = element.get("type", "")
    if kind in _EMPTY:
        key, empty = _EMPTY[kind]
    elif kind in _SELECTS:
        key, empty = f"selected_{_SELECTS[kind]}", None
    elif kind.removeprefix("multi_") in _SELECTS:
        key, empty = f"selected_{_SELECTS[kind.removeprefix('multi_')]}s", []
    else:
        return None
    for initial, name in _INITIAL.items():
        if initial in element and (name == key or kind == "rich_text_input"):
            return {"type": kind, key: element[initial]}
    return {"type": kind, key: empty}
