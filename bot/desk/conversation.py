"""The conversation as the planner sees it: one turn per thing a person wrote, with what was tried and what came of it.

Decides which result belongs to which call and what kind of result it is. The failure it can cause: taking an error for
an answer would let the desk claim what never happened, so whatever is not recognisably a tool's own result is trouble.
"""

import json
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from core import Message


class Outcome(StrEnum):
    """What came of one call."""

    DONE = "done"
    CONFIRMED = "confirmed"
    """A person said that it happened; the tool's own result was lost."""
    DECLINED = "declined"
    EXPIRED = "expired"
    REFUSED = "refused"
    NOT_PERMITTED = "not_permitted"
    UNKNOWN = "unknown"
    BUDGET = "budget"
    STOPPED = "stopped"
    REPLACED = "replaced"
    NOT_CHECKED = "not_checked"
    FAILED = "failed"
    OTHER = "other"
    """A word that the desk does not know: nothing is claimed and nothing repeated."""


# The words that the loop puts into a result's "error", by what they mean for the person.
_MEANINGS = (
    (Outcome.UNKNOWN, ("unknown_outcome", "outcome_unknown", "unknown")),
    (Outcome.BUDGET, ("not_executed_budget",)),
    (Outcome.DECLINED, ("declined_by_user", "declined")),
    (Outcome.EXPIRED, ("expired", "suspension_expired", "approval_expired")),
    (Outcome.NOT_PERMITTED, ("not_permitted", "permission_changed", "permissions_changed")),
    (Outcome.REFUSED, ("refused", "guard_refused")),
    (Outcome.STOPPED, ("stopped", "stopped_by_user", "not_executed")),
    (Outcome.REPLACED, ("superseded", "replaced")),
    (Outcome.NOT_CHECKED, ("could_not_check",)),
    (Outcome.FAILED, ("tool_failed", "invalid_arguments", "unknown_tool")),
)


# What a tool's own result has at least; anything else is no result to build on.
_SHAPES: dict[str, tuple[tuple[str, type], ...]] = {
    "find_account": (("accounts", list), ("found", int)),
    "find_item": (("items", list), ("found", int)),
    "find_quote": (("quotes", list), ("found", int)),
    "price": (("lines", list), ("total", str), ("account_name", str)),
    "draft_quote": (("number", str), ("account_id", str), ("lines", list), ("total", str)),
    "send_quote": (("number", str), ("account_id", str), ("lines", list), ("total", str), ("sent_to", str)),
}


@dataclass(frozen=True)
class Tried:
    """One call and its result. *value*: the tool's own result; *reason*: why there is none, in people's words."""

    tool: str
    arguments: dict[str, Any]
    outcome: Outcome
    value: dict[str, Any] = field(default_factory=dict)
    reason: str = ""


@dataclass
class Turn:
    """What a person wrote, what was tried after it, in order, and whether it was answered."""

    text: str
    tried: list[Tried] = field(default_factory=list)
    answered: bool = False

    def latest(self, tool: str, arguments: dict[str, Any]) -> Tried | None:
        """Return the last try of exactly this call in the turn."""
        return next((t for t in reversed(self.tried) if (t.tool, t.arguments) == (tool, arguments)), None)

    def count(self, tool: str, arguments: dict[str, Any]) -> int:
        """Return how often exactly this call was tried in the turn."""
        return sum((t.tool, t.arguments) == (tool, arguments) for t in self.tried)


def turns(messages: list[Message]) -> list[Turn]:
    """Return the conversation as turns. A call without a result counts as one whose outcome nobody knows."""
    results = _results(messages)
    found: list[Turn] = []
    for place, message in enumerate(messages):
        if message.role == "user":
            found.append(Turn(message.text))
        elif message.role == "assistant":
            if not found:
                found.append(Turn(""))
            for position, call in enumerate(message.calls):
                found[-1].tried.append(_tried(call.tool, call.arguments, results.get((place, position))))
            found[-1].answered = not message.calls
    return found


def _results(messages: list[Message]) -> dict[tuple[int, int], str]:
    """Match results to calls by (place of the model's message, position): ids may repeat, order does not lie."""
    open_calls: list[tuple[str, tuple[int, int]]] = []
    results: dict[tuple[int, int], str] = {}
    for place, message in enumerate(messages):
        if message.role == "assistant":
            open_calls += [(call.id, (place, position)) for position, call in enumerate(message.calls)]
        elif message.role == "tool":
            for index, (call_id, at) in enumerate(open_calls):
                if call_id == message.call_id:
                    results[at] = message.text
                    del open_calls[index]
                    break
    return results


def _tried(tool: str, arguments: dict[str, Any], result: str | None) -> Tried:
    if result is None:
        return Tried(tool, arguments, Outcome.UNKNOWN, reason="there is no result")
    try:
        value = json.loads(result)
    except ValueError:
        value = {"error": "unreadable", "reason": result[:300]}
    if not isinstance(value, dict):
        return Tried(tool, arguments, Outcome.OTHER, reason="the result is not one that I can read")
    if "error" not in value:
        if all(isinstance(value.get(name), kind) for name, kind in _SHAPES.get(tool, ())):
            return Tried(tool, arguments, Outcome.DONE, value=value)
        if value.get("happened") is True:
            return Tried(tool, arguments, Outcome.CONFIRMED, reason=str(value.get("confirmed_by", "somebody")))
        return Tried(tool, arguments, Outcome.OTHER, reason="the result is not one that I can read")
    kind = str(value["error"])
    reason = str(value.get("reason") or kind)
    for outcome, kinds in _MEANINGS:
        if kind in kinds:
            return Tried(tool, arguments, outcome, reason=reason)
    return Tried(tool, arguments, Outcome.OTHER, reason=reason)
