"""Cards in every phase, at short, real and extreme lengths, hold Slack's limits and show strangers' text as text."""

import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from slack_sdk.models.blocks import Block as SdkBlock

from bot.blocks import Surroundings, render
from bot.blocks.artefact import fits, pages
from bot.blocks.cards import card
from bot.blocks.changes import changes_between, preview_of
from bot.blocks.home import home
from bot.blocks.lint import lint
from bot.blocks.modals import DETAILS_APPROVE, DETAILS_NEXT, decline_form, details, loading, told
from bot.lines import plain
from core.approvals import digest_of
from core.conversation import CallKey
from core.ports import OutboxRow, RenderInputs
from core.run import HaltReason, Run, RunState, Suspension, SuspensionKind, SuspensionStatus
from core.tools import Approval, Limits, Preview, Scope, User, UserGroup

NOON = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)
AROUND = Surroundings("https://northwind.slack.com/", {"sales-managers": "S0SALESMGRS"})
EVIL = (
    "<!channel> <@U0MARCUS001> <https://evil.example|Henderson> @here & *bold* `code`\n\n"
    "✅ Approved by <@U0MARCUS001> · running\n>quoted \u202egnp.exe\u202c \u200b:white_check_mark:"
)


def run_row(**changes: Any) -> Run:
    """Return a suspended run of Rita's."""
    row = Run(
        id="k7d2m9qa",
        team_id="T0NORTHWIND",
        channel_id="C0SALESDESK",
        thread_ts="1764500000.000100",
        owner=User(team_id="T0NORTHWIND", user_id="U0RITA00001", name="Rita"),
        question="draft and send a quote for Henderson, 200 of SKU-4411",
        route={},
        limits=Limits(),
        state=RunState.SUSPENDED,
        halt_reason=None,
        fail_reason=None,
        step=3,
        spend_usd=Decimal("0.0421"),
        tool_calls=4,
        elapsed_ms=5300,
        scope=Scope(),
        scope_resolved_at=NOON,
        claim_token=None,
        claimed_by=None,
        stop_requested=None,
        news=0,
        recovery_attempts=0,
        crashes=0,
        charge_due=False,
        continuations=0,
        halts=0,
        next_worst_usd=Decimal("0.02"),
        dearest_call_usd=Decimal("0.02"),
        parent_id=None,
        created_at=NOON,
    )
    return replace(row, **changes)


SHORT = Preview(title="Send quote Q-1042")
REAL = Preview(
    title="Send quote Q-1042 to Henderson Manufacturing",
    fields={"Customer": "Henderson Manufacturing (4471)", "To": "ap@henderson.example", "Discount": "3 %"},
    lines=[
        {"SKU": "SKU-4411", "Item": "Bearing 40 mm", "Quantity": "200", "Unit": "45.00 USD", "Total": "9,000.00 USD"},
        {"SKU": "SKU-4412", "Item": "Seal", "Quantity": "10", "Unit": "3.00 USD", "Total": "30.00 USD"},
    ],
    totals={"Subtotal": "9,030.00 USD", "Total": "8,759.10 USD"},
    text="Dear Ms Henderson,\n\nplease find the quote attached.",
)
MANY = Preview(
    title="Send quote Q-2000",
    fields={"Customer": "Henderson"},
    lines=[{"SKU": f"SKU-{n:04}", "Quantity": str(n), "Total": f"{n * 3}.00"} for n in range(200)],
    totals={"Total": "59,700.00"},
)
HOSTILE = Preview(
    title=EVIL,
    fields={EVIL[:90]: EVIL, "عربي": "مرحبا بالعالم", "Team": "👩‍💻 👍🏽 🏳️‍🌈", "Empty": "", "NUL": "a\0b"},
    lines=[{"Name": EVIL, "": "", "Amount": "-1"}],
    totals={"Total": EVIL},
    text=EVIL,
)
HUGE = Preview(
    title="x" * 5_000,
    fields={f"Field {n}": "wide " * 800 for n in range(8)},
    lines=[{f"c{c}": "y" * 400 for c in range(25)} for _ in range(20)],
    totals={f"T{n}": "1" for n in range(60)},
    text="long text " * 4_000,
)
PREVIEWS = {"short": SHORT, "real": REAL, "many": MANY, "hostile": HOSTILE, "huge": HUGE}


