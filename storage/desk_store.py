"""The moves of everybody who holds no claim (core.ports.Desk) on PostgreSQL: the drain, clicks, commands, the CLI.

Each is one transaction that locks the run's row first, then changes what hangs on it, and raises ``runs.news`` where
the claim's holder must look again. Does not: judge who somebody is (the engine does). The failure it can cause: a
decision recorded without the row lock could be lost between a worker's "nothing there" and its "I wait".
"""

import json
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import asyncpg

from core.approvals import Clicker, Refusal, Via, answers_after_halt, late
from core.errors import Conflict
from core.ports import Acknowledged, Alert, Continued, Decided, Fence, Letter, LiveRun, NewRun, Stopped
from core.run import HaltReason, Run, RunState, RunView, Suspension, SuspensionKind, SuspensionStatus
from core.tools import Limits, Scope
from storage import endings, sql
from storage.database import Database
from storage.rows import (
    clean,
    cleaned,
    encode,
    encode_arguments,
    encode_scope,
    message_columns,
    parsed,
    run_of,
    suspension_of,
    view_of,
)

if TYPE_CHECKING:
    from storage.database import Connection, Pool

_LIVE = (RunState.RUNNING, RunState.SUSPENDED)


class PgDesk:
    """core.ports.Desk. *now*: the time of a test; None: PostgreSQL's own. *hints*: NOTIFY may be used.

    *per_person*: with so many runs of a person claimed, a new one of theirs waits in line; None: with any number. What
    somebody decides on goes on at once all the same.
    """

    def __init__(
        self,
        pool: "Pool",
        *,
        now: Callable[[], datetime] | None = None,
        hints: bool = True,
        per_person: int | None = None,
    ) -> None:
        self._database = Database(pool, now, hints=hints)
        self._per_person = per_person

    # ---- mail -------------------------------------------------------------------------------------------------------

    async def take_mail(self, limit: int, lease_s: float) -> list[Letter]:
        """Lease unhandled, unattached rows that are due and whose thread has no older one waiting for the drain."""
        async with self._database.connection() as connection:
            rows = await sql.take_mail.rows(connection, room=limit, lease_s=lease_s, now=self._database.now())
        return sorted((Letter(**row) for row in rows), key=lambda letter: letter.id)

    async def live_run(self, letter: Letter) -> LiveRun | None:
        """Return the live run of the letter's (thread, owner)."""
        async with self._database.connection() as connection:
            row = await sql.find_live_run.row(connection, **_thread(letter))
        if row is None:
            return None
        return LiveRun(run_of(parsed(row["run"])), row["open_outcome"], tuple(row["open_suspensions"]))

    async def last_ended(self, letter: Letter) -> RunView | None:
        """Return the newest ended run of the letter's (thread, owner) with its conversation."""
        async with self._database.connection() as connection:
            run_id = await sql.find_last_ended.value(connection, **_thread(letter))
        return None if run_id is None else await self.show(run_id)

    async def start(self, letter: Letter, new: NewRun, worker_id: str | None) -> Fence | None:
        """-> running, and the letter handled; retires the parent's Continue. Claimed for *worker_id* if given."""
        now = self._database.now()
        seqs, roles, bodies, raws, answers_seqs, answers_positions = message_columns(new.messages)
        async with self._database.transaction() as connection:
            parent = new.parent_id
            if parent is not None and await sql.retire_parent.value(connection, run_id=parent, now=now) is None:
                raise Conflict(f"run {parent} goes on, so it takes no follow-up")
            row = await sql.start_run.row(
                connection,
                id=new.id,
                team_id=new.team_id,
                channel_id=new.channel_id,
                thread_ts=new.thread_ts,
                user_id=new.owner.user_id,
                owner=encode(new.owner.model_dump(mode="json")),
                question=clean(new.question),
                route=encode(new.route),
                max_steps=new.limits.max_steps,
                max_tool_calls=new.limits.max_tool_calls,
                max_spend_usd=new.limits.max_spend_usd,
                max_elapsed_ms=round(new.limits.max_elapsed_s * 1000),
                scope=encode_scope(new.scope),
                parent_id=new.parent_id,
                worker_id=worker_id,
                seqs=seqs,
                roles=roles,
                bodies=bodies,
                raws=raws,
                answers_seqs=answers_seqs,
                answers_positions=answers_positions,
                letter_id=letter.id,
                now=now,
                per_person=self._per_person,
            )
            if row is None:
                raise Conflict(f"letter {letter.id} is handled already, or its owner has a live run in that thread")
            if row["claim_token"] is None:
                await self._hint(connection, endings.WORK, new.id)
            await self._hint(connection, endings.OUTBOX, new.id)
        return None if row["claim_token"] is None else Fence(new.id, row["claim_token"])

    async def attach(self, letter: Letter, run_id: str) -> bool:
        """Give the letter to a live run; False: the run ended meanwhile.

        Raises Conflict when the run is suspended and nothing but approvals is open (the letter supersedes, or is an
        assent: look again), or when the letter is handled or attached already.
        """
        now = self._database.now()
        async with self._database.transaction() as connection:
            run = await _locked(connection, run_id)
            if run is None or run.state not in _LIVE:
                return False
            if run.state is RunState.SUSPENDED:
                waiting = await sql.look_before_waiting.row(connection, run_id=run_id)
                assert waiting is not None
                if not waiting["outcomes"]:
                    raise Conflict(f"run {run_id} is suspended by now; a letter supersedes what it waits for")
            if await sql.attach_letter.value(connection, letter_id=letter.id, run_id=run_id, now=now) is None:
                raise Conflict(f"letter {letter.id} is handled or attached already")
        return True

    async def supersede(self, letter: Letter, run_id: str, worker_id: str | None) -> Fence | None:
        """suspended -> running: open approvals become superseded, the letter is attached."""
        now = self._database.now()
        async with self._database.transaction() as connection:
            run = await _locked(connection, run_id)
            if run is None or run.state is not RunState.SUSPENDED:
                raise Conflict(f"run {run_id} is not suspended")
            waiting = await sql.look_before_waiting.row(connection, run_id=run_id)
            assert waiting is not None
            if waiting["outcomes"]:
                raise Conflict(f"run {run_id} waits for an outcome, which no message replaces")
            await sql.supersede_suspensions.rows(connection, run_id=run_id, now=now)
            if await sql.attach_letter.value(connection, letter_id=letter.id, run_id=run_id, now=now) is None:
                raise Conflict(f"letter {letter.id} is handled or attached already")
            row = await sql.wake_superseded_run.value(connection, run_id=run_id, worker_id=worker_id, now=now)
            return await self._woken(connection, run_of(parsed(row)))

    async def answer_letter(
        self, letter: Letter, notice: str | None, *, offers: bool = False, private: bool = False
    ) -> None:
        """Mark the letter handled without a run; *notice*: a line for its thread, or (*private*) for its writer alone.
        No error when it is handled."""
        now = self._database.now()
        async with self._database.transaction() as connection:
            if await sql.handle_letter.value(connection, letter_id=letter.id, now=now) is not None:
                await self._write_back(connection, letter, "answer", notice, offers=offers, private=private)

    async def welcome(self, team_id: str, user_id: str, channel_id: str, text: str) -> bool:
        """Owe somebody, once, what Atlas can do, in their direct messages; False: they were told already."""
        async with self._database.transaction() as connection:
            place = await sql.owe_once.value(
                connection,
                place=f"welcome:{team_id}:{user_id}",
                run_id=None,
                kind="notice",
                ref="",
                channel_id=channel_id,
                thread_ts=None,
                content=encode({"text": text, "offers": True}),
                now=self._database.now(),
            )
            await self._hint(connection, endings.OUTBOX, "")
        return place is not None

    async def retry_letter(self, letter: Letter, why: str, delay_s: float, notice: str | None) -> None:
        """Count a failed attempt; due again in *delay_s*. *notice*: a line for its thread, posted once."""
        now = self._database.now()
        async with self._database.transaction() as connection:
            retried = await sql.retry_letter.value(
                connection, letter_id=letter.id, why=clean(why), delay_s=delay_s, now=now
            )
            if retried is not None:
                await self._write_back(connection, letter, "retry", notice)

    async def park_letter(self, letter: Letter, why: str, notice: str, alert: Alert) -> None:
        """Give up on the letter so that it never blocks its thread; tell the thread and the alert channel."""
        now = self._database.now()
        async with self._database.transaction() as connection:
            if await sql.park_letter.value(connection, letter_id=letter.id, why=clean(why), now=now) is not None:
                await self._write_back(connection, letter, "parked", notice)
                await endings.owe_alert(connection, None, alert, now)

    async def _write_back(
        self,
        connection: "Connection",
        letter: Letter,
        what: str,
        notice: str | None,
        *,
        offers: bool = False,
        private: bool = False,
    ) -> None:
        if notice is None:
            return
        content: dict[str, Any] = {"text": notice, "private_to" if private else "mention": letter.user_id}
        await sql.owe_once.run(
            connection,
            place=f"{'private' if private else 'notice'}:letter-{letter.id}:{what}",
            run_id=None,
            kind="notice",
            ref="",
            channel_id=letter.channel_id,
            thread_ts=letter.thread_ts,
            content=encode(content | {"offers": True} if offers else content),
            now=self._database.now(),
        )
        await self._hint(connection, endings.OUTBOX, "")

    # ---- decisions --------------------------------------------------------------------------------------------------

    async def suspension(self, suspension_id: str) -> tuple[Suspension, Run, bool] | None:
        """Return a suspension, its run, and whether its time is over by the database's clock."""
        async with self._database.connection() as connection:
            row = await sql.read_suspension.row(connection, suspension_id=suspension_id, now=self._database.now())
        return None if row is None else (*_pair(row), row["over"])

    async def decide(
        self,
        suspension_id: str,
        token: str,
        digest: str | None,
        clicker: Clicker,
        *,
        approve: bool,
        reason: str | None = None,
        worker_id: str | None = None,
    ) -> Decided:
        """Record an approval or vote, a decline, or an outcome's answer; exactly one of N racing decisions wins."""
        act = "approve" if approve else "decline"
        if approve:
            at_once = await self._approve_at_once(suspension_id, token, digest, clicker, reason, worker_id)
            if at_once is not None:
                return at_once
        async with self._database.transaction() as connection:
            found = await self._lock(connection, suspension_id)
            if found is None:
                return Decided(Refusal.UNKNOWN, None, None)
            suspension, run, over = found
            outcome = suspension.kind is SuspensionKind.OUTCOME
            if answers_after_halt(suspension, run.state) and suspension.token == token:
                return await self._answer_late(connection, suspension, run, clicker, approve=approve, reason=reason)
            refusal = late(suspension, token, expired=over)
            if refusal is None and (run.state not in _LIVE or (digest is not None and digest != suspension.digest)):
                refusal = Refusal.UNKNOWN
            if refusal is not None:
                return await self._refused(connection, suspension, run, clicker, act, refusal)
            if not outcome and approve and suspension.policy.count > 1:
                vote = await sql.record_vote.row(
                    connection, suspension_id=suspension_id, user_id=clicker.id, now=self._database.now()
                )
                assert vote is not None
                if not vote["fresh"]:
                    return await self._refused(connection, suspension, run, clicker, act, Refusal.DECIDED)
                votes = (*vote["earlier"], clicker.id)
                if len(votes) < suspension.policy.count:
                    return await self._count_vote(connection, suspension, run, clicker, votes)
                return await self._settle(
                    connection, suspension, run, clicker, act, SuspensionStatus.APPROVED, reason, worker_id, votes=votes
                )
            votes = ()
            if outcome:
                status = SuspensionStatus.HAPPENED if approve else SuspensionStatus.DID_NOT_HAPPEN
            elif approve:
                status, votes = SuspensionStatus.APPROVED, (clicker.id,)
            else:
                status = SuspensionStatus.DECLINED
            return await self._settle(connection, suspension, run, clicker, act, status, reason, worker_id, votes=votes)

    async def edit(
        self, suspension_id: str, token: str, clicker: Clicker, arguments: dict[str, Any], worker_id: str | None = None
    ) -> Decided:
        """Store edited arguments; the suspension becomes edited, the run goes on to suspend again on them."""
        async with self._database.transaction() as connection:
            found = await self._lock(connection, suspension_id)
            if found is None:
                return Decided(Refusal.UNKNOWN, None, None)
            suspension, run, over = found
            refusal = late(suspension, token, expired=over)
            if refusal is None and (run.state not in _LIVE or suspension.kind is SuspensionKind.OUTCOME):
                refusal = Refusal.UNKNOWN
            if refusal is not None:
                return await self._refused(connection, suspension, run, clicker, "edit", refusal)
            return await self._settle(
                connection,
                suspension,
                run,
                clicker,
                "edit",
                SuspensionStatus.EDITED,
                None,
                worker_id,
                edited=encode_arguments(arguments),
            )

    async def refuse(
        self, suspension: Suspension | str, clicker: Clicker, act: str, refusal: Refusal, why: str
    ) -> None:
        """Audit a refused attempt at a suspension, or (its id) at a run or a suspension that does not exist."""
        known = None if isinstance(suspension, str) else suspension
        claimed = clean(suspension)[:200] if isinstance(suspension, str) else ""
        async with self._database.connection() as connection:
            await endings.audit(
                connection,
                known.run_id if known else claimed.partition(".")[0],
                known,
                act,
                clicker,
                self._database.now(),
                allowed=False,
                why=f"{refusal.value}: {why}" + (f" ({claimed})" if claimed else ""),
            )

    async def acknowledge(self, place: str, by: Clicker, *, allowed: bool) -> Acknowledged:
        """Note on an alert that somebody has taken it up, once; audited either way."""
        now = self._database.now()
        async with self._database.transaction() as connection:
            row = await sql.lock_alert.row(connection, place=place)
            run_id = (row["run_id"] or "") if row is not None else ""
            content: dict[str, Any] = json.loads(row["content"]) if row is not None else {}
            fresh = allowed and row is not None and "acknowledged_by" not in content
            why = place if row is not None else f"no such alert: {clean(place)}"
            await endings.audit(
                connection, run_id, None, "acknowledge", by, now, allowed=allowed and row is not None, why=why[:500]
            )
            if not allowed or row is None:
                return Acknowledged(refused=True)
            if fresh:
                at = now or await sql.read_clock.value(connection)
                content |= {"acknowledged_by": by.id, "acknowledged_at": at.isoformat()}
                await sql.redraw_alert.run(connection, place=place, content=encode(content), now=now)
                await self._hint(connection, endings.OUTBOX, run_id)
        return Acknowledged(
            refused=False, by=content["acknowledged_by"], at=datetime.fromisoformat(content["acknowledged_at"])
        )

    async def _lock(self, connection: "Connection", suspension_id: str) -> tuple[Suspension, Run, bool] | None:
        row = await sql.lock_suspension.row(connection, suspension_id=suspension_id, now=self._database.now())
        if row is None:
            return None
        return suspension_of(parsed(row["suspension"])), run_of(parsed(row["run"])), row["over"]

    async def _refused(
        self, connection: "Connection", suspension: Suspension, run: Run, clicker: Clicker, act: str, refusal: Refusal
    ) -> Decided:
        """Audit it; an overdue suspension is expired here, as the job would."""
        now = self._database.now()
        await endings.audit(connection, run.id, suspension, act, clicker, now, allowed=False, why=refusal.value)
        if refusal is Refusal.EXPIRED and suspension.status is SuspensionStatus.OPEN:
            expired, run = await endings.expire(connection, run, now)
            suspension = next((s for s in expired if s.id == suspension.id), suspension)
            await self._hint(connection, endings.OUTBOX, run.id)
        return Decided(refusal, suspension, run)

    async def _count_vote(
        self, connection: "Connection", suspension: Suspension, run: Run, clicker: Clicker, votes: Sequence[str]
    ) -> Decided:
        now = self._database.now()
        row = await sql.note_vote.value(connection, run_id=run.id, suspension_id=suspension.id, now=now)
        await endings.audit(connection, run.id, suspension, "vote", clicker, now, allowed=True)
        body = encode({"suspension": suspension.id, "by": clicker.id, "votes": len(votes)})
        await sql.trace_event.run(connection, run_id=run.id, kind="suspension.vote", body=body, now=now)
        await self._hint(connection, endings.OUTBOX, run.id)
        found = await sql.read_suspension.row(connection, suspension_id=suspension.id, now=now)
        assert found is not None
        pending = suspension.policy.count - len(votes)
        return Decided(None, _pair(found)[0], run_of(parsed(row)), pending_votes=pending)

    async def _settle(
        self,
        connection: "Connection",
        suspension: Suspension,
        run: Run,
        clicker: Clicker,
        act: str,
        status: SuspensionStatus,
        reason: str | None,
        worker_id: str | None,
        *,
        edited: str | None = None,
        votes: Sequence[str] = (),
    ) -> Decided:
        """Record what was decided, and wake the run, claimed for *worker_id* when it was suspended."""
        now = self._database.now()
        row = await sql.decide_suspension.row(
            connection,
            run_id=run.id,
            suspension_id=suspension.id,
            status=status.value,
            by=clicker.id,
            reason=cleaned(reason),
            edited_arguments=edited,
            worker_id=worker_id,
            act=act,
            via=clicker.via.value,
            voting=status is SuspensionStatus.APPROVED,
            hints=self._database.hints,
            now=now,
            token=None,
            digest=None,
        )
        assert row is not None  # both rows are locked and were looked at above
        if status is SuspensionStatus.DECLINED:
            text = f"Declined, nothing was done: {endings.title_of(suspension)}." + (
                f" Reason: {reason}" if reason else ""
            )
            place = f"notice:{suspension.id}:declined"
            await endings.owe_notice(connection, run, place, text, now, ref=suspension.id, by=clicker.id)
        return _decided(row, votes)

    async def _approve_at_once(
        self,
        suspension_id: str,
        token: str,
        digest: str | None,
        clicker: Clicker,
        reason: str | None,
        worker_id: str | None,
    ) -> Decided | None:
        """Record a plainly good approval in one statement and one round trip; None: look at it under the lock."""
        async with self._database.connection() as connection:
            row = await sql.decide_suspension.row(
                connection,
                run_id=suspension_id.partition(".")[0],
                suspension_id=suspension_id,
                status=SuspensionStatus.APPROVED.value,
                by=clicker.id,
                reason=cleaned(reason),
                edited_arguments=None,
                worker_id=worker_id,
                act="approve",
                via=clicker.via.value,
                voting=True,
                hints=self._database.hints,
                now=self._database.now(),
                token=token,
                digest=digest,
            )
        return None if row is None else _decided(row, (clicker.id,))

    async def _answer_late(
        self,
        connection: "Connection",
        suspension: Suspension,
        run: Run,
        clicker: Clicker,
        *,
        approve: bool,
        reason: str | None,
    ) -> Decided:
        """An outcome's answer after its run halted on it: recorded, starts nothing."""
        now = self._database.now()
        row = await sql.answer_after_halt.value(
            connection,
            run_id=run.id,
            suspension_id=suspension.id,
            status="happened" if approve else "did_not_happen",
            action_state="succeeded" if approve else "failed",
            by=clicker.id,
            reason=cleaned(reason),
            now=now,
        )
        assert row is not None  # both rows are locked and were looked at before
        act = "approve" if approve else "decline"
        await endings.audit(connection, run.id, suspension, act, clicker, now, allowed=True, why="after the halt")
        await self._hint(connection, endings.OUTBOX, run.id)
        return Decided(None, suspension_of(parsed(row)), run)

    # ---- stop, continue ---------------------------------------------------------------------------------------------

    async def stop(self, run_id: str, by: Clicker) -> Stopped:
        """suspended or unclaimed, with no action intended or unknown -> halted; else stop_requested."""
        now = self._database.now()
        async with self._database.transaction() as connection:
            run = await _locked(connection, run_id)
            if run is None or run.state not in _LIVE:
                if run is not None:
                    why = f"it is {run.state.value}"
                    await endings.audit(connection, run_id, None, "stop", by, now, allowed=False, why=why)
                return Stopped("ended", run)
            await endings.audit(connection, run_id, None, "stop", by, now, allowed=True)
            waiting = await sql.look_for_siblings.row(connection, run_id=run_id)
            assert waiting is not None
            if run.claim_token is None and not waiting["acting"]:
                words = f"Stopped by @{by.id}."
                halted = await endings.halt_unclaimed(
                    connection, run_id, HaltReason.STOPPED_BY_USER, words, now, by=by.id
                )
                await self._hint(connection, endings.OUTBOX, run_id)
                return Stopped("halted", halted)
            row = await sql.request_stop.value(connection, run_id=run_id, by=by.id, now=now)
            after = run_of(parsed(row))
            await sql.trace_event.run(
                connection, run_id=run_id, kind="stop.requested", body=encode({"by": by.id}), now=now
            )
            if after.claim_token is None:
                await self._hint(connection, endings.WORK, run_id)
            return Stopped("requested", after)

    async def continue_(
        self,
        run_id: str,
        halt_number: int | None,
        by: Clicker,
        limits: Limits,
        scope: Scope | None,
        worker_id: str | None,
        reason: str | None = None,
    ) -> Continued:
        """halted -> running with the granted limits, once per halt; its owner only, or an operator on the CLI."""
        now = self._database.now()
        async with self._database.connection() as connection:
            try:
                async with connection.transaction():
                    return await self._continue(connection, run_id, halt_number, by, limits, scope, worker_id, reason)
            except _Refused as refused:
                await endings.audit(connection, run_id, None, "continue", by, now, allowed=False, why=refused.why)
                return Continued(None)

    async def _continue(
        self,
        connection: "Connection",
        run_id: str,
        halt_number: int | None,
        by: Clicker,
        limits: Limits,
        scope: Scope | None,
        worker_id: str | None,
        reason: str | None,
    ) -> Continued:
        now = self._database.now()
        run = await _locked(connection, run_id)
        if run is None:
            raise _Refused("no such run")
        if run.owner.user_id != by.id and not (by.via is Via.CLI and by.operator):
            raise _Refused("not its owner")
        if run.state is not RunState.HALTED or run.halt_reason is None:
            raise _Refused(f"it is {run.state.value}")
        if halt_number is not None and halt_number != run.halts:
            raise _Refused(f"halt {halt_number} is over, it is at {run.halts}")
        row = await sql.continue_run.value(
            connection,
            run_id=run_id,
            halts=run.halts,
            max_steps=limits.max_steps,
            max_tool_calls=limits.max_tool_calls,
            max_spend_usd=limits.max_spend_usd,
            max_elapsed_ms=round(limits.max_elapsed_s * 1000),
            scope=encode_scope(scope) if scope is not None else None,
            worker_id=worker_id,
            now=now,
        )
        if row is None:
            raise _Refused("a follow-up took over")
        if await sql.keep_thread.value(connection, run_id=run_id) is None:
            raise _Refused("its thread has another live run")
        body = encode({"by": by.id, "previous_reason": run.halt_reason.value, "reason": reason})
        await sql.trace_event.run(connection, run_id=run_id, kind="run.continued", body=body, now=now)
        why = reason or run.halt_reason.value
        await endings.audit(connection, run_id, None, "continue", by, now, allowed=True, why=why)
        after = run_of(parsed(row))
        return Continued(after, await self._woken(connection, after))

    async def _woken(self, connection: "Connection", run: Run) -> Fence | None:
        """Hint at a run that has just become claimable; return its fence when it was claimed in the same commit."""
        await self._hint(connection, endings.OUTBOX, run.id)
        if run.claim_token is not None:
            return Fence(run.id, run.claim_token)
        await self._hint(connection, endings.WORK, run.id)
        return None

    async def _hint(self, connection: "Connection", channel: str, run_id: str) -> None:
        await endings.hint(connection, channel, run_id, allowed=self._database.hints)

    # ---- reads ------------------------------------------------------------------------------------------------------

    async def run(self, run_id: str) -> Run | None:
        """Return a run by id, or None."""
        async with self._database.connection() as connection:
            row = await sql.read_run.value(connection, run_id=run_id)
        return None if row is None else run_of(parsed(row))

    async def runs(
        self, *, team_id: str | None, user_id: str | None, limit: int, states: Sequence[str] = ()
    ) -> list[Run]:
        """List runs, newest first."""
        async with self._database.connection() as connection:
            rows = await sql.list_runs.rows(
                connection, team_id=team_id, user_id=user_id, states=list(states), room=limit
            )
        return [run_of(parsed(row["run"])) for row in rows]

    async def thread_runs(self, team_id: str, channel_id: str, thread_ts: str, user_id: str) -> list[Run]:
        """List a person's runs of a thread, newest first."""
        async with self._database.connection() as connection:
            rows = await sql.list_thread_runs.rows(
                connection, team_id=team_id, channel_id=channel_id, thread_ts=thread_ts, user_id=user_id
            )
        return [run_of(parsed(row["run"])) for row in rows]

    async def pending(self, *, run_id: str | None = None, limit: int = 100) -> list[tuple[Suspension, Run]]:
        """List open suspensions, oldest first."""
        async with self._database.connection() as connection:
            rows = await sql.list_pending.rows(connection, run_id=run_id, room=limit)
        return [_pair(row) for row in rows]

    async def show(self, run_id: str) -> RunView | None:
        """Return a run with everything that hangs on it."""
        async with self._database.connection() as connection:
            rows = await sql.load_run.rows(
                connection, run_id=run_id, claim_token=None, now=self._database.now(), after=0, long_from=None
            )
        return view_of(rows) if rows else None


class _Refused(Exception):
    """A continue that is refused: rolls back what it began; *why* goes into the audit."""

    def __init__(self, why: str) -> None:
        self.why = why
        super().__init__(why)


async def _locked(connection: "Connection", run_id: str) -> Run | None:
    row = await sql.lock_run.value(connection, run_id=run_id)
    return None if row is None else run_of(parsed(row))


def _decided(row: asyncpg.Record, votes: Sequence[str]) -> Decided:
    decided, after = suspension_of(parsed(row["suspension"]), votes), run_of(parsed(row["run"]))
    claimed = None
    if row["was"] == RunState.SUSPENDED.value and after.claim_token is not None:
        claimed = Fence(after.id, after.claim_token)
    return Decided(None, decided, after, claimed=claimed)


def _pair(row: asyncpg.Record) -> tuple[Suspension, Run]:
    return suspension_of(parsed(row["suspension"]), row["votes"]), run_of(parsed(row["run"]))


def _thread(letter: Letter) -> dict[str, object]:
    return {
        "team_id": letter.team_id,
        "channel_id": letter.channel_id,
        "thread_ts": letter.thread_ts,
        "user_id": letter.user_id,
    }
