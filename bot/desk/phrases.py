"""The desk's answers in plain words, rendered from what the CRM said and from what came of a call.

Decides wording only. The failure it can cause: a sentence that claims more than the result in hand.
"""

import re
from typing import Any

from bot.desk.conversation import Outcome, Tried
from bot.desk.tools import money

EXAMPLES = (
    "Draft and send a quote for Henderson, 200 of SKU-4411",
    "Price 50 of SKU-4440 for Castillo Packaging",
    "Who is Baker Steel Works?",
)

HELP = (
    "I work the sales desk. I can look up accounts and items, price lines at a customer's discount, draft quotes, and "
    "send them. Before a quote goes out I show it to you, and it is sent only when you press Approve. For example:\n"
    + "\n".join(f"• {example}" for example in EXAMPLES)
)

CANNOT = (
    "I can't do that. I can look up accounts, items and quotes, price lines, draft quotes and send them; credit holds, "
    "tiers, prices, permissions and existing quotes are changed in the CRM by the people responsible. Nothing was done."
)

UNCLEAR = "I did not understand what you want me to do, so I did nothing. " + HELP

Json = dict[str, Any]


def listed(names: list[str], last: str = "or") -> str:
    """Return "a, b or c"."""
    if len(names) < 2:
        return "".join(names)
    return f"{', '.join(names[:-1])} {last} {names[-1]}"


def account_name(account: Json) -> str:
    """Return an account as people tell it apart: name and number."""
    return f"{account['name']} ({account['id']})"


def account_told(account: Json) -> str:
    """Return what the desk knows of an account."""
    contact = account["contact"]
    hold = account["credit_hold"]
    standing = f"On credit hold since {hold['since']}: {hold['reason']}." if hold else "No credit hold."
    return (
        f"{account_name(account)}, {account['city']}. Tier {account['tier']}, {account['discount_percent']} % discount."
        f" Contact: {contact['name']}, {contact['email']}. Owner: {account['owner']}. {standing}"
    )


def item_told(item: Json) -> str:
    """Return what the desk knows of an item."""
    return (
        f"{item['sku']} {item['name']}: {money(item['unit_price'], item['currency'])} list price, "
        f"from {item['minimum_quantity']} pieces, {item['stock']:,} in stock."
    )


def lines_told(priced: Json) -> str:
    """Return priced lines, one a line, with discount and total."""
    currency = priced["currency"]
    rows = [
        f"• {line['quantity']:,} × {line['sku']} {line['name']} at {money(line['unit_price'], currency)}: "
        f"{money(line['amount'], currency)}"
        for line in priced["lines"]
    ]
    if priced["discount"] != "0.00":
        rows.append(f"• Discount {priced['discount_percent']} %: -{money(priced['discount'], currency)}")
    return "\n".join([*rows, f"Total: {money(priced['total'], currency)}"])


def priced_told(priced: Json) -> str:
    """Return a price as an answer."""
    return f"For {priced['account_name']} ({priced['account_id']}) today:\n{lines_told(priced)}"


def drafted_told(quote: Json) -> str:
    """Return the answer after a draft that nobody wanted sent yet."""
    return (
        f"Quote {quote['number']} for {quote['account_name']} ({quote['account_id']}) is drafted and not sent:\n"
        f"{lines_told(quote)}\nSay “send {quote['number']}” when it should go out."
    )


def sent_told(quote: Json) -> str:
    """Return the answer after a quote went out."""
    return (
        f"Quote {quote['number']} for {quote['account_name']} ({quote['account_id']}) was sent to "
        f"{quote['sent_to']}:\n{lines_told(quote)}"
    )


def quote_told(quote: Json) -> str:
    """Return one quote in one line."""
    state = f"sent to {quote['sent_to']}" if quote["status"] == "sent" else "a draft, not sent"
    return (
        f"{quote['number']} for {quote['account_name']} ({quote['account_id']}), "
        f"{money(quote['total'], quote['currency'])}: {state}."
    )


def which_account(query: str, accounts: list[Json], found: int) -> str:
    """Ask which of several accounts is meant."""
    names = listed([account_name(account) for account in accounts])
    more = f" ({found - len(accounts)} more not shown)" if found > len(accounts) else ""
    return f"There are {found} accounts like “{query}”: {names}{more}. Which one do you mean? Nothing was done yet."