def suspension_row(preview: Preview = REAL, **changes: Any) -> Suspension:
    """Return an open suspension that asks Rita."""
    arguments = {"quote_id": "Q-1042"}
    row = Suspension(
        id="k7d2m9qa.s1",
        run_id="k7d2m9qa",
        call=CallKey(3, 0),
        number=1,
        kind=SuspensionKind.APPROVAL,
        status=SuspensionStatus.OPEN,
        token="k7d2m9qa." + "t" * 22,
        tool="send_quote",
        tool_version="1",
        arguments=arguments,
        preview=preview.model_dump(mode="json"),
        digest=digest_of("send_quote", "1", arguments, preview),
        policy=Approval(),
        asked_by="U0RITA00001",
        opened_at=NOON,
        expires_at=NOON + timedelta(minutes=30),
    )
    return replace(row, **changes)


def row(kind: str = "card", ref: str = "", version: int = 1) -> OutboxRow:
    """Return an outbox row to be rendered."""
    return OutboxRow(
        place=f"{kind}:x", run_id="k7d2m9qa", kind=kind, ref=ref, channel_id="C0SALESDESK", thread_ts="1.1",
        version=version, delivered_version=0, message_channel=None, message_ts=None, posting_age_s=None, attempts=0,
        lease_token="t",
    )  # fmt: skip


def hold(blocks: list[dict[str, Any]], surface: str = "message") -> None:
    """Fail when Slack would refuse *blocks*: slack_sdk's validation, our lint."""
    parsed = SdkBlock.parse_all(blocks)
    assert len(parsed) == len(blocks)
    for block in parsed:
        block.validate_json()
    assert lint(blocks, surface) == []


def words(value: Any) -> Iterator[str]:
    """Yield every text in blocks."""
    if isinstance(value, dict):
        for key, item in value.items():
            if key == "text" and isinstance(item, str):
                yield item
            else:
                yield from words(item)
    elif isinstance(value, list):
        for item in value:
            yield from words(item)


def shown(blocks: list[dict[str, Any]]) -> str:
    """Return all texts of blocks, for looking for words."""
    return " ".join(words(blocks))


def action_ids(blocks: list[dict[str, Any]]) -> list[str]:
    """Return what can be pressed."""
    pressed = [it for block in blocks if block["type"] == "actions" for it in block["elements"]]
    return [it["action_id"] for it in [*pressed, *(block["accessory"] for block in blocks if "accessory" in block)]]


by = {"decided_at": NOON, "decided_by": "U0MARCUS001"}
PHASES: dict[str, tuple[dict[str, Any], str]] = {
    "running": ({"status": SuspensionStatus.APPROVED, **by}, "running"),
    "done": ({"status": SuspensionStatus.APPROVED, "settled_kind": "done", "settled_text": "Q-1042", **by}, "Done"),
    "not executed": (
        {"status": SuspensionStatus.APPROVED, "settled_kind": "not_executed", "settled_text": "credit hold", **by},
        "credit hold",
    ),
    "failed": ({"status": SuspensionStatus.APPROVED, "settled_kind": "failed", "settled_text": "no", **by}, "Failed"),
    "unknown": ({"status": SuspensionStatus.APPROVED, "settled_kind": "unknown", **by}, "Outcome unknown, checking"),
    "declined": ({"status": SuspensionStatus.DECLINED, "reason": EVIL, **by}, "Declined"),
    "expired": ({"status": SuspensionStatus.EXPIRED}, "Expired"),
    "replaced": ({"status": SuspensionStatus.REPLACED, "replaced_by": "k7d2m9qa.s2"}, "Replaced by a newer version"),
    "superseded": ({"status": SuspensionStatus.SUPERSEDED}, "Replaced by a new instruction"),
    "edited": ({"status": SuspensionStatus.EDITED, "edited_by": "U0MARCUS001", **by}, "Edited"),
    "stopped": ({"status": SuspensionStatus.STOPPED, "decided_by": "operator:ada"}, "Stopped"),
    "happened": ({"status": SuspensionStatus.HAPPENED, "kind": SuspensionKind.OUTCOME, **by}, "It happened"),
    "did not happen": (
        {"status": SuspensionStatus.DID_NOT_HAPPEN, "kind": SuspensionKind.OUTCOME, **by},
        "It did not happen",
    ),
}


