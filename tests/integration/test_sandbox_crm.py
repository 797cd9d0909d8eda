"""The sandbox CRM over real sockets: prices, quotes, keys, permissions and the demo's hand on it."""

from collections.abc import AsyncIterator
from decimal import Decimal
from typing import Any

import aiohttp
import pytest

from bot.sandbox import Crm

RITA = "rita.reyes@northwind.example"
MARCUS = "marcus.hale@northwind.example"
VERA = "vera.lindqvist@northwind.example"
OSKAR = "oskar.ops@northwind.example"
ORDER = {"account_id": "4471", "lines": [{"sku": "SKU-4411", "quantity": 200}], "by": RITA}


class Client:
    """Asks the service over HTTP; each call returns (status, JSON)."""

    def __init__(self, crm: Crm, session: aiohttp.ClientSession) -> None:
        self.crm = crm
        self.session = session

    async def get(self, path: str, **query: str) -> tuple[int, Any]:
        async with self.session.get(self.crm.url + path, params=query) as answer:
            return answer.status, await answer.json()

    async def post(self, path: str, body: object, key: str | None = None) -> tuple[int, Any]:
        headers = {"Idempotency-Key": key} if key else {}
        async with self.session.post(self.crm.url + path, json=body, headers=headers) as answer:
            return answer.status, await answer.json()


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    async with Crm() as crm, aiohttp.ClientSession() as session:
        yield Client(crm, session)


async def test_an_account_is_found_by_name_part_and_by_number(client: Client) -> None:
    status, found = await client.get("/accounts", query="henderson")
    assert status == 200
    assert [account["id"] for account in found["accounts"]] == ["4471"]
    assert found["accounts"][0]["discount_percent"] == "10"
    assert (await client.get("/accounts", query="4471"))[1] == found
    assert (await client.get("/accounts/4471"))[1] == found["accounts"][0]


async def test_an_ambiguous_name_returns_every_match(client: Client) -> None:
    _, found = await client.get("/accounts", query="Baker")
    assert [account["id"] for account in found["accounts"]] == ["4472", "4475"]
    assert (await client.get("/accounts", query="nobody"))[1] == {"accounts": []}
    _, found = await client.get("/accounts", query="Baker and Sons")
    assert [account["id"] for account in found["accounts"]] == ["4475"]


async def test_unknown_things_are_a_404_with_an_error_for_programs_and_people(client: Client) -> None:
    for path, error in [
        ("/accounts/1", "unknown_account"),
        ("/skus/SKU-1", "unknown_sku"),
        ("/quotes/Q-1", "unknown_quote"),
        ("/operations/nothing", "unknown_operation"),
        ("/people/nobody@northwind.example", "unknown_person"),
        ("/nowhere", "not_found"),
    ]:
        status, body = await client.get(path)
        assert (status, body["error"]) == (404, error)
        assert body["message"]


async def test_items_are_found_by_words_and_by_number_in_any_case(client: Client) -> None:
    _, found = await client.get("/skus", query="coupling hydraulic")
    assert [item["sku"] for item in found["skus"]] == ["SKU-4411", "SKU-4412", "SKU-4413"]
    assert (await client.get("/skus/sku-4411"))[1]["unit_price"] == "48.50"


async def test_prices_are_exact_decimals_with_the_tier_discount(client: Client) -> None:
    body = {"account_id": "4471", "lines": [{"sku": "SKU-4411", "quantity": 200}, {"sku": "SKU-4451", "quantity": 13}]}
    status, priced = await client.post("/prices", body)
    assert status == 200
    assert [line["amount"] for line in priced["lines"]] == ["9700.00", "167.70"]
    assert priced["subtotal"] == "9867.70"
    assert priced["discount"] == "986.77"
    assert priced["total"] == "8880.93"
    assert (await client.get("/quotes"))[1] == {"quotes": []}


@pytest.mark.parametrize(
    ("lines", "error"),
    [
        ([], "invalid_field"),
        ([{"sku": "SKU-4411", "quantity": 9}], "below_minimum"),
        ([{"sku": "SKU-4411", "quantity": 0}], "invalid_quantity"),
        ([{"sku": "SKU-4411", "quantity": True}], "invalid_quantity"),
        ([{"sku": "SKU-4411", "quantity": 12.5}], "invalid_quantity"),
        ([{"sku": "SKU-4411", "quantity": 10**9}], "invalid_quantity"),
        ([{"quantity": 20}], "invalid_field"),
        (["SKU-4411"], "invalid_field"),
    ],
)
async def test_lines_that_make_no_sense_are_refused_and_leave_nothing(
    client: Client, lines: list[object], error: str
) -> None:
    status, body = await client.post("/quotes", {**ORDER, "lines": lines}, "k1")
    assert (status, body["error"]) == (422, error)
    assert (await client.get("/admin/effects"))[1] == {"effects": []}
    assert (await client.get("/operations/k1"))[0] == 404


