"""Messages about runs: progress, answers, halts, failures, notices and alerts, at every length."""

import json
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from slack_sdk.models.blocks import Block as SdkBlock

from bot.blocks import Rendered, Surroundings, render
from bot.blocks.lint import lint
from bot.blocks.run_messages import split
from core.ports import OutboxRow, RenderInputs, TraceEntry
from core.run import HaltReason, Run, RunState
from core.tools import Limits, Scope, User

NOON = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)
AROUND = Surroundings("https://northwind.slack.com/")
RUN = Run(
    id="k7d2m9qa", team_id="T0NORTHWIND", channel_id="C0SALESDESK", thread_ts="1764500000.000100",
    owner=User(team_id="T0NORTHWIND", user_id="U0RITA00001", name="Rita"), question="send a quote <!channel>", route={},
    limits=Limits(), state=RunState.RUNNING, halt_reason=None, fail_reason=None, step=3, spend_usd=Decimal("0.0421"),
    tool_calls=4, elapsed_ms=5300, scope=Scope(), scope_resolved_at=NOON, claim_token=None, claimed_by=None,
    stop_requested=None, news=0, recovery_attempts=0, crashes=0, charge_due=False, continuations=0, halts=0,
    next_worst_usd=Decimal("0.02"), dearest_call_usd=Decimal("0.02"), parent_id=None, created_at=NOON,
)  # fmt: skip


def test_a_table_is_never_cut_open() -> None:
    """It goes over whole when enough stands before it; a long one is cut between rows, its header said again."""
    header = "| item | price |\n| --- | --- |"
    rows = "\n".join(f"| item {n} | {n}.00 |" for n in range(40))
    head, rest = split(f"{'word ' * 200}\n\n{header}\n{rows}", 1_500)
    assert "|" not in head
    assert rest == f"{header}\n{rows}"
    head, rest = split(f"Here:\n{header}\n{rows}", 400)
    assert head.startswith(f"Here:\n{header}\n| item 0 ")
    assert head.endswith("|")
    assert rest.startswith(f"{header}\n| item ")
    said = [it for part in (head, rest) for it in part.split("\n") if it.startswith("| item ") and "price" not in it]
    assert said == rows.split("\n")


def rendered(kind: str, inputs: RenderInputs, ref: str = "") -> Rendered:
    """Return a valid render; fail when Slack would refuse it."""
    row = OutboxRow(kind, RUN.id, kind, ref, "C1", "1.1", 4, 0, None, None, None, 0, "t")
    made = render(row, inputs, 4, AROUND)
    for block in SdkBlock.parse_all(made.blocks):
        block.validate_json()
    assert lint(made.blocks) == []
    assert 0 < len(made.text) <= 4_000
    return made


def shown(made: Rendered) -> str:
    """Return everything that is visible, as JSON text."""
    return json.dumps(made.blocks, ensure_ascii=False)


def presses(made: Rendered) -> dict[str, Any]:
    """Return each button's value by action."""
    buttons = [it for block in made.blocks if block["type"] == "actions" for it in block["elements"]]
    return {it["action_id"]: json.loads(it["value"]) for it in buttons}


def test_progress_says_what_it_does_the_step_and_the_spend() -> None:
    """While it works: doing, step n of at most m, spend so far, and Stop."""
    made = rendered("progress", RenderInputs(RUN, "", "looking up the account"))
    assert "Looking up the account · step 4 of at most 12 · $0.05 so far" in shown(made)
    assert presses(made) == {"stop": {"r": "k7d2m9qa"}}


@pytest.mark.parametrize(
    ("state", "words"),
    [
        (RunState.SUSPENDED, "Waiting for a decision"),
        (RunState.HALTED, "Stopped · 3 steps · $0.05"),
        (RunState.ANSWERED, "Answered · 3 steps · $0.05"),
        (RunState.FAILED, "Failed · 3 steps · $0.05"),
    ],
)
def test_progress_after_the_end_is_one_small_line(state: RunState, words: str) -> None:
    """Once nothing is being done the line says how it stands; Stop only while there is something to stop."""
    made = rendered("progress", RenderInputs(replace(RUN, state=state), "", "old doing"))
    assert words in shown(made)
    assert ("stop" in presses(made)) == (state is RunState.SUSPENDED)


