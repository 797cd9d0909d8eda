"""Messages about a run: progress line, answer, halt and failure cards, notices, alerts.

Decides: their layout, and how a long answer is split. Does not: store or send. The failure it can cause: an answer
whose text could mention people or hide a link's target; so its markdown is tamed first.
"""

import json
import re
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
from core.ports import Continuation, RenderInputs, TraceEntry
from core.run import Run, RunState

# Slack: 12,000 characters summed over a payload's markdown blocks; 3,000 for other text.
MARKDOWN = 12_000
FALLBACK = 3_000
_REST_PART = 2_800
# What is longer is no answer that anybody reads in a thread.
MOST_PARTS = 20


def progress(inputs: RenderInputs) -> tuple[str, list[Block]]:
    """Return the one edited line that says what a run does; after its end, how it ended, small."""
    run = _run(inputs)
    line = texts.progress(run, inputs.doing, inputs.in_line)
    if run.state not in (RunState.RUNNING, RunState.SUSPENDED):
        return mrkdwn(line), [context((*line, " · ", Code(run.id)))]
    stop = button("stop", "Stop", json.dumps({"r": run.id}))
    return mrkdwn(line), [context((*line, " · ", Code(run.id))), {"type": "actions", "elements": [stop]}]


def answer(inputs: RenderInputs, place: str) -> tuple[str, list[Block], Continuation | None]:
    """Return an answer, or a part of one, as markdown, and the part that goes on from it at a place of its own.

    *content*: a later part's own text, tamed and cut when the first was, and its number.
    """
    part = int(inputs.content.get("part") or 1)
    text = inputs.answer or ""
    if part == 1:
        text = tame_markdown(text).strip() or "The answer is empty."
    head, rest = split(text, MARKDOWN)
    blocks: list[Block] = [{"type": "markdown", "text": head}]
    goes_on = None
    if rest and part < MOST_PARTS:
        goes_on = Continuation(f"{place.removesuffix(f':part{part}')}:part{part + 1}", {"text": rest, "part": part + 1})
    if rest or part > 1:
        line = f"Part {part} of {min(MOST_PARTS, part + _count(rest))}"
        if rest and goes_on is None:
            line += f" · cut: {len(rest):,} more characters. Ask for the part that you need."
        blocks.append(context((line,)))
    said = whole(inputs.answer or "") or "The answer is empty." if part == 1 else head
    return escape_and_clip(said, FALLBACK), blocks, goes_on


def _count(text: str) -> int:
    """Return how many parts *text* makes, MOST_PARTS at most."""
    count = 0
    while text and count < MOST_PARTS:
        _, text = split(text, MARKDOWN)
        count += 1
    return count


# As long as a fence of anybody's; a longer one is a line like any other.
_FENCE = re.compile(r"[ \t]*(`{3,12}|~{3,12})([^`~].*)?")
_CLOSING = 13


def split(text: str, limit: int) -> tuple[str, str]:
    """Return the first part of *text*, of at most *limit* characters, and the rest.

    Cuts between paragraphs or beside a code block where there is such a place, else between lines, else between words.
    A code fence that is open at the cut is closed and opened again with the same language; a table goes over whole, or
    its header is said again.
    """
    if len(text) <= limit:
        return text, ""
    room = limit - _CLOSING
    clean, line_at, fence = 0, (0, ""), ""
    at, above = 0, "x"
    while at <= room:
        end = text.find("\n", at)
        line = text[at : end if end >= 0 else len(text)]
        after = _fence_after(line, fence)
        if at:
            line_at = (at, fence)
            # A paragraph begins here, or a code block begins or has just ended.
            if not fence and (not above.strip() or after or _FENCE.fullmatch(above)):
                clean = at
        if end < 0 or end >= room:
            break
        at, above, fence = end + 1, line, after
    cut, open_fence = room, fence
    if clean > room // 4:
        cut, open_fence = clean, ""
    elif line_at[0] > room // 4:
        cut, open_fence = line_at
    elif (space := text.rfind(" ", room // 2, room)) > 0:
        cut = space
    head, rest = text[:cut].rstrip(), text[cut:].removeprefix(" ") if cut not in (clean, line_at[0]) else text[cut:]
    if open_fence:
        marks, language = _marks(open_fence), open_fence.lstrip(" \t`~").strip()
        return f"{head}\n{marks}", f"{marks}{language if len(language) < 30 else ''}\n{rest}"
    return _around_table(head, rest.lstrip("\n"), limit)


def _fence_after(line: str, fence: str) -> str:
    """Return the line that opened the code block which is open after *line*; "" when none is. *fence*: before it."""
    found = _FENCE.fullmatch(line)
    if found is None:
        return fence
    if not fence:
        inline = found[1][0] == "`" and "`" in (found[2] or "")
        return "" if inline else line
    closes = found[1][0] == _marks(fence)[0] and len(found[1]) >= len(_marks(fence)) and not (found[2] or "").strip()
    return "" if closes else fence


def _marks(fence: str) -> str:
    found = _FENCE.fullmatch(fence)
    return found[1] if found else "```"


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


def notice(inputs: RenderInputs, *, one_line: bool = False) -> tuple[str, list[Block]]:
    """Return a line for a thread. *content*: {text, mention?}: a user id (or several) to be notified. *one_line*: it
    holds strangers' words as they are, so it has neither lines nor signs of ours."""
    text = clip(visible(str(inputs.content.get("text") or ""), lines=not one_line, signs=not one_line), 12_000)
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
