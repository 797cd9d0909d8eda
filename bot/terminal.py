"""What the CLI prints: lists and timelines for people at 80 columns, the same facts as JSON for programs.

Decides: layout and wording on a terminal. Does not: read or change anything. Text of others is shown with control
characters made visible, so that no run's question can move the cursor or forge a line.
"""

import json
import shutil
import textwrap
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from core.ports import TraceEntry
from core.run import Run, RunState, RunView, Suspension, SuspensionKind, SuspensionStatus


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
    """Return a run for people: what it is, what waits and what came of it, what happened when and at what cost."""
    run = view.run
    width = max(40, shutil.get_terminal_size((80, 24)).columns)
    lines = [f"Run {run.id} · {why_of(run)}", *_wrapped(f"“{run.question}”", width, most=3)]
    lines += [
        clipped(f"asked by {_who(run.owner.user_id, run)}, {age(run.created_at, now)} ago, in {run.channel_id}", width),
        "",
        *_amounts(run, width),
    ]
    for suspension in view.suspensions:
        lines += ["", *_suspension_told(suspension, run, now, width)]
    answer = next((m.message.text for m in reversed(view.messages) if m.message.role == "assistant"), "")
    if run.state is RunState.ANSWERED and answer:
        lines += ["", "Answer", *_paragraphs(answer, width)]
    lines += ["", "What happened (UTC)"]
    day = None
    for at, entry in timeline:
        at = at.astimezone(UTC)
        if day not in (None, at.date()):
            lines.append(f"  {at:%Y-%m-%d}")
        day = at.date()
        lines += _line_of(at, entry, run, width)
    return "\n".join(lines)


_BESIDE = 17
"""Columns for what an entry took and cost."""


def _line_of(at: datetime, entry: TraceEntry, run: Run, width: int) -> list[str]:
    took = f"{entry.ms:,} ms" if entry.ms is not None else ""
    cost = f"${entry.spend_usd:.4f}" if entry.spend_usd else ""
    head, room = f"  {at:%H:%M:%S}  ", width - 12 - (_BESIDE if took or cost else 0)
    said = textwrap.wrap(told(entry, run), room, max_lines=4, placeholder=" …") or [entry.kind]
    first = f"{head}{said[0]:<{room}}{took:>9}{cost:>8}".rstrip()
    return [first, *(" " * len(head) + more for more in said[1:])]


def _amounts(run: Run, width: int) -> list[str]:
    limits = run.limits
    cells = [
        ("steps", f"{run.step} of at most {limits.max_steps}"),
        ("spent", f"${run.spend_usd:.3f} of ${limits.max_spend_usd:.2f}"),
        ("tool calls", f"{run.tool_calls} of at most {limits.max_tool_calls}"),
        ("active", f"{run.elapsed_ms / 1000:.1f} s of {limits.max_elapsed_s:g} s"),
    ]
    if run.recovery_attempts or run.continuations:
        cells += [("recovered", _times(run.recovery_attempts)), ("continued", _times(run.continuations))]
    told_cells = [f"{name:<11}{value:<22}" for name, value in cells]
    beside = 2 if width >= 2 + 2 * 33 else 1
    return ["  " + "  ".join(told_cells[at : at + beside]).rstrip() for at in range(0, len(told_cells), beside)]


def _suspension_told(suspension: Suspension, run: Run, now: datetime, width: int) -> list[str]:
    asks = "asks whether it happened" if suspension.kind is SuspensionKind.OUTCOME else "waits for approval"
    open_ = suspension.status is SuspensionStatus.OPEN
    state = asks if open_ else suspension.status.value
    if not open_ and suspension.decided_by:
        state += f" by {_who(suspension.decided_by, run)}"
    if suspension.settled_kind:
        state += f", {suspension.settled_kind.replace('_', ' ')}"
    lines = [clipped(f"{suspension.id} · {suspension.tool} · {state}", width)]
    lines += _wrapped(str(suspension.preview.get("title", suspension.tool)), width, indent="  ", most=2)
    for part in ("fields", "totals"):
        shown = suspension.preview.get(part)
        pairs = list(shown.items())[:_MOST_FIELDS] if isinstance(shown, dict) and open_ else []
        lines += [clipped(f"  {clipped(str(name), 18):<18}  {value}", width) for name, value in pairs]
    if suspension.reason:
        lines += _wrapped(f"reason: {suspension.reason}", width, indent="  ", most=2)
    tail = f"  digest {suspension.digest[:8]}"
    if open_:
        left = max(0, int((suspension.expires_at - now).total_seconds()))
        tail += f" · {left // 60}:{left % 60:02d} left · atlas decide {suspension.id} …"
    return [*lines, clipped(tail, width)]


