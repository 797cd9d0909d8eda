"""The budget: what a run may still use, and the worst case of its next model call.

Decides: whether the next model call may start, how long its reply may be, what a continue grants. Does not: measure
or store. Amounts used come from the run's row, so a resumed run keeps what it spent. The failure it can cause: a
worst case that is too small overshoots a limit.
"""

from dataclasses import dataclass
from decimal import ROUND_UP, Decimal
from typing import Any

from core.conversation import Message, Model, ToolSpec
from core.errors import ModelRefused
from core.run import HaltReason, Run
from core.tools import Limits

MICRO = Decimal("0.000001")
# What a run's row holds of money.
MOST_USD = Decimal(9999)
# A reply shorter than this cannot carry a tool call, so a run halts rather than ask for less.
LEAST_OUTPUT_TOKENS = 256
MOST_OUTPUT_TOKENS = 4096
STEPS_PER_CONTINUE = 4


@dataclass(frozen=True, slots=True)
class Allowance:
    """What the next model call may use: tokens of its reply, and its worst case in US dollars."""

    max_output_tokens: int
    worst_usd: Decimal


def worst_case(model: Model, run: Run, messages: list[Message], tools: list[ToolSpec], tokens: int) -> Decimal:
    """Return the most that the next call can cost: the model's own word, else the dearest call of this run.

    Raises: ModelRefused when the model's own word is no amount of money.
    """
    stated = getattr(model, "worst_case_usd", None)
    if stated is None:
        return run.dearest_call_usd
    try:
        return money(stated(messages, tools, tokens))
    except Exception as error:  # an engineer's own model may raise or return anything
        raise ModelRefused(f"the model cannot state its worst case: {error}") from error


def money(amount: Any) -> Decimal:
    """Return an amount in US dollars as the store keeps it, rounded up so that the sum is never too small.

    Raises: ValueError for what is no amount from 0 to 9999.
    """
    exact = Decimal(amount)
    if not 0 <= exact <= MOST_USD:
        raise ValueError(f"{amount} is no amount of US dollars")
    return exact.quantize(MICRO, rounding=ROUND_UP)


def allow(model: Model, run: Run, messages: list[Message], tools: list[ToolSpec]) -> Allowance | HaltReason:
    """Return what the next model call may use, or why the run halts before it. Raises: ModelRefused."""
    if run.step >= run.limits.max_steps:
        return HaltReason.BUDGET_STEPS
    if run.elapsed_ms >= run.limits.max_elapsed_s * 1000:
        return HaltReason.BUDGET_ELAPSED
    left = run.limits.max_spend_usd - run.spend_usd
    tokens = MOST_OUTPUT_TOKENS
    while True:
        worst = worst_case(model, run, messages, tools, tokens)
        if worst <= left and left > 0:
            return Allowance(tokens, worst)
        if tokens <= LEAST_OUTPUT_TOKENS or not hasattr(model, "worst_case_usd"):
            return HaltReason.BUDGET_SPEND
        tokens = max(LEAST_OUTPUT_TOKENS, tokens // 2)


def granted(run: Run) -> Limits:
    """Return the limits after a continue of a halted *run*; unchanged when no budget stopped it.

    +4 steps; spend to max(1.5 x limit, spent + worst case of the next call); tool calls and elapsed x 1.5 if they
    were what stopped it.
    """
    reason, limits = run.halt_reason, run.limits
    if reason not in BUDGET_REASONS:
        return limits
    spend = max(limits.max_spend_usd * Decimal("1.5"), run.spend_usd + run.next_worst_usd)
    calls = limits.max_tool_calls
    if reason is HaltReason.BUDGET_TOOL_CALLS:
        calls = max(calls + 1, calls * 3 // 2)
    elapsed = limits.max_elapsed_s
    if reason is HaltReason.BUDGET_ELAPSED:
        elapsed = max(elapsed * 1.5, run.elapsed_ms / 1000 * 1.5)
    return Limits(
        max_steps=max(limits.max_steps, run.step) + STEPS_PER_CONTINUE,
        max_tool_calls=calls,
        max_spend_usd=spend.quantize(MICRO, rounding=ROUND_UP),
        max_elapsed_s=elapsed,
    )


BUDGET_REASONS = frozenset(
    {HaltReason.BUDGET_STEPS, HaltReason.BUDGET_SPEND, HaltReason.BUDGET_TOOL_CALLS, HaltReason.BUDGET_ELAPSED}
)
