"""The ways back in: after a confirmation, after a crash, after a stop; and the model-free pass of a lost run.

Decides: whether an approved call may execute on the world as it is now, what an open action's outcome was, what a
closed suspension tells the model. Does not: take decisions or reap. The failure it can cause: anything executed here
without the three checks, or while an earlier attempt may still be on its way, acts on a stale yes or twice.
"""

from collections import Counter
from dataclasses import replace
from datetime import timedelta
from typing import Any

from pydantic import JsonValue

from core.agent import Agent
from core.approvals import Clicker, Undigestible, Via, may_decide
from core.calls import Ask, Calls, Ready, not_permitted, ready, storable
from core.conversation import CallKey, error_text
from core.errors import CouldNotCheck, NewsArrived, ToolFailed
from core.holder import PATIENCE_S, asked, checked, people_of, words_of
from core.next_act import (
    Believe,
    Conclude,
    Execute,
    OpenCall,
    Reconcile,
    Refresh,
    Wait,
    latest,
    next_act,
    open_action,
    told_outcome,
)
from core.ports import Alert, Closing, NewSuspension, Outcome, Settlement, TraceEntry
from core.run import (
    Action,
    ActionState,
    FailReason,
    HaltReason,
    Run,
    RunView,
    Suspension,
    SuspensionKind,
    SuspensionStatus,
)
from core.tools import Approval, DidNotHappen, Happened, Preview, Scope, Tool, ToolContext, Unknown, UserGroup

# A dead worker's request may be on its way this long beyond the tool's own timeout.
IN_FLIGHT_MARGIN_S = 5.0
# A write that broke this often, each time certainly without an effect, is the model's to deal with.
TRIES = 3


class Changed(Exception):
    """What was approved is not what would execute now; carries the words for the card."""


