"""The budget: what the next model call may use, and what a continue grants."""

from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.budget import (
    BUDGET_REASONS,
    LEAST_OUTPUT_TOKENS,
    MOST_OUTPUT_TOKENS,
    Allowance,
    allow,
    granted,
    money,
    worst_case,
)
from core.conversation import Message, ModelReply, ToolSpec
from core.errors import ModelRefused
from core.run import HaltReason
from core.tools import Limits
from tests.unit.coreworld import a_run

usd = st.decimals(min_value=0, max_value=3, places=6)


class Priced:
    """A model whose call costs *fixed* plus *per_token* for each token of its reply."""

    def __init__(self, fixed: Decimal, per_token: Decimal) -> None:
        self.fixed, self.per_token = fixed, per_token

    async def respond(self, messages: list[Message], tools: list[ToolSpec], max_output_tokens: int) -> ModelReply:
        raise NotImplementedError

    def worst_case_usd(self, messages: list[Message], tools: list[ToolSpec], max_output_tokens: int) -> Decimal:
        return self.fixed + self.per_token * max_output_tokens


class Unpriced:
    async def respond(self, messages: list[Message], tools: list[ToolSpec], max_output_tokens: int) -> ModelReply:
        raise NotImplementedError


@given(usd, st.decimals(min_value=0, max_value="0.001", places=9), st.lists(st.floats(0, 1), max_size=30), usd)
def test_spend_never_passes_the_limit_when_the_model_states_its_worst_case(
    fixed: Decimal, per_token: Decimal, shares: list[float], limit: Decimal
) -> None:
    """Calls that cost any share of their stated worst case, one after the other, never pass the limit."""
    limits = Limits(max_spend_usd=limit + Decimal("0.000001"), max_steps=1000)
    run = a_run(limits=limits)
    model = Priced(fixed, per_token)
    for share in shares:
        allowance = allow(model, run, [], [])
        if not isinstance(allowance, Allowance):
            assert allowance is HaltReason.BUDGET_SPEND
            return
        assert LEAST_OUTPUT_TOKENS <= allowance.max_output_tokens <= MOST_OUTPUT_TOKENS
        stated = model.worst_case_usd([], [], allowance.max_output_tokens)
        cost = min(money(stated * Decimal(share)), money(stated))
        run = replace(run, spend_usd=run.spend_usd + cost, step=run.step + 1)
        assert run.spend_usd <= limits.max_spend_usd


@given(st.lists(usd, max_size=20), usd)
def test_a_model_without_a_worst_case_overshoots_by_one_call_at_most(costs: list[Decimal], limit: Decimal) -> None:
    """Without a stated worst case the dearest call so far counts; at most the last call passes the limit."""
    limits = Limits(max_spend_usd=limit + Decimal("0.000001"), max_steps=1000)
    run = a_run(limits=limits)
    for cost in costs:
        if not isinstance(allow(Unpriced(), run, [], []), Allowance):
            return
        assert run.spend_usd < limits.max_spend_usd
        run = replace(run, spend_usd=run.spend_usd + cost, dearest_call_usd=max(run.dearest_call_usd, cost))


def test_the_reply_shrinks_before_the_run_halts() -> None:
    """What is left for 600 tokens allows 512, what is left for 200 halts the run."""
    model = Priced(Decimal(0), Decimal("0.0001"))
    left = a_run(limits=Limits(max_spend_usd=Decimal("0.06")))
    assert allow(model, left, [], []) == Allowance(512, Decimal("0.0512"))
    assert allow(model, a_run(limits=Limits(max_spend_usd=Decimal("0.02"))), [], []) is HaltReason.BUDGET_SPEND


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"step": 12}, HaltReason.BUDGET_STEPS),
        ({"elapsed_ms": 300_000}, HaltReason.BUDGET_ELAPSED),
        ({"spend_usd": Decimal("0.5")}, HaltReason.BUDGET_SPEND),
    ],
)
def test_each_limit_halts_with_its_own_reason(changes: dict[str, Any], reason: HaltReason) -> None:
    """At the limit, not one beyond it."""
    assert allow(Priced(Decimal(0), Decimal(0)), replace(a_run(), **changes), [], []) is reason


@pytest.mark.parametrize("stated", ["much", Decimal("NaN"), Decimal(-1), float("inf"), None, RuntimeError("no prices")])
def test_a_worst_case_that_is_no_amount_is_the_models_fault(stated: Any) -> None:
    """A model that cannot state its price is refused in words, not taken for a defect of Atlas or for free."""

    class Odd(Unpriced):
        def worst_case_usd(self, messages: list[Message], tools: list[ToolSpec], tokens: int) -> Any:
            if isinstance(stated, Exception):
                raise stated
            return stated

    with pytest.raises(ModelRefused, match="worst case"):
        worst_case(Odd(), a_run(), [], [], 10)


@given(st.decimals(min_value=0, max_value=9998, places=12))
def test_money_is_rounded_up_never_down(amount: Decimal) -> None:
    """What the store keeps is never less than what was spent, and by less than a millionth more."""
    assert amount <= money(amount) < amount + Decimal("0.000001")


@given(
    st.sampled_from(list(HaltReason)),
    st.integers(0, 40),
    usd,
    usd,
    st.integers(0, 900_000),
)
def test_a_continue_grants_what_the_design_says(
    reason: HaltReason, step: int, spent: Decimal, worst: Decimal, elapsed_ms: int
) -> None:
    """+4 steps, spend to max(1.5 x limit, spent + worst), calls and time x 1.5 only if that stopped it."""
    run = replace(a_run(), halt_reason=reason, step=step, spend_usd=spent, next_worst_usd=worst, elapsed_ms=elapsed_ms)
    before, after = run.limits, granted(run)
    if reason not in BUDGET_REASONS:
        assert after == before
        return
    assert after.max_steps == max(12, step) + 4
    assert after.max_spend_usd == max(Decimal("0.75"), spent + worst)
    assert after.max_tool_calls == (36 if reason is HaltReason.BUDGET_TOOL_CALLS else 24)
    assert (after.max_elapsed_s > before.max_elapsed_s) is (reason is HaltReason.BUDGET_ELAPSED)
    if reason is HaltReason.BUDGET_ELAPSED:
        assert after.max_elapsed_s * 1000 > elapsed_ms
    # The granted budget is enough for the very call that did not fit.
    assert spent + worst <= after.max_spend_usd
