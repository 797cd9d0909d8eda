"""What the desk does next, as a pure function of the conversation.

Decides the next call or the answer from what people wrote and from results, nothing else. It never repeats an action
whose outcome is unknown, or that was declined in the same turn. The failure it can cause: a request completed with
something the person did not mean; so whatever is missing or ambiguous is asked for.
"""

import re
from dataclasses import dataclass, field, replace
from typing import Any

from bot.desk import phrases
from bot.desk.conversation import Outcome, Tried, Turn
from bot.desk.reading import Request, Wanted, Wish, apart, read

Json = dict[str, Any]

# Not executed for sure, and seen again in the same turn only after a person continued the run: worth another try.
_TRY_AGAIN = (Outcome.BUDGET, Outcome.EXPIRED, Outcome.STOPPED)
_MOST_TRIES = 4
MOST_PIECES = 1_000_000
_WRITES = ("draft_quote", "send_quote")
_FILL = (Wish.QUOTE, Wish.PRICE, Wish.ACCOUNT, Wish.SEND, Wish.QUOTES)


@dataclass(frozen=True)
class Call:
    """The next call to make."""

    tool: str
    arguments: Json


@dataclass(frozen=True)
class Say:
    """The answer. *asks*: what it asks for ("account", "customer" when several were named, "lines", "quote", "item");
    *choices*: what it offers."""

    text: str
    asks: str | None = None
    choices: tuple[Json, ...] = ()


Plan = Call | Say


@dataclass
class Memory:
    """What earlier turns left: the last request, the last question asked back, the last quote, unknown outcomes."""

    request: Request | None = None
    question: Say | None = None
    quote: Json | None = None
    unknown: list[Tried] = field(default_factory=list)

    def add(self, request: Request, turn: Turn, plan: Plan) -> None:
        """Remember a turn that is over."""
        self.question = plan if isinstance(plan, Say) and plan.asks else None
        for tried in turn.tried:
            if tried.outcome is Outcome.DONE and tried.tool in _WRITES:
                self.quote = tried.value
            elif tried.outcome is Outcome.UNKNOWN and tried.tool in _WRITES:
                self.unknown.append(tried)
            elif tried.outcome is Outcome.DONE and tried.tool == "find_quote" and len(tried.value["quotes"]) == 1:
                self.quote = tried.value["quotes"][0]
        if request.wish is Wish.SEND and self.quote is not None:
            # "now 300 of them" after "send Q-1042" means that quote's account and lines.
            self.request = _request_of(self.quote)
        elif request.wish in _FILL:
            self.request = request
            if self.question is None:
                # An address that a quote can't go to was said to be one; it must not haunt the next request.
                self.request = replace(request, email=None)
            elif self.question.asks == "customer":
                # Whose line was whose is not known, so the answer begins anew.
                self.request = replace(request, account=None, lines=(), others=())


def _request_of(quote: Json) -> Request:
    lines = tuple(Wanted(line["sku"], line["quantity"]) for line in quote["lines"])
    return Request(Wish.QUOTE, account=quote["account_id"], lines=lines, send=True)


def plan(turns: list[Turn]) -> Plan:
    """Return the next call or the answer for the last turn."""
    memory = Memory()
    if not turns:
        return Say(phrases.HELP)
    for turn in turns[:-1]:
        request = _complete(read(turn.text), memory)
        memory.add(request, turn, _act(request, turn, memory))
    return _act(_complete(read(turns[-1].text), memory), turns[-1], memory)


