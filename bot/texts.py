"""All words that Atlas says in Slack: calm, exact, and every refusal with its next step.

Decides: the wording. Does not: lay anything out (blocks does) or know Slack's syntax (lines does). The failure it can
cause: a sentence that promises more than the rows say; so "done" stands only where an effect is recorded.
"""

import re
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from urllib.parse import quote

from bot.lines import Bold, Channel, Code, Group, Line, Link, Part, When, Who, clip, joined, plain, said, usd, visible
from core.approvals import Refusal, channel_of
from core.budget import BUDGET_REASONS, granted
from core.ports import Stopped
from core.run import HaltReason, Run, RunState, RunView, Suspension, SuspensionKind, SuspensionStatus
from core.tools import Approval, UserGroup

HALT_WORDS: dict[HaltReason, str] = {
    HaltReason.BUDGET_STEPS: "It has used all the steps it was given.",
    HaltReason.BUDGET_SPEND: "The next step could cost more than is left of its budget.",
    HaltReason.BUDGET_TOOL_CALLS: "It has used all the tool calls it was given.",
    HaltReason.BUDGET_ELAPSED: "It has worked for as long as it was given.",
    HaltReason.MODEL_UNAVAILABLE: "The language model could not be reached, or gave no usable answer.",
    HaltReason.OUTCOME_UNKNOWN: "It could not be found out whether an action happened, so nothing more was done.",
    HaltReason.SUSPENSION_EXPIRED: "Nobody decided in time, so nothing was done.",
    HaltReason.STOPPED_BY_USER: "It was stopped.",
}
FAIL_WORDS = {
    "recovery_exhausted": "It was interrupted more often than it may be picked up again.",
    "defect": "It ran into a defect of Atlas.",
}
STATE_WORDS = {
    RunState.RUNNING: "working",
    RunState.SUSPENDED: "waiting for a decision",
    RunState.HALTED: "stopped",
    RunState.ANSWERED: "answered",
    RunState.FAILED: "failed",
}
STATE_SIGNS = {
    RunState.RUNNING: "⏳",
    RunState.SUSPENDED: "✋",
    RunState.HALTED: "⏸️",
    RunState.ANSWERED: "✅",
    RunState.FAILED: "⛔",
}
COMMANDS: tuple[tuple[str, str], ...] = (
    ("pending", "what waits for your decision"),
    ("runs", "your latest runs"),
    ("show [RUN]", "one run in detail (your latest one)"),
    ("continue [RUN]", "let a stopped run go on (your latest one)"),
    ("stop [RUN]", "stop a run (your latest one)"),
    ("help", "this text"),
)
EXAMPLES_WITHOUT_AGENT = ("What can you do?",)
NOT_EDITABLE = "This request cannot be edited in a form. Decline it, with a reason, or write what should be different."
NOT_FOUND = "There is no such run among yours. /atlas runs lists them."
FORM_TOO_LATE = "Slack did not open the form in time, so nothing was done. Please press the button again."
BUTTON_UNREADABLE = (
    "This button carries nothing that Atlas knows, so nothing was done. Use the newest card of the thread."
)
NOTHING_TO_CONTINUE = "No stopped run of yours is there to continue. /atlas runs lists your runs."
LOST_SIGHT = "Atlas lost sight of this action and could not find out whether it happened."
COULD_NOT_BE_CHECKED = (
    "Something could not be checked after the earlier approval, so nothing was done. "
    "The card asks again: please press its button once more."
)
WHAT_IT_DOES = (
    "Ask in a channel by mentioning Atlas, or write it a direct message. Before it changes anything, it shows a card "
    "with exactly what it would do, and waits for a click."
)
NOT_AN_OPERATOR = (
    "Alerts are taken up by the operators (ATLAS_OPERATORS) or, where none are named, by members of the alert channel. "
    "Nothing was noted."
)
ACKNOWLEDGE_UNCHECKED = "Atlas could not check who you are just now, so nothing was noted. Please press again."
ASK_THIS = "Ask this"
NOT_OFFERED = "This example is no longer offered, so nothing was asked. Write to Atlas what you need."
NOT_SERVED = (
    "Atlas works for members of this workspace only, so nothing was done. Ask one of them to do it, or an admin."
)
ASKED_IN_MESSAGES = "Asked. Atlas answers in your direct messages with it."
NO_RUNS = "You have no runs yet. Ask Atlas for something: mention it in a channel, or write it a direct message."
UNKNOWN_COMMAND = "Atlas has no such command. /atlas help lists what it has."
UNKNOWN_BUTTON = "This button belongs to an older version of Atlas. Write to Atlas again, please."