def test_an_answer_keeps_its_markdown_but_cannot_mention_or_hide_a_link() -> None:
    """Formatting stays; mentions, hidden targets, images and reference links lose their force."""
    answer = (
        "# Done\n**Sent** to <@U0MARCUS001> <!channel> @here @channel [Henderson](https://evil.example/x) "
        "![pixel](https://evil.example/p.png) <https://evil.example|label> [ref][1] `code`\n\n[1]: https://evil.example"
    )
    made = rendered("answer", RenderInputs(RUN, "", "", answer=answer))
    text = made.blocks[0]["text"]
    assert made.blocks[0]["type"] == "markdown"
    assert text.startswith("# Done\n**Sent**")
    for live in ("<@U", "<!", "@here", "@channel", "](", "<https://evil.example|", "]:", "]["):
        assert live not in text
    assert "Henderson (https://evil.example/x)" in text
    assert "<@U0MARCUS001>" not in made.text
    assert "&lt;@U0MARCUS001&gt;" in made.text


def parts(answer: str) -> list[Rendered]:
    """Return the messages of an answer, each rendered from what the one before left."""
    made, content = [], {"text": answer}
    place: str | None = f"answer:{RUN.id}:7"
    while place is not None:
        row = OutboxRow(place, RUN.id, "answer", "7", "C1", "1.1", 4, 0, None, None, None, 0, "t")
        one = render(row, RenderInputs(RUN, "", "", answer=content["text"], content=content), 4, AROUND)
        for block in SdkBlock.parse_all(one.blocks):
            block.validate_json()
        assert lint(one.blocks) == []
        assert 0 < len(one.text) <= 4_000
        made.append(one)
        place = one.goes_on.place if one.goes_on else None
        content = one.goes_on.content if one.goes_on else {}
    return made


