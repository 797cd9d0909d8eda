"""Golden renders: what people see, in every state and at every length, is what was looked at, and Slack takes it."""

import json
from typing import Any

import pytest
from slack_sdk.models.blocks import Block as SdkBlock

from bot.blocks.lint import lint
from tests.unit.goldens import FOLDER, families, written
from tests.unit.test_blocks_cards import words

FAMILIES = families()
CASES = [(family, name) for family, goldens in FAMILIES.items() for name in goldens]


@pytest.mark.parametrize("family", FAMILIES)
def test_renders_are_as_they_were_looked_at(family: str) -> None:
    """A difference is meant or a fault; when it is meant: ``python -m tests.unit.goldens``, and look at it."""
    kept = (FOLDER / f"{family}.json").read_text(encoding="utf-8")
    now = written(FAMILIES[family])
    if now != kept:
        before, after = json.loads(kept), json.loads(now)
        assert after == before
    assert now == kept


def test_no_golden_is_left_over() -> None:
    """Each file is a family that is rendered today."""
    assert {file.stem for file in FOLDER.glob("*.json")} == set(FAMILIES)


@pytest.mark.parametrize(("family", "name"), CASES)
def test_slack_takes_every_render(family: str, name: str) -> None:
    """slack_sdk's own validation, our lint for what it misses, and a fallback text within chat.update's limit."""
    golden = FAMILIES[family][name]
    parsed = SdkBlock.parse_all(golden.blocks)
    assert len(parsed) == len(golden.blocks)
    for block in parsed:
        block.validate_json()
    assert lint(golden.blocks, golden.surface) == []
    if golden.surface == "message":
        assert 0 < len(golden.text) <= 4_000


@pytest.mark.parametrize(("family", "name"), [case for case in CASES if case[0].startswith("cards-")])
def test_a_card_says_nothing_twice_and_fits_no_cramped_block(family: str, name: str) -> None:
    """vellum-ai/vellum-assistant#37007: the card's text stood twice, and the newer card block cut it near 200."""
    blocks = FAMILIES[family][name].blocks
    assert not {block["type"] for block in blocks} & {"card", "carousel"}
    if family in ("cards-short", "cards-real", "cards-many"):
        said = [text for text in words([block for block in blocks if not _says_what_changed(block)]) if len(text) > 24]
        assert len(said) == len(set(said))


def _says_what_changed(block: dict[str, Any]) -> bool:
    return block["type"] in ("actions", "table") or "strike" in json.dumps(block)
