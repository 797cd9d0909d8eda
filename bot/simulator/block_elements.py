"""Slack's rules for what stands inside a block: text objects, buttons, selects, inputs.

Decides validity only. Failure it can cause: an element newer than this table is refused.
Source: Slack, "Block elements" and "Composition objects" reference pages.
"""

from typing import Any

from bot.simulator.findings import Findings

Element = dict[str, Any]
_SHARED = {"type", "action_id"}
_CHOICE = {"confirm", "focus_on_load", "placeholder"}
OPTIONAL: dict[str, set[str]] = {
    "button": {
        "text", "url", "value", "style", "confirm", "accessibility_label", "visible_to_user_ids",
        "agent_prompt", "agent_prompt_display",
    },
    "icon_button": {"icon", "text", "value", "confirm", "accessibility_label", "visible_to_user_ids"},
    "feedback_buttons": {"positive_button", "negative_button"},
    "workflow_button": {"text", "workflow", "style", "accessibility_label"},
    "overflow": {"options", "confirm"},
    "checkboxes": {"options", "initial_options", "confirm", "focus_on_load"},
    "radio_buttons": {"options", "initial_option", "confirm", "focus_on_load"},
    "datepicker": {"initial_date"} | _CHOICE,
    "timepicker": {"initial_time", "timezone"} | _CHOICE,
    "datetimepicker": {"initial_date_time"} | _CHOICE,
    "static_select": {"options", "option_groups", "initial_option"} | _CHOICE,
    "multi_static_select": {"options", "option_groups", "initial_options", "max_selected_items"} | _CHOICE,
    "external_select": {"initial_option", "min_query_length"} | _CHOICE,
    "multi_external_select": {"initial_options", "min_query_length", "max_selected_items"} | _CHOICE,
    "users_select": {"initial_user"} | _CHOICE,
    "multi_users_select": {"initial_users", "max_selected_items"} | _CHOICE,
    "channels_select": {"initial_channel", "response_url_enabled"} | _CHOICE,
    "multi_channels_select": {"initial_channels", "max_selected_items"} | _CHOICE,
    "conversations_select": {
        "initial_conversation", "default_to_current_conversation", "response_url_enabled", "filter",
    } | _CHOICE,
    "multi_conversations_select": {
        "initial_conversations", "default_to_current_conversation", "max_selected_items", "filter",
    } | _CHOICE,
    "plain_text_input": {
        "placeholder", "initial_value", "multiline", "min_length", "max_length",
        "dispatch_action_config", "focus_on_load",
    },
    "number_input": {
        "is_decimal_allowed", "initial_value", "min_value", "max_value",
        "dispatch_action_config", "focus_on_load", "placeholder",
    },
    "email_text_input": {"initial_value", "dispatch_action_config", "focus_on_load", "placeholder"},
    "url_text_input": {"initial_value", "dispatch_action_config", "focus_on_load", "placeholder"},
    "rich_text_input": {
        "min_lines", "max_lines", "initial_value", "dispatch_action_config", "focus_on_load", "placeholder",
    },
    "file_input": {"filetypes", "max_files"},
}  # fmt: skip
REQUIRED: dict[str, tuple[str, ...]] = {
    "button": ("text",),
    "workflow_button": ("text", "workflow"),
    "overflow": ("options",),
    "checkboxes": ("options",),
    "radio_buttons": ("options",),
    "number_input": ("is_decimal_allowed",),
    "feedback_buttons": ("positive_button", "negative_button"),
    "icon_button": ("icon", "text"),
}


def check_text(value: object, at: str, limit: int, found: Findings) -> None:
    """Check a text object of either kind: 1 to `limit` characters."""
    if not isinstance(value, dict):
        found.add("must provide an object", at)
        return
    kind = value.get("type")
    if kind not in ("plain_text", "mrkdwn"):
        found.add(f"unsupported type: {kind}", f"{at}/type")
        return
    found.keys(value, at, ("type", "text"), ("emoji",) if kind == "plain_text" else ("verbatim",))
    found.text(value.get("text"), f"{at}/text", limit)


def check_plain(value: object, at: str, limit: int, found: Findings) -> None:
    """Check a plain_text object."""
    if isinstance(value, dict) and value.get("type") != "plain_text":
        found.add("must be plain_text", f"{at}/type")
        return
    check_text(value, at, limit, found)


def check_element(value: object, at: str, kinds: tuple[str, ...], found: Findings) -> None:
    """Check one element that must be of one of `kinds`."""
    if not isinstance(value, dict):
        found.add("must provide an object", at)
        return
    kind = value.get("type")
    if kind not in kinds:
        found.add(f"unsupported type: {kind}", f"{at}/type")
    elif kind == "file_input":
        found.add("unsupported type: file_input (Slack has it; this simulator has no files)", f"{at}/type")
    elif kind in ("mrkdwn", "plain_text"):
        # a context element's text has no published limit below the block's own 3,000
        check_text(value, at, 3000, found)
    elif kind == "image":
        found.keys(value, at, ("type", "alt_text"), ("image_url", "slack_file"))
        found.text(value.get("image_url"), f"{at}/image_url", 3000)
        found.text(value.get("alt_text"), f"{at}/alt_text", 2000)
    else:
        _check_interactive(value, str(kind), at, found)


