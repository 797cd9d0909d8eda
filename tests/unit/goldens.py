"""Golden renders: every message, form and Home at short, real and extreme lengths, as compact JSON beside this file.

``python -m tests.unit.goldens`` writes them anew; look at the difference before it is committed. Long texts are kept by
their beginning, length and hash, so that any change of them shows all the same.
"""

import hashlib
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bot.blocks import Surroundings, render
from bot.blocks.edit_form import edit_form
from bot.blocks.home import home
from bot.blocks.modals import decline_form, details, loading, told
from bot.desk.tools import SendQuote
from core.ports import OutboxRow, RenderInputs, TraceEntry
from core.run import HaltReason, RunState, SuspensionKind, SuspensionStatus
from core.tools import Approval, UserGroup
from tests.unit.test_blocks_cards import HUGE, NOON, PHASES, PREVIEWS, REAL, run_row, suspension_row
from tests.unit.test_blocks_cards import row as outbox_row

FOLDER = Path(__file__).with_name("golden")
AROUND = Surroundings(
    "https://northwind.slack.com/",
    {"sales-managers": "S0SALESMGRS"},
    frozenset({"U0OSKAR0001"}),
    ("quote Henderson, 200 of SKU-4411", "what is in stock?", "e" * 400),
)
LINKS = {"card:k7d2m9qa.s1": ("C0SALESDESK", "1764500001.000100"), "card:k7d2m9qa.s2": ("C0SALESDESK", "1764500001.2")}
# What the real one was before: other values, a line that went since, and one that came.
OLDER = REAL.model_copy(
    update={
        "fields": {**REAL.fields, "Discount": "5 %", "Valid until": "2026-12-24"},
        "lines": [
            {**REAL.lines[0], "Quantity": "150", "Total": "6,750.00 USD"},
            {"SKU": "SKU-4390", "Item": "Gasket", "Quantity": "2", "Unit": "4.50 USD", "Total": "9.00 USD"},
        ],
        "totals": {"Subtotal": "6,759.00 USD", "Total": "6,421.05 USD"},
    }
)
_LONG, _KEPT = 200, 40


@dataclass(frozen=True, slots=True)
class Golden:
    """What one message, modal or Home looks like. *surface*: "message", "modal" or "home"."""

    surface: str
    blocks: list[dict[str, Any]]
    text: str = ""


def row(kind: str = "card", ref: str = "") -> OutboxRow:
    """Return an outbox row in the run's own thread."""
    return replace(outbox_row(kind, ref), thread_ts=run_row().thread_ts)


def _message(at: OutboxRow, inputs: RenderInputs) -> Golden:
    made = render(at, inputs, 7, AROUND)
    return Golden("message", made.blocks, made.text)


def cards() -> dict[str, Golden]:
    """Return a suspension's card in each state at each length, by "length/state"."""
    found: dict[str, Golden] = {}
    for length, preview in PREVIEWS.items():
        for state, (changes, _) in {"open": ({}, ""), **PHASES}.items():
            inputs = RenderInputs(run_row(), "", "", suspension_row(preview, **changes), links=LINKS)
            found[f"{length}/{state}"] = _message(row(), inputs)
        two = Approval(by=UserGroup(handle="sales-managers"), count=2, self_approval=False, severity="high")
        voted = suspension_row(preview, policy=two, votes=("U0MARCUS001",), note="somebody has left the group")
        halted = run_row(state=RunState.HALTED, halt_reason=HaltReason.SUSPENSION_EXPIRED, halts=1)
        expired = suspension_row(preview, status=SuspensionStatus.EXPIRED)
        asked = suspension_row(preview, kind=SuspensionKind.OUTCOME)
        older = suspension_row(OLDER, id="k7d2m9qa.s0", status=SuspensionStatus.REPLACED)
        newer = suspension_row(preview, replaces="k7d2m9qa.s0")
        more: dict[str, RenderInputs] = {
            "one of two": RenderInputs(run_row(), "", "", voted),
            "ask again": RenderInputs(halted, "", "", expired, continuable=True),
            "did it happen": RenderInputs(run_row(), "", "", asked),
            "changed": RenderInputs(run_row(), "", "", newer, versus=older),
            "identical": RenderInputs(run_row(), "", "", suspension_row(preview), identical_success_at=NOON),
        }
        found |= {f"{length}/{state}": _message(row(), inputs) for state, inputs in more.items()}
        found[f"{length}/elsewhere"] = _message(outbox_row(), RenderInputs(run_row(), "", "", suspension_row(preview)))
        pointer = replace(row(), place="pointer:k7d2m9qa.s1", ref="k7d2m9qa.s1")
        elsewhere = suspension_row(preview, policy=Approval(by="anyone", channel="C0DEALS0001"))
        found[f"{length}/pointer"] = _message(pointer, RenderInputs(run_row(), "", "", elsewhere, links=LINKS))
        reminded = RenderInputs(run_row(), "", "", voted, content={"reminder": True}, links=LINKS)
        found[f"{length}/reminder"] = _message(row("notice"), reminded)
        over = replace(reminded, suspension=replace(voted, status=SuspensionStatus.EXPIRED))
        found[f"{length}/reminder of what is over"] = _message(row("notice"), over)
        again = RenderInputs(run_row(), "", "", expired, content={"asked_again": True})
        found[f"{length}/asked again"] = _message(row(), again)
    return found


