"""Giving a provider its own words back: replies to ``raw`` bytes, and the stored conversation to a request.

Decides: what of a reply is stored, and the order in which messages go out. Does not: send. The failure it can cause: a
history that is not given back exactly (thinking signatures, call ids, argument text) is refused by providers, so a run
could never go on; therefore each reply is stored whole and replayed from that.

``raw`` is a JSON list of one serialized ModelResponse, which pydantic-ai's ModelMessagesTypeAdapter reads. Two things
are written differently from the library's own bytes, which would lose them: tool arguments that arrived as an object
(Anthropic) are kept as JSON text, where infinities survive, and lone surrogates, which UTF-8 cannot carry, are written
out visibly as ``\\udXXX``.
"""

import json
import logging
import math
import re
from collections import defaultdict, deque
from dataclasses import fields
from typing import Any

from pydantic_ai.messages import (
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelRequest,
    ModelRequestPart,
    ModelResponse,
    ModelResponsePart,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)

from core.conversation import Message, ToolCall
from core.errors import InvariantBroken

log = logging.getLogger(__name__)

# How raw_of's bytes begin; anything else is another adapter's.
OUR_RAW = b'[{"parts":'


class _VerbatimCall(ToolCallPart):
    """A stored call whose argument text goes out as it came; the library would parse and rewrite it."""

    def args_as_json_str(self) -> str:
        return self.args if isinstance(self.args, str) else super().args_as_json_str()

    def args_as_dict(self, *, raise_if_invalid: bool = False) -> dict[str, Any]:
        arguments = _parsed(self.args)
        if arguments is None:
            return super().args_as_dict(raise_if_invalid=raise_if_invalid)
        found = sendable(arguments)
        assert isinstance(found, dict)
        return found


def history_of(messages: list[Message], instructions: str) -> list[ModelMessage]:
    """Return the conversation as pydantic-ai's: each assistant turn is followed by its results, in call order."""
    turns: list[ModelMessage] = []
    waiting: list[tuple[str, ToolCallPart]] = []
    results: dict[str, deque[Message]] = defaultdict(deque)
    said: list[ModelRequestPart] = []
    used: set[str] = set()

    def close_turn() -> None:
        parts: list[ModelRequestPart] = []
        for stored_id, call in waiting:
            if not results[stored_id]:
                raise InvariantBroken(f"the call {stored_id!r} of tool {call.tool_name!r} has no result")
            answer = results[stored_id].popleft()
            parts.append(
                ToolReturnPart(tool_name=call.tool_name, content=_spoken(answer.text), tool_call_id=call.tool_call_id)
            )
        stray = [stored_id for stored_id, left in results.items() if left]
        if stray:
            raise InvariantBroken(f"results without a call: {stray!r}")
        if parts or said:
            turns.append(ModelRequest(parts=[*parts, *said], instructions=instructions or None))
        waiting.clear()
        results.clear()
        said.clear()

    for index, message in enumerate(messages):
        if message.role == "user":
            said.append(UserPromptPart(content=_spoken(message.text)))
        elif message.role == "tool":
            results[message.call_id or ""].append(message)
        else:
            response = stored_response(message)
            if response is not None:
                response.parts = [_verbatim(part) for part in response.parts]
                asked = [(call.tool_call_id, call) for call in response.tool_calls]
            else:
                asked = [(call.id, _rebuilt(call, f"{index}_{at}", used)) for at, call in enumerate(message.calls)]
                text: list[ModelResponsePart] = [TextPart(visible(message.text))] if message.text.strip() else []
                response = ModelResponse(parts=[*text, *(call for _, call in asked)])
            if not any(part.has_content() or isinstance(part, ToolCallPart) for part in response.parts):
                continue  # an empty turn says nothing, and providers refuse it
            close_turn()
            turns.append(response)
            waiting.extend(asked)
            used.update(call.tool_call_id for _, call in asked)
    close_turn()
    return turns


def _verbatim(part: ModelResponsePart) -> ModelResponsePart:
    if not isinstance(part, ToolCallPart):
        return part
    return _VerbatimCall(**{field.name: getattr(part, field.name) for field in fields(part) if field.init})


def _rebuilt(call: ToolCall, place: str, used: set[str]) -> ToolCallPart:
    """Return a call that another adapter stored. Providers refuse odd ids and repeated ones; such an id is replaced."""
    proper = re.fullmatch(r"[A-Za-z0-9_-]{1,64}", call.id) and call.id not in used
    text = call.malformed if call.malformed is not None else json.dumps(call.arguments)
    wire_id = call.id if proper else f"call_{place}"
    used.add(wire_id)
    return _VerbatimCall(tool_name=call.tool, args=visible(text), tool_call_id=wire_id)


def stored_response(message: Message) -> ModelResponse | None:
    """Return the reply kept in ``raw``; None if there is none, or another adapter wrote it."""
    if message.role != "assistant" or message.raw is None:
        return None
    try:
        kept = ModelMessagesTypeAdapter.validate_json(message.raw)
    except ValueError:
        if message.raw.startswith(OUR_RAW):
            log.warning("a stored reply cannot be read back; it is rebuilt from its text, without the model's thinking")
        return None
    return kept[0] if len(kept) == 1 and isinstance(kept[0], ModelResponse) else None


def settle_calls(response: ModelResponse) -> tuple[ToolCall, ...]:
    """Turn the reply's calls into ours, with ids unique within the reply and arguments as text.

    A call that the output limit cut off can look whole; it comes back as malformed, so that half of it never runs.
    """
    calls: list[ToolCall] = []
    seen: set[str] = set()
    for part in response.tool_calls:
        if isinstance(part.args, dict):
            part.args = json.dumps(part.args)
        part.args = visible(part.args or "")
        part.tool_call_id = visible(part.tool_call_id)
        while part.tool_call_id in seen:
            part.tool_call_id += f"_{len(seen)}"
        seen.add(part.tool_call_id)
        arguments = _parsed(part.args)
        cut_off = response.finish_reason == "length" and part is response.parts[-1]
        whole = arguments is not None and not cut_off
        calls.append(
            ToolCall(
                id=part.tool_call_id,
                tool=visible(part.tool_name),
                arguments=arguments if arguments is not None and whole else {},
                malformed=None if whole else part.args,
            )
        )
    return tuple(calls)


def raw_of(response: ModelResponse) -> bytes:
    tree = ModelMessagesTypeAdapter.dump_python([response], mode="json")
    return json.dumps(sendable(tree), separators=(",", ":")).encode("ascii")


def _parsed(text: str | dict[str, Any] | None) -> dict[str, Any] | None:
    """Return the arguments in *text*; None if it is no JSON object. No text at all means no arguments."""
    if not isinstance(text, str):
        return text or {}
    if not text.strip():
        return {}
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def visible(text: str) -> str:
    """Return *text* as UTF-8 can carry it: a lone surrogate becomes the six characters of its JSON escape."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def sendable(value: Any) -> Any:
    """Return a JSON value that every JSON reader takes: surrogates visible, NaN and infinities as their names."""
    if isinstance(value, str):
        return visible(value)
    if isinstance(value, float) and not math.isfinite(value):
        return {math.inf: "Infinity", -math.inf: "-Infinity"}.get(value, "NaN")
    if isinstance(value, dict):
        return {visible(str(key)): sendable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [sendable(item) for item in value]
    return value


def _spoken(text: str) -> str:
    # Providers refuse blank texts.
    return visible(text) if text.strip() else "(no text)"