def _check_interactive(value: Element, kind: str, at: str, found: Findings) -> None:
    required = REQUIRED.get(kind, ())
    found.keys(value, at, ("type", *required), _SHARED | OPTIONAL[kind])
    found.length(value.get("action_id"), f"{at}/action_id", 255)
    if value.get("placeholder") is not None:
        check_plain(value["placeholder"], f"{at}/placeholder", 150, found)
    if value.get("confirm") is not None:
        _check_confirm(value["confirm"], f"{at}/confirm", found)
    if kind in ("button", "workflow_button", "icon_button"):
        _check_button(value, at, found)
    elif kind == "feedback_buttons":
        for key in ("positive_button", "negative_button"):
            if isinstance(value.get(key), dict):
                check_plain(value[key].get("text"), f"{at}/{key}/text", 75, found)
                found.text(value[key].get("value"), f"{at}/{key}/value", 2000)
    elif "options" in OPTIONAL[kind]:
        _check_choices(value, kind, at, found)
    elif kind == "plain_text_input":
        _check_range(value, "max_length", 1, 3000, at, found)
        _check_range(value, "min_length", 0, 3000, at, found)
        found.length(value.get("initial_value"), f"{at}/initial_value", 3000)


def _check_range(value: Element, key: str, least: int, most: int, at: str, found: Findings) -> None:
    number = value.get(key)
    if number is None:
        return
    if not isinstance(number, int) or isinstance(number, bool):
        found.add("must be a valid integer", f"{at}/{key}")
    elif not least <= number <= most:
        found.add(f"must be between {least} and {most}", f"{at}/{key}")


def _check_button(value: Element, at: str, found: Findings) -> None:
    if value.get("text") is not None:
        check_plain(value["text"], f"{at}/text", 75, found)
    found.length(value.get("value"), f"{at}/value", 2000)
    found.length(value.get("url"), f"{at}/url", 3000)
    found.length(value.get("accessibility_label"), f"{at}/accessibility_label", 75)
    if value.get("style") not in (None, "primary", "danger"):
        found.add("unsupported value", f"{at}/style")


def _check_confirm(value: object, at: str, found: Findings) -> None:
    if not isinstance(value, dict):
        found.add("must provide an object", at)
        return
    found.keys(value, at, (), ("title", "text", "confirm", "deny", "style"))
    for key, limit in (("title", 100), ("confirm", 30), ("deny", 30)):
        if value.get(key) is not None:
            check_plain(value[key], f"{at}/{key}", limit, found)
    if value.get("text") is not None:
        check_text(value["text"], f"{at}/text", 300, found)


def _check_choices(value: Element, kind: str, at: str, found: Findings) -> None:
    limit = {"overflow": 5, "checkboxes": 10, "radio_buttons": 10}.get(kind, 100)
    groups = value.get("option_groups")
    if value.get("options") is None and groups is None and kind.endswith("select"):
        found.add("missing required field: options", at)
    if isinstance(value.get("options"), list):
        check_options(value["options"], f"{at}/options", limit, found)
    if isinstance(groups, list):
        found.count(groups, f"{at}/option_groups", 1, 100)
        for index, group in enumerate(groups):
            where = f"{at}/option_groups/{index}"
            if not isinstance(group, dict):
                found.add("must provide an object", where)
                continue
            check_plain(group.get("label"), f"{where}/label", 75, found)
            if isinstance(group.get("options"), list):
                check_options(group["options"], f"{where}/options", 100, found)
    offered = _values(value)
    initial = value.get("initial_options") or [value.get("initial_option")]
    for option in initial if isinstance(initial, list) else []:
        if isinstance(option, dict) and option.get("value") not in offered:
            found.add("initial option must be one of the options", at)


def _values(value: Element) -> set[object]:
    lists = [value.get("options") or []]
    lists += [g.get("options") or [] for g in value.get("option_groups") or [] if isinstance(g, dict)]
    return {option.get("value") for options in lists for option in options if isinstance(option, dict)}


def check_options(options: list[Any], at: str, limit: int, found: Findings, least: int = 1) -> None:
    """Check a list of options: how many there are, their texts and values."""
    found.count(options, at, least, limit)
    for index, option in enumerate(options):
        where = f"{at}/{index}"
        if not isinstance(option, dict):
            found.add("must provide an object", where)
            continue
        found.keys(option, where, ("text",), ("value", "description", "url"))
        check_text(option.get("text"), f"{where}/text", 75, found)
        # Slack documents 150 characters for an option's value
        found.length(option.get("value"), f"{where}/value", 150)
        if option.get("description") is not None:
            check_text(option["description"], f"{where}/description", 75, found)