def place_link(workspace_url: str, channel: str, ts: str, thread_ts: str | None = None) -> str:
    """Return the permalink of a message. Source: Slack's own form, ``/archives/<channel>/p<ts without dot>``."""
    url = f"{workspace_url.rstrip('/')}/archives/{quote(channel)}/p{ts.replace('.', '')}"
    if thread_ts and thread_ts != ts:
        url += f"?thread_ts={quote(thread_ts)}&cid={quote(channel)}"
    return url


def naming(text: str, people: set[str]) -> Line:
    """Return a text of ours with those of *people* mentioned whom it names as "@U…"; everybody else stays text."""
    parts: list[Part] = []
    for at, part in enumerate(re.split(r"@([UW][A-Z0-9]+)\b", text)):
        parts.append(part if at % 2 == 0 else Who(part) if part in people else f"@{part}")
    return tuple(part for part in parts if part)


# ---- cards -----------------------------------------------------------------------------------------------------------


def approvers(policy: Approval, run: Run, groups: Mapping[str, str]) -> Line:
    """Name who may approve. *groups*: user group handle -> id, so that it can be mentioned."""
    if policy.by == "requester":
        named: Line = (Who(run.owner.user_id),)
    elif policy.by == "anyone":
        named = ("anyone in ", Channel(channel_of(policy, run.channel_id)))
    elif isinstance(policy.by, UserGroup):
        named = (Group(policy.by.handle, groups.get(policy.by.handle)),)
    else:
        named = joined([(Who(user_id),) for user_id in policy.by], " or ")
    if policy.operators:
        named = (*named, " or an operator")
    return named


def waiting_for(suspension: Suspension, run: Run, groups: Mapping[str, str]) -> Line:
    """Say whose decision an open card waits for, and how many approvals are there."""
    if suspension.kind is SuspensionKind.OUTCOME:
        return (
            "Please look in the target system, ",
            Who(run.owner.user_id),
            ", and say whether it happened. Operators may too.",
        )
    policy = suspension.policy
    line: Line = ("Waiting for ", *approvers(policy, run, groups))
    if policy.count > 1:
        line = (*line, f" · {len(suspension.votes)} of {policy.count} approvals")
        if suspension.votes:
            line = (*line, ": ", *joined([(Who(voter),) for voter in suspension.votes], ", "))
    if not policy.self_approval:
        line = (*line, " · not whoever asked")
    return line


def silence(suspension: Suspension) -> Line:
    """Say when an open card expires and what silence means."""
    if suspension.kind is SuspensionKind.OUTCOME:
        return ("Answer until ", When(suspension.expires_at), "; without one the run stops and nothing more is done.")
    return ("Decide until ", When(suspension.expires_at), "; silence means that nothing is done.")


def pointer(
    suspension: Suspension,
    run: Run,
    link: Link | None,
    newer: Link | None,
    *,
    in_messages: bool = False,
    again: bool = False,
) -> tuple[str, Line]:
    """Return the sign and words of the quiet line that stands in the thread for a card in another channel.

    *link*: to that card, once it stands. *in_messages*: it stands in direct messages only. *again*: see ``phase``.
    Mentions nobody.
    """
    where: Line = (" · ", link) if link else ()
    title = clip(visible(str(suspension.preview.get("title") or suspension.tool)), 150)
    if suspension.status is not SuspensionStatus.OPEN:
        sign, words = phase(suspension, newer, again=again)
        return sign, (*words, f" · {title}", *where)
    there: Line = ("in ", Channel(channel_of(suspension.policy, run.channel_id)))
    if in_messages:
        there = ("in direct messages, since it cannot be asked ", *there)
    return "✋", (f"{title} waits for a decision ", *there, *where)


