"""What the CLI prints: lists and timelines for people at 80 columns, the same facts as JSON for programs.

Decides: layout and wording on a terminal. Does not: read or change anything. Text of others is shown with control
characters made visible, so that no run's question can move the cursor or forge a line.
"""

import json
import shutil
import textwrap
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from core.ports import TraceEntry
from core.run import Run, RunView, Suspension


def visible(text: str) -> str:
    """Return *text* on one line, with control and direction characters shown as escapes."""
    return "".join(c if c.isprintable() else ("\\n" if c == "\n" else ascii(c)[1:-1]) for c in text)


def clipped(text: str, width: int) -> str:
    """Return *text* in at most *width* columns."""
    text = visible(text)
    return text if len(text) <= width else text[: max(1, width - 1)] + "…"


def age(then: datetime, now: datetime) -> str:
    """Return "42 s", "7 min", "3 h" or "5 d"."""
    seconds = max(0, int((now - then).total_seconds()))
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def why_of(run: Run) -> str:
    """Return a run's state with its reason, as words."""
    reason = run.halt_reason.value if run.halt_reason else run.fail_reason
    return f"{run.state.value} ({reason})" if reason else run.state.value


def runs_table(runs: Sequence[Run], now: datetime) -> str:
    """Return the list of runs."""
    if not runs:
        return "No runs yet."
    width = shutil.get_terminal_size((80, 24)).columns
    lines = [f"{'RUN':<9} {'STATE':<28} {'SPENT':>8} {'AGE':>7}  QUESTION"]
    for run in runs:
        head = (
            f"{run.id:<9} {clipped(why_of(run), 28):<28} {f'${run.spend_usd:.3f}':>8} {age(run.created_at, now):>7}  "
        )
        lines.append(head + clipped(run.question, max(10, width - len(head))))
    return "\n".join(lines)


def run_document(run: Run) -> dict[str, Any]:
    """Return a run as JSON types."""
    return {
        "id": run.id,
        "team_id": run.team_id,
        "channel_id": run.channel_id,
        "thread_ts": run.thread_ts,
        "user_id": run.owner.user_id,
        "question": run.question,
        "state": run.state.value,
        "halt_reason": run.halt_reason.value if run.halt_reason else None,
        "fail_reason": run.fail_reason,
        "step": run.step,
        "spend_usd": str(run.spend_usd),
        "tool_calls": run.tool_calls,
        "elapsed_ms": run.elapsed_ms,
        "max_spend_usd": str(run.limits.max_spend_usd),
        "max_steps": run.limits.max_steps,
        "recovery_attempts": run.recovery_attempts,
        "continuations": run.continuations,
        "parent": run.parent_id,
        "created_at": run.created_at.isoformat(),
        "ended_at": run.ended_at.isoformat() if run.ended_at else None,
    }


def suspension_document(suspension: Suspension) -> dict[str, Any]:
    """Return a suspension as JSON types; its token stays out, since output is copied into chats."""
    return {
        "id": suspension.id,
        "kind": suspension.kind.value,
        "status": suspension.status.value,
        "tool": suspension.tool,
        "arguments": suspension.arguments,
        "preview": suspension.preview,
        "digest": suspension.digest,
        "expires_at": suspension.expires_at.isoformat(),
        "decided_by": suspension.decided_by,
        "settled": suspension.settled_kind,
    }


def show_document(view: RunView, timeline: Sequence[tuple[datetime, TraceEntry]]) -> dict[str, Any]:
    """Return a run with everything that hangs on it, as JSON types."""
    return run_document(view.run) | {
        "messages": [
            {"seq": m.seq, "role": m.message.role, "text": m.message.text, "calls": [c.tool for c in m.message.calls]}
            for m in view.messages
        ],
        "suspensions": [suspension_document(s) for s in view.suspensions],
        "actions": [
            {"tool": a.tool, "state": a.state.value, "idempotency_key": a.idempotency_key, "arguments": a.arguments}
            for a in view.actions
        ],
        "timeline": [
            {
                "at": at.isoformat(),
                "kind": entry.kind,
                "ms": entry.ms,
                "spend_usd": str(entry.spend_usd) if entry.spend_usd is not None else None,
                **entry.body,
            }
            for at, entry in timeline
        ],
    }


def show_text(view: RunView, timeline: Sequence[tuple[datetime, TraceEntry]], now: datetime) -> str:
    """Return a run for people: what it is, what waits, what happened when and at what cost."""
    run = view.run
    width = shutil.get_terminal_size((80, 24)).columns
    lines = [
        f"Run {run.id} · {why_of(run)}",
        clipped(f"“{run.question}”", width),
        f"asked by {run.owner.name} ({run.owner.user_id}) {age(run.created_at, now)} ago in {run.channel_id}",
        (
            f"step {run.step} of at most {run.limits.max_steps}"
            f" · ${run.spend_usd:.3f} of ${run.limits.max_spend_usd:.2f}"
            f" · {run.tool_calls} of {run.limits.max_tool_calls} tool calls"
            f" · {run.elapsed_ms / 1000:.1f} s active"
        ),
    ]
    if run.recovery_attempts or run.continuations:
        lines.append(f"recovered {_times(run.recovery_attempts)} · continued {_times(run.continuations)}")
    for suspension in view.suspensions:
        lines += ["", f"{suspension.kind.value} {suspension.id} · {suspension.status.value}"]
        lines.append(f"  {clipped(str(suspension.preview.get('title', suspension.tool)), width - 2)}")
        tail = f" · {suspension.settled_kind}" if suspension.settled_kind else ""
        lines.append(f"  {suspension.tool} · digest {suspension.digest[:8]}{tail}")
    lines += ["", "Timeline"]
    for at, entry in timeline:
        parts = [
            f"{key}={visible(json.dumps(value) if not isinstance(value, str) else value)}"
            for key, value in entry.body.items()
        ]
        cost = f" ${entry.spend_usd:.4f}" if entry.spend_usd else ""
        took = f" {entry.ms} ms" if entry.ms is not None else ""
        text = f"{at:%H:%M:%S} {entry.kind}{took}{cost}  {' '.join(parts)}"
        lines += textwrap.wrap(text, width, initial_indent="  ", subsequent_indent="           ", max_lines=3) or [""]
    return "\n".join(lines)
