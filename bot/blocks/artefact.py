"""What a write would do, as blocks: fields, table, totals, text; whether it fits a card; pages when it does not.

Decides: what is cut, when a card may carry Approve, and that nothing in it stands as a line of Atlas' own would:
strangers' words have a label, a quote's bar or a table around them. Does not: decide what a preview says (the tool
does). The failure it can cause: a cut-off artefact that can be approved; so ``fits`` and the renderer use the same
limits.
"""

from collections.abc import Sequence
from typing import Any

from bot.blocks.changes import LONGEST_LABEL, Change, columns_of, preview_of
from bot.lines import (
    EMPTY,
    Block,
    Bold,
    Line,
    Part,
    Struck,
    clip,
    escape_and_clip,
    plain_text,
    rich,
    set_apart,
    visible,
)
from core.run import Suspension
from core.tools import Preview

# Slack's limits: header 150, field 2,000, table 100 rows of 20 cells and 10,000 characters, message 50 blocks.
HEADER = 150
LONGEST_VALUE = 1_500
MOST_FIELDS = 30
MOST_LINES = 60
MOST_COLUMNS = 12
MOST_CHANGES = 30
LONGEST_TEXT = 2_800
# All of it together: Slack also refuses messages as too long as a whole, at a size that it does not document.
MOST_CHARACTERS = 9_000
LINES_SHOWN_OF_MANY = 8
# Wider than this, a value does not stand beside its label.
_NARROW = 90
_PAGE_CHARACTERS = 6_000
# With its label, a piece is no longer than LONGEST_TEXT.
_PIECE = LONGEST_TEXT - 200
_PAGE_ROWS = 40


def fits(preview: Preview, changes: Sequence[Change]) -> bool:
    """Say whether everything of *preview* can be shown on one card, uncut."""
    if len(preview.fields) + len(preview.totals) > MOST_FIELDS or len(changes) > MOST_CHANGES:
        return False
    if len(preview.lines) > MOST_LINES or len(columns_of(preview)) > MOST_COLUMNS:
        return False
    if len(visible(preview.text, lines=True)) > LONGEST_TEXT:
        return False
    values = [preview.title, *preview.fields.values(), *preview.totals.values()]
    values += [value for change in changes for value in (change.old, change.new)]
    labels = [*preview.fields, *preview.totals, *(change.label for change in changes)]
    cells = [cell for row in preview.lines for cell in (*row, *row.values())]
    if any(len(visible(value)) > LONGEST_VALUE for value in values) or any(
        len(visible(it)) > LONGEST_LABEL for it in labels
    ):
        return False
    return sum(len(visible(it)) for it in (*values, *labels, *cells, preview.text)) <= MOST_CHARACTERS


def header(title: str, sign: str = "") -> Block:
    """Return the header block of a message."""
    return {"type": "header", "text": plain_text(f"{sign} {visible(title)}", HEADER)}


def rich_line(line: Line) -> Block:
    """Return one line as a rich_text block: strangers' text in it is literal."""
    return {"type": "rich_text", "elements": [{"type": "rich_text_section", "elements": rich(line)}]}


def artefact(preview: Preview, *, table: bool = True) -> list[Block]:
    """Return the whole artefact, for one that fits. *table*: the surface knows table blocks (messages only)."""
    blocks: list[Block] = []
    title = visible(preview.title)
    if len(title) > HEADER:
        blocks.append(titled("Title", title))
    blocks += pairs(preview.fields)
    if preview.lines:
        blocks.append(_table(preview.lines, columns_of(preview)) if table else listed(preview.lines))
    if preview.totals:
        blocks += _totals(preview.totals)
    if preview.text:
        blocks.append(quoted(preview.text))
    return blocks


