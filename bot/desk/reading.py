"""Understanding what somebody wrote: verbs, an account, lines, a quote number. Pure text, no CRM, no conversation.

Decides what is asked for and leaves open what was not said. The failure it can cause: reading "don't send" as "send"
would ask a person to approve what nobody wanted, so a negation always wins.
"""

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Wish(StrEnum):
    """What somebody wants."""

    QUOTE = "quote"
    SEND = "send"
    PRICE = "price"
    ACCOUNT = "account"
    ITEM = "item"
    QUOTES = "quotes"
    HELP = "help"
    THANKS = "thanks"
    CANCEL = "cancel"
    RETRY = "retry"
    CANNOT = "cannot"
    FRAGMENT = "fragment"


@dataclass(frozen=True)
class Wanted:
    """A line as written: *item* is an SKU in capitals, or words that have to be looked up."""

    item: str
    quantity: int

    @property
    def known(self) -> bool:
        """Whether the item is an SKU already."""
        return self.item.startswith("SKU-")


@dataclass(frozen=True)
class Request:
    """One message, understood. None and () mean "not said".

    *send*: a drafted quote shall also go out. *quantity*: a bare number ("now 300 of them"). *adds*: the lines come on
    top of earlier ones. *again*: refers to what was there before ("it", "again", "same"). *discount*: a discount that
    was asked for, in percent as written. *only_draft*: it was said that nothing shall be sent. *email*: an address in
    the text. *others*: what may be further customers beside *account*; only the CRM knows whether they are.
    """

    wish: Wish
    text: str = ""
    account: str | None = None
    lines: tuple[Wanted, ...] = ()
    quote: str | None = None
    item: str | None = None
    send: bool = False
    only_draft: bool = False
    quantity: int | None = None
    adds: bool = False
    again: bool = False
    discount: str | None = None
    choice: int | None = None
    email: str | None = None
    others: tuple[str, ...] = ()


MOST_READ: Final = 2000
"""Characters of a message that are read; no request of a person is longer, and patterns take time on long texts."""

