"""What a person's message means before any model sees it: a command, a bare assent, nothing, or a request.

Decides: by the whole text only, so that "continue with Henderson" stays a request. Does not: answer. The failure it
can cause: an assent taken for an instruction would supersede what waits; text never approves.
"""

import re
from dataclasses import dataclass

COMMANDS = ("help", "pending", "runs", "show", "continue", "stop")

_RUN_ID = re.compile(r"(?=.*[0-9])[0-9a-z]{8}")

_PHRASES = (
    "yes|yep|yeah|yup|yes please|ok|okay|ok then|okay then|k|y|sure|sure thing|go|go on|go ahead|go for it|do it|do so|"
    "do that|send it|please|please do|approve|approve it|approve this|approved|i approve|confirm|confirmed|i confirm|"
    "agreed|i agree|lgtm|looks good|looks good to me|sounds good|sounds good to me|works for me|all good|alright|"
    "all right|fine|fine by me|good|very good|great|nice|cool|perfect|awesome|excellent|wonderful|ship it|proceed|"
    "absolutely|definitely|of course|certainly|right|correct|exactly|indeed|let's go|let's do it|lets go|lets do it|"
    "thanks|thanks a lot|thanks a bunch|thanks so much|many thanks|thank you|thank you so much|thank you very much|"
    "much appreciated|appreciated|thx|tysm|ty|cheers|atlas"
)
_ASSENTS = re.compile(f"({_PHRASES}|👍)")
# Emoji and Slack's names for them that mean no more than agreement or thanks.
_SIGNS = re.compile(
    "[👍👌✅✔☑🙏🙌👏🎉💯❤🙂😊😀]|:(?:\\+1|thumbsup|thumbs_up|white_check_mark|heavy_check_mark|ballot_box_with_check|"
    "ok_hand|pray|raised_hands|clap|tada|100|heart|slightly_smiling_face|blush|smile|grinning):"
)
_TONES = re.compile("[\U0001f3fb-\U0001f3ff\ufe0e\ufe0f\u200d]|:skin-tone-[2-6]:")
_PUNCTUATION = re.compile(r"[.!?,;:…()\"“”*_~`\-–—]+")


@dataclass(frozen=True, slots=True)
class Command:
    """A command and its argument (a run id, or "")."""

    name: str
    argument: str = ""


def command_of(text: str) -> Command | None:
    """Return the command that the whole text is, e.g. "continue" or "show k7d2m9qa"; None: it is a request.

    Only "show", "continue" and "stop" take an argument, and it must look like a run id: 8 characters with a digit
    among them, so that "show payments" stays a request.
    """
    words = text.strip().lstrip("/").lower().rstrip(".!?").split()
    if words[:1] == ["atlas"]:
        words = words[1:]
    if len(words) == 1 and words[0] in COMMANDS:
        return Command(words[0])
    if len(words) == 2 and words[0] in ("show", "continue", "stop") and _RUN_ID.fullmatch(words[1]):
        return Command(words[0], words[1])
    return None


def is_bare_assent(text: str) -> bool:
    """Say whether the whole text is only agreement or thanks ("yes", "go ahead, thanks!")."""
    signs = _SIGNS.sub(" 👍 ", _TONES.sub("", text.lower().replace("’", "'")))
    words = " ".join(_PUNCTUATION.sub(" ", signs).split())
    if words == "atlas":
        return False
    said = bool(words)
    while words:
        covered = _longest_assent(words)
        if covered == 0:
            return False
        words = words[covered:].strip()
    return said


def _longest_assent(words: str) -> int:
    """Return how many characters of *words* the longest leading assent covers, at a word boundary; 0: none."""
    for end in range(len(words), 0, -1):
        at_boundary = end == len(words) or words[end] == " "
        if at_boundary and _ASSENTS.fullmatch(words[:end]):
            return end
    return 0
