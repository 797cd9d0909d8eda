"""Words: every refusal has its own text and next step; strangers' text is harmless in each way to show it."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bot import texts
from bot.lines import (
    Bold,
    Code,
    Group,
    Line,
    Link,
    When,
    Who,
    clip,
    escape,
    escape_and_clip,
    mrkdwn,
    plain,
    rich,
    tame_markdown,
    unescape,
    usd,
    visible,
    whole,
)
from bot.texts import Texts
from core.approvals import Refusal
from core.conversation import CallKey
from core.ports import Stopped, Voice
from core.run import Run, RunState, RunView, Suspension, SuspensionKind, SuspensionStatus
from core.tools import Approval, Limits, Scope, User

NOON = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)
RUN = Run(
    id="k7d2m9qa", team_id="T0NORTHWIND", channel_id="C0SALESDESK", thread_ts="1764500000.000100",
    owner=User(team_id="T0NORTHWIND", user_id="U0RITA00001", name="Rita"), question="send it <!channel>", route={},
    limits=Limits(), state=RunState.RUNNING, halt_reason=None, fail_reason=None, step=1, spend_usd=Decimal("0.0421"),
    tool_calls=4, elapsed_ms=5300, scope=Scope(), scope_resolved_at=NOON, claim_token=None, claimed_by=None,
    stop_requested=None, news=0, recovery_attempts=0, crashes=0, charge_due=False, continuations=0, halts=0,
    next_worst_usd=Decimal("0.02"), dearest_call_usd=Decimal("0.02"), parent_id=None, created_at=NOON,
)  # fmt: skip
SUSPENSION = Suspension(
    id="k7d2m9qa.s1", run_id="k7d2m9qa", call=CallKey(3, 0), number=1, kind=SuspensionKind.APPROVAL,
    status=SuspensionStatus.APPROVED, token="k7d2m9qa.t", tool="send_quote", tool_version="1", arguments={},
    preview={"title": "Send quote"}, digest="ab" * 32, policy=Approval(by=("U0MARCUS001",)), asked_by="U0RITA00001",
    opened_at=NOON, expires_at=NOON + timedelta(minutes=30), decided_at=NOON, decided_by="U0MARCUS001",
)  # fmt: skip
LINK = Link("https://northwind.slack.com/archives/C1/p1", "Open the thread")

NEXT_STEP = {
    Refusal.DECIDED: "Approved already by <@U0MARCUS001>",
    Refusal.EXPIRED: "Ask again",
    Refusal.REPLACED: "newest card",
    Refusal.NOT_AN_APPROVER: "<@U0MARCUS001> may",
    Refusal.OWN_REQUEST: "<@U0MARCUS001> may",
    Refusal.COULD_NOT_CHECK: "press again",
    Refusal.PRESS_AGAIN: "press its button once more",
    Refusal.UNKNOWN: "/atlas pending",
}


@pytest.mark.parametrize("kind", list(Refusal))
def test_every_refusal_says_its_next_step(kind: Refusal) -> None:
    """All classes differ, and none leaves a person without something to do."""
    text = mrkdwn(texts.refusal(kind, SUSPENSION, RUN, LINK, {}))
    assert NEXT_STEP[kind] in text
    others = {mrkdwn(texts.refusal(other, SUSPENSION, RUN, LINK, {})) for other in Refusal if other is not kind}
    assert text not in others
    assert texts.refusal(kind, None, None, None, {})


def test_decided_already_names_what_was_decided_and_when() -> None:
    """A decline reads as a decline; the time is in the reader's own."""
    declined = replace(SUSPENSION, status=SuspensionStatus.DECLINED)
    text = mrkdwn(texts.refusal(Refusal.DECIDED, declined, RUN, None, {}))
    assert text.startswith("Declined already by <@U0MARCUS001> at <!date^")


def test_the_voice_is_complete_and_plain() -> None:
    """Texts implements core's port; its words are to be escaped by whoever shows them, so nothing in them is markup."""
    voice: Voice = Texts()
    halted = replace(RUN, state=RunState.HALTED)
    said = [
        voice.help(["quote Henderson", "<!channel>"]),
        voice.text_never_approves(RUN, "https://x.example"),
        voice.runs([RUN, halted]),
        voice.runs([]),
        voice.pending([(SUSPENSION, RUN)]),
        voice.pending([]),
        voice.show(RunView(RUN, [], (SUSPENSION,))),
        voice.not_found(),
        voice.stopped(Stopped("requested", RUN)),
        voice.stopped(Stopped("ended", None)),
        voice.could_not_start("directory\nis <down>"),
        voice.parked("why"),
        voice.nothing_to_continue(),
    ]
    for text in said:
        assert text
        assert "<@" not in text
        assert "&lt;" not in text
    assert voice.continued(RUN) is None
    assert voice.stopped(Stopped("halted", RUN)) is None
    assert "quote Henderson" in (said[0] or "")


