"""Suspension cards: what is asked, what may be pressed, what became of it. Rendered from rows, never parsed back.

Decides: what an approver sees before the click and everybody after it. Does not: judge clicks. The failure it can
cause: a card that shows less than the digest covers; an artefact that does not fit has no Approve on its card.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from bot import texts
from bot.blocks.artefact import (
    HEADER,
    artefact,
    beginning,
    change_list,
    fits,
    header,
    quoted,
    rich_line,
    titled,
)
from bot.blocks.changes import Change, changes_between, preview_of
from bot.lines import Block, Bold, Code, Line, Link, When, Who, clip, mrkdwn, plain_text, set_apart, visible
from core.ports import RenderInputs
from core.run import Run, Suspension, SuspensionKind, SuspensionStatus

LONGEST_REASON = 1_000
# The note of a changed card; its first line says so already.
_SAID_BY_VERSUS = "it changed while it was waiting"


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What rendering needs to know: the workspace's address, ids of user groups by handle, the operators, and what the
    agent offers as examples."""

    url: str = ""
    groups: Mapping[str, str] = field(default_factory=dict)
    operators: frozenset[str] = frozenset()
    examples: tuple[str, ...] = ()

    def link(self, at: tuple[str, str] | None, label: str, thread_ts: str | None = None) -> Link | None:
        """Return a link to a message, if the workspace's address and the message's place are known."""
        if at is None or not self.url or not at[0] or not at[1]:
            return None
        return Link(texts.place_link(self.url, at[0], at[1], thread_ts), label)


def press_value(suspension: Suspension) -> str:
    """Return what a button carries: suspension, token and the digest that its reader saw. Under 2,000 characters."""
    return json.dumps({"s": suspension.id, "t": suspension.token, "d": suspension.digest}, separators=(",", ":"))


def button(action: str, label: str, value: str, style: str | None = None, confirm: Block | None = None) -> Block:
    """Return a button element."""
    element: Block = {"type": "button", "action_id": action, "text": {**plain_text(label, 75), "emoji": True}}
    element["value"] = value
    if style:
        element["style"] = style
    if confirm:
        element["confirm"] = confirm
    return element


def continue_value(run: Run) -> str:
    """Return what a Continue button carries: the run, and the number of the halt that it continues."""
    return json.dumps({"r": run.id, "n": run.halts}, separators=(",", ":"))


def context(*lines: Line) -> Block:
    """Return small print; each line escaped on its own."""
    elements = [{"type": "mrkdwn", "text": mrkdwn(line), "verbatim": True} for line in lines if line]
    return {"type": "context", "elements": elements[:10]}


def card(
    inputs: RenderInputs, around: Surroundings, *, table: bool = True, away: bool = False
) -> tuple[str, list[Block]]:
    """Return a suspension's fallback text and blocks, before or after its decision. *away*: it stands elsewhere than in
    the run's thread, so it says where it comes from."""
    suspension = inputs.suspension
    run = inputs.run
    if suspension is None or run is None:
        raise LookupError("a card without its suspension or run")
    preview = preview_of(suspension)
    changes = changes_between(inputs.versus, suspension) if inputs.versus else []
    whole = fits(preview, changes)
    is_open = suspension.status is SuspensionStatus.OPEN
    if suspension.kind is SuspensionKind.OUTCOME:
        blocks = [header("Did it happen?")]
    else:
        blocks = [header(set_apart(preview.title))]
    fallback = _status(blocks, suspension, run, inputs, around, preview.title)
    if is_open and inputs.versus:
        blocks += change_list(changes)
    if suspension.kind is SuspensionKind.OUTCOME and not (whole and len(visible(preview.title)) > HEADER):
        blocks.append(titled("Action", clip(visible(preview.title), 1_000)))
    blocks += artefact(preview, table=table) if whole else beginning(preview, _all_of_it(suspension) if is_open else "")
    if is_open:
        blocks.append({"type": "actions", "elements": buttons(suspension, whole=whole)})
    elif suspension.status is SuspensionStatus.EXPIRED and inputs.continuable:
        blocks.append(
            {"type": "actions", "elements": [button("continue", "Ask again", continue_value(run), "primary")]}
        )
    if away:
        back = around.link((run.channel_id, run.thread_ts), "Open the thread")
        blocks.append(context(("Asked for with: ", clip(visible(run.question), 300), *((" · ", back) if back else ()))))
    blocks.append(_footer(suspension, inputs, is_open=is_open))
    return fallback, blocks