_MENTION = re.compile(r"<[@!][^>]*>")
_LINK = re.compile(r"<(?:https?:|mailto:|tel:)[^|>]*\|?([^>]*)>")
_SKU = r"\bSKU[-\s]?(\d{1,12})\b"
_NUMBER = r"\d{1,3}(?:[,.]\d{3})+|\d{1,9}"
_NO_FRACTION = r"(?<!\d\.)(?<!\s\d,)(?<!\s\d\d,)(?<!\s\d\d\d,)"
"""Keeps "2.5 of" from being read as 5 of it: who asks for parts of a piece is asked what is meant."""
_SKU_WORD = re.compile(_SKU, re.IGNORECASE)
_BEFORE = re.compile(
    rf"(?<![\w-]){_NO_FRACTION}({_NUMBER})\s*(?:x|×|\*|pcs\.?|pieces?|units?|times)?\s*(?:of)?\s*(?:the\s+|item\s+)?{_SKU}",
    re.IGNORECASE,
)
_AFTER = re.compile(
    rf"{_SKU}\s*(?:\(|:|x|×|\*|-|,?\s*(?:qty|quantity)\.?:?)?\s*({_NUMBER})\b(?![.,]\d)\s*(?:x|pcs\.?|pieces?|units?)?\)?",
    re.IGNORECASE,
)
_QUOTE_NUMBER = re.compile(r"\bQ[-\s]?(\d{3,12})\b", re.IGNORECASE)
_ACCOUNT_NUMBER = re.compile(
    r"\b(?:account|customer|acct\.?)\s*(?:no\.?|number|id|#)?\s*:?\s*#?(\d{3,9})\b", re.IGNORECASE
)
_DISCOUNT = re.compile(r"(\d{1,3}(?:\.\d+)?)\s*(?:%|percent)", re.IGNORECASE)
_EMAIL = re.compile(r"[^\s<>,;:()\"'@]+@[^\s<>,;:()\"'@]+\.[a-z]{2,}", re.IGNORECASE)
_TO_EMAIL = re.compile(rf"(?:\b(?:to|cc|bcc|at|via|copy|copying)\b:?\s*)?{_EMAIL.pattern}", re.IGNORECASE)
_NO_SEND = re.compile(
    r"\b(?:do\s*n[o']?t|don’t|not|without|never|no need to|before)\s+(?:yet\s+)?(?:send|sending|mail|email)"
    r"|\bdraft only\b|\b(?:only|just) (?:a )?draft\b|\bonly a draft\b",
    re.IGNORECASE,
)
_SEND = re.compile(r"\b(?:re-?)?(?:send|e-?mail|mail|submit)\b(?!\s*address)", re.IGNORECASE)
_QUOTE = re.compile(r"\b(?:quote|quotation|draft|offer|proposal)\b", re.IGNORECASE)
_QUOTES = re.compile(
    r"\bquotes\b|\bstatus of\b|\b(?:show|list|find|open|see|which|what|did)\b.*\bquote\b", re.IGNORECASE
)
_PRICE = re.compile(r"\bpric(?:e|es|ing)\b|\bhow much\b|\bcosts?\b|\bcheck the price\b", re.IGNORECASE)
_ACCOUNT = re.compile(
    r"\bwho(?:'s|’s| is| are)\b|\bfind\b|\blook(?:ing)? up\b|\baccount\b|\bcustomer\b|\bcontact\b|\btell me about\b"
    r"|\bcredit hold\b|\bon hold\b|\bwhich tier\b|\bwhat tier\b|\bdiscount\b|\bshow me\b",
    re.IGNORECASE,
)
_CANCEL = re.compile(
    r"^(?:please\s+)?(?:stop|cancel|never\s?mind|forget it|leave it|drop it|abort)\b(?!.*\bQ[-\s]?\d)", re.IGNORECASE
)
_CANNOT = re.compile(
    r"\b(?:delete|remove|refund|withdraw|recall)\b|\bcancel\b|\b(?:lift|release|raise)\b.*\bhold\b"
    r"|\b(?:change|set|raise|lower|update)\b.*\b(?:tier|discount|price|permission|limit)\b|\bplace an order\b"
    r"|\bapprove\b",
    re.IGNORECASE,
)
_RETRY = re.compile(
    r"^(?:please\s+|now\s+|ok,?\s+)*(?:(?:(?:try|do)\s+(?:(?:it|that|this)\s+)?)?(?:again|once more)|retry)"
    r"(?:\s+please)?[.!?]*$",
    re.IGNORECASE,
)
_THANKS = re.compile(
    r"^(?:many\s+)?(?:thanks|thank you|thx|cheers|great|perfect|ok|okay|good|nice)\b[\s\w]{0,20}[.!]*$", re.IGNORECASE
)
_HELP = re.compile(
    r"^(?:help|hi|hello|hey|good (?:morning|afternoon|evening)|what can you do|who are you|how does this work)\b",
    re.IGNORECASE,
)
_ADDS = re.compile(r"\b(?:add|also|plus|as well|on top|in addition)\b", re.IGNORECASE)
_AGAIN = re.compile(r"\b(?:it|them|that|again|same|those|this|resend|re-send|instead|make)\b", re.IGNORECASE)
_ORDINALS = {"first": 1, "1st": 1, "second": 2, "2nd": 2, "third": 3, "3rd": 3, "fourth": 4, "last": -1}