def beginning(preview: Preview, how: str) -> list[Block]:
    """Return the start of an artefact that does not fit, saying what is missing. *how*: where the whole can be read."""
    fields = {clip(visible(k), 100): clip(visible(v), 300) for k, v in list(preview.fields.items())[:8]}
    totals = {clip(visible(k), 100): clip(visible(v), 300) for k, v in list(preview.totals.items())[:8]}
    shown = [
        {clip(visible(key), 40): clip(visible(row.get(key, "")), 60) for key in columns_of(preview)[:MOST_COLUMNS]}
        for row in preview.lines[:LINES_SHOWN_OF_MANY]
    ]
    part = Preview(title=clip(visible(preview.title), HEADER), fields=fields, lines=shown, totals=totals)
    blocks = artefact(part)
    missing = []
    if len(preview.lines) > len(shown):
        missing.append(f"{len(shown)} of {len(preview.lines)} lines")
    if len(preview.fields) > len(fields):
        missing.append(f"{len(fields)} of {len(preview.fields)} fields")
    if preview.text:
        blocks.append(quoted(clip(visible(preview.text, lines=True), 300)))
    what = " and ".join(missing) or "the beginning"
    blocks.append(rich_line((Bold("Too long for a card"), f": {what} shown.{how}")))
    return blocks


def pairs(fields: dict[str, str]) -> list[Block]:
    """Return label and value pairs: short ones in two columns, long ones over the full width."""
    blocks: list[Block] = []
    row: list[Block] = []
    for label, value in fields.items():
        name, shown = visible(label) or EMPTY, visible(value)
        if len(shown) > _NARROW or len(name) > _NARROW:
            if row:
                blocks.append({"type": "section", "fields": row})
                row = []
            blocks.append(titled(name, shown))
            continue
        row += [{"type": "mrkdwn", "text": f"*{escape_and_clip(_tame(name), 1_900)}*", "verbatim": True},
                plain_text(shown, 2_000)]  # fmt: skip
        if len(row) == 10:
            blocks.append({"type": "section", "fields": row})
            row = []
    if row:
        blocks.append({"type": "section", "fields": row})
    return blocks


def titled(label: str, text: str) -> Block:
    """Return visible text under its label, both behind a quote's bar: it is visibly not ours."""
    line: Line = (Bold(f"{label}:"), "\n", text or EMPTY)
    return {"type": "rich_text", "elements": [{"type": "rich_text_quote", "elements": rich(line)}]}


def _totals(totals: dict[str, str]) -> list[Block]:
    """Return totals: short ones as lines of label and value, long ones behind a quote's bar."""
    blocks: list[Block] = []
    sections: list[Block] = []
    for label, value in totals.items():
        name, shown = visible(label) or EMPTY, visible(value)
        if len(name) + len(shown) > _NARROW or set_apart(label) != visible(label):
            blocks.append(titled(name, shown))
        else:
            sections.append({"type": "rich_text_section", "elements": rich((f"{name}: ", Bold(shown)))})
    return [*([{"type": "rich_text", "elements": sections}] if sections else []), *blocks]


def _tame(label: str) -> str:
    return label.translate(str.maketrans("*_~`", "∗ˍ∼ˋ"))


def quoted(text: str) -> Block:
    """Return free text as a quote: literal, and visibly not ours."""
    shown = visible(text, lines=True) or EMPTY
    return {"type": "rich_text", "elements": [{"type": "rich_text_quote", "elements": rich((shown,))}]}


def _table(lines: Sequence[dict[str, str]], columns: Sequence[str]) -> Block:
    rows = [[_cell(column) for column in columns]]
    rows += [[_cell(row.get(column, "")) for column in columns] for row in lines]
    settings = [{"align": "right" if _numeric(lines, column) else "left", "is_wrapped": True} for column in columns]
    return {"type": "table", "rows": rows, "column_settings": settings}


def _cell(text: str) -> Block:
    # A tick alone in a table's cell says nothing in Atlas' name.
    alone = len(text.strip()) <= 2
    return {"type": "raw_text", "text": visible(text, signs=alone).strip() or EMPTY}


def _numeric(lines: Sequence[dict[str, str]], column: str) -> bool:
    values = [row.get(column, "") for row in lines]
    return any(values) and all(value[:1].isdigit() or value[:1] in "-+$€£" for value in values if value)


