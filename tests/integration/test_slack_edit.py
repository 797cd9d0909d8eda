"""Editing before approving: a form made from the argument model, validated by it, judged like every act."""

from collections.abc import AsyncIterator
from typing import Any, Literal

import asyncpg
import pytest
from pydantic import BaseModel, ConfigDict, Field
from slack_sdk.models.blocks import Block as SdkBlock

from bot.blocks.edit_form import can_be_edited, edit_form, read_form
from bot.blocks.lint import lint
from bot.simulator.workspace import MARCUS, RITA, SALES_DESK, VERA
from core.agent import Agent
from core.engine import Engine, Rules
from core.run import SuspensionStatus
from core.tools import Approval, Preview, Scope, Tool, ToolContext
from tests.integration.slack_stage import Stage, connected, no_scope, stage, until


class Line(BaseModel):
    """A line."""

    sku: str
    quantity: int = Field(ge=1)


class SendArgs(BaseModel):
    """What may be edited."""

    model_config = ConfigDict(extra="forbid")

    quote_id: str = Field(max_length=40)
    urgency: Literal["normal", "express"] = "normal"
    copies: int = Field(default=1, ge=1, le=9)
    discount: float | None = None
    gift: bool = False
    lines: list[Line] = []


class Send(Tool[SendArgs]):
    """A write that asks."""

    name = "send_quote"
    writes = True
    approval = Approval()
    unknown = "ask_person"

    def permitted(self, args: SendArgs, scope: Scope) -> bool:
        """Allow everybody."""
        return True

    async def preview(self, args: SendArgs, ctx: ToolContext) -> Preview:
        """Show the quote."""
        return Preview(title=f"Send {args.quote_id}")


@pytest.fixture
async def on(pool: "asyncpg.Pool[asyncpg.Record]") -> AsyncIterator[Stage]:
    """The stage, connected, with the tool."""
    async with stage(pool) as on:
        agent = Agent(instructions="", tools=[Send()], scopes=no_scope)
        on.engine = Engine(agent, on.desk, on.directory, Rules())
        async with connected(on):
            yield on


async def open_form(on: Stage, user: str, suspension_id: str) -> dict[str, Any]:
    """Press Edit and return the form."""
    card = await on.card(suspension_id)
    await (await on.slack.click(user, SALES_DESK, card["ts"], "edit")).settled()
    await until(lambda: on.slack.modals(user) and "One moment" not in str(on.slack.modals(user)[-1]["blocks"]))
    return on.slack.modals(user)[-1]


def typed(name: str, value: str) -> dict[str, Any]:
    """Return an entered value."""
    return {name: {"value": {"type": "plain_text_input", "value": value}}}


async def test_edited_arguments_are_stored_and_the_card_says_who_edited(on: Stage) -> None:
    """Rita changes the quote; the suspension holds the validated arguments and is no longer open."""
    suspension_id = await on.suspend(await on.run())
    form = await open_form(on, RITA, suspension_id)
    assert form["callback_id"] == "edit_arguments"
    await (await on.slack.submit(RITA, form["id"], typed("quote_id", "Q-2000"))).settled()
    found = await on.desk.suspension(suspension_id)
    assert found is not None
    assert (found[0].status, found[0].edited_by) == (SuspensionStatus.EDITED, RITA)
    assert found[0].edited_arguments == {
        "quote_id": "Q-2000", "urgency": "normal", "copies": 1, "discount": None, "gift": False, "lines": [],
    }  # fmt: skip
    assert on.slack.modals(RITA) == []
    assert "Edited" in str((await on.card(suspension_id))["blocks"])


async def test_what_the_model_refuses_is_said_under_its_input(on: Stage) -> None:
    """Broken JSON and a wrong line keep the form open, with the error in place; nothing is changed."""
    suspension_id = await on.suspend(await on.run())
    form = await open_form(on, RITA, suspension_id)
    for wrong in ("[", '[{"sku": "SKU-1", "quantity": 0}]'):
        await (await on.slack.submit(RITA, form["id"], typed("lines", wrong))).settled()
        assert await until(lambda: on.slack.modals(RITA))
        found = await on.desk.suspension(suspension_id)
        assert found is not None
        assert found[0].status is SuspensionStatus.OPEN
    errors = [record["errors"] for record in on.slack.journal.find({"kind": "view"}) if record.get("errors")]
    assert "not JSON" in errors[0]["lines"]
    assert "greater than or equal to 1" in errors[1]["lines"]


async def test_who_may_not_edit_is_refused_in_the_form(on: Stage) -> None:
    """Vera is neither owner nor approver."""
    suspension_id = await on.suspend(await on.run(), policy=Approval(by=(MARCUS,)))
    form = await open_form(on, VERA, suspension_id)
    await (await on.slack.submit(VERA, form["id"], typed("quote_id", "Q-1"))).settled()
    await until(lambda: "not an approver" in str(on.slack.modals(VERA)[-1]["blocks"]))
    found = await on.desk.suspension(suspension_id)
    assert found is not None
    assert found[0].status is SuspensionStatus.OPEN


async def test_an_untouched_form_gives_back_exactly_what_it_showed(on: Stage) -> None:
    """Every kind of field survives a round trip, and the form holds Slack's limits."""
    arguments = {
        "quote_id": "123", "urgency": "express", "copies": 2, "discount": 1.5, "gift": True,
        "lines": [{"sku": "é<&>", "quantity": 3}],
    }  # fmt: skip
    suspension_id = await on.suspend(await on.run())
    found = await on.desk.suspension(suspension_id)
    assert found is not None
    found[0].arguments.clear()
    found[0].arguments.update(arguments)
    assert can_be_edited(found[0], SendArgs)
    view = edit_form(found[0], SendArgs, "{}")
    for block in SdkBlock.parse_all(view["blocks"]):
        block.validate_json()
    assert lint(view["blocks"], "modal") == []
    values: dict[str, Any] = {}
    for block in view["blocks"]:
        element = block.get("element", {})
        if "initial_option" in element:
            values[block["block_id"]] = {"value": {"selected_option": element["initial_option"]}}
        elif "initial_value" in element:
            values[block["block_id"]] = {"value": {"value": element["initial_value"]}}
    assert read_form({"state": {"values": values}}, SendArgs, arguments) == (arguments, {})