async def test_a_quote_is_drafted_then_sent_once_and_the_mail_is_in_the_outbox(client: Client) -> None:
    status, quote = await client.post("/quotes", ORDER, "draft-1")
    assert status == 201
    assert (quote["number"], quote["status"], quote["total"]) == ("Q-1042", "draft", "8730.00")
    status, sent = await client.post("/quotes/Q-1042/send", {"by": RITA}, "send-1")
    assert (status, sent["status"], sent["sent_to"]) == (200, "sent", "buying@henderson-mfg.example")
    _, outbox = await client.get("/outbox")
    assert [(mail["quote"], mail["to"], mail["total"]) for mail in outbox["emails"]] == [
        ("Q-1042", "buying@henderson-mfg.example", "8730.00")
    ]
    assert "200 x SKU-4411" in outbox["emails"][0]["text"]
    assert (await client.get("/quotes", account="4471"))[1]["quotes"][0]["status"] == "sent"
    assert (await client.get("/quotes", account="4472"))[1] == {"quotes": []}


async def test_the_same_key_and_body_answer_the_same_and_do_it_once(client: Client) -> None:
    first = await client.post("/quotes", ORDER, "k1")
    assert await client.post("/quotes", ORDER, "k1") == first
    _, effects = await client.get("/admin/effects")
    assert [(e["key"], e["kind"], e["quote"], e["requests"]) for e in effects["effects"]] == [
        ("k1", "draft_quote", "Q-1042", 2)
    ]
    _, operation = await client.get("/operations/k1")
    assert (operation["status"], operation["result"]) == first


async def test_the_same_key_for_something_else_is_refused(client: Client) -> None:
    await client.post("/quotes", ORDER, "k1")
    other = {**ORDER, "lines": [{"sku": "SKU-4411", "quantity": 300}]}
    status, body = await client.post("/quotes", other, "k1")
    assert (status, body["error"]) == (422, "key_reused")
    status, body = await client.post("/quotes/Q-1042/send", {"by": RITA}, "k1")
    assert (status, body["error"]) == (422, "key_reused")
    assert len((await client.get("/admin/effects"))[1]["effects"]) == 1


async def test_a_write_without_a_key_is_refused(client: Client) -> None:
    status, body = await client.post("/quotes", ORDER)
    assert (status, body["error"]) == (400, "key_missing")
    assert (await client.get("/quotes"))[1] == {"quotes": []}


async def test_a_body_that_is_not_a_json_object_is_refused(client: Client) -> None:
    async with client.session.post(client.crm.url + "/prices", data=b"{") as answer:
        assert (answer.status, (await answer.json())["error"]) == (400, "invalid_json")
    assert (await client.post("/prices", [1]))[0] == 400


async def test_a_new_key_sends_again_and_both_mails_count(client: Client) -> None:
    await client.post("/quotes", ORDER, "k1")
    await client.post("/quotes/Q-1042/send", {"by": RITA}, "s1")
    await client.post("/quotes/Q-1042/send", {"by": RITA}, "s2")
    assert len((await client.get("/outbox"))[1]["emails"]) == 2


async def test_a_draft_follows_the_tier_and_a_sent_quote_keeps_its_price(client: Client) -> None:
    await client.post("/quotes", ORDER, "k1")
    status, tier = await client.post("/admin/tiers/gold", {"discount_percent": "12.5"})
    assert (status, tier["discount_percent"]) == (200, "12.5")
    assert (await client.get("/quotes/Q-1042"))[1]["total"] == "8487.50"
    await client.post("/quotes/Q-1042/send", {"by": RITA}, "s1")
    await client.post("/admin/accounts/4471", {"tier": "platinum"})
    quote = (await client.get("/quotes/Q-1042"))[1]
    assert (quote["total"], quote["discount_percent"]) == ("8487.50", "12.5")
    assert (await client.get("/accounts/4471"))[1]["discount_percent"] == "15"