def reminder(
    suspension: Suspension, run: Run, groups: Mapping[str, str], operators: Sequence[str], link: Link | None
) -> Line:
    """Remind those who can still act that an open card is about to expire."""
    title = clip(visible(str(suspension.preview.get("title") or suspension.tool)), 150)
    until: Line = (When(suspension.expires_at), "; silence means that nothing is done.")
    where: Line = (" ", link) if link else ()
    people = _can_act(suspension, run, groups, operators)
    named: Line = (*joined([(person,) for person in people], " "), " · ") if people else ()
    return ("⏰ ", *named, Bold(title), " still waits. Decide until ", *until, *where)


def _can_act(
    suspension: Suspension, run: Run, groups: Mapping[str, str], operators: Sequence[str]
) -> list[Who | Group | str | Channel]:
    """List whom to mention: approvers who have not approved yet and may, then operators where they may."""
    policy = suspension.policy
    chosen = sorted(operators) if policy.operators or suspension.kind is SuspensionKind.OUTCOME else []
    requesters = list(dict.fromkeys([run.owner.user_id, suspension.asked_by]))
    if suspension.kind is SuspensionKind.OUTCOME or policy.by == "requester":
        chosen = [*requesters, *chosen] if policy.self_approval else chosen
    elif isinstance(policy.by, tuple):
        chosen = [*policy.by, *chosen]
    barred = {*suspension.votes, *(() if policy.self_approval else requesters)}
    people: list[Who | Group | str | Channel] = [Who(it) for it in dict.fromkeys(chosen) if it not in barred]
    if isinstance(policy.by, UserGroup):
        people.insert(0, Group(policy.by.handle, groups.get(policy.by.handle)))
    if policy.by == "anyone":
        people = ["anyone in", Channel(channel_of(policy, run.channel_id)), *people]
    return people


def phase(suspension: Suspension, newer: Link | None, *, again: bool = False) -> tuple[str, Line]:
    """Return a decided card's sign and what became of it. *newer*: a link to the card that replaced it. *again*: its
    expiry ended the run, which somebody let go on since."""
    by = Who(suspension.decided_by or "somebody")
    match suspension.status:
        case SuspensionStatus.APPROVED:
            return _after_approval(suspension, by)
        case SuspensionStatus.DECLINED:
            why: Line = (": ", said(suspension.reason)) if suspension.reason else ()
            return "🚫", (Bold("Declined"), " by ", by, *why)
        case SuspensionStatus.EXPIRED:
            at = When(suspension.expires_at)
            if suspension.kind is SuspensionKind.OUTCOME:
                went_on: Line = (" · the run went on",) if again else ()
                return "⌛", (Bold("Expired"), " ", at, ", still unknown whether it happened", *went_on)
            asked: Line = (" · asked again",) if again else ()
            return "⌛", (Bold("Expired"), " ", at, ", nothing was done", *asked)
        case SuspensionStatus.REPLACED:
            where: Line = (" · ", newer) if newer else ()
            return "🔁", (Bold("Replaced by a newer version"), *where)
        case SuspensionStatus.SUPERSEDED:
            return "↩️", (Bold("Replaced by a new instruction"), ", nothing was done")
        case SuspensionStatus.EDITED:
            return "✏️", (Bold("Edited"), " by ", Who(suspension.edited_by or suspension.decided_by or "somebody"))
        case SuspensionStatus.STOPPED:
            stopper = re.fullmatch(r"stopped by (\S+)", suspension.reason or "")
            by = Who(stopper[1]) if stopper else by
            who: Line = (" by ", by) if stopper or suspension.decided_by else ()
            return "⏹️", (Bold("Stopped"), *who, ", nothing was done")
        case SuspensionStatus.HAPPENED:
            return "✅", (Bold("It happened"), ", says ", by)
        case SuspensionStatus.DID_NOT_HAPPEN:
            return "🚫", (Bold("It did not happen"), ", says ", by, " · not counted as done")
        case _:
            return "✋", ("Waiting for a decision",)


