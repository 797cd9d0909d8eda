"""All the world that core sees: the store, people, the model's and tools' clock. One file.

Decides: what each move writes and what it answers. Does not: implement any of it (storage and bot do). A worker's
every write names its fence; zero rows is a typed conflict. The failure it can cause: a move whose parts are not in
one transaction can be seen half done after a crash.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from typing import Any, Protocol

from core.approvals import Clicker, Person, Refusal
from core.conversation import CallKey, StoredMessage
from core.run import ActionState, HaltReason, Run, RunView, Suspension, SuspensionKind
from core.tools import Approval, Limits, Preview, Scope, User


@dataclass(frozen=True, slots=True)
class Fence:
    """A worker's claim on a run; in the WHERE of everything that it writes."""

    run_id: str
    claim_token: str


@dataclass(frozen=True, slots=True)
class TraceEntry:
    """One line for people: *kind* such as "model", "read", "write", "suspended"; *ms* and money when known."""

    kind: str
    body: dict[str, Any] = field(default_factory=dict)
    ms: int | None = None
    spend_usd: Decimal | None = None


@dataclass(frozen=True, slots=True)
class Batch:
    """What one commit of a worker adds. Amounts are increments; *elapsed_ms* is active time since the last commit.

    *messages* continue the conversation at the run's next seq (the store checks this: a gap is InvariantBroken).
    *mail*: inbox rows whose text is among the messages; they are marked handled. *steps*: 1 with a model's message.
    *dearest_call_usd*: of this batch. *doing*: what the agent does now; None leaves it. *charges_crash*: this commit
    pays for the model call that a crash may have cost. *scope*: a newly resolved scope, if any. *after_ms*: the run's
    active time before it (None: whatever that is), so that what was given up on and written again counts once.
    """

    messages: tuple[StoredMessage, ...] = ()
    trace: tuple[TraceEntry, ...] = ()
    mail: tuple[int, ...] = ()
    steps: int = 0
    tool_calls: int = 0
    spend_usd: Decimal = Decimal(0)
    dearest_call_usd: Decimal = Decimal(0)
    elapsed_ms: int = 0
    doing: str | None = None
    charges_crash: bool = False
    scope: Scope | None = None
    after_ms: int | None = None


@dataclass(frozen=True, slots=True)
class NewRun:
    """A run to be started. *messages*: its first ones, seq from 0 (a follow-up's begin with the parent's)."""

    id: str
    team_id: str
    channel_id: str
    thread_ts: str
    owner: User
    question: str
    route: dict[str, Any]
    limits: Limits
    scope: Scope
    messages: tuple[StoredMessage, ...]
    parent_id: str | None = None


@dataclass(frozen=True, slots=True)
class NewSuspension:
    """A suspension to be opened, with its card. *arguments*: canonical JSON types. *ttl_s*: seconds, at most 1800.

    *replaces*: the id of the suspension that this one takes the place of (it becomes "replaced", its votes void, its
    card says so). *note*: a line for the card, such as why it asks again. *alert*: also tell the alert channel.
    """

    id: str
    token: str
    call: CallKey
    kind: SuspensionKind
    tool: str
    tool_version: str
    arguments: dict[str, Any]
    preview: Preview
    digest: str
    policy: Approval
    asked_by: str
    ttl_s: float
    replaces: str | None = None
    note: str | None = None
    alert: str | None = None


@dataclass(frozen=True, slots=True)
class NewAction:
    """A write about to begin; inserted, or the same row set back to intended (new intended_at, same key)."""

    call: CallKey
    arguments_digest: str
    idempotency_key: str
    tool: str
    tool_version: str
    arguments: dict[str, Any]
    timeout_s: float
    suspension_id: str | None


@dataclass(frozen=True, slots=True)
class Outcome:
    """How an action ended, or that nobody knows: (call, arguments_digest) is set from intended or unknown."""

    call: CallKey
    arguments_digest: str
    state: ActionState
    result: str | None = None


