"""What the model is told about a call that has no result of its tool's own, and what people are told of one that has.

Decides: the words. Each way of not executing has its own (a timeout is not a refusal), so that the model neither
repeats what a person declined nor claims what did not happen. Does not: store them. The failure it can cause: a result
that reads as success where nothing happened; so every one of these is ``{"error": kind, "reason": …}``.
"""

import json
from typing import Any

from core.conversation import CallKey, error_text, result_text
from core.errors import CouldNotCheck, words_of
from core.next_act import OpenCall, open_action
from core.run import RunView, Suspension, SuspensionStatus


def storable(value: Any) -> str:
    """Return a write's result as text; what cannot be stored is said, since the effect did happen."""
    try:
        return result_text(value)
    except (TypeError, ValueError, RecursionError) as error:
        return error_text("result_not_storable", f"it was done, but its result cannot be stored: {words_of(error)}")


def not_permitted(tool: str) -> str:
    """Return the result of a call that the scope does not allow."""
    return error_text("not_permitted", f"the person who asked may not do this ({tool}); nothing was done")


def could_not_check(error: CouldNotCheck) -> str:
    """Return the result of a call that could not be checked before any card."""
    return error_text("could_not_check", f"could not check {error.what} ({error.why}); nothing was done")


def reason_of(text: str) -> str:
    """Return the reason of an ``error_text``."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text[:200]
    return str(value.get("reason", "")) if isinstance(value, dict) else ""


def gist(result: str) -> str:
    """Return what "Done · …" says: the first short text of a result."""
    try:
        value = json.loads(result)
    except (ValueError, RecursionError):
        return ""
    candidates = list(value.values()) if isinstance(value, dict) else [value]
    return next((c for c in candidates if isinstance(c, str) and 0 < len(c) <= 80), "")


def closed_text(suspension: Suspension) -> str:
    """Return the result of a call whose suspension closed without an execution; each status has its own words."""
    match suspension.status:
        case SuspensionStatus.DECLINED:
            reason = f' Their reason: "{suspension.reason}".' if suspension.reason else ""
            return error_text(
                "declined_by_user",
                "a person looked at this and said no; nothing was done. Do not try it again or work around it; "
                f"say so, or propose something else.{reason}",
                by=suspension.decided_by,
            )
        case SuspensionStatus.EXPIRED:
            return error_text("expired", "nobody decided in time, so nothing was done; this is not a refusal", by=None)
        case SuspensionStatus.SUPERSEDED:
            return error_text("superseded", "not executed, replaced by a new instruction")
        case _:
            return error_text("stopped", "stopped before anybody decided; nothing was done")


def unanswered(view: RunView) -> list[tuple[OpenCall, str]]:
    """Return every call of the conversation without a result, with the result that a follow-up run needs.

    Providers refuse a conversation in which a call has no result.
    """
    closing: list[tuple[OpenCall, str]] = []
    answered = {stored.answers for stored in view.messages if stored.answers is not None}
    for stored in view.messages:
        for position, call in enumerate(stored.message.calls):
            key = CallKey(stored.seq, position)
            if key in answered:
                continue
            if open_action(view, key) is not None:
                text = error_text("outcome_unknown", "outcome unknown, do not repeat it")
            else:
                closed = [s for s in view.suspensions if s.call == key]
                text = (
                    closed_text(max(closed, key=lambda s: s.number))
                    if closed
                    else error_text("not_executed", "the run ended before this was done")
                )
            closing.append((OpenCall(key, call, call.arguments), text))
    return closing
