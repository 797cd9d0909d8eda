"""Digests are canonical; one authorizer judges every person under every policy."""

import hashlib
import random
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.agent import policy_problems
from core.approvals import (
    Clicker,
    Person,
    Refusal,
    Undigestible,
    Via,
    arguments_digest,
    canonical,
    digest_of,
    idempotency_key,
    late,
    may_answer_outcome,
    may_decide,
)
from core.conversation import CallKey
from core.run import SuspensionStatus
from core.tools import Approval, Preview, User, UserGroup
from tests.unit.coreworld import a_suspension

texts = st.text(st.characters(codec="utf-8"), max_size=8)
scalars = (
    st.none() | st.booleans() | st.integers(-(2**53) + 1, 2**53 - 1) | st.floats(allow_nan=False, allow_infinity=False)
)
values = st.recursive(
    scalars | texts, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=4), max_leaves=8
)


def shuffled(value: Any) -> Any:
    if isinstance(value, dict):
        keys = list(value)
        random.Random(7).shuffle(keys)
        return {key: shuffled(value[key]) for key in keys}
    return [shuffled(item) for item in value] if isinstance(value, list) else value


@given(st.dictionaries(texts, values, max_size=4))
def test_the_digest_does_not_depend_on_the_order_of_keys(arguments: dict[str, Any]) -> None:
    """Equal artefacts have one digest however they were built."""
    preview = Preview(title="Send", fields={"b": "2", "a": "1"})
    same = Preview(title="Send", fields={"a": "1", "b": "2"})
    assert digest_of("t", "1", arguments, preview) == digest_of("t", "1", shuffled(arguments), same)


def test_the_digest_is_a_known_value() -> None:
    """A stored digest stays valid over releases: the text that it covers is fixed, byte for byte."""
    text = (
        '{"arguments":{"n":1},"preview":{"fields":{},"lines":[],"text":"","title":"Send","totals":{}},'
        '"tool":"send","version":"1"}'
    )
    assert digest_of("send", "1", {"n": 1}, Preview(title="Send")) == hashlib.sha256(text.encode()).hexdigest()


@pytest.mark.parametrize("change", ["tool", "version", "arguments", "preview"])
def test_the_digest_covers_each_of_its_four_parts(change: str) -> None:
    """A change of tool, version, arguments or preview is another artefact."""
    parts: dict[str, Any] = {"tool": "t", "version": "1", "arguments": {"n": 1}, "preview": Preview(title="x")}
    other = parts | {change: {"arguments": {"n": 2}, "preview": Preview(title="y")}.get(change, "z")}
    assert digest_of(**parts) != digest_of(**other)


@pytest.mark.parametrize(
    "value",
    [
        float("nan"), float("inf"), -float("inf"), 2**53, -(2**53), 10**40, "\ud800", {"\udfff": 1},
        [{"a": ["\ud800"]}], {1: 2}, b"x",
    ],
)  # fmt: skip
def test_what_has_no_canonical_form_is_undigestible(value: Any) -> None:
    """Numbers that JSON cannot carry exactly and lone surrogates are named before any suspension, wherever they are."""
    with pytest.raises(Undigestible):
        canonical({"x": value})


def test_nesting_without_end_is_undigestible() -> None:
    """A value deeper than the stack is an error of the argument, not a crash."""
    nested: list[Any] = []
    for _ in range(100_000):
        nested = [nested]
    with pytest.raises(Undigestible):
        canonical(nested)


def test_the_idempotency_key_covers_run_call_and_arguments() -> None:
    """The same for every retry, another for another run, call or arguments."""
    keys = {
        idempotency_key(run, CallKey(seq, position), arguments_digest({"n": n}))
        for run, seq, position, n in product(("a", "b"), (1, 2), (0, 1), (1, 2))
    }
    assert len(keys) == 16
    digests = [arguments_digest({"a": 1, "b": 2}), arguments_digest({"b": 2, "a": 1})]
    assert len({idempotency_key("a", CallKey(1, 0), digest) for digest in digests}) == 1


# ---- who may decide --------------------------------------------------------------------------------------------------

NAMED = "UNAMED"
POLICIES = [
    Approval(by=by, self_approval=self_approval, operators=operators)
    for by, self_approval, operators in product(
        ("requester", "anyone", (NAMED, "U1"), UserGroup(handle="managers")), (True, False), (True, False)
    )
]


def person(user_id: str, **flags: bool) -> Person:
    return Person(User(team_id="T1", user_id=user_id, name=user_id), **flags)


WHO: dict[str, Clicker] = {
    "owner": Clicker("U1", Via.BUTTON, person("U1"), in_channel=True, in_group=True),
    "editor": Clicker("UED", Via.BUTTON, person("UED"), in_channel=True, in_group=True),
    "named": Clicker(NAMED, Via.BUTTON, person(NAMED)),
    "member": Clicker("UMEM", Via.HOME, person("UMEM"), in_channel=True),
    "grouped": Clicker("UGRP", Via.MODAL, person("UGRP"), in_group=True),
    "stranger": Clicker("USTR", Via.BUTTON, person("USTR")),
    "operator": Clicker("UOP", Via.BUTTON, person("UOP"), operator=True),
    "cli": Clicker("operator:root", Via.CLI, None, operator=True),
    "nobody": Clicker("U0", Via.BUTTON, None),
}


