"""What a person's message means before any model sees it: a command, a bare assent, nothing, or a request.

Decides: by the whole text only, so that "continue with Henderson" stays a request. Does not: answer. The failure it
can cause: an assent taken for an instruction would supersede what waits; text never approves.
"""

import re
from dataclasses import dataclass

COMMANDS = ("help", "pending", "runs", "show", "continue", "stop")

_ASSENTS = re.compile(
    r"(yes|yep|yeah|yup|ok|okay|k|sure|sure thing|go|go ahead|go for it|do it|send it|please do|approve|approved|"
    r"confirm|confirmed|lgtm|looks good|sounds good|fine|good|great|perfect|thanks|thank you|thx|ty|cheers|"
    r"yes please|please|y|ship it|proceed|absolutely|of course|right|correct|👍|✅|:\+1:|:thumbsup:|"
    r":white_check_mark:)"
)


@dataclass(frozen=True, slots=True)
class Command:
    """A command and its argument (a run id, or "")."""

    name: str
    argument: str = ""


def command_of(text: str) -> Command | None:
    """Return the command that the whole text is, e.g. "continue" or "show k7d2m9qa"; None: it is a request.

    Only "show", "continue" and "stop" take an argument, and it must look like a run id.
    """
    words = text.strip().lstrip("/").lower().rstrip(".!?").split()
    if words[:1] == ["atlas"]:
        words = words[1:]
    if len(words) == 1 and words[0] in COMMANDS:
        return Command(words[0])
    if len(words) == 2 and words[0] in ("show", "continue", "stop") and re.fullmatch(r"[0-9a-z]{8}", words[1]):
        return Command(words[0], words[1])
    return None


def is_bare_assent(text: str) -> bool:
    """Say whether the whole text is only agreement or thanks ("yes", "go ahead, thanks!")."""
    cleaned = re.sub(r"[.!,;…]+", " ", text.lower()).strip()
    words = re.sub(r"\s+", " ", cleaned)
    while words:
        covered = _longest_assent(words)
        if covered == 0:
            return False
        words = words[covered:].strip()
    return bool(cleaned)


def _longest_assent(words: str) -> int:
    """Return how many characters of *words* the longest leading assent covers, at a word boundary; 0: none."""
    for end in range(len(words), 0, -1):
        at_boundary = end == len(words) or words[end] == " "
        if at_boundary and _ASSENTS.fullmatch(words[:end]):
            return end
    return 0
