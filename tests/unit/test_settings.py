"""What settings say that start all the same, and may not mean what somebody meant."""

import logging

import pytest

from bot.settings import read_settings

ENOUGH = {"SLACK_BOT_TOKEN": "xoxb-1", "SLACK_APP_TOKEN": "xapp-1", "ATLAS_AGENT": "an_agent:agent"}


@pytest.mark.parametrize(
    ("given", "warned"),
    [
        ({}, None),
        ({"ATLAS_RUNS_PER_PERSON": "8", "ATLAS_RUNS_AT_ONCE": "9"}, None),
        ({"ATLAS_RUNS_PER_PERSON": "9", "ATLAS_RUNS_AT_ONCE": "9"}, "ATLAS_RUNS_PER_PERSON=9 is not below"),
        ({"ATLAS_RUNS_AT_ONCE": "4"}, "ATLAS_RUNS_PER_PERSON=16 is not below ATLAS_RUNS_AT_ONCE=4"),
        ({"ATLAS_RUNS_AT_ONE": "4"}, "ATLAS_RUNS_AT_ONE is not a setting of Atlas"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, dict) else None,
)
def test_what_may_be_meant_otherwise_is_warned_of(
    given: dict[str, str], warned: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    """A cap that lets one person fill a process, a misspelt name: said, not refused."""
    with caplog.at_level(logging.WARNING, logger="atlas"):
        read_settings(ENOUGH | given)
    said = [record.getMessage() for record in caplog.records]
    assert [warned in line for line in said] == [True] if warned is not None else said == []