def _complete(request: Request, memory: Memory) -> Request:
    """Fill in what a follow-up leaves unsaid from the request before it."""
    before, question = memory.request, memory.question
    if question is not None and question.asks and request.wish in (Wish.FRAGMENT, Wish.ACCOUNT, Wish.ITEM):
        answered = _answer_to(question, request)
        if answered is not None and before is not None:
            return _merge(before, answered)
    if before is None:
        return request
    if request.wish is Wish.ACCOUNT and request.account is None:
        # "who is the contact?"
        return replace(request, account=before.account)
    if request.wish is Wish.RETRY:
        drafted = memory.quote if before.wish is Wish.QUOTE and before.send else None
        if drafted is not None and drafted["status"] == "draft":
            return Request(Wish.SEND, text=request.text, quote=drafted["number"], send=True)
        return before
    if request.wish is Wish.SEND and request.again and request.quote is None and memory.quote is None:
        # "send it" while the quote it means is still being put together.
        return _merge(before, request) if before.wish is Wish.QUOTE else request
    if request.wish is Wish.SEND and request.quantity is not None and request.again and request.quote is None:
        # "make it 30 and send it"
        return _merge(before, request) if before.lines else request
    says_something = request.lines or request.account or request.quantity is not None
    if request.wish is Wish.FRAGMENT and says_something and before.wish in (Wish.QUOTE, Wish.PRICE, Wish.SEND):
        return _merge(before, request)
    if request.wish in (Wish.QUOTE, Wish.PRICE) and before.lines:
        # "send a quote for 300 of them", "and the price for Castillo?"
        carried = request
        follows = request.again or request.quantity is not None or request.account is None or request.wish is Wish.PRICE
        if not request.lines and follows:
            carried = replace(carried, lines=_requantified(before.lines, request.quantity))
        if request.account is None and (request.again or not request.lines):
            carried = replace(carried, account=before.account)
        return carried
    return request


def _answer_to(question: Say, request: Request) -> Request | None:
    """Return the request as an answer to what the desk asked, or None when it is none."""
    match question.asks:
        case "account" | "customer":
            chosen = _chosen(question, request)
            if chosen is not None:
                return replace(request, account=chosen["id"], quantity=None)
            named = _named_first(question, request)
            if named is not None:
                return replace(request, account=named["id"])
            if request.account is None and not request.lines and not request.again:
                return replace(request, account=request.text.strip(" .!?#"), quantity=None)
        case "lines":
            says_nothing_else = not request.lines and request.quantity is None and request.account is None
            if says_nothing_else and request.wish is Wish.FRAGMENT and len(request.text.split()) <= 5:
                return replace(request, account=request.text.strip(" .!?"))
        case "item":
            chosen = _chosen(question, request)
            sku = chosen["sku"] if chosen is not None else request.item
            if sku is not None:
                return replace(request, item=sku, lines=(), quantity=None)
        case "quote":
            chosen = _chosen(question, request)
            if chosen is not None:
                return replace(request, quote=chosen["number"], quantity=None)
    return request if request.lines or request.account or request.quantity is not None else None


def _chosen(question: Say, request: Request) -> Json | None:
    if request.choice is None or not question.choices:
        return None
    place = request.choice - 1 if request.choice > 0 else request.choice
    return question.choices[place] if -len(question.choices) <= place < len(question.choices) else None


def _named_first(question: Say, request: Request) -> Json | None:
    """Return the offered account in "Castillo: 50 of SKU-4440"."""
    before = re.match(r"(?:for\s+)?([^\d,;:]+?)(?:\s+first)?[\s,;:]+\d", request.text, re.IGNORECASE)
    if request.account is not None or not request.lines or before is None:
        return None
    said = before[1].casefold()
    meant = [choice for choice in question.choices if said in str(choice.get("name", "")).casefold()]
    return meant[0] if len(meant) == 1 else None


def _merge(before: Request, now: Request) -> Request:
    """Return the earlier request with what is said now in its place."""
    lines = before.lines
    if now.lines:
        lines = (*before.lines, *now.lines) if now.adds else now.lines
    elif now.item is not None and before.lines:
        # An answer to "which item": it replaces the first one that was only described.
        index = next((i for i, line in enumerate(lines) if not line.known), None)
        if index is not None:
            lines = (*lines[:index], Wanted(now.item, lines[index].quantity), *lines[index + 1 :])
    elif now.quantity is not None:
        lines = _requantified(before.lines, now.quantity)
    changed = replace(
        before,
        text=now.text,
        account=now.account or before.account,
        lines=lines,
        quote=now.quote or before.quote,
        email=now.email or before.email,
        others=now.others,
    )
    if before.wish is Wish.SEND and (now.lines or now.quantity is not None) and lines:
        changed = replace(changed, wish=Wish.QUOTE, send=True, quote=None)
    if now.only_draft:
        return replace(changed, send=False, only_draft=True)
    return replace(changed, send=True) if now.send else changed