@dataclass(frozen=True, slots=True)
class Settlement:
    """What a suspension's card says after the decision: kind "done", "not_executed", "failed", "unknown".

    *reply*: also post this line in the thread (an edit notifies nobody), mentioning the owner.
    """

    suspension_id: str
    kind: str
    text: str
    reply: str | None = None


@dataclass(frozen=True, slots=True)
class Alert:
    """A message for the alert channel, once per *key* whatever fails. *text* is plain (bot escapes it).

    *user_id*, *channel_id*, *thread_ts*: who and where, unless its run says so.
    """

    key: str
    title: str
    text: str
    user_id: str | None = None
    channel_id: str | None = None
    thread_ts: str | None = None


@dataclass(frozen=True, slots=True)
class Closing:
    """What a worker says with a halt or a failure. *detail*: words for people, on the card.

    *next_worst_usd*: worst case of the next model call, for the grant and the new ceiling on the card.
    """

    detail: str = ""
    next_worst_usd: Decimal = Decimal(0)
    alert: Alert | None = None


@dataclass(frozen=True, slots=True)
class Claimed:
    """A run that this worker holds now. *recovered*: it was reaped before (reconcile, charge the lost model call)."""

    fence: Fence
    run: Run


@dataclass(frozen=True, slots=True)
class Letter:
    """An inbox row that the drain took (leased for *lease_s* of take_mail). *kind*: "mention" or "direct".

    *text*: as typed, unescaped, without the mention of Atlas. *attempts*: failed ones so far.
    *age_s*: since it was received.
    """

    id: int
    kind: str
    team_id: str
    channel_id: str
    ts: str
    thread_ts: str
    user_id: str
    text: str
    attempts: int
    age_s: float


@dataclass(frozen=True, slots=True)
class LiveRun:
    """The live run of a (thread, owner), as the drain needs it. *open_outcome*: an outcome suspension is open.

    *open_suspensions*: ids of all open ones.
    """

    run: Run
    open_outcome: bool
    open_suspensions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Decided:
    """What a decision did. *refusal* None: recorded. *suspension*: the row after it (before it, when refused; None
    when unknown). *pending_votes*: approvals still missing (0: decided). *claimed*: the fence, when the run was
    claimed for the decider's own process in the same commit."""

    refusal: Refusal | None
    suspension: Suspension | None
    run: Run | None
    pending_votes: int = 0
    claimed: Fence | None = None


@dataclass(frozen=True, slots=True)
class Stopped:
    """What a stop did: "halted" at once, "requested" (the next act looks at it first), or "ended" (nothing to stop)."""

    how: str
    run: Run | None


@dataclass(frozen=True, slots=True)
class Continued:
    """What a continue did. *run*: after it; None: refused (not halted, another halt's button, somebody else's)."""

    run: Run | None
    claimed: Fence | None = None


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """What an acknowledgement did. *refused*: the policy does not allow it, or there is no such alert. *by*, *at*: who
    acknowledged the alert first, when."""

    refused: bool
    by: str = ""
    at: datetime | None = None


