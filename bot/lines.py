"""Text that is safe in Slack: escaping, visible control characters, cutting, and lines made of parts.

Decides: how words of ours and text of strangers stand side by side so that the latter can never mention anybody, carry
a forged link or leave its place. Does not: choose words (texts does) or blocks (blocks does). The failure it can
cause: one unescaped path lets a quote's text ping a channel or look like an approval.
"""

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import ROUND_UP, Decimal
from typing import Any

Block = dict[str, Any]

EMPTY = "–"
_ZWJ = "\u200d"
# Format characters that change how neighbours look or are not seen at all, besides what unicodedata calls Cf.
_INVISIBLE = {"\u115f", "\u1160", "\u3164", "\uffa0", "\u2800", "\u034f", "\u17b4", "\u17b5"}
_PERSON = re.compile(r"[UW][A-Z0-9]{2,}")
# What Atlas' own lines begin with, and what looks like it. Only Atlas shows these; strangers' are written out in words.
_SIGNS = frozenset("✅☑✔✓🗸🗹❎❌✖✗✘🗷🚫⛔🛑⏳⌛✋🖐🤚❓❔🔁🔄🔂↩✏⏹⏸⏯▶⏭⏰")
_SELECTORS = "\ufe0e\ufe0f"
# Slack draws ":white_check_mark:" as its emoji in mrkdwn; a colon of another kind is no such code.
_EMOJI_CODE = re.compile(r":(?=[a-z0-9_+'-]*[a-z][a-z0-9_+'-]*:)", re.IGNORECASE)
# How a line of ours begins: a stranger's text that begins so is quoted where it stands alone.
_OURS = re.compile(
    r"[\W_]*(approved|done|executed|not executed|an identical|failed|outcome unknown|declined|expired|replaced by|"
    r"edited by|stopped|it happened|it did not happen|waiting for|decided|atlas)\b",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Who:
    """A person: mentioned when *id* is a Slack user id, else named as it is ("operator:ada")."""

    id: str


@dataclass(frozen=True, slots=True)
class Group:
    """A user group: mentioned when its *id* is known, else "@handle" as plain text."""

    handle: str
    id: str | None = None


@dataclass(frozen=True, slots=True)
class Channel:
    """A channel by its id, as a link to it; a conversation without a name (a direct message) is "this conversation"."""

    id: str

    @property
    def linked(self) -> bool:
        """Say whether Slack shows a name for it."""
        return re.fullmatch(r"[CG][A-Z0-9]{2,}", self.id) is not None


@dataclass(frozen=True, slots=True)
class When:
    """A moment in the reader's local time. *form*: Slack's tokens, such as "{time}"."""

    at: datetime
    form: str = "{time}"

    @property
    def fallback(self) -> str:
        """Return the moment for clients that cannot localise, in UTC."""
        shown = "%H:%M UTC" if self.form == "{time}" else "%Y-%m-%d %H:%M UTC"
        return self.at.strftime(shown)


@dataclass(frozen=True, slots=True)
class Link:
    """A link of ours. *url* is never a stranger's."""

    url: str
    label: str


@dataclass(frozen=True, slots=True)
class Bold:
    """Literal text in bold."""

    text: str


@dataclass(frozen=True, slots=True)
class Code:
    """Literal text as code."""

    text: str


@dataclass(frozen=True, slots=True)
class Struck:
    """Literal text, struck through."""

    text: str


Part = str | Who | Group | Channel | When | Link | Bold | Code | Struck
Line = tuple[Part, ...]


def whole(text: str) -> str:
    """Return *text* without what JSON over the wire cannot carry: lone surrogates become U+FFFD, NUL goes."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace").replace("\0", "")


def visible(text: str, *, lines: bool = False, signs: bool = False) -> str:
    """Return a stranger's *text* with every bidi, zero-width and control character written out as ``⟨U+202E⟩``.

    So is every sign that Atlas' own lines begin with, by its name: no stranger's text looks as if Atlas had decided
    something (*signs*: they stay, in a text of ours whose strangers' parts went through here before). Newlines become
    " ⏎ " unless *lines*. A joiner inside an emoji stays.
    """
    shown: list[str] = []
    text = whole(text).replace("\r\n", "\n")
    for at, character in enumerate(text):
        if character in _SIGNS and not signs:
            shown.append(f"⟨{unicodedata.name(character).lower()}⟩")
        elif character in _SELECTORS and not signs and at and text[at - 1] in _SIGNS:
            continue
        elif character == "\n":
            shown.append("\n" if lines else " ⏎ ")
        elif character == "\t":
            shown.append(" ")
        elif character == _ZWJ and _inside_emoji(text, at):
            shown.append(character)
        elif unicodedata.category(character) in ("Cc", "Cf", "Co", "Cn", "Zl", "Zp") or character in _INVISIBLE:
            shown.append(f"⟨U+{ord(character):04X}⟩")
        else:
            shown.append(character)
    return "".join(shown)


def said(text: str) -> str:
    """Return a stranger's *text* in quotation marks that it cannot close, for a line of ours."""
    return f"“{visible(text.strip()).translate(_NO_QUOTES)}”"


_NO_QUOTES = str.maketrans("“”„‟❝❞", '""""""')


def set_apart(text: str) -> str:
    """Return a stranger's *text* that stands alone: in quotation marks when it begins as a line of ours would."""
    shown = visible(text)
    letters = unicodedata.normalize("NFKC", shown)
    return said(text) if letters.startswith("⟨") or _OURS.match(letters) else shown


def _inside_emoji(text: str, at: int) -> bool:
    before = text[:at].rstrip("\ufe0f\U0001f3fb\U0001f3fc\U0001f3fd\U0001f3fe\U0001f3ff")[-1:]
    after = text[at + 1 : at + 2]
    return bool(before and after) and unicodedata.category(before) == unicodedata.category(after) == "So"


def clip(text: str, limit: int) -> str:
    """Return *text* cut to *limit* characters, the last of them "…" if it was cut; never empty."""
    text = text.strip() or EMPTY
    return text if len(text) <= limit else text[: limit - 1].rstrip() + "…"


def escape(text: str) -> str:
    """Return *text* for mrkdwn: exactly ``&``, ``<``, ``>`` escaped. Source: Slack, "Formatting message text"."""
    return whole(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def escape_and_clip(text: str, limit: int) -> str:
    """Return escaped *text* of at most *limit* characters, cut without splitting an entity; never empty."""
    escaped = _no_codes(escape(text.strip())) or EMPTY
    if len(escaped) <= limit:
        return escaped
    return re.sub(r"&[a-z]*$", "", escaped[: limit - 1]).rstrip() + "…"


def _no_codes(text: str) -> str:
    return _EMOJI_CODE.sub("∶", text)


def unescape(text: str) -> str:
    """Return what was typed: Slack's three entities undone, once."""
    return text.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")


def plain_text(text: str, limit: int) -> Block:
    """Return a plain_text object: literal, emoji codes not replaced."""
    return {"type": "plain_text", "text": clip(text, limit), "emoji": False}


def usd(amount: Decimal) -> str:
    """Return US dollars for people: "$0.05"; below a cent with four digits, rounded up so that nothing looks free."""
    if 0 < amount < Decimal("0.01"):
        return f"${amount.quantize(Decimal('0.0001'), rounding=ROUND_UP)}"
    return f"${amount.quantize(Decimal('0.01'), rounding=ROUND_UP)}"


def is_person(user_id: str) -> bool:
    """Say whether *user_id* has the shape of a Slack user id, so that a mention of it is one."""
    return _PERSON.fullmatch(user_id) is not None


def rich(line: Line, style: dict[str, bool] | None = None) -> list[Block]:
    """Return *line* as elements of a rich_text_section: all text literal."""
    elements: list[Block] = []
    for part in line:
        match part:
            case Who(id) if is_person(id):
                elements.append({"type": "user", "user_id": id})
            case Group(_, str(id)):
                elements.append({"type": "usergroup", "usergroup_id": id})
            case Channel(id) if part.linked:
                elements.append({"type": "channel", "channel_id": id})
            case When(at):
                token = {"timestamp": int(at.timestamp()), "format": part.form, "fallback": part.fallback}
                elements.append({"type": "date", **token})
            case Link(url, label):
                elements.append({"type": "link", "url": url, "text": label})
            case Bold(text):
                elements.append(_literal(text, {"bold": True}))
            case Code(text):
                elements.append(_literal(text, {"code": True}))
            case Struck(text):
                elements.append(_literal(text, {"strike": True}))
            case _:
                elements.append(_literal(_word(part), style))
    return elements or [_literal(EMPTY, style)]


def _literal(text: str, style: dict[str, bool] | None) -> Block:
    element: Block = {"type": "text", "text": text or EMPTY}
    if style:
        element["style"] = style
    return element


def mrkdwn(line: Line) -> str:
    """Return *line* as mrkdwn: strangers' text escaped, mentions, dates and links live."""
    words: list[str] = []
    for part in line:
        match part:
            case Who(id) if is_person(id):
                words.append(f"<@{id}>")
            case Group(_, str(id)):
                words.append(f"<!subteam^{id}>")
            case Channel(id) if part.linked:
                words.append(f"<#{id}>")
            case When(at):
                words.append(f"<!date^{int(at.timestamp())}^{part.form}|{part.fallback}>")
            case Link(url, label):
                words.append(f"<{url}|{escape(label)}>")
            case Bold(text):
                words.append(f"*{_no_codes(escape(text))}*")
            case Code(text):
                words.append(f"`{escape(text).replace('`', 'ˋ')}`")
            case Struck(text):
                words.append(f"~{_no_codes(escape(text))}~")
            case _:
                words.append(_no_codes(escape(_word(part))))
    return "".join(words).strip() or EMPTY


def plain(line: Line) -> str:
    """Return *line* as plain text, to be escaped by whoever shows it."""
    return "".join(_word(part) for part in line).strip() or EMPTY


def _word(part: Part) -> str:
    match part:
        case str():
            return part
        case Who(id):
            return id.replace("operator:", "operator ")
        case Group(handle):
            return f"@{handle}"
        case Channel(id):
            return f"channel {id}" if part.linked else "this conversation"
        case When():
            return part.fallback
        case Link(url, label):
            return f"{label} ({url})"
        case Bold(text) | Code(text) | Struck(text):
            return text


def joined(lines: Sequence[Line], between: str) -> Line:
    """Return *lines* as one, with *between* between them."""
    together: list[Part] = []
    for line in lines:
        if together:
            together.append(between)
        together += line
    return tuple(together)


_SIMPLE_LINK = re.compile(r"!?\[([^\[\]]*)\]\(\s*<?([^()\s<>]+)>?(?:\s+[\"'(][^)]*)?\)")


def tame_markdown(text: str) -> str:
    """Return a stranger's markdown with its formatting, and without mentions, hidden link targets or images.

    Links show their address; anything that Slack might read as a mention gets an invisible character inside.
    Slack does not document whether a markdown block can mention, so it is taken to be able to.
    """
    text = whole(text)
    text = _SIMPLE_LINK.sub(_open_link, text)
    text = text.replace("](", "] (").replace("][", "] [").replace("]:", "] :")
    text = re.sub(r"<(?=[@#!]|[a-zA-Z][a-zA-Z0-9+.-]*:)", "<\u200b", text)
    return re.sub(r"@(?=(?:channel|here|everyone)\b)", "@\u200b", text, flags=re.IGNORECASE)


def _open_link(match: re.Match[str]) -> str:
    label, url = match.group(1).strip(), match.group(2)
    return url if not label or label == url else f"{label} ({url})"