def _requantified(lines: tuple[Wanted, ...], quantity: int | None) -> tuple[Wanted, ...]:
    if quantity is None or len(lines) != 1:
        return lines
    return (replace(lines[0], quantity=quantity),)


def _act(request: Request, turn: Turn, memory: Memory) -> Plan:
    match request.wish:
        case Wish.QUOTE:
            return _quote(request, turn, memory)
        case Wish.SEND:
            return _send(request, turn, memory)
        case Wish.PRICE:
            return _price(request, turn)
        case Wish.ACCOUNT:
            return _tell_account(request, turn)
        case Wish.ITEM:
            return _tell_item(request, turn)
        case Wish.QUOTES:
            return _tell_quotes(request, turn, memory)
        case Wish.CANNOT:
            return Say(phrases.CANNOT)
        case Wish.CANCEL:
            return Say(_left_open(memory))
        case Wish.THANKS:
            return Say("You're welcome.")
        case Wish.HELP:
            return Say(phrases.HELP)
        case Wish.RETRY | Wish.FRAGMENT:
            return Say(phrases.UNCLEAR)


def _quote(request: Request, turn: Turn, memory: Memory) -> Plan:
    ordered = _ordered(request, turn, "quote")
    if not isinstance(ordered, dict):
        return ordered
    earlier = _same(memory.unknown, "draft_quote", ordered)
    if earlier is not None:
        return _look_before_repeating(earlier, turn)
    drafted = _result(turn, "draft_quote", ordered)
    if not isinstance(drafted, dict):
        return drafted
    if not request.send:
        return Say(phrases.drafted_told(drafted))
    before = f"Quote {drafted['number']} is drafted."
    return _out(turn, {"quote_id": drafted["number"], "account_id": drafted["account_id"]}, before)


def _look_before_repeating(earlier: Tried, turn: Turn) -> Plan:
    """Tell what is not known about an earlier draft, with the account's quotes as they are now."""
    found = _result(turn, "find_quote", {"account_id": earlier.arguments["account_id"]})
    if not isinstance(found, dict):
        return found
    told = "\n".join(f"• {phrases.quote_told(quote)}" for quote in found["quotes"]) or "• none"
    return Say(f"{phrases.did_not_work(earlier)} The account's quotes in the CRM are now:\n{told}")


def _send(request: Request, turn: Turn, memory: Memory) -> Plan:
    number = request.quote
    if number is None and request.account is None and memory.quote is not None:
        number = memory.quote["number"]
    if number is None and request.account is None:
        unsure = next((t for t in reversed(memory.unknown)), None)
        if unsure is not None:
            return Say(phrases.did_not_work(unsure))
        return Say("Which quote should I send? Tell me its number, such as Q-1042. Nothing was sent.", asks="quote")
    if number is None:
        account = _account(request, turn)
        if isinstance(account, Call | Say):
            return account
        quote = _only_draft_of(account.value, turn)
    else:
        quote = _one_quote(number, turn)
    if not isinstance(quote, dict):
        return quote
    elsewhere = _goes_elsewhere(request, quote.get("contact"))
    if elsewhere is not None:
        return elsewhere
    unsure = _same(memory.unknown, "send_quote", {"quote_id": quote["number"], "account_id": quote["account_id"]})
    if unsure is not None:
        now = f"The CRM now shows {phrases.quote_told(quote)}"
        return Say(f"{phrases.did_not_work(unsure)} {now}")
    return _out(turn, {"quote_id": quote["number"], "account_id": quote["account_id"]}, "")


def _out(turn: Turn, arguments: Json, before: str) -> Plan:
    sent = _result(turn, "send_quote", arguments, before)
    return Say(phrases.sent_told(sent)) if isinstance(sent, dict) else sent


def _one_quote(number: str, turn: Turn) -> Json | Plan:
    found = _result(turn, "find_quote", {"quote_id": number})
    if not isinstance(found, dict):
        return found
    if not found["quotes"]:
        return Say(f"There is no quote {number} in the CRM, so nothing was sent.")
    quote: Json = found["quotes"][0]
    return quote