class WorkerStore(Protocol):
    """The moves of a claim's holder. Each is one transaction; ClaimLost when the fence no longer holds.

    Every method also raises StoreUnavailable, after which nothing is known of the write: the caller reads again
    (``load`` with the same fence) before it acts.
    """

    async def claim(self, worker_id: str, room: int) -> list[Claimed]:
        """Claim up to *room* unclaimed runs, longest waiting first, ``for update skip locked``.

        Only runs with crashes < 2 and recovery_attempts < 3; the others are claimed by ``claim_one``, alone.
        """
        ...

    async def claim_one(self, worker_id: str, run_id: str) -> Claimed | None:
        """Claim that very run, if it is running and unclaimed."""
        ...

    async def claims_of(self, worker_id: str) -> list[Fence]:
        """List the claims that this worker holds, to find those whose answer was lost."""
        ...

    async def to_be_alone(self, limit: int) -> list[str]:
        """List unclaimed running runs for a process of their own (crashes >= 2 or recovery_attempts >= 3)."""
        ...

    async def load(self, fence: Fence, *, late: bool = False) -> RunView:
        """Read everything that the next act depends on, as of one moment, incl. the database's clock.

        *late*: the conversation before an approved call may be left unread, where it is proved that it will decode.
        """
        ...

    async def release(self, fence: Fence) -> None:
        """running (claimed) -> running (unclaimed); no recovery attempt. No error when the claim is gone already."""
        ...

    async def step(self, fence: Fence, batch: Batch) -> int:
        """Append *batch* in one statement and one commit. Return the run's news count.

        A cancellation meanwhile does not cut it short: the answer is returned once it is known, and the caller is
        cancelled at its next wait; only when nothing is known for some seconds CancelledError comes at once.

        In every move, crashes becomes 0 only with a model's message (steps > 0): a charge or an intended action is no
        progress, and a run that dies right after one must still be counted."""
        ...

    async def answer(self, fence: Fence, batch: Batch, seen_news: int, text: str) -> None:
        """running -> answered, the answer into the outbox. NewsArrived when news > seen_news: nothing written."""
        ...

    async def intend(self, fence: Fence, batch: Batch, action: NewAction) -> None:
        """Record the action intended, and *batch*. NewsArrived when a stop was requested: nothing written."""
        ...

    async def conclude(
        self, fence: Fence, batch: Batch, outcomes: Sequence[Outcome] = (), settlements: Sequence[Settlement] = ()
    ) -> None:
        """Record outcomes, results (in *batch*) and what the cards show, in one commit."""
        ...

    async def suspend(
        self, fence: Fence, batch: Batch, seen_news: int, new: Sequence[NewSuspension], *, stay_running: bool = False
    ) -> None:
        """running -> suspended with a card each (replacing older suspensions where named). NewsArrived: nothing
        written (news > seen_news or a stop was requested). *stay_running*: a sibling still has something to do."""
        ...

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
        """Open the same approved suspension again: new token, votes void, old expiry, same message; running ->
        suspended. Return False when it is past its expiry: it became expired instead, and the run stays running
        (its next act concludes it)."""
        ...

    async def supersede_open(self, fence: Fence, batch: Batch, seen_news: int) -> None:
        """Close the run's open approvals as superseded (cards settled); it stays running. NewsArrived: nothing
        written."""
        ...

    async def wait(self, fence: Fence, batch: Batch, seen_news: int) -> None:
        """running -> suspended; only undecided calls left. NewsArrived: nothing written."""
        ...

    async def halt(
        self,
        fence: Fence,
        batch: Batch,
        reason: HaltReason,
        closing: Closing,
        settlements: Sequence[Settlement] = (),
        outcomes: Sequence[Outcome] = (),
    ) -> None:
        """running -> halted: its number goes up, stop_requested is cleared, open suspensions become stopped, the halt
        card is owed, unhandled mail goes back to the drain, the thread is free for a follow-up."""
        ...

    async def fail(
        self,
        fence: Fence,
        batch: Batch,
        reason: str,
        closing: Closing,
        settlements: Sequence[Settlement] = (),
        outcomes: Sequence[Outcome] = (),
    ) -> None:
        """running -> failed: intended actions become unknown, open suspensions stopped, cards settled, failure card
        and alert owed, mail back to the drain."""
        ...


