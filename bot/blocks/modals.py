"""Modals: Details with its pages, Decline with a reason, and the text that answers a refused submission.

Decides: what they show and carry. Does not: open or judge them. The failure it can cause: a Details modal whose last
page approves something else than its pages showed; so it carries the token and digest that its pages were made from.
"""

import json

from bot import texts
from bot.blocks.artefact import HEADER, pages, rich_line
from bot.blocks.cards import changes_of, context
from bot.blocks.changes import preview_of
from bot.lines import Block, Bold, Code, Line, clip, mrkdwn, plain_text, rich, visible
from core.run import Run, Suspension, SuspensionKind, SuspensionStatus

DETAILS_NEXT, DETAILS_APPROVE, DECLINE = "details_next", "details_approve", "decline_reason"
REASON_BLOCK, REASON_INPUT = "reason", "text"
REASON_LIMIT = 1_000


def _modal(title: str, blocks: list[Block], *, close: str = "Close") -> Block:
    return {"type": "modal", "title": plain_text(title, 24), "close": plain_text(close, 24), "blocks": blocks}


def loading(title: str = "Details") -> Block:
    """Return what stands in a modal until its content is read; opened before any database work."""
    return _modal(title, [rich_line(("One moment…",))])


def decline_form(press: str) -> Block:
    """Return the form that asks for an optional reason. *press*: the button's value, carried along."""
    box: Block = {
        "type": "plain_text_input",
        "action_id": REASON_INPUT,
        "multiline": True,
        "max_length": REASON_LIMIT,
        "placeholder": plain_text("What should be different?", 150),
    }
    field: Block = {
        "type": "input",
        "block_id": REASON_BLOCK,
        "optional": True,
        "label": plain_text("Reason", 100),
        "hint": plain_text("Atlas and everybody in the thread can read it.", 200),
        "element": box,
    }
    form = _modal("Decline", [field], close="Back")
    return {**form, "submit": plain_text("Decline", 24), "callback_id": DECLINE, "private_metadata": press}


def details(suspension: Suspension, versus: Suspension | None, run: Run, press: str, page: int) -> Block:
    """Return one page of the whole artefact, *page* from 0; the last one's submit is Approve. *press*: the card's."""
    made = pages(suspension, changes_of(suspension, versus))
    page = max(0, min(page, len(made) - 1))
    where: Line = (f"Page {page + 1} of {len(made)} · digest ", Code(suspension.digest[:8]))
    # The first page holds the whole of a title that is too long to stand here.
    title = visible(preview_of(suspension).title)
    heading = [rich_line((Bold(clip(title, HEADER)),))] if page or len(title) <= HEADER else []
    blocks = [*heading, context(where), *made[page]]
    view = _modal("Details", blocks)
    carried = {**json.loads(press), "p": page}
    view["private_metadata"] = json.dumps(carried, separators=(",", ":"))
    if page + 1 < len(made):
        return {**view, "submit": plain_text("Next page", 24), "callback_id": DETAILS_NEXT}
    if suspension.kind is SuspensionKind.OUTCOME and suspension.status is SuspensionStatus.OPEN:
        return {**view, "blocks": [*blocks, context(("This is all of it. The answers stand on the card.",))]}
    if suspension.status is not SuspensionStatus.OPEN:
        return {**view, "blocks": [*blocks, context(texts.phase(suspension, None)[1])]}
    last = context(("This is the last page. Approve counts for exactly what these pages show.",))
    return {**view, "blocks": [*blocks, last], "submit": plain_text("Approve", 24), "callback_id": DETAILS_APPROVE}


def told(line: Line) -> Block:
    """Return a modal that says why nothing was done, and what to do."""
    text = {"type": "mrkdwn", "text": mrkdwn(line)[:3_000], "verbatim": True}
    return _modal("Atlas", [{"type": "section", "text": text}])


def sections(lines: list[Line]) -> list[Block]:
    """Return lines as blocks of a private answer or Home; strangers' text in them is literal."""
    blocks: list[Block] = []
    for start in range(0, len(lines), 12):
        elements = [
            {"type": "rich_text_section", "elements": rich((*line, "\n"))} for line in lines[start : start + 12]
        ]
        blocks.append({"type": "rich_text", "elements": elements})
    return blocks
