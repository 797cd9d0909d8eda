"""What `atlas show` and refusals of the command line say to people, at 80 columns."""

import argparse
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from bot.cli import _why_not_continued
from bot.terminal import show_text, told
from core.conversation import Message, StoredMessage
from core.ports import TraceEntry
from core.run import HaltReason, RunState, RunView, SuspensionStatus
from tests.unit.test_blocks_cards import HOSTILE, HUGE, NOON, PREVIEWS, run_row, suspension_row

AT = datetime(2026, 11, 29, 12, 0, 5, tzinfo=UTC)
TIMELINE = [
    (AT, TraceEntry("started", {"letter": 7, "parent": None})),
    (AT, TraceEntry("claimed", {"worker": "0d2f6f1e-1111-4222-8333-944445555666"})),
    (AT, TraceEntry("model", {"calls": ["find_account"]}, 1_234, Decimal("0.012"))),
    (AT, TraceEntry("read", {"tool": "find_account", "outcome": "ok"}, 8)),
    (AT, TraceEntry("suspended", {"tool": "send_quote", "digest": "c0c67d18", "title": "Send quote Q-1042"})),
    (AT, TraceEntry("suspension.declined", {"suspension": "k.s1", "tool": "send_quote", "by": "U9", "reason": "no"})),
    (AT + timedelta(days=1), TraceEntry("reaped", {"worker": "0d2f6f1e-1111", "alone": False, "crashes": 1})),
    (
        AT + timedelta(days=1),
        TraceEntry("write", {"tool": "send_quote", "outcome": "did_not_happen", "why": "gone"}, 3),
    ),
    (AT + timedelta(days=1), TraceEntry("model", {"calls": []}, 5, Decimal("0.012"))),
    (AT + timedelta(days=1), TraceEntry("a kind of tomorrow", {"n": 1, "b": "x" * 400})),
    (AT + timedelta(days=1), TraceEntry("answered", {})),
]


@pytest.fixture(autouse=True)
def _eighty_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


def shown(**changes: Any) -> str:
    return show_text(RunView(run_row(**changes), ()), TIMELINE, AT + timedelta(minutes=3))


def test_the_timeline_is_told_in_sentences() -> None:
    lines = shown().splitlines()
    told_lines = lines[lines.index("What happened (UTC)") + 1 :]
    assert told_lines[0] == "  12:00:05  asked"
    assert told_lines[1] == "  12:00:05  taken up by worker 0d2f6f1e"
    assert told_lines[2] == f"  12:00:05  {'the model calls find_account':<51}{'1,234 ms':>9}{'$0.0120':>8}"
    assert told_lines[3] == f"  12:00:05  {'find_account: ok':<51}{'8 ms':>9}"
    assert told_lines[4] == "  12:00:05  asked for approval: Send quote Q-1042 (digest c0c67d18)"
    assert told_lines[5] == "  12:00:05  send_quote declined by U9: no"
    assert told_lines[6] == "  2026-11-30"
    assert told_lines[8].startswith("  12:00:05  send_quote: did not happen: gone")
    assert told_lines[9].startswith("  12:00:05  the model answered ")
    assert told_lines[-1] == "  12:00:05  answered"
    assert "letter" not in "\n".join(told_lines)


@pytest.mark.parametrize("preview", PREVIEWS)
@pytest.mark.parametrize("state", SuspensionStatus)
def test_no_line_is_wider_than_the_terminal(preview: str, state: SuspensionStatus) -> None:
    """A line that wraps by itself breaks the columns; text of others can neither move the cursor nor make a line."""
    waiting = suspension_row(PREVIEWS[preview], status=state, decided_by="U0RITA00001", reason="r\x1b[2J\n" * 90)
    message = StoredMessage(0, Message(role="assistant", text="an answer\n" + "y" * 900 + "\x1b[2J"))
    run = run_row(question="q\x1b]0;title\x07\n" * 90, state=RunState.ANSWERED)
    text = show_text(RunView(run, (message,), (waiting,)), TIMELINE, NOON)
    assert max(map(len, text.splitlines())) <= 80
    assert "\x1b" not in text
    assert "\x07" not in text


def test_what_waits_is_shown_with_what_it_would_do_and_how_to_decide() -> None:
    waiting = suspension_row()
    text = show_text(RunView(run_row(), (), (waiting,)), [], waiting.expires_at - timedelta(seconds=65))
    assert f"{waiting.id} · send_quote · waits for approval" in text
    assert "  Customer            Henderson Manufacturing (4471)" in text
    assert "  Total               8,759.10 USD" in text
    assert f"1:05 left · atlas decide {waiting.id}" in text
    assert waiting.token not in text


@pytest.mark.parametrize("preview", [HOSTILE, HUGE])
def test_a_decided_card_is_told_in_a_few_lines(preview: Any) -> None:
    decided = suspension_row(preview, status=SuspensionStatus.APPROVED, decided_by="U0RITA00001", settled_kind="done")
    text = show_text(RunView(run_row(), (), (decided,)), [], NOON)
    assert "approved by" in text
    assert ", done" in text
    assert len(text.splitlines()) < 16


def test_every_kind_is_told_without_its_fields_names() -> None:
    """Entries as the code writes them; none is shown as name and value."""
    kinds: dict[str, dict[str, Any]] = {
        "model": {"assumed": True},
        "model unavailable": {"words": "no answer", "attempt": 2},
        "outcome unknown": {"tool": "send_quote", "why": "no answer"},
        "halted": {"reason": "budget_steps", "words": ""},
        "failed": {"reason": "defect", "words": "KeyError"},
        "stopped": {"by": "U9"},
        "not executed": {"tool": "send_quote", "why": "credit hold"},
        "reconciled": {"tool": "send_quote", "outcome": "happened"},
        "suspension.expired": {"suspension": "k.s1", "tool": "send_quote"},
        "suspension.superseded": {"suspension": "k.s1"},
    }
    for kind, body in kinds.items():
        text = told(TraceEntry(kind, body), run_row())
        assert not any(f"{name} " in text or f"{name}:" in text for name in body if name not in ("tool", "by")), text


@pytest.mark.parametrize(
    ("run", "reason", "said"),
    [
        (None, "why", "there is no run abc"),
        (run_row(state=RunState.ANSWERED), "why", "nothing to continue: run k7d2m9qa is answered; it has ended"),
        (run_row(state=RunState.RUNNING), "why", "it is not halted, so it goes on by itself"),
        (run_row(state=RunState.HALTED, halt_reason=HaltReason.BUDGET_STEPS), "why", "its thread has a newer live run"),
        (run_row(state=RunState.HALTED, halt_reason=HaltReason.BUDGET_STEPS), "", "only with a reason"),
    ],
)
def test_a_refused_continue_says_the_one_reason_that_applies(run: Any, reason: str, said: str) -> None:
    text = _why_not_continued(argparse.Namespace(run="abc", reason=reason), run)
    assert said in text
    others = {"there is no run", "it has ended", "goes on by itself", "newer live run", "only with a reason"} - {said}
    assert not any(other in text for other in others if other not in said)