class Resume:
    """The resumptions of one claimed run."""

    def __init__(self, calls: Calls, agent: Agent, lifetime: timedelta, operators: frozenset[str]) -> None:
        self.calls = calls
        self.holder = calls.holder
        self.agent = agent
        self.lifetime = lifetime
        self.operators = operators
        self._broke: Counter[CallKey] = Counter()

    # -- after confirmation -----------------------------------------------------------------------------------

    async def execute(self, act: Execute) -> None:
        """Check permission, preview, policy and guard on the world of this moment, all of them; then execute.

        Not permitted or guarded: its result. Changed: suspend again. Could not check: the same card again.
        """
        call, suspension = act.call, act.suspension
        prepared = ready(self.agent, call)
        if isinstance(prepared, str):
            await self._not_executed(call, suspension, prepared, "the tool changed while this was waiting")
            return
        try:
            scope = await self.calls.fresh_scope(0.0)
            if not await self.calls.permits(prepared, scope):
                words = "your permissions changed while this was waiting"
                await self._not_executed(call, suspension, not_permitted(prepared), words)
                return
            ctx = await self._confirmed(prepared, scope, suspension)
            await self._unchanged(prepared, scope, suspension)
            refused = await self.calls.guard(prepared, ctx, 0.0)
        except CouldNotCheck as error:
            await self._rearm(suspension, error)
            return
        except Changed as error:
            await self._again(prepared, suspension, str(error))
            return
        except (ToolFailed, Undigestible) as error:
            text = error_text("tool_failed", words_of(error))
            await self._not_executed(call, suspension, text, words_of(error))
            return
        if refused is not None:
            await self._not_executed(call, suspension, error_text("refused", refused.reason), refused.reason)
            return
        if self.holder.draining:
            return  # nothing new starts; who claims the run next checks again
        await self.calls.carry_out(prepared, ctx, suspension)

    async def _confirmed(self, prepared: Ready, scope: Scope, suspension: Suspension) -> ToolContext:
        """Return the context of a confirmed call, after holding the votes against the policy of now."""
        run = self.holder.run
        policy = await self.calls.policy(prepared, self.calls.context(prepared, scope), 0.0)
        approvers = []
        counted = 0
        for voter in suspension.votes or ((suspension.decided_by,) if suspension.decided_by else ()):
            if voter.startswith("operator:"):
                clicker = Clicker(voter, Via.CLI, None, operator=True)
            else:
                clicker = await self._facts(voter, policy or suspension.policy)
            if clicker.person is not None:
                approvers.append(clicker.person.user)
            asked_by = suspension.asked_by
            if policy is None or may_decide(policy, run.owner.user_id, asked_by, clicker, approve=True) is None:
                counted += 1
        if policy is not None and counted < policy.count:
            raise Changed("who must approve this changed while it was waiting")
        return self.calls.context(prepared, scope, confirmed=True, approved_by=tuple(approvers))

    async def _facts(self, user_id: str, policy: Approval) -> Clicker:
        run, directory, clock = self.holder.run, self.calls.directory, self.holder.clock

        async def ask() -> Clicker:
            person = await directory.person(run.team_id, user_id, fresh=True)
            here = policy.by == "anyone" and await directory.in_channel(run.channel_id, user_id, fresh=True)
            grouped = isinstance(policy.by, UserGroup) and await directory.in_group(
                policy.by.handle, user_id, fresh=True
            )
            return Clicker(user_id, Via.BUTTON, person, here, grouped, operator=user_id in self.operators)

        return await checked(clock, "who approved this", ask, 0.0)

    async def _unchanged(self, prepared: Ready, scope: Scope, suspension: Suspension) -> None:
        """Raise Changed unless the preview of now, rendered as it was for the card, has the approved digest."""
        _, digest = await self.calls.preview(prepared, self.calls.context(prepared, scope), 0.0)
        if digest != suspension.digest:
            raise Changed("it changed while it was waiting")

    async def refresh(self, act: Refresh) -> None:
        """Suspend again: the approval is too old to act on."""
        prepared = ready(self.agent, act.call)
        if isinstance(prepared, str):
            await self._not_executed(act.call, act.suspension, prepared, "the tool changed while this was waiting")
            return
        voters = people_of(act.suspension.votes or ((act.suspension.decided_by or "somebody"),))
        await self._again(prepared, act.suspension, f"approved by {voters}, not executed in time")

    async def _again(self, prepared: Ready, old: Suspension, why: str) -> None:
        """Open a new suspension of the same call in place of *old*, on the world of now."""
        try:
            scope = await self.calls.fresh_scope(0.0)
            ctx = self.calls.context(prepared, scope)
            policy = await self.calls.policy(prepared, ctx, 0.0)
            preview, digest = await self.calls.preview(prepared, ctx, 0.0)
        except CouldNotCheck as error:
            await self._rearm(old, error)
            return
        except (ToolFailed, Undigestible) as error:
            text = error_text("tool_failed", words_of(error))
            await self._not_executed(prepared.call, old, text, words_of(error))
            return
        ask = Ask(prepared, policy or old.policy, preview, digest)
        new = self.calls.suspension(ask, replaces=old.id, note=why)
        body = {"tool": prepared.tool.name, "why": why, "digest": digest[:8]}
        await self._suspend([new], TraceEntry("suspended again", body))

    async def _suspend(self, new: list[NewSuspension], *notes: TraceEntry) -> None:
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

    async def _rearm(self, suspension: Suspension, error: CouldNotCheck) -> None:
        """Open the same card again: nothing was done, the approver may press again."""
        holder = self.holder
        view = holder.view
        supposed = tuple(
            replace(s, status=SuspensionStatus.OPEN) if s.id == suspension.id else s for s in view.suspensions
        )
        stay = not isinstance(next_act(replace(view, suspensions=supposed), self.lifetime), Wait)
        said = TraceEntry("could not check", {"tool": suspension.tool, "what": error.what, "why": error.why})
        note = f"Could not check {error.what} ({error.why}). Nothing was done. Try again."
        token, seen = self.calls.names.token(holder.run.id), holder.run.news
        armed = await holder.commit(
            holder.batch(doing="waiting for a decision", notes=(said,)),
            lambda b: holder.store.rearm(holder.fence, b, seen, suspension.id, token, note, stay_running=stay),
        )
        holder.stale = True
        holder.ended = armed is True and not stay

    async def _not_executed(self, call: OpenCall, suspension: Suspension, text: str, words: str) -> None:
        holder = self.holder
        holder.result(call, text)
        holder.note("not executed", tool=suspension.tool, why=words)
        settled = [Settlement(suspension.id, "not_executed", words, f"Not executed: {words}.")]
        await holder.commit(
            holder.batch(doing="reading the result"), lambda b: holder.store.conclude(holder.fence, b, (), settled)
        )
        holder.stale = True

    def conclude(self, act: Conclude) -> None:
        """Give a closed suspension's result to the model, with the next commit."""
        s = act.suspension
        self.holder.result(act.call, closed_text(s))
        self.holder.note("not executed", tool=s.tool, why=s.status.value)

    # -- after a crash ----------------------------------------------------------------------------------------

    async def reconcile(self, act: Reconcile) -> None:
        """Find out what happened to an open action; ask a person when nobody can tell."""
        tool = self.agent.tool(act.action.tool)
        prepared = ready(self.agent, act.call)
        if tool is None or isinstance(prepared, str):
            await self._ask_person(act, None, "its tool is gone or no longer takes these arguments")
            return
        if _can_ask(tool):
            found = await self._found_out(prepared, act.action, PATIENCE_S)
            if isinstance(found, Happened):
                await self._happened(act.call, act.action, storable(found.result), (act.approval,))
            elif isinstance(found, DidNotHappen):
                await self._broke_off(act)
            else:
                await self._ask_person(act, prepared, found)
        elif tool.idempotent_by_key:
            await self._execute_again(act, prepared)
        else:
            await self._ask_person(act, prepared, "this tool cannot be asked")

    async def _found_out(self, prepared: Ready, action: Action, patience_s: float) -> Happened | DidNotHappen | str:
        """Ask the target until it can tell, for *patience_s* seconds; else why it cannot.

        "Did not happen" is believed only when the dead worker's request cannot be on its way any more.
        """
        clock, tool = self.holder.clock, prepared.tool
        loaded = clock.monotonic()
        believable_s = 0.0 if tool.idempotent_by_key else action.timeout_s + IN_FLIGHT_MARGIN_S
        deadline, delay = loaded + patience_s, 0.5
        ctx = self.calls.context(prepared, self.holder.run.scope, confirmed=action.suspension_id is not None)
        while True:
            why = "it cannot tell"
            try:
                found: object = await asked(lambda: tool.reconcile(prepared.args, ctx), tool.timeout_s)
            except Exception as error:  # noqa: BLE001  a target that cannot be asked is "cannot tell", whatever it raises
                why = words_of(error)
            else:
                age = action.intended_age_s + clock.monotonic() - loaded
                if isinstance(found, Happened):
                    return found
                if isinstance(found, DidNotHappen):
                    if age > believable_s:
                        return found
                    await clock.sleep(believable_s - age + 0.05)
                    continue
                if isinstance(found, Unknown):
                    why = found.reason or why
            if clock.monotonic() + delay > deadline:
                return why
            await clock.sleep(delay)
            delay = min(delay * 2, 8.0)

    async def _happened(
        self, call: OpenCall, action: Action, text: str, suspensions: tuple[Suspension | None, ...]
    ) -> None:
        self.holder.note("reconciled", tool=action.tool, outcome="happened")
        await self.calls.conclude(call, action.arguments, ActionState.SUCCEEDED, text, suspensions)

    async def _broke_off(self, act: Reconcile) -> None:
        """The attempt had no effect. Its path starts over, but a tool that breaks each time is not tried for ever."""
        self._broke[act.call.key] += 1
        if self._broke[act.call.key] < TRIES:
            await self._did_not_happen(act.action)
            if self._broke[act.call.key] > 1:
                await self.holder.clock.sleep(2.0)
            return
        self.holder.note("reconciled", tool=act.action.tool, outcome="did not happen", tries=TRIES)
        text = error_text("tool_failed", f"it broke off {TRIES} times, each time without an effect; nothing was done")
        await self.calls.conclude(act.call, act.action.arguments, ActionState.FAILED, text, (act.approval,))

    async def _did_not_happen(self, action: Action) -> None:
        """Close the attempt; the call is open again, and its path starts over with every check."""
        holder = self.holder
        holder.note("reconciled", tool=action.tool, outcome="did not happen")
        outcome = Outcome(action.call, action.arguments_digest, ActionState.FAILED, None)
        await holder.commit(holder.batch(), lambda b: holder.store.conclude(holder.fence, b, [outcome]))
        holder.stale = True

    async def _execute_again(self, act: Reconcile, prepared: Ready) -> None:
        """The target honours the key and cannot be asked: the same request again has at most one effect.

        With backoff for PATIENCE_S seconds; then a person is asked, as when guard or permission refuse.
        """
        clock = self.holder.clock
        deadline, delay = clock.monotonic() + PATIENCE_S, 0.5
        while True:
            try:
                scope = await self.calls.fresh_scope(PATIENCE_S)
                allowed = await self.calls.permits(prepared, scope)
                ctx = self.calls.context(prepared, scope, confirmed=act.approval is not None)
                refused = await self.calls.guard(prepared, ctx, PATIENCE_S)
            except (CouldNotCheck, ToolFailed) as error:
                await self._ask_person(act, prepared, words_of(error))
                return
            if not allowed or refused is not None:
                why = refused.reason if refused is not None else "its owner may not do this any more"
                await self._ask_person(act, prepared, why)
                return
            if self.holder.draining or await self.calls.carry_out(prepared, ctx, act.approval, in_doubt=True):
                return
            if clock.monotonic() + delay > deadline:
                await self._ask_person(act, prepared, "it was sent again with the same key, without an answer")
                return
            await clock.sleep(delay)
            delay = min(delay * 2, 8.0)

    async def _ask_person(self, act: Reconcile, prepared: Ready | None, why: str) -> None:
        """Record the outcome as unknown and ask the owner and the operators."""
        holder, action = self.holder, act.action
        holder.note("outcome unknown", tool=action.tool, why=why)
        outcome = Outcome(action.call, action.arguments_digest, ActionState.UNKNOWN)
        settled = [Settlement(act.approval.id, "unknown", why)] if act.approval else []
        await holder.commit(holder.batch(), lambda b: holder.store.conclude(holder.fence, b, [outcome], settled))
        holder.stale = True
        preview = _attempted(act, action)
        new = NewSuspension(
            id=self.calls.names.token(holder.run.id),
            token=self.calls.names.token(holder.run.id),
            call=action.call,
            kind=SuspensionKind.OUTCOME,
            tool=action.tool,
            tool_version=prepared.tool.version if prepared else "",
            arguments=action.arguments,
            preview=preview,
            digest=act.approval.digest if act.approval else action.arguments_digest,
            policy=Approval(by="requester", operators=True),
            asked_by=holder.run.owner.user_id,
            ttl_s=self.calls.ttl_s,
            note=f"Atlas could not find out whether this happened: {why}.",
            alert=f"{action.tool} may or may not have happened: {why}. "
            "Look in the target system, then answer on the card.",
        )
        while True:
            await holder.reload()
            if holder.run.stop_requested is not None:
                return
            try:
                await self._suspend([new])
            except NewsArrived:
                continue  # any other news is no reason to find out all over again
            return

    async def believe(self, act: Believe) -> None:
        """A person said whether it happened; believed at once."""
        if act.outcome.status is SuspensionStatus.DID_NOT_HAPPEN:
            await self._did_not_happen(act.action)
            return
        text = storable(_confirmed_by(act.outcome))
        approval = next((s for s in self.holder.view.suspensions if s.id == act.action.suspension_id), None)
        await self._happened(act.call, act.action, text, (approval, act.outcome))

    # -- after a stop, and the end of a lost run ----------------------------------------------------------------

    async def stop(self, calls: tuple[OpenCall, ...]) -> None:
        """Find out about open actions, close the other calls, halt."""
        holder = self.holder
        by = holder.run.stop_requested or "somebody"
        outcomes, settled, unknown = await self._close(
            calls, "stopped", f"stopped by {by}; nothing was done", PATIENCE_S
        )
        holder.note("stopped", by=by)
        reason = HaltReason.OUTCOME_UNKNOWN if unknown else HaltReason.STOPPED_BY_USER
        alert = _unknown_alert(holder.run, unknown) if unknown else None
        closing = Closing(detail=unknown or f"Stopped by @{by}.", alert=alert)
        await holder.commit(
            holder.batch(doing="stopped"),
            lambda b: holder.store.halt(holder.fence, b, reason, closing, settled, outcomes),
        )

    async def close_out(self) -> None:
        """The model-free pass: reconcile, close every call, fail. The alert states each outcome."""
        holder = self.holder
        act_calls = _calls_to_close(holder.view)
        outcomes, settled, unknown = await self._close(
            act_calls, "not_executed", "the run failed before this was done; do not assume that it happened", PATIENCE_S
        )
        holder.note("failed", reason=FailReason.RECOVERY_EXHAUSTED.value)
        states = "; ".join(f"{o.call.seq}.{o.call.position}: {o.state.value}" for o in outcomes) or "no action was open"
        alert = Alert(
            key=f"failed:{holder.run.id}",
            title=f"Run {holder.run.id} failed: its process was lost three times",
            text=f"Outcomes: {states}. {unknown}".strip(),
        )
        closing = Closing(
            detail=f"Atlas lost its process three times while working on this. {unknown}".strip(), alert=alert
        )
        await holder.commit(
            holder.batch(doing="failed"),
            lambda b: holder.store.fail(
                holder.fence, b, FailReason.RECOVERY_EXHAUSTED.value, closing, settled, outcomes
            ),
        )

    async def _close(
        self, calls: tuple[OpenCall, ...], kind: str, words: str, patience_s: float
    ) -> tuple[list[Outcome], list[Settlement], str]:
        """Give every open call its end; return outcomes, settlements, and words about what stays unknown."""
        outcomes: list[Outcome] = []
        settled: list[Settlement] = []
        unknown: list[str] = []
        for call in calls:
            action = open_action(self.holder.view, call.key)
            if action is None:
                settled += self._close_untouched(call, kind, words)
                continue
            approval = next((s for s in self.holder.view.suspensions if s.id == action.suspension_id), None)
            outcome = told_outcome(self.holder.view, action)
            begun = OpenCall(call.key, call.call, action.arguments, "editor" if call.call.malformed else None)
            prepared = ready(self.agent, begun)
            found: Happened | DidNotHappen | str = "its tool cannot be asked"
            if outcome is not None and outcome.status is not SuspensionStatus.OPEN:
                happened = outcome.status is SuspensionStatus.HAPPENED
                found = Happened(result=_confirmed_by(outcome)) if happened else DidNotHappen()
            elif not isinstance(prepared, str) and _can_ask(prepared.tool):
                found = await self._found_out(prepared, action, patience_s)
            where = (action.call, action.arguments_digest)
            if isinstance(found, Happened):
                text = storable(found.result)
                self.holder.result(call, text)
                outcomes.append(Outcome(*where, ActionState.SUCCEEDED, text))
                settled += [Settlement(approval.id, "done", "")] if approval else []
            elif isinstance(found, DidNotHappen):
                self.holder.result(call, error_text(kind, words))
                outcomes.append(Outcome(*where, ActionState.FAILED))
                settled += [Settlement(approval.id, "not_executed", kind)] if approval else []
            else:
                outcomes.append(Outcome(*where, ActionState.UNKNOWN))
                settled += [Settlement(approval.id, "unknown", found)] if approval else []
                unknown.append(f"Whether {action.tool} happened is not known ({found}); look in the target system.")
        return outcomes, settled, " ".join(unknown)

    def _close_untouched(self, call: OpenCall, kind: str, words: str) -> list[Settlement]:
        """Give a call that was never begun its end; an approved one's card must not say "running" for ever."""
        suspension = latest(self.holder.view, call.key, SuspensionKind.APPROVAL)
        if suspension is None or suspension.status in _STILL_TO_DO:
            self.holder.result(call, error_text(kind, words))
        else:
            self.holder.result(call, closed_text(suspension))
        if suspension is None or suspension.status is not SuspensionStatus.APPROVED:
            return []
        return [Settlement(suspension.id, "not_executed", words, f"Not executed: {words}.")]


