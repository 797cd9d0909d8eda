"""What keeps an agent from starting; and the one table of moves."""

from collections.abc import Callable
from typing import Any

import pytest
from pydantic import BaseModel

from core import Agent, Approval, Preview, Scope, Tool, ToolContext, User
from core.agent import problems
from core.run import MOVES, RunState, diagram


class Args(BaseModel):
    n: int


class Good(Tool[Args]):
    name = "good"
    writes = True
    approval = Approval()
    idempotent_by_key = True

    def permitted(self, args: Args, scope: Scope) -> bool:
        return True

    async def preview(self, args: Args, ctx: ToolContext) -> Preview:
        return Preview(title="x")

    async def execute(self, args: Args, ctx: ToolContext) -> Any:
        return {}


async def scopes(user: User) -> Scope:
    return Scope()


def found(*tools: Any) -> str:
    return "\n".join(problems(Agent(instructions="", tools=tools, scopes=scopes)))


def changed(**attributes: Any) -> Any:
    return type("Changed", (Good,), attributes)()


async def _async_permitted(self: Any, args: Args, scope: Scope) -> bool:
    return False


def _plain(self: Any, args: Args, ctx: ToolContext) -> Any:
    return {}


FAULTS: list[tuple[Callable[[], Any], str]] = [
    (changed, ""),
    (lambda: changed(name="no spaces"), "its name must be"),
    (lambda: changed(name=None), "its name must be"),
    (lambda: changed(name="x" * 65), "its name must be"),
    (lambda: changed(timeout_s=0), "timeout_s"),
    (lambda: changed(timeout_s=float("nan")), "timeout_s"),
    (lambda: changed(timeout_s=float("inf")), "timeout_s"),
    (lambda: changed(permitted=_async_permitted), "permitted must be a plain def"),
    (lambda: changed(permitted=Tool.permitted), "needs permitted"),
    (lambda: changed(preview=Tool.preview), "needs async preview"),
    (lambda: changed(execute=Tool.execute), "write async execute"),
    (lambda: changed(execute=_plain), "execute must be async def"),
    (lambda: changed(guard=_plain), "guard must be async def"),
    (lambda: changed(preview=_plain), "preview must be async def"),
    (lambda: changed(policy=_plain), "policy must be async def"),
    (lambda: changed(idempotent_by_key=False), "needs async reconcile"),
    (lambda: changed(idempotent_by_key=False, unknown="ask_person"), ""),
    (lambda: changed(writes=False), "reads are never approved"),
    (lambda: changed(approval=Approval(by=())), "names nobody"),
    (lambda: Good, "is not a core.Tool"),
    (lambda: "send", "is not a core.Tool"),
]


@pytest.mark.parametrize(
    ("tool", "problem"), FAULTS, ids=[f"{n} {text or 'sound'}" for n, (_, text) in enumerate(FAULTS)]
)
def test_each_fault_of_a_tool_is_named_with_its_fix(tool: Callable[[], Any], problem: str) -> None:
    """A tool that could act without a check, or not at all, stops the start; a sound one does not."""
    text = found(tool())
    assert (text == "") if problem == "" else (problem in text)


def test_everything_that_is_wrong_is_listed_at_once() -> None:
    """One start tells all problems: two tools of one name, and both of a tool's faults."""
    text = found(changed(), changed(timeout_s=0, idempotent_by_key=False))
    assert "two tools have this name" in text
    assert "timeout_s" in text
    assert "needs async reconcile" in text


@pytest.mark.parametrize(
    ("examples", "problem"),
    [
        (("quote Henderson", "b", "c"), ""),
        ([], ""),
        (4, "examples=4 is no list"),
        ("quote", "examples='quote' is no list"),
        ({"quote"}, "is no list"),
        (("quote", 7), "7 is no request"),
        (("quote", " "), "' ' is no request"),
        (("a", "b", "c", "d"), "4 are given, but newcomers see 3"),
    ],
)
def test_examples_are_up_to_three_texts(examples: Any, problem: str) -> None:
    """What newcomers are shown must be something that they could write; anything else stops the start."""
    agent = Agent(instructions="", tools=[], scopes=scopes, examples=examples)
    text = " | ".join(problems(agent))
    assert (text == "") if problem == "" else (problem in text)


def test_the_moves_leave_no_state_without_a_way_out_but_the_ends() -> None:
    """Every state is reached; answered and failed are final, all others are left by some move."""
    assert {move.target for move in MOVES} == set(RunState)
    left = {source for move in MOVES for source in move.sources if source is not None}
    assert set(RunState) - left == {RunState.ANSWERED, RunState.FAILED}
    assert [move.name for move in MOVES if None in move.sources] == ["start"]
    names = [move.name for move in MOVES]
    assert len(names) == len(set(names))


def test_the_diagram_shows_each_move_once() -> None:
    """The diagram of the docs comes from the table: one arrow for each move and source, and the two ends."""
    lines = diagram().splitlines()
    assert lines[0] == "stateDiagram-v2"
    assert len(lines) == 1 + sum(len(move.sources) for move in MOVES) + 2
    for move in MOVES:
        for source in move.sources:
            assert f"    {source or '[*]'} --> {move.target}: {move.name}" in lines