@pytest.mark.parametrize("length", PREVIEWS)
@pytest.mark.parametrize("phase", ["open", *PHASES])
def test_a_card_of_every_length_holds_slacks_limits_in_every_phase(phase: str, length: str) -> None:
    """Every phase at every length validates, names its phase, and offers buttons only while it is open."""
    changes, expected = PHASES.get(phase, ({}, "Waiting"))
    suspension = suspension_row(PREVIEWS[length], **changes)
    links = {"card:k7d2m9qa.s2": ("C0SALESDESK", "1764500001.000200")}
    rendered = render(row(), RenderInputs(run_row(), "", "", suspension, links=links), 7, AROUND)
    hold(rendered.blocks)
    assert 0 < len(rendered.text) <= 4_000
    assert expected in shown(rendered.blocks) + rendered.text
    assert bool(action_ids(rendered.blocks)) == (phase == "open")
    assert all(block["block_id"].startswith("v7.") for block in rendered.blocks)


def test_a_settled_card_reads_as_a_sentence() -> None:
    """The parts of the phase line keep the spaces between them."""
    changes, _ = PHASES["done"]
    text, blocks = card(RenderInputs(run_row(), "", "", suspension_row(**changes)), AROUND)
    assert text.startswith("✅ *Done* · Q-1042 · approved by <@U0MARCUS001> · ")
    line = next(block for block in blocks if block["type"] == "rich_text")
    said = "".join(part.get("text", "@") for part in line["elements"][0]["elements"])
    assert said == "✅ Done · Q-1042 · approved by @"


def test_an_open_card_shows_the_whole_artefact_and_its_terms() -> None:
    """Title, fields, lines, totals, who asked, who may approve, expiry, digest and both buttons are there."""
    text, blocks = card(RenderInputs(run_row(), "", "", suspension_row()), AROUND)
    assert blocks[0]["text"]["text"] == REAL.title
    seen = shown(blocks)
    for value in ("Henderson Manufacturing (4471)", "SKU-4411", "9,000.00 USD", "8,759.10 USD", "please find"):
        assert value in seen
    assert "Waiting for <@U0RITA00001>" in seen
    assert f"<!date^{int((NOON + timedelta(minutes=30)).timestamp())}^{{time}}|12:30 UTC>" in seen
    assert suspension_row().digest[:8] in seen
    assert action_ids(blocks) == ["approve", "decline", "edit"]
    press = json.loads(next(b for b in blocks if b["type"] == "actions")["elements"][0]["value"])
    assert press == {"s": "k7d2m9qa.s1", "t": suspension_row().token, "d": suspension_row().digest}
    assert "Send quote Q-1042" in text


def test_strangers_text_is_never_live() -> None:
    """No text that a tool or person supplied can mention, hide a link's target, hide characters or start a line."""
    suspension = suspension_row(HOSTILE, note=EVIL, status=SuspensionStatus.OPEN)
    text, blocks = card(RenderInputs(run_row(), "", "", suspension), AROUND)
    raw = json.dumps(blocks, ensure_ascii=False) + text
    for character in ("\u202e", "\u202c", "\u200b", "\0"):
        assert character not in raw
    assert "⟨U+202E⟩" in raw
    assert "👩‍💻" in raw
    # Live only in mrkdwn objects; there, everything of a stranger's is escaped.
    for block in blocks:
        for element in [block.get("text"), *block.get("fields", []), *block.get("elements", [])]:
            if isinstance(element, dict) and element.get("type") == "mrkdwn":
                assert "<!channel" not in element["text"]
                assert "<@U0MARCUS001>" not in element["text"]
                assert "evil.example|" not in element["text"]
    assert "<!channel" not in text
    # A forged status line cannot stand on a line of its own outside its quote.
    fields = [it["text"] for block in blocks for it in block.get("fields", [])]
    assert all("\n" not in value for value in fields)


