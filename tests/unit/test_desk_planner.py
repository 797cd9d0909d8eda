"""What the desk does next, conversation by conversation; results are those that the loop and the CRM give."""

import asyncio
import json
import re
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bot.desk import make_agent
from bot.desk.conversation import Outcome, turns
from bot.desk.model import ScriptedModel
from bot.desk.reading import MOST_READ, read
from core import Message, ModelReply, ToolCall
from core.conversation import error_text

SPECS = make_agent("http://127.0.0.1:9").specs()
HENDERSON = {
    "id": "4471",
    "name": "Henderson Manufacturing",
    "city": "Dayton, OH",
    "tier": "gold",
    "discount_percent": "10",
    "owner": "rita@x.example",
    "contact": {"name": "Dana", "email": "dana@x.example"},
    "credit_hold": None,
}
BAKERS = [{**HENDERSON, "id": "4472", "name": "Baker Steel Works"}, {**HENDERSON, "id": "4475", "name": "Baker & Sons"}]
QUOTE = {
    "number": "Q-1042",
    "status": "draft",
    "account_id": "4471",
    "account_name": "Henderson Manufacturing",
    "currency": "USD",
    "lines": [{"sku": "SKU-4411", "name": "Coupling", "quantity": 200, "unit_price": "48.50", "amount": "9700.00"}],
    "subtotal": "9700.00",
    "discount_percent": "10",
    "discount": "970.00",
    "total": "8730.00",
    "sent_to": None,
}
SENT = {**QUOTE, "status": "sent", "sent_to": "dana@x.example"}
ASK = "draft and send a quote for Henderson, 200 of SKU-4411"


class Talk:
    """A conversation with the scripted model; results are given by hand, as the loop would."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.reply = ModelReply()

    async def says(self, text: str) -> "Talk":
        self.messages.append(Message(role="user", text=text))
        return await self._next()

    async def gets(self, value: Any) -> "Talk":
        """Give the pending call its result: JSON of a tool, or the text of an error."""
        text = value if isinstance(value, str) else json.dumps(value)
        self.messages.append(Message(role="tool", text=text, call_id=self.reply.calls[0].id))
        return await self._next()

    async def _next(self) -> "Talk":
        self.reply = await ScriptedModel().respond(self.messages, SPECS, 1000)
        self.messages.append(Message(role="assistant", text=self.reply.text, calls=self.reply.calls))
        return self

    def call(self) -> tuple[str, dict[str, Any]] | None:
        return (self.reply.calls[0].tool, self.reply.calls[0].arguments) if self.reply.calls else None

    async def until_send(self) -> "Talk":
        await self.says(ASK)
        await self.gets({"accounts": [HENDERSON], "found": 1})
        return await self.gets(QUOTE)


SEND = ("send_quote", {"quote_id": "Q-1042", "account_id": "4471"})


async def test_find_then_draft_then_send_then_say_what_was_sent() -> None:
    talk = await Talk().says(ASK)
    assert talk.call() == ("find_account", {"query": "Henderson"})
    await talk.gets({"accounts": [HENDERSON], "found": 1})
    assert talk.call() == ("draft_quote", {"account_id": "4471", "lines": [{"sku": "SKU-4411", "quantity": 200}]})
    await talk.gets(QUOTE)
    assert talk.call() == SEND
    await talk.gets(SENT)
    assert talk.call() is None
    assert "Q-1042" in talk.reply.text
    assert "was sent to dana@x.example" in talk.reply.text
    assert "8,730.00 USD" in talk.reply.text


async def test_without_send_it_stops_at_the_draft_and_says_that_it_was_not_sent() -> None:
    talk = await Talk().says("draft a quote for Henderson, 200 of SKU-4411")
    await talk.gets({"accounts": [HENDERSON], "found": 1})
    await talk.gets(QUOTE)
    assert talk.call() is None
    assert "not sent" in talk.reply.text


async def test_an_ambiguous_account_is_asked_back_and_the_choice_is_understood() -> None:
    talk = await Talk().says("quote for Baker, 20 of SKU-4413")
    await talk.gets({"accounts": BAKERS, "found": 2})
    assert talk.call() is None
    assert "Baker Steel Works (4472)" in talk.reply.text
    await talk.says("the second one")
    assert talk.call() == ("find_account", {"query": "4475"})
    await talk.gets({"accounts": [BAKERS[1]], "found": 1})
    assert talk.call() == ("draft_quote", {"account_id": "4475", "lines": [{"sku": "SKU-4413", "quantity": 20}]})


CASTILLO = {
    **HENDERSON,
    "id": "4480",
    "name": "Castillo Packaging",
    "contact": {"name": "Luis", "email": "luis@x.example"},
}


@pytest.mark.parametrize(
    "text",
    [
        "draft and send a quote for Henderson, 200 of SKU-4411, and one for Castillo, 50 of SKU-4440",
        "draft and send a quote for Henderson, Castillo, 200 of SKU-4411",
    ],
)
async def test_two_customers_in_one_request_are_asked_apart_and_drafted_one_by_one(text: str) -> None:
    """One quote with both customers' lines would be sent to the first of them."""
    talk = await Talk().says(text)
    await talk.gets({"accounts": [HENDERSON], "found": 1})
    assert talk.call() == ("find_account", {"query": "Castillo"})
    await talk.gets({"accounts": [CASTILLO], "found": 1})
    assert talk.call() is None
    assert "Henderson Manufacturing (4471) and Castillo Packaging (4480)" in talk.reply.text
    assert "Nothing was done yet" in talk.reply.text
    await talk.says("Castillo Packaging, 50 of SKU-4440")
    assert talk.call() == ("find_account", {"query": "4480"})
    await talk.gets({"accounts": [CASTILLO], "found": 1})
    assert talk.call() == ("draft_quote", {"account_id": "4480", "lines": [{"sku": "SKU-4440", "quantity": 50}]})