class Desk(Protocol):
    """The moves of everybody who holds no claim: the drain, clicks, commands, the CLI. One transaction each."""

    async def take_mail(self, limit: int, lease_s: float) -> list[Letter]:
        """Lease unhandled, unattached rows that are due and whose thread has no older unhandled row."""
        ...

    async def live_run(self, letter: Letter) -> LiveRun | None:
        """Return the live run of the letter's (thread, owner)."""
        ...

    async def last_ended(self, letter: Letter) -> RunView | None:
        """Return the newest ended run of the letter's (thread, owner) with its conversation, for a follow-up."""
        ...

    async def start(self, letter: Letter, new: NewRun, worker_id: str | None) -> Fence | None:
        """-> running, and the letter handled; retires the parent's Continue. Claimed for *worker_id* if given.

        Raises Conflict when the letter is handled already or a live run exists."""
        ...

    async def attach(self, letter: Letter, run_id: str) -> bool:
        """Give the letter to a live run (its holder appends it); news goes up. False: the run ended meanwhile."""
        ...

    async def supersede(self, letter: Letter, run_id: str, worker_id: str | None) -> Fence | None:
        """suspended -> running: open approvals become superseded, the letter is attached. Conflict: not suspended, or
        an outcome suspension is open."""
        ...

    async def answer_letter(
        self, letter: Letter, notice: str | None, *, offers: bool = False, private: bool = False
    ) -> None:
        """Mark the letter handled without a run (a command, a bare assent); *notice*: a line for its thread.
        *offers*: it says what Atlas can do, so the agent's examples stand below it, to be clicked. *private*: only
        its writer reads it."""
        ...

    async def welcome(self, team_id: str, user_id: str, channel_id: str, text: str) -> bool:
        """Owe somebody, once, what Atlas can do, in their direct messages; False: they were told already."""
        ...

    async def retry_letter(self, letter: Letter, why: str, delay_s: float, notice: str | None) -> None:
        """Count a failed attempt; due again in *delay_s*. *notice*: a line for its thread, posted once."""
        ...

    async def park_letter(self, letter: Letter, why: str, notice: str, alert: Alert) -> None:
        """Give up on the letter so that it never blocks its thread; tell the thread and the alert channel."""
        ...

    async def suspension(self, suspension_id: str) -> tuple[Suspension, Run, bool] | None:
        """Return a suspension, its run, and whether its time is over by the database's clock."""
        ...

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
        """Record an approval (a vote, when more are needed), a decline, or an outcome's answer (approve=True: it
        happened). The authorizer has said yes already; this judges token, status, digest and time under the run's
        row lock, writes the audit row (also for a refusal), settles the card, and takes the run suspended -> running,
        claimed for *worker_id* when given. An expired one is expired here, as the job would."""
        ...

    async def edit(
        self, suspension_id: str, token: str, clicker: Clicker, arguments: dict[str, Any], worker_id: str | None = None
    ) -> Decided:
        """Store edited arguments; the suspension becomes edited, the run goes on to suspend again on them."""
        ...

    async def refuse(
        self, suspension: Suspension | str, clicker: Clicker, act: str, refusal: Refusal, why: str
    ) -> None:
        """Audit a refused attempt at a suspension, or (its id) at a run or a suspension that does not exist. Changes
        nothing that others see."""
        ...

    async def acknowledge(self, place: str, by: Clicker, *, allowed: bool) -> Acknowledged:
        """Note on an alert that somebody has taken it up, once, or (*allowed* False) only audit the attempt."""
        ...

    async def stop(self, run_id: str, by: Clicker) -> Stopped:
        """suspended or unclaimed, with no action intended or unknown -> halted (stopped_by_user); else
        stop_requested. An ended run: "ended"."""
        ...

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
        """halted -> running with the granted limits, once per halt; logged as run.continued with by and the previous
        reason; retires the halt card. None: not halted, another halt number, or its thread has another live run."""
        ...

    async def run(self, run_id: str) -> Run | None:
        """Return a run by id, or None."""
        ...

    async def runs(
        self, *, team_id: str | None, user_id: str | None, limit: int, states: Sequence[str] = ()
    ) -> list[Run]:
        """List runs, newest first."""
        ...

    async def thread_runs(self, team_id: str, channel_id: str, thread_ts: str, user_id: str) -> list[Run]:
        """List a person's runs of a thread, newest first."""
        ...

    async def pending(self, *, run_id: str | None = None, limit: int = 100) -> list[tuple[Suspension, Run]]:
        """List open suspensions, oldest first."""
        ...

    async def show(self, run_id: str) -> RunView | None:
        """Return a run with everything that hangs on it."""
        ...