_STILL_TO_DO = (
    SuspensionStatus.OPEN,
    SuspensionStatus.APPROVED,
    SuspensionStatus.EDITED,
    SuspensionStatus.REPLACED,
    SuspensionStatus.STOPPED,
)


def closed_text(suspension: Suspension) -> str:
    """Return the result of a call whose suspension closed without an execution; each status has its own words."""
    match suspension.status:
        case SuspensionStatus.DECLINED:
            reason = f' Their reason: "{suspension.reason}".' if suspension.reason else ""
            return error_text(
                "declined_by_user",
                "a person looked at this and said no; nothing was done. Do not try it again or work around it; "
                f"say so, or propose something else.{reason}",
                by=suspension.decided_by,
            )
        case SuspensionStatus.EXPIRED:
            return error_text("expired", "nobody decided in time, so nothing was done; this is not a refusal", by=None)
        case SuspensionStatus.SUPERSEDED:
            return error_text("superseded", "not executed, replaced by a new instruction")
        case _:
            return error_text("stopped", "stopped before anybody decided; nothing was done")


def unanswered(view: RunView) -> list[tuple[OpenCall, str]]:
    """Return every call of the conversation without a result, with the result that a follow-up run needs.

    Providers refuse a conversation in which a call has no result.
    """
    closing: list[tuple[OpenCall, str]] = []
    answered = {stored.answers for stored in view.messages if stored.answers is not None}
    for stored in view.messages:
        for position, call in enumerate(stored.message.calls):
            key = CallKey(stored.seq, position)
            if key in answered:
                continue
            if open_action(view, key) is not None:
                text = error_text("outcome_unknown", "outcome unknown, do not repeat it")
            else:
                closed = [s for s in view.suspensions if s.call == key]
                text = (
                    closed_text(max(closed, key=lambda s: s.number))
                    if closed
                    else error_text("not_executed", "the run ended before this was done")
                )
            closing.append((OpenCall(key, call, call.arguments), text))
    return closing


def _can_ask(tool: Tool[Any]) -> bool:
    return type(tool).reconcile is not Tool.reconcile and tool.unknown != "ask_person"


def _confirmed_by(outcome: Suspension) -> dict[str, JsonValue]:
    who = outcome.decided_by or "somebody"
    return {"happened": True, "confirmed_by": f"@{who}", "note": "a person confirmed it; no result known"}


def _attempted(act: Reconcile, action: Action) -> Preview:
    if act.approval is not None:
        return Preview.model_validate(act.approval.preview)
    return Preview(title=action.tool, fields={k: str(v) for k, v in action.arguments.items()})


def _calls_to_close(view: RunView) -> tuple[OpenCall, ...]:
    return tuple(call for call, _ in unanswered(view))


def _unknown_alert(run: Run, words: str) -> Alert:
    return Alert(key=f"unknown:{run.id}:{run.halts + 1}", title=f"Run {run.id} stopped, outcome unknown", text=words)
