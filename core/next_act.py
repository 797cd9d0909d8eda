"""The next act of a run, as a pure function of its stored rows.

Decides: what a worker that claims a run does first, and after every commit. Does not: act. Every claim starts here,
not only a reaped one; the trace is never an input. The failure it can cause: an act chosen from anything but stored
rows would differ between two processes that look at one run.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from core.conversation import CallKey, StoredMessage, ToolCall
from core.run import Action, ActionState, RunView, Suspension, SuspensionKind, SuspensionStatus
from core.words import is_bare_assent


@dataclass(frozen=True, slots=True)
class OpenCall:
    """A call of the last model turn without a result. *arguments*: the model's, or an editor's. *replaces*: the
    edited suspension whose place the next one takes."""

    key: CallKey
    call: ToolCall
    arguments: dict[str, Any]
    edited_by: str | None = None
    replaces: str | None = None


@dataclass(frozen=True, slots=True)
class Stop:
    """Somebody asked to stop: reconcile open actions, close the other calls, halt."""

    calls: tuple[OpenCall, ...]


@dataclass(frozen=True, slots=True)
class Reconcile:
    """An action is intended or unknown: find out what happened before anything else. *approval*: what allowed it."""

    call: OpenCall
    action: Action
    approval: Suspension | None


@dataclass(frozen=True, slots=True)
class Believe:
    """A person said whether the action happened."""

    call: OpenCall
    action: Action
    outcome: Suspension


@dataclass(frozen=True, slots=True)
class Conclude:
    """The suspension closed without an execution: its result goes to the model."""

    call: OpenCall
    suspension: Suspension


@dataclass(frozen=True, slots=True)
class Execute:
    """Approved: the three checks, then execute."""

    call: OpenCall
    suspension: Suspension


@dataclass(frozen=True, slots=True)
class Refresh:
    """Approved too long ago to act on: suspend again."""

    call: OpenCall
    suspension: Suspension


@dataclass(frozen=True, slots=True)
class Consider:
    """Fresh (or edited) calls: the normal path of the durable step."""

    calls: tuple[OpenCall, ...]


@dataclass(frozen=True, slots=True)
class Supersede:
    """Only undecided calls are left, but their owner has written a new instruction meanwhile: it replaces them."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Only undecided calls are left."""


@dataclass(frozen=True, slots=True)
class CallModel:
    """Every call has its result: the model's turn."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The model's last words are stored and nothing came in between."""

    text: str


Act = Stop | Reconcile | Believe | Conclude | Execute | Refresh | Consider | Supersede | Wait | CallModel | Answer


def last_turn(messages: Sequence[StoredMessage]) -> tuple[StoredMessage | None, set[CallKey]]:
    """Return the model's last message and the calls of it that have a result."""
    answered: set[CallKey] = set()
    for stored in reversed(messages):
        if stored.message.role == "assistant":
            return stored, answered
        if stored.answers is not None:
            answered.add(stored.answers)
    return None, answered


def open_calls(messages: Sequence[StoredMessage]) -> list[OpenCall]:
    """Return the last turn's calls without a result, in the model's order."""
    turn, answered = last_turn(messages)
    if turn is None:
        return []
    keyed = ((CallKey(turn.seq, position), call) for position, call in enumerate(turn.message.calls))
    return [OpenCall(key, call, call.arguments) for key, call in keyed if key not in answered]


def latest(view: RunView, key: CallKey, kind: SuspensionKind) -> Suspension | None:
    """Return the newest suspension of that kind for a call."""
    return max((s for s in view.suspensions if s.call == key and s.kind is kind), key=lambda s: s.number, default=None)


def open_action(view: RunView, key: CallKey) -> Action | None:
    """Return the call's action whose outcome is not known, if any."""
    undecided = (ActionState.INTENDED, ActionState.UNKNOWN)
    return next((a for a in view.actions if a.call == key and a.state in undecided), None)