def messages() -> dict[str, Golden]:
    """Return the messages about runs, by "kind/case"."""
    long = "word " * 5_000
    table = "| a | b |\n| --- | --- |\n" + "| 1 | 2 |\n" * 2_000
    code = "```python\n" + "print('line')\n" * 2_000 + "```"
    found: dict[str, Golden] = {}
    for state in RunState:
        run = run_row(state=state, halt_reason=HaltReason.BUDGET_SPEND if state is RunState.HALTED else None)
        for doing in ("drafting the quote", "x" * 500):
            name = f"progress/{state.value}, {'short' if len(doing) < 99 else 'long'}"
            found[name] = _message(row("progress"), RenderInputs(run, "", doing))
    for name, text in {"empty": "", "short": "Done: **Q-1042**.", "long": long, "table": table, "code": code}.items():
        found[f"answer/{name}"] = _message(row("answer"), RenderInputs(run_row(), "", "", answer=text))
    later = RenderInputs(run_row(), "", "", answer="last words " * 1_200, content={"part": 20})
    found["answer/last part"] = _message(row("answer"), later)
    for reason in HaltReason:
        run = run_row(state=RunState.HALTED, halt_reason=reason, halts=1, question="q" * 900)
        halted = RenderInputs(run, "provider: " + "y" * 9_000, "", continuable=True)
        found[f"halt/{reason.value}"] = _message(row("halt", "1"), halted)
    over = run_row(state=RunState.HALTED, halt_reason=HaltReason.BUDGET_STEPS, halts=2)
    found["halt/continued"] = _message(row("halt", "1"), RenderInputs(over, "", ""))
    for why in ("recovery_exhausted", "defect"):
        run = run_row(state=RunState.FAILED, fail_reason=why, question="q" * 900)
        found[f"failure/{why}"] = _message(row("failure"), RenderInputs(run, "z" * 9_000, ""))
    notices: dict[str, dict[str, Any]] = {
        "short": {"text": "Nothing waits.", "mention": "U0RITA00001"},
        "long": {"text": "line\n" * 4_000},
        "offers": {"text": "What Atlas can do", "offers": True, "mention": "U0RITA00001"},
        "asked": {"asked": "quote Henderson", "by": "U0RITA00001"},
        "asked, long": {"asked": "e" * 5_000, "by": "U0RITA00001"},
    }
    for name, content in notices.items():
        found[f"notice/{name}"] = _message(row("notice"), RenderInputs(None, "", "", content=content))
    trace = tuple(TraceEntry("model", {"text": "t" * 900}, 1_234, None) for _ in range(10))
    for name, content in {
        "short": {"title": "A run failed", "text": "Twice."},
        "long": {"title": "t" * 900, "text": "t" * 9_000},
        "taken up": {"title": "A run failed", "text": "Twice.", "acknowledged_by": "U0OSKAR0001"},
    }.items():
        alerted = replace(row("alert"), place="alert:failed:k7d2m9qa")
        found[f"alert/{name}"] = _message(alerted, RenderInputs(run_row(), "", "", trace=trace, content=content))
    return found


