"""From rows to Block Kit: pure functions, no I/O, no clock.

Decides: what a message of each kind shows. Does not: send it (delivery does) or choose words (texts does). The failure
it can cause: a message that Slack refuses; ``lint`` and slack_sdk's own validation hold every golden render.
"""

from dataclasses import dataclass

from bot.blocks import run_messages
from bot.blocks.cards import Surroundings, card, pointer, reminder
from bot.blocks.offers import offers
from bot.lines import Block, clip
from core.ports import Continuation, OutboxRow, RenderInputs

# chat.update refuses a text above 4,000 characters (msg_too_long); notifications show far less anyway.
FALLBACK_LIMIT = 3_900


@dataclass(frozen=True, slots=True)
class Rendered:
    """A message: *text* for notifications and old clients (mrkdwn, escaped), *blocks* for everybody else.

    *goes_on*: the message in which it goes on, when one is too short for it."""

    text: str
    blocks: list[Block]
    goes_on: Continuation | None = None


def render(row: OutboxRow, inputs: RenderInputs, version: int, around: Surroundings) -> Rendered:
    """Return what the message of *row* shows at *version*; every block id changes with the version.

    Raises: LookupError when the row's kind needs rows that are not there.
    """
    goes_on = None
    match row.kind:
        case "card" if row.place.startswith("pointer:"):
            text, blocks = pointer(inputs, around)
        case "card":
            text, blocks = card(inputs, around, away=_away(row, inputs))
        case "notice" if inputs.content.get("reminder"):
            text, blocks = reminder(inputs, around)
        case "notice" if inputs.content.get("offers"):
            text, blocks = run_messages.notice(inputs)[0], offers(around.examples)
        case "notice" if inputs.content.get("asked"):
            text, blocks = run_messages.asked(inputs)
        case "progress":
            text, blocks = run_messages.progress(inputs)
        case "answer":
            text, blocks, goes_on = run_messages.answer(inputs, row.place)
        case "halt":
            text, blocks = run_messages.halt(inputs, row.ref)
        case "failure":
            text, blocks = run_messages.failure(inputs)
        case "alert":
            text, blocks = run_messages.alert(inputs, around, row.place)
        case _:
            # What is about one suspension names its title, and a person's reason: it is one line, whatever they hold.
            text, blocks = run_messages.notice(inputs, one_line=bool(row.ref))
    return Rendered(clip(text, FALLBACK_LIMIT), identified(blocks, version), goes_on)


def _away(row: OutboxRow, inputs: RenderInputs) -> bool:
    """Say whether a card stands elsewhere than in its run's thread."""
    run = inputs.run
    return run is not None and (row.channel_id, row.thread_ts) != (run.channel_id, run.thread_ts)


def identified(blocks: list[Block], version: int) -> list[Block]:
    """Return *blocks* with ids of this version. Markdown blocks get none: Slack does not keep theirs."""
    return [
        block if block["type"] == "markdown" else {**block, "block_id": f"v{version}.{at}"}
        for at, block in enumerate(blocks)
    ]


__all__ = ["Rendered", "Surroundings", "identified", "render"]
