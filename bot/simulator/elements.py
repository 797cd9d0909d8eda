"""Finding a clicked element in blocks, and what a click on it reports.

Decides the `actions[]` entry and the state entry of each element kind. It trusts nothing that a
page sends but ids and the chosen value. Failure it can cause: a kind left out cannot be clicked.
"""

from collections.abc import Iterator
from typing import Any

from bot.simulator.views import initial_entry

Element = dict[str, Any]
CLICKED = ("button", "icon_button", "workflow_button", "overflow", "feedback_buttons")


def elements_of(blocks: list[dict[str, Any]]) -> Iterator[tuple[str, Element]]:
    """Yield (block_id, element) for everything that can be used in these blocks."""
    for block in blocks:
        block_id = block.get("block_id", "")
        inner = [block.get("accessory"), block.get("element")]
        if block["type"] in ("actions", "context_actions"):
            inner += block.get("elements", [])
        if block["type"] == "card":
            inner += block.get("actions", [])
        for element in inner:
            if isinstance(element, dict) and element.get("action_id"):
                yield block_id, element
        nested = block.get("child_blocks")
        if block["type"] == "carousel":
            nested = [{"block_id": block_id, **card} for card in block.get("elements", [])]
        if isinstance(nested, list):
            yield from elements_of(nested)


def find_element(blocks: list[dict[str, Any]], action_id: str, block_id: str | None) -> tuple[str, Element] | None:
    """Return the stored element with this action_id (in this block, when given)."""
    for place, element in elements_of(blocks):
        if element["action_id"] == action_id and block_id in (None, place):
            return place, element
    return None


def action_of(element: Element, block_id: str, selected: object, action_ts: str) -> dict[str, Any]:
    """Return the `actions[]` entry of using this element.

    Raises:
        ValueError: `selected` is not a choice that the element offers.
    """
    kind = element["type"]
    action: dict[str, Any] = {"type": kind, "action_id": element["action_id"], "block_id": block_id}
    if kind == "feedback_buttons":
        wanted = selected or element["positive_button"]["value"]
        for key in ("positive_button", "negative_button"):
            if element[key]["value"] == wanted:
                action |= {"text": element[key]["text"], "value": wanted}
    elif kind in CLICKED and kind != "overflow":
        for key in ("text", "value", "style", "url", "confirm"):
            if key in element:
                action[key] = element[key]
    else:
        for key in ("placeholder", "confirm"):
            if key in element:
                action[key] = element[key]
        action |= chosen(element, selected)
    return {**action, "action_ts": action_ts}


def entry_of(element: Element, selected: object) -> dict[str, Any] | None:
    """Return the `state.values` entry after this choice; None for stateless elements."""
    if element["type"] in CLICKED:
        return None
    return {"type": element["type"], **chosen(element, selected)}


def chosen(element: Element, selected: object) -> dict[str, Any]:
    """Return {key: value} of a choice, in Slack's shape, checked against what is offered.

    Raises:
        ValueError: not an option of the element.
    """
    if element["type"] == "overflow":
        return {"selected_option": _option(element, selected)}
    empty = initial_entry(element)
    if empty is None:
        raise ValueError(f"{element['type']} takes no value")
    key = next(name for name in empty if name != "type")
    if selected is None:
        return {key: [] if isinstance(empty[key], list) else None}
    if key == "selected_option":
        return {key: _option(element, selected)}
    if key == "selected_options":
        given = selected if isinstance(selected, list) else [selected]
        return {key: [_option(element, one) for one in given]}
    return {key: selected}


def _option(element: Element, selected: object) -> dict[str, Any]:
    value = selected.get("value") if isinstance(selected, dict) else selected
    groups = element.get("option_groups") or []
    offered = [*(element.get("options") or []), *(o for g in groups for o in g["options"])]
    for option in offered:
        if option.get("value") == value:
            return dict(option)
    raise ValueError(f"{value!r} is not an option of {element['action_id']}")


def input_errors(blocks: list[dict[str, Any]], values: dict[str, Any]) -> dict[str, str]:
    """Return what Slack's own client would refuse before sending: {block_id: text}."""
    errors: dict[str, str] = {}
    for block in blocks:
        if block["type"] != "input":
            continue
        element = block["element"]
        entry = values.get(block["block_id"], {}).get(element["action_id"], {})
        value = next((v for k, v in entry.items() if k != "type"), None)
        if value in (None, "", []):
            if not block.get("optional"):
                errors[block["block_id"]] = "Please complete this required field."
        elif text := _wrong(element, value):
            errors[block["block_id"]] = text
    return errors


def _wrong(element: Element, value: object) -> str | None:
    if element["type"] == "plain_text_input":
        length = len(str(value))
        if length < element.get("min_length", 0):
            return f"Please enter at least {element['min_length']} characters."
        if length > element.get("max_length", 3000):
            return f"Please enter no more than {element.get('max_length', 3000)} characters."
    if element["type"] == "number_input":
        try:
            number = float(str(value))
        except ValueError:
            return "Please enter a number."
        if not element.get("is_decimal_allowed") and number != int(number):
            return "Please enter a whole number."
        if "min_value" in element and number < float(element["min_value"]):
            return f"Please enter a number of at least {element['min_value']}."
        if "max_value" in element and number > float(element["max_value"]):
            return f"Please enter a number of at most {element['max_value']}."
    if element["type"] == "email_text_input" and "@" not in str(value):
        return "Please enter a valid email address."
    if element["type"] == "url_text_input" and "://" not in str(value):
        return "Please enter a valid URL."
    return None
