"""What is said of an agent before it serves: why it cannot be imported, and which writes nobody approves."""

from pathlib import Path

import pytest
from pydantic import BaseModel

from bot.doctor import unasked
from bot.loading import load_agent
from core.agent import Agent
from core.errors import Misconfigured
from core.tools import Approval, Scope, Tool, ToolContext, User


@pytest.mark.parametrize(
    ("source", "says"),
    [
        (None, "start in the directory that holds it"),
        ("import no_such_package", "install what it needs beside Atlas"),
        ("from pathlib import NoSuchName", "cannot import name 'NoSuchName' from 'pathlib'"),
        ("x = 1\nint('three')", "ValueError: invalid literal for int() with base 10: 'three' (agent_{}.py, line 2)"),
        ("class Brain\n    pass", "SyntaxError: expected ':' (agent_{}.py, line 1)"),
    ],
)
def test_an_agent_that_cannot_be_imported_says_where_and_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str | None, says: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    name = abs(hash((source, says)))
    if source is not None:
        (tmp_path / f"agent_{name}.py").write_text(source)
    with pytest.raises(Misconfigured) as refused:
        load_agent(f"agent_{name}:agent")
    assert says.format(name) in refused.value.problems[0]


class Nothing(BaseModel):
    pass


class Misspelt(Tool[Nothing]):
    name, writes, aproval = "misspelt", True, Approval()


class Asked(Tool[Nothing]):
    name, writes, approval = "asked", True, Approval()


class Depends(Tool[Nothing]):
    name, writes = "depends", True

    async def policy(self, args: Nothing, ctx: ToolContext) -> Approval | None:
        return Approval()


class Read(Tool[Nothing]):
    name = "read"


async def no_scopes(user: User) -> Scope:
    return Scope()


def test_writes_that_nobody_approves_are_named() -> None:
    agent = Agent(instructions="", tools=[Misspelt(), Asked(), Depends(), Read()], scopes=no_scopes)
    assert unasked(agent) == ["misspelt"]
