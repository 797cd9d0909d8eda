"""The next act of a run, as a pure function of its stored rows.

Decides: what a worker that claims a run does first, and after every commit. Does not: act. Every claim starts here,
not only a reaped one; the trace is never an input. The failure it can cause: an act chosen from anything but stored
rows would differ between two processes that look at one run.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from core.conversation import CallKey, StoredMessage, ToolCall
from core.run import Action, ActionState, RunView, Suspension, SuspensionKind, SuspensionStatus
from core.words import is_bare_assent


@dataclass(frozen=True, slots=True)
class OpenCall:
    """A call of the last model turn without a result. *arguments*: the model's, or an editor's."""

    key: CallKey
    call: ToolCall
    arguments: dict[str, Any]
    edited_by: str | None = None


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

    Order: stop; then, call by call, what was begun or decided; then fresh calls; then wait, the model, the answer.
    """
    calls = open_calls(view.messages)
    if view.run.stop_requested is not None:
        return Stop(tuple(calls))
    fresh: list[OpenCall] = []
    undecided = False
    for call in calls:
        act = _decided(view, call, lifetime)
        if isinstance(act, OpenCall):
            fresh.append(act)
        elif act is None:
            undecided = True
        else:
            return act
    if fresh:
        return Consider(tuple(fresh))
    if undecided:
        return Supersede() if instructed(view) and not _outcome_open(view) else Wait()
    last = view.messages[-1] if view.messages else None
    if last is not None and last.message.role == "assistant" and not last.message.calls and not view.mail:
        return Answer(last.message.text)
    return CallModel()


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
        outcome = latest(view, call.key, SuspensionKind.OUTCOME)
        edited = approval.edited_by if approval is not None else None
        begun = OpenCall(call.key, call.call, action.arguments, edited)
        if outcome is not None and outcome.status is SuspensionStatus.OPEN:
            return None
        told = (SuspensionStatus.HAPPENED, SuspensionStatus.DID_NOT_HAPPEN)
        if outcome is not None and outcome.status in told:
            return Believe(begun, action, outcome)
        return Reconcile(begun, action, approval)
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
            return OpenCall(call.key, call.call, approval.edited_arguments or {}, approval.edited_by)
        case SuspensionStatus.REPLACED:
            # Its successor has a higher number; without one the normal path makes it.
            return call
        case _:
            return Conclude(call, approval)


def _editor(view: RunView, key: CallKey) -> str | None:
    """Return who last edited the call: the editor stays its requester over every later suspension."""
    edited = [s for s in view.suspensions if s.call == key and s.edited_by is not None]
    return max(edited, key=lambda s: s.number).edited_by if edited else None
