"""Arguments come back from their stored text as what was shown and approved, or are refused before anybody is asked."""

from typing import Any

import orjson
import pytest
from hypothesis import given
from pydantic import BaseModel

from core import Agent, Scope, Tool, ToolCall, ToolContext, User
from core.approvals import canonical
from core.calls import Ready, ready
from core.conversation import CallKey
from core.next_act import OpenCall
from tests.unit.test_core_conversation import values


class Amount(BaseModel):
    """An amount, however it is written, and what else somebody sends."""

    n: float
    parts: list[float] = []
    more: Any = None


class Pay(Tool[Amount]):
    """A tool that takes a fraction."""

    name = "pay"
    description = "Pay."

    async def execute(self, args: Amount, ctx: ToolContext) -> None:
        """Do nothing."""


async def scopes(user: User) -> Scope:
    return Scope()


def prepared(arguments: dict[str, object]) -> Ready | str:
    call = ToolCall(id="c", tool="pay", arguments=arguments)
    return ready(Agent("", [Pay()], scopes), OpenCall(CallKey(1, 0), call, arguments))


@pytest.mark.parametrize("n", [0.1, 1e20, 1e21, -0.0, 5e-324, 2.0**53 - 1, 9007199254740991, 1])
@pytest.mark.parametrize("nested", [False, True])
def test_what_is_shown_is_what_comes_back_from_the_row(n: float, nested: bool) -> None:
    """The same digest and the same value after a decision, which knows the stored text only."""
    first = prepared({"n": 1.0, "parts": [n]} if nested else {"n": n})
    assert isinstance(first, Ready)
    again = prepared(orjson.loads(canonical(first.arguments)))
    assert isinstance(again, Ready)
    assert (again.digest, again.args) == (first.digest, first.args)
    assert repr(again.args) == repr(first.args), "nor does it look like another one"


@pytest.mark.parametrize(
    "more",
    [1.0, -0.0, {"b": 1, "a": 2}, [{"z": 1e3, "a": {"10": 1, "9": -0.0}}]],
    ids=["a whole fraction", "minus nothing", "keys in their own order", "deep"],
)
def test_what_is_shown_looks_as_what_comes_back_from_the_row(more: Any) -> None:
    """A preview that writes a number, or goes through a mapping, says the same after the decision: a card that was
    approved is not replaced by one that differs in nothing, and a request that is sent again is the same, byte for
    byte."""
    first = prepared({"n": 1.5, "more": more})
    assert isinstance(first, Ready)
    again = prepared(orjson.loads(canonical(first.arguments)))
    assert isinstance(again, Ready)
    assert repr(again.args) == repr(first.args)
    assert again.args == first.args


@given(values)
def test_whatever_is_taken_looks_as_what_comes_back_and_the_rest_is_refused(more: Any) -> None:
    """Either a person sees what the row will give back, or the model is told before anybody is asked."""
    first = prepared({"n": 1.5, "more": more})
    if isinstance(first, str):
        assert orjson.loads(first)["error"] == "invalid_arguments"
        return
    again = prepared(orjson.loads(canonical(first.arguments)))
    assert isinstance(again, Ready)
    assert (repr(again.args), again.digest) == (repr(first.args), first.digest)
    assert canonical(again.arguments) == canonical(first.arguments)


@pytest.mark.parametrize("n", [2.0**53, 1e16, 3e17, -1e16])
@pytest.mark.parametrize("nested", [False, True])
def test_a_whole_fraction_that_would_come_back_as_another_number_is_refused_at_once(n: float, nested: bool) -> None:
    """Beyond 2^53 its canonical text is an integer's, which has no canonical form: no card that could never execute."""
    refused = prepared({"n": 1.0, "parts": [n]} if nested else {"n": n})
    assert isinstance(refused, str)
    assert "cannot be stored exactly" in refused
