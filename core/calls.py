"""The normal path of a turn's calls: validate, permit, run reads, guard, ask a person, execute writes.

Decides: which calls run at once and which need a person. Does not: act on a decision (resume does). The failure it can
cause: an effect that begins without its action committed first could never be found again after a crash.
"""

import asyncio
import hashlib
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import orjson
from pydantic import BaseModel, ValidationError

from core.agent import Agent, policy_problems
from core.approvals import Undigestible, arguments_digest, canonical, digest_of, idempotency_key
from core.asleep import asleep_s
from core.conversation import error_text, result_text
from core.errors import CouldNotCheck, NewsArrived, NoSuchGroup, ToolFailed, shortened, words_of
from core.foreign import asked
from core.holder import PATIENCE_S, Holder, checked, of_kind, resolved
from core.next_act import OpenCall, Wait, instructed, next_act
from core.ports import Directory, Names, NewAction, NewSuspension, Outcome, Settlement, TraceEntry
from core.results import could_not_check, gist, not_permitted, reason_of, storable
from core.run import ActionState, RunView, Suspension, SuspensionKind, SuspensionStatus
from core.tools import Approval, Preview, Refused, Scope, Tool, ToolContext, User, UserGroup

# The effect starts within this many seconds of sending the commit that intends it; else it is intended anew, so that
# "did not happen" can be believed after intended_at + timeout + 5 s.
START_WITHIN_S = 2.0
# Nobody reads more than this before a click, and every page of it is rendered again at each turn of a page.
PREVIEW_LIMIT = 300_000
# What comes back from a row as it went in; not so a fraction (-0.0 as 0, 1.0 as 1) or a mapping (its keys sorted).
_FLAT = frozenset({str, int, bool, type(None)})
# Stored scope counts as the one of this very start while it is no older than this.
JUST_RESOLVED_S = 10.0


@dataclass(frozen=True, slots=True)
class Ready:
    """A call whose tool is known and whose arguments are valid. *arguments*: as they are shown, digested, executed.
    *digest*: ``arguments_digest`` of them."""

    call: OpenCall
    tool: Tool[Any]
    args: BaseModel
    arguments: dict[str, Any]
    digest: str


@dataclass(frozen=True, slots=True)
class Ask:
    """A ready call that needs a person, with what the person will see."""

    ready: Ready
    policy: Approval
    preview: Preview
    digest: str


def ready(agent: Agent, call: OpenCall) -> Ready | str:
    """Return the call ready to run, or the error result's text."""
    tool = agent.tool(call.call.tool)
    if tool is None:
        known = ", ".join(t.name for t in agent.tools)
        return error_text("unknown_tool", f"there is no tool {call.call.tool[:100]!r}; the tools are: {known}")
    if call.call.malformed is not None and call.edited_by is None:
        return error_text("invalid_arguments", "the arguments are not a JSON object; send them as one")
    try:
        asked_for = canonical(call.arguments)
        # What is shown, digested and stored must load again as the same thing after a decision.
        given = tool.arguments_model.model_validate(call.arguments)
        arguments: dict[str, Any] = given.model_dump(mode="json", by_alias=True, round_trip=True)
        executed = canonical(arguments)
        kept = arguments
        if any(type(value) is not str for value in arguments.values()):
            kept = orjson.loads(executed)
            canonical(kept)  # a whole fraction beyond 2^53 would come back as an integer that is none
        # Flat arguments that came as they go would only give the same again; others may share parts with the message.
        same = executed == asked_for and all(type(value) in _FLAT for value in arguments.values())
        args = given if same else tool.arguments_model.model_validate(kept)
        if args != given:
            return error_text("invalid_arguments", "the tool's argument model does not take back what it gives")
    except ValidationError as error:
        problems = [f"{'.'.join(map(str, e['loc'])) or 'arguments'}: {e['msg']}" for e in error.errors()]
        return error_text("invalid_arguments", "; ".join(problems))
    except Undigestible as error:
        return error_text(
            "invalid_arguments",
            f"a value cannot be stored exactly ({error}): numbers must be finite and within 2^53, text valid Unicode",
        )
    except Exception as error:  # noqa: BLE001  an engineer's own validators may raise anything
        return error_text("invalid_arguments", words_of(error))
    return Ready(call, tool, args, arguments, hashlib.sha256(executed).hexdigest())


