"""An agent for the tests of policies: it pays what it is told to, and who must approve depends on the amount.

"pay 5 a; pay 7 b" is one turn with a call for each; once every call has its result, the answer repeats them. *DONE*
holds what was paid, in order; *TURNS* the results that the model was given at each of its turns.
"""

from decimal import Decimal
from typing import ClassVar

from pydantic import BaseModel

from bot.scopes import slack_group_scopes
from core import (
    Agent,
    Approval,
    Message,
    ModelReply,
    Preview,
    Scope,
    Tool,
    ToolCall,
    ToolContext,
    ToolSpec,
    UserGroup,
)

DONE: list[tuple[int, str]] = []
TURNS: list[list[str]] = []


class PayArgs(BaseModel):
    """What to pay."""

    amount: int
    what: str


class Pay(Tool[PayArgs]):
    """Up to 100 its requester approves; up to 1,000 a manager; above, two people of the sales desk who did not ask."""

    name = "pay"
    description = "Pay."
    writes = True
    idempotent_by_key = True
    keys: ClassVar[set[str]] = set()

    def permitted(self, args: PayArgs, scope: Scope) -> bool:
        """Allow whoever may pay."""
        return "pay" in scope.permissions

    async def policy(self, args: PayArgs, ctx: ToolContext) -> Approval | None:
        """Return who must approve this amount."""
        if args.what == "ghosts":
            return Approval(by=UserGroup(handle="ghosts"))
        if args.amount > 1_000:
            return Approval(by="anyone", count=2, self_approval=False, severity="high")
        if args.amount > 100:
            return Approval(by=UserGroup(handle="sales-managers"), self_approval=False)
        return Approval() if args.amount else None

    async def preview(self, args: PayArgs, ctx: ToolContext) -> Preview:
        """Show it."""
        return Preview(title=f"Pay {args.amount} for {args.what}")

    async def execute(self, args: PayArgs, ctx: ToolContext) -> dict[str, object]:
        """Pay, once per key."""
        if ctx.idempotency_key not in self.keys:
            self.keys.add(ctx.idempotency_key)
            DONE.append((args.amount, args.what))
        return {"paid": args.what, "approved_by": [user.user_id for user in ctx.approved_by]}


class Scripted:
    """Calls what the person's text says."""

    async def respond(self, messages: list[Message], tools: list[ToolSpec], max_output_tokens: int) -> ModelReply:
        """Return the calls, or the answer once they have results."""
        last = max(at for at, message in enumerate(messages) if message.role == "user")
        results = [message.text for message in messages[last:] if message.role == "tool"]
        TURNS.append(results)
        if results:
            return ModelReply(text=f"Results: {'; '.join(results)}", spend_usd=Decimal("0.01"))
        asked = [part.split(maxsplit=2)[1:] for part in messages[last].text.split(";")]
        calls = [
            ToolCall(id=f"call_{at}", tool="pay", arguments={"amount": int(amount), "what": what})
            for at, (amount, what) in enumerate(asked)
        ]
        return ModelReply(calls=tuple(calls), spend_usd=Decimal("0.01"))


agent = Agent(
    instructions="Pay.",
    tools=[Pay()],
    scopes=slack_group_scopes({"inside-sales": {"pay"}}),
    model=Scripted(),
)
