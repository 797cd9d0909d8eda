"""Slack's rules for blocks and views, and what it answers when one is broken.

Decides whether a list of blocks or a view is valid on its surface; each finding is one string in
Slack's own form (`[ERROR] ... [json-pointer:/blocks/0/...]`). It changes nothing.
Failure it can cause: a block type newer than this table is refused as unsupported.
Source: Slack, "Block Kit" reference pages; limits as collected in the project's Slack facts.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from bot.simulator.block_elements import check_element, check_plain, check_text
from bot.simulator.findings import Findings

Surface = Literal["message", "modal", "home"]
MAX_BLOCKS = {"message": 50, "modal": 100, "home": 100}
MAX_VIEW_BYTES = 250_000
MARKDOWN_CHARS = 12_000
TABLE_CHARS = 10_000
CONTEXT_KINDS = ("image", "mrkdwn", "plain_text")
ACTION_KINDS = (
    "button", "checkboxes", "datepicker", "datetimepicker", "timepicker", "overflow",
    "radio_buttons", "workflow_button", "static_select", "external_select", "users_select",
    "conversations_select", "channels_select", "multi_static_select", "multi_external_select",
    "multi_users_select", "multi_conversations_select", "multi_channels_select", "icon_button",
)  # fmt: skip
ACCESSORY_KINDS = ("image", *ACTION_KINDS)
INPUT_KINDS = (
    "plain_text_input", "number_input", "email_text_input", "url_text_input", "rich_text_input",
    "file_input", "checkboxes", "radio_buttons", "datepicker", "datetimepicker", "timepicker",
    "static_select", "external_select", "users_select", "conversations_select",
    "channels_select", "multi_static_select", "multi_external_select", "multi_users_select",
    "multi_conversations_select", "multi_channels_select",
)  # fmt: skip
RICH_KINDS = ("rich_text_section", "rich_text_list", "rich_text_quote", "rich_text_preformatted")
Block = dict[str, Any]


@dataclass
class _Walk:
    """What is summed over the whole payload."""

    surface: Surface
    found: Findings
    block_ids: set[str] = field(default_factory=set)
    markdown_chars: int = 0
    tables: int = 0
    has_input: bool = False


def lint_blocks(blocks: object, surface: Surface = "message", at: str = "/blocks") -> list[str]:
    """Return every rule that `blocks` breaks on this surface, in Slack's words; [] when valid."""
    walk = _Walk(surface, Findings())
    _check_list(blocks, at, walk)
    return walk.found.messages


def lint_view(view: object) -> list[str]:
    """Return every rule that a modal or Home view breaks; [] when valid."""
    if not isinstance(view, dict):
        return ["[ERROR] must provide an object [json-pointer:/view]"]
    kind = view.get("type")
    found = Findings()
    if kind not in ("modal", "home"):
        found.add("unsupported view type", "/view/type")
        return found.messages
    walk = _Walk(kind, found)
    found.keys(
        view,
        "/view",
        {"type", "blocks"} | ({"title"} if kind == "modal" else set()),
        {
            "title", "close", "submit", "private_metadata", "callback_id", "clear_on_close",
            "notify_on_close", "external_id", "submit_disabled",
        },
    )  # fmt: skip
    for key in ("title", "submit", "close"):
        if view.get(key) is not None:
            check_plain(view[key], f"/view/{key}", 24, found)
    found.length(view.get("private_metadata"), "/view/private_metadata", 3000)
    found.length(view.get("callback_id"), "/view/callback_id", 255)
    found.length(view.get("external_id"), "/view/external_id", 255)
    if "blocks" in view:
        _check_list(view["blocks"], "/view/blocks", walk)
    if kind == "modal" and walk.has_input and not view.get("submit"):
        found.add("missing required field: submit", "/view/submit")
    return found.messages