@pytest.mark.parametrize("length", ["many", "huge"])
def test_what_does_not_fit_has_no_approve_on_the_card(length: str) -> None:
    """A cut-off artefact cannot be approved: Details and Decline only, and the card says what is missing."""
    _, blocks = card(RenderInputs(run_row(), "", "", suspension_row(PREVIEWS[length])), AROUND)
    assert action_ids(blocks) == ["details", "decline", "edit"]
    assert "Too long for a card" in shown(blocks)


@pytest.mark.parametrize("length", PREVIEWS)
def test_details_show_everything_and_only_the_last_page_approves(length: str) -> None:
    """The pages together hold every value uncut; each is a valid modal; Approve is the last page's submit."""
    suspension = suspension_row(PREVIEWS[length])
    press = json.dumps({"s": suspension.id, "t": suspension.token, "d": suspension.digest})
    count = len(pages(suspension, []))
    seen = ""
    for page in range(count):
        view = details(suspension, None, run_row(), press, page)
        hold(view["blocks"], "modal")
        assert len(view["private_metadata"]) <= 3_000
        assert len(json.dumps(view)) < 250_000
        assert view["callback_id"] == (DETAILS_APPROVE if page == count - 1 else DETAILS_NEXT)
        carried = json.loads(view["private_metadata"])
        assert (carried["s"], carried["t"], carried["d"]) == (suspension.id, suspension.token, suspension.digest)
        seen += shown(view["blocks"]).replace(" ", "")
    if length == "huge":
        assert seen.count("y" * 400) == 20 * 25
        assert seen.count("wide" * 500) == 8
    if length == "many":
        assert all(f"SKU-{n:04}" in seen for n in range(200))


def test_whether_an_artefact_fits_depends_on_all_of_it() -> None:
    """A long text or a wide table does not fit; the real one does."""
    assert fits(REAL, [])
    assert not fits(MANY, [])
    assert not fits(Preview(title="t", text="z" * 3_000), [])
    assert not fits(Preview(title="t", lines=[{f"c{n}": "1" for n in range(13)}]), [])


def test_a_changed_card_shows_old_and_new_of_each_changed_field() -> None:
    """Only what changed is listed, with both digests, and the rest of the card is the new artefact."""
    later = REAL.model_copy(
        update={
            "fields": {**REAL.fields, "Discount": "0 %"},
            "totals": {"Subtotal": "9,030.00 USD", "Total": "9,030.00 USD"},
            "lines": [{**REAL.lines[0], "Quantity": "150"}, REAL.lines[1]],
        }
    )
    old = suspension_row(status=SuspensionStatus.REPLACED)
    new = suspension_row(later, id="k7d2m9qa.s2", replaces=old.id)
    assert [(c.label, c.old, c.new) for c in changes_between(old, new)] == [
        ("Discount", "3 %", "0 %"),
        ("SKU-4411 · Quantity", "200", "150"),
        ("Total", "8,759.10 USD", "9,030.00 USD"),
    ]
    _, blocks = card(RenderInputs(run_row(), "", "", new, versus=old), AROUND)
    hold([{**block, "block_id": str(at)} for at, block in enumerate(blocks)])
    seen = shown(blocks)
    assert "What changed" in seen
    assert "3 %" in seen
    assert "0 %" in seen
    assert old.digest[:8] in seen
    assert new.digest[:8] in seen
    assert action_ids(blocks) == ["approve", "decline", "edit"]


