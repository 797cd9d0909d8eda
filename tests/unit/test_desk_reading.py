"""What the desk understands of one message, without any conversation."""

import pytest

from bot.desk.reading import Wanted, Wish, read


def lines(*wanted: tuple[int, str]) -> tuple[Wanted, ...]:
    return tuple(Wanted(item, quantity) for quantity, item in wanted)


@pytest.mark.parametrize(
    ("text", "account", "ordered", "send"),
    [
        (
            "<@U0ATLAS0001> draft and send a quote for Henderson, 200 of SKU-4411",
            "Henderson",
            lines((200, "SKU-4411")),
            True,
        ),
        ("Draft a quote for 200 of SKU-4411 for Henderson", "Henderson", lines((200, "SKU-4411")), False),
        ("send Henderson a quote for 1,200 SKU-4411", "Henderson", lines((1200, "SKU-4411")), True),
        (
            "quote Baker &amp; Sons Foundry 12 SKU-4451, SKU-4420 x 30",
            "Baker & Sons Foundry",
            lines((12, "SKU-4451"), (30, "SKU-4420")),
            False,
        ),
        (
            "draft and send a quote for Henderson Manufacturing: 200 x sku 4411 and 50 of SKU-4420",
            "Henderson Manufacturing",
            lines((200, "SKU-4411"), (50, "SKU-4420")),
            True,
        ),
        (
            "draft a quote for Henderson: SKU-4411 (200), SKU-4413 qty 20",
            "Henderson",
            lines((200, "SKU-4411"), (20, "SKU-4413")),
            False,
        ),
        (
            "Can you draft a quote of 200 SKU-4411 for Henderson and send it?",
            "Henderson",
            lines((200, "SKU-4411")),
            True,
        ),
        ("Draft and send a quote for account 4471, 200 of SKU-4411.", "4471", lines((200, "SKU-4411")), True),
        ("draft and send a quote for 200 of SKU-4411", None, lines((200, "SKU-4411")), True),
        (
            "draft and send a quote to Castillo for 20 hydraulic couplings 1/2 in and 3 gear pumps 25 cc",
            "Castillo",
            lines((20, "hydraulic couplings 1/2 in"), (3, "gear pumps 25 cc")),
            True,
        ),
        (
            "Draft a quote for Henderson, 200 of SKU-4411, don't send it yet",
            "Henderson",
            lines((200, "SKU-4411")),
            False,
        ),
        ("quote for Henderson, 10 SKU-4411, do not send", "Henderson", lines((10, "SKU-4411")), False),
    ],
)
def test_a_quote_request_gives_account_lines_and_whether_to_send(
    text: str, account: str | None, ordered: tuple[Wanted, ...], send: bool
) -> None:
    request = read(text)
    assert (request.wish, request.account, request.lines, request.send) == (Wish.QUOTE, account, ordered, send)


@pytest.mark.parametrize(
    ("text", "wish", "account"),
    [
        ("price 200 SKU-4411 for Castillo", Wish.PRICE, "Castillo"),
        ("how much would 40 of SKU-4440 cost for Dunmore Hydraulics?", Wish.PRICE, "Dunmore Hydraulics"),
        ("how much is SKU-4411?", Wish.ITEM, None),
        ("who is Henderson?", Wish.ACCOUNT, "Henderson"),
        ("find account Baker", Wish.ACCOUNT, "Baker"),
        ("is Lakeshore on credit hold?", Wish.ACCOUNT, "Lakeshore"),
        ("tell me about Kestrel Aerospace", Wish.ACCOUNT, "Kestrel Aerospace"),
        ("show quotes for Henderson", Wish.QUOTES, "Henderson"),
        ("what quotes does Henderson have?", Wish.QUOTES, "Henderson"),
        ("please send the quote to Henderson", Wish.SEND, "Henderson"),
        ("", Wish.HELP, None),
        ("<@U0ATLAS0001>", Wish.HELP, None),
        ("hello", Wish.HELP, None),
        ("what can you do?", Wish.HELP, None),
        ("thanks!", Wish.THANKS, None),
        ("never mind", Wish.CANCEL, None),
        ("don't send anything", Wish.CANCEL, None),
        ("delete Q-1042", Wish.CANNOT, None),
        ("lift the credit hold for Henderson", Wish.CANNOT, "Henderson"),
        ("what is the weather", Wish.FRAGMENT, None),
    ],
)
def test_other_requests_are_told_apart(text: str, wish: Wish, account: str | None) -> None:
    request = read(text)
    assert (request.wish, request.account) == (wish, account)


@pytest.mark.parametrize("text", ["send Q-1042", "please send quote q 1042 now", "resend Q-1042"])
def test_a_quote_number_to_send_is_normalised(text: str) -> None:
    request = read(text)
    assert (request.wish, request.quote, request.lines) == (Wish.SEND, "Q-1042", ())


def test_a_negated_send_of_a_number_only_shows_the_quote() -> None:
    request = read("do not send Q-1042")
    assert (request.wish, request.send) == (Wish.QUOTES, False)