def next_act(view: RunView, lifetime: timedelta) -> Act:
    """Return what is to be done next. *lifetime*: how old an approval may be when it is acted on.

    Order: stop; then what was begun, then what was decided, call by call; then fresh calls; then wait, the model, the
    answer.
    """
    calls = open_calls(view.messages)
    if view.run.stop_requested is not None:
        return Stop(tuple(calls))
    needed = [_decided(view, call, lifetime) for call in calls]
    # What may be under way is found out before anything else begins.
    for act in needed:
        if isinstance(act, Believe | Reconcile):
            return act
    for act in needed:
        if act is not None and not isinstance(act, OpenCall):
            return act
    fresh = tuple(act for act in needed if isinstance(act, OpenCall))
    if fresh:
        return Consider(fresh)
    if needed:
        return Supersede() if instructed(view) and not _outcome_open(view) else Wait()
    last = view.messages[-1] if view.messages else None
    if last is not None and last.message.role == "assistant" and not last.message.calls and not view.mail:
        return Answer(last.message.text)
    return CallModel()


def model_was_perhaps_asked(view: RunView, lifetime: timedelta) -> bool:
    """Say whether the worker that had this run may have been at the model when it died.

    Results of reads, refusals and closed suspensions ride along with the model's next message, so a call that needs
    nothing else may have had its result in the dead worker's memory. A stop asked for meanwhile proves nothing.
    """
    needed = [_decided(view, call, lifetime) for call in open_calls(view.messages)]
    if needed:
        return all(isinstance(act, OpenCall | Conclude) for act in needed)
    return not isinstance(next_act(replace(view, run=replace(view.run, stop_requested=None)), lifetime), Answer)


def instructed(view: RunView) -> bool:
    """Say whether mail waits that is more than a bare assent: it replaces whatever waits for a click."""
    return any(not is_bare_assent(letter.text) for letter in view.mail)


def _outcome_open(view: RunView) -> bool:
    """Say whether a person is being asked whether something happened; such a card is never superseded."""
    return any(s.kind is SuspensionKind.OUTCOME and s.status is SuspensionStatus.OPEN for s in view.suspensions)


def _decided(view: RunView, call: OpenCall, lifetime: timedelta) -> Act | OpenCall | None:
    """Return the act that a begun or decided call needs, the call itself when fresh, None while undecided."""
    approval = latest(view, call.key, SuspensionKind.APPROVAL)
    action = open_action(view, call.key)
    if action is not None:
        begun = OpenCall(call.key, call.call, action.arguments, _editor(view, call.key))
        outcome = told_outcome(view, action)
        if outcome is not None and outcome.status is SuspensionStatus.OPEN:
            return None
        if outcome is not None:
            return Believe(begun, action, outcome)
        allowed_by = next((s for s in view.suspensions if s.id == action.suspension_id), None)
        return Reconcile(begun, action, allowed_by)
    if approval is None:
        return call
    match approval.status:
        case SuspensionStatus.OPEN:
            return None
        case SuspensionStatus.APPROVED:
            approved = OpenCall(call.key, call.call, approval.arguments, _editor(view, call.key))
            decided_at = approval.decided_at or approval.opened_at
            if view.now - decided_at > lifetime:
                return Refresh(approved, approval)
            return Execute(approved, approval)
        case SuspensionStatus.EDITED:
            return OpenCall(call.key, call.call, approval.edited_arguments or {}, approval.edited_by, approval.id)
        case SuspensionStatus.REPLACED:
            # Its successor has a higher number; without one the normal path makes it.
            return call
        case _:
            return Conclude(OpenCall(call.key, call.call, approval.arguments, _editor(view, call.key)), approval)


def told_outcome(view: RunView, action: Action) -> Suspension | None:
    """Return the outcome suspension about this very attempt that is open or answered.

    An answer about an earlier attempt says nothing of one that was intended after it.
    """
    outcome = latest(view, action.call, SuspensionKind.OUTCOME)
    if outcome is None or outcome.status is SuspensionStatus.OPEN:
        return outcome
    told = (SuspensionStatus.HAPPENED, SuspensionStatus.DID_NOT_HAPPEN)
    return outcome if outcome.status in told and outcome.opened_at >= action.intended_at else None


def _editor(view: RunView, key: CallKey) -> str | None:
    """Return who last edited the call: the editor stays its requester over every later suspension."""
    edited = [s for s in view.suspensions if s.call == key and s.edited_by is not None]
    return max(edited, key=lambda s: s.number).edited_by if edited else None
