"""Safeguards of what a button carries: all of it is checked, none of it is believed."""

import json

import pytest

from bot.listeners.service import actor_of, read_press
from core.approvals import Via
from core.engine import Actor


@pytest.mark.parametrize("digest", [None, 17, ["a"], {}, "x" * 201], ids=str)
def test_a_button_without_a_digest_matches_nothing(digest: object) -> None:
    """None would mean "any": only surfaces that cannot carry a digest may say that, and a button is none of them."""
    press = read_press(json.dumps({"s": "k7d2m9qa.1", "t": "k7d2m9qa.2", "d": digest}))
    assert press is not None
    assert press.digest == ""
    missing = read_press(json.dumps({"s": "k7d2m9qa.1", "t": "k7d2m9qa.2"}))
    assert missing is not None
    assert missing.digest == ""


def test_a_button_says_nothing_about_who_pressed_it() -> None:
    """The verified payload does; a value that names somebody names nobody."""
    value = json.dumps({"s": "a", "user": "UBOSS", "user_id": "UBOSS", "team": "T2"})
    body = {"team": {"id": "T1"}, "user": {"id": "U1"}, "actions": [{"value": value}], "state": {"user_id": "UBOSS"}}
    assert actor_of(body, Via.BUTTON) == Actor("T1", "U1", Via.BUTTON)