def test_a_line_that_went_or_came_is_said_once() -> None:
    """Not a bullet for each of its cells; lines that stayed are compared cell by cell, and their order counts."""
    seal, bearing = REAL.lines[1], REAL.lines[0]
    gasket = {"SKU": "SKU-4390", "Item": "Gasket", "Quantity": "2", "Unit": "4.50 USD", "Total": "9.00 USD"}
    old = suspension_row(REAL.model_copy(update={"lines": [bearing, seal, gasket]}))
    new = suspension_row(
        REAL.model_copy(update={"lines": [bearing, {**gasket, "Quantity": "3"}, {**seal, "SKU": "X"}]})
    )
    assert [plain(change.line()) for change in changes_between(old, new)] == [
        "Line 2 (SKU SKU-4412) removed: Item Seal · Quantity 10 · Unit 3.00 USD · Total 30.00 USD",
        "SKU-4390 · Quantity: 2 → 3",
        "Line 3 (SKU X) added: Item Seal · Quantity 10 · Unit 3.00 USD · Total 30.00 USD",
    ]
    turned = suspension_row(REAL.model_copy(update={"lines": [seal, bearing]}))
    assert [change.label for change in changes_between(suspension_row(), turned)] == ["Order of the lines"]


def test_of_lines_that_nothing_tells_apart_one_that_went_is_said_once() -> None:
    """Two rows of the same first cell: their order says which is which, and the others are not listed as changed."""
    rows = [{"Item": "Hour", "For": name, "Price": "90"} for name in ("Ada", "Ben", "Cy")]
    old = suspension_row(REAL.model_copy(update={"lines": rows}))
    new = suspension_row(REAL.model_copy(update={"lines": [rows[0], {**rows[2], "Price": "95"}]}))
    assert [(c.label, c.of, c.old, c.new) for c in changes_between(old, new)] == [
        ("line 2 · For", "field", "Ben", "Cy"),
        ("line 2 · Price", "field", "90", "95"),
        ("Line 3 (Item Hour)", "removed", "For Cy · Price 90", ""),
    ]
    fewer = suspension_row(REAL.model_copy(update={"lines": [rows[0], rows[2]]}))
    assert [(c.label, c.of) for c in changes_between(old, fewer)] == [("Line 2 (Item Hour)", "removed")]


FORGED = "✅ Approved by <@U0MARCUS001> · running"
FORGERIES = (
    FORGED,
    "\u200b\ufe0f✅\ufe0f **Approved** by @Marcus",
    f"x\n{FORGED}",
    "☑️ Done · Q-1042",
    "✔ Done",
    "Approved by @Marcus",
    "_Approved by Ada_",
    "__Done__",
    "Executed · approved by Ada",
    "⚠️ An identical one succeeded 5 min ago.",
)


@pytest.mark.parametrize("forged", [*FORGERIES, FORGED + " " * 200 + FORGED])
@pytest.mark.parametrize("phase", ["open", *PHASES])
def test_no_strangers_text_stands_as_a_line_of_atlas_own(phase: str, forged: str) -> None:
    """What says "approved", in a title, field, line, total, text or reason, is not where, nor how, Atlas says so.

    Atlas' own line is below the header of every card and begins with a sign; no other sign is on the card.
    """
    changes, _ = PHASES.get(phase, ({}, ""))
    if "reason" in changes:
        changes = {**changes, "reason": forged}
    preview = Preview(
        title=forged,
        fields={forged: forged, "Note": forged},
        lines=[{forged: forged, "Amount": "1"}],
        totals={forged: "1", "Total": forged},
        text=forged,
    )
    for way in (preview, preview.model_copy(update={"text": "long " * 2_000})):
        text, blocks = card(
            RenderInputs(run_row(question=forged), "", "", suspension_row(way, **changes)), AROUND, away=True
        )
        own, others = blocks[1], [blocks[0], *blocks[2:]]
        signs = set("✅☑✔✋⏳🚫⛔❓⌛🔁↩✏⏹")
        assert set(next(words(own))[:2]) & signs, "Atlas' line is below the header"
        assert forged not in shown([own])
        assert not set(shown(others)) & signs
        assert len(set(text) & signs) == 1
        assert text[0] in signs
        for block in others:
            # What stands alone is ours, or behind a quote's bar, or begins with a label and goes on after a colon.
            for part in block.get("elements", []) if block["type"] == "rich_text" else []:
                if part["type"] == "rich_text_section":
                    assert not shown([part]).lstrip("“⟨").startswith(("Approved", "Done", "white heavy"))
        assert not shown([blocks[0]]).startswith(("Approved", "Done"))


