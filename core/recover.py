"""Back in after a crash, a stop, or for the last time: find out what happened before anything else.

Decides: what an open action's outcome was, whom to ask when nobody can tell, how a stopped or lost run closes its
calls. Does not: reap (the job does) or check a fresh yes (resume does). The failure it can cause: an action begun anew
while an earlier attempt may still be on its way acts twice.
"""

from collections import Counter
from typing import Any

from pydantic import JsonValue

from core.agent import Agent
from core.calls import Calls, Ready, ready
from core.conversation import CallKey, error_text
from core.errors import CouldNotCheck, NewsArrived, ToolFailed, shortened, words_of
from core.foreign import asked
from core.holder import PATIENCE_S
from core.next_act import Believe, OpenCall, Reconcile, latest, open_action, told_outcome
from core.ports import Alert, Closing, NewSuspension, Outcome, Settlement
from core.results import closed_text, storable, unanswered
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
from core.tools import Approval, DidNotHappen, Happened, Preview, Tool, Unknown

# A dead worker's request may be on its way this long beyond the tool's own timeout.
IN_FLIGHT_MARGIN_S = 5.0
# A write that broke this often, each time certainly without an effect, is the model's to deal with.
TRIES = 3
_STILL_TO_DO = (
    SuspensionStatus.OPEN,
    SuspensionStatus.APPROVED,
    SuspensionStatus.EDITED,
    SuspensionStatus.REPLACED,
    SuspensionStatus.STOPPED,
)


class Recover:
    """The recoveries of one claimed run."""

    def __init__(self, calls: Calls, agent: Agent) -> None:
        self.calls = calls
        self.holder = calls.holder
        self.agent = agent
        self._broke: Counter[CallKey] = Counter()

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
                    why = shortened(found.reason) or why
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
            ttl_s=self.calls.lifetime.total_seconds(),
            note=f"Atlas could not find out whether this happened: {why}.",
            alert=f"{action.tool} may or may not have happened: {why}. "
            "Look in the target system, then answer on the card.",
        )
        while True:
            await holder.reload()
            if holder.run.stop_requested is not None:
                return
            try:
                await self.calls.open([new])
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
        """Give every open call its end; return outcomes, settlements, and words about what stays unknown.

        Everything is found out first: results that wait while a target is asked would be stored without their
        outcomes by a shutdown that comes meanwhile.
        """
        found_out = {
            call.key: (action, await self._found_of(call, action, patience_s))
            for call in calls
            if (action := open_action(self.holder.view, call.key)) is not None
        }
        outcomes: list[Outcome] = []
        settled: list[Settlement] = []
        unknown: list[str] = []
        for call in calls:
            if call.key not in found_out:
                settled += self._close_untouched(call, kind, words)
                continue
            action, found = found_out[call.key]
            approval = next((s for s in self.holder.view.suspensions if s.id == action.suspension_id), None)
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

    async def _found_of(self, call: OpenCall, action: Action, patience_s: float) -> Happened | DidNotHappen | str:
        """Return what a person said about an action, else what its target does, else why neither can tell."""
        told = told_outcome(self.holder.view, action)
        if told is not None and told.status is not SuspensionStatus.OPEN:
            happened = told.status is SuspensionStatus.HAPPENED
            return Happened(result=_confirmed_by(told)) if happened else DidNotHappen()
        begun = OpenCall(call.key, call.call, action.arguments, "editor" if call.call.malformed else None)
        prepared = ready(self.agent, begun)
        if not isinstance(prepared, str) and _can_ask(prepared.tool):
            return await self._found_out(prepared, action, patience_s)
        return "its tool cannot be asked"

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


def _can_ask(tool: Tool[Any]) -> bool:
    return type(tool).reconcile is not Tool.reconcile and tool.unknown != "ask_person"


def _confirmed_by(outcome: Suspension) -> dict[str, JsonValue]:
    who = outcome.decided_by or "somebody"
    # The note first: the card's "Done · …" shows the first text of a result.
    return {"happened": True, "note": "a person confirmed it; no result known", "confirmed_by": f"@{who}"}


def _attempted(act: Reconcile, action: Action) -> Preview:
    if act.approval is not None:
        return Preview.model_validate(act.approval.preview)
    return Preview(title=action.tool, fields={k: str(v) for k, v in action.arguments.items()})


def _calls_to_close(view: RunView) -> tuple[OpenCall, ...]:
    return tuple(call for call, _ in unanswered(view))


def _unknown_alert(run: Run, words: str) -> Alert:
    return Alert(key=f"unknown:{run.id}:{run.halts + 1}", title=f"Run {run.id} stopped, outcome unknown", text=words)
