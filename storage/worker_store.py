"""The moves of a claim's holder (core.ports.WorkerStore) on PostgreSQL.

Every move begins with one fenced statement on runs (id, claim_token, state) that also adds its batch, so that the lock
order is run, suspension, action, outbox everywhere. ``step``, ``intend`` and ``conclude`` are that one statement and
nothing else. The failure it can cause: a move that skipped the fence would let a reaped worker write over its
successor.
"""

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from core.errors import ClaimLost, InvariantBroken, NewsArrived
from core.ports import Alert, Batch, Claimed, Closing, Fence, NewAction, NewSuspension, Outcome, Settlement
from core.run import HaltReason, RunView
from storage import endings, sql
from storage.commits import SharedCommits
from storage.database import Database, mapped_errors
from storage.kept import KeptConversations
from storage.rows import batch_columns, clean, cleaned, encode, encode_arguments, parsed, run_of, suspension_of, view_of

if TYPE_CHECKING:
    from storage.database import Connection, Pool

# Fewer messages than this are decoded sooner than they are read a second time.
LONG_FROM = 16


class PgWorkerStore:
    """core.ports.WorkerStore. *now*: the time of a test; None: PostgreSQL's own. *hints*: NOTIFY may be used.

    *per_person*: how many runs of one person are worked on at once, over all processes; None: any number. *long_from*:
    how many messages before an approved call a late load leaves unread; fewer are read at once.
    """

    def __init__(
        self,
        pool: "Pool",
        *,
        now: Callable[[], datetime] | None = None,
        hints: bool = True,
        per_person: int | None = None,
        long_from: int = LONG_FROM,
    ) -> None:
        self._database = Database(pool, now, hints=hints)
        self._long_from = long_from
        self._per_person = per_person
        # Up to whom the last claim looked through those who wait.
        self._walked = ""
        self._commits = SharedCommits(pool, self._database.now)
        self._kept = KeptConversations()

    # ---- claims -----------------------------------------------------------------------------------------------------

    async def claim(self, worker_id: str, room: int) -> list[Claimed]:
        """Claim up to *room* unclaimed runs, longest waiting first; one person's burst counts after others' firsts."""
        if room <= 0:
            return []
        async with self._database.connection() as connection:
            rows = await sql.claim_runs.rows(
                connection,
                worker_id=worker_id,
                room=room,
                per_person=self._per_person,
                walked=self._walked,
                now=self._database.now(),
            )
        self._walked = rows[0]["walked"] or ""
        return [_claimed(row["run"]) for row in rows if row["run"] is not None]

    async def claim_one(self, worker_id: str, run_id: str) -> Claimed | None:
        """Claim that very run, if it is running and unclaimed."""
        async with self._database.connection() as connection:
            row = await sql.claim_run.value(connection, worker_id=worker_id, run_id=run_id, now=self._database.now())
        return None if row is None else _claimed(row)

    async def claims_of(self, worker_id: str) -> list[Fence]:
        """List the claims that this worker holds."""
        async with self._database.connection() as connection:
            rows = await sql.list_claims.rows(connection, worker_id=worker_id)
        return [Fence(row["id"], str(row["claim_token"])) for row in rows]

    async def to_be_alone(self, limit: int) -> list[str]:
        """List unclaimed running runs that only a process of their own may claim."""
        async with self._database.connection() as connection:
            rows = await sql.list_runs_to_be_alone.rows(connection, room=limit)
        return [row["id"] for row in rows]

    async def load(self, fence: Fence, *, late: bool = False) -> RunView:
        """Read everything that the next act depends on, as of one moment, incl. the database's clock; *late*: except
        what comes before an approved call, where PostgreSQL finds every message as it was encoded."""
        kept = list(self._kept.of(fence.run_id))  # as it is now: a late answer may lengthen it meanwhile
        async with self._database.connection() as connection:
            rows = await sql.load_run.rows(
                connection,
                run_id=fence.run_id,
                claim_token=fence.claim_token,
                now=self._database.now(),
                after=len(kept),
                long_from=self._long_from if late and not kept else None,
            )
        if not rows:
            self._kept.drop(fence.run_id)
            raise ClaimLost(fence.run_id)
        view = view_of(rows, kept)
        if not view.unread:
            self._kept.read(fence.run_id, view.messages)
        return view

    async def release(self, fence: Fence) -> None:
        """running (claimed) -> running (unclaimed); no error when the claim is gone already."""
        async with self._database.transaction() as connection:
            released = await sql.release_run.value(
                connection, run_id=fence.run_id, claim_token=fence.claim_token, now=self._database.now()
            )
            if released is not None:
                await endings.hint(connection, endings.WORK, fence.run_id, allowed=self._database.hints)
        self._kept.drop(fence.run_id)

    # ---- the step path: one statement -------------------------------------------------------------------------------

    async def step(self, fence: Fence, batch: Batch) -> int:
        """Append *batch* in one statement, one commit; a model's message sets crashes to 0. Return the news count."""
        with mapped_errors():
            news = await self._commits.step(fence, _columns(batch))
        if news is None:
            async with self._database.connection() as connection:
                raise await _conflict(connection, fence, batch) or _impossible(fence)
        self._kept.add(fence.run_id, batch.messages)
        return int(news)

    async def intend(self, fence: Fence, batch: Batch, action: NewAction) -> None:
        """Record the action intended, and *batch*. NewsArrived when a stop was requested: nothing written."""
        arguments = (
            fence.run_id,
            fence.claim_token,
            *_columns(batch),
            action.call.seq,
            action.call.position,
            action.arguments_digest,
            action.idempotency_key,
            action.tool,
            action.tool_version,
            encode_arguments(action.arguments),
            action.timeout_s,
            action.suspension_id,
            self._database.now(),
        )
        with mapped_errors():
            news = await self._database.lending.fetchval(sql.intend_action.text, *arguments)
        if news is None:
            async with self._database.connection() as connection:
                raise await _conflict(connection, fence, batch, stoppable=True) or _impossible(fence)
        self._kept.add(fence.run_id, batch.messages)

    async def conclude(
        self, fence: Fence, batch: Batch, outcomes: Sequence[Outcome] = (), settlements: Sequence[Settlement] = ()
    ) -> None:
        """Record outcomes, results (in *batch*) and what the cards show, in one commit."""
        async with self._database.connection() as connection:
            await self._conclude(connection, fence, batch, outcomes, settlements)
        self._kept.add(fence.run_id, batch.messages)

    async def _conclude(
        self,
        connection: "Connection",
        fence: Fence,
        batch: Batch,
        outcomes: Sequence[Outcome],
        settlements: Sequence[Settlement],
    ) -> None:
        news = await connection.fetchval(
            sql.conclude_calls.text,
            fence.run_id,
            fence.claim_token,
            *_columns(batch),
            [outcome.call.seq for outcome in outcomes],
            [outcome.call.position for outcome in outcomes],
            [outcome.arguments_digest for outcome in outcomes],
            [outcome.state.value for outcome in outcomes],
            [cleaned(outcome.result) for outcome in outcomes],
            [settlement.suspension_id for settlement in settlements],
            [settlement.kind for settlement in settlements],
            [clean(settlement.text) for settlement in settlements],
            [cleaned(settlement.reply) for settlement in settlements],
            self._database.now(),
        )
        if news is None:
            raise await _conflict(connection, fence, batch) or _impossible(fence)

    # ---- waiting for people -----------------------------------------------------------------------------------------

    async def suspend(
        self, fence: Fence, batch: Batch, seen_news: int, new: Sequence[NewSuspension], *, stay_running: bool = False
    ) -> None:
        """running -> suspended with a card each (replacing older suspensions where named)."""
        now = self._database.now()
        async with self._database.transaction() as connection:
            await self._fenced(connection, fence, batch, seen_news)
            for suspension in new:
                await self._open(connection, fence.run_id, suspension, now)
            if not stay_running:
                await self._park(connection, fence)
        self._kept.add(fence.run_id, batch.messages)

    async def _open(self, connection: "Connection", run_id: str, new: NewSuspension, now: datetime | None) -> None:
        if new.replaces is not None:
            replaced = await sql.replace_suspension.value(
                connection, run_id=run_id, id=new.replaces, replaced_by=new.id, now=now
            )
            if replaced is None:
                raise InvariantBroken(f"suspension {new.replaces} cannot be replaced by {new.id}")
        await sql.open_suspension.run(
            connection,
            id=new.id,
            run_id=run_id,
            token=new.token,
            call_seq=new.call.seq,
            call_position=new.call.position,
            kind=new.kind.value,
            tool=new.tool,
            tool_version=new.tool_version,
            arguments=encode_arguments(new.arguments),
            preview=encode(new.preview.model_dump(mode="json")),
            digest=new.digest,
            policy=new.policy.model_dump_json(),
            asked_by=new.asked_by,
            ttl_s=new.ttl_s,
            replaces=new.replaces,
            note=cleaned(new.note),
            channel_id=new.policy.channel,
            now=now,
        )
        if new.alert is not None:
            alert = Alert(f"suspension:{new.id}", f"Run {run_id}: {new.preview.title}", new.alert)
            await endings.owe_alert(connection, run_id, alert, now)

    async def rearm(
        self,
        fence: Fence,
        batch: Batch,
        seen_news: int,
        suspension_id: str,
        token: str,
        note: str,
        *,
        stay_running: bool = False,
    ) -> bool:
        """Open the same approved suspension again; False: it is past its expiry and became expired instead."""
        now = self._database.now()
        async with self._database.transaction() as connection:
            await self._fenced(connection, fence, batch, seen_news)
            status = await sql.rearm_suspension.value(
                connection, run_id=fence.run_id, id=suspension_id, token=token, note=clean(note), now=now
            )
            if status is None:
                raise InvariantBroken(f"suspension {suspension_id} is not approved, so it cannot be opened again")
            if status != "open":
                await self._say_expired(connection, suspension_id, now)
            elif not stay_running:
                await self._park(connection, fence)
        self._kept.add(fence.run_id, batch.messages)
        return bool(status == "open")

    async def _say_expired(self, connection: "Connection", suspension_id: str, now: datetime | None) -> None:
        row = await sql.read_suspension.row(connection, suspension_id=suspension_id, now=now)
        assert row is not None
        suspension, run = suspension_of(parsed(row["suspension"]), row["votes"]), run_of(parsed(row["run"]))
        await endings.owe_expiry_notice(connection, run, suspension, now)

    async def wait(self, fence: Fence, batch: Batch, seen_news: int) -> None:
        """running -> suspended; only undecided calls left. NewsArrived: nothing written."""
        async with self._database.transaction() as connection:
            await self._fenced(connection, fence, batch, seen_news)
            await self._park(connection, fence)
        self._kept.add(fence.run_id, batch.messages)

    async def supersede_open(self, fence: Fence, batch: Batch, seen_news: int) -> None:
        """Close the run's open approvals as superseded (cards settled); it stays running. NewsArrived: nothing
        written."""
        async with self._database.transaction() as connection:
            await self._fenced(connection, fence, batch, seen_news)
            await sql.supersede_suspensions.rows(connection, run_id=fence.run_id, now=self._database.now())
        self._kept.add(fence.run_id, batch.messages)

    async def _park(self, connection: "Connection", fence: Fence) -> None:
        """End the claim on a run that waits for people. The fence before has locked the run and looked at its news."""
        found = await sql.look_before_waiting.row(connection, run_id=fence.run_id)
        assert found is not None
        if not found["approvals"] and not found["outcomes"]:
            raise InvariantBroken(f"run {fence.run_id} would wait for nobody")
        moved = await sql.suspend_run.value(
            connection, run_id=fence.run_id, claim_token=fence.claim_token, now=self._database.now()
        )
        if moved is None:
            raise ClaimLost(fence.run_id)

    # ---- endings ----------------------------------------------------------------------------------------------------

    async def answer(self, fence: Fence, batch: Batch, seen_news: int, text: str) -> None:
        """running -> answered, the answer into the outbox. NewsArrived when news > seen_news: nothing written."""
        async with self._database.connection() as connection:
            answered = await connection.fetchval(
                sql.answer_run.text,
                fence.run_id,
                fence.claim_token,
                *_columns(batch),
                seen_news,
                encode({"text": text}),
                self._database.now(),
            )
            if answered is None:
                why = await _conflict(connection, fence, batch, seen_news=seen_news, stoppable=True)
                # Nothing else explains it: mail is left that is not in the conversation.
                raise NewsArrived(fence.run_id) if why is None else why
        self._kept.drop(fence.run_id)

    async def halt(
        self,
        fence: Fence,
        batch: Batch,
        reason: HaltReason,
        closing: Closing,
        settlements: Sequence[Settlement] = (),
        outcomes: Sequence[Outcome] = (),
    ) -> None:
        """running -> halted, with everything that an ending does."""
        now = self._database.now()
        async with self._database.transaction() as connection:
            await self._conclude(connection, fence, batch, outcomes, settlements)
            row = await sql.halt_run.value(
                connection,
                run_id=fence.run_id,
                claim_token=fence.claim_token,
                reason=reason.value,
                detail=clean(closing.detail),
                next_worst_usd=closing.next_worst_usd,
                now=now,
            )
            if row is None:
                raise ClaimLost(fence.run_id)
            run = run_of(parsed(row))
            await endings.close(connection, run, now, stopped="the run was halted")
            await endings.owe_card(connection, run, "halt", str(run.halts), now)
            if closing.alert is not None:
                await endings.owe_alert(connection, run.id, closing.alert, now)
        self._kept.drop(fence.run_id)

    async def fail(
        self,
        fence: Fence,
        batch: Batch,
        reason: str,
        closing: Closing,
        settlements: Sequence[Settlement] = (),
        outcomes: Sequence[Outcome] = (),
    ) -> None:
        """running -> failed, with everything that an ending does, and an alert in any case."""
        now = self._database.now()
        async with self._database.transaction() as connection:
            await self._conclude(connection, fence, batch, outcomes, settlements)
            failed = await endings.fail(
                connection, fence.run_id, fence.claim_token, reason, closing.detail, closing.alert, now
            )
            if failed is None:
                raise ClaimLost(fence.run_id)
        self._kept.drop(fence.run_id)

    async def _fenced(self, connection: "Connection", fence: Fence, batch: Batch, seen_news: int) -> None:
        """Begin a longer move: add *batch* under the fence, if there is no news and nobody asked to stop."""
        news = await connection.fetchval(
            sql.step_run.text,
            fence.run_id,
            fence.claim_token,
            *_columns(batch),
            seen_news,
            True,
            self._database.now(),
        )
        if news is None:
            raise await _conflict(connection, fence, batch, seen_news=seen_news, stoppable=True) or _impossible(fence)