def test_a_line_is_safe_in_each_form() -> None:
    """Our mention, date, group and link are live; the stranger's are text."""
    line: Line = (
        "<@U0EVIL00001> & ",
        Who("U0RITA00001"),
        Who("operator:ada"),
        Group("managers", "S1"),
        Group("nobody"),
        When(NOON),
        Link("https://a.example", "a>b"),
        Bold("<!here>"),
        Code("a`b"),
    )
    assert mrkdwn(line) == (
        "&lt;@U0EVIL00001&gt; &amp; <@U0RITA00001>operator ada<!subteam^S1>@nobody"
        f"<!date^{int(NOON.timestamp())}^{{time}}|12:00 UTC><https://a.example|a&gt;b>*&lt;!here&gt;*`aˋb`"
    )
    kinds = [element["type"] for element in rich(line)]
    assert kinds == ["text", "user", "text", "usergroup", "text", "date", "link", "text", "text"]
    assert rich(line)[0]["text"] == "<@U0EVIL00001> & "
    assert "operator ada" in plain(line)


@given(st.text())
def test_escaping_round_trips_and_leaves_nothing_live(text: str) -> None:
    """Escaped text has no angle bracket; unescaping gives back what was meant."""
    clean = whole(text)
    escaped = escape(text)
    assert "<" not in escaped
    assert ">" not in escaped
    assert unescape(escaped) == clean


@given(st.text(alphabet="&<>ab ;", min_size=1, max_size=60), st.integers(min_value=8, max_value=40))
def test_a_cut_never_splits_an_entity(text: str, limit: int) -> None:
    """What is cut stays within its limit and can still be unescaped."""
    cut = escape_and_clip(text, limit)
    assert 0 < len(cut) <= limit
    rest = cut.replace("&amp;", "").replace("&lt;", "").replace("&gt;", "")
    assert "&" not in rest


@given(st.text(alphabet=st.characters(codec=None)))
def test_visible_text_hides_nothing(text: str) -> None:
    """No control, format or private character is left, and every input is taken, lone surrogates too."""
    shown = visible(text)
    for character in ("\u202e", "\u200b", "\u2066", "\ufeff", "\u00ad", "\x1b", "\n"):
        assert character not in shown
    shown.encode("utf-8")
    clip(shown, 10).encode("utf-8")


@given(st.text(alphabet="[]()<>@!|:#Ua1/ \nherchannl`"))
def test_tamed_markdown_has_no_live_sequence(text: str) -> None:
    """Whatever a model writes, no mention and no link with another label is left."""
    tamed = tame_markdown(text)
    for live in ("](", "][", "]:", "<@", "<!", "<#", "@here", "@channel"):
        assert live not in tamed


def test_small_amounts_are_never_shown_as_free() -> None:
    """Fractions of a cent are rounded up."""
    assert usd(Decimal(0)) == "$0.00"
    assert usd(Decimal("0.000001")) == "$0.0001"
    assert usd(Decimal("0.0421")) == "$0.05"
    assert usd(Decimal("12.5")) == "$12.50"


@pytest.mark.parametrize(
    ("state", "says"),
    [
        (RunState.RUNNING, "goes on already"),
        (RunState.SUSPENDED, "goes on already"),
        (RunState.HALTED, "Use the newest card"),
        (RunState.ANSWERED, "has ended"),
        (RunState.FAILED, "has ended"),
    ],
)
def test_a_refused_continue_says_the_one_reason_that_applies(state: RunState, says: str) -> None:
    run = replace(RUN, state=state)
    assert says in texts.not_continued_words(run, RUN.owner.user_id)
    assert "button" not in texts.not_continued_words(run, RUN.owner.user_id, by_button=False)
    for stranger in (texts.not_continued_words(run, "U0SOMEONE"), texts.not_continued_words(None, "U0SOMEONE")):
        assert stranger == "Nothing was continued: only the person who asked can continue this run."