async def test_two_customers_with_an_and_between_them_are_asked_apart() -> None:
    talk = await Talk().says("quote for Henderson and Castillo, 200 of SKU-4411 each")
    assert talk.call() == ("find_account", {"query": "Henderson and Castillo"})
    await talk.gets({"accounts": [], "found": 0})
    await talk.gets({"accounts": [HENDERSON], "found": 1})
    await talk.gets({"accounts": [CASTILLO], "found": 1})
    assert "You named 2 customers" in talk.reply.text
    await talk.says("the first")
    assert talk.call() is None
    assert "What should I quote for 4471" in talk.reply.text


async def test_a_name_beside_the_customers_that_the_crm_does_not_know_changes_nothing() -> None:
    talk = await Talk().says("quote for Henderson for delivery, 200 of SKU-4411")
    await talk.gets({"accounts": [HENDERSON], "found": 1})
    assert talk.call() == ("find_account", {"query": "delivery"})
    await talk.gets({"accounts": [], "found": 0})
    assert talk.call() == ("draft_quote", {"account_id": "4471", "lines": [{"sku": "SKU-4411", "quantity": 200}]})


@pytest.mark.parametrize("address", ["bob@evil.example", "DANA@x.example"])
async def test_another_address_is_refused_in_words_and_the_contacts_own_is_none(address: str) -> None:
    talk = await Talk().says(f"{ASK}, to {address}")
    await talk.gets({"accounts": [HENDERSON], "found": 1})
    if address.casefold() == "dana@x.example":
        assert talk.call() == ("draft_quote", {"account_id": "4471", "lines": [{"sku": "SKU-4411", "quantity": 200}]})
        return
    assert talk.call() is None
    assert f"I can't send to {address}" in talk.reply.text
    assert "dana@x.example" in talk.reply.text
    await talk.says("then 300 of SKU-4411")
    assert talk.call() == ("find_account", {"query": "Henderson"})
    await talk.gets({"accounts": [HENDERSON], "found": 1})
    assert talk.call() == ("draft_quote", {"account_id": "4471", "lines": [{"sku": "SKU-4411", "quantity": 300}]})


