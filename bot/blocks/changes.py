"""What changed between two versions of an artefact: each field once, a line that went or came as one.

Decides: what counts as the same line. Does not: lay anything out (artefact and cards do). The failure it can cause: an
approver who is asked again and does not see why.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any, Literal

from pydantic import ValidationError

from bot.lines import EMPTY, Bold, Line, Struck, clip, visible
from core.run import Suspension
from core.tools import Preview

LONGEST_LABEL = 150


@dataclass(frozen=True, slots=True)
class Change:
    """One difference between two versions of an artefact. *of*: a field changed, or a whole line went or came; then its
    cells are in *old* or *new*."""

    label: str
    old: str
    new: str
    of: Literal["field", "removed", "added"] = "field"

    def line(self, most: int | None = None) -> Line:
        """Say it in one line, uncut or with at most *most* characters of each value."""
        label, old, new = visible(self.label), visible(self.old) or EMPTY, visible(self.new) or EMPTY
        if most is not None:
            label, old, new = clip(label, LONGEST_LABEL), clip(old, most), clip(new, most)
        match self.of:
            case "removed":
                return (f"{label} removed: ", Struck(old))
            case "added":
                return (f"{label} added: ", Bold(new))
            case _:
                return (f"{label}: ", Struck(old), " → ", Bold(new))


def preview_of(suspension: Suspension) -> Preview:
    """Return the stored preview; one that no longer loads is shown as its JSON text."""
    try:
        return Preview.model_validate(suspension.preview)
    except ValidationError:
        return Preview(title=suspension.tool, text=json.dumps(suspension.preview, ensure_ascii=False, indent=1))


def columns_of(preview: Preview) -> list[str]:
    """Return the table's columns: the first row's keys, then those that only later rows have."""
    return list(dict.fromkeys(key for row in preview.lines for key in row))


def changes_between(old: Suspension, new: Suspension) -> list[Change]:
    """List what differs between two suspensions of one call, each field once."""
    before, after = preview_of(old), preview_of(new)
    found = _changed({"Title": before.title}, {"Title": after.title})
    found += _changed(before.fields, after.fields)
    found += _lines_changed(before, after)
    found += _changed(before.totals, after.totals)
    found += _changed({"Text": before.text}, {"Text": after.text})
    if not found:
        found = _changed(_flat(old.arguments), _flat(new.arguments))
    if not found and old.tool_version != new.tool_version:
        found = [Change("Version of the tool", old.tool_version, new.tool_version)]
    return found


def _changed(old: dict[str, str], new: dict[str, str]) -> list[Change]:
    labels = dict.fromkeys([*old, *new])
    return [Change(it, old.get(it, ""), new.get(it, "")) for it in labels if old.get(it, "") != new.get(it, "")]


def _lines_changed(before: Preview, after: Preview) -> list[Change]:
    """List what became of the lines: each that went or came once, of the others each cell that differs.

    Lines are the same when their first cell is, where that tells them apart; else by their order.
    """
    columns = list(dict.fromkeys([*columns_of(before), *columns_of(after)]))
    if not columns:
        return []
    old, new = ([row.get(columns[0], "") for row in preview.lines] for preview in (before, after))
    keyed = len(set(old)) == len(old) and len(set(new)) == len(new)
    pairs_of_lines = _by_key(old, new) if keyed else _by_order(before.lines, after.lines, columns)
    found: list[Change] = []
    for at, to in pairs_of_lines:
        if to is None and at is not None:
            found.append(Change(_numbered(at, old[at], columns), _row(before.lines[at], columns), "", "removed"))
        elif at is None and to is not None:
            found.append(Change(_numbered(to, new[to], columns), "", _row(after.lines[to], columns), "added"))
        elif at is not None and to is not None:
            name = new[to] if keyed else f"line {to + 1}"
            cells = _changed({c: before.lines[at].get(c, "") for c in columns},
                             {c: after.lines[to].get(c, "") for c in columns})  # fmt: skip
            found += [Change(f"{name} · {cell.label}", cell.old, cell.new) for cell in cells]
    stayed = [key for key in old if key in set(new)]
    moved = [key for key in new if key in set(old)]
    if keyed and stayed != moved:
        found.append(Change("Order of the lines", ", ".join(stayed), ", ".join(moved)))
    return found


def _by_key(old: Sequence[str], new: Sequence[str]) -> list[tuple[int | None, int | None]]:
    at, to = ({key: number for number, key in enumerate(keys)} for keys in (old, new))
    return [(at.get(key), to.get(key)) for key in dict.fromkeys([*old, *new])]


def _by_order(
    old: Sequence[dict[str, str]], new: Sequence[dict[str, str]], columns: Sequence[str]
) -> list[tuple[int | None, int | None]]:
    rows = [[tuple(row.get(column, "") for column in columns) for row in lines] for lines in (old, new)]
    found: list[tuple[int | None, int | None]] = []
    for what, a, b, c, d in SequenceMatcher(None, rows[0], rows[1], autojunk=False).get_opcodes():
        if what == "equal":
            continue
        both = min(b - a, d - c)
        found += [(a + n, c + n) for n in range(both)]
        found += [(n, None) for n in range(a + both, b)]
        found += [(None, n) for n in range(c + both, d)]
    return found


def _numbered(at: int, key: str, columns: Sequence[str]) -> str:
    return f"Line {at + 1}" + (f" ({columns[0]} {clip(key, 60)})" if key and columns[0] else "")


def _row(row: dict[str, str], columns: Sequence[str]) -> str:
    rest = [f"{column} {row[column]}".strip() for column in columns[1:] if row.get(column)]
    return " · ".join(rest) or row.get(columns[0], "")


def _flat(value: Any, path: str = "") -> dict[str, str]:
    if isinstance(value, dict) and value:
        return {k: v for key, it in value.items() for k, v in _flat(it, f"{path}.{key}" if path else str(key)).items()}
    if isinstance(value, list) and value:
        return {k: v for n, it in enumerate(value, 1) for k, v in _flat(it, f"{path} {n}").items()}
    return {path or "arguments": value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)}