_CUT = "\N{BLACK SQUARE}"
_STOP = (
    rf"(?:[,;:!?{_CUT}]|\.(?:\s|$)"
    r"|\s+(?:please|with|today|now|asap|again|instead|too|as well|of|by|for|to|quote|but|then|is|are"
    r"|on|at|have|has|would|cost)\b"
    rf"|\s+(?:and|&)\s+(?:then\s+)?(?:send|draft|e-?mail|mail|submit|{_CUT}|\d)|\s+\d|$)"
)
_PHRASE = rf"(?:the\s+|account\s+|customer\s+|our\s+|my\s+)*([^\s,;:!?{_CUT}][^,;:!?{_CUT}]*?)"
_FOR = re.compile(rf"\b(?:for|to)\s+{_PHRASE}(?={_STOP})", re.IGNORECASE)
_VERB_OBJECT = re.compile(
    rf"\b(?:send|draft|quote|price|offer|mail|email)\s+(?!and\b|then\b){_PHRASE}"
    r"\s+(?:a|an|the|another|our)\s+(?:new\s+)?(?:quote|quotation|offer|proposal|price)\b",
    re.IGNORECASE,
)
_QUOTE_OBJECT = re.compile(rf"\b(?:quote|price)\s+{_PHRASE}(?=\s*[,:]?\s*{_CUT})", re.IGNORECASE)
_FIND_OBJECT = re.compile(
    rf"\b(?:who(?:'s|’s| is)|find|look up|about|show me|is|does|contact (?:of|at)|tier (?:of|is))\s+"
    rf"{_PHRASE}(?={_STOP})",
    re.IGNORECASE,
)
_FACT = (
    r"(?:contact(?:\s+(?:person|details|name|e-?mail))?|e-?mail(?:\s+address)?|address|owner|tier|discount|credit hold"
    r"|city|buyer)"
)
_ASKS = re.compile(
    r"^(?:(?:please|hi|hey|hello|and|ok|so|can you|could you|do you know)[,!]?\s+)*"
    rf"(?:the\s+)?(?:who|what|which|where|how much|tell me|show me|give me|find|is|does|has|{_FACT})",
    re.IGNORECASE,
)
_BARE_FACT = re.compile(rf"^((?:\S+\s+){{0,3}}[^\s'’]+)(?:'s|’s|s'|s’)\s+{_FACT}\s*[?.!]*$", re.IGNORECASE)
_FACTS_OF = (
    re.compile(rf"\b{_FACT}\s+(?:of|at|for|from)\s+{_PHRASE}(?={_STOP})", re.IGNORECASE),
    re.compile(
        rf"(?:\bwho(?:'s|’s|s| is)|\bwhat(?:'s|’s|s| is)|\b(?:tell|show|give) me|\bfind|\bknow)\s+{_PHRASE}"
        rf"(?:'s|’s|s'|s’)\s+{_FACT}\b",
        re.IGNORECASE,
    ),
    re.compile(
        rf"\b(?:what|which|how much)\s+{_FACT}\s+(?:does|is|has|do)\s+{_PHRASE}(?:\s+(?:in|get|gets|got))?(?={_STOP})",
        re.IGNORECASE,
    ),
    re.compile(
        rf"\b(?:where(?:'s|’s|s| is)|who owns|(?:write|talk|speak) to at|(?:person|anyone|somebody|contact) at)\s+"
        rf"{_PHRASE}(?={_STOP})",
        re.IGNORECASE,
    ),
)
_ALSO = re.compile(
    rf"\b(?:and|,)\s*{_PHRASE}\s+(?:a|an|another)\s+(?:new\s+)?(?:quote|quotation|offer|proposal)\b", re.IGNORECASE
)
_BETWEEN_NAMES = re.compile(r"\s*(?:,|;|&|\band\b|\bplus\b|\bas well as\b)\s*", re.IGNORECASE)
_NO_NAME = re.compile(
    r"(?:one|each|both|all|please|thanks|thank|today|now|asap|then|also|too|with|at|by|on|in|of|for|to|from|as|not|no|do"
    r"|don.?t|it|them|valid|send|draft|quote|price|email|mail|make|add|cc|copy|let|i|we|you|if|when|so|but|or)\b",
    re.IGNORECASE,
)
MOST_OTHERS: Final = 4
"""Names beside the first that are looked up; each costs a question to the CRM."""
_NAMED_LINE = re.compile(
    rf"(?<![\w/.-])({_NUMBER})\s*(?:x|×|pcs\.?|pieces?|units?|metres?|meters?|m)?\s+(?:of\s+)?(?:the\s+|our\s+)?"
    rf"([a-z](?:[^,;:!?{_CUT}]*?))"
    rf"(?=\s+(?:for|to|and\s+\d|and\s+send|and\s+draft|and\s+then|please|instead|today|plus|cost|{_CUT})\b|[,;:!?]|\.(?:\s|$)|{_CUT}|$)",
    re.IGNORECASE,
)
_BARE = re.compile(rf"(?<![\w.-])({_NUMBER})(?![\w%])")
_NO_ITEM = re.compile(
    r"an?|it|them|that|those|these|this|pieces?|units?|pcs|instead|please|each|of|more|x|same|ones?", re.IGNORECASE
)
_NO_ACCOUNT = re.compile(
    rf"{_FACT}|an?|it|them|that|those|these|this|me|us|you|him|her|the|same|and|quotes?|customer|account|items?",
    re.IGNORECASE,
)