_MOST_FIELDS = 8


def _wrapped(text: str, width: int, indent: str = "", most: int = 4) -> list[str]:
    return textwrap.wrap(
        visible(text), width, initial_indent=indent, subsequent_indent=indent, max_lines=most, placeholder=" …"
    )


def _paragraphs(text: str, width: int) -> list[str]:
    found = [line for part in text.splitlines() for line in _wrapped(part, width, indent="  ")]
    return found if len(found) <= _MOST_ANSWERED else [*found[:_MOST_ANSWERED], "  …"]


_MOST_ANSWERED = 14


def _who(by: object, run: Run) -> str:
    """Return a person as the run knows them; ids of others stand as they are."""
    text = str(by)
    return f"{run.owner.name} ({text})" if text == run.owner.user_id else text


def told(entry: TraceEntry, run: Run) -> str:
    """Return one entry of the timeline as a sentence of its own words; a kind that is not known by its fields."""
    said = _SENTENCES.get(entry.kind)
    body = {name: value for name, value in entry.body.items() if value not in (None, "", [])}
    if entry.kind.startswith("suspension."):
        by = f" by {_who(body['by'], run)}" if "by" in body else ""
        why = f": {body['reason']}" if "reason" in body else ""
        what = f"{body['tool']} " if "tool" in body else f"{body.get('suspension', 'what waited')} "
        return visible(f"{what}{entry.kind.removeprefix('suspension.').replace('_', ' ')}{by}{why}")
    if entry.kind == "model" and "calls" not in body:
        said = "charged what a lost answer of the model may have cost" if "assumed" in body else "the model answered"
    if said is not None:
        return visible(said.format_map(_Known(body)).strip(" :,"))
    fields = ", ".join(f"{name} {json.dumps(v) if not isinstance(v, str) else v}" for name, v in body.items())
    return visible(f"{entry.kind}: {fields}" if fields else entry.kind)


class _Known(dict[str, Any]):
    """What an entry holds, as words; what it does not hold is left out."""

    def __getitem__(self, name: str) -> str:
        value = self.get(name, "")
        if isinstance(value, list):
            return ", ".join(map(str, value))
        # An entry names outcomes in the code's words.
        return str(value)[:8] if name == "worker" else str(value).replace("_", " ") if name == "outcome" else str(value)


_SENTENCES = {
    "started": "asked",
    "claimed": "taken up by worker {worker}",
    "reaped": "its worker {worker} was gone, so it is picked up again",
    "answered": "answered",
    "model": "the model calls {calls}",
    "model unavailable": "the model could not be asked (try {attempt}): {words}",
    "model refused": "the model refused: {words}",
    "read": "{tool}: {outcome}",
    "write": "{tool}: {outcome}: {why}",
    "refused": "{tool} refused: {why}",
    "suspended": "asked for approval: {title} (digest {digest})",
    "suspended again": "asked again, since {why} (digest {digest})",
    "could not check": "{tool} waits: {what} could not be checked, {why}",
    "not executed": "{tool} not executed: {why}",
    "reconciled": "looked up what became of {tool}: {outcome}",
    "outcome unknown": "outcome of {tool} unknown: {why}",
    "stopped": "stopped by {by}",
    "halted": "halted ({reason}): {words}",
    "failed": "failed ({reason}): {words}",
}