def which_customer(accounts: list[Json]) -> str:
    """Ask which of several customers comes first."""
    names = listed([account_name(account) for account in accounts], "and")
    return (
        f"You named {len(accounts)} customers: {names}. I take one at a time, so that each quote is its own and is "
        "approved on its own. Which one first, and which items for it? For example "
        f"“{accounts[0]['name']}, 200 of SKU-4411”. Nothing was done yet."
    )


def goes_to_the_contact(email: str, contact: Json | None) -> str:
    """Say where a quote goes, when another address was asked for."""
    there = f", {contact['name']}, {contact['email']}" if contact else ""
    return (
        f"I can't send to {email}: a quote goes to the account's contact in the CRM{there}. Nothing was sent. Ask me "
        "without the address and it goes there, or have the contact changed in the CRM."
    )


def which_item(query: str, items: list[Json], found: int) -> str:
    """Ask which of several items is meant."""
    names = listed([f"{item['sku']} {item['name']}" for item in items])
    more = f" ({found - len(items)} more not shown)" if found > len(items) else ""
    return f"There are {found} items like “{query}”: {names}{more}. Which one do you mean? Nothing was done yet."


def did_not_work(tried: Tried, before: str = "") -> str:
    """Return what a call without a result means for the person. *before*: what was done until then, a sentence."""
    what = _attempt(tried)
    undone = _undone(tried)
    reason = tried.reason.strip().rstrip(".")
    match tried.outcome:
        case Outcome.DECLINED:
            told = f"{what} was declined, so {undone}. I will not try again unless you ask me to."
            # The result also tells the model how to behave; only the person's own words are worth repeating.
            theirs = re.search(r'Their reason: "(.*)"$', reason, re.DOTALL)
            if theirs:
                told += f" The reason given: {theirs[1]}"
        case Outcome.EXPIRED:
            told = f"Nobody approved in time, so {undone}. The approval expired; ask again when it should go out."
        case Outcome.REFUSED:
            told = f"{what} is not possible now: {reason}. So {undone}."
        case Outcome.NOT_PERMITTED:
            told = f"{what} is not permitted: what you may do in the CRM does not cover it, so {undone}."
        case Outcome.UNKNOWN:
            told = (
                f"I can't tell whether {_happened(tried)}: {reason}. I will not repeat it, since it may have happened. "
                "Please look in the CRM before anyone tries again."
            )
        case Outcome.BUDGET:
            told = f"{what} was not executed because this run's budget is used up, so {undone}."
        case Outcome.STOPPED:
            told = f"This run ended before that, so {undone}."
        case Outcome.REPLACED:
            told = f"{what} was replaced by a newer instruction, so {undone}."
        case Outcome.NOT_CHECKED:
            checked = reason.removesuffix("nothing was done").rstrip("; ")
            told = f"{what} has to wait: {checked}. So {undone}; please try again in a while."
        case Outcome.CONFIRMED:
            told = f"{reason} confirmed that {_happened(tried)}; the CRM's own answer was lost, so I have no details."
            if tried.tool == "draft_quote":
                told += " Ask me for the account's quotes to find its number; nothing was sent."
        case Outcome.FAILED:
            told = f"{what} did not work: {reason}."
            if tried.tool in ("draft_quote", "send_quote"):
                told += f" So {undone}."
        case _:
            told = f"{what} ended in a way that I can't judge: {reason}. I will not repeat it; please look in the CRM."
    return f"{before} {told}".strip()


def _attempt(tried: Tried) -> str:
    named = {
        "find_account": "Looking up the account",
        "find_item": "Looking up the item",
        "find_quote": "Looking up the quote",
        "price": "Pricing",
        "draft_quote": "Drafting the quote",
        "send_quote": f"Sending quote {tried.arguments.get('quote_id', '')}".strip(),
    }
    return named.get(tried.tool, tried.tool)


def _undone(tried: Tried) -> str:
    if tried.tool == "send_quote":
        return f"quote {tried.arguments.get('quote_id')} was not sent"
    if tried.tool == "draft_quote":
        return "no quote was drafted"
    return "I could not go on"


def _happened(tried: Tried) -> str:
    if tried.tool == "send_quote":
        return f"quote {tried.arguments.get('quote_id')} was sent"
    if tried.tool == "draft_quote":
        return f"the quote for account {tried.arguments.get('account_id')} was drafted"
    return f"{tried.tool} worked"
