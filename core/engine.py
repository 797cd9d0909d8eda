"""The facade that bot and jobs call: mail, clicks, continue, stop, lists.

Decides: who may do what (the one authorizer), and which move follows. Does not: run the loop (worker does), store
(the desk does) or speak Slack. Every entry point (button, modal, Home, command, mention, CLI) comes through here, so
no path can skip the authorizer. The failure it can cause: an identity taken from text instead of the verified
payload; callers pass the payload's (team, user) only.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Protocol

from core.agent import Agent
from core.approvals import (
    Clicker,
    Person,
    Refusal,
    Via,
    channel_of,
    late,
    may_acknowledge,
    may_answer_outcome,
    may_decide,
)
from core.budget import granted
from core.calls import ready
from core.conversation import ToolCall
from core.errors import CouldNotCheck, InvalidArguments
from core.next_act import OpenCall
from core.ports import Acknowledged, Continued, Decided, Desk, Directory, Fence, Stopped
from core.results import reason_of
from core.run import Run, RunState, RunView, Suspension, SuspensionKind
from core.tools import UserGroup

# A click is judged within this many seconds, else "could not check": Slack's own limit for the ack is 3 s.
JUDGE_WITHIN_S = 1.5
# Proved by rows that were read without a lock: the token of a decided, replaced or reopened card never counts again.
# Not EXPIRED: that one is written down, or is an outcome that may still be answered.
SETTLED = frozenset({Refusal.DECIDED, Refusal.REPLACED, Refusal.PRESS_AGAIN})


@dataclass(frozen=True, slots=True)
class Actor:
    """Who acts: the verified (team, user) of the Slack payload, or "operator:<os user>" of the CLI (*team_id* "")."""

    team_id: str
    user_id: str
    via: Via

    @property
    def on_the_cli(self) -> bool:
        """Say whether this is an operator at the command line."""
        return self.via is Via.CLI


@dataclass(frozen=True, slots=True)
class Rules:
    """Settings of the engine. *lifetime*: of a suspension, at most 30 minutes: it bounds how stale an approved
    artefact can be. *operators*: Slack user ids. *alert_channel*: where there are none, its members take alerts up."""

    lifetime: timedelta = timedelta(minutes=30)
    operators: frozenset[str] = frozenset()
    alert_channel: str | None = None


class Room(Protocol):
    """This process's worker, if it has one: it may take a run that a click or a message just made claimable."""

    def worker_id_if_room(self) -> str | None:
        """Return the worker's id when it has room and is not draining, else None."""
        ...

    def adopt(self, fence: Fence) -> None:
        """Go on with a run that was claimed for this worker."""
        ...


class NoRoom:
    """A process without a worker."""

    def worker_id_if_room(self) -> str | None:
        """Return None: never."""
        return None

    def adopt(self, fence: Fence) -> None:
        """Never called, since nothing is claimed for this process."""
        raise AssertionError(f"no worker here for {fence.run_id}")


