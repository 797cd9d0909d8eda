"""What stands beside cards: pointers, reminders, cards in other channels, alerts; at real and hostile lengths."""

import json
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from slack_sdk.models.blocks import Block as SdkBlock

from bot.blocks import Rendered, Surroundings, render
from bot.blocks.lint import lint
from core.conversation import CallKey
from core.ports import OutboxRow, RenderInputs, TraceEntry
from core.run import Suspension, SuspensionKind, SuspensionStatus
from core.tools import Approval, UserGroup
from tests.unit.test_blocks_runs import RUN

NOON = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)
HOSTILE = "<!channel> *Approved* by <@U0RITA00001> \u202e`x` <https://evil.example|Open the card> 🧾 " * 8
AROUND = Surroundings(
    "https://northwind.slack.com/", {"sales-managers": "S0SALESMGRS"}, frozenset({"U0OSKAR0001", "U0OSKAR0002"})
)
ASK = Suspension(
    id="k7d2m9qa.s1", run_id="k7d2m9qa", call=CallKey(1, 0), number=1, kind=SuspensionKind.APPROVAL,
    status=SuspensionStatus.OPEN, token="k7d2m9qa.t1", tool="send", tool_version="1", arguments={},
    preview={"title": HOSTILE}, digest="d" * 64, asked_by="U0RITA00001", opened_at=NOON, expires_at=NOON,
    policy=Approval(by=UserGroup(handle="sales-managers"), channel="C0DEALS0001"),
)  # fmt: skip
CARD = {"card:k7d2m9qa.s1": ("C0DEALS0001", "1764500001.000200")}


def rendered(place: str, kind: str, inputs: RenderInputs, channel: str = "C0DEALS0001") -> Rendered:
    """Return a valid render; fail when Slack would refuse it or a stranger's text would be live."""
    row = OutboxRow(place, RUN.id, kind, "k7d2m9qa.s1", channel, None, 3, 0, None, None, None, 0, "t")
    made = render(row, inputs, 3, AROUND)
    for block in SdkBlock.parse_all(made.blocks):
        block.validate_json()
    assert lint(made.blocks) == []
    assert 0 < len(made.text) <= 4_000
    # Blocks are held by lint: text in rich_text is literal. The fallback is mrkdwn.
    assert "<!channel>" not in made.text
    assert "<https://evil.example" not in made.text
    return made


def presses(made: Rendered) -> list[str]:
    """Return the action ids."""
    return [it["action_id"] for block in made.blocks if block["type"] == "actions" for it in block["elements"]]


def visible(made: Rendered) -> str:
    """Return the blocks as JSON text."""
    return json.dumps(made.blocks, ensure_ascii=False)


@pytest.mark.parametrize("status", list(SuspensionStatus))
@pytest.mark.parametrize(
    "links", [{}, CARD, {"card:k7d2m9qa.s1:D7": ("D7", "1.2")}], ids=["nowhere", "stands", "copied"]
)
def test_a_pointer_is_quiet_in_every_state(status: SuspensionStatus, links: dict[str, tuple[str, str]]) -> None:
    """One line, no buttons, nobody notified; it says where the card is and what became of it."""
    decided: dict[str, Any] = (
        {} if status is SuspensionStatus.OPEN else {"decided_at": NOON, "decided_by": "operator:ada"}
    )
    shown = replace(ASK, status=status, **decided)
    made = rendered("pointer:k7d2m9qa.s1", "card", RenderInputs(RUN, "", "", shown, links=links), "C0SALESDESK")
    assert len(made.blocks) == 1
    assert presses(made) == []
    assert "<@" not in made.text.replace("&lt;@", "")
    if status is SuspensionStatus.OPEN:
        assert ("in direct messages" in visible(made)) is ("card:k7d2m9qa.s1:D7" in links)
    if links == CARD:
        assert "https://northwind.slack.com/archives/C0DEALS0001/p1764500001000200" in visible(made)


def test_a_card_in_another_channel_says_where_it_comes_from_and_one_in_its_thread_does_not() -> None:
    """The link goes to the thread of the request."""
    away = rendered("card:k7d2m9qa.s1", "card", RenderInputs(RUN, "", "", ASK))
    assert "/archives/C0SALESDESK/p1764500000000100" in visible(away)
    row = OutboxRow(
        "card:k7d2m9qa.s1", RUN.id, "card", ASK.id, RUN.channel_id, RUN.thread_ts, 3, 0, None, None, None, 0, "t"
    )
    home = render(row, RenderInputs(RUN, "", "", ASK), 3, AROUND)
    assert "/archives/" not in visible(home)


@pytest.mark.parametrize("kind", list(SuspensionKind))
def test_a_reminder_fits_and_notifies_at_any_number_of_approvers(kind: SuspensionKind) -> None:
    """Twenty named people and a hostile title: one line, the voters left out, nothing to press."""
    people = tuple(f"U0PERSON{n:04}" for n in range(20))
    ask = replace(ASK, kind=kind, policy=Approval(by=people, count=20), votes=people[:5])
    made = rendered(
        "notice:k7d2m9qa.s1:reminder", "notice", RenderInputs(RUN, "", "", ask, content={"reminder": True}, links=CARD)
    )
    mentioned = [n for n, user_id in enumerate(people) if f"<@{user_id}>" in made.text]
    assert mentioned == (list(range(5, 20)) if kind is SuspensionKind.APPROVAL else [])
    assert ("<@U0OSKAR0001>" in made.text) is (kind is SuspensionKind.OUTCOME)
    assert presses(made) == []


@pytest.mark.parametrize(
    ("place", "advice"),
    [
        ("alert:failed:k7d2m9qa", "starts a new run"),
        ("alert:suspension:k7d2m9qa.s1", "answer on the card"),
        ("alert:outcome-unknown:k7d2m9qa:1", "may continue the run"),
        ("alert:unknown:k7d2m9qa:1", "may continue the run"),
        ("alert:refused:card:k7d2m9qa.s1", "invite it"),
        ("alert:letter:7", "may write the message again"),
        ("alert:anything", "Look at the run"),
    ],
)
@pytest.mark.parametrize("size", [1, 400])
def test_an_alert_says_what_to_do_and_can_be_taken_up(place: str, advice: str, size: int) -> None:
    """Each kind its own advice; the button carries the place and goes once somebody has it."""
    content: dict[str, Any] = {"title": HOSTILE, "text": HOSTILE * size, "who": "U0RITA00001"}
    content |= {"channel": "C0SALESDESK", "thread": "1764500000.000100"}
    trace = tuple(TraceEntry("model", {"why": HOSTILE * size}) for _ in range(10))
    for run in (RUN, None):
        made = rendered(place, "alert", RenderInputs(run, "", "", content=content, trace=trace))
        assert advice in visible(made)
        assert presses(made) == ["acknowledge"]
        button = next(it for b in made.blocks if b["type"] == "actions" for it in b["elements"])
        assert json.loads(button["value"]) == {"a": place}
        taken = content | {"acknowledged_by": "U0OSKAR0001", "acknowledged_at": NOON.isoformat()}
        made = rendered(place, "alert", RenderInputs(run, "", "", content=taken, trace=trace))
        assert presses(made) == []
        assert "Acknowledged by" in visible(made)
        assert "U0OSKAR0001" in visible(made)