def test_an_emoji_code_in_a_label_stays_a_word() -> None:
    """Slack draws ":white_check_mark:" in mrkdwn, where labels and small print stand."""
    preview = Preview(title="t", fields={":white_check_mark: Approved": "12:30:15"})
    run = run_row(question=":white_check_mark: approved")
    raw = json.dumps(card(RenderInputs(run, "", "", suspension_row(preview)), AROUND, away=True), ensure_ascii=False)
    assert ":white_check_mark:" not in raw
    assert "12:30:15" in raw


def test_details_say_the_title_once_however_long_it_is() -> None:
    """Above every page; the whole of one that is too long on the first."""
    for title in ("Send quote Q-1042", "long " * 100):
        view = details(suspension_row(Preview(title=title, fields={"a": "b"})), None, run_row(), "{}", 0)
        assert shown(view["blocks"]).count(title.strip()) == 1


def test_a_change_of_the_arguments_alone_is_shown_too() -> None:
    """Equal previews with other arguments still say what differs."""
    old, new = suspension_row(), suspension_row(arguments={"quote_id": "Q-1042", "note": [1, {"a": None}]})
    assert [(c.label, c.new) for c in changes_between(old, new)] == [("note 1", "1"), ("note 2.a", "null")]


def test_a_replaced_card_links_to_the_newer_one() -> None:
    """The link leads to the newer card's message in its thread."""
    suspension = suspension_row(status=SuspensionStatus.REPLACED, replaced_by="k7d2m9qa.s2")
    links = {"card:k7d2m9qa.s2": ("C0SALESDESK", "1764500001.000200")}
    _, blocks = card(RenderInputs(run_row(), "", "", suspension, links=links), AROUND)
    found = [it for b in blocks if b["type"] == "rich_text" for s in b["elements"] for it in s["elements"]]
    assert [it["url"] for it in found if it["type"] == "link"] == [
        "https://northwind.slack.com/archives/C0SALESDESK/p1764500001000200?thread_ts=1764500000.000100&cid=C0SALESDESK"
    ]


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (Approval(by="anyone"), "anyone in <#C0SALESDESK>"),
        (Approval(by=("U0MARCUS001", "U0OSKAR0001")), "<@U0MARCUS001> or <@U0OSKAR0001>"),
        (Approval(by=UserGroup(handle="sales-managers")), "<!subteam^S0SALESMGRS>"),
        (Approval(by=UserGroup(handle="nobody-knows")), "@nobody-knows"),
        (Approval(operators=True), "or an operator"),
        (Approval(by=("U0MARCUS001", "U0OSKAR0001"), count=2), "1 of 2 approvals: <@U0MARCUS001>"),
        (Approval(by="anyone", self_approval=False), "not whoever asked"),
    ],
)
def test_who_may_approve_is_named_and_mentioned(policy: Approval, expected: str) -> None:
    """Each policy says who, in a form that notifies where Slack can."""
    suspension = suspension_row(policy=policy, votes=("U0MARCUS001",) if policy.count > 1 else ())
    _, blocks = card(RenderInputs(run_row(), "", "", suspension), AROUND)
    assert expected in shown(blocks)


def test_a_severe_action_asks_twice() -> None:
    """High severity puts Slack's confirm dialog before Approve, within its limits."""
    preview = HOSTILE.model_copy(update={"text": "", "lines": []})
    suspension = suspension_row(preview, policy=Approval(severity="high"))
    _, blocks = card(RenderInputs(run_row(), "", "", suspension), AROUND)
    hold([{**block, "block_id": str(at)} for at, block in enumerate(blocks)])
    approve = next(b for b in blocks if b["type"] == "actions")["elements"][0]
    assert approve["action_id"] == "approve"
    assert approve["confirm"]["confirm"]["text"] == "Approve"