class Calls:
    """The calls of one claimed run."""

    def __init__(self, holder: Holder, agent: Agent, directory: Directory, names: Names, lifetime: timedelta) -> None:
        self.holder = holder
        self.agent = agent
        self.directory = directory
        self.names = names
        self.lifetime = lifetime
        self.in_flight: Tool[Any] | None = None
        self._reads_on: Scope | None = None

    # -- scope ------------------------------------------------------------------------------------------------

    async def fresh_scope(self, patience_s: float) -> Scope:
        """Resolve the owner's scope now. Raises: CouldNotCheck."""
        scope = await resolved(self.holder.clock, self.agent, self.holder.run.owner, patience_s)
        self.holder.new_scope = scope
        self._reads_on = scope
        return scope

    async def _scope_for_reads(self) -> Scope:
        if self._reads_on is not None:
            return self._reads_on
        run = self.holder.run
        if run.step <= 1 and run.crashes == 0 and run.continuations == 0:
            age = self.holder.now - run.scope_resolved_at
            if age.total_seconds() <= JUST_RESOLVED_S:
                self._reads_on = run.scope  # start resolved it a moment ago
                return run.scope
        return await self.fresh_scope(PATIENCE_S)

    def context(
        self, ready: Ready, scope: Scope, *, confirmed: bool = False, approved_by: tuple[User, ...] = ()
    ) -> ToolContext:
        """Return what the tool gets besides its arguments."""
        run = self.holder.run
        key = ready.call.key
        return ToolContext(
            run_id=run.id,
            call_id=key.call_id(run.id),
            idempotency_key=idempotency_key(run.id, key, ready.digest),
            user=run.owner,
            scope=scope,
            confirmed=confirmed,
            approved_by=approved_by,
        )

    # -- the normal path --------------------------------------------------------------------------------------

    async def consider(self, calls: tuple[OpenCall, ...]) -> None:
        """Run what needs nobody, in order; then suspend what needs a person, together, in one commit.

        Raises: ClaimLost; NewsArrived (results of reads are kept for the next commit).
        """
        asks: list[Ask] = []
        for call in calls:
            if self.holder.draining:
                return  # nothing new starts; who claims the run next goes on here
            prepared = ready(self.agent, call)
            if isinstance(prepared, str):
                self._refuse(call, prepared, "invalid")
            elif not prepared.tool.writes:
                await self._read(prepared)
            elif not await self._write_or_ask(prepared, asks):
                return  # what happened must be known before anything that comes after it
        if asks and instructed(self.holder.view):
            # A new instruction came while this turn ran: it replaces what would now be asked.
            for ask in asks:
                replaced = error_text("superseded", "not executed, replaced by a new instruction")
                self._refuse(ask.ready.call, replaced, "superseded")
        elif asks and not self.holder.draining:
            await self._suspend(asks)

    def _refuse(self, call: OpenCall, text: str, why: str) -> None:
        self.holder.result(call, text)
        self.holder.note("refused", tool=call.call.tool, why=why)

    async def _read(self, prepared: Ready) -> None:
        tool, call = prepared.tool, prepared.call
        begun = self.holder.clock.monotonic()
        self.in_flight = tool
        try:
            scope = await self._scope_for_reads()
            if not await self._permits(prepared, scope, PATIENCE_S):
                self._refuse(call, not_permitted(tool.name), "not permitted")
                return
            ctx = self.context(prepared, scope)
            text, outcome = result_text(await asked(lambda: tool.execute(prepared.args, ctx), tool.timeout_s)), "ok"
        except CouldNotCheck as error:
            text, outcome = could_not_check(error), "could not check"
        except Exception as error:  # noqa: BLE001  from a read, any exception is an error result
            text, outcome = error_text("tool_failed", words_of(error)), "failed"
        finally:
            self.in_flight = None
        spent = round((self.holder.clock.monotonic() - begun) * 1000)
        self.holder.result(call, text)
        self.holder.note("read", ms=spent, tool=tool.name, outcome=outcome)

    async def _write_or_ask(self, prepared: Ready, asks: list[Ask]) -> bool:
        """Check a write the way the normal path does; execute it, or add it to *asks*. False: outcome unknown."""
        call = prepared.call
        try:
            scope = await self.fresh_scope(PATIENCE_S)
            if not await self._permits(prepared, scope, PATIENCE_S):
                self._refuse(call, not_permitted(prepared.tool.name), "not permitted")
                return True
            ctx = self.context(prepared, scope)
            policy = await self.policy(prepared, ctx, PATIENCE_S)
            refused = await self.guard(prepared, ctx, PATIENCE_S)
            if refused is not None:
                self._refuse(call, error_text("refused", refused.reason), "guard")
                return True
            if policy is not None:
                preview, digest = await self.preview(prepared, ctx, PATIENCE_S)
                asks.append(Ask(prepared, policy, preview, digest))
                return True
        except CouldNotCheck as error:
            self._refuse(call, could_not_check(error), "could not check")
            return True
        except (ToolFailed, Undigestible) as error:
            self._refuse(call, error_text("tool_failed", words_of(error)), "tool")
            return True
        return await self.carry_out(prepared, ctx, None)

    async def _permits(self, prepared: Ready, scope: Scope, patience_s: float) -> bool:
        async def ask() -> bool:
            return of_kind(prepared.tool.permitted(prepared.args, scope), bool)

        return await checked(self.holder.clock, "your permissions", ask, patience_s)

    async def permits(self, prepared: Ready, scope: Scope) -> bool:
        """Say whether the pending call is still permitted, without retries. Raises: CouldNotCheck."""
        return await self._permits(prepared, scope, 0.0)

    async def policy(self, prepared: Ready, ctx: ToolContext, patience_s: float) -> Approval | None:
        """Return who must approve, computed by the tool now.

        Raises: CouldNotCheck; ToolFailed when the policy could never be satisfied.
        """

        async def ask() -> Approval | None:
            policy = await prepared.tool.policy(prepared.args, ctx)
            return policy if policy is None else of_kind(policy, Approval)

        policy = await checked(self.holder.clock, "who must approve this", ask, patience_s)
        requesters = frozenset({self.holder.run.owner.user_id, prepared.call.edited_by or ""})
        if policy is not None and (wrong := policy_problems(policy, requesters)):
            raise ToolFailed(f"its approval policy cannot work: {'; '.join(wrong)}")
        if policy is not None and isinstance(policy.by, UserGroup):
            await self._group_exists(policy.by.handle, patience_s)
        return policy

    async def _group_exists(self, handle: str, patience_s: float) -> None:
        """A card that names a group of nobody would wait in vain. Raises: CouldNotCheck, ToolFailed."""

        async def ask() -> None:
            try:
                await self.directory.in_group(handle, self.holder.run.owner.user_id)
            except NoSuchGroup as error:
                raise ToolFailed(f"its approval policy cannot work: {error.what}: {error.why}") from error

        await checked(self.holder.clock, f"the user group @{handle}", ask, patience_s)

    async def guard(self, prepared: Ready, ctx: ToolContext, patience_s: float) -> Refused | None:
        """Return why the world does not permit the action now. Raises: CouldNotCheck, ToolFailed."""

        async def ask() -> Refused | None:
            refused = await prepared.tool.guard(prepared.args, ctx)
            return refused if refused is None else Refused(reason=shortened(of_kind(refused, Refused).reason))

        return await checked(self.holder.clock, "the guard", ask, patience_s)

    async def preview(self, prepared: Ready, ctx: ToolContext, patience_s: float) -> tuple[Preview, str]:
        """Render the preview and its digest. Raises: CouldNotCheck, ToolFailed, Undigestible."""

        async def ask() -> Preview:
            return of_kind(await prepared.tool.preview(prepared.args, ctx), Preview)

        preview = await checked(self.holder.clock, "the preview", ask, patience_s)
        try:
            text = preview.model_dump_json(warnings=False)
            if len(text) > PREVIEW_LIMIT:
                raise ToolFailed(
                    f"what it would do is too large for a person to look at ({len(text)} characters); do it in parts"
                )
            # A copy with other fields, or one made past its checks, may be none that a row gives back.
            preview = Preview.model_validate_json(text)
        except ValueError as error:
            raise Undigestible(f"what it would do cannot be shown: {words_of(error)}") from error
        return preview, digest_of(prepared.tool.name, prepared.tool.version, prepared.arguments, preview)

    # -- asking a person --------------------------------------------------------------------------------------

    def suspension(
        self,
        ask: Ask,
        *,
        kind: SuspensionKind = SuspensionKind.APPROVAL,
        replaces: str | None = None,
        note: str | None = None,
        alert: str | None = None,
    ) -> NewSuspension:
        """Return the suspension that shows *ask* to a person."""
        run = self.holder.run
        return NewSuspension(
            id=self.names.token(run.id),
            token=self.names.token(run.id),
            call=ask.ready.call.key,
            kind=kind,
            tool=ask.ready.tool.name,
            tool_version=ask.ready.tool.version,
            arguments=ask.ready.arguments,
            preview=ask.preview,
            digest=ask.digest,
            policy=ask.policy,
            asked_by=ask.ready.call.edited_by or run.owner.user_id,
            ttl_s=self.lifetime.total_seconds(),
            replaces=replaces,
            note=note,
            alert=alert,
        )

    async def _suspend(self, asks: list[Ask]) -> None:
        new = [self.suspension(ask, replaces=ask.ready.call.replaces, note=_edited_note(ask)) for ask in asks]
        notes = [
            TraceEntry("suspended", {"tool": ask.ready.tool.name, "digest": ask.digest[:8], "title": ask.preview.title})
            for ask in asks
        ]
        await self.open(new, *notes)

    async def open(self, new: list[NewSuspension], *notes: TraceEntry) -> None:
        """Suspend on *new*; stay running while a sibling still has something to do. Raises: NewsArrived, ClaimLost."""
        holder = self.holder
        stay = not isinstance(next_act(self._supposing(new), self.lifetime), Wait)
        seen = holder.run.news
        await holder.commit(
            holder.batch(doing="waiting for a decision", notes=notes),
            lambda b: holder.store.suspend(holder.fence, b, seen, new, stay_running=stay),
        )
        holder.stale = True
        holder.ended = not stay

    def _supposing(self, new: list[NewSuspension]) -> RunView:
        """Return the view as it would be with *new* opened: what else would there be to do?"""
        view = self.holder.view
        opened = [
            Suspension(
                id=n.id,
                run_id=view.run.id,
                call=n.call,
                number=1 + sum(s.call == n.call for s in view.suspensions),
                kind=n.kind,
                status=SuspensionStatus.OPEN,
                token=n.token,
                tool=n.tool,
                tool_version=n.tool_version,
                arguments=n.arguments,
                preview={},
                digest=n.digest,
                policy=n.policy,
                asked_by=n.asked_by,
                opened_at=view.now,
                expires_at=view.now,
            )
            for n in new
        ]
        return replace(view, suspensions=(*view.suspensions, *opened))

    # -- executing --------------------------------------------------------------------------------------------

    async def carry_out(
        self, prepared: Ready, ctx: ToolContext, approval: Suspension | None, *, in_doubt: bool = False
    ) -> bool:
        """Intend, execute, and record how it ended. False: the outcome is unknown and recorded as such, without a
        result; the next act reconciles it. *in_doubt*: an earlier attempt may have had its effect, so that no failure
        of this one can say that nothing happened.

        Raises: NewsArrived when a stop came first (nothing is left intended); ClaimLost; CancelledError with the
        outcome recorded.
        """
        holder, tool = self.holder, prepared.tool
        action = NewAction(
            call=prepared.call.key,
            arguments_digest=prepared.digest,
            idempotency_key=ctx.idempotency_key,
            tool=tool.name,
            tool_version=tool.version,
            arguments=prepared.arguments,
            timeout_s=tool.timeout_s,
            suspension_id=approval.id if approval else None,
        )
        await self._intend(action, in_doubt=in_doubt)
        holder.stale = True
        self.in_flight = tool
        begun = holder.clock.monotonic()
        try:
            value = await asked(lambda: tool.execute(prepared.args, ctx), tool.timeout_s)
        except ToolFailed as error:
            if in_doubt:
                await self._not_known(prepared, approval, words_of(error), begun)
                return False
            await self._ended(prepared, approval, ActionState.FAILED, error_text("tool_failed", error.reason), begun)
        except asyncio.CancelledError:
            await self._not_known(prepared, approval, "cut short by a shutdown", begun)
            raise
        except Exception as error:  # noqa: BLE001  from a write, any other exception is an unknown outcome
            await self._not_known(prepared, approval, words_of(error), begun)
            return False
        else:
            await self._ended(prepared, approval, ActionState.SUCCEEDED, storable(value), begun)
        finally:
            self.in_flight = None
        return True

    async def _intend(self, action: NewAction, *, in_doubt: bool) -> None:
        """Record the action as intended, so recently that its effect may start now."""
        holder = self.holder
        doing = self.agent.tool(action.tool)
        intended = False
        while True:
            sent = holder.clock.monotonic() + asleep_s()
            batch = holder.batch(doing=(doing and doing.doing) or f"running {action.tool}")
            try:
                await holder.commit(batch, lambda b: holder.store.intend(holder.fence, b, action))
            except (NewsArrived, asyncio.CancelledError):
                if not holder.unsure and (intended or holder.landed(batch)):
                    await self._never_began(action, in_doubt=in_doubt)
                raise
            intended = True
            if holder.clock.monotonic() + asleep_s() - sent <= START_WITHIN_S:
                return

    async def _never_began(self, action: NewAction, *, in_doubt: bool) -> None:
        """Take an intention back: its effect was never started, so there is nothing to find out about it."""
        holder = self.holder
        state = ActionState.UNKNOWN if in_doubt else ActionState.FAILED
        outcome = Outcome(action.call, action.arguments_digest, state)
        await holder.commit(holder.batch(), lambda b: holder.store.conclude(holder.fence, b, [outcome]))
        holder.stale = True

    async def _ended(
        self, prepared: Ready, approval: Suspension | None, state: ActionState, text: str, begun: float
    ) -> None:
        spent = round((self.holder.clock.monotonic() - begun) * 1000)
        self.holder.note("write", ms=spent, tool=prepared.tool.name, outcome=state.value)
        await self.conclude(prepared.call, prepared.arguments, state, text, (approval,))

    async def _not_known(self, prepared: Ready, approval: Suspension | None, why: str, begun: float) -> None:
        holder = self.holder
        spent = round((holder.clock.monotonic() - begun) * 1000)
        holder.note("write", ms=spent, tool=prepared.tool.name, outcome="unknown", why=why)
        outcome = Outcome(prepared.call.key, prepared.digest, ActionState.UNKNOWN)
        settled = (
            [Settlement(approval.id, "unknown", why, f"The outcome is not known yet ({why.rstrip('.')}). Checking.")]
            if approval
            else []
        )
        await holder.commit(
            holder.batch(doing="checking what happened"),
            lambda b: holder.store.conclude(holder.fence, b, [outcome], settled),
        )
        holder.stale = True

    async def conclude(
        self,
        call: OpenCall,
        arguments: dict[str, Any],
        state: ActionState,
        text: str,
        suspensions: tuple[Suspension | None, ...],
    ) -> None:
        """Record an action's outcome, the call's result and what its cards say, in one commit."""
        holder = self.holder
        holder.result(call, text)
        done = state is ActionState.SUCCEEDED
        settled = [
            Settlement(
                s.id,
                "done" if done else "failed",
                gist(text) if done else reason_of(text),
                None if done else f"It failed, nothing was done: {reason_of(text)}",
            )
            for s in suspensions
            if s is not None
        ]
        outcome = Outcome(call.key, arguments_digest(arguments), state, text)
        await holder.commit(
            holder.batch(doing="reading the result"),
            lambda b: holder.store.conclude(holder.fence, b, [outcome], settled),
        )
        holder.stale = True


def _edited_note(ask: Ask) -> str | None:
    return f"Edited by @{ask.ready.call.edited_by}" if ask.ready.call.edited_by else None