def _after_approval(suspension: Suspension, by: Who) -> tuple[str, Line]:
    text = visible(suspension.settled_text or "")
    people = joined([(Who(voter),) for voter in suspension.votes] or [(by,)], ", ")
    approved: Line = (" · approved by ", *people)
    match suspension.settled_kind:
        case "done":
            return "✅", (Bold("Done"), *((" · ", text) if text else ()), *approved)
        case "not_executed":
            return "🚫", (Bold("Not executed"), *((": ", text) if text else ()), *approved)
        case "failed":
            return "⛔", (Bold("Failed"), *((": ", text) if text else ()), *approved)
        case "unknown":
            return "❓", (Bold("Outcome unknown, checking"), *((" · ", text) if text else ()), *approved)
        case _:
            return "⏳", (Bold("Approved"), " by ", *people, " · running")


# ---- runs ------------------------------------------------------------------------------------------------------------


def steps(count: int) -> str:
    """Return "1 step" or "4 steps"."""
    return f"{count} step" if count == 1 else f"{count} steps"


def progress(run: Run, doing: str, in_line: int | None = None) -> Line:
    """Say what a run does now and what it used; after its end, how it ended. *in_line*: its place while it waits."""
    used = f"{steps(run.step)} · {usd(run.spend_usd)}"
    match run.state:
        case RunState.RUNNING:
            if in_line is not None:
                so_far = f" · {used} so far" if run.step else ""
                return (f"⏳ In line: place {in_line:,}{so_far}",)
            now = visible(doing) or "working on it"
            reached = min(run.step + 1, run.limits.max_steps)
            of = f"step {reached} of at most {run.limits.max_steps}"
            return (f"⏳ {now[:1].upper()}{now[1:]} · {of} · {usd(run.spend_usd)} so far",)
        case RunState.SUSPENDED:
            return (f"✋ Waiting for a decision · {used} so far",)
        case RunState.HALTED:
            return (f"⏸️ Stopped · {used}",)
        case RunState.FAILED:
            return (f"⛔ Failed · {used}",)
        case RunState.ANSWERED:
            return (f"✅ Answered · {used}",)


def halt_reason(run: Run, detail: str) -> Line:
    """Say why a run is halted."""
    stopper = re.fullmatch(r"Stopped by @(\S+)\.", detail)
    if stopper and run.halt_reason is HaltReason.STOPPED_BY_USER:
        return ("It was stopped by ", Who(stopper[1]), ".")
    words = HALT_WORDS[run.halt_reason] if run.halt_reason else "It was stopped."
    return (words, " ", visible(detail)) if detail else (words,)


def halt_numbers(run: Run) -> Line:
    """Say what a halted run used and what a continue would grant."""
    used: Line = ("Used so far: ", Bold(f"{steps(run.step)}, {usd(run.spend_usd)}"), ".")
    if run.halt_reason is HaltReason.SUSPENSION_EXPIRED:
        return (*used, " Continue asks again, as “Ask again” on the card does, within the same budget.")
    if run.halt_reason not in BUDGET_REASONS:
        return (*used, " Continue goes on within the same budget.")
    new = granted(run)
    more = new.max_steps - run.step
    ceiling = f"{usd(new.max_spend_usd)} in all, {steps(more)} more"
    if new.max_tool_calls > run.limits.max_tool_calls:
        ceiling += f", {new.max_tool_calls} tool calls in all"
    if new.max_elapsed_s > run.limits.max_elapsed_s:
        ceiling += f", {round(new.max_elapsed_s)} s of work in all"
    return (*used, " Continue raises the limit to ", Bold(ceiling), ".")


def fail_reason(run: Run, detail: str) -> Line:
    """Say why a run failed, and what to do."""
    words = FAIL_WORDS.get(run.fail_reason or "", "It could not go on.")
    return (words, *((" ", visible(detail)) if detail else ()), " Ask again here to start anew.")