@pytest.mark.parametrize(
    ("length", "count"), [(1, 1), (11_999, 1), (12_000, 1), (12_001, 2), (30_000, 3), (300_000, 20)]
)
def test_an_answer_of_any_length_is_as_many_valid_messages_as_it_needs(length: int, count: int) -> None:
    """Each is markdown and says which part it is; nothing is lost but what a thread cannot hold, and that is said."""
    sentence = "Henderson wants 200 pieces. "
    answer = (sentence * (length // len(sentence) + 1))[:length].strip()
    made = parts(answer)
    assert len(made) == count
    said = [one.blocks[0]["text"] for one in made]
    assert all(one.blocks[0]["type"] == "markdown" for one in made)
    if count == 1:
        assert len(made[0].blocks) == 1
    for at, one in enumerate(made, start=1):
        assert count == 1 or f"Part {at} of {count}" in shown(one)
    assert ("cut:" in shown(made[-1])) == (length == 300_000)
    if length < 300_000:
        assert " ".join(said) == answer


def test_the_parts_of_an_answer_have_places_of_their_own() -> None:
    """Also those of a copy in somebody's direct messages: each is posted once."""
    answer = "word " * 7_000
    inputs = RenderInputs(RUN, "", "", answer=answer, content={"text": answer})
    places = []
    for place in (f"answer:{RUN.id}:7", f"answer:{RUN.id}:7:D1"):
        row = OutboxRow(place, RUN.id, "answer", "7", "C1", "1.1", 4, 0, None, None, None, 0, "t")
        second = render(row, inputs, 4, AROUND).goes_on
        assert second is not None
        later = RenderInputs(RUN, "", "", answer=second.content["text"], content=second.content)
        third = render(replace(row, place=second.place), later, 4, AROUND).goes_on
        assert third is not None
        places += [place, second.place, third.place]
    assert places[1:3] == [f"answer:{RUN.id}:7:part2", f"answer:{RUN.id}:7:part3"]
    assert len(set(places)) == 6


def test_an_empty_answer_is_no_empty_message() -> None:
    """Nothing to say is said."""
    for nothing in (None, "", "  \n", "\0"):
        assert "The answer is empty." in shown(rendered("answer", RenderInputs(RUN, "", "", answer=nothing)))


def test_a_split_is_clean_and_loses_nothing() -> None:
    """The cut falls between paragraphs; an open code fence is closed and opened again."""
    text = "\n\n".join(f"Paragraph {n} " + "word " * 30 for n in range(20))
    head, rest = split(text, 1_000)
    assert len(head) <= 1_000
    assert rest.startswith("Paragraph")
    assert "".join((head + rest).split()) == "".join(text.split())
    code = "Look:\n```python\n" + "x = 1\n" * 400 + "```\nend"
    head, rest = split(code, 1_000)
    assert len(head) <= 1_000
    assert head.count("```") == 2
    assert rest.startswith("```python\n")


def test_a_code_block_goes_over_whole_when_it_fits_and_is_closed_when_it_does_not() -> None:
    """The cut falls beside it; inside a block, its own fence closes and opens again, whatever stands within."""
    prose, block = "Look at this.\n" * 40, "~~~sql\n" + "select 1;\n" * 60 + "~~~\n"
    head, rest = split(f"{prose}{block}And so on.", 1_000)
    assert head == prose.rstrip()
    assert rest == f"{block}And so on."
    nested = "````markdown\n" + "```python\nx = 1\n```\n" * 90 + "````\nend"
    head, rest = split(nested, 1_000)
    assert len(head) <= 1_000
    assert head.endswith("\n````")
    assert rest.startswith("````markdown\n")
    assert rest.endswith("````\nend")
    inline = "```not a block``` at all\n" + "word " * 400
    head, rest = split(inline, 1_000)
    assert not head.endswith("```")
    assert not rest.startswith("```")


@pytest.mark.parametrize("limit", [60, 200, 1_000])
@pytest.mark.parametrize("line", ["```py\nx = 1\n```\n", "| a | b |\n| - | - |\n| 1 | 2 |\n\n", "word ", "x", "~~~\n"])
def test_splitting_ends_and_never_goes_beyond_the_limit(line: str, limit: int) -> None:
    """Whatever the text: each part fits, and there is less of it left each time."""
    rest, steps = line * 2_000, 0
    while rest:
        head, after = split(rest, limit)
        assert 0 < len(head) <= limit
        assert len(after) < len(rest)
        rest, steps = after, steps + 1
    assert steps > 1


@pytest.mark.parametrize("reason", list(HaltReason))
def test_a_halt_card_says_why_what_was_used_and_what_continue_grants(reason: HaltReason) -> None:
    """The card carries run and halt number; the new ceiling stands on it before the click, for a budget halt."""
    run = replace(RUN, state=RunState.HALTED, halt_reason=reason, halts=2)
    made = rendered("halt", RenderInputs(run, "provider: <overloaded>", "", continuable=True), "2")
    assert presses(made) == {"continue": {"r": "k7d2m9qa", "n": 2}}
    assert "3 steps, $0.05" in shown(made)
    assert "provider: <overloaded>" in shown(made)
    budget = reason.value.startswith("budget_")
    assert ("$0.75 in all" in shown(made)) == budget
    assert ("within the same budget" in shown(made)) != budget


def test_a_halt_card_without_continue_has_no_button() -> None:
    """A follow-up took over, or the halt was continued: no button, and it says so."""
    halted = replace(RUN, state=RunState.HALTED, halt_reason=HaltReason.BUDGET_STEPS, halts=1)
    followed = rendered("halt", RenderInputs(halted, "", ""), "1")
    assert presses(followed) == {}
    assert "a newer message took over" in shown(followed)
    for later in (replace(RUN, halts=1), replace(halted, halts=2)):
        made = rendered("halt", RenderInputs(later, "", "", continuable=False), "1")
        assert presses(made) == {}
        assert "Continued" in shown(made)


def test_a_failure_says_what_to_do() -> None:
    """The reason in words, the detail, and the next step."""
    run = replace(RUN, state=RunState.FAILED, fail_reason="recovery_exhausted")
    made = rendered("failure", RenderInputs(run, "send_quote: outcome unknown", ""))
    assert "Ask again here to start anew." in shown(made)
    assert "send_quote: outcome unknown" in shown(made)


def test_a_notice_mentions_only_whom_it_is_for() -> None:
    """The mention is ours; a mention inside the text stays text."""
    content = {"text": "Expired. <@U0MARCUS001> <!here>\nNothing was done.", "mention": "U0RITA00001"}
    made = rendered("notice", RenderInputs(RUN, "", "", content=content))
    people = [it["user_id"] for it in made.blocks[0]["elements"][0]["elements"] if it["type"] == "user"]
    assert people == ["U0RITA00001"]
    assert made.text.startswith("<@U0RITA00001> Expired.")
    assert "<!here>" not in made.text
    forged = rendered("notice", RenderInputs(RUN, "", "", content={"text": "x" * 20_000, "mention": "!channel"}))
    assert "usergroup" not in shown(forged)
    assert "<!channel>" not in forged.text


def test_an_alert_says_which_run_the_last_steps_and_where_to_look() -> None:
    """Title, text, last steps, run, owner, link; with strangers' text as text."""
    trace = tuple(
        TraceEntry("model", {"tool": "send_quote", "note": "<!channel>" * 50}, 1200, Decimal("0.01")) for _ in range(9)
    )
    content = {"title": "A run failed <!channel>", "text": "recovery exhausted\nsend_quote: unknown"}
    made = rendered("alert", RenderInputs(RUN, "", "", content=content, trace=trace))
    assert "A run failed" in made.blocks[0]["text"]["text"]
    assert "1.2 s" in shown(made)
    assert "atlas show k7d2m9qa" in shown(made)
    assert "https://northwind.slack.com/archives/C0SALESDESK/p1764500000000100" in shown(made)
    assert "<!channel>" not in made.text
    rendered("alert", RenderInputs(None, "", "", content={}))
