"""Messages about a run: progress line, answer, halt and failure cards, notices, alerts.

Decides: their layout, and how a long answer is split. Does not: store or send. The failure it can cause: an answer
whose text could mention people or hide a link's target; so its markdown is tamed first.
"""

import json
from datetime import datetime
from typing import Any

from bot import texts
from bot.blocks.artefact import header, rich_line
from bot.blocks.cards import Surroundings, button, context, continue_value
from bot.lines import (
    EMPTY,
    Block,
    Bold,
    Code,
    Line,
    Part,
    Who,
    clip,
    escape_and_clip,
    is_person,
    mrkdwn,
    plain_text,
    rich,
    tame_markdown,
    usd,
    visible,
    whole,
)
from core.ports import RenderInputs, TraceEntry
from core.run import Run, RunState

# Slack: 12,000 characters summed over a payload's markdown blocks; 3,000 for other text.
MARKDOWN = 12_000
FALLBACK = 3_000
_REST_PART = 2_800
_REST_PARTS = 12


def progress(inputs: RenderInputs) -> tuple[str, list[Block]]:
    """Return the one edited line that says what a run does; after its end, how it ended, small."""
    run = _run(inputs)
    line = texts.progress(run, inputs.doing)
    if run.state not in (RunState.RUNNING, RunState.SUSPENDED):
        return mrkdwn(line), [context((*line, " · ", Code(run.id)))]
    stop = button("stop", "Stop", json.dumps({"r": run.id}))
    return mrkdwn(line), [context((*line, " · ", Code(run.id))), {"type": "actions", "elements": [stop]}]


def answer(inputs: RenderInputs) -> tuple[str, list[Block]]:
    """Return an answer as markdown; what exceeds Slack's 12,000 characters follows as literal text, cut at the end."""
    text = tame_markdown(inputs.answer or "").strip() or "The answer is empty."
    head, rest = split(text, MARKDOWN)
    blocks: list[Block] = [{"type": "markdown", "text": head}]
    for _part in range(_REST_PARTS):
        if not rest:
            break
        head, rest = split(rest, _REST_PART)
        blocks.append(rich_line((head,)))
    if rest:
        blocks.append(context((f"… cut: {len(rest):,} more characters. Ask for the part that you need.",)))
    return escape_and_clip(whole(inputs.answer or "") or "The answer is empty.", FALLBACK), blocks