def one_run(run: Run, link: Link | None) -> Line:
    """Describe a run in one line."""
    reason: Line = ()
    if run.state is RunState.HALTED and run.halt_reason not in (None, HaltReason.STOPPED_BY_USER):
        reason = (f" ({HALT_WORDS[run.halt_reason].rstrip('.').lower()})",)
    where: Line = (" · ", link) if link else ()
    question = clip(visible(run.question), 80)
    used = f" · {STATE_WORDS[run.state]}"
    return (f"{STATE_SIGNS[run.state]} ", Code(run.id), f" {question}{used}", *reason,
            f" · {steps(run.step)}, {usd(run.spend_usd)}", *where)  # fmt: skip


def one_pending(suspension: Suspension, run: Run, link: Link | None) -> Line:
    """Describe what waits in one line."""
    title = clip(visible(str(suspension.preview.get("title") or suspension.tool)), 80)
    where: Line = (" · ", link) if link else ()
    return ("✋ ", Code(run.id), f" {title} · asked by ", Who(run.owner.user_id), " · until ",
            When(suspension.expires_at), *where)  # fmt: skip


# ---- refusals --------------------------------------------------------------------------------------------------------


def refusal(
    kind: Refusal, suspension: Suspension | None, run: Run | None, link: Link | None, groups: Mapping[str, str]
) -> Line:
    """Say why a click did nothing, and what to do next. *link*: to the run's thread or its newest card."""
    there: Line = (" ", link) if link else ()
    owner = run.owner.user_id if run else ""
    match kind:
        case Refusal.DECIDED:
            return (*_decided_already(suspension), " Nothing was changed by your click.", *there)
        case Refusal.EXPIRED:
            ask: Line = (" Press Ask again on the card or write “continue” in the thread.",)
            if run:
                ask = (" Its owner, ", Who(owner), ", can press Ask again on the card.")
            at: Line = (" at ", When(suspension.expires_at)) if suspension else ()
            return ("This request expired", *at, ", and nothing was done.", *ask)
        case Refusal.REPLACED:
            return ("This card was replaced by a newer version. Please decide on the newest card.", *there)
        case Refusal.NOT_AN_APPROVER:
            may: Line = ("the policy says who.",)
            if suspension and suspension.kind is SuspensionKind.OUTCOME:
                may = (Who(owner), " and the operators may answer.")
            elif suspension and run:
                may = (*approvers(suspension.policy, run, groups), " may.")
            return ("You are not an approver of this request, so nothing was done. Ask somebody who is: ", *may)
        case Refusal.OWN_REQUEST:
            who: Line = (*approvers(suspension.policy, run, groups), " may") if suspension and run else ("theirs",)
            return ("You asked for this yourself, and its policy wants somebody else's approval: ", *who, ".")
        case Refusal.COULD_NOT_CHECK:
            return ("Atlas could not check whether you may do this, so nothing was done. Please press again.",)
        case Refusal.PRESS_AGAIN:
            return (COULD_NOT_BE_CHECKED, *there)
        case Refusal.UNKNOWN:
            return ("Atlas knows no such request. Use the newest card of the thread, or /atlas pending.",)


def _decided_already(suspension: Suspension | None) -> Line:
    if suspension is None or not suspension.decided_by:
        return ("This request is closed already.",)
    words = {
        SuspensionStatus.DECLINED: "Declined",
        SuspensionStatus.EDITED: "Edited",
        SuspensionStatus.STOPPED: "Stopped",
        SuspensionStatus.HAPPENED: "Answered “it happened”",
        SuspensionStatus.DID_NOT_HAPPEN: "Answered “it did not happen”",
    }
    at: Line = (" at ", When(suspension.decided_at)) if suspension.decided_at else ()
    return (words.get(suspension.status, "Approved"), " already by ", Who(suspension.decided_by), *at, ".")


# ---- help and answers in words ---------------------------------------------------------------------------------------


def help_lines(examples: Sequence[str]) -> list[Line]:
    """Return what Atlas can do, with up to three examples, then the commands."""
    lines: list[Line] = [(WHAT_IT_DOES,), (Bold("For example"),)]
    lines += [("• ", visible(example)) for example in (tuple(examples)[:3] or EXAMPLES_WITHOUT_AGENT)]
    return [*lines, *command_lines()]