class Directory(Protocol):
    """Facts about people. *fresh*: do not answer from a cache (which is 60 s old at most). Raises CouldNotCheck."""

    async def person(self, team_id: str, user_id: str, *, fresh: bool = False) -> Person:
        """Return what is known of somebody."""
        ...

    async def in_channel(self, channel_id: str, user_id: str, *, fresh: bool = False) -> bool:
        """Say whether somebody is a member of a channel."""
        ...

    async def in_group(self, handle: str, user_id: str, *, fresh: bool = False) -> bool:
        """Say whether somebody is a member of a user group. Raises: NoSuchGroup for a handle that nobody has."""
        ...


class Clock(Protocol):
    """Time in this process; never decides a lease or an expiry (the database's clock does)."""

    def monotonic(self) -> float:
        """Return seconds that only go forward."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        ...


class Names(Protocol):
    """Randomness: ids and tokens."""

    def run_id(self) -> str:
        """Return a new run id, short enough to type: 8 characters with at least one digit (words.command_of tells it
        from a word by that)."""
        ...

    def token(self, run_id: str) -> str:
        """Return "<run>.<random>": unguessable, and it carries its run."""
        ...


Now = Callable[[], datetime]


@dataclass(frozen=True, slots=True)
class OutboxRow:
    """A leased delivery. *place* is unique per message, e.g. "card:<suspension>". *channel_id* "" = the alert channel.

    *message_channel*, *message_ts*: the reference, once posted. *posting_age_s*: seconds since an earlier post began
    whose outcome is unknown (None: no such post).
    """

    place: str
    run_id: str | None
    kind: str
    ref: str
    channel_id: str
    thread_ts: str | None
    version: int
    delivered_version: int
    message_channel: str | None
    message_ts: str | None
    posting_age_s: float | None
    attempts: int
    lease_token: str


@dataclass(frozen=True, slots=True)
class RenderInputs:
    """What a message is rendered from, read after leasing. *versus*: the older suspension that this one replaced.

    *siblings*: the other suspensions of the run. *trace*: the last entries, oldest first. *content*: a notice's or
    alert's own. *identical_success_at*: when the same owner's same call succeeded before. *answer*: the text of an
    answer row. *links*: places -> (channel, ts) of other messages of this run. *in_line*: a waiting run's place among
    those who wait for a worker.
    """

    run: Run | None
    detail: str
    doing: str
    suspension: Suspension | None = None
    versus: Suspension | None = None
    siblings: tuple[Suspension, ...] = ()
    trace: tuple[TraceEntry, ...] = ()
    content: dict[str, Any] = field(default_factory=dict)
    answer: str | None = None
    identical_success_at: datetime | None = None
    continuable: bool = False
    links: dict[str, tuple[str, str]] = field(default_factory=dict)
    in_line: int | None = None


@dataclass(frozen=True, slots=True)
class Continuation:
    """The message that goes on where one has to end: owed once that one stands, so never before it."""

    place: str
    content: dict[str, Any]


class Outbox(Protocol):
    """What Slack messages should show. Every write is fenced by the row's lease_token (False: the lease is lost)."""

    async def take(self, limit: int, lease_s: float, owner: str | None = None) -> list[OutboxRow]:
        """Lease owed rows: cards and answers first, progress last. *owner*: the process, whose death frees them."""
        ...

    async def render_inputs(self, row: OutboxRow) -> RenderInputs:
        """Read what the row shows now; its version may be newer than the row's."""
        ...

    async def current_version(self, row: OutboxRow) -> int:
        """Return the version wanted now; read BEFORE render_inputs so that what is rendered is at least as new."""
        ...

    async def posting(self, row: OutboxRow) -> bool:
        """Store that a post is about to be sent."""
        ...

    async def delivered(
        self, row: OutboxRow, version: int, channel: str, ts: str, goes_on: Continuation | None = None
    ) -> bool:
        """Store the reference and that *version* stands there. *goes_on*: owed from now on, once."""
        ...

    async def retry(self, row: OutboxRow, error: str, delay_s: float, *, absent: bool = False) -> bool:
        """Give the lease back; due again in *delay_s*. *absent*: an unknown post is known not to exist."""
        ...

    async def postpone(self, row: OutboxRow, why: str, delay_s: float) -> bool:
        """Give the lease back untried; due again in *delay_s*."""
        ...

    async def refused(self, row: OutboxRow, error: str, *, told: str = "", absent: bool = True) -> bool:
        """Slack said no for good: not tried again; an alert is owed (once). *told*: who was told instead. *absent*: no
        post of it can stand unknown."""
        ...

    async def mirror(self, row: OutboxRow, channel_id: str) -> bool:
        """Owe the same message in somebody's direct messages; False: owed there already."""
        ...

    async def withdraw(self, row: OutboxRow, *, absent: bool = False) -> bool:
        """Owe the message no more, if nobody can have seen it; False: the lease is lost, or it may stand. *absent*: an
        unknown post of it is known not to exist."""
        ...

    async def reserve(self, team_id: str, channel_id: str, method: str, per_s: float) -> float:
        """Book the next request of that kind; return the seconds to wait before it goes out."""
        ...

    async def ahead(self, team_id: str, channel_id: str, method: str) -> float:
        """Return the seconds until a slot of that kind is free, without booking it."""
        ...

    async def back_off(self, team_id: str, channel_id: str, method: str, seconds: float) -> None:
        """Slack asked for a pause of that kind, by all replicas."""
        ...