def test_an_outcome_card_asks_whether_it_happened() -> None:
    """It shows the artefact and the two answers, and says who may give them."""
    suspension = suspension_row(kind=SuspensionKind.OUTCOME)
    text, blocks = card(RenderInputs(run_row(), "", "", suspension), AROUND)
    assert action_ids(blocks) == ["happened", "did_not_happen"]
    assert blocks[0]["text"]["text"] == "Did it happen?"
    assert "SKU-4411" in shown(blocks)
    assert "Did it happen" in text


def test_an_outcome_that_does_not_fit_can_be_read_whole_and_is_answered_on_its_card() -> None:
    """Details shows all of it; its last page submits nothing, since a form's Approve would be an answer."""
    suspension = suspension_row(HUGE, kind=SuspensionKind.OUTCOME)
    blocks = card(RenderInputs(run_row(), "", "", suspension), AROUND)[1]
    assert action_ids(blocks) == ["happened", "did_not_happen", "details"]
    assert "Press Details to read all of it." in shown(blocks)
    last = details(suspension, None, run_row(), "{}", 999)
    assert "submit" not in last
    hold(last["blocks"], "modal")
    settled = suspension_row(HUGE, status=SuspensionStatus.DECLINED, **by)
    assert "Press Details" not in shown(card(RenderInputs(run_row(), "", "", settled), AROUND)[1])


def test_an_expired_card_offers_to_ask_again_while_the_run_can_be_continued() -> None:
    """Ask again is the same continue as the halt card's: run and halt number."""
    run = run_row(state=RunState.HALTED, halt_reason=HaltReason.SUSPENSION_EXPIRED, halts=2)
    suspension = suspension_row(status=SuspensionStatus.EXPIRED)
    _, blocks = card(RenderInputs(run, "", "", suspension, continuable=True), AROUND)
    button = next(b for b in blocks if b["type"] == "actions")["elements"][0]
    assert (button["action_id"], button["text"]["text"]) == ("continue", "Ask again")
    assert json.loads(button["value"]) == {"r": "k7d2m9qa", "n": 2}
    assert action_ids(card(RenderInputs(run, "", "", suspension), AROUND)[1]) == []


def test_an_identical_success_is_pointed_out() -> None:
    """The card of an identical later call says that one succeeded, and when."""
    inputs = RenderInputs(run_row(), "", "", suspension_row(), identical_success_at=NOON)
    assert "An identical one succeeded" in shown(card(inputs, AROUND)[1])


def test_a_preview_that_no_longer_loads_is_still_shown() -> None:
    """A stored preview of an older shape becomes text rather than a crash."""
    suspension = suspension_row(preview=Preview(title="x"))
    suspension = replace(suspension, preview={"headline": "old shape"})
    assert preview_of(suspension).title == "send_quote"
    assert "old shape" in shown(card(RenderInputs(run_row(), "", "", suspension), AROUND)[1])


def test_modals_and_home_hold_slacks_limits() -> None:
    """The small modals and a full Home validate on their surfaces."""
    for view in (loading(), decline_form("{}"), told((EVIL,))):
        hold(view["blocks"], "modal")
        assert len(view["title"]["text"]) <= 24
    waiting = [(suspension_row(p), run_row()) for p in (REAL, MANY, HOSTILE, HUGE) for _ in range(5)]
    runs = [
        run_row(state=state, halt_reason=HaltReason.BUDGET_STEPS, question=EVIL) for state in RunState for _ in "ab"
    ]
    view = home(waiting, runs, runs, ["a", EVIL], AROUND)
    hold(view["blocks"], "home")
    assert {"approve", "decline", "continue", "stop"} <= set(action_ids(view["blocks"]))
    hold(home([], [], [], [], AROUND)["blocks"], "home")
