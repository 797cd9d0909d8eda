"""Slack's rules for blocks that slack_sdk's own validation misses.

Decides: whether a list of blocks would be refused or would look broken. Does not: know every limit (``Block.parse_all``
and ``validate_json`` know the rest). Source: Slack, Block Kit reference, as collected in the project's Slack facts.
"""

import re
from typing import Any

from bot.lines import Block

MOST = {"message": 50, "modal": 100, "home": 100}
MESSAGE_ONLY = {"table", "markdown", "card", "carousel", "context_actions", "plan", "task_card"}
_LIVE = re.compile(
    r"<(?!@[UW][A-Z0-9]+>|#[CG][A-Z0-9]+>|!subteam\^[A-Z0-9]+>|!date\^\d+\^[^>]*>|https?://[^>|]+\|[^>]*>)"
)


def lint(blocks: list[Block], surface: str = "message") -> list[str]:
    """List what is wrong with *blocks* on *surface* ("message", "modal", "home"); empty when nothing is."""
    found: list[str] = []
    if not blocks:
        found.append("no blocks")
    if len(blocks) > MOST[surface]:
        found.append(f"{len(blocks)} blocks")
    ids = [block["block_id"] for block in blocks if "block_id" in block]
    if len(ids) != len(set(ids)):
        found.append("a block_id twice")
    if sum(len(block["text"]) for block in blocks if block["type"] == "markdown") > 12_000:
        found.append("more than 12,000 characters of markdown")
    tables = [block for block in blocks if block["type"] == "table"]
    if len(tables) > 1:
        found.append("more than one table")
    for table in tables:
        found += _table(table)
    for at, block in enumerate(blocks):
        if surface != "message" and block["type"] in MESSAGE_ONLY:
            found.append(f"{at}: {block['type']} outside a message")
        if block["type"] == "header" and block["text"]["type"] != "plain_text":
            found.append(f"{at}: a header is plain text")
        found += [f"{at}: {problem}" for problem in _texts(block)]
        actions = [it.get("action_id") for it in block.get("elements", []) if isinstance(it, dict)]
        if block["type"] == "actions" and len(actions) != len(set(actions)):
            found.append(f"{at}: an action_id twice in a block")
    return found


def _table(table: Block) -> list[str]:
    rows: list[list[Block]] = table["rows"]
    found = []
    if len(rows) > 100 or any(len(row) > 20 for row in rows):
        found.append("table larger than 100 x 20")
    if len({len(row) for row in rows}) > 1:
        found.append("table rows of different length")
    if sum(len(cell.get("text", "")) for row in rows for cell in row) > 10_000:
        found.append("table with more than 10,000 characters")
    return found


def _texts(value: Any) -> list[str]:
    """Find empty texts, text that would be live although it is a stranger's, and rich text that is too long."""
    found: list[str] = []
    if isinstance(value, list):
        for item in value:
            found += _texts(item)
    if not isinstance(value, dict):
        return found
    text = value.get("text")
    if isinstance(text, str):
        if not text.strip() and value.get("type") != "text":
            found.append("an empty text")
        if not text and value.get("type") == "text":
            found.append("an empty rich text element")
        if value.get("type") == "mrkdwn":
            if _LIVE.search(text):
                found.append(f"a live sequence: {text[:80]!r}")
            if re.search(r"&(?!amp;|lt;|gt;)", text):
                found.append("an unescaped ampersand")
            if len(text) > 3_000:
                found.append("mrkdwn above 3,000 characters")
        if value.get("type") == "text" and len(text) > 3_000:
            found.append("a rich text element above 3,000 characters")
    for key, item in value.items():
        if key != "text" or not isinstance(item, str):
            found += _texts(item)
    return found
