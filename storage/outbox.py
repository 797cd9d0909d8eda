"""What each Slack message should show, and how far that is delivered (core.ports.Outbox).

Level-triggered: moves raise a message's version; a delivery leases the row, renders what the rows say now, and stores
which version stands. Does not: render or speak to Slack. The failure it can cause: a write without the lease token
would let a slow delivery put an older version over a newer one.
"""

import json
from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING

from core.ports import Alert, Continuation, OutboxRow, RenderInputs
from core.run import HaltReason, Run, RunState, Suspension, SuspensionStatus
from storage import endings, sql
from storage.database import Database
from storage.rows import clean, encode, parsed, run_of, suspension_of, trace_of

if TYPE_CHECKING:
    import asyncpg

    from storage.database import Pool

_ORDER = {"card": 0, "answer": 0, "progress": 2}


class PgOutbox:
    """core.ports.Outbox. *now*: the time of a test; None: PostgreSQL's own."""

    def __init__(self, pool: "Pool", *, now: Callable[[], datetime] | None = None) -> None:
        self._database = Database(pool, now, hints=False)

    async def take(self, limit: int, lease_s: float, owner: str | None = None) -> list[OutboxRow]:
        """Lease owed rows: cards and answers first, progress last. *owner*: the process, whose death frees them."""
        async with self._database.connection() as connection:
            rows = await sql.take_owed.rows(
                connection, room=limit, lease_s=lease_s, owner=owner, now=self._database.now()
            )
        rows.sort(key=lambda row: (_ORDER.get(row["kind"], 1), row["next_attempt_at"], row["place"]))
        return [OutboxRow(**{name: row[name] for name in OutboxRow.__slots__}) for row in rows]

    async def render_inputs(self, row: OutboxRow) -> RenderInputs:
        """Read what the row shows now; its version may be newer than the row's."""
        async with self._database.connection() as connection:
            found = await sql.read_message_inputs.row(connection, place=row.place)
            if found is None:
                return RenderInputs(None, "", "")
            columns = parsed(found["run"])
            run = run_of(columns) if columns is not None else None
            in_line = None
            if row.kind == "progress" and run is not None and run.state is RunState.RUNNING and run.claim_token is None:
                in_line = await sql.read_place_in_line.value(connection, run_id=run.id)
        suspensions = {s.id: s for s in map(suspension_of, parsed(found["suspensions"]))}
        shown = suspensions.pop(found["ref"], None) if found["kind"] in ("card", "notice") else None
        older = suspensions.get(shown.replaces) if shown is not None and shown.replaces is not None else None
        content = json.loads(found["content"])
        return RenderInputs(
            run=run,
            detail=columns["detail"] if columns is not None else "",
            doing=columns["doing"] if columns is not None else "",
            suspension=shown,
            versus=older,
            siblings=tuple(suspensions.values()),
            trace=tuple(trace_of(entry) for entry in parsed(found["trace"])),
            content=content,
            identical_success_at=found["identical_success_at"],
            answer=content.get("text") if found["kind"] == "answer" else None,
            continuable=run is not None
            and not columns["followed_up"]
            and (_asks_again(run, shown, suspensions) if shown is not None else _continuable(run, found)),
            links={link["place"]: (link["message_channel"], link["message_ts"]) for link in parsed(found["links"])},
            in_line=in_line,
        )

    async def current_version(self, row: OutboxRow) -> int:
        """Return the version wanted now; read BEFORE render_inputs so that what is rendered is at least as new."""
        async with self._database.connection() as connection:
            version = await sql.read_version.value(connection, place=row.place)
        return row.version if version is None else int(version)

    async def renew(self, row: OutboxRow, lease_s: float) -> bool:
        """Keep the lease for *lease_s* more seconds."""
        async with self._database.connection() as connection:
            kept = await sql.renew_lease.value(
                connection, place=row.place, lease_token=row.lease_token, lease_s=lease_s, now=self._database.now()
            )
        return kept is not None

    async def posting(self, row: OutboxRow) -> bool:
        """Store that a post is about to be sent."""
        async with self._database.connection() as connection:
            kept = await sql.note_posting.value(
                connection, place=row.place, lease_token=row.lease_token, now=self._database.now()
            )
        return kept is not None

    async def reference(self, row: OutboxRow, channel: str, ts: str) -> bool:
        """Store where the message stands, whatever version it shows (an unknown post that was found)."""
        async with self._database.connection() as connection:
            kept = await sql.note_reference.value(
                connection, place=row.place, lease_token=row.lease_token, channel=channel, ts=ts
            )
        return kept is not None

    async def delivered(
        self, row: OutboxRow, version: int, channel: str, ts: str, goes_on: Continuation | None = None
    ) -> bool:
        """Store the reference and that *version* stands there; a newer one stays owed. *goes_on*: the message that
        follows this one, owed from now on, once."""
        async with self._database.connection() as connection:
            kept = await sql.note_delivered.value(
                connection,
                place=row.place,
                lease_token=row.lease_token,
                version=version,
                channel=channel,
                ts=ts,
                now=self._database.now(),
                next_place=None if goes_on is None else goes_on.place,
                next_content=None if goes_on is None else encode(goes_on.content),
            )
        return kept is not None

    async def retry(self, row: OutboxRow, error: str, delay_s: float, *, absent: bool = False) -> bool:
        """Give the lease back; due again in *delay_s*. *absent*: an unknown post is known not to exist."""
        async with self._database.connection() as connection:
            kept = await sql.retry_delivery.value(
                connection,
                place=row.place,
                lease_token=row.lease_token,
                error=clean(error),
                delay_s=delay_s,
                absent=absent,
                now=self._database.now(),
            )
        return kept is not None

    async def postpone(self, row: OutboxRow, why: str, delay_s: float) -> bool:
        """Give the lease back untried; due again in *delay_s*."""
        async with self._database.connection() as connection:
            kept = await sql.postpone_delivery.value(
                connection,
                place=row.place,
                lease_token=row.lease_token,
                why=clean(why),
                delay_s=delay_s,
                now=self._database.now(),
            )
        return kept is not None

    async def refused(self, row: OutboxRow, error: str, *, told: str = "", absent: bool = True) -> bool:
        """Slack said no for good: not tried again until something else is wanted, or its place is heard of; an alert is
        owed, once (none for a progress line, which says nothing that is missed). *told*: who was told instead, for the
        alert. *absent*: no post of it can stand unknown."""
        now = self._database.now()
        async with self._database.transaction() as connection:
            kept = await sql.refuse_delivery.value(
                connection, place=row.place, lease_token=row.lease_token, error=clean(error), absent=absent, now=now
            )
            if kept is not None and row.kind not in ("alert", "progress"):
                what = f"the {row.kind} of run {row.run_id}" if row.run_id is not None else f"a {row.kind}"
                alert = Alert(
                    # One alert for a card, however many of its copies are refused.
                    key=f"refused:card:{row.ref}" if row.kind == "card" else f"refused:{row.place}",
                    title=f"Slack refuses {what}",
                    text=f"Channel {row.channel_id}: {error}. Nobody sees this message there.{told}",
                    channel_id=row.channel_id,
                    thread_ts=row.thread_ts,
                )
                await endings.owe_alert(connection, row.run_id, alert, now)
        return kept is not None

    async def mirror_card(self, suspension_id: str, channel_id: str, thread_ts: str | None = None) -> bool:
        """Owe the same card at one more place (an approver's direct messages); False: owed there already."""
        async with self._database.connection() as connection:
            place = await sql.mirror_card.value(
                connection,
                suspension_id=suspension_id,
                channel_id=channel_id,
                thread_ts=thread_ts,
                now=self._database.now(),
            )
        return place is not None

    async def mirror(self, row: OutboxRow, channel_id: str) -> bool:
        """Owe the same message in somebody's direct messages; False: owed there already."""
        async with self._database.connection() as connection:
            place = await sql.mirror_message.value(
                connection, place=row.place, channel_id=channel_id, now=self._database.now()
            )
        return place is not None

    async def withdraw(self, row: OutboxRow, *, absent: bool = False) -> bool:
        """Owe the message no more, if nobody can have seen it; False: the lease is lost, or it may stand. *absent*: an
        unknown post of it is known not to exist."""
        async with self._database.connection() as connection:
            gone = await sql.withdraw_message.value(
                connection, place=row.place, lease_token=row.lease_token, absent=absent
            )
        return gone is not None

    async def due_links(self, place: str) -> tuple[str, str] | None:
        """Return (channel, ts) of a message by its place, to link to it; None: it stands nowhere yet."""
        async with self._database.connection() as connection:
            row = await sql.find_message.row(connection, place=place)
        return None if row is None else (row["message_channel"], row["message_ts"])

    async def refresh_progress(self, limit: int, every_s: float) -> int:
        """Owe the progress lines of claimed runs that went on; at most one redraw in *every_s* seconds each."""
        async with self._database.connection() as connection:
            rows = await sql.refresh_progress.rows(connection, room=limit, every_s=every_s, now=self._database.now())
        return len(rows)

    async def refresh_line(self, limit: int, every_s: float) -> int:
        """Owe the progress lines of the first *limit* runs in line that moved up a good way (a quarter at least, each
        of the last three places); at most one redraw in *every_s* seconds each."""
        async with self._database.connection() as connection:
            rows = await sql.refresh_line.rows(connection, room=limit, every_s=every_s, now=self._database.now())
        return len(rows)

    async def reserve(self, team_id: str, channel_id: str, method: str, per_s: float) -> float:
        """Book the next request of that kind, *per_s* seconds apart; return the seconds to wait before it goes out."""
        async with self._database.connection() as connection:
            wait = await sql.reserve_pace.value(
                connection,
                team_id=team_id,
                channel_id=channel_id,
                method=method,
                interval_s=per_s,
                now=self._database.now(),
            )
        return max(0.0, float(wait))

    async def ahead(self, team_id: str, channel_id: str, method: str) -> float:
        """Return the seconds until a slot of that kind is free, without booking it."""
        async with self._database.connection() as connection:
            wait = await sql.read_pace.value(
                connection, team_id=team_id, channel_id=channel_id, method=method, now=self._database.now()
            )
        return max(0.0, float(wait or 0.0))

    async def back_off(self, team_id: str, channel_id: str, method: str, seconds: float) -> None:
        """Slack asked for a pause of that kind, by all replicas."""
        async with self._database.connection() as connection:
            await sql.back_off_pace.run(
                connection,
                team_id=team_id,
                channel_id=channel_id,
                method=method,
                pause_s=seconds,
                now=self._database.now(),
            )


def _continuable(run: Run, row: "asyncpg.Record") -> bool:
    """Say whether a halt's card still carries Continue: its own halt, and none after it."""
    return row["kind"] == "halt" and run.state is RunState.HALTED and row["ref"] == str(run.halts)


def _asks_again(run: Run, shown: Suspension, siblings: dict[str, Suspension]) -> bool:
    """Say whether an expired card offers to ask again: it ended the run, and the run has not gone on since.

    A run that went on from an older expiry asked anew in a later turn, so only the cards of its last turn count.
    """
    last = all(other.call.seq <= shown.call.seq for other in siblings.values())
    ended_by_it = run.halt_reason in (HaltReason.SUSPENSION_EXPIRED, HaltReason.OUTCOME_UNKNOWN)
    return run.state is RunState.HALTED and ended_by_it and shown.status is SuspensionStatus.EXPIRED and last
