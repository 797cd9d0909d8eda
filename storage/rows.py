"""Rows to core's records and back; the only place that knows how a column is encoded.

Runs, suspensions and actions arrive as PostgreSQL's own JSON of the row, so that a column added by the next release
changes no prepared statement; messages arrive as rows and go as parallel arrays. The failure it can cause: a text
that PostgreSQL cannot store (NUL, lone surrogates) would lose a move, so free texts are cleaned here, and bodies are
ASCII JSON.
"""

import json
import re
from collections.abc import Sequence
from datetime import datetime
from decimal import Decimal
from operator import attrgetter
from typing import Any, cast

import asyncpg
import orjson

from core.approvals import canonical
from core.conversation import CallKey, StoredMessage, Unread, decode_body, encode_body
from core.ports import Batch, TraceEntry
from core.run import (
    Action,
    ActionState,
    HaltReason,
    Mail,
    Run,
    RunState,
    RunView,
    Suspension,
    SuspensionKind,
    SuspensionStatus,
)
from core.tools import Approval, Limits, Scope, User

_place = attrgetter("seq")
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")


def clean(text: str) -> str:
    """Return *text* with what a PostgreSQL text cannot hold (NUL, lone surrogates) replaced by U+FFFD."""
    return _UNSTORABLE.sub("\N{REPLACEMENT CHARACTER}", text)


def cleaned(text: str | None) -> str | None:
    """Return *text* cleaned, None as it is."""
    return None if text is None else clean(text)


def encode(value: Any) -> str:
    """Return *value* as ASCII JSON text."""
    return json.dumps(value, ensure_ascii=True, separators=(",", ":"), default=str)


def encode_note(value: dict[str, Any]) -> str:
    """Return a trace line's body as ASCII JSON text. For people, so a NaN may become null; it is on the step path."""
    try:
        text = orjson.dumps(value)
    except TypeError:
        return encode(value)
    return text.decode("ascii") if text.isascii() else encode(value)


def encode_arguments(arguments: dict[str, Any]) -> str:
    """Return arguments as RFC 8785 canonical JSON, so that equal arguments are equal texts."""
    return canonical(arguments).decode()


def encode_scope(scope: Scope) -> str:
    """Return a scope as JSON, its permissions in order."""
    fields = scope.model_dump(mode="json")
    return encode({**fields, "permissions": sorted(fields["permissions"])})


def parsed(text: str | None) -> Any:
    """Return PostgreSQL's JSON of a row, or rows, as Python values; ``usd`` makes money of its fractions."""
    return None if text is None else orjson.loads(text)


def usd(amount: float) -> Decimal:
    """Return money as its column has it: ten digits, of which a float's shortest form loses none."""
    return Decimal(str(amount))


def _stored(text: str) -> Any:
    """Return JSON that we wrote into a text column; half a surrogate pair in it is beyond orjson."""
    try:
        return orjson.loads(text)
    except ValueError:
        return json.loads(text)


def _time(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)


def run_of(row: dict[str, Any]) -> Run:
    """Return the run of a row of runs."""
    return Run(
        id=row["id"],
        team_id=row["team_id"],
        channel_id=row["channel_id"],
        thread_ts=row["thread_ts"],
        owner=User.model_validate(_stored(row["owner"])),
        question=row["question"],
        route=_stored(row["route"]),
        limits=Limits(
            max_steps=row["max_steps"],
            max_tool_calls=row["max_tool_calls"],
            max_spend_usd=usd(row["max_spend_usd"]),
            max_elapsed_s=row["max_elapsed_ms"] / 1000,
        ),
        state=RunState(row["state"]),
        halt_reason=HaltReason(row["halt_reason"]) if row["halt_reason"] is not None else None,
        fail_reason=row["fail_reason"],
        step=row["step"],
        spend_usd=usd(row["spend_usd"]),
        tool_calls=row["tool_calls"],
        elapsed_ms=row["elapsed_ms"],
        scope=Scope.model_validate(_stored(row["scope"])),
        scope_resolved_at=datetime.fromisoformat(row["scope_resolved_at"]),
        claim_token=row["claim_token"],
        claimed_by=row["claimed_by"],
        stop_requested=row["stop_requested"],
        news=row["news"],
        recovery_attempts=row["recovery_attempts"],
        crashes=row["crashes"],
        charge_due=row["charge_due"],
        continuations=row["continuations"],
        halts=row["halts"],
        next_worst_usd=usd(row["next_worst_usd"]),
        dearest_call_usd=usd(row["dearest_call_usd"]),
        parent_id=row["parent_id"],
        created_at=datetime.fromisoformat(row["created_at"]),
        ended_at=_time(row["ended_at"]),
        followed_up=row["followed_up"],
    )