@dataclass(frozen=True, slots=True)
class InboundEvent:
    """A Slack event as the inbox stores it, before the ack. *thread_ts*: the parent's ts (its own, at top level)."""

    event_id: str
    kind: str
    team_id: str
    channel_id: str
    ts: str
    thread_ts: str
    user_id: str
    text: str
    payload: dict[str, Any]


class Inbox(Protocol):
    """Where events go before they are acked."""

    async def put(self, event: InboundEvent) -> bool:
        """Store the event; False when it is there already. Raises StoreUnavailable: do not ack."""
        ...

    async def put_click(self, event: InboundEvent, thread_ts: str | None) -> bool:
        """Store a click on an example as its presser's message, and owe the line that says so; False when it is there.

        *thread_ts*: the thread that it goes on in; None: that line opens one. Raises StoreUnavailable: do not ack."""
        ...


class Voice(Protocol):
    """The words that the drain says in a thread; one place (bot/texts.py), one voice. All plain mrkdwn-free text."""

    def help(self, examples: Sequence[str]) -> str:
        """Return what Atlas can do."""
        ...

    def text_never_approves(self, run: Run, link: str | None) -> str:
        """Answer a bare assent while a run waits for a click."""
        ...

    def runs(self, runs: Sequence[Run]) -> str:
        """List runs."""
        ...

    def pending(self, pending: Sequence[tuple[Suspension, Run]]) -> str:
        """List what waits for the asker."""
        ...

    def show(self, view: RunView) -> str:
        """Describe one run."""
        ...

    def not_found(self) -> str:
        """Say that there is no such run (also to people whose run it is not)."""
        ...

    def elsewhere(self, run_id: str) -> str:
        """Say that a run of another conversation is not shown in this one, and where it is."""
        ...

    def continued(self, run: Run, *, here: bool = True) -> str | None:
        """Acknowledge a continue in words (None: the progress line says it). *here*: in the run's own thread."""
        ...

    def stopped(self, stopped: Stopped, *, here: bool = True) -> str | None:
        """Acknowledge a stop in words (None: the halt card says it). *here*: in the run's own thread."""
        ...

    def could_not_start(self, why: str) -> str:
        """Say that the person's permissions could not be checked and that Atlas keeps trying."""
        ...

    def parked(self, why: str) -> str:
        """Say that Atlas gave up on a message, and what to do."""
        ...

    def not_served(self) -> str:
        """Say, to somebody of another company alone, that Atlas does nothing for them."""
        ...

    def nothing_to_continue(self) -> str:
        """Say that no halted run is there to continue."""
        ...