def _all_of_it(suspension: Suspension) -> str:
    read = " Press Details to read all of it"
    return f"{read}." if suspension.kind is SuspensionKind.OUTCOME else f"{read}; Approve is on its last page."


def pointer(inputs: RenderInputs, around: Surroundings) -> tuple[str, list[Block]]:
    """Return the quiet line that stands in the thread for a card in another channel: no buttons, mentions nobody."""
    suspension, run = inputs.suspension, inputs.run
    if suspension is None or run is None:
        raise LookupError("a pointer without its suspension or run")
    place = f"card:{suspension.id}"
    at = inputs.links.get(place)
    link = around.link(at, "open the card")
    newer = inputs.links.get(f"card:{suspension.replaced_by}") if suspension.replaced_by else None
    copied = at is None and any(other.startswith(f"{place}:") for other in inputs.links)
    again = bool(inputs.content.get("asked_again"))
    sign, words = texts.pointer(suspension, run, link, around.link(newer, "open it"), in_messages=copied, again=again)
    line: Line = (f"{sign} ", *_short(words))
    return mrkdwn(line), [context(line)]


def reminder(inputs: RenderInputs, around: Surroundings) -> tuple[str, list[Block]]:
    """Return the line that reminds those who can still decide, and after that says what became of it; nothing of it
    may be pressed."""
    suspension, run = inputs.suspension, inputs.run
    if suspension is None or run is None:
        raise LookupError("a reminder without its suspension or run")
    link = around.link(inputs.links.get(f"card:{suspension.id}"), "Open the card")
    if suspension.status is not SuspensionStatus.OPEN:
        newer = inputs.links.get(f"card:{suspension.replaced_by}") if suspension.replaced_by else None
        sign, words = texts.pointer(suspension, run, link, around.link(newer, "open it"))
        settled: Line = (f"{sign} ", *_short(words))
        return mrkdwn(settled), [context(settled)]
    line = texts.reminder(suspension, run, around.groups, tuple(around.operators), link)
    return mrkdwn(line), [rich_line(line)]


def _status(
    blocks: list[Block], suspension: Suspension, run: Run, inputs: RenderInputs, around: Surroundings, title: str
) -> str:
    """Append the lines that say where the suspension stands; return the fallback text.

    The first of them stands below the header of every card, open or not, so that nothing else can be taken for it.
    """
    title = clip(visible(title), 150)
    if suspension.status is not SuspensionStatus.OPEN:
        newer = inputs.links.get(f"card:{suspension.replaced_by}") if suspension.replaced_by else None
        again = bool(inputs.content.get("asked_again"))
        link = around.link(newer, "open it", run.thread_ts)
        sign, words = texts.phase(suspension, link, again=again)
        reason = suspension.reason if suspension.status is SuspensionStatus.DECLINED else None
        bare = texts.phase(replace(suspension, reason=None), link, again=again)[1] if reason else words
        blocks.append(rich_line((f"{sign} ", *_short(bare))))
        if reason:
            blocks.append(quoted(clip(reason, LONGEST_REASON)))
        return mrkdwn((f"{sign} ", *_short(words), f" · {title}"))
    waiting = texts.waiting_for(suspension, run, around.groups)
    if suspension.kind is SuspensionKind.OUTCOME:
        waiting = (f"{texts.LOST_SIGHT} ", *waiting)
    text = mrkdwn(("✋ ", *waiting))
    blocks.append({"type": "section", "text": {"type": "mrkdwn", "text": text[:3000], "verbatim": True}})
    editor = inputs.versus.edited_by if inputs.versus else None
    if editor:
        blocks.append(
            rich_line((Bold("Edited by "), Who(editor), ", so it is asked anew. Please look at what changed."))
        )
    elif inputs.versus:
        blocks.append(
            rich_line((Bold("This changed while it was waiting"), ", so it is asked again. Please look anew."))
        )
    if suspension.note and not (inputs.versus and (editor or suspension.note == _SAID_BY_VERSUS)):
        note = texts.naming(clip(visible(suspension.note), 1_000), _concerned(inputs))
        blocks.append(rich_line(("Note: ", *note)))
    question = "Did it happen" if suspension.kind is SuspensionKind.OUTCOME else "Waiting for approval"
    return mrkdwn((f"✋ {question}: {title} · asked by ", Who(suspension.asked_by)))


