"""The sales desk's tools, scopes and scripted model against the real CRM, over sockets."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from bot.desk import agent as default_agent
from bot.desk import make_agent
from bot.desk.crm import CrmTrouble, CrmUnreachable
from bot.sandbox import Crm, Fault
from core import (
    Agent,
    DidNotHappen,
    Happened,
    Message,
    Preview,
    Refused,
    Scope,
    Tool,
    ToolContext,
    ToolFailed,
    Unknown,
    User,
)
from core.agent import problems
from core.approvals import digest_of
from core.conversation import error_text, result_text

RITA = User(team_id="T0NORTHWIND", user_id="U0RITA00001", name="Rita", email="rita.reyes@northwind.example")
VERA = User(team_id="T0NORTHWIND", user_id="U0VERA00001", name="Vera", email="vera.lindqvist@northwind.example")
MARCUS = User(team_id="T0NORTHWIND", user_id="U0MARCUS001", name="Marcus", email="marcus.hale@northwind.example")
ORDER = {"account_id": "4471", "lines": [{"sku": "SKU-4411", "quantity": 200}]}
SEND = {"quote_id": "Q-1042", "account_id": "4471"}


class Desk:
    """The agent on a CRM of its own, with what the loop does around a call reduced to what a tool can see."""

    def __init__(self, crm: Crm) -> None:
        self.crm = crm
        self.agent: Agent = make_agent(lambda: crm.url)

    def tool(self, name: str) -> Tool[Any]:
        tool = self.agent.tool(name)
        assert tool is not None
        return tool

    def args(self, name: str, arguments: dict[str, Any]) -> Any:
        return self.tool(name).arguments_model.model_validate(arguments)

    def context(self, key: str = "k1", user: User = RITA) -> ToolContext:
        return ToolContext(run_id="r", call_id="r:1:0", idempotency_key=key, user=user, scope=Scope())

    async def execute(self, name: str, arguments: dict[str, Any], key: str = "k1") -> Any:
        return await self.tool(name).execute(self.args(name, arguments), self.context(key))

    async def reconcile(self, name: str, arguments: dict[str, Any], key: str = "k1") -> object:
        return await self.tool(name).reconcile(self.args(name, arguments), self.context(key))

    async def guard(self, arguments: dict[str, Any]) -> Refused | None:
        return await self.tool("send_quote").guard(self.args("send_quote", arguments), self.context())

    async def preview(self, arguments: dict[str, Any]) -> tuple[Preview, str]:
        preview = await self.tool("send_quote").preview(self.args("send_quote", arguments), self.context())
        return preview, digest_of("send_quote", "1", arguments, preview)

    def fault(self, kind: str, route: str) -> None:
        self.crm.faults.add(Fault(kind, route))

    async def permitted(self, user: User, name: str, arguments: dict[str, Any]) -> bool:
        return self.tool(name).permitted(self.args(name, arguments), await self.agent.scopes(user))


@pytest.fixture
async def desk() -> AsyncIterator[Desk]:
    async with Crm() as crm:
        yield Desk(crm)


async def test_the_agent_may_start_and_needs_no_address_before_a_tool_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    assert problems(default_agent) == []
    async with Crm() as crm:
        monkeypatch.setenv("ATLAS_CRM_URL", crm.url + "/")
        scope = await default_agent.scopes(RITA)
    assert "quotes.send" in scope.permissions


async def test_inside_sales_may_write_for_their_accounts_and_nobody_else_may(desk: Desk) -> None:
    assert await desk.permitted(RITA, "draft_quote", ORDER)
    assert await desk.permitted(RITA, "send_quote", SEND)
    assert not await desk.permitted(RITA, "send_quote", {**SEND, "account_id": "4475"})
    assert not await desk.permitted(VERA, "draft_quote", ORDER)
    assert not await desk.permitted(VERA, "send_quote", SEND)
    assert await desk.permitted(VERA, "find_account", {"query": "Henderson"})
    assert await desk.permitted(MARCUS, "send_quote", {**SEND, "account_id": "4475"})


async def test_who_is_not_in_the_directory_or_has_no_email_may_do_nothing(desk: Desk) -> None:
    for email in ("stranger@northwind.example", None):
        user = RITA.model_copy(update={"email": email})
        assert await desk.agent.scopes(user) == Scope()
        assert not await desk.permitted(user, "find_account", {"query": "Henderson"})


async def test_a_revoked_permission_counts_at_once(desk: Desk) -> None:
    assert await desk.permitted(RITA, "send_quote", SEND)
    desk.crm.books.change_person(str(RITA.email), {"role": "viewer"})
    assert not await desk.permitted(RITA, "send_quote", SEND)


async def test_a_directory_that_is_down_is_an_error_and_never_an_empty_scope(desk: Desk) -> None:
    desk.fault("fail", "GET /people/{email}")
    with pytest.raises(CrmTrouble):
        await desk.agent.scopes(RITA)
    assert "quotes.send" in (await desk.agent.scopes(RITA)).permissions


async def test_a_draft_has_a_number_and_the_accounts_discount(desk: Desk) -> None:
    quote = await desk.execute("draft_quote", ORDER)
    assert (quote["number"], quote["total"], quote["created_by"]) == ("Q-1042", "8730.00", RITA.email)


async def test_the_preview_shows_customer_recipient_lines_discount_and_total(desk: Desk) -> None:
    await desk.execute("draft_quote", ORDER)
    preview, _ = await desk.preview(SEND)
    assert preview.title == "Send quote Q-1042 to Henderson Manufacturing"
    assert preview.fields["Customer"] == "Henderson Manufacturing (4471)"
    assert preview.fields["Goes to"] == "Dana Whitfield, buying@henderson-mfg.example"
    assert preview.lines == [
        {
            "SKU": "SKU-4411",
            "Item": "Hydraulic coupling 1/2 in",
            "Qty": "200",
            "Unit price": "48.50 USD",
            "Amount": "9,700.00 USD",
        }
    ]
    assert preview.totals == {"Subtotal": "9,700.00 USD", "Discount": "-970.00 USD", "Total": "8,730.00 USD"}


async def test_the_digest_stays_while_nothing_changes_and_moves_with_the_discount_and_a_send(desk: Desk) -> None:
    await desk.execute("draft_quote", ORDER)
    _, first = await desk.preview(SEND)
    assert (await desk.preview(SEND))[1] == first
    desk.crm.books.change_tier("gold", {"discount_percent": 12})
    preview, second = await desk.preview(SEND)
    assert second != first
    assert preview.totals["Total"] == "8,536.00 USD"
    await desk.execute("send_quote", SEND, "s1")
    preview, third = await desk.preview(SEND)
    assert third != second
    assert preview.fields["Already sent"].endswith("to buying@henderson-mfg.example")


async def test_a_credit_hold_is_a_refusal_by_the_guard_and_not_a_change_of_the_preview(desk: Desk) -> None:
    await desk.execute("draft_quote", ORDER)
    _, before = await desk.preview(SEND)
    assert await desk.guard(SEND) is None
    desk.crm.books.change_account("4471", {"credit_hold": {"reason": "invoice 7 overdue", "since": "2025-01-02"}})
    refused = await desk.guard(SEND)
    assert refused == Refused(reason="account on credit hold since 2025-01-02: invoice 7 overdue")
    assert (await desk.preview(SEND))[1] == before
    desk.crm.books.change_account("4471", {"credit_hold": None})
    assert await desk.guard(SEND) is None


async def test_a_quote_of_another_account_cannot_be_sent_under_ones_own(desk: Desk) -> None:
    await desk.execute("draft_quote", {**ORDER, "account_id": "4475"})
    refused = await desk.guard(SEND)
    assert refused == Refused(reason="quote Q-1042 is for account 4475, not 4471")


async def test_an_unknown_quote_is_refused_and_has_no_preview(desk: Desk) -> None:
    assert await desk.guard({**SEND, "quote_id": "Q-9"}) == Refused(reason="There is no quote Q-9.")
    with pytest.raises(ToolFailed, match="no quote Q-9"):
        await desk.preview({**SEND, "quote_id": "Q-9"})


async def test_a_guard_that_cannot_ask_raises_instead_of_letting_through(desk: Desk) -> None:
    await desk.execute("draft_quote", ORDER)
    desk.fault("fail", "GET /accounts/{id}")
    with pytest.raises(CrmTrouble):
        await desk.guard(SEND)


async def test_a_refusal_of_the_crm_means_that_nothing_happened(desk: Desk) -> None:
    with pytest.raises(ToolFailed, match="sold from 10 pieces"):
        await desk.execute("draft_quote", {**ORDER, "lines": [{"sku": "SKU-4411", "quantity": 5}]})
    assert await desk.reconcile("draft_quote", ORDER) == DidNotHappen()
    assert desk.crm.books.effects() == []


async def test_a_crm_that_is_not_there_means_that_nothing_happened(desk: Desk) -> None:
    gone = Desk(desk.crm)
    gone.agent = make_agent("http://127.0.0.1:9")
    with pytest.raises(ToolFailed, match="can't be reached"):
        await gone.execute("draft_quote", ORDER)
    assert await gone.reconcile("draft_quote", ORDER) == Unknown(reason="The CRM can't be reached.")
    with pytest.raises(CrmUnreachable):
        await gone.execute("find_account", {"query": "Henderson"})


@pytest.mark.parametrize("kind", ["answer_lost", "crash_after_commit"])
async def test_a_lost_answer_is_an_unknown_outcome_that_reconciles_to_what_happened(desk: Desk, kind: str) -> None:
    desk.crm.faults.add(Fault(kind, "POST /quotes", seconds=0.0))
    with pytest.raises(CrmTrouble):
        await desk.execute("draft_quote", ORDER)
    found = await reconciled(desk)
    assert isinstance(found, Happened)
    assert isinstance(found.result, dict)
    assert found.result["number"] == "Q-1042"
    assert (await desk.execute("draft_quote", ORDER))["number"] == "Q-1042"
    assert len(desk.crm.books.quotes()) == 1


async def reconciled(desk: Desk) -> object:
    """Ask until the service is back; each answer before that has to be "cannot tell"."""
    async with asyncio.timeout(60):
        while isinstance(found := await desk.reconcile("draft_quote", ORDER), Unknown):
            await asyncio.sleep(0.01)
        return found


async def test_an_error_of_the_server_is_an_unknown_outcome_that_reconciles_to_nothing(desk: Desk) -> None:
    desk.fault("fail", "POST /quotes")
    with pytest.raises(CrmTrouble):
        await desk.execute("draft_quote", ORDER)
    assert await desk.reconcile("draft_quote", ORDER) == DidNotHappen()


async def test_a_question_that_fails_cannot_tell(desk: Desk) -> None:
    await desk.execute("draft_quote", ORDER)
    desk.fault("fail", "GET /operations/{key}")
    assert isinstance(await desk.reconcile("draft_quote", ORDER), Unknown)
    assert isinstance(await desk.reconcile("draft_quote", ORDER), Happened)


async def test_a_wrong_server_that_answers_404_cannot_tell(desk: Desk) -> None:
    wrong = Desk(desk.crm)
    wrong.agent = make_agent(lambda: f"{desk.crm.url}/elsewhere")
    assert isinstance(await wrong.reconcile("draft_quote", ORDER), Unknown)


async def converse(desk: Desk, *texts: str, user: User = RITA) -> list[str]:
    """Let the scripted model work on each text with the real tools; returns its answers."""
    messages: list[Message] = []
    answers: list[str] = []
    model = desk.agent.model
    assert model is not None
    for text in texts:
        messages.append(Message(role="user", text=text))
        while True:
            reply = await model.respond(messages, desk.agent.specs(), 1000)
            messages.append(Message(role="assistant", text=reply.text, calls=reply.calls))
            if not reply.calls:
                answers.append(reply.text)
                break
            for call in reply.calls:
                result = await _called(desk, call.tool, call.arguments, f"k{len(messages)}", user)
                messages.append(Message(role="tool", text=result, call_id=call.id))
            assert len(messages) < 100, "the model does not come to an end"
    return answers


async def _called(desk: Desk, name: str, arguments: dict[str, Any], key: str, user: User) -> str:
    if not await desk.permitted(user, name, arguments):
        return error_text("not_permitted", "not permitted")
    refused = await desk.tool(name).guard(desk.args(name, arguments), desk.context(key, user))
    if refused is not None:
        return error_text("refused", refused.reason)
    try:
        return result_text(await desk.execute(name, arguments, key))
    except ToolFailed as error:
        return error_text("tool_failed", error.reason)


async def test_the_story_with_the_scripted_model_sends_one_quote(desk: Desk) -> None:
    (answer,) = await converse(desk, "<@U0ATLAS0001> draft and send a quote for Henderson, 200 of SKU-4411")
    assert "was sent to buying@henderson-mfg.example" in answer
    assert [(e["kind"], e["quote"], e["total"]) for e in desk.crm.books.effects()] == [
        ("draft_quote", "Q-1042", "8730.00"),
        ("send_quote", "Q-1042", "8730.00"),
    ]


async def test_the_story_works_with_another_account_named_items_and_a_follow_up(desk: Desk) -> None:
    answers = await converse(
        desk,
        "draft and send a quote to Castillo for 20 hydraulic couplings 1/2 in and 3 gear pumps 25 cc",
        "the same for Baker",
        "the first one",
    )
    assert "Q-1042 for Castillo Packaging" in answers[0]
    assert "Which one do you mean" in answers[1]
    assert "Q-1043 for Baker Steel Works" in answers[2]
    assert len(desk.crm.books.outbox()) == 2


async def test_a_viewer_is_told_and_nothing_is_done(desk: Desk) -> None:
    (answer,) = await converse(desk, "draft and send a quote for Henderson, 200 of SKU-4411", user=VERA)
    assert "not permitted" in answer
    assert desk.crm.books.effects() == []


async def test_a_hold_is_told_with_its_reason_and_the_draft_stays(desk: Desk) -> None:
    desk.crm.books.change_account("4471", {"credit_hold": {"reason": "invoice 7 overdue", "since": "2025-01-02"}})
    (answer,) = await converse(desk, "draft and send a quote for Henderson, 200 of SKU-4411")
    assert "Quote Q-1042 is drafted." in answer
    assert "account on credit hold since 2025-01-02: invoice 7 overdue" in answer
    assert desk.crm.books.outbox() == []


async def test_a_quantity_below_the_minimum_is_told_in_the_crms_words(desk: Desk) -> None:
    (answer,) = await converse(desk, "draft a quote for Henderson, 5 of SKU-4411")
    assert "SKU-4411 is sold from 10 pieces, not 5" in answer
    assert "no quote was drafted" in answer
