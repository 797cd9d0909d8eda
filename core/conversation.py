"""The conversation: messages, what the model is given and gives, and the one encoder that stores them.

Decides: how a message becomes bytes and comes back equal. Does not: call a model. The failure it can cause: a body
that cannot be decoded would make its run unresumable, so the encoder is total: it takes every str (NUL, lone
surrogates), every float (NaN, infinities, -0.0) and ints of up to 4300 digits (Python's own limit), as ASCII JSON
text; ``unkeepable`` says what it does not take before anything depends on it. orjson does the common case; what it
would change (NaN, integers beyond 64 bits, lone surrogates, foreign types) goes the exact way round, both ways.
"""

import json
import re
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Literal, Protocol, runtime_checkable

import orjson
from pydantic import BaseModel, ConfigDict, JsonValue

from core.errors import InvariantBroken


class Spoken(BaseModel):
    """A value of the conversation: frozen, and total (any JSON that a model may send)."""

    model_config = ConfigDict(frozen=True)


class ToolCall(Spoken):
    """What the model asked for. *id* is the model's own and only carried along (ids such as "call_1" repeat).

    *malformed*: the text that should have been JSON arguments and was not; such a call gets an error result.
    """

    id: str
    tool: str
    arguments: dict[str, Any]
    malformed: str | None = None


class ToolSpec(Spoken):
    """A tool as the model sees it; *parameters* is a JSON schema."""

    name: str
    description: str
    parameters: dict[str, Any]


class Message(Spoken):
    """One entry of the conversation. *call_id*: for role "tool", the model's id of the answered call.

    *raw* is what a provider adapter must get back unchanged, byte for byte.
    """

    role: Literal["user", "assistant", "tool"]
    text: str
    calls: tuple[ToolCall, ...] = ()
    call_id: str | None = None
    raw: bytes | None = None


class ModelReply(Spoken):
    """What a model call gave. No calls: the text is the answer. *input_tokens*: as the provider reported."""

    text: str = ""
    calls: tuple[ToolCall, ...] = ()
    spend_usd: Decimal = Decimal(0)
    raw: bytes | None = None
    input_tokens: int | None = None


@runtime_checkable
class Model(Protocol):
    """The model port. It may also offer ``worst_case_usd(messages, tools, max_output_tokens) -> Decimal``."""

    async def respond(self, messages: list[Message], tools: list[ToolSpec], max_output_tokens: int) -> ModelReply:
        """Return the next turn.

        Raises: ModelUnavailable (worth another try), ModelRefused (it is not).
        """
        ...


@dataclass(frozen=True, slots=True)
class CallKey:
    """A call's identity within its run: seq of the model's message, position in it from 0."""

    seq: int
    position: int

    def call_id(self, run_id: str) -> str:
        """Return the id that tools see."""
        return f"{run_id}:{self.seq}:{self.position}"


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """A message with its place. *answers*: the call that a role "tool" message answers."""

    seq: int
    message: Message
    answers: CallKey | None = None


class Unread:
    """Stands in a conversation where a message was not read yet; whoever looks at it all the same has a defect."""

    def __init__(self, seq: int) -> None:
        self.seq = seq

    def __getattr__(self, name: str) -> Any:
        """Raise InvariantBroken: the rest of the conversation has to be read first."""
        raise InvariantBroken(f"message {self.seq} was not read, yet its {name} is wanted")


_EXACT = json.JSONEncoder(ensure_ascii=True, allow_nan=True, separators=(",", ":"))
# orjson reads an integer beyond 64 bits as a float, so a float this large may have been one.
_INTEGERS = 2**63
# Deeper than this, a value goes the exact way round.
_FLAT = 50
# What model_validate calls; a load calls it for every message.
_message = Message.__pydantic_validator__.validate_python


def _swift(value: Any, depth: int = _FLAT) -> bool:
    """Say whether orjson writes *value* and reads the very same (lone surrogates apart, which it refuses)."""
    kind = type(value)
    if value is None or kind is str or kind is bool:
        return True
    if kind is int or kind is float:
        inside: bool = -_INTEGERS < value < _INTEGERS
        return inside
    if depth == 0:
        return False
    if kind is dict:
        return all(type(key) is str and _swift(item, depth - 1) for key, item in value.items())
    return kind is list and all(_swift(item, depth - 1) for item in value)


def encode_body(message: Message) -> str:
    """Return the stored text of a message (ASCII JSON; ``raw`` is stored beside it, untouched)."""
    body: dict[str, Any] = {"role": message.role, "text": message.text}
    if message.calls:
        body["calls"] = [
            {"id": c.id, "tool": c.tool, "arguments": c.arguments}
            | ({"malformed": c.malformed} if c.malformed is not None else {})
            for c in message.calls
        ]
    if message.call_id is not None:
        body["call_id"] = message.call_id
    if all(_swift(call.arguments) for call in message.calls):
        try:
            text = orjson.dumps(body)
        except TypeError:
            pass  # a lone surrogate
        else:
            if text.isascii():
                return text.decode("ascii")
    return _EXACT.encode(body)


