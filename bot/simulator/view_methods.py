"""Web API methods of modals and Home: views.open, push, update, publish.

Decides trigger ids, the stack's depth, hashes and validity. Failure it can cause: none of its own.
Source: Slack, method reference pages of views.*.
"""

from typing import Any

from bot.simulator.blockkit import lint_view, view_too_large
from bot.simulator.calls import Call, SlackError
from bot.simulator.tickets import Trigger, Triggers
from bot.simulator.views import View, Views
from bot.simulator.workspace import AppManifest, Workspace

Answer = dict[str, Any]


class ViewMethods:
    """The views.* family."""

    def __init__(self, workspace: Workspace, manifest: AppManifest, views: Views, triggers: Triggers) -> None:
        self._workspace = workspace
        self._manifest = manifest
        self._views = views
        self._triggers = triggers

    def open(self, call: Call) -> Answer:
        """views.open."""
        given = self._given(call, "modal")
        self._unique(given, None)
        trigger = self._trigger(call)
        return _shown(self._views.open(trigger.user, given))

    def push(self, call: Call) -> Answer:
        """views.push: only from within an open modal, at most three deep."""
        given = self._given(call, "modal")
        self._unique(given, None)
        trigger = self._trigger(call)
        if trigger.view_id is None or self._views.owner(trigger.view_id) != trigger.user:
            raise SlackError("not_found")
        view = self._views.push(trigger.user, given)
        if view is None:
            raise SlackError("push_limit_reached")
        return _shown(view)

    def update(self, call: Call) -> Answer:
        """views.update by view_id or external_id, guarded by hash when one is given."""
        view = self._views.find(call.text("view_id"), call.text("external_id"))
        if view is None:
            raise SlackError("not_found")
        given = self._given(call, view["type"])
        self._unique(given, view)
        if call.text("hash") not in (None, view["hash"]):
            raise SlackError("hash_conflict", view=view)
        return _shown(self._views.update(view, given))

    def publish(self, call: Call) -> Answer:
        """views.publish: a person's Home tab."""
        user = call.need("user_id", "missing_profile_id")
        if not self._manifest.home_tab:
            raise SlackError("not_enabled")
        person = self._workspace.person(user)
        if person is None or person.kind in ("bot", "deactivated"):
            raise SlackError("invalid_arguments", response_metadata={"messages": ["invalid `user_id`"]})
        given = self._given(call, "home")
        known = self._views.homes.get(user)
        self._unique(given, known)
        if known is not None and call.text("hash") not in (None, known["hash"]):
            raise SlackError("hash_conflict", view=known)
        return _shown(self._views.publish(user, given))

    def _given(self, call: Call, kind: str) -> View:
        given = call.arguments.get("view")
        refuse_view(given, kind)
        assert isinstance(given, dict)
        return given

    def _unique(self, given: View, own: View | None) -> None:
        external_id = given.get("external_id")
        taken = self._views.find(external_id=external_id) if external_id else None
        if taken is not None and taken is not own:
            raise SlackError("duplicate_external_id")

    def _trigger(self, call: Call) -> Trigger:
        trigger = self._triggers.exchange(call.text("trigger_id") or "")
        if isinstance(trigger, str):
            raise SlackError(trigger)
        return trigger


def refuse_view(given: object, kind: str) -> None:
    """Refuse a view that Slack would refuse.

    Raises:
        SlackError: view_too_large, invalid_arguments (with every finding).
    """
    found = lint_view(given)
    if not found and isinstance(given, dict) and given["type"] != kind:
        found = [f"[ERROR] must be a {kind} view [json-pointer:/view/type]"]
    if found:
        raise SlackError("invalid_arguments", response_metadata={"messages": found})
    if view_too_large(given):
        raise SlackError("view_too_large")


def _shown(view: View) -> Answer:
    return {"ok": True, "view": view}
