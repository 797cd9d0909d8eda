"""What several moves do to the rows that hang on a run: owing messages, expiring, ending.

Decides: nothing alone; the caller holds the run's row lock and the transaction. Does not: open either. The failure it
can cause: an ending that skips ``close`` leaves a card with buttons, a thread that takes no follow-up, or mail that
nobody reads.
"""

from datetime import datetime
from typing import TYPE_CHECKING

from core.approvals import Clicker
from core.ports import Alert
from core.run import HaltReason, Run, RunState, Suspension, SuspensionKind
from storage import sql
from storage.rows import clean, encode, parsed, run_of, suspension_of

if TYPE_CHECKING:
    from storage.database import Connection

WORK = "atlas_work"
OUTBOX = "atlas_outbox"


async def owe_notice(
    connection: "Connection", run: Run, place: str, text: str, now: datetime | None, *, ref: str = "", by: str = ""
) -> None:
    """Owe one line in the run's thread that mentions its owner; once per *place*, whatever is retried."""
    content = {"text": text, "mention": run.owner.user_id} | ({"by": by} if by else {})
    await sql.owe_once.run(
        connection,
        place=place,
        run_id=run.id,
        kind="notice",
        ref=ref,
        channel_id=run.channel_id,
        thread_ts=run.thread_ts,
        content=encode(content),
        now=now,
    )


async def owe_alert(connection: "Connection", run_id: str | None, alert: Alert, now: datetime | None) -> None:
    """Owe a message to the alert channel; once per key."""
    await sql.owe_once.run(
        connection,
        place=clean(f"alert:{alert.key}"),
        run_id=run_id,
        kind="alert",
        ref="",
        channel_id="",
        thread_ts=None,
        content=encode(
            {
                "title": clean(alert.title),
                "text": clean(alert.text),
                "run_id": run_id,
                "who": alert.user_id,
                "channel": alert.channel_id,
                "thread": alert.thread_ts,
            }
        ),
        now=now,
    )


async def owe_card(
    connection: "Connection", run: Run, kind: str, ref: str, now: datetime | None, content: str = "{}"
) -> None:
    """Owe a message about the run's end in its thread: kind "answer", "halt" or "failure"."""
    await sql.owe_message.run(
        connection,
        place=f"{kind}:{run.id}" + (f":{ref}" if ref else ""),
        run_id=run.id,
        kind=kind,
        ref=ref,
        channel_id=run.channel_id,
        thread_ts=run.thread_ts,
        content=content,
        now=now,
    )


async def audit(
    connection: "Connection",
    run_id: str,
    suspension: Suspension | None,
    act: str,
    by: Clicker,
    now: datetime | None,
    *,
    allowed: bool,
    why: str = "",
) -> None:
    """Record an attempt: who, when, which digest, and why."""
    await sql.audit_attempt.run(
        connection,
        run_id=run_id,
        call=f"{suspension.call.seq}:{suspension.call.position}" if suspension else None,
        suspension_id=suspension.id if suspension else None,
        tool=suspension.tool if suspension else None,
        digest=suspension.digest if suspension else None,
        act=act,
        by=by.id,
        via=by.via.value,
        allowed=allowed,
        why=clean(why),
        now=now,
    )


def title_of(suspension: Suspension) -> str:
    """Return what a person calls the call: its preview's title, else the tool's name."""
    return str(suspension.preview.get("title") or suspension.tool)


async def close(connection: "Connection", run: Run, now: datetime | None, *, stopped: str) -> None:
    """Close what hangs on a run that has just ended; open suspensions are stopped, *stopped* says why."""
    await sql.close_run_rows.run(connection, run_id=run.id, stopped_card=clean(stopped), now=now)