def expected(policy: Approval, who: str, *, approve: bool) -> Refusal | None:
    """The rules of DESIGN section 6, written down a second time."""
    if who == "nobody":
        return Refusal.NOT_AN_APPROVER
    if who == "cli":
        return None if policy.operators or not approve else Refusal.NOT_AN_APPROVER
    if not approve and who in ("owner", "operator"):
        return None
    if approve and not policy.self_approval and who in ("owner", "editor"):
        return Refusal.OWN_REQUEST
    allowed = {
        "requester": {"owner", "editor"},
        "anyone": {"owner", "editor", "member"},
        "named": {"owner", "named"},
        "group": {"owner", "editor", "grouped"},
    }
    by = policy.by
    kind = by if isinstance(by, str) else "group" if isinstance(by, UserGroup) else "named"
    if who in allowed[kind] or (who == "operator" and policy.operators):
        return None
    return Refusal.NOT_AN_APPROVER


@pytest.mark.parametrize("approve", [True, False])
@pytest.mark.parametrize("who", list(WHO))
@pytest.mark.parametrize("policy", POLICIES, ids=lambda p: f"{p.by}-{p.self_approval}-{p.operators}")
def test_one_authorizer_judges_every_entry_point_alike(policy: Approval, who: str, approve: bool) -> None:
    """Policy, person and act decide; the entry point never does."""
    for via in Via:
        clicker = replace(WHO[who], via=via)
        assert may_decide(policy, "U1", "UED", clicker, approve=approve) is expected(policy, who, approve=approve)


@pytest.mark.parametrize("flag", ["deactivated", "bot", "guest", "foreign"])
@pytest.mark.parametrize("approve", [True, False])
@pytest.mark.parametrize("policy", POLICIES, ids=lambda p: f"{p.by}-{p.self_approval}-{p.operators}")
def test_people_in_doubt_are_refused_unless_named(policy: Approval, approve: bool, flag: str) -> None:
    """Deactivated people and bots never decide; guests and foreigners only where the policy names them."""
    for user_id in ("U1", NAMED, "UMEM"):
        clicker = Clicker(user_id, Via.BUTTON, person(user_id, **{flag: True}), True, True, True)
        verdict = may_decide(policy, "UOTHER", "UOTHER", clicker, approve=approve)
        named = isinstance(policy.by, tuple) and user_id in policy.by
        assert (verdict is None) is (named and flag in ("guest", "foreign"))


@pytest.mark.parametrize(
    ("clicker", "may"),
    [
        (WHO["owner"], True),
        (WHO["operator"], True),
        (WHO["cli"], True),
        (WHO["nobody"], False),
        (WHO["stranger"], False),
        (WHO["named"], False),
        (Clicker("U1", Via.BUTTON, person("U1", guest=True)), True),
        (Clicker("U1", Via.BUTTON, person("U1", deactivated=True)), False),
        (Clicker("U1", Via.BUTTON, person("U1", foreign=True)), False),
        (Clicker("UOP", Via.BUTTON, person("UOP", deactivated=True), operator=True), False),
        (Clicker("UOP", Via.BUTTON, person("UOP", bot=True), operator=True), False),
        (Clicker("UOP", Via.BUTTON, person("UOP", guest=True), operator=True), False),
    ],
)
def test_the_owner_and_operators_say_what_happened(clicker: Clicker, may: bool) -> None:
    """Whether an action happened is answered by the owner and the operators while they are active and of the team."""
    assert (may_answer_outcome("U1", clicker) is None) is may


@pytest.mark.parametrize("status", list(SuspensionStatus))
@pytest.mark.parametrize("expired", [True, False])
@pytest.mark.parametrize("token", ["t0.1", "old"])
def test_only_the_newest_token_of_an_open_suspension_in_time_counts(
    status: SuspensionStatus, expired: bool, token: str
) -> None:
    """Every other click has its own class; a click in time on the newest card has none."""
    verdict = late(a_suspension(status), token, expired=expired)
    in_time = status is SuspensionStatus.OPEN and not expired and token == "t0.1"
    assert (verdict is None) is in_time
    if status is SuspensionStatus.OPEN and not in_time:
        assert verdict is (Refusal.EXPIRED if expired else Refusal.PRESS_AGAIN)


@pytest.mark.parametrize(
    ("policy", "problem"),
    [
        (Approval(), None),
        (Approval(by="requester", self_approval=False), "nobody could approve"),
        (Approval(by="requester", self_approval=False, operators=True), None),
        (Approval(by="requester", count=2), "cannot approve twice"),
        (Approval(by=()), "names nobody"),
        (Approval(by=("U22", "U22"), count=2), "only 1 people"),
        (Approval(by=("U22", "U33"), count=2), None),
        (Approval(by=("U11", "U33"), count=2, self_approval=False), "not the requester"),
        (Approval(by=("U11",), self_approval=False), "not the requester"),
        (Approval(by=("U11",), self_approval=False, operators=True), None),
        (Approval(by=("ann",)), "no Slack user id"),
        (Approval(by=UserGroup(handle="@sales")), "without the @"),
        (Approval(by=UserGroup(handle="")), "without the @"),
        (Approval(by=UserGroup(handle="sales")), None),
        (Approval(channel="#sales"), "no Slack channel id"),
        (Approval(channel="C123"), None),
    ],
)
def test_a_policy_that_nobody_could_satisfy_is_named(policy: Approval, problem: str | None) -> None:
    """An impossible policy stops the start, or the call, instead of a card that waits for nobody."""
    found = policy_problems(policy, frozenset({"U11"}))
    assert (found == []) if problem is None else (problem in " ".join(found))


def test_an_unknown_policy_key_is_refused() -> None:
    """A misspelt or unenforced key must not look like a rule."""
    with pytest.raises(ValueError, match="require_approvers"):
        Approval.model_validate({"by": "anyone", "require_approvers": 2})