def suspension_of(row: dict[str, Any], votes: Sequence[str] | None = None) -> Suspension:
    """Return the suspension of a row of suspensions; *votes*: unless they are in the row."""
    return Suspension(
        id=row["id"],
        run_id=row["run_id"],
        call=CallKey(row["call_seq"], row["call_position"]),
        number=row["number"],
        kind=SuspensionKind(row["kind"]),
        status=SuspensionStatus(row["status"]),
        token=row["token"],
        tool=row["tool"],
        tool_version=row["tool_version"],
        arguments=_stored(row["arguments"]),
        preview=_stored(row["preview"]),
        digest=row["digest"],
        policy=Approval.model_validate_json(row["policy"]),
        asked_by=row["asked_by"],
        opened_at=datetime.fromisoformat(row["opened_at"]),
        expires_at=datetime.fromisoformat(row["expires_at"]),
        votes=tuple(row.get("votes", ()) if votes is None else votes),
        decided_at=_time(row["decided_at"]),
        decided_by=row["decided_by"],
        reason=row["reason"],
        edited_arguments=_stored(row["edited_arguments"]) if row["edited_arguments"] is not None else None,
        edited_by=row["edited_by"],
        replaced_by=row["replaced_by"],
        replaces=row["replaces"],
        note=row["note"],
        settled_kind=row["settled_kind"],
        settled_text=row["settled_text"],
    )


def action_of(row: dict[str, Any]) -> Action:
    """Return the action of a row of actions with its *intended_age_s*."""
    return Action(
        run_id=row["run_id"],
        call=CallKey(row["call_seq"], row["call_position"]),
        arguments_digest=row["arguments_digest"],
        idempotency_key=row["idempotency_key"],
        tool=row["tool"],
        arguments=_stored(row["arguments"]),
        state=ActionState(row["state"]),
        intended_at=datetime.fromisoformat(row["intended_at"]),
        intended_age_s=float(row["intended_age_s"]),
        timeout_s=float(row["timeout_s"]),
        suspension_id=row["suspension_id"],
        result=row["result"],
    )


def trace_of(row: dict[str, Any]) -> TraceEntry:
    """Return the entry of a row of trace."""
    spend = row["spend_usd"]
    return TraceEntry(row["kind"], _stored(row["body"]), row["ms"], None if spend is None else usd(spend))


def view_of(rows: Sequence[asyncpg.Record], kept: Sequence[StoredMessage] = ()) -> RunView:
    """Return the view of the rows of load_run; *kept*: the messages that it was told to leave out."""
    messages = list(kept)
    rest: Any = None
    for seq, body, raw, answers_seq, answers_position in rows:
        if seq is None:
            rest = orjson.loads(body)
        else:
            answers = None if answers_seq is None else CallKey(answers_seq, answers_position)
            messages.append(StoredMessage(seq, decode_body(body, raw), answers))
    unread: int = rest["unread"]
    if unread:
        messages += [cast("StoredMessage", Unread(seq)) for seq in range(unread)]
    messages.sort(key=_place)
    return RunView(
        run=run_of(rest["run"]),
        messages=messages,
        suspensions=tuple(suspension_of(row) for row in rest["suspensions"]),
        actions=tuple(action_of(row) for row in rest["actions"]),
        mail=tuple(Mail(row["id"], row["text"], row["user_id"]) for row in rest["mail"]),
        now=datetime.fromisoformat(rest["now"]),
        unread=unread,
    )


def micro(usd: Decimal) -> int:
    """Return an amount in millionths of a dollar, the column's own unit: as an integer it is sent far more cheaply."""
    return round(usd * 1_000_000) if usd else 0


def message_columns(messages: Sequence[StoredMessage]) -> tuple[list[Any], ...]:
    """Return messages as the parallel arrays (seqs, roles, bodies, raws, answers_seqs, answers_positions)."""
    columns: tuple[list[Any], ...] = ([], [], [], [], [], [])
    seqs, roles, bodies, raws, answers_seqs, answers_positions = columns
    for stored in messages:
        message, answers = stored.message, stored.answers
        seqs.append(stored.seq)
        roles.append(message.role)
        bodies.append(encode_body(message))
        raws.append(message.raw)
        answers_seqs.append(None if answers is None else answers.seq)
        answers_positions.append(None if answers is None else answers.position)
    return columns


def batch_columns(batch: Batch) -> tuple[object, ...]:
    """Return a batch in the order of $3 (first_seq) to $23 (after_ms) of step_run, intend_action and conclude_calls."""
    trace = batch.trace
    return (
        batch.messages[0].seq if batch.messages else None,
        *message_columns(batch.messages),
        [entry.kind for entry in trace],
        [encode_note(entry.body) for entry in trace],
        [entry.ms for entry in trace],
        [None if entry.spend_usd is None else micro(entry.spend_usd) for entry in trace],
        batch.mail,
        batch.steps,
        batch.tool_calls,
        micro(batch.spend_usd),
        micro(batch.dearest_call_usd),
        batch.elapsed_ms,
        cleaned(batch.doing),
        batch.charges_crash,
        encode_scope(batch.scope) if batch.scope is not None else None,
        batch.after_ms,
    )