async def test_another_address_for_a_quote_that_is_there_is_refused_before_the_card() -> None:
    talk = await Talk().says("send Q-1042 to bob@evil.example")
    await talk.gets({"quotes": [{**QUOTE, "contact": HENDERSON["contact"]}], "found": 1})
    assert talk.call() is None
    assert "I can't send to bob@evil.example" in talk.reply.text


async def test_the_contact_of_the_account_before_is_told() -> None:
    talk = await Talk().says("price 200 of SKU-4411 for Henderson")
    talk = await talk.gets({"accounts": [HENDERSON], "found": 1})
    priced = {**QUOTE, "account_name": "Henderson Manufacturing"}
    await talk.gets(priced)
    await talk.says("who is the contact?")
    assert talk.call() == ("find_account", {"query": "Henderson"})
    await talk.gets({"accounts": [HENDERSON], "found": 1})
    assert "Contact: Dana, dana@x.example" in talk.reply.text


async def test_a_missing_account_or_missing_lines_are_asked_for_before_anything_is_called() -> None:
    talk = await Talk().says("draft and send a quote for 200 of SKU-4411")
    assert talk.call() is None
    assert "Which account" in talk.reply.text
    await talk.says("Henderson")
    assert talk.call() == ("find_account", {"query": "Henderson"})

    talk = await Talk().says("draft a quote for Henderson")
    assert talk.call() is None
    assert "quantities and items" in talk.reply.text
    await talk.says("200 of SKU-4411")
    assert talk.call() == ("find_account", {"query": "Henderson"})


async def test_an_unknown_account_is_said_and_nothing_is_drafted() -> None:
    talk = await Talk().says("draft a quote for Nobody, 200 of SKU-4411")
    await talk.gets({"accounts": [], "found": 0})
    assert talk.call() is None
    assert "no account like “Nobody”" in talk.reply.text


@pytest.mark.parametrize(
    ("kind", "reason", "said"),
    [
        ("declined_by_user", "too expensive", "was declined, so quote Q-1042 was not sent"),
        ("refused", "account on credit hold since 2025-01-02: overdue", "account on credit hold since 2025-01-02"),
        ("not_permitted", "your permissions changed", "not permitted"),
        ("could_not_check", "could not check your permissions", "could not check your permissions"),
        ("outcome_unknown", "the connection broke", "I can't tell whether quote Q-1042 was sent"),
        ("tool_failed", "the CRM can't be reached", "did not work: the CRM can't be reached"),
        ("superseded", "not executed", "replaced by a newer instruction, so quote Q-1042 was not sent"),
        ("a_word_of_next_year", "something new", "in a way that I can't judge: something new"),
        ("result_not_storable", "it was done, but", "in a way that I can't judge: it was done"),
    ],
)
async def test_what_came_of_a_send_is_told_in_plain_words_and_never_repeated(kind: str, reason: str, said: str) -> None:
    talk = await Talk().until_send()
    await talk.gets(error_text(kind, reason))
    assert talk.call() is None
    assert said in talk.reply.text
    assert "was sent to" not in talk.reply.text


async def test_a_decline_repeats_the_reason_that_came_with_it() -> None:
    talk = await Talk().until_send()
    words = "a person looked at this and said no; nothing was done. Do not try it again."
    await talk.gets(error_text("declined_by_user", f'{words} Their reason: "too expensive".'))
    assert "The reason given: too expensive" in talk.reply.text
    assert "a person looked" not in talk.reply.text


async def test_try_again_sends_the_draft_that_is_there_and_drafts_no_second_one() -> None:
    talk = await Talk().until_send()
    await talk.gets(error_text("could_not_check", "could not check your permissions (503); nothing was done"))
    assert "has to wait: could not check your permissions (503). So quote Q-1042 was not sent" in talk.reply.text
    await talk.says("try again please")
    assert talk.call() == ("find_quote", {"quote_id": "Q-1042"})
    await talk.gets({"quotes": [QUOTE], "found": 1})
    assert talk.call() == SEND