async def halt_unclaimed(
    connection: "Connection", run_id: str, reason: HaltReason, detail: str, now: datetime | None, *, by: str = ""
) -> Run | None:
    """suspended or unclaimed -> halted, with its card; None when the run is neither."""
    row = await sql.halt_unclaimed_run.value(
        connection, run_id=run_id, reason=reason.value, detail=clean(detail), now=now
    )
    if row is None:
        return None
    run = run_of(parsed(row))
    await close(connection, run, now, stopped=f"stopped by {by}" if by else "the run was halted")
    await sql.trace_event.run(
        connection,
        run_id=run.id,
        kind="halted",
        body=encode({"reason": reason.value} | ({"by": by} if by else {})),
        now=now,
    )
    await owe_card(connection, run, "halt", str(run.halts), now)
    return run


async def owe_expiry_notice(connection: "Connection", run: Run, suspension: Suspension, now: datetime | None) -> None:
    """Tell the owner, once, that nobody decided in time."""
    if suspension.kind is SuspensionKind.OUTCOME:
        text = f"Nobody said whether this happened: {title_of(suspension)}. Its outcome stays unknown."
    else:
        text = f"Expired, nothing was done: {title_of(suspension)}."
    await owe_notice(connection, run, f"notice:{suspension.id}:expired", text, now, ref=suspension.id)


async def expire(connection: "Connection", run: Run, now: datetime | None) -> tuple[list[Suspension], Run]:
    """Expire every open suspension of the locked *run* whose time is over; the run halts when it waits for none else.

    Returns what expired, and the run after it.
    """
    rows = await sql.expire_suspensions.rows(connection, run_id=run.id, now=now)
    expired = [suspension_of(parsed(row["suspension"])) for row in rows]
    for suspension in expired:
        await owe_expiry_notice(connection, run, suspension, now)
    if not expired or run.state is not RunState.SUSPENDED:
        return expired, run
    left = await sql.look_for_siblings.row(connection, run_id=run.id)
    assert left is not None
    if left["open"]:
        return expired, run
    reason = HaltReason.OUTCOME_UNKNOWN if left["unknown"] else HaltReason.SUSPENSION_EXPIRED
    halted = await halt_unclaimed(connection, run.id, reason, "", now)
    if halted is None:
        return expired, run
    if reason is HaltReason.OUTCOME_UNKNOWN:
        unknown = ", ".join(title_of(s) for s in expired if s.kind is SuspensionKind.OUTCOME)
        alert = Alert(
            key=f"outcome-unknown:{run.id}:{halted.halts}",
            title=f"Run {run.id} halted: an outcome is unknown",
            text=f"Nobody said in time whether it happened: {unknown}. Check the target system, then answer its card.",
        )
        await owe_alert(connection, run.id, alert, now)
    return expired, halted


async def fail(
    connection: "Connection",
    run_id: str,
    claim_token: str | None,
    reason: str,
    detail: str,
    alert: Alert | None,
    now: datetime | None,
) -> Run | None:
    """running -> failed by the claim's holder, or (*claim_token* None) by the reaper; None: the claim is lost.

    No action stays intended, every card says what became of it, the thread and the alert channel are told.
    """
    row = await sql.fail_run.value(
        connection, run_id=run_id, claim_token=claim_token, reason=clean(reason), detail=clean(detail), now=now
    )
    if row is None:
        return None
    run = run_of(parsed(row))
    await close(connection, run, now, stopped="the run failed")
    await sql.settle_left_cards.run(connection, run_id=run.id, now=now)
    await owe_card(connection, run, "failure", "", now)
    if alert is None:
        outcomes = [f"{r['tool']}: {r['state']}" for r in await sql.list_outcomes.rows(connection, run_id=run.id)]
        writes = "; ".join(outcomes) if outcomes else "none"
        alert = Alert(
            key=f"failed:{run.id}",
            title=f"Run {run.id} failed: {reason}",
            text=" ".join(part for part in (detail, f"Writes: {writes}.") if part),
        )
    await owe_alert(connection, run.id, alert, now)
    return run


async def hint(connection: "Connection", channel: str, run_id: str, *, allowed: bool) -> None:
    """Wake listeners when this transaction commits; a hint only, everybody polls as well."""
    if allowed:
        await sql.hint.value(connection, channel=channel, run_id=run_id)