def _claimed(row: str) -> Claimed:
    run = run_of(parsed(row))
    assert run.claim_token is not None
    return Claimed(Fence(run.id, run.claim_token), run)


def _columns(batch: Batch) -> tuple[object, ...]:
    for expected, stored in enumerate(batch.messages, start=batch.messages[0].seq if batch.messages else 0):
        if stored.seq != expected:
            raise InvariantBroken(f"a batch has seq {stored.seq} where {expected} should be")
    return batch_columns(batch)


async def _conflict(
    connection: "Connection", fence: Fence, batch: Batch, *, seen_news: int | None = None, stoppable: bool = False
) -> Exception | None:
    """Return why a guarded write of the claim's holder found no row; None: something else than claim, seq and news."""
    row = await sql.explain_conflict.row(connection, run_id=fence.run_id, claim_token=fence.claim_token)
    if row is None or not row["held"]:
        return ClaimLost(fence.run_id)
    if batch.messages and row["next_seq"] != batch.messages[0].seq:
        return InvariantBroken(f"run {fence.run_id} continues at seq {row['next_seq']}, not {batch.messages[0].seq}")
    if (seen_news is not None and row["news"] > seen_news) or (stoppable and row["stop_requested"] is not None):
        return NewsArrived(fence.run_id)
    return None


def _impossible(fence: Fence) -> Exception:
    return InvariantBroken(f"run {fence.run_id}: an action is not in the state that this move needs")