async def test_try_again_after_a_failed_draft_drafts() -> None:
    talk = await Talk().says(ASK)
    await talk.gets(error_text("tool_failed", "the CRM can't be reached"))
    await talk.says("try again")
    assert talk.call() == ("find_account", {"query": "Henderson"})
    assert (await Talk().says("try again")).call() is None


@pytest.mark.parametrize("kind", ["not_executed_budget", "expired", "stopped", "not_executed"])
async def test_after_a_continue_what_was_not_executed_is_asked_for_again_but_not_for_ever(kind: str) -> None:
    talk = await Talk().until_send()
    for _ in range(3):
        await talk.gets(error_text(kind, "not executed"))
        assert talk.call() == SEND
    await talk.gets(error_text(kind, "not executed"))
    assert talk.call() is None
    assert "was not sent" in talk.reply.text


async def test_after_an_unknown_outcome_asking_again_looks_first_and_does_not_send() -> None:
    talk = await Talk().until_send()
    await talk.gets(error_text("outcome_unknown", "outcome unknown, do not repeat it"))
    await talk.says("send it again?")
    assert talk.call() == ("find_quote", {"quote_id": "Q-1042"})
    await talk.gets({"quotes": [SENT], "found": 1})
    assert talk.call() is None
    assert "I will not repeat it" in talk.reply.text
    assert "sent to dana@x.example" in talk.reply.text


async def test_an_unknown_draft_is_not_repeated_in_a_later_turn() -> None:
    talk = await Talk().says(ASK)
    await talk.gets({"accounts": [HENDERSON], "found": 1})
    await talk.gets(error_text("outcome_unknown", "no answer"))
    assert "I can't tell whether the quote for account 4471 was drafted" in talk.reply.text
    await talk.says(ASK)
    await talk.gets({"accounts": [HENDERSON], "found": 1})
    assert talk.call() == ("find_quote", {"account_id": "4471"})
    await talk.gets({"quotes": [QUOTE], "found": 1})
    assert talk.call() is None
    assert "I will not repeat it" in talk.reply.text


async def test_a_person_may_ask_again_after_a_decline_and_a_new_card_decides() -> None:
    talk = await Talk().until_send()
    await talk.gets(error_text("declined_by_user", ""))
    await talk.says("send it again?")
    await talk.gets({"quotes": [QUOTE], "found": 1})
    assert talk.call() == SEND


async def test_another_quantity_makes_a_new_quote_for_the_same_account() -> None:
    talk = await Talk().until_send()
    await talk.gets(SENT)
    await talk.says("now 300 of them")
    await talk.gets({"accounts": [HENDERSON], "found": 1})
    assert talk.call() == ("draft_quote", {"account_id": "4471", "lines": [{"sku": "SKU-4411", "quantity": 300}]})
    await talk.gets({**QUOTE, "number": "Q-1043"})
    assert talk.call() == ("send_quote", {"quote_id": "Q-1043", "account_id": "4471"})


async def test_a_new_instruction_while_it_waited_replaces_what_was_asked() -> None:
    talk = await Talk().until_send()
    talk.messages.append(
        Message(role="tool", text=error_text("superseded", "not executed"), call_id=talk.reply.calls[0].id)
    )
    await talk.says("make it 250 instead")
    await talk.gets({"accounts": [HENDERSON], "found": 1})
    assert talk.call() == ("draft_quote", {"account_id": "4471", "lines": [{"sku": "SKU-4411", "quantity": 250}]})