def decode_body(body: str, raw: bytes | None) -> Message:
    """Return the message that ``encode_body`` stored."""
    try:
        fields = orjson.loads(body)
    except ValueError:
        fields = json.loads(body)
    fields["raw"] = raw
    calls = fields.get("calls")
    if calls and any(_perhaps_rounded(call["arguments"]) for call in calls):
        fields["calls"] = json.loads(body)["calls"]
    message: Message = _message(fields)
    return message


def _perhaps_rounded(value: Any) -> bool:
    """Say whether a value that orjson read holds a float that may have been a larger integer."""
    left = [value]
    while left:
        value = left.pop()
        if isinstance(value, dict):
            left += value.values()
        elif isinstance(value, list):
            left += value
        elif type(value) is float and not -_INTEGERS < value < _INTEGERS:
            return True
    return False


# Deeper than this, what encodes on one stack may not decode on another.
NESTING_LIMIT = 200


def unkeepable(message: Message) -> str | None:
    """Return why a message of somebody's model cannot come back equal from its stored text; None: it can."""
    if all(map(_as_declared, message.calls)):
        return None
    try:
        body = encode_body(message)
        if body.count("[") + body.count("{") > NESTING_LIMIT and _depth(message) > NESTING_LIMIT:
            return f"its arguments are nested deeper than {NESTING_LIMIT}"
        back = encode_body(decode_body(body, message.raw))
    except (ValueError, TypeError, RecursionError) as error:
        return str(error) or type(error).__name__
    plain = all(_plain(call.arguments) for call in message.calls)
    return None if plain and back == body else "its arguments are not plain JSON values"


def _as_declared(call: ToolCall) -> bool:
    """Say whether a call is what its fields declare, in values that orjson keeps: whoever made it may not have had it
    validated, and what its body says would then not decode."""
    texts = (call.id, call.tool) if call.malformed is None else (call.id, call.tool, call.malformed)
    kinds = all(type(text) is str for text in texts)
    return kinds and type(call.arguments) is dict and _swift(call.arguments)


def sizeof(message: Message) -> int:
    """Return about how many characters a message has, its arguments and raw bytes included."""
    size = len(message.text)
    for call in message.calls:
        size += sum(len(value) if type(value) is str else len(repr(value)) for value in call.arguments.values())
    return size if message.raw is None else size + len(message.raw)


def _plain(value: Any) -> bool:
    if isinstance(value, dict):
        return all(type(key) is str and _plain(item) for key, item in value.items())
    if isinstance(value, list):
        return all(map(_plain, value))
    return value is None or type(value) in (str, int, float, bool)


def _depth(message: Message) -> int:
    """Return how deep the arguments of a message are nested, without recursion."""
    layer: list[Any] = [call.arguments for call in message.calls]
    depth = 0
    while layer and depth <= NESTING_LIMIT:
        depth += 1
        layer = [
            inner
            for value in layer
            for inner in (value.values() if isinstance(value, dict) else value)
            if isinstance(inner, dict | list | tuple)
        ]
    return depth


_LONE_SURROGATE = re.compile("[\ud800-\udfff]")
_READABLE = json.JSONEncoder(ensure_ascii=False, allow_nan=True)


def _json(value: Any) -> str:
    """Return JSON that every provider takes: readable, and a lone surrogate as its escape, which means the same."""
    text = _READABLE.encode(value)
    return text if text.isascii() else _LONE_SURROGATE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


# A result beyond this many characters would crowd out the conversation and could never be paid for again each turn.
RESULT_LIMIT = 60_000
REASON_LIMIT = 8_000


def result_text(value: JsonValue | Any) -> str:
    """Return a tool's JSON value as the text the model gets, cut visibly beyond RESULT_LIMIT characters.

    Raises: TypeError, ValueError or RecursionError when *value* is not a JSON value (also for circular ones).
    """
    text = _json(value)
    if len(text) <= RESULT_LIMIT:
        return text
    note = f"… [cut: the result had {len(text)} characters, the first {RESULT_LIMIT} are shown]"
    return text[:RESULT_LIMIT] + note


def error_text(kind: str, reason: str, **more: JsonValue) -> str:
    """Return the text of a result that is not the tool's own: ``{"error": kind, "reason": …}``, the reason cut visibly
    beyond REASON_LIMIT characters, since it may be a tool's or repeat what a model wrote."""
    if len(reason) > REASON_LIMIT:
        reason = f"{reason[:REASON_LIMIT]}… [cut: it had {len(reason)} characters]"
    return _json({"error": kind, "reason": reason, **more})


def edited_text(text: str, by: str, arguments: dict[str, Any]) -> str:
    """Return a call's result with the word that a person changed its arguments: the model asked for something else.

    An object keeps its fields and gets "edited_by_a_person"; anything else is put under "result".
    """
    note = {"by": f"@{by}", "arguments": arguments}
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = text
    if isinstance(value, dict):
        return _json({**value, "edited_by_a_person": note})
    return _json({"edited_by_a_person": note, "result": value})
