"""Slack's limits on blocks and views: the last value that passes and the first that is refused."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
from slack_sdk.errors import SlackObjectFormationError
from slack_sdk.models.blocks import Block

from bot.simulator.blockkit import lint_blocks, lint_view, view_too_large

Json = dict[str, Any]


def plain(text: str = "x") -> Json:
    return {"type": "plain_text", "text": text}


def mrkdwn(text: str = "x") -> Json:
    return {"type": "mrkdwn", "text": text}


def section(**more: Any) -> Json:
    return {"type": "section", "text": mrkdwn(), **more}


def button(**more: Any) -> Json:
    return {"type": "button", "text": plain(), "action_id": "a", **more}


def actions(*elements: Json) -> Json:
    return {"type": "actions", "elements": list(elements)}


def buttons(count: int) -> list[Json]:
    return [button(action_id=f"a{number}") for number in range(count)]


def select(count: int, **more: Any) -> Json:
    options = [{"text": plain(), "value": str(number)} for number in range(count)]
    return {"type": "static_select", "action_id": "s", "options": options, **more}


def icon(action_id: str) -> Json:
    return {"type": "icon_button", "icon": "trash", "text": plain(), "action_id": action_id}


def confirm(**more: Any) -> Json:
    return {"title": plain(), "text": plain(), "confirm": plain(), "deny": plain(), **more}


def table(rows: int, cells: int, text: str = "x") -> Json:
    return {"type": "table", "rows": [[{"type": "raw_text", "text": text}] * cells] * rows}


def modal(**more: Any) -> Json:
    return {"type": "modal", "title": plain(), "blocks": [{"type": "divider"}], **more}


def text_input(**more: Any) -> Json:
    element = {"type": "plain_text_input", "action_id": "t", **more}
    return {"type": "input", "label": plain(), "element": element}


# (name, blocks of a size, the largest size that Slack takes, where the next one is refused)
BLOCK_LIMITS: list[tuple[str, Callable[[int], list[Json]], int, str]] = [
    ("blocks", lambda n: [{"type": "divider"}] * n, 50, "/blocks"),
    ("section text", lambda n: [section(text=mrkdwn("x" * n))], 3000, "/blocks/0/text/text"),
    ("section fields", lambda n: [{"type": "section", "fields": [plain()] * n}], 10, "/blocks/0/fields"),
    ("field text", lambda n: [{"type": "section", "fields": [plain("x" * n)]}], 2000, "/blocks/0/fields/0/text"),
    ("header", lambda n: [{"type": "header", "text": plain("x" * n)}], 150, "/blocks/0/text/text"),
    ("context", lambda n: [{"type": "context", "elements": [plain()] * n}], 10, "/blocks/0/elements"),
    (
        "context_actions",
        lambda n: [{"type": "context_actions", "elements": [icon(f"i{number}") for number in range(n)]}],
        5,
        "/blocks/0/elements",
    ),
    ("checkboxes", lambda n: [actions(select(n, type="checkboxes"))], 10, "/blocks/0/elements/0/options"),
    ("overflow", lambda n: [actions(select(n, type="overflow"))], 5, "/blocks/0/elements/0/options"),
    ("actions", lambda n: [actions(*buttons(n))], 25, "/blocks/0/elements"),
    ("button text", lambda n: [actions(button(text=plain("x" * n)))], 75, "/blocks/0/elements/0/text/text"),
    ("button value", lambda n: [actions(button(value="x" * n))], 2000, "/blocks/0/elements/0/value"),
    ("button url", lambda n: [actions(button(url="x" * n))], 3000, "/blocks/0/elements/0/url"),
    (
        "accessibility label",
        lambda n: [actions(button(accessibility_label="x" * n))],
        75,
        "/blocks/0/elements/0/accessibility_label",
    ),
    (
        "confirm title",
        lambda n: [actions(button(confirm=confirm(title=plain("x" * n))))],
        100,
        "/blocks/0/elements/0/confirm/title/text",
    ),
    (
        "confirm text",
        lambda n: [actions(button(confirm=confirm(text=plain("x" * n))))],
        300,
        "/blocks/0/elements/0/confirm/text/text",
    ),
    (
        "confirm button",
        lambda n: [actions(button(confirm=confirm(deny=plain("x" * n))))],
        30,
        "/blocks/0/elements/0/confirm/deny/text",
    ),
    ("action_id", lambda n: [actions(button(action_id="x" * n))], 255, "/blocks/0/elements/0/action_id"),
    ("block_id", lambda n: [section(block_id="x" * n)], 255, "/blocks/0/block_id"),
    ("options", lambda n: [actions(select(n))], 100, "/blocks/0/elements/0/options"),
    (
        "option text",
        lambda n: [actions(select(0, options=[{"text": plain("x" * n), "value": "1"}]))],
        75,
        "/blocks/0/elements/0/options/0/text/text",
    ),
    (
        "image url",
        lambda n: [{"type": "image", "image_url": "x" * n, "alt_text": "x"}],
        3000,
        "/blocks/0/image_url",
    ),
    ("image alt", lambda n: [{"type": "image", "image_url": "x", "alt_text": "x" * n}], 2000, "/blocks/0/alt_text"),
    ("markdown", lambda n: [{"type": "markdown", "text": "x" * n}], 12000, "/blocks/0/text"),
    (
        "markdown in all",
        lambda n: [{"type": "markdown", "text": "x" * 6000}, {"type": "markdown", "text": "x" * (n - 6000)}],
        12000,
        "/blocks/1/text",
    ),
    ("table rows", lambda n: [table(n, 1)], 100, "/blocks/0/rows"),
    ("table cells", lambda n: [table(1, n)], 20, "/blocks/0/rows/0"),
    ("table characters", lambda n: [table(1, 1, "x" * n)], 10000, "/blocks/0/rows"),
    ("card title", lambda n: [{"type": "card", "title": mrkdwn("x" * n)}], 150, "/blocks/0/title/text"),
    ("card body", lambda n: [{"type": "card", "body": mrkdwn("x" * n)}], 200, "/blocks/0/body/text"),
    ("card buttons", lambda n: [{"type": "card", "title": plain(), "actions": buttons(n)}], 3, "/blocks/0/actions"),
    (
        "carousel",
        lambda n: [{"type": "carousel", "elements": [{"type": "card", "title": plain()}] * n}],
        10,
        "/blocks/0/elements",
    ),
    (
        "container",
        lambda n: [{"type": "container", "title": plain(), "child_blocks": [{"type": "divider"}] * n}],
        10,
        "/blocks/0/child_blocks",
    ),
    ("input label", lambda n: [{**text_input(), "label": plain("x" * n)}], 2000, "/blocks/0/label/text"),
    ("input max_length", lambda n: [text_input(max_length=n)], 3000, "/blocks/0/element/max_length"),
]


@pytest.mark.parametrize(("name", "of_size", "limit", "at"), BLOCK_LIMITS, ids=[row[0] for row in BLOCK_LIMITS])
def test_each_limit_takes_the_last_and_refuses_the_next(
    name: str, of_size: Callable[[int], list[Json]], limit: int, at: str
) -> None:
    assert lint_blocks(of_size(limit)) == []
    found = lint_blocks(of_size(limit + 1))
    assert len(found) == 1
    assert found[0].startswith("[ERROR] ")
    assert found[0].endswith(f"[json-pointer:{at}]")


VIEW_LIMITS: list[tuple[str, Callable[[int], Json], int]] = [
    ("title", lambda n: modal(title=plain("x" * n)), 24),
    ("submit", lambda n: modal(submit=plain("x" * n)), 24),
    ("close", lambda n: modal(close=plain("x" * n)), 24),
    ("private_metadata", lambda n: modal(private_metadata="x" * n), 3000),
    ("callback_id", lambda n: modal(callback_id="x" * n), 255),
    ("modal blocks", lambda n: modal(blocks=[{"type": "divider"}] * n), 100),
    ("home blocks", lambda n: {"type": "home", "blocks": [{"type": "divider"}] * n}, 100),
    ("alert", lambda n: modal(blocks=[{"type": "alert", "text": plain("x" * n)}]), 200),
]


@pytest.mark.parametrize(("name", "of_size", "limit"), VIEW_LIMITS, ids=[row[0] for row in VIEW_LIMITS])
def test_each_view_limit_takes_the_last_and_refuses_the_next(
    name: str, of_size: Callable[[int], Json], limit: int
) -> None:
    assert lint_view(of_size(limit)) == []
    assert len(lint_view(of_size(limit + 1))) == 1


BROKEN: list[tuple[str, list[Any]]] = [
    ("must be more than 0 characters", [section(text=mrkdwn(""))]),
    ("missing required field: text", [{"type": "section"}]),
    ("missing required field: elements", [{"type": "actions"}]),
    ("no fewer than 1 items allowed", [{"type": "actions", "elements": []}]),
    ("must be plain_text", [{"type": "header", "text": mrkdwn()}]),
    ("must be plain_text", [actions(button(text=mrkdwn()))]),
    ("unsupported type: nothing", [{"type": "nothing"}]),
    ("unsupported type: alert", [{"type": "alert", "text": plain()}]),
    ("unsupported type: plain_text_input", [actions({"type": "plain_text_input", "action_id": "t"})]),
    ("unsupported value", [actions(button(style="warning"))]),
    ("invalid additional property: colour", [section(colour="red")]),
    ("invalid additional property: emoji", [section(text={**mrkdwn(), "emoji": True})]),
    ("`block_id` b already exists", [section(block_id="b"), section(block_id="b")]),
    ("`action_id` a already exists", [actions(button(), button())]),
    ("only one table allowed", [table(1, 1), table(1, 1)]),
    ("initial option must be one of the options", [actions(select(1, initial_option={"text": plain(), "value": "9"}))]),
    ("must provide an object", ["text"]),
    ("unsupported type in carousel", [{"type": "carousel", "elements": [section()]}]),
    ("unsupported type: text", [{"type": "rich_text", "elements": [{"type": "text", "text": "x"}]}]),
]


@pytest.mark.parametrize(("words", "blocks"), BROKEN, ids=[f"{n}-{row[0][:20]}" for n, row in enumerate(BROKEN)])
def test_broken_rules_are_named_in_slacks_words(words: str, blocks: list[Any]) -> None:
    found = lint_blocks(blocks)
    assert len(found) == 1
    assert found[0].startswith(f"[ERROR] {words} [json-pointer:/blocks/")


def test_a_modal_with_inputs_needs_a_submit_and_has_a_size() -> None:
    assert lint_view(modal(blocks=[text_input()])) == [
        "[ERROR] missing required field: submit [json-pointer:/view/submit]"
    ]
    assert lint_view(modal(blocks=[text_input()], submit=plain())) == []
    assert lint_view({"type": "modal", "blocks": []})[0].startswith("[ERROR] missing required field: title")
    assert not view_too_large(modal(blocks=[section(text=plain("x" * 2400))] * 99))
    assert view_too_large(modal(blocks=[section(text=plain("x" * 2600))] * 99))


def test_whatever_slacks_own_sdk_refuses_is_refused_here() -> None:
    """slack_sdk misses some rules; none of what it does refuse may pass here."""
    checked = 0
    for _, of_size, limit, _ in BLOCK_LIMITS:
        for blocks in (of_size(limit), of_size(limit + 1)):
            try:
                for block in Block.parse_all(copy.deepcopy(blocks)):
                    block.validate_json()
            except SlackObjectFormationError:
                checked += 1
                assert lint_blocks(blocks), blocks
    assert checked >= 10