async def test_a_credit_hold_is_published_and_lifted(client: Client) -> None:
    hold = {"reason": "invoice 1 overdue", "since": "2025-01-02"}
    _, account = await client.post("/admin/accounts/4471", {"credit_hold": hold})
    assert account["credit_hold"] == hold
    _, account = await client.post("/admin/accounts/4471", {"credit_hold": True})
    assert account["credit_hold"]["reason"]
    assert len(account["credit_hold"]["since"]) == len("2025-01-02")
    _, account = await client.post("/admin/accounts/4471", {"credit_hold": None})
    assert account["credit_hold"] is None
    assert (await client.get("/accounts/4523"))[1]["credit_hold"]["since"] == "2025-03-04"


async def test_the_directory_says_what_each_person_may_do_on_which_accounts(client: Client) -> None:
    _, rita = await client.get(f"/people/{RITA}")
    assert {"quotes.draft", "quotes.send"} <= set(rita["permissions"])
    assert "4471" in rita["accounts"]
    assert "4475" not in rita["accounts"]
    _, vera = await client.get(f"/people/{VERA}")
    assert not {"quotes.draft", "quotes.send"} & set(vera["permissions"])
    _, oskar = await client.get(f"/people/{OSKAR}")
    assert "quotes.send" not in oskar["permissions"]
    _, marcus = await client.get(f"/people/{MARCUS}")
    assert (marcus["accounts"], "quotes.send" in marcus["permissions"]) == (["*"], True)


async def test_a_role_or_single_permissions_can_be_changed(client: Client) -> None:
    _, rita = await client.post(f"/admin/people/{RITA}", {"role": "viewer"})
    assert "quotes.send" not in rita["permissions"]
    _, rita = await client.post(f"/admin/people/{RITA}", {"permissions": ["quotes.send"], "accounts": ["4472"]})
    assert (await client.get(f"/people/{RITA.upper()}"))[1] == rita
    assert (rita["permissions"], rita["accounts"]) == (["quotes.send"], ["4472"])
    status, body = await client.post("/admin/people/new@northwind.example", {"accounts": ["*"]})
    assert (status, body["error"]) == (422, "invalid_field")
    status, _ = await client.post("/admin/people/new@northwind.example", {"role": "viewer"})
    assert status == 200


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/admin/accounts/4471", {"tier": "diamond"}),
        ("/admin/accounts/4471", {"credit_hold": 3}),
        ("/admin/accounts/4471", {"creditHold": True}),
        ("/admin/tiers/gold", {"discount_percent": "much"}),
        ("/admin/tiers/gold", {"discount_percent": 101}),
        ("/admin/tiers/gold", {"discount_percent": "NaN"}),
        ("/admin/people/" + RITA, {"role": "emperor"}),
        ("/admin/people/" + RITA, {"permissions": "all"}),
        ("/admin/faults", {"kind": "explode"}),
        ("/admin/faults", {"kind": "fail", "route": "GET /nowhere"}),
        ("/admin/faults", {"kind": "fail", "times": 0}),
    ],
)
async def test_a_mistyped_change_of_the_world_is_refused_not_ignored(client: Client, path: str, body: object) -> None:
    status, answer = await client.post(path, body)
    assert status == 422
    assert answer["message"]


async def test_reset_starts_over_with_numbers_and_faults(client: Client) -> None:
    await client.post("/quotes", ORDER, "k1")
    await client.post("/admin/accounts/4471", {"tier": "standard"})
    await client.post("/admin/faults", {"kind": "fail", "times": None})
    await client.post("/admin/reset", {})
    assert (await client.get("/accounts/4471"))[1]["tier"] == "gold"
    assert (await client.post("/quotes", ORDER, "k1"))[1]["number"] == "Q-1042"


async def test_every_seeded_price_is_money_and_every_account_has_a_mail_and_a_known_tier(client: Client) -> None:
    _, found = await client.get("/skus")
    assert len(found["skus"]) >= 21
    assert all(Decimal(item["unit_price"]).as_tuple().exponent == -2 for item in found["skus"])
    _, tiers = await client.get("/tiers")
    names = {tier["name"] for tier in tiers["tiers"]}
    _, accounts = await client.get("/accounts")
    assert len(accounts["accounts"]) >= 13
    for account in accounts["accounts"]:
        assert account["tier"] in names
        assert "@" in account["contact"]["email"]
        assert (await client.get(f"/people/{account['owner']}"))[0] == 200