async def test_the_same_for_another_account_and_more_lines_on_top() -> None:
    talk = await Talk().until_send()
    await talk.gets(SENT)
    await talk.says("same for Castillo Packaging")
    assert talk.call() == ("find_account", {"query": "Castillo Packaging"})
    await talk.gets({"accounts": [{**HENDERSON, "id": "4480", "name": "Castillo Packaging"}], "found": 1})
    assert talk.call() == ("draft_quote", {"account_id": "4480", "lines": [{"sku": "SKU-4411", "quantity": 200}]})
    await talk.gets({**QUOTE, "number": "Q-1043", "account_id": "4480"})
    await talk.gets({**SENT, "number": "Q-1043", "account_id": "4480"})
    await talk.says("add 50 of SKU-4420")
    await talk.gets({"accounts": [{**HENDERSON, "id": "4480", "name": "Castillo Packaging"}], "found": 1})
    both = [{"sku": "SKU-4411", "quantity": 200}, {"sku": "SKU-4420", "quantity": 50}]
    assert talk.call() == ("draft_quote", {"account_id": "4480", "lines": both})


async def test_a_quote_sent_by_number_takes_its_account_from_the_crm() -> None:
    talk = await Talk().says("send Q-1042")
    assert talk.call() == ("find_quote", {"quote_id": "Q-1042"})
    await talk.gets({"quotes": [QUOTE], "found": 1})
    assert talk.call() == SEND
    talk = await Talk().says("send Q-9999")
    await talk.gets({"quotes": [], "found": 0})
    assert talk.call() is None
    assert "nothing was sent" in talk.reply.text


async def test_the_answer_tells_the_quote_that_was_sent_not_the_one_that_was_asked_for() -> None:
    talk = await Talk().until_send()
    await talk.gets({**SENT, "number": "Q-1050", "total": "1.00"})
    assert "Q-1050" in talk.reply.text
    assert "Q-1042" not in talk.reply.text


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("hello", "For example"),
        ("", "For example"),
        ("what is the weather", "did not understand"),
        ("delete Q-1042", "I can't do that"),
        ("draft a quote for Henderson, 200 of SKU-4411 with 20% discount", "can't give a discount of 20 %"),
        ("send it", "Which quote"),
        ("stop", "I do nothing"),
    ],
)
async def test_what_needs_no_tool_is_answered_at_once(text: str, said: str) -> None:
    talk = await Talk().says(text)
    assert talk.call() is None
    assert said in talk.reply.text


async def test_each_call_costs_what_the_worst_case_says() -> None:
    talk = await Talk().until_send()
    worst = ScriptedModel().worst_case_usd(talk.messages, SPECS, 1000)
    assert talk.reply.spend_usd == worst == Decimal("0.012")


async def test_the_same_conversation_gives_the_same_reply_and_ids_do_not_repeat() -> None:
    talk = await Talk().until_send()
    assert await ScriptedModel().respond(talk.messages[:-1], SPECS, 1000) == talk.reply
    ids = [call.id for message in talk.messages for call in message.calls]
    assert len(set(ids)) == len(ids) == 3


async def test_a_tool_that_is_not_offered_is_not_called() -> None:
    reply = await ScriptedModel().respond([Message(role="user", text=ASK)], [], 1000)
    assert reply.calls == ()
    assert "find_account" in reply.text


WORDS = st.sampled_from(
    re.findall(
        r"\S+",
        """draft and send a quote for to Henderson Baker & Sons 200 1,200 of x SKU-4411 SKU-4420 Q-1042 it again now
        them make 300 instead add same price
        who is find don't 20 % discount stop first the , . ? : \0 <@U1> gear pumps""",
    )
)
RESULTS = st.sampled_from(
    [
        json.dumps({"accounts": [HENDERSON], "found": 1}),
        json.dumps({"accounts": BAKERS, "found": 2}),
        json.dumps({"accounts": [], "found": 0}),
        json.dumps({"items": [], "found": 0}),
        json.dumps({"quotes": [QUOTE], "found": 1}),
        json.dumps({"quotes": [SENT, QUOTE, QUOTE], "found": 3}),
        json.dumps(QUOTE),
        json.dumps(SENT),
        json.dumps({"happened": True}),
        error_text("declined_by_user", "no"),
        error_text("outcome_unknown", "do not repeat it"),
        error_text("not_executed_budget", "used up"),
        "{",
    ]
)


