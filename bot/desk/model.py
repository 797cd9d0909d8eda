"""The scripted model: the model port over the planner, at a fixed price, so the desk works without a provider.

Decides nothing itself. The failure it can cause: none that a provider's model could not cause as well.
"""

from decimal import Decimal
from typing import Final

from bot.desk.conversation import turns
from bot.desk.planner import Call, plan
from core import Message, ModelReply, ToolCall, ToolSpec

COST_USD: Final = Decimal("0.012")
"""What each call is charged: about a short turn of a mid-priced provider model, so that budgets mean something."""


class ScriptedModel:
    """Answers the same conversation always in the same way."""

    async def respond(self, messages: list[Message], tools: list[ToolSpec], max_output_tokens: int) -> ModelReply:
        """Return the planner's next call, or its answer; a tool that is not offered is never called."""
        step = plan(turns(messages))
        if not isinstance(step, Call):
            return ModelReply(text=step.text, spend_usd=COST_USD)
        if step.tool not in {tool.name for tool in tools}:
            return ModelReply(text=f"I would need {step.tool} for that, which I don't have here.", spend_usd=COST_USD)
        made = sum(len(message.calls) for message in messages)
        call = ToolCall(id=f"call_{made + 1}", tool=step.tool, arguments=step.arguments)
        return ModelReply(calls=(call,), spend_usd=COST_USD)

    def worst_case_usd(self, messages: list[Message], tools: list[ToolSpec], max_output_tokens: int) -> Decimal:
        """Return what the next call will cost, in US dollars; it never costs more."""
        return COST_USD