def clean(text: str) -> str:
    """Return what was written without mentions, link markup and Slack's escapes, on one line."""
    text = _LINK.sub(lambda found: found[1], _MENTION.sub(" ", text))
    for escape, sign in (("&lt;", "<"), ("&gt;", ">"), ("&amp;", "&")):
        text = text.replace(escape, sign)
    return " ".join(text.replace("*", " ").replace("`", " ").split()).strip(" ,")


def read(written: str) -> Request:
    """Return what the text asks for, without knowing what was said before."""
    text = clean(written)[:MOST_READ]
    lines, rest = _lines(text)
    number = _QUOTE_NUMBER.search(rest)
    quote = f"Q-{number[1]}" if number else None
    rest = _QUOTE_NUMBER.sub(_CUT, rest)
    item = re.search(_SKU, text, re.IGNORECASE) if not lines else None
    discount = _DISCOUNT.search(rest) if re.search(r"\bdiscount\b|\boff\b", rest, re.IGNORECASE) else None
    email = _EMAIL.search(text)
    rest_without_percent = _TO_EMAIL.sub(_CUT, _DISCOUNT.sub(_CUT, rest))
    asked_about = _asked_about(rest_without_percent) if not lines and quote is None else None
    account = asked_about or _account(rest_without_percent)
    wish = _wish(
        _EMAIL.sub(_CUT, text),
        has_lines=bool(lines),
        account=account,
        quote=quote,
        item=item is not None,
        asked_about=asked_about is not None,
    )
    if account is None and email and wish in (Wish.ACCOUNT, Wish.FRAGMENT) and _ACCOUNT.search(text):
        wish, account = Wish.ACCOUNT, email[0]
    bare = None if account and account.isdigit() else _BARE.search(rest_without_percent.replace(_CUT, " "))
    only_draft = _NO_SEND.search(text) is not None
    ordinal = re.match(r"^(?:the\s+)?(\w+)(?:\s+one)?[.!]?$", text, re.IGNORECASE)
    return Request(
        wish=wish,
        text=text,
        account=account,
        lines=lines,
        quote=quote,
        item=f"SKU-{item[1]}" if item else None,
        send=_SEND.search(text) is not None and not only_draft,
        only_draft=only_draft,
        quantity=_whole(bare[1]) if bare and not lines else None,
        adds=_ADDS.search(text) is not None,
        again=_AGAIN.search(text) is not None,
        discount=discount[1] if discount else None,
        choice=_ORDINALS.get(ordinal[1].casefold()) if ordinal else None,
        email=email[0].rstrip(".") if email else None,
        others=_others(rest_without_percent, account),
    )


def _wish(text: str, *, has_lines: bool, account: str | None, quote: str | None, item: bool, asked_about: bool) -> Wish:
    if not text or _HELP.match(text):
        return Wish.QUOTE if has_lines and _QUOTE.search(text) else Wish.HELP
    if _THANKS.match(text):
        return Wish.THANKS
    if _CANCEL.match(text):
        return Wish.CANCEL
    if _RETRY.match(text):
        return Wish.RETRY
    forbids = _NO_SEND.search(text) is not None
    sends = _SEND.search(text) is not None and not forbids
    if _CANNOT.search(text) and not has_lines and not sends:
        return Wish.CANNOT
    if asked_about:
        return Wish.ACCOUNT
    if quote is not None:
        return Wish.SEND if sends else Wish.QUOTES
    if _PRICE.search(text) and not sends and not re.search(r"\bdraft\b|\bquote\b", text, re.IGNORECASE):
        return Wish.ITEM if item and account is None else Wish.PRICE
    if has_lines and (sends or _QUOTE.search(text)):
        return Wish.QUOTE
    if not has_lines and not sends and _QUOTES.search(text):
        return Wish.QUOTES
    if sends:
        wants_new = re.search(r"\b(?:draft|a|an|another|new)\b", text, re.IGNORECASE) and _QUOTE.search(text)
        return Wish.QUOTE if wants_new else Wish.SEND
    if _QUOTE.search(text) and not (forbids and not has_lines and account is None):
        return Wish.QUOTE
    if item and not has_lines:
        return Wish.ITEM
    if forbids and not has_lines and account is None:
        return Wish.CANCEL
    if not has_lines and _ACCOUNT.search(text):
        return Wish.ACCOUNT
    return Wish.FRAGMENT


