"""Who may decide, on what exactly, and is it still the same thing.

Decides: the digest of an artefact, the verdict on one person's click, whether recorded votes satisfy a policy. Does
not: ask Slack about people (the directory port does) or record anything (the store does). The failure it can cause:
a wrong yes lets somebody act who may not; so every doubt is a refusal with its own class.
"""

import hashlib
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import orjson
import rfc8785

from core.conversation import CallKey
from core.run import RunState, Suspension, SuspensionKind, SuspensionStatus
from core.tools import Approval, Preview, User, UserGroup


class Undigestible(ValueError):
    """A value without a canonical form: an integer beyond 2^53, NaN or an infinity, a lone surrogate."""


def canonical(value: Any) -> bytes:
    """Return the RFC 8785 canonical JSON of *value*.

    Raises: Undigestible. Source: RFC 8785 (JSON Canonicalization Scheme).
    """
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS) if _ordinary(value) else rfc8785.dumps(value)
    except orjson.JSONEncodeError as error:
        raise Undigestible("a lone surrogate has no UTF-8") from error
    except (rfc8785.CanonicalizationError, UnicodeError, RecursionError) as error:
        raise Undigestible(str(error)) from error


_SAFE = 2**53 - 1
_FLAT = 50


def _ordinary(value: Any, depth: int = _FLAT) -> bool:
    """Say whether orjson, its keys sorted, writes *value* exactly as RFC 8785 asks.

    It differs for fractions (ES6 has its own notation), for keys beyond ASCII (sorted by UTF-16 units there), for
    integers beyond 2^53 - 1 (refused there) and for types that are not JSON's.
    """
    kind = type(value)
    if value is None or kind is str or kind is bool:
        return True
    if kind is int:
        safe: bool = -_SAFE <= value <= _SAFE
        return safe
    if depth == 0:
        return False
    if kind is dict:
        return all(type(key) is str and key.isascii() and _ordinary(item, depth - 1) for key, item in value.items())
    return kind is list and all(_ordinary(item, depth - 1) for item in value)


def digest_of(tool: str, version: str, arguments: dict[str, Any], preview: Preview) -> str:
    """Return what a decision binds to: SHA-256 (hex) over the canonical JSON of exactly these four."""
    artefact = {"arguments": arguments, "preview": preview.model_dump(mode="json"), "tool": tool, "version": version}
    return hashlib.sha256(canonical(artefact)).hexdigest()


def arguments_digest(arguments: dict[str, Any]) -> str:
    """Return SHA-256 (hex) over the canonical arguments."""
    return hashlib.sha256(canonical(arguments)).hexdigest()


def idempotency_key(run_id: str, call: CallKey, digest: str) -> str:
    """Return the key that a target sees for this write; the same for every retry of run, call and arguments."""
    covered = f"{call.call_id(run_id)}:{digest}".encode()
    return "atlas-" + hashlib.sha256(covered).hexdigest()[:40]


@dataclass(frozen=True, slots=True)
class Person:
    """What the directory knows of somebody. *guest*: restricted or ultra-restricted. *foreign*: not of the
    installing team, a Slack Connect stranger included."""

    user: User
    deactivated: bool = False
    bot: bool = False
    guest: bool = False
    foreign: bool = False


class Via(StrEnum):
    """The entry point of an act, for the audit."""

    BUTTON = "button"
    MODAL = "modal"
    HOME = "home"
    COMMAND = "command"
    MENTION = "mention"
    CLI = "cli"
    JOB = "job"


@dataclass(frozen=True, slots=True)
class Clicker:
    """A verified actor with the facts that the policy needs. *person* is None for the CLI, whose *id* is
    "operator:<os user>". *in_channel*: member of the channel in which the card stands. *in_group*: member of the
    policy's user group (False when the policy names none). *operator*: in ATLAS_OPERATORS, or the CLI."""

    id: str
    via: Via
    person: Person | None
    in_channel: bool = False
    in_group: bool = False
    operator: bool = False