@given(
    said=st.lists(st.lists(WORDS, max_size=12).map(" ".join), min_size=1, max_size=4),
    results=st.lists(RESULTS, max_size=30),
)
def test_whatever_is_said_and_whatever_comes_back_the_desk_comes_to_an_end(said: list[str], results: list[str]) -> None:
    """No write is asked for again after a decline, an unknown outcome or a success within one turn."""

    async def play() -> None:
        coming = iter(results)
        talk = Talk()
        for text in said:
            await talk.says(text)
            closed: set[str] = set()
            while (call := talk.call()) is not None:
                key = json.dumps(call)
                assert key not in closed
                result = next(coming, "{")
                if "not_executed_budget" not in result:
                    closed.add(key)
                await talk.gets(result)
            assert talk.reply.text

    asyncio.run(play())


def test_a_very_long_message_is_read_in_no_time_to_speak_of() -> None:
    text = "draft and send a quote for " + "a very long name and 3 more " * 4000
    assert len(read(text).text) == MOST_READ


def test_results_belong_to_their_calls_even_when_ids_repeat() -> None:
    call = ToolCall(id="call_1", tool="look", arguments={})
    found = turns(
        [
            Message(role="user", text="a"),
            Message(role="assistant", text="", calls=(call,)),
            Message(role="tool", text='{"n": 1}', call_id="call_1"),
            Message(role="assistant", text="", calls=(call, call)),
            Message(role="tool", text='{"n": 2}', call_id="call_1"),
        ]
    )
    assert [(t.outcome, t.value.get("n")) for t in found[0].tried] == [
        (Outcome.DONE, 1),
        (Outcome.DONE, 2),
        (Outcome.UNKNOWN, None),
    ]


async def test_a_send_that_a_person_confirmed_is_told_as_that() -> None:
    talk = await Talk().until_send()
    await talk.gets({"happened": True, "confirmed_by": "@U0RITA00001", "note": "no result known"})
    assert talk.call() is None
    assert "@U0RITA00001 confirmed that quote Q-1042 was sent" in talk.reply.text


async def test_a_draft_that_a_person_confirmed_is_neither_repeated_nor_sent_blindly() -> None:
    talk = await Talk().says(ASK)
    await talk.gets({"accounts": [HENDERSON], "found": 1})
    await talk.gets({"happened": True, "confirmed_by": "@U0RITA00001", "note": "no result known"})
    assert talk.call() is None
    assert "nothing was sent" in talk.reply.text


@pytest.mark.parametrize("pieces", ["0", "1000001", "99999999"])
async def test_a_quantity_that_nobody_can_quote_is_said_in_plain_words(pieces: str) -> None:
    talk = await Talk().says(f"draft a quote for Henderson, {pieces} of SKU-4411")
    assert talk.reply.calls == ()
    assert f"I can quote 1 to 1,000,000 pieces of an item, not {int(pieces):,}. Nothing was done." in talk.reply.text


@pytest.mark.parametrize("text", ["{}", '{"accounts": 3}', '{"accounts": [], "found": "x"}', "cut off…"])
async def test_a_read_whose_result_makes_no_sense_ends_in_words(text: str) -> None:
    talk = await Talk().says(ASK)
    await talk.gets(text)
    assert talk.call() is None
    assert "can't judge" in talk.reply.text


@pytest.mark.parametrize("text", ["", "not json", "[1]", "null", '{"error": 7}', '{"error": {"a": 1}}'])
async def test_a_result_that_cannot_be_read_is_never_taken_for_success(text: str) -> None:
    talk = await Talk().until_send()
    await talk.gets(text)
    assert talk.call() is None
    assert "was sent to" not in talk.reply.text