def view_too_large(view: object) -> bool:
    """Return whether the view's JSON exceeds 250 kB."""
    return len(json.dumps(view, ensure_ascii=False).encode("utf-8", "surrogatepass")) > MAX_VIEW_BYTES


def _check_list(blocks: object, at: str, walk: _Walk, nested: bool = False) -> None:
    found = walk.found
    if not isinstance(blocks, list):
        found.add("must provide an array", at)
        return
    limit = 10 if nested else MAX_BLOCKS[walk.surface]
    if len(blocks) > limit:
        found.add(f"no more than {limit} items allowed", at)
    for index, block in enumerate(blocks):
        where = f"{at}/{index}"
        if not isinstance(block, dict):
            found.add("must provide an object", where)
            continue
        kind = block.get("type")
        rule = RULES.get(kind) if isinstance(kind, str) else None
        if rule is None:
            found.add(f"unsupported type: {kind}", f"{where}/type")
            continue
        if walk.surface not in rule.surfaces:
            found.add(f"unsupported type: {kind}", f"{where}/type")
        found.keys(block, where, rule.required, rule.optional | {"block_id"})
        block_id = block.get("block_id")
        found.length(block_id, f"{where}/block_id", 255)
        if isinstance(block_id, str):
            if block_id in walk.block_ids:
                found.add(f"`block_id` {block_id} already exists", f"{where}/block_id")
            walk.block_ids.add(block_id)
        rule.check(block, where, walk)


def _elements(block: Block, at: str, walk: _Walk, limit: int, kinds: tuple[str, ...], least: int = 1) -> None:
    elements = block.get("elements")
    if elements is None:
        return
    where = f"{at}/elements"
    if not isinstance(elements, list):
        walk.found.add("must provide an array", where)
        return
    walk.found.count(elements, where, least, limit)
    seen: set[str] = set()
    for index, element in enumerate(elements):
        check_element(element, f"{where}/{index}", kinds, walk.found)
        action_id = element.get("action_id") if isinstance(element, dict) else None
        if isinstance(action_id, str):
            if action_id in seen:
                walk.found.add(f"`action_id` {action_id} already exists", f"{where}/{index}/action_id")
            seen.add(action_id)


def _section(block: Block, at: str, walk: _Walk) -> None:
    if "text" not in block and "fields" not in block:
        walk.found.add("missing required field: text", at)
    if "text" in block:
        check_text(block["text"], f"{at}/text", 3000, walk.found)
    fields = block.get("fields")
    if isinstance(fields, list):
        walk.found.count(fields, f"{at}/fields", 1, 10)
        for index, text in enumerate(fields):
            check_text(text, f"{at}/fields/{index}", 2000, walk.found)
    elif fields is not None:
        walk.found.add("must provide an array", f"{at}/fields")
    if "accessory" in block:
        check_element(block["accessory"], f"{at}/accessory", ACCESSORY_KINDS, walk.found)


def _header(block: Block, at: str, walk: _Walk) -> None:
    if "text" in block:
        check_plain(block["text"], f"{at}/text", 150, walk.found)


def _context(block: Block, at: str, walk: _Walk) -> None:
    _elements(block, at, walk, 10, CONTEXT_KINDS)


def _actions(block: Block, at: str, walk: _Walk) -> None:
    _elements(block, at, walk, 25, ACTION_KINDS)


def _context_actions(block: Block, at: str, walk: _Walk) -> None:
    _elements(block, at, walk, 5, ("feedback_buttons", "icon_button"))


def _image(block: Block, at: str, walk: _Walk) -> None:
    if "image_url" not in block and "slack_file" not in block:
        walk.found.add("missing required field: image_url", at)
    walk.found.text(block.get("image_url"), f"{at}/image_url", 3000)
    walk.found.text(block.get("alt_text"), f"{at}/alt_text", 2000)
    if "title" in block:
        check_plain(block["title"], f"{at}/title", 2000, walk.found)