class Refusal(StrEnum):
    """Classes of late and wrong clicks; each has its own text with a next step."""

    DECIDED = "decided"
    EXPIRED = "expired"
    REPLACED = "replaced"
    NOT_AN_APPROVER = "not_an_approver"
    OWN_REQUEST = "own_request"
    COULD_NOT_CHECK = "could_not_check"
    PRESS_AGAIN = "press_again"
    UNKNOWN = "unknown"


def may_decide(policy: Approval, owner_id: str, asked_by: str, clicker: Clicker, *, approve: bool) -> Refusal | None:
    """Judge whether *clicker* may approve or decline under *policy*; None: yes.

    Declining needs less: the owner may always decline, and so may an operator. Deactivated people and bots are
    refused always; guests and foreign people unless the policy names them.
    """
    named = isinstance(policy.by, tuple) and clicker.id in policy.by
    person = clicker.person
    if person is None:
        if clicker.operator and (not approve or policy.operators):
            return None
        return Refusal.NOT_AN_APPROVER
    if person.deactivated or person.bot or ((person.guest or person.foreign) and not named):
        return Refusal.NOT_AN_APPROVER
    if not approve and (clicker.id == owner_id or clicker.operator):
        return None
    if approve and not policy.self_approval and clicker.id in (owner_id, asked_by):
        return Refusal.OWN_REQUEST
    if named or (policy.operators and clicker.operator):
        return None
    if policy.by == "requester" and clicker.id in (owner_id, asked_by):
        return None
    if policy.by == "anyone" and clicker.in_channel:
        return None
    if isinstance(policy.by, UserGroup) and clicker.in_group:
        return None
    return Refusal.NOT_AN_APPROVER


def channel_of(policy: Approval, run_channel_id: str) -> str:
    """Return the channel in which the card stands: the one that "anyone in the channel" speaks of."""
    return policy.channel or run_channel_id


def may_acknowledge(clicker: Clicker, *, operators_named: bool) -> Refusal | None:
    """Judge who may take an alert up: the operators; where none are named, active members of the alert channel."""
    person = clicker.person
    if person is None or person.deactivated or person.bot or person.foreign or person.guest:
        return Refusal.NOT_AN_APPROVER
    return None if (clicker.operator if operators_named else clicker.in_channel) else Refusal.NOT_AN_APPROVER


def may_answer_outcome(owner_id: str, clicker: Clicker) -> Refusal | None:
    """Judge who may say whether an action happened: the owner (also a guest) and the operators, while they are of
    this team and active; and the CLI."""
    person = clicker.person
    if person is None:
        return None if clicker.operator else Refusal.NOT_AN_APPROVER
    if person.deactivated or person.bot or person.foreign or (person.guest and clicker.id != owner_id):
        return Refusal.NOT_AN_APPROVER
    return None if clicker.operator or clicker.id == owner_id else Refusal.NOT_AN_APPROVER


def late(suspension: Suspension, token: str, *, expired: bool) -> Refusal | None:
    """Judge a click's token against the stored suspension; None: the click is in time and on the newest card."""
    if suspension.status is SuspensionStatus.REPLACED:
        return Refusal.REPLACED
    if suspension.status is SuspensionStatus.EXPIRED or (suspension.status is SuspensionStatus.OPEN and expired):
        return Refusal.EXPIRED
    if suspension.status is not SuspensionStatus.OPEN:
        return Refusal.DECIDED
    if suspension.token != token:
        return Refusal.PRESS_AGAIN
    return None


def answers_after_halt(suspension: Suspension, run_state: RunState) -> bool:
    """Say whether a late outcome answer is still recorded: the run halted on it, so it starts nothing."""
    return (
        suspension.kind is SuspensionKind.OUTCOME
        and suspension.status is SuspensionStatus.EXPIRED
        and run_state is RunState.HALTED
    )