def command_lines() -> list[Line]:
    """Return the commands, and where each form of them works."""
    lines: list[Line] = [(Bold("Commands"), " (/atlas … anywhere, “@Atlas …” inside a thread)")]
    return [*lines, *(("• ", Code(command), f" {what}") for command, what in COMMANDS)]


def show_lines(view: RunView) -> list[Line]:
    """Describe one run and what hangs on it."""
    run = view.run
    lines: list[Line] = [one_run(run, None)]
    if run.state is RunState.HALTED:
        lines.append((*halt_reason(run, ""), " ", *halt_numbers(run)))
    if run.state is RunState.FAILED:
        lines.append(fail_reason(run, ""))
    limits = run.limits
    budget = (
        f"{run.step} of {limits.max_steps} steps",
        f"{run.tool_calls} of {limits.max_tool_calls} tool calls",
        f"{usd(run.spend_usd)} of {usd(limits.max_spend_usd)}",
        f"{seconds(run.elapsed_ms)} of {round(limits.max_elapsed_s)} s",
    )
    lines.append((f"Budget: {', '.join(budget)}",))
    for suspension in view.suspensions:
        title = clip(visible(str(suspension.preview.get("title") or suspension.tool)), 80)
        sign, words = phase(suspension, None)
        lines.append((f"{sign} {title}: ", *words))
    lines += [(f"• {action.tool}: {action.state.value} · ", When(action.intended_at)) for action in view.actions]
    return lines


def seconds(ms: int) -> str:
    """Return milliseconds as seconds for people."""
    return f"{Decimal(ms) / 1000:.1f}".removesuffix(".0")


class Texts:
    """What the drain says in a thread: implements core.ports.Voice."""

    def help(self, examples: Sequence[str]) -> str:
        """Return what Atlas can do."""
        return _paragraphs(help_lines(examples))

    def text_never_approves(self, run: Run, link: str | None) -> str:
        """Answer a bare assent while a run waits for a click."""
        where = f" It is here: {link}" if link else ""
        return f"Text never approves anything. Please press Approve or Decline on the card.{where}"

    def runs(self, runs: Sequence[Run]) -> str:
        """List runs."""
        return _paragraphs([one_run(run, None) for run in runs]) if runs else NO_RUNS

    def pending(self, pending: Sequence[tuple[Suspension, Run]]) -> str:
        """List what waits for the asker."""
        if not pending:
            return "Nothing waits for your decision."
        # Mentions are not live in plain text, so the asker is named by id nowhere: the card in the thread says it.
        rows = [(f"✋ {run.id} {clip(visible(str(s.preview.get('title') or s.tool)), 80)} · until ", When(s.expires_at))
                for s, run in pending]  # fmt: skip
        return _paragraphs(rows)

    def show(self, view: RunView) -> str:
        """Describe one run."""
        return _paragraphs(show_lines(view))

    def not_found(self) -> str:
        """Say that there is no such run (also to people whose run it is not)."""
        return NOT_FOUND

    def elsewhere(self, run_id: str) -> str:
        """Say that a run of another conversation is not shown in this one, and where it is."""
        return f"Run {run_id} belongs to another conversation. /atlas show {run_id} shows it to you alone."

    def continued(self, run: Run, *, here: bool = True) -> str | None:
        """Say nothing in the run's own thread: the progress line shows that it goes on."""
        return None if here else continued_words(run)

    def stopped(self, stopped: Stopped, *, here: bool = True) -> str | None:
        """Acknowledge a stop in words; None when the halt card says it."""
        return None if here and stopped.how == "halted" else stopped_words(stopped)

    def could_not_start(self, why: str) -> str:
        """Say that the person's permissions could not be checked and that Atlas keeps trying."""
        return f"I could not check what you may do ({visible(why)}). Nothing was done; I keep trying for 5 minutes."

    def parked(self, why: str) -> str:
        """Say that Atlas gave up on a message, and what to do."""
        return f"I could not take this message up ({visible(why)}). Nothing was done; please write it again later."

    def nothing_to_continue(self) -> str:
        """Say that no halted run is there to continue."""
        return NOTHING_TO_CONTINUE

    def not_served(self) -> str:
        """Say, to somebody of another company alone, that Atlas does nothing for them; names nobody."""
        return NOT_SERVED


