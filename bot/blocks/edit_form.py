"""The edit form: one input per argument, made from the argument model's JSON schema, and what was typed read back.

Decides: which input fits which type. Does not: validate (the argument model does; its errors land under their inputs).
Lists and nested objects are edited as JSON. The failure it can cause: a value that is read back as something else than
was shown; so an input that was not touched gives back exactly the argument that it showed.
"""

import json
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ValidationError

from bot.blocks.changes import preview_of
from bot.lines import Block, clip, plain_text, visible
from core.run import Suspension

EDIT = "edit_arguments"
INPUT = "value"
MOST_FIELDS = 20
# Slack: 3,000 characters of initial value in a plain_text_input, 100 options of 75 characters.
LONGEST_INITIAL = 3_000
_MOST_OPTIONS, _LONGEST_OPTION = 100, 75


def can_be_edited(suspension: Suspension, model: type[BaseModel]) -> bool:
    """Say whether every argument fits an input, so that nothing is lost by editing."""
    fields = model.model_json_schema().get("properties", {})
    texts = [_text(suspension.arguments.get(name)) for name in fields]
    return 0 < len(fields) <= MOST_FIELDS and all(len(text) <= LONGEST_INITIAL for text in texts)


def edit_form(suspension: Suspension, model: type[BaseModel], press: str) -> Block:
    """Return the modal that edits the arguments of *suspension*. *press*: the button's value, carried along."""
    schema = model.model_json_schema()
    required = set(schema.get("required", ()))
    blocks = [
        _field(name, _resolved(spec, schema), suspension.arguments.get(name), optional=name not in required)
        for name, spec in schema.get("properties", {}).items()
    ]
    heading = {"type": "context", "elements": [plain_text(clip(visible(preview_of(suspension).title), 150), 150)]}
    return {
        "type": "modal",
        "callback_id": EDIT,
        "private_metadata": press,
        "title": plain_text("Edit", 24),
        "submit": plain_text("Show new card", 24),
        "close": plain_text("Back", 24),
        "blocks": [heading, *blocks],
    }


def _field(name: str, spec: Mapping[str, Any], value: Any, *, optional: bool) -> Block:
    label = str(spec.get("title") or name.replace("_", " ").capitalize())
    block: Block = {
        "type": "input",
        "block_id": name[:255],
        "optional": optional,
        "label": plain_text(visible(label), 100),
        "element": _element(spec, value),
    }
    hint = str(spec.get("description") or "")
    if _is_json(spec):
        hint = f"{hint} As JSON.".strip()
    if hint:
        block["hint"] = plain_text(visible(hint), 300)
    return block


def _element(spec: Mapping[str, Any], value: Any) -> Block:
    options = _options(spec)
    if options:
        element: Block = {"type": "static_select", "action_id": INPUT, "options": [_option(it) for it in options]}
        if value in options:
            element["initial_option"] = _option(value)
        return element
    kind = spec.get("type")
    if kind in ("integer", "number"):
        element = {"type": "number_input", "action_id": INPUT, "is_decimal_allowed": kind == "number"}
        for bound, theirs in (("minimum", "min_value"), ("maximum", "max_value")):
            if isinstance(spec.get(bound), int):
                element[theirs] = str(spec[bound])
        if value is not None:
            element["initial_value"] = _text(value)
        return element
    text = _text(value)
    long = _is_json(spec) or len(text) > 80 or "\n" in text
    element = {"type": "plain_text_input", "action_id": INPUT, "multiline": long, "max_length": LONGEST_INITIAL}
    if text:
        element["initial_value"] = text
    return element


def _options(spec: Mapping[str, Any]) -> list[Any]:
    options = [True, False] if spec.get("type") == "boolean" else list(spec.get("enum", ()))
    fits = len(options) <= _MOST_OPTIONS and all(0 < len(_text(option)) <= _LONGEST_OPTION for option in options)
    return options if fits else []


def _option(value: Any) -> Block:
    return {"text": plain_text(_text(value), _LONGEST_OPTION), "value": json.dumps(value, ensure_ascii=True)}


def _is_json(spec: Mapping[str, Any]) -> bool:
    return spec.get("type") not in ("string", "integer", "number", "boolean") and not spec.get("enum")


def _resolved(spec: Mapping[str, Any], schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a property's schema with references followed and "or nothing" set aside."""
    alternatives = [it for it in spec.get("anyOf", ()) if it.get("type") != "null"]
    if len(alternatives) == 1:
        return _resolved({**spec, **alternatives[0], "anyOf": ()}, schema)
    reference = spec.get("$ref")
    if isinstance(reference, str):
        named = schema.get("$defs", {}).get(reference.rsplit("/", 1)[-1], {})
        return {**named, **{key: it for key, it in spec.items() if key != "$ref"}}
    return spec


def _text(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def read_form(
    view: Mapping[str, Any], model: type[BaseModel], before: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the edited arguments, validated, and errors by block id; with errors, the arguments are empty."""
    schema = model.model_json_schema()
    values = (view.get("state") or {}).get("values") or {}
    typed: dict[str, Any] = {}
    errors: dict[str, str] = {}
    for name, raw_spec in schema.get("properties", {}).items():
        spec = _resolved(raw_spec, schema)
        entry = (values.get(name[:255]) or {}).get(INPUT) or {}
        chosen = (entry.get("selected_option") or {}).get("value")
        text = entry.get("value")
        if chosen is not None:
            typed[name] = json.loads(chosen)
        elif text is None or text == "":
            continue
        elif name in before and text == _text(before[name]):
            typed[name] = before[name]
        elif _is_json(spec) or spec.get("type") in ("integer", "number"):
            try:
                typed[name] = json.loads(text)
            except ValueError as error:
                errors[name] = f"This is not JSON: {error}" if _is_json(spec) else "This is not a number."
        else:
            typed[name] = text
    if errors:
        return {}, errors
    try:
        return model.model_validate(typed).model_dump(mode="json"), {}
    except ValidationError as error:
        for problem in error.errors(include_url=False):
            place = problem["loc"]
            name = str(place[0]) if place and str(place[0]) in schema.get("properties", {}) else next(iter(typed), "")
            where = " · ".join(str(it) for it in place[1:])
            said = str(problem["msg"]).removeprefix("Value error, ").removeprefix("Assertion failed, ")
            errors.setdefault(name, clip(f"{where}: {said}" if where else said, 300))
        return {}, errors