def listed(lines: Sequence[dict[str, str]], start: int = 1) -> Block:
    """Return table rows as a numbered list, for surfaces without tables. *start*: number of the first row."""
    items = []
    for row in lines:
        words: list[Any] = []
        for column, value in row.items():
            words += [f"{' · ' if words else ''}{visible(column)} ", Bold(visible(value) or EMPTY)]
        items.append({"type": "rich_text_section", "elements": rich(tuple(words))})
    ordered = {"type": "rich_text_list", "style": "ordered", "offset": start - 1, "elements": items}
    return {"type": "rich_text", "elements": [ordered]}


def change_list(changes: Sequence[Change], most: int = MOST_CHANGES) -> list[Block]:
    """Return old → new for each change."""
    items = [{"type": "rich_text_section", "elements": rich(change.line(LONGEST_VALUE))} for change in changes[:most]]
    if not items:
        return []
    elements = [{"type": "rich_text_section", "elements": rich((Bold("What changed"),))},
                {"type": "rich_text_list", "style": "bullet", "elements": items}]  # fmt: skip
    blocks: list[Block] = [{"type": "rich_text", "elements": elements}]
    if len(changes) > most:
        blocks.append(rich_line((f"… and {len(changes) - most} more changes: press Details.",)))
    return blocks


def pages(suspension: Suspension, changes: Sequence[Change]) -> list[list[Block]]:
    """Return the whole artefact, uncut, as pages of a modal."""
    preview = preview_of(suspension)
    # A short one stands above each page.
    units = _sliced((Bold("Title"), "\n", visible(preview.title))) if len(visible(preview.title)) > HEADER else []
    for change in changes:
        units += _sliced(("Changed · ", *change.line()))
    for label, value in preview.fields.items():
        units += _sliced((Bold(visible(label)), "\n", visible(value) or EMPTY))
    for number in range(0, len(preview.lines), 10):
        rows = preview.lines[number : number + 10]
        size = sum(len(k) + len(v) for row in rows for k, v in row.items())
        if size > _PAGE_CHARACTERS // 2:
            for offset, row in enumerate(rows):
                for column, value in row.items():
                    units += _sliced((f"Line {number + offset + 1} · {visible(column)}: ", Bold(visible(value))))
        else:
            units.append((size, listed(rows, number + 1)))
    for label, value in preview.totals.items():
        units += _sliced((f"{visible(label)}: ", Bold(visible(value) or EMPTY)))
    text = visible(preview.text, lines=True)
    units += [(len(part), quoted(part)) for part in _parts(text)]
    return _paged(units)


def _parts(text: str) -> list[str]:
    return [text[at : at + _PIECE] for at in range(0, len(text), _PIECE)]


def _sliced(line: Line) -> list[tuple[int, Block]]:
    """Return a line as blocks none of which is longer than Slack takes, nothing left out."""
    size = sum(len(part) if isinstance(part, str) else len(getattr(part, "text", "")) for part in line)
    if size <= LONGEST_TEXT:
        return [(size, rich_line(line))]
    pieces: list[Part] = []
    for part in line:
        match part:
            case str():
                pieces += _parts(part)
            case Bold(text):
                pieces += [Bold(piece) for piece in _parts(text)]
            case Struck(text):
                pieces += [Struck(piece) for piece in _parts(text)]
            case _:
                pieces.append(part)
    found: list[tuple[int, Block]] = []
    pending: list[Part] = []
    room = LONGEST_TEXT
    for piece in pieces:
        length = len(piece if isinstance(piece, str) else getattr(piece, "text", ""))
        # A label goes with the beginning of what it stands above.
        if pending and length > room:
            found.append((LONGEST_TEXT - room, rich_line(tuple(pending))))
            pending, room = [], LONGEST_TEXT
        pending.append(piece)
        room -= length
    return [*found, (LONGEST_TEXT - room, rich_line(tuple(pending)))]


def _paged(units: Sequence[tuple[int, Block]]) -> list[list[Block]]:
    made: list[list[Block]] = [[]]
    room = _PAGE_CHARACTERS
    for size, block in units:
        if made[-1] and (size > room or len(made[-1]) >= _PAGE_ROWS):
            made.append([])
            room = _PAGE_CHARACTERS
        made[-1].append(block)
        room -= size
    return made