def _only_draft_of(account: Json, turn: Turn) -> Json | Plan:
    found = _result(turn, "find_quote", {"account_id": account["id"]})
    if not isinstance(found, dict):
        return found
    drafts = [quote for quote in found["quotes"] if quote["status"] == "draft"]
    if len(drafts) == 1:
        draft: Json = drafts[0]
        return draft
    name = phrases.account_name(account)
    if not drafts:
        return Say(
            f"There is no draft for {name}, so nothing was sent. What should the quote contain? For example: "
            f"“draft and send a quote for {account['name']}, 200 of SKU-4411”."
        )
    told = "\n".join(f"• {phrases.quote_told(draft)}" for draft in drafts)
    text = f"There are {len(drafts)} drafts for {name}:\n{told}\nWhich one should I send? Nothing was sent yet."
    return Say(text, asks="quote", choices=tuple(drafts))


def _price(request: Request, turn: Turn) -> Plan:
    ordered = _ordered(request, turn, "price")
    if not isinstance(ordered, dict):
        return ordered
    priced = _result(turn, "price", ordered)
    return Say(phrases.priced_told(priced)) if isinstance(priced, dict) else priced


def _tell_account(request: Request, turn: Turn) -> Plan:
    if request.account is None:
        return Say("Which account do you mean? Tell me its name or number.", asks="account")
    found = _result(turn, "find_account", {"query": request.account})
    if not isinstance(found, dict):
        return found
    accounts = found["accounts"]
    if not accounts:
        return Say(f"There is no account like “{request.account}” in the CRM.")
    if len(accounts) == 1:
        return Say(phrases.account_told(accounts[0]))
    told = "\n".join(f"• {phrases.account_told(account)}" for account in accounts)
    return Say(f"{found['found']} accounts match “{request.account}”:\n{told}")


def _tell_item(request: Request, turn: Turn) -> Plan:
    if request.item is None:
        return Say("Which item do you mean? Tell me its SKU.", asks="item")
    found = _result(turn, "find_item", {"query": request.item})
    if not isinstance(found, dict):
        return found
    if not found["items"]:
        return Say(f"There is no item like “{request.item}” in the CRM.")
    return Say("\n".join(phrases.item_told(item) for item in found["items"]))


def _tell_quotes(request: Request, turn: Turn, memory: Memory) -> Plan:
    number = request.quote
    if number is None and request.account is None and memory.quote is not None:
        number = memory.quote["number"]
    if number is not None:
        found = _result(turn, "find_quote", {"quote_id": number})
        if not isinstance(found, dict):
            return found
        if not found["quotes"]:
            return Say(f"There is no quote {number} in the CRM.")
        quote = found["quotes"][0]
        return Say(f"{phrases.quote_told(quote)}\n{phrases.lines_told(quote)}")
    if request.account is None:
        return Say("Whose quotes do you mean? Tell me an account, or a quote's number.", asks="account")
    account = _account(request, turn)
    if isinstance(account, Call | Say):
        return account
    found = _result(turn, "find_quote", {"account_id": account.value["id"]})
    if not isinstance(found, dict):
        return found
    if not found["quotes"]:
        return Say(f"{phrases.account_name(account.value)} has no quotes.")
    return Say("\n".join(f"• {phrases.quote_told(quote)}" for quote in found["quotes"]))


@dataclass(frozen=True)
class _Account:
    value: Json


def _account(request: Request, turn: Turn) -> _Account | Plan:
    """Look the account up; ask when it is missing, unknown or ambiguous."""
    if request.account is None:
        return Say("Which account is it for? Tell me its name or number. Nothing was done yet.", asks="account")
    found = _result(turn, "find_account", {"query": request.account})
    if not isinstance(found, dict):
        return found
    accounts = found["accounts"]
    if not accounts:
        several = _several(apart(request.account), turn) if len(apart(request.account)) > 1 else None
        if several is not None:
            return several
        text = f"There is no account like “{request.account}” in the CRM, so nothing was done. Which one do you mean?"
        return Say(text, asks="account")
    exact = [a for a in accounts if request.account.casefold() in (a["name"].casefold(), a["id"])]
    if len(exact) == 1:
        return _Account(exact[0])
    if len(accounts) > 1:
        text = phrases.which_account(request.account, accounts, found["found"])
        return Say(text, asks="account", choices=tuple(accounts))
    return _Account(accounts[0])


