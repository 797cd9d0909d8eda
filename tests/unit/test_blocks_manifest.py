"""The manifest is valid by Slack's own schema and holds exactly what the code uses: events, commands, scopes."""

import json
import os
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

ROOT = Path(__file__).parents[2]
SOURCES = [*ROOT.glob("bot/*.py"), *ROOT.glob("bot/listeners/*.py")]


def slack_data() -> Path:
    """Return where Slack's published data lies, or skip."""
    path = Path(os.environ.get("ATLAS_SLACK_DATA") or ROOT.parent / "shared" / "slack")
    if not path.is_dir():
        pytest.skip(f"Slack's published data is not at {path}; set ATLAS_SLACK_DATA")
    return path


@pytest.fixture
def manifest() -> dict[str, Any]:
    """The manifest as published."""
    loaded: dict[str, Any] = yaml.safe_load((ROOT / "manifest.yml").read_text(encoding="utf-8"))
    return loaded


def source() -> str:
    """Return all code that speaks to Slack."""
    return "\n".join(path.read_text(encoding="utf-8") for path in SOURCES)


def used_methods() -> set[str]:
    """Return the Web API methods that the code calls, as Slack names them, from the SDK's method names."""
    words = re.findall(
        r"client\.((?:chat|conversations|users|usergroups|views|auth|apps|bots|assistant)_\w+)\(", source()
    )
    named = {word.split("_", 1)[0] + "." + word.split("_", 1)[1] for word in words}
    return {"apps.connections.open" if name.startswith("apps.") else name for name in named}


def test_the_manifest_is_valid_by_slacks_schema(manifest: dict[str, Any]) -> None:
    """No unknown key, no text too long."""
    schema = json.loads((slack_data() / "manifest" / "manifest.schema.2.0.0.json").read_text(encoding="utf-8"))
    jsonschema.validate(manifest, schema)


def test_it_subscribes_to_exactly_the_events_that_are_handled(manifest: dict[str, Any]) -> None:
    """A handled event that is not subscribed never comes; a subscribed one that is not handled is noise."""
    handled = set(re.findall(r'app\.event\("([a-z_.]+)"\)', source()))
    if 'kind == "app_mention"' in source():
        handled.add("app_mention")
    if 'event.get("channel_type") == "im"' in source():
        handled.add("message.im")
    assert set(manifest["settings"]["event_subscriptions"]["bot_events"]) == handled


def test_it_declares_exactly_the_commands_that_are_handled(manifest: dict[str, Any]) -> None:
    """One command, escaped, with interactivity on for its buttons."""
    declared = {it["command"] for it in manifest["features"]["slash_commands"]}
    assert declared == set(re.findall(r'app\.command\("(/[a-z]+)"\)', source()))
    assert manifest["settings"]["interactivity"]["is_enabled"] is True
    assert manifest["features"]["app_home"]["messages_tab_read_only_enabled"] is False


# What each use needs. Source: Slack, the "Required scopes" of each method and event.
NEEDS: dict[str, set[str]] = {
    "auth.test": set(),
    # With the app-level token, whose connections:write is no scope of the bot's.
    "apps.connections.open": set(),
    "chat.postMessage": {"chat:write"},
    "chat.postEphemeral": {"chat:write"},
    "chat.update": {"chat:write"},
    "conversations.replies": {"channels:history", "groups:history", "im:history", "mpim:history"},
    "conversations.history": {"channels:history", "groups:history", "im:history", "mpim:history"},
    "conversations.members": {"channels:read", "groups:read", "im:read", "mpim:read"},
    "conversations.open": {"im:write"},
    "conversations.info": {"channels:read", "groups:read", "im:read", "mpim:read"},
    "users.info": {"users:read", "users:read.email"},
    "usergroups.list": {"usergroups:read"},
    "views.open": set(),
    "views.update": set(),
    "views.publish": set(),
    "event app_mention": {"app_mentions:read"},
    "event message.im": {"im:history"},
    "event app_home_opened": set(),
    "command": {"commands"},
}


def test_it_asks_for_the_least_scopes(manifest: dict[str, Any]) -> None:
    """Every scope is needed by something that the code does, and everything that it does has its scopes."""
    uses = used_methods() | {f"event {it}" for it in manifest["settings"]["event_subscriptions"]["bot_events"]}
    uses.add("command")
    assert uses <= set(NEEDS), "say here which scopes a newly used method needs"
    needed = set().union(*(NEEDS[use] for use in uses))
    # Atlas answers where it is mentioned; in a group DM it never is, since message.mpim is not subscribed.
    needed -= {"mpim:history", "mpim:read"}
    assert set(manifest["oauth_config"]["scopes"]["bot"]) == needed


def test_every_button_that_is_rendered_has_a_listener() -> None:
    """No button ends in nowhere: each action id that blocks make is registered."""
    made = "\n".join(path.read_text(encoding="utf-8") for path in ROOT.glob("bot/blocks/*.py"))
    ids = set(re.findall(r'button\(\s*"([a-z_]+)"', made))
    assert {"approve", "decline", "continue", "stop", "details", "happened", "did_not_happen"} <= ids
    listeners = (ROOT / "bot/listeners/actions.py").read_text(encoding="utf-8")
    assert ids <= set(re.findall(r'^ +"([a-z_]+)": [a-z_]+,$', listeners, re.MULTILINE))