def split(text: str, limit: int) -> tuple[str, str]:
    """Return the first part of *text*, of at most *limit* characters, and the rest.

    Cuts between paragraphs, lines or words, in this order. A code fence that is open at the cut is closed and opened
    again with the same language; a table goes over whole, or its header is said again.
    """
    if len(text) <= limit:
        return text, ""
    room = limit - 8
    cut = room
    for between in ("\n\n", "\n", " "):
        at = text.rfind(between, room // 2, room)
        if at > 0:
            cut = at
            break
    head, rest = text[:cut].rstrip(), text[cut:].lstrip("\n")
    fences = [line.strip() for line in head.split("\n") if line.lstrip().startswith("```")]
    if len(fences) % 2:
        language = fences[-1][3:].strip()
        return f"{head}\n```", f"```{language if len(language) < 30 else ''}\n{rest}"
    return _around_table(head, rest, limit)


def _around_table(head: str, rest: str, limit: int) -> tuple[str, str]:
    """Move the cut out of a table: before it, when enough is left, else between its rows with the header again."""
    if not (_is_row(rest.partition("\n")[0]) and _is_row(head.rpartition("\n")[2])):
        return head, rest
    lines = head.split("\n")
    first = len(lines)
    while first and _is_row(lines[first - 1]):
        first -= 1
    before = "\n".join(lines[:first]).rstrip()
    if len(before) > limit // 2:
        return before, "\n".join(lines[first:]) + "\n" + rest
    header = lines[first : first + 2]
    ruled = len(header) == 2 and set(header[1].strip()) <= set("|-: ")
    if ruled and sum(map(len, header)) < limit // 4:
        rest = "\n".join([*header, rest])
    return head, rest


def _is_row(line: str) -> bool:
    return line.lstrip().startswith("|")


def halt(inputs: RenderInputs, halt_number: str) -> tuple[str, list[Block]]:
    """Return a halt's card: why, what it used, what Continue would grant; Continue only while it would work."""
    run = _run(inputs)
    question = clip(visible(run.question), 300)
    current = run.state is RunState.HALTED and halt_number in ("", str(run.halts))
    if not current:
        line: Line = ("▶️ Continued" if run.halts else "▶️ Going on", " · ", Code(run.id))
        return mrkdwn(line), [context(line)]
    why = texts.halt_reason(run, clip(inputs.detail, 1_500) if inputs.detail else "")
    blocks = [
        header("Stopped", "⏸️"),
        rich_line(why),
        rich_line(texts.halt_numbers(run)),
    ]
    if inputs.continuable:
        blocks.append({"type": "actions", "elements": [button("continue", "Continue", continue_value(run), "primary")]})
        who: Line = ("Only ", Who(run.owner.user_id), " can continue it: here, or by “@Atlas continue” in the thread.")
    else:
        who = ("It can no longer be continued: a newer message took over.",)
    blocks.append(context(who, (Code(run.id), f" · {question}")))
    return mrkdwn(("⏸️ Stopped. ", *why)), blocks


def failure(inputs: RenderInputs) -> tuple[str, list[Block]]:
    """Return a failed run's card."""
    run = _run(inputs)
    why = texts.fail_reason(run, clip(inputs.detail, 1_500) if inputs.detail else "")
    small: Line = (
        Code(run.id),
        f" · {texts.steps(run.step)}, {usd(run.spend_usd)} · {clip(visible(run.question), 300)}",
    )
    blocks = [header("Failed", "⛔"), rich_line(why), context((Who(run.owner.user_id),), small)]
    return mrkdwn(("⛔ Failed. ", *why)), blocks


def notice(inputs: RenderInputs) -> tuple[str, list[Block]]:
    """Return a line for a thread. *content*: {text, mention?}: a user id (or several) to be notified."""
    text = clip(visible(str(inputs.content.get("text") or ""), lines=True), 12_000)
    mention = inputs.content.get("mention")
    people = [mention] if isinstance(mention, str) else list(mention or [])
    named: list[Part] = []
    for user_id in people:
        if isinstance(user_id, str) and is_person(user_id):
            named += [Who(user_id), " "]
    blocks: list[Block] = []
    rest = text
    while rest and len(blocks) < 20:
        part, rest = rest[:_REST_PART], rest[_REST_PART:]
        blocks.append(rich_line((*named, part) if not blocks else (part,)))
    fallback = mrkdwn(tuple(named)) + " " if named else ""
    return (fallback + escape_and_clip(text, FALLBACK)).strip(), blocks


def asked(inputs: RenderInputs) -> tuple[str, list[Block]]:
    """Return the line that says who clicked which example. *content*: {asked, by}."""
    by, text = str(inputs.content.get("by") or ""), clip(visible(str(inputs.content["asked"])), 1_000)
    line: Line = ("💬 ", Who(by), f" asks: {text}")
    return mrkdwn(line), [rich_line(line)]


def alert(inputs: RenderInputs, around: Surroundings, place: str = "") -> tuple[str, list[Block]]:
    """Return a message for the operators: what is wrong, the last steps, what to do, who and where, who took it up."""
    content = inputs.content
    title = clip(visible(str(content.get("title") or "Alert")), 140)
    text = clip(visible(str(content.get("text") or ""), lines=True), _REST_PART)
    blocks = [header(title, "🚨"), rich_line((text,))]
    if inputs.trace:
        items = [{"type": "rich_text_section", "elements": rich((_entry(it),))} for it in inputs.trace[-6:]]
        last = {"type": "rich_text_section", "elements": rich((Bold("Last steps"),))}
        blocks.append({"type": "rich_text", "elements": [last, {"type": "rich_text_list", "style": "bullet",
                                                                "elements": items}]})  # fmt: skip
    blocks.append(rich_line((Bold("What to do"), f" {texts.alert_advice(place)}")))
    taken_by = content.get("acknowledged_by")
    if isinstance(taken_by, str):
        blocks.append(rich_line(texts.acknowledged(taken_by, _moment(content.get("acknowledged_at")))))
    elif place:
        press = button("acknowledge", "Acknowledge", json.dumps({"a": place}, separators=(",", ":")))
        blocks.append({"type": "actions", "elements": [press]})
    at = (str(content.get("channel") or ""), str(content.get("thread") or ""))
    elsewhere = None
    if inputs.run:
        elsewhere = at[0] if at[0] not in ("", inputs.run.channel_id) else None
        at = (inputs.run.channel_id, inputs.run.thread_ts)
    about = texts.alert_about(inputs.run, content.get("who"), elsewhere, around.link(at, "the thread"))
    if about:
        blocks.append(context(about))
    return escape_and_clip(f"🚨 {title}: {text}", FALLBACK), blocks


def _moment(text: Any) -> datetime | None:
    return datetime.fromisoformat(text) if isinstance(text, str) else None


def _entry(entry: TraceEntry) -> str:
    words: list[str] = [entry.kind]
    words += [f"{key}: {clip(_short(value), 120)}" for key, value in list(entry.body.items())[:4]]
    if entry.ms is not None:
        words.append(f"{texts.seconds(entry.ms)} s")
    if entry.spend_usd:
        words.append(usd(entry.spend_usd))
    return visible(" · ".join(words))


def _short(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def _run(inputs: RenderInputs) -> Run:
    if inputs.run is None:
        raise LookupError("a message about a run without its run")
    return inputs.run


def refused_form(text: str) -> list[Block]:
    """Return the blocks of a message that says only *text*."""
    return [{"type": "section", "text": plain_text(text or EMPTY, 3_000)}]
