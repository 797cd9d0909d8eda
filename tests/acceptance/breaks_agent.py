"""An agent whose tools and model break what can be broken; the last two words of the question say which and how."""

import asyncio
import contextlib
import sys
import time
from pathlib import Path

from pydantic import BaseModel, JsonValue

from core import (
    Agent,
    DidNotHappen,
    Happened,
    Message,
    ModelReply,
    Refused,
    Scope,
    Tool,
    ToolCall,
    ToolContext,
    ToolFailed,
    ToolSpec,
    Unknown,
    User,
)


class How(BaseModel):
    """How to break."""

    how: str


class Abort(BaseException):
    """An error that no ``except Exception`` sees."""


class Wordless(Exception):
    """An error whose words break, too."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


async def swallow() -> None:
    """Never end."""
    while True:
        with contextlib.suppress(BaseException):
            await asyncio.sleep(3600)


async def act(how: str) -> JsonValue:
    """Break, or do nothing."""
    await asyncio.sleep(0)
    match how:
        case "swallow":
            await swallow()
        case "exit":
            sys.exit(3)
        case "interrupt":
            raise KeyboardInterrupt
        case "abort":
            raise Abort("out of here")
        case "wordless":
            raise Wordless
        case "flood":
            raise ToolFailed("y" * 10_000_000)
        case "silent":
            raise ToolFailed("")
        case "block":
            time.sleep(4)
    return {"done": how}


class Read(Tool[How]):
    """A read."""

    name = "read"
    description = "A tool that breaks."
    timeout_s = 3.0

    async def execute(self, args: How, ctx: ToolContext) -> JsonValue:
        """Break."""
        return await act(args.how)


class Write(Read):
    """A write without approval."""

    name = "write"
    writes = True

    def permitted(self, args: How, scope: Scope) -> bool:
        """Everybody may."""
        return True

    async def guard(self, args: How, ctx: ToolContext) -> Refused | None:
        """Refuse at length."""
        return Refused(reason="g" * 5_000_000) if args.how == "guarded" else None

    async def reconcile(self, args: How, ctx: ToolContext) -> Happened | DidNotHappen | Unknown:
        """It always happened."""
        return Happened(result={"found": True})


class Breaking:
    """A model that calls the tool that the question names, once."""

    async def respond(self, messages: list[Message], tools: list[ToolSpec], max_output_tokens: int) -> ModelReply:
        """Break, call, or answer."""
        *_, tool, how = messages[0].text.split()
        if how == "invisible":
            return ModelReply(text="\u200b \u2060\n")
        if tool == "model" and how == "swallow":
            Path("swallowing").touch()
            await swallow()
        if len(messages) > 1:
            return ModelReply(text="Finished.")
        name = "<!channel>" * 30_000 if how == "nonsense" else tool
        return ModelReply(calls=(ToolCall(id="c", tool=name, arguments={"how": how}),))


async def scopes(user: User) -> Scope:
    """Everybody may everything."""
    return Scope()


agent = Agent(instructions="Break.", tools=[Read(), Write()], scopes=scopes, model=Breaking())