def stopped_words(stopped: Stopped) -> str:
    """Say what a stop did."""
    if stopped.run is None:
        return "There is no run of yours to stop. /atlas runs lists your runs."
    match stopped.how:
        case "halted":
            return f"Run {stopped.run.id} is stopped. Continue lets it go on: the button, or /atlas continue."
        case "requested":
            return f"Run {stopped.run.id} stops as soon as what it is doing just now has ended."
        case _:
            return f"Run {stopped.run.id} has ended already. /atlas show {stopped.run.id} says how."


def no_run_to_continue(run_id: str) -> str:
    """Say that a person has no run of that name (somebody else's looks the same)."""
    return f"Nothing was continued: no run of yours is called “{run_id}”. /atlas runs lists your runs."


def not_continued_words(run: Run | None, user_id: str, *, by_button: bool = True) -> str:
    """Say why a person's Continue did nothing. *run*: as it is now; None: one that the person may not see."""
    if run is None or run.owner.user_id != user_id:
        return "Nothing was continued: only the person who asked can continue this run."
    match run.state:
        case RunState.RUNNING | RunState.SUSPENDED:
            return f"Nothing was continued: run {run.id} goes on already. /atlas show {run.id} says what it does."
        case RunState.HALTED:
            # It may have stopped anew since it was refused.
            earlier = "this button is of an earlier stop" if by_button else "it went on and stopped anew just now"
            return f"Nothing was continued: a newer message took over, or {earlier}. Use the newest card of the thread."
        case _:
            return f"Nothing was continued: run {run.id} has ended. Mention Atlas in the thread to ask for more."


def continued_words(run: Run) -> str:
    """Say that a run goes on, and with what."""
    return f"Run {run.id} goes on, with up to {run.limits.max_steps} steps and {usd(run.limits.max_spend_usd)} in all."


def lasting(duration: timedelta) -> str:
    """Return a duration as minutes for people."""
    minutes = max(1, round(duration.total_seconds() / 60))
    return "1 minute" if minutes == 1 else f"{minutes} minutes"


def _paragraphs(lines: Sequence[Line]) -> str:
    return "\n".join(plain(line) for line in lines)


ADVICE = {
    "failed": "Read what became of its writes. Its owner may ask again in the thread: that starts a new run.",
    "suspension": "Look in the target system, then answer on the card in the thread.",
    "outcome-unknown": "Look in the target system, then answer on the card; after that its owner may continue the run.",
    "unknown": "Look in the target system, then answer on the card; after that its owner may continue the run.",
    "refused": "Let Atlas write there again: invite it, unarchive the channel, or give it the oauth scope that the "
    "error names.",
    "letter": "Repair the cause. The writer was told that nothing was done, and may write the message again.",
}


def alert_advice(place: str) -> str:
    """Say what to do about the alert at *place* ("alert:<kind>:…")."""
    return ADVICE.get(place.split(":")[1] if place.count(":") else "", "Look at the run and at the log.")


def alert_about(run: Run | None, who: str | None, channel: str | None, link: Link | None) -> Line:
    """Say whose run or message an alert is about, and where to look. *channel*: another one than the link's."""
    where: Line = (*((" · in ", Channel(channel)) if channel else ()), *((" · ", link) if link else ()))
    if run is None:
        writer: Line = ("Written by ", Who(who)) if who else ()
        return (*writer, *where) if writer else where[1:]
    look = Code(f"atlas show {run.id}")
    return ("Run ", Code(run.id), " of ", Who(run.owner.user_id), f" · {STATE_WORDS[run.state]} · look: ", look, *where)


def acknowledged(by: str, at: datetime | None) -> Line:
    """Say who has taken an alert up."""
    when: Line = (" ", When(at, "{date_short_pretty} {time}")) if at else ()
    return ("👀 Acknowledged by ", Who(by), *when)
