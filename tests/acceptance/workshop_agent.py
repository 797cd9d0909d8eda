"""An agent of the tests' own: its model, its tools and its directory live at the test's address.

Copied beside the working directory of the bot under test, so that it is what an engineer's module would be: outside
the packages, using only names importable from ``core``. It decides nothing; the test does, at ``workshop.url``.
"""

import os
import signal
from decimal import Decimal
from pathlib import Path
from typing import Any

import aiohttp
from pydantic import BaseModel, JsonValue, field_validator

from core import (
    Agent,
    Approval,
    DidNotHappen,
    Happened,
    Limits,
    Message,
    ModelReply,
    Preview,
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

URL = Path(__file__).with_name("workshop.url").read_text(encoding="utf-8").strip()
TIMEOUT_S = float(Path(__file__).with_name("workshop.timeout").read_text(encoding="utf-8"))
LIMITS = Limits.model_validate_json(Path(__file__).with_name("workshop.limits").read_text(encoding="utf-8"))


async def ask(path: str, body: dict[str, Any]) -> Any:
    """Ask the test; without a timeout of its own, since the test decides what hangs."""
    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(timeout=timeout) as session, session.post(f"{URL}/{path}", json=body) as answer:
        return await answer.json()


class Work(BaseModel):
    """What to do."""

    what: str
    amount: int = 0

    @field_validator("what")
    @classmethod
    def _something(cls, what: str) -> str:
        if what == "nothing":
            raise ValueError("there has to be something to do")
        return what


class _Workshop(Tool[Work]):
    description = "A tool of the tests."
    timeout_s = TIMEOUT_S

    def permitted(self, args: Work, scope: Scope) -> bool:
        return self.name in scope.permissions or "everything" in scope.permissions

    async def execute(self, args: Work, ctx: ToolContext) -> Any:
        body = {"tool": self.name, "key": ctx.idempotency_key, "call": ctx.call_id, "run": ctx.run_id}
        told = await ask("execute", {**body, "confirmed": ctx.confirmed, **args.model_dump()})
        match told.get("do"):
            case "die":
                os.kill(os.getpid(), signal.SIGKILL)
            case "raise":
                raise RuntimeError(told["words"])
            case "fail":
                raise ToolFailed(told["words"])
            case "unstorable":
                return object()
        return told["result"]

    async def preview(self, args: Work, ctx: ToolContext) -> Preview:
        facts = await ask("facts", {"tool": self.name, **args.model_dump()})
        return Preview(title=f"{self.name} {args.what}", fields={"Amount": str(args.amount), **facts})

    async def guard(self, args: Work, ctx: ToolContext) -> Refused | None:
        refused = await ask("guard", {"tool": self.name, **args.model_dump()})
        return Refused(reason=refused) if refused else None


class _Write(_Workshop):
    writes = True

    async def reconcile(self, args: Work, ctx: ToolContext) -> Happened | DidNotHappen | Unknown:
        told: dict[str, JsonValue] = await ask("reconcile", {"tool": self.name, "key": ctx.idempotency_key})
        match told["found"]:
            case "happened":
                return Happened(result=told["result"])
            case "nothing":
                return DidNotHappen()
        return Unknown(reason="the workshop cannot tell")


class Look(_Workshop):
    """A read."""

    name = "look"


class Note(_Write):
    """A write without approval."""

    name = "note"


class Pay(_Write):
    """A write that its requester approves."""

    name = "pay"
    approval = Approval(by="requester")


class PayTogether(_Write):
    """A write that anyone in the channel approves."""

    name = "pay_openly"
    approval = Approval(by="anyone")


class PayFourEyes(_Write):
    """A severe write that two people approve who did not ask for it."""

    name = "pay_four_eyes"
    approval = Approval(by="anyone", count=2, self_approval=False, severity="high")


class PayBlind(_Workshop):
    """A write that nobody can be asked about but a person."""

    name = "pay_blind"
    writes = True
    approval = Approval(by="requester")
    unknown = "ask_person"


class RemoteModel:
    """The test's own model."""

    async def respond(self, messages: list[Message], tools: list[ToolSpec], max_output_tokens: int) -> ModelReply:
        shown = [message.model_dump(mode="json") for message in messages]
        told = await ask("model", {"messages": shown, "tools": [tool.name for tool in tools]})
        if told.get("do") == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if told.get("do") == "raise":
            raise RuntimeError(told["words"])
        calls = tuple(ToolCall(**call) for call in told.get("calls", ()))
        return ModelReply(text=told.get("text", ""), calls=calls, spend_usd=Decimal(told.get("spend", "0.01")))


async def scopes(user: User) -> Scope:
    """Ask the test what this person may do."""
    permissions = await ask("scope", {"user": user.user_id})
    return Scope(permissions=frozenset(permissions))


agent = Agent(
    instructions="Work for the tests.",
    tools=[Look(), Note(), Pay(), PayTogether(), PayFourEyes(), PayBlind()],
    scopes=scopes,
    limits=LIMITS,
    model=RemoteModel(),
)