def _several(names: list[str], turn: Turn, first: Json | None = None) -> Plan | None:
    """Ask which customer comes first when the CRM knows several of *names*; None: it is one customer after all."""
    known = [] if first is None else [first]
    for name in names:
        found = _result(turn, "find_account", {"query": name})
        if not isinstance(found, dict):
            return found
        # One of several accounts of that name would be another question; this one asks which customer.
        known += [account for account in found["accounts"][:1] if account["id"] not in [a["id"] for a in known]]
    if len(known) < 2:
        return None
    return Say(phrases.which_customer(known), asks="customer", choices=tuple(known))


def _goes_elsewhere(request: Request, contact: Json | None) -> Say | None:
    """Say that a quote can't go to another address than the contact's."""
    if request.email is None or (contact is not None and request.email.casefold() == contact["email"].casefold()):
        return None
    return Say(phrases.goes_to_the_contact(request.email, contact))


def _ordered(request: Request, turn: Turn, what: str) -> Json | Plan:
    """Return {account_id, lines} once account and items are known for sure."""
    if request.discount is not None:
        return Say(
            f"I can't give a discount of {request.discount} %: the account's tier in the CRM decides it. Nothing was "
            "done. Ask me without a discount and I will use the account's own."
        )
    if not request.lines:
        for_whom = f" for {request.account}" if request.account else ""
        text = f"What should I {what}{for_whom}? Tell me quantities and items, such as “200 of SKU-4411”."
        return Say(f"{text} Nothing was done yet.", asks="lines")
    if request.quantity is not None and len(request.lines) > 1 and request.again:
        return Say(
            f"Which of the {len(request.lines)} lines should be {request.quantity}? Nothing was done yet.", "lines"
        )
    for wanted in request.lines:
        if not 1 <= wanted.quantity <= MOST_PIECES:
            text = f"I can quote 1 to {MOST_PIECES:,} pieces of an item, not {wanted.quantity:,}. Nothing was done."
            return Say(text, asks="lines")
    account = _account(request, turn)
    if isinstance(account, Call | Say):
        return account
    several = _several(list(request.others), turn, account.value)
    if several is not None:
        return several
    elsewhere = _goes_elsewhere(request, account.value["contact"]) if what == "quote" else None
    if elsewhere is not None:
        return elsewhere
    lines: list[Json] = []
    for wanted in request.lines:
        sku = wanted.item
        if not wanted.known:
            item = _item(wanted.item, turn)
            if not isinstance(item, dict):
                return item
            sku = item["sku"]
        lines.append({"sku": sku, "quantity": wanted.quantity})
    return {"account_id": account.value["id"], "lines": lines}


def _item(words: str, turn: Turn) -> Json | Plan:
    query = " ".join(_singular(word) for word in words.split())
    found = _result(turn, "find_item", {"query": query})
    if not isinstance(found, dict):
        return found
    items = found["items"]
    if not items:
        return Say(
            f"There is no item like “{words}” in the CRM, so nothing was done. Which SKU do you mean?", asks="item"
        )
    if len(items) > 1:
        return Say(phrases.which_item(words, items, found["found"]), asks="item", choices=tuple(items))
    item: Json = items[0]
    return item


def _singular(word: str) -> str:
    return word[:-1] if len(word) > 3 and word.endswith("s") and not word.endswith("ss") else word


def _result(turn: Turn, tool: str, arguments: Json, before: str = "") -> Json | Plan:
    """Return the call's result of this turn; else the call to make, or the words for why there is no result."""
    tried = turn.latest(tool, arguments)
    if tried is None:
        return Call(tool, arguments)
    if tried.outcome is Outcome.DONE:
        return tried.value
    if tried.outcome in _TRY_AGAIN and turn.count(tool, arguments) < _MOST_TRIES:
        return Call(tool, arguments)
    return Say(phrases.did_not_work(tried, before))


def _same(tries: list[Tried], tool: str, arguments: Json) -> Tried | None:
    return next((t for t in tries if (t.tool, t.arguments) == (tool, arguments)), None)


def _left_open(memory: Memory) -> str:
    if memory.quote is not None:
        return f"All right, I do nothing more. For the record: {phrases.quote_told(memory.quote)}"
    return "All right, I do nothing."