def views() -> dict[str, Golden]:
    """Return the modals and Homes, by "kind/case"."""
    press = json.dumps({"s": "k7d2m9qa.s1", "t": suspension_row().token, "d": suspension_row().digest})
    found = {
        "modal/loading": Golden("modal", loading()["blocks"]),
        "modal/decline": Golden("modal", decline_form(press)["blocks"]),
        "modal/told": Golden("modal", told(("x" * 9_000,))["blocks"]),
        "modal/edit": Golden("modal", edit_form(suspension_row(), SendQuote.arguments_model, press)["blocks"]),
    }
    for length, preview in PREVIEWS.items():
        for page in (0, 99):
            made = details(suspension_row(preview), None, run_row(), press, page)
            found[f"modal/details, {length}, {'first' if page == 0 else 'last'}"] = Golden("modal", made["blocks"])
    runs = [run_row(id=f"k7d2m9q{n}", state=s, halt_reason=HaltReason.BUDGET_STEPS) for n, s in enumerate(RunState)]
    going = [run for run in runs if run.state in (RunState.RUNNING, RunState.SUSPENDED, RunState.HALTED)]
    examples = AROUND.examples
    found["home/new"] = Golden("home", home([], [], [], examples, AROUND)["blocks"])
    found["home/busy"] = Golden("home", home([(suspension_row(), run_row())], going, runs, examples, AROUND)["blocks"])
    many = [(suspension_row(preview), run_row()) for preview in (REAL, HUGE) for _ in range(20)]
    found["home/full"] = Golden("home", home(many, going * 9, runs * 9, examples, AROUND)["blocks"])
    return found


def families() -> dict[str, dict[str, Golden]]:
    """Return all goldens, by the file that keeps them."""
    found = {"messages": messages(), "views": views()}
    for name, golden in cards().items():
        length, state = name.split("/")
        found.setdefault(f"cards-{length}", {})[state] = golden
    return found


def compact(value: Any) -> Any:
    """Return *value* with its long texts by beginning, length and hash."""
    if isinstance(value, dict):
        return {key: compact(item) for key, item in value.items()}
    if isinstance(value, list):
        return [compact(item) for item in value]
    if isinstance(value, str) and len(value) > _LONG:
        mark = hashlib.sha256(value.encode("utf-8", "surrogatepass")).hexdigest()[:12]
        return f"{value[:_KEPT]}… {len(value)} characters, {mark}"
    return value


def written(family: dict[str, Golden]) -> str:
    """Return a family as its file says it: a block a line; a block that stood above is named, not repeated."""
    parts = []
    above: dict[str, str] = {}
    for name, golden in family.items():
        lines = []
        for at, block in enumerate(golden.blocks):
            looks = json.dumps({key: value for key, value in block.items() if key != "block_id"}, sort_keys=True)
            said = json.dumps(compact(block), ensure_ascii=False, separators=(",", ":"))
            lines.append(json.dumps(f"as {above[looks]}") if looks in above and len(said) > 150 else said)
            above.setdefault(looks, f"{name}, block {at}")
        text = json.dumps(compact(golden.text), ensure_ascii=False)
        shown = ",\n  ".join(lines)
        parts.append(
            f'{json.dumps(name)}: {{"surface": "{golden.surface}", "text": {text}, "blocks": [\n  {shown}\n]}}'
        )
    return "{\n" + ",\n".join(parts) + "\n}\n"


def main() -> None:
    """Write all goldens anew."""
    FOLDER.mkdir(exist_ok=True)
    made = families()
    for old in FOLDER.glob("*.json"):
        if old.stem not in made:
            old.unlink()
    for name, family in made.items():
        (FOLDER / f"{name}.json").write_text(written(family), encoding="utf-8")


if __name__ == "__main__":
    main()
