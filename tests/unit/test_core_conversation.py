"""Messages come back equal from their stored text; results of tools become text that every provider takes."""

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from core.conversation import (
    NESTING_LIMIT,
    RESULT_LIMIT,
    Message,
    ToolCall,
    decode_body,
    edited_text,
    encode_body,
    error_text,
    result_text,
    unkeepable,
)

# Every code point, lone surrogates and NUL included.
texts = st.text(st.characters(codec=None, categories=None))
scalars = st.none() | st.booleans() | st.integers() | st.floats() | texts
values = st.recursive(scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4))
calls = st.builds(
    ToolCall, id=texts, tool=texts, arguments=st.dictionaries(texts, values, max_size=4), malformed=st.none() | texts
)
messages = st.builds(
    Message,
    role=st.sampled_from(["user", "assistant", "tool"]),
    text=texts,
    calls=st.lists(calls, max_size=3).map(tuple),
    call_id=st.none() | texts,
    raw=st.none() | st.binary(),
)


def same(one: Any, other: Any) -> bool:
    """Compare with types and signs: NaN equals NaN, -0.0 differs from 0.0, 1 from 1.0 and True."""
    if type(one) is not type(other):
        return False
    if isinstance(one, float):
        return (math.isnan(one) and math.isnan(other)) or (
            one == other and math.copysign(1, one) == math.copysign(1, other)
        )
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


@given(messages)
def test_any_message_comes_back_equal(message: Message) -> None:
    """Any str (NUL, lone surrogates), float, int, key order and raw bytes survive encode and decode."""
    body = encode_body(message)
    assert body.isascii()
    assert "\x00" not in body
    assert same(decode_body(body, message.raw).model_dump(), message.model_dump())
    assert unkeepable(message) is None


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"n": 10**5000}, "digits"),
        ({"x": {1: 2}}, "plain JSON"),
        ({"x": (1, 2)}, "plain JSON"),
        ({"x": b"raw"}, "not JSON serializable"),
        ({"x": {1, 2}}, "not JSON serializable"),
    ],
)
def test_what_would_not_come_back_equal_is_told_before_it_is_stored(arguments: dict[str, Any], why: str) -> None:
    """A model object of somebody's own may hold anything; what cannot be kept is named, not stored changed."""
    message = Message(role="assistant", text="", calls=(ToolCall(id="a", tool="t", arguments=arguments),))
    assert why in str(unkeepable(message))


@pytest.mark.parametrize(
    "wrong",
    [{"id": None}, {"id": 5}, {"tool": None}, {"malformed": 4}, {"arguments": [1]}, {"arguments": None}],
    ids=str,
)
def test_a_call_that_nobody_validated_is_told_before_it_is_stored(wrong: dict[str, Any]) -> None:
    """It would encode, and its body would not decode: its run could never be read again."""
    fields: dict[str, Any] = {"id": "a", "tool": "t", "arguments": {}, "malformed": None} | wrong
    message = Message(role="assistant", text="", calls=(ToolCall.model_construct(**fields),))
    with pytest.raises(ValidationError):
        decode_body(encode_body(message), None)
    assert "1 validation error" in str(unkeepable(message))


@pytest.mark.parametrize(("depth", "kept"), [(NESTING_LIMIT - 2, True), (NESTING_LIMIT + 5, False), (100_000, False)])
def test_arguments_nested_too_deep_are_told(depth: int, kept: bool) -> None:
    """Nesting that another stack might not decode is refused, however deep, without a crash."""
    nested: list[Any] = []
    for _ in range(depth):
        nested = [nested]
    message = Message.model_construct(
        role="assistant",
        text="",
        calls=(ToolCall.model_construct(id="a", tool="t", arguments={"x": nested}, malformed=None),),
        call_id=None,
        raw=None,
    )
    assert (unkeepable(message) is None) is kept


@given(values)
def test_a_result_is_text_that_can_be_sent_and_means_the_value(value: Any) -> None:
    """Any JSON value becomes valid UTF-8 text that parses to the same value; a lone surrogate becomes its escape."""
    text = result_text(value)
    text.encode("utf-8")
    assert "\x00" not in text
    if len(text) <= RESULT_LIMIT:
        assert same(json.loads(text), value)


def test_an_oversized_result_is_cut_visibly_and_once() -> None:
    """A 2 MB result is cut with a note of its length; the cut text stays bounded.

    pydantic/pydantic-ai#7110: what was over the limit was tried again without end.
    """
    text = result_text("x" * 2_000_000)
    assert len(text) < RESULT_LIMIT + 200
    assert "cut: the result had 2000002 characters" in text


def test_what_is_no_json_value_is_an_error() -> None:
    """A set, a circular list and bytes raise, so that the caller can say so."""
    circular: list[Any] = []
    circular.append(circular)
    for value in ({1}, circular, b"x", object()):
        with pytest.raises((TypeError, ValueError, RecursionError)):
            result_text(value)


def test_the_result_of_an_edited_call_says_so_and_keeps_its_fields() -> None:
    """A person's change is told to the model in the result, beside the tool's own fields or around anything else."""
    told = {"by": "@U2", "arguments": {"n": 2}}
    assert json.loads(edited_text('{"number": "Q-1"}', "U2", {"n": 2})) == {
        "number": "Q-1",
        "edited_by_a_person": told,
    }
    assert json.loads(edited_text("[1]", "U2", {"n": 2})) == {"result": [1], "edited_by_a_person": told}
    assert json.loads(edited_text("cut …", "U2", {"n": 2})) == {"result": "cut …", "edited_by_a_person": told}
    assert json.loads(edited_text(error_text("refused", "hold"), "U2", {}))["error"] == "refused"