def _input(block: Block, at: str, walk: _Walk) -> None:
    walk.has_input = True
    if "label" in block:
        check_plain(block["label"], f"{at}/label", 2000, walk.found)
    if block.get("hint") is not None:
        check_plain(block["hint"], f"{at}/hint", 2000, walk.found)
    if "element" in block:
        check_element(block["element"], f"{at}/element", INPUT_KINDS, walk.found)


def _markdown(block: Block, at: str, walk: _Walk) -> None:
    text = block.get("text")
    walk.found.text(text, f"{at}/text", MARKDOWN_CHARS)
    before = walk.markdown_chars
    walk.markdown_chars += len(text) if isinstance(text, str) else 0
    if before <= MARKDOWN_CHARS < walk.markdown_chars and before:
        walk.found.add(f"markdown blocks exceed {MARKDOWN_CHARS} characters in all", f"{at}/text")


def _rich_text(block: Block, at: str, walk: _Walk) -> None:
    elements = block.get("elements")
    if not isinstance(elements, list):
        return
    for index, element in enumerate(elements):
        where = f"{at}/elements/{index}"
        kind = element.get("type") if isinstance(element, dict) else None
        if kind not in RICH_KINDS:
            walk.found.add(f"unsupported type: {kind}", f"{where}/type")
        elif not isinstance(element.get("elements"), list):
            walk.found.add("missing required field: elements", where)


def _table(block: Block, at: str, walk: _Walk) -> None:
    walk.tables += 1
    if walk.tables > 1:
        walk.found.add("only one table allowed", at)
    rows = block.get("rows")
    if not isinstance(rows, list):
        return
    walk.found.count(rows, f"{at}/rows", 1, 100)
    chars = 0
    for index, row in enumerate(rows):
        if not isinstance(row, list):
            walk.found.add("must provide an array", f"{at}/rows/{index}")
            continue
        walk.found.count(row, f"{at}/rows/{index}", 1, 20)
        chars += sum(_chars(cell) for cell in row)
    if chars > TABLE_CHARS:
        walk.found.add(f"must be less than {TABLE_CHARS + 1} characters in all", f"{at}/rows")
    settings = block.get("column_settings")
    if isinstance(settings, list):
        walk.found.count(settings, f"{at}/column_settings", 0, 20)


def _chars(cell: object) -> int:
    if isinstance(cell, dict):
        own = len(cell["text"]) if isinstance(cell.get("text"), str) else 0
        return own + sum(_chars(value) for key, value in cell.items() if key != "text")
    return sum(_chars(item) for item in cell) if isinstance(cell, list) else 0


def _card(block: Block, at: str, walk: _Walk) -> None:
    if not any(key in block for key in ("title", "body", "hero_image", "actions")):
        walk.found.add("missing required field: title", at)
    for key, limit in (("title", 150), ("subtitle", 150), ("body", 200)):
        if key in block:
            check_text(block[key], f"{at}/{key}", limit, walk.found)
    actions = block.get("actions")
    if isinstance(actions, list):
        walk.found.count(actions, f"{at}/actions", 1, 3)
        for index, element in enumerate(actions):
            check_element(element, f"{at}/actions/{index}", ("button",), walk.found)


def _carousel(block: Block, at: str, walk: _Walk) -> None:
    cards = block.get("elements")
    if not isinstance(cards, list):
        return
    walk.found.count(cards, f"{at}/elements", 1, 10)
    for index, card in enumerate(cards):
        where = f"{at}/elements/{index}"
        if not isinstance(card, dict) or card.get("type") != "card":
            walk.found.add("unsupported type in carousel", f"{where}/type")
        else:
            _card(card, where, walk)


def _alert(block: Block, at: str, walk: _Walk) -> None:
    if "text" in block:
        check_text(block["text"], f"{at}/text", 200, walk.found)
    level = block.get("level", "default")
    if level not in ("default", "info", "warning", "error", "success"):
        walk.found.add("unsupported value", f"{at}/level")


