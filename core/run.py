"""The run: its states, the one table of moves, and the rows that hang on it.

Decides: which move leads from which state to which. Does not: perform moves (storage does, one guarded statement or
transaction each; a test holds its SQL against this table). The failure it can cause: a move missing here cannot be
told apart from a defect.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from enum import StrEnum
from typing import Any

from core.conversation import CallKey, StoredMessage
from core.tools import Approval, Limits, Scope, User


class RunState(StrEnum):
    """Where a run is."""

    RUNNING = "running"
    """A worker has it or will claim it. In by start, decide, edit, supersede, continue, reap; out by all others."""
    SUSPENDED = "suspended"
    """Waits for a person. In by suspend, wait, resuspend, re-arm; out by decide, edit, supersede, expire, stop."""
    HALTED = "halted"
    """A stop that is not an answer; the owner may continue it. In by halt, expire, stop; out by continue."""
    ANSWERED = "answered"
    """The answer is in the outbox. Final."""
    FAILED = "failed"
    """Recoveries are used up, or a defect. Final; an alert tells what happened."""


class HaltReason(StrEnum):
    """Why a run is halted; who sets it."""

    BUDGET_STEPS = "budget_steps"
    BUDGET_SPEND = "budget_spend"
    BUDGET_TOOL_CALLS = "budget_tool_calls"
    BUDGET_ELAPSED = "budget_elapsed"
    MODEL_UNAVAILABLE = "model_unavailable"
    OUTCOME_UNKNOWN = "outcome_unknown"
    SUSPENSION_EXPIRED = "suspension_expired"
    STOPPED_BY_USER = "stopped_by_user"


class FailReason(StrEnum):
    """Why a run failed."""

    RECOVERY_EXHAUSTED = "recovery_exhausted"
    DEFECT = "defect"


class SuspensionKind(StrEnum):
    """What a person is asked: may it be done, or did it happen."""

    APPROVAL = "approval"
    OUTCOME = "outcome"


class SuspensionStatus(StrEnum):
    """Where a suspension is; every status but ``open`` is final, except that re-arm opens ``approved`` again."""

    OPEN = "open"
    APPROVED = "approved"
    DECLINED = "declined"
    EXPIRED = "expired"
    REPLACED = "replaced"
    """A newer suspension of the same call took its place (resuspend)."""
    SUPERSEDED = "superseded"
    """The owner wrote a new instruction."""
    EDITED = "edited"
    """An approver changed the arguments; the normal path runs on ``edited_arguments``."""
    STOPPED = "stopped"
    HAPPENED = "happened"
    DID_NOT_HAPPEN = "did_not_happen"


class ActionState(StrEnum):
    """The ledger of one write."""

    INTENDED = "intended"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Move:
    """One row of the table: *name* takes a run from any of *sources* to *target*; *who* may do it."""

    name: str
    sources: tuple[RunState | None, ...]
    target: RunState
    who: str
    also: str


R, S, H, A, F = RunState.RUNNING, RunState.SUSPENDED, RunState.HALTED, RunState.ANSWERED, RunState.FAILED

# A vote or an expiry on a running run (a sibling executes) is only recorded: no move of the run.
MOVES: tuple[Move, ...] = (
    Move("start", (None,), R, "the inbox drain", "inbox row handled; messages, budget, route, scope snapshot"),
    Move("claim", (R,), R, "worker", "new claim_token"),
    Move("release", (R,), R, "clean shutdown", "unclaimed; not a recovery attempt"),
    Move("step", (R,), R, "worker", "messages, spend, trace in one commit"),
    Move("intend", (R,), R, "worker", "action intended, idempotency key"),
    Move("conclude", (R,), R, "worker", "one result per call; action outcome; card settled"),
    Move("suspend", (R,), S, "worker", "all calls of the turn that need a person, a card each"),
    Move("wait", (R,), S, "worker", "only undecided calls left; nothing new since it looked"),
    Move("vote", (S,), S, "an approver", "one vote per person"),
    Move("decide", (S, R), R, "a button, a modal, the CLI", "decision; token spent"),
    Move("resuspend", (R,), S, "worker", "old suspension replaced; new token, digest, expiry, card"),
    Move("rearm", (R,), S, "worker", "same suspension open again, new token, old expiry"),
    Move("edit", (S, R), R, "an approver", "old suspension edited; normal path on the new arguments"),
    Move("expire", (S,), H, "the job, a late click", "closes its own call; halts when no sibling is open"),
    Move("supersede", (S,), R, "the owner's new instruction", "not executed, replaced by a new instruction"),
    Move("halt", (R,), H, "worker", "card with spend so far and Continue"),
    Move("stop", (S, R), H, "owner, operator", "or stop_requested, which the next act looks at first"),
    Move("continue", (H,), R, "the owner; an operator by the CLI", "grant; once per halt"),
    Move("reap", (R,), R, "job", "unclaimed; crash counted"),
    Move("fail", (R,), F, "worker, job", "open calls closed, cards settled, alert"),
    Move("answer", (R,), A, "worker", "the answer in the outbox"),
)


@dataclass(frozen=True)  # no slots: a step copies it as one dict (core.holder.changed)
class Run:
    """A run's row. Money in US dollars, times aware, *elapsed_ms* active time only.

    *news* counts what others than the claim's holder wrote (messages, decisions, stops); a worker's final moves name
    the count that it saw. *halts* numbers the halts; a Continue button carries the number. *next_worst_usd*: worst
    case of the next model call as known at the last halt. *charge_due*: a crash may have cost a model call that is
    not charged yet.
    """

    id: str
    team_id: str
    channel_id: str
    thread_ts: str
    owner: User
    question: str
    route: dict[str, Any]
    limits: Limits
    state: RunState
    halt_reason: HaltReason | None
    fail_reason: str | None
    step: int
    spend_usd: Decimal
    tool_calls: int
    elapsed_ms: int
    scope: Scope
    scope_resolved_at: datetime
    claim_token: str | None
    claimed_by: str | None
    stop_requested: str | None
    news: int
    recovery_attempts: int
    crashes: int
    charge_due: bool
    continuations: int
    halts: int
    next_worst_usd: Decimal
    dearest_call_usd: Decimal
    parent_id: str | None
    created_at: datetime
    ended_at: datetime | None = None
    # A newer message took over, so it is continued no more.
    followed_up: bool = False


@dataclass(frozen=True, slots=True)
class Suspension:
    """A durable pause for a person's decision on one tool call.

    *token* is what a button must carry; spent by a decision, new after re-arm. *arguments*: validated, as they will
    execute. *votes*: approvals so far on this token. *settled*: what became of it after the decision, for the card
    (None while unknown): kind "done", "not_executed", "failed" or "unknown", and its text. *asked_by*: who counts as
    requester (the owner, or who edited).
    """

    id: str
    run_id: str
    call: CallKey
    number: int
    kind: SuspensionKind
    status: SuspensionStatus
    token: str
    tool: str
    tool_version: str
    arguments: dict[str, Any]
    preview: dict[str, Any]
    digest: str
    policy: Approval
    asked_by: str
    opened_at: datetime
    expires_at: datetime
    votes: tuple[str, ...] = ()
    decided_at: datetime | None = None
    decided_by: str | None = None
    reason: str | None = None
    edited_arguments: dict[str, Any] | None = None
    edited_by: str | None = None
    replaced_by: str | None = None
    replaces: str | None = None
    note: str | None = None
    settled_kind: str | None = None
    settled_text: str | None = None


@dataclass(frozen=True, slots=True)
class Action:
    """The ledger row of one write: one per call and arguments. *intended_age_s*: seconds since intended_at by the
    database's clock when the row was read."""

    run_id: str
    call: CallKey
    arguments_digest: str
    idempotency_key: str
    tool: str
    arguments: dict[str, Any]
    state: ActionState
    intended_at: datetime
    intended_age_s: float
    timeout_s: float
    suspension_id: str | None
    result: str | None = None


@dataclass(frozen=True, slots=True)
class Mail:
    """A message that somebody wrote to a live run and that is not in its conversation yet. *text*: as typed,
    unescaped."""

    inbox_id: int
    text: str
    user_id: str


NEVER = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class RunView:
    """Everything that the next act depends on, as one read saw it.

    *messages* by seq, gap-free from 0; the first *unread* of them are not there yet (``Unread``), and only a call that
    was approved may be acted on. *suspensions* by (call, number). *mail* oldest first. *now*: the database's clock at
    that read.
    """

    run: Run
    messages: Sequence[StoredMessage]
    suspensions: tuple[Suspension, ...] = ()
    actions: tuple[Action, ...] = ()
    mail: tuple[Mail, ...] = ()
    now: datetime = NEVER
    unread: int = 0


def diagram() -> str:
    """Return the table of moves as a Mermaid state diagram; docs/architecture.md carries it and a test compares."""
    lines = ["stateDiagram-v2"]
    for move in MOVES:
        lines += [f"    {source or '[*]'} --> {move.target}: {move.name}" for source in move.sources]
    lines += ["    answered --> [*]", "    failed --> [*]"]
    return "\n".join(lines)
