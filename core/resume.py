"""Back in after a confirmation: may what was approved execute on the world as it is now?

Decides: permission, policy, preview and guard, all of them, each time, before anything executes; else the same card
again, a new card, or a result that says why not. Does not: take decisions (the engine does) or look for what a crash
left (recover does). The failure it can cause: anything executed here without the checks acts on a stale yes.
"""

from dataclasses import replace

from core.agent import Agent
from core.approvals import Clicker, Undigestible, Via, channel_of, may_decide
from core.calls import Ask, Calls, Ready, ready
from core.conversation import error_text
from core.errors import CouldNotCheck, ToolFailed, words_of
from core.holder import PATIENCE_S, checked, people_of
from core.next_act import (
    Conclude,
    Execute,
    OpenCall,
    Refresh,
    Wait,
    next_act,
)
from core.ports import Settlement, TraceEntry
from core.results import closed_text, not_permitted
from core.run import (
    Suspension,
    SuspensionStatus,
)
from core.tools import Approval, Scope, ToolContext, UserGroup


class Changed(Exception):
    """What was approved is not what would execute now; carries the words for the card."""


class Resume:
    """The resumptions of one claimed run."""

    def __init__(self, calls: Calls, agent: Agent, operators: frozenset[str]) -> None:
        self.calls = calls
        self.holder = calls.holder
        self.agent = agent
        self.operators = operators

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
                await self._not_executed(call, suspension, not_permitted(prepared.tool.name), words)
                return
            ctx = await self._confirmed(prepared, scope, suspension)
            await self._unchanged(prepared, scope, suspension)
            refused = await self.calls.guard(prepared, ctx, 0.0)
        except CouldNotCheck as error:
            await self._rearm(suspension, error)
            return
        except Changed as error:
            await self._again(prepared, suspension, str(error), 0.0)
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
            channel = channel_of(policy, run.channel_id)
            here = policy.by == "anyone" and await directory.in_channel(channel, user_id, fresh=True)
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
        # As before a first card: nobody waits for a click, and the old card's time is over, so it could not come back.
        await self._again(prepared, act.suspension, f"approved by {voters}, not executed in time", PATIENCE_S)

    async def _again(self, prepared: Ready, old: Suspension, why: str, patience_s: float) -> None:
        """Open a new suspension of the same call in place of *old*, on the world of now."""
        try:
            scope = await self.calls.fresh_scope(patience_s)
            ctx = self.calls.context(prepared, scope)
            policy = await self.calls.policy(prepared, ctx, patience_s)
            preview, digest = await self.calls.preview(prepared, ctx, patience_s)
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
        await self.calls.open([new], TraceEntry("suspended again", body))

    async def _rearm(self, suspension: Suspension, error: CouldNotCheck) -> None:
        """Open the same card again: nothing was done, the approver may press again."""
        holder = self.holder
        view = holder.view
        supposed = tuple(
            replace(s, status=SuspensionStatus.OPEN) if s.id == suspension.id else s for s in view.suspensions
        )
        stay = not isinstance(next_act(replace(view, suspensions=supposed), self.calls.lifetime), Wait)
        said = TraceEntry("could not check", {"tool": suspension.tool, "what": error.what, "why": error.why})
        note = f"Could not check {error.what} ({error.why.rstrip('.')}). Nothing was done. Try again."
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