def _container(block: Block, at: str, walk: _Walk) -> None:
    if block.get("title") is None and block.get("rich_text_title") is None:
        walk.found.add("missing required field: title", at)
    if block.get("title") is not None:
        check_plain(block["title"], f"{at}/title", 150, walk.found)
    if block.get("subtitle") is not None:
        check_text(block["subtitle"], f"{at}/subtitle", 150, walk.found)
    if block.get("width", "standard") not in ("narrow", "standard", "wide", "full"):
        walk.found.add("unsupported value", f"{at}/width")
    if block.get("is_collapsible") and block.get("has_header_divider"):
        walk.found.add("not allowed with is_collapsible", f"{at}/has_header_divider")
    if block.get("child_blocks") == []:
        walk.found.add("no fewer than 1 items allowed", f"{at}/child_blocks")
    elif block.get("child_blocks") is not None:
        _check_list(block["child_blocks"], f"{at}/child_blocks", walk, nested=True)


def _task_card(block: Block, at: str, walk: _Walk) -> None:
    if block.get("status", "pending") not in ("pending", "in_progress", "complete", "error"):
        walk.found.add("unsupported value", f"{at}/status")


def _plan(block: Block, at: str, walk: _Walk) -> None:
    tasks = block.get("tasks")
    for index, task in enumerate(tasks if isinstance(tasks, list) else []):
        if not isinstance(task, dict) or task.get("type") != "task_card":
            walk.found.add("unsupported type in plan", f"{at}/tasks/{index}/type")
        else:
            _task_card(task, f"{at}/tasks/{index}", walk)


def _nothing(block: Block, at: str, walk: _Walk) -> None:
    return None


@dataclass(frozen=True)
class _Rule:
    check: Callable[[Block, str, _Walk], None]
    required: frozenset[str] = frozenset()
    optional: frozenset[str] = frozenset()
    surfaces: tuple[Surface, ...] = ("message", "modal", "home")


def _rule(
    check: Callable[[Block, str, _Walk], None],
    required: str = "",
    optional: str = "",
    surfaces: tuple[Surface, ...] = ("message", "modal", "home"),
) -> _Rule:
    return _Rule(
        check,
        frozenset({"type", *required.split()}),
        frozenset(optional.split()),
        surfaces,
    )


RULES: dict[str, _Rule] = {
    "section": _rule(_section, "", "text fields accessory expand"),
    "header": _rule(_header, "text", "level"),
    "divider": _rule(_nothing),
    "context": _rule(_context, "elements"),
    "actions": _rule(_actions, "elements"),
    "context_actions": _rule(_context_actions, "elements", "", ("message",)),
    "image": _rule(_image, "alt_text", "image_url slack_file title"),
    "input": _rule(_input, "label element", "hint optional dispatch_action"),
    "markdown": _rule(_markdown, "text", "", ("message",)),
    "rich_text": _rule(_rich_text, "elements"),
    "table": _rule(_table, "rows", "column_settings", ("message",)),
    "video": _rule(
        _nothing,
        "alt_text title thumbnail_url video_url",
        "author_name description provider_icon_url provider_name title_url",
    ),
    "file": _rule(_nothing, "external_id source", "", ("message",)),
    "card": _rule(_card, "", "title subtitle body hero_image icon actions", ("message",)),
    "carousel": _rule(_carousel, "elements", "", ("message",)),
    "alert": _rule(_alert, "text", "level", ("modal",)),
    "container": _rule(
        _container,
        "child_blocks",
        "title rich_text_title subtitle icon width is_collapsible default_collapsed has_header_divider",
    ),
    "task_card": _rule(_task_card, "task_id title", "status details output sources", ("message",)),
    "plan": _rule(_plan, "title", "tasks", ("message",)),
    "data_table": _rule(_nothing, "", "caption rows columns page_size row_header_column_index", ("message",)),
    "data_visualization": _rule(_nothing, "", "title chart", ("message",)),
}
