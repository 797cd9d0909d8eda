"""The agent that is served while acks are measured: a model that takes its time, a trivial read, two writes.

Decides: what a question makes it do. "send 7" calls a write at once and waits for its approval, then needs a turn as
long as a real one; "work 7" looks at something, turn after turn, for as long as anybody measures.
"""

import asyncio
import random
from decimal import Decimal

from pydantic import BaseModel

from core import (
    Agent,
    Approval,
    Limits,
    Message,
    ModelReply,
    Preview,
    Scope,
    Tool,
    ToolCall,
    ToolContext,
    ToolSpec,
    User,
)
from core.tools import UserGroup

GROUP = "managers"
TURN_S = (1.0, 2.0)


class Number(BaseModel):
    """Which one."""

    n: int


class Look(Tool[Number]):
    """A read that answers at once."""

    name = "look"
    description = "Look at a thing."

    async def execute(self, args: Number, ctx: ToolContext) -> dict[str, str]:
        return {"content": "x" * 100}


class Send(Tool[Number]):
    """A write that its requester approves, with a card of real length."""

    name = "send"
    description = "Send a quote."
    writes = True
    approval = Approval(by="requester")
    idempotent_by_key = True

    def permitted(self, args: Number, scope: Scope) -> bool:
        return "send" in scope.permissions

    async def preview(self, args: Number, ctx: ToolContext) -> Preview:
        lines = [
            {"Item": f"SKU-44{at:02}", "Quantity": str(10 * at), "Amount": f"{125 * at}.00 EUR"} for at in range(1, 6)
        ]
        return Preview(
            title=f"Send quote {args.n} to Henderson Logistics",
            fields={"Quote": f"Q-{args.n:05}", "To": "purchasing@henderson.example", "Terms": "30 days net"},
            lines=lines,
            totals={"Total": "1,875.00 EUR"},
        )

    async def execute(self, args: Number, ctx: ToolContext) -> str:
        return "sent"


class SendLarge(Send):
    """The same, approved by one of a user group."""

    name = "send_large"
    approval = Approval(by=UserGroup(handle=GROUP), self_approval=False)


class Slow:
    """A model that thinks for as long as a hosted one, except when it is to suspend."""

    async def respond(self, messages: list[Message], tools: list[ToolSpec], max_output_tokens: int) -> ModelReply:
        turn = sum(message.role == "assistant" for message in messages)
        asked = next(message.text for message in messages if message.role == "user").split()
        n = int(asked[-1])
        if "work" not in asked and turn == 0:
            tool = "send" if n % 2 else "send_large"
            return ModelReply(calls=(ToolCall(id="call_0", tool=tool, arguments={"n": n}),), spend_usd=Decimal("0.001"))
        await asyncio.sleep(random.uniform(*TURN_S))
        if "work" not in asked:
            return ModelReply(text=f"Quote {n} is on its way.", spend_usd=Decimal("0.001"))
        call = ToolCall(id=f"call_{turn}", tool="look", arguments={"n": turn})
        return ModelReply(calls=(call,), spend_usd=Decimal("0.001"))

    def worst_case_usd(self, messages: list[Message], tools: list[ToolSpec], max_output_tokens: int) -> Decimal:
        return Decimal("0.001")


async def scopes(user: User) -> Scope:
    """Return what everybody here may touch."""
    return Scope(permissions=frozenset({"send"}))


agent = Agent(
    instructions="Work for the benchmark.",
    tools=[Look(), Send(), SendLarge()],
    scopes=scopes,
    limits=Limits(max_steps=10_000, max_tool_calls=10_000, max_spend_usd=Decimal(100), max_elapsed_s=100_000),
    model=Slow(),
)
