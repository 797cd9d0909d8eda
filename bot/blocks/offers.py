"""What Atlas can do, with examples to click.

Decides: their layout, and which example a button means. Does not: ask anything (the listener does). The failure it can
cause: a button that puts words into somebody's mouth; it carries only the mark of an example, and the words are the
agent's own.
"""

import hashlib
import json
from collections.abc import Sequence
from typing import Any

from bot import texts
from bot.blocks.cards import button
from bot.blocks.modals import sections
from bot.lines import Block, clip, plain_text, visible

# Every example's action id begins so; Bolt's listeners match it.
EXAMPLE = "example"


def offered(examples: Sequence[str]) -> tuple[str, ...]:
    """Return the examples that are shown: at most three, one of our own for an agent without any."""
    return tuple(examples)[:3] or texts.EXAMPLES_WITHOUT_AGENT


def offers(examples: Sequence[str]) -> list[Block]:
    """Return what Atlas can do: each example with a button that asks it, then the commands."""
    blocks = sections([(texts.WHAT_IT_DOES,)])
    for at, example in enumerate(offered(examples)):
        shown = clip(visible(example), 300)
        press = button(f"{EXAMPLE}.{at}", texts.ASK_THIS, json.dumps({"e": _mark(example)}))
        press["accessibility_label"] = clip(f"{texts.ASK_THIS}: {shown}", 75)
        blocks.append({"type": "section", "text": plain_text(f"“{shown}”", 400), "accessory": press})
    return [*blocks, *sections(texts.command_lines())]


def chosen(value: Any, examples: Sequence[str]) -> str | None:
    """Return the example that a button's *value* marks; None: it is none that is offered now."""
    try:
        fields = json.loads(value)
    except (TypeError, ValueError):
        return None
    mark = fields.get("e") if isinstance(fields, dict) else None
    return next((example for example in offered(examples) if _mark(example) == mark), None)


def _mark(example: str) -> str:
    return hashlib.sha256(example.encode("utf-8", "surrogatepass")).hexdigest()[:16]