def _concerned(inputs: RenderInputs) -> set[str]:
    """Return whom a note of ours may name: those who already have a part in the request."""
    found = {inputs.run.owner.user_id} if inputs.run else set()
    for one in (inputs.suspension, inputs.versus):
        if one is not None:
            found |= {it for it in (one.asked_by, one.decided_by, one.edited_by, *one.votes) if it}
    return found


def _short(line: Line) -> Line:
    return tuple(clip(part, 1_500) if isinstance(part, str) and len(part) > 1_500 else part for part in line)


def buttons(suspension: Suspension, *, whole: bool) -> list[Block]:
    """Return what may be pressed on an open card. *whole*: everything is visible, so Approve may stand here."""
    value = press_value(suspension)
    if suspension.kind is SuspensionKind.OUTCOME:
        answers = [
            button("happened", "It happened", value, "primary"),
            button("did_not_happen", "It did not happen", value, "danger"),
        ]
        return answers if whole else [*answers, button("details", "Details", value)]
    decline = button("decline", "Decline", value, "danger")
    if not whole:
        return [button("details", "Details", value, "primary"), decline, button("edit", "Edit", value)]
    confirm = None
    if suspension.policy.severity == "high":
        confirm = confirm_dialog(preview_of(suspension).title)
    return [button("approve", "Approve", value, "primary", confirm), decline, button("edit", "Edit", value)]


def confirm_dialog(title: str) -> Block:
    """Return the dialog that a severe action asks for before its Approve counts."""
    return {
        "title": plain_text("Really approve?", 100),
        "text": plain_text(f"{clip(visible(title), 200)}. This is marked as severe.", 300),
        "confirm": plain_text("Approve", 30),
        "deny": plain_text("Not yet", 30),
    }


def _footer(suspension: Suspension, inputs: RenderInputs, *, is_open: bool) -> Block:
    digests: Line = ("digest ", Code(suspension.digest[:8]))
    if inputs.versus:
        digests = ("digest ", Code(inputs.versus.digest[:8]), " → ", Code(suspension.digest[:8]))
    lines: list[Line] = []
    if is_open:
        lines.append(texts.silence(suspension))
    if suspension.decided_at and not is_open:
        lines.append(("Decided ", When(suspension.decided_at, "{date_short_pretty} {time}")))
    lines.append(("Asked by ", Who(suspension.asked_by), " · ", Code(f"{suspension.tool}"), " · ", *digests))
    if is_open and inputs.identical_success_at:
        when = When(inputs.identical_success_at, "{date_short_pretty} {time}")
        lines.append(("⚠️ An identical one succeeded ", when, "."))
    return context(*lines)


def changes_of(suspension: Suspension, versus: Suspension | None) -> list[Change]:
    """List what changed against the version that this one replaced."""
    return changes_between(versus, suspension) if versus else []