def _lines(text: str) -> tuple[tuple[Wanted, ...], str]:
    """Return the lines and the text with each of them replaced by a mark, so that it can't be read as a name."""
    found: list[tuple[int, Wanted]] = []
    rest = text
    for pattern, sku, quantity in ((_BEFORE, 2, 1), (_AFTER, 1, 2)):
        for match in pattern.finditer(rest):
            line = Wanted(f"SKU-{match[sku]}", _whole(match[quantity]))
            found.append((match.start(), line))
        rest = pattern.sub(lambda match: _CUT + " " * (len(match[0]) - 1), rest)
    # An account number, a quote number or a percentage is no quantity.
    hidden = rest
    for other in (_ACCOUNT_NUMBER, _QUOTE_NUMBER, _DISCOUNT):
        hidden = other.sub(lambda match: _CUT * len(match[0]), hidden)
    for match in _NAMED_LINE.finditer(hidden):
        words = [word for word in match[2].split() if not _NO_ITEM.fullmatch(word)]
        starts_name = not re.match(r"(?:and|or|for|to|then)\b", match[2], re.IGNORECASE)
        if words and starts_name and not _SKU_WORD.search(match[2]):
            found.append((match.start(), Wanted(" ".join(words), _whole(match[1]))))
            rest = rest[: match.start()] + _CUT * len(match[0]) + rest[match.end() :]
    found.sort(key=lambda entry: entry[0])
    return tuple(line for _, line in found), re.sub(rf"{_CUT}[{_CUT} ]*", f"{_CUT} ", rest)


def _account(rest: str) -> str | None:
    numbered = _ACCOUNT_NUMBER.search(rest)
    if numbered:
        return numbered[1]
    patterns = [_VERB_OBJECT, _FOR, _QUOTE_OBJECT]
    if _ACCOUNT.search(rest) or _QUOTES.search(rest):
        patterns.append(_FIND_OBJECT)
    for pattern in patterns:
        for match in pattern.finditer(rest):
            name = _named(match[1])
            if name:
                return name
    return None


def _asked_about(rest: str) -> str | None:
    """Return the account whose contact, tier or the like is asked for, in a text that asks and does not order."""
    bare = _BARE_FACT.match(rest)
    if not _ASKS.match(rest):
        return _named(bare[1]) if bare and not _NO_NAME.match(rest) and not _CANNOT.search(rest) else None
    names = (_named(match[1]) for pattern in _FACTS_OF for match in pattern.finditer(rest))
    return next(filter(None, names), None)


def apart(name: str) -> list[str]:
    """Return the names in "Henderson and Castillo"; one for most, though a company may have an "and" of its own."""
    return [part for part in _BETWEEN_NAMES.split(name) if part]


def _others(rest: str, account: str | None) -> tuple[str, ...]:
    """Return what stands where a further customer would: after the first one's name, or with a "for" of its own."""
    if account is None:
        return ()
    found: list[str] = []
    at = rest.find(account)
    if at >= 0:
        listed = re.split(rf"[{_CUT}.!?\d]", rest[at + len(account) :], maxsplit=1)[0]
        if re.match(r"\s*(?:,|;|&|and\b|plus\b|as well as\b)", listed, re.IGNORECASE):
            found += _BETWEEN_NAMES.split(listed)
    found += [match[1] for pattern in (_FOR, _VERB_OBJECT, _ALSO) for match in pattern.finditer(rest)]
    names: list[str] = []
    for phrase in found:
        name = _named(phrase)
        told = [account, *names]
        if (
            name
            and not _NO_NAME.match(name)
            and len(name.split()) <= 5
            and name.casefold() not in map(str.casefold, told)
        ):
            names.append(name)
    return tuple(names[:MOST_OTHERS])


def _named(phrase: str) -> str | None:
    name = re.sub(r"(?:'s|’s)(?=\s|$)", "", phrase.strip(" .'\"")).strip()
    name = re.sub(rf"\s+(?:account|customer|{_FACT})$", "", name, flags=re.IGNORECASE)
    words = name.casefold().split()
    if (
        not words
        or _SKU_WORD.search(name)
        or all(_NO_ACCOUNT.fullmatch(word) for word in words)
        or words[0] in ("a", "an", "and", "for", "to", "of", "then", "send", "draft", "price")
    ):
        return None
    return name if len(name) <= 80 else None


def _whole(number: str) -> int:
    return int(re.sub(r"[,.]", "", number))