class Engine:
    """Clicks, continue, stop and lists, each authorized. The drain is in core.mail."""

    def __init__(self, agent: Agent, desk: Desk, directory: Directory, rules: Rules, room: Room | None = None) -> None:
        self.agent = agent
        self.desk = desk
        self.directory = directory
        self.rules = rules
        self.room: Room = room or NoRoom()

    async def decide(
        self,
        actor: Actor,
        suspension_id: str,
        token: str,
        *,
        approve: bool,
        digest: str | None = None,
        reason: str | None = None,
    ) -> Decided:
        """Approve or decline (for an outcome: it happened, or it did not), in one commit, before the ack.

        *digest*: what the actor saw; None only where the surface cannot carry it. Returns: refusal None when it is
        recorded. Raises: StoreUnavailable (do not ack).
        """
        act = "approve" if approve else "decline"

        async def move(clicker: Clicker) -> Decided:
            return await self.desk.decide(
                suspension_id,
                token,
                digest,
                clicker,
                approve=approve,
                reason=reason,
                worker_id=self.room.worker_id_if_room(),
            )

        return await self._judged(actor, suspension_id, token, act, move, approve=approve)

    async def edit(self, actor: Actor, suspension_id: str, token: str, arguments: dict[str, Any]) -> Decided:
        """Replace the call's arguments; the edited call gets its own preview, digest and card.

        Raises: InvalidArguments (nothing changed; the card stays as it is), StoreUnavailable.
        """

        async def move(clicker: Clicker) -> Decided:
            found = await self.desk.suspension(suspension_id)
            if found is None:
                return Decided(Refusal.UNKNOWN, None, None)
            checked = valid_arguments(self.agent, found[0], arguments, clicker.id)
            return await self.desk.edit(suspension_id, token, clicker, checked, worker_id=self.room.worker_id_if_room())

        return await self._judged(actor, suspension_id, token, "edit", move, approve=True, editing=True)

    async def _judged(
        self,
        actor: Actor,
        suspension_id: str,
        token: str,
        act: str,
        move: Callable[[Clicker], Any],
        *,
        approve: bool,
        editing: bool = False,
    ) -> Decided:
        found = await self.desk.suspension(suspension_id)
        bare = Clicker(actor.user_id, actor.via, None)
        if found is None or not (actor.on_the_cli or found[1].team_id == actor.team_id):
            where = "there is none of this id" if found is None else f"the actor is of another team ({actor.team_id})"
            at = suspension_id if found is None else found[0]
            await self.desk.refuse(at, bare, act, Refusal.UNKNOWN, where)
            return Decided(Refusal.UNKNOWN, None, None)
        suspension, run, expired = found
        try:
            async with asyncio.timeout(JUDGE_WITHIN_S):
                clicker = await self._clicker(actor, suspension, run)
        except (CouldNotCheck, TimeoutError):
            await self.desk.refuse(suspension, bare, act, Refusal.COULD_NOT_CHECK, "people could not be looked up")
            return Decided(Refusal.COULD_NOT_CHECK, suspension, run)
        refusal = self._verdict(suspension, run, clicker, approve=approve, editing=editing)
        if refusal is not None:
            await self.desk.refuse(suspension, clicker, act, refusal, "the policy does not allow it")
            return Decided(refusal, suspension, run)
        refusal = late(suspension, token, expired=expired)
        if refusal in SETTLED:
            await self.desk.refuse(suspension, clicker, act, refusal, "it was so when it was read")
            return Decided(refusal, suspension, run)
        decided: Decided = await move(clicker)
        if decided.claimed is not None:
            self.room.adopt(decided.claimed)
        return decided

    async def refuse_unreadable(self, actor: Actor, act: str) -> None:
        """Put an attempt on record that names no suspension at all. Raises: StoreUnavailable (do not ack)."""
        bare = Clicker(actor.user_id, actor.via, None)
        await self.desk.refuse("", bare, act, Refusal.UNKNOWN, "what was pressed names no request")

    def _verdict(
        self, suspension: Suspension, run: Run, clicker: Clicker, *, approve: bool, editing: bool
    ) -> Refusal | None:
        if suspension.kind is SuspensionKind.OUTCOME:
            return Refusal.UNKNOWN if editing else may_answer_outcome(run.owner.user_id, clicker)
        policy = suspension.policy
        if editing:
            # An edit is judged like an approval, except that it approves nothing: the requester may edit their own.
            policy = policy.model_copy(update={"self_approval": True})
            if clicker.id == run.owner.user_id:
                policy = policy.model_copy(update={"by": "requester"})
        return may_decide(policy, run.owner.user_id, suspension.asked_by, clicker, approve=approve)

    async def _clicker(self, actor: Actor, suspension: Suspension, run: Run) -> Clicker:
        if actor.on_the_cli:
            return Clicker(actor.user_id, actor.via, None, operator=True)
        return await clicker_facts(
            self.directory, self.rules, actor.team_id, actor.user_id, actor.via, suspension, run, fresh=False
        )

    async def continue_run(
        self, actor: Actor, run_id: str | None = None, halt_number: int | None = None, reason: str | None = None
    ) -> Continued:
        """Continue a halted run: its owner's explicit act only (an operator only on the CLI, with a reason).

        *run_id* None: the owner's newest halted run. Returns run None for everything refused: somebody else's run
        looks like one that does not exist.
        """
        run = await self._named(actor, run_id, (RunState.HALTED,))
        if run is None or not self._owns(actor, run) or (actor.on_the_cli and not reason):
            await self._refused(actor, run, "continue")
            return Continued(None)
        by = Clicker(actor.user_id, actor.via, None, operator=actor.on_the_cli)
        # The grant is of the halt that was read, never of a later one.
        halt_number = run.halts if halt_number is None else halt_number
        continued = await self.desk.continue_(
            run.id, halt_number, by, granted(run), None, self.room.worker_id_if_room(), reason
        )
        if continued.claimed is not None:
            self.room.adopt(continued.claimed)
        return continued

    async def stop_run(self, actor: Actor, run_id: str | None = None) -> Stopped:
        """Stop a run: its owner or an operator. *run_id* None: the actor's newest live run."""
        run = await self._named(actor, run_id, (RunState.RUNNING, RunState.SUSPENDED))
        if run is None:
            return Stopped("ended", None)
        operator = actor.on_the_cli or (actor.user_id in self.rules.operators and actor.team_id == run.team_id)
        if not (operator or self._owns(actor, run)):
            await self._refused(actor, run, "stop")
            return Stopped("ended", None)
        return await self.desk.stop(run.id, Clicker(actor.user_id, actor.via, None, operator=operator))

    async def _refused(self, actor: Actor, run: Run | None, act: str) -> None:
        if run is not None:
            bare = Clicker(actor.user_id, actor.via, None)
            await self.desk.refuse(run.id, bare, act, Refusal.NOT_AN_APPROVER, "somebody else's run")

    async def acknowledge(self, actor: Actor, place: str) -> Acknowledged | None:
        """Note on an alert that *actor* takes it up; None: who that is could not be checked, press again.

        Raises: StoreUnavailable (do not ack).
        """
        operators = self.rules.operators
        bare = Clicker(actor.user_id, actor.via, None)
        try:
            async with asyncio.timeout(JUDGE_WITHIN_S):
                person = await self.directory.person(actor.team_id, actor.user_id)
                channel = self.rules.alert_channel
                here = not operators and channel is not None and await self.directory.in_channel(channel, actor.user_id)
        except (CouldNotCheck, TimeoutError):
            await self.desk.acknowledge(place, bare, allowed=False)
            return None
        clicker = replace(bare, person=person, in_channel=here, operator=actor.user_id in operators)
        # An alert has no team of its own: it is of the installing team, as the person must be.
        allowed = person.user.team_id == actor.team_id
        allowed = allowed and may_acknowledge(clicker, operators_named=bool(operators)) is None
        return await self.desk.acknowledge(place, clicker, allowed=allowed)

    async def _named(self, actor: Actor, run_id: str | None, states: Sequence[RunState]) -> Run | None:
        if run_id is not None:
            return await self.desk.run(run_id.lower())
        mine = await self.desk.runs(
            team_id=actor.team_id, user_id=actor.user_id, limit=1, states=[state.value for state in states]
        )
        return mine[0] if mine else None

    def _owns(self, actor: Actor, run: Run) -> bool:
        return actor.on_the_cli or (run.team_id, run.owner.user_id) == (actor.team_id, actor.user_id)

    async def runs(self, actor: Actor, limit: int = 10, states: Sequence[RunState] = ()) -> list[Run]:
        """List the actor's runs, newest first (the CLI: everybody's), of all states unless some are given."""
        named = [state.value for state in states]
        if actor.on_the_cli:
            return await self.desk.runs(team_id=None, user_id=None, limit=limit, states=named)
        return await self.desk.runs(team_id=actor.team_id, user_id=actor.user_id, limit=limit, states=named)

    async def show(self, actor: Actor, run_id: str) -> RunView | None:
        """Return one run with what hangs on it: to its owner, an operator or the CLI; None to everybody else."""
        view = await self.desk.show(run_id.lower())
        if view is None:
            return None
        operator = actor.user_id in self.rules.operators and view.run.team_id == actor.team_id
        return view if operator or self._owns(actor, view.run) else None

    async def pending(self, actor: Actor) -> list[tuple[Suspension, Run]]:
        """List the open suspensions that the actor may decide now, oldest first.

        One that cannot be checked (its channel is closed to us, its group is gone) does not hide the others. Raises:
        CouldNotCheck when none could be checked.
        """
        waiting: list[tuple[Suspension, Run]] = []
        doubt: CouldNotCheck | None = None
        checked = 0
        for suspension, run in await self.desk.pending():
            if actor.on_the_cli:
                waiting.append((suspension, run))
            elif run.team_id == actor.team_id:
                try:
                    clicker = await self._clicker(actor, suspension, run)
                except CouldNotCheck as error:
                    doubt = error
                    continue
                checked += 1
                if self._verdict(suspension, run, clicker, approve=True, editing=False) is None:
                    waiting.append((suspension, run))
        if doubt is not None and not checked:
            raise doubt
        return waiting


def valid_arguments(agent: Agent, suspension: Suspension, arguments: dict[str, Any], editor: str) -> dict[str, Any]:
    """Return an editor's arguments as they will execute. Raises: InvalidArguments."""
    asked = ToolCall(id="", tool=suspension.tool, arguments=arguments)
    prepared = ready(agent, OpenCall(suspension.call, asked, arguments, editor))
    if isinstance(prepared, str):
        raise InvalidArguments(reason_of(prepared))
    return prepared.arguments


async def clicker_facts(
    directory: Directory,
    rules: Rules,
    team_id: str,
    user_id: str,
    via: Via,
    suspension: Suspension,
    run: Run,
    *,
    fresh: bool,
) -> Clicker:
    """Return what the policy needs to know of somebody. Raises: CouldNotCheck."""
    person: Person = await directory.person(team_id, user_id, fresh=fresh)
    policy = suspension.policy
    channel = channel_of(policy, run.channel_id)
    in_channel = policy.by == "anyone" and await directory.in_channel(channel, user_id, fresh=fresh)
    in_group = isinstance(policy.by, UserGroup) and await directory.in_group(policy.by.handle, user_id, fresh=fresh)
    return Clicker(user_id, via, person, in_channel, in_group, operator=user_id in rules.operators)