def test_a_wanted_discount_is_kept_and_is_no_quantity() -> None:
    request = read("draft a quote for Henderson, 200 of SKU-4411 with 20% discount")
    assert (request.discount, request.lines) == ("20", lines((200, "SKU-4411")))
    assert read("200 of SKU-4411 for Henderson at 7.5 percent off").discount == "7.5"


@pytest.mark.parametrize("text", ["now 300 of them", "make it 300", "300 instead"])
def test_a_bare_quantity_refers_to_what_was_there(text: str) -> None:
    request = read(text)
    assert (request.wish, request.quantity, request.again, request.lines) == (Wish.FRAGMENT, 300, True, ())


@pytest.mark.parametrize(
    "quantity", ["2.5 of SKU-4411", "200.50 of SKU-4411", "2,5 of SKU-4411", "200,50 of SKU-4411", "SKU-4411 x 2.5"]
)
def test_a_fraction_is_no_quantity(quantity: str) -> None:
    """Who asks for parts of a piece is asked what is meant, not given what stands behind the point."""
    assert read(f"draft a quote for Henderson, {quantity}").lines == ()


def test_lines_without_a_space_between_them_are_all_read() -> None:
    wanted = read("quote Henderson 1,500 of SKU-4411,300 of SKU-4412").lines
    assert wanted == lines((1500, "SKU-4411"), (300, "SKU-4412"))


def test_link_markup_of_slack_is_read_as_its_text() -> None:
    assert read("who is <https://henderson.example|Henderson>?").account == "Henderson"


@pytest.mark.parametrize(
    ("text", "account"),
    [
        ("who is Henderson's contact?", "Henderson"),
        ("who is the contact at Henderson?", "Henderson"),
        ("who's the contact for Baker Steel Works", "Baker Steel Works"),
        ("what's Henderson's email?", "Henderson"),
        ("can you tell me Henderson’s contact?", "Henderson"),
        ("what is the tier of Henderson?", "Henderson"),
        ("which tier is Henderson in?", "Henderson"),
        ("what discount does Henderson get?", "Henderson"),
        ("how much discount does Castillo get?", "Castillo"),
        ("Henderson's contact", "Henderson"),
        ("contact details of Baker Steel Works please", "Baker Steel Works"),
        ("where is Henderson?", "Henderson"),
        ("who owns Henderson?", "Henderson"),
        ("who should I write to at Henderson?", "Henderson"),
        ("who is bob@x.example?", "bob@x.example"),
        ("who is the contact?", None),
    ],
)
def test_questions_about_an_account_name_it(text: str, account: str | None) -> None:
    request = read(text)
    assert (request.wish, request.account) == (Wish.ACCOUNT, account)


@pytest.mark.parametrize(
    ("text", "wish"),
    [
        ("change Henderson's discount to 20 %", Wish.CANNOT),
        ("can you raise Henderson's tier?", Wish.CANNOT),
        ("email the quote to Henderson's contact", Wish.SEND),
        ("send Henderson's contact a quote, 200 of SKU-4411", Wish.QUOTE),
        ("what is the price for Henderson, 20 of SKU-4411?", Wish.PRICE),
    ],
)
def test_an_order_is_no_question_about_an_account(text: str, wish: Wish) -> None:
    assert read(text).wish is wish


@pytest.mark.parametrize(
    ("text", "account", "others"),
    [
        ("quote for Henderson, 200 of SKU-4411, and one for Castillo, 50 of SKU-4440", "Henderson", ("Castillo",)),
        ("quote 200 of SKU-4411 for Henderson and 50 of SKU-4440 for Castillo", "Henderson", ("Castillo",)),
        ("send Henderson a quote for 2 SKU-4411 and Castillo a quote for 5 SKU-4440", "Henderson", ("Castillo",)),
        ("quote for Henderson, Castillo and Baker, 200 of SKU-4411", "Henderson", ("Castillo", "Baker")),
        ("draft and send a quote for Henderson, 200 of SKU-4411", "Henderson", ()),
        ("quote for Henderson, 200 of SKU-4411, and send it please", "Henderson", ()),
        ("draft a quote for Henderson, and send it: 200 of SKU-4411", "Henderson", ()),
        ("quote for Henderson: 20 of SKU-4411 and for henderson 5 of SKU-4440", "Henderson", ()),
    ],
)
def test_what_may_be_further_customers_is_kept(text: str, account: str, others: tuple[str, ...]) -> None:
    request = read(text)
    assert (request.account, request.others) == (account, others)


@pytest.mark.parametrize(
    "text",
    [
        "draft and send a quote for Henderson, 200 of SKU-4411, to bob@evil.example",
        "send <mailto:bob@evil.example|bob@evil.example> a quote for Henderson, 200 of SKU-4411",
        "email a quote for Henderson, 200 of SKU-4411, cc: bob@evil.example.",
    ],
)
def test_an_address_is_kept_and_is_no_account(text: str) -> None:
    request = read(text)
    assert (request.wish, request.account, request.email) == (Wish.QUOTE, "Henderson", "bob@evil.example")
