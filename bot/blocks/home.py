"""App Home: what waits for you, your runs, and what Atlas can do.

Decides: its layout. Does not: know who is looking (the caller gives what that person may see). The failure it can
cause: a Home above Slack's limits is refused whole; so each part is bounded.
"""

import json
from collections.abc import Sequence

from bot import texts
from bot.blocks.artefact import header
from bot.blocks.cards import Surroundings, button, card, continue_value, press_value
from bot.blocks.modals import sections
from bot.blocks.offers import offers
from bot.lines import Block, mrkdwn
from core.ports import RenderInputs
from core.run import Run, RunState, Suspension

# A whole card takes up to 15 blocks; Home has room for 100.
CARDS_SHOWN = 3
RUNS_SHOWN = 8
_BLOCKS_OF_CARDS = 55
# What is not over for its owner: it works, waits for a decision, or may be continued.
GOING = (RunState.RUNNING, RunState.SUSPENDED, RunState.HALTED)


def home(
    waiting: Sequence[tuple[Suspension, Run]],
    going: Sequence[Run],
    recent: Sequence[Run],
    examples: Sequence[str],
    around: Surroundings,
) -> Block:
    """Return the Home view of one person. *going*: their newest runs that are not over; *recent*: their newest."""
    about = [header("What Atlas can do"), *offers(examples)]
    # Whoever has no run yet is new here: what they may ask comes first.
    blocks: list[Block] = [] if recent else list(about)
    blocks.append(header("Waiting for you"))
    blocks += _waiting(waiting, around) if waiting else sections([("Nothing waits for your decision.",)])
    blocks.append(header("Your runs"))
    if not recent:
        blocks += sections([(texts.NO_RUNS,)])
    open_ones = [run for run in going if not run.followed_up][:RUNS_SHOWN]
    listed = {run.id for run in open_ones}
    for run in open_ones:
        blocks.append(_run(run, around))
    ended = [run for run in recent if run.id not in listed][: RUNS_SHOWN - len(open_ones)]
    if ended:
        links = [around.link((run.channel_id, run.thread_ts), "open") for run in ended]
        blocks += sections([texts.one_run(run, link) for run, link in zip(ended, links, strict=True)])
    return {"type": "home", "blocks": [*blocks, *(about if recent else [])][:100]}


def _run(run: Run, around: Surroundings) -> Block:
    """Return a run that is not over, with what its owner may press."""
    line = texts.one_run(run, around.link((run.channel_id, run.thread_ts), "open"))
    press = button("stop", "Stop", json.dumps({"r": run.id}))
    if run.state is RunState.HALTED:
        press = button("continue", "Continue", continue_value(run))
    text = {"type": "mrkdwn", "text": mrkdwn(line)[:3_000], "verbatim": True}
    return {"type": "section", "text": text, "accessory": press}


def _waiting(waiting: Sequence[tuple[Suspension, Run]], around: Surroundings) -> list[Block]:
    blocks: list[Block] = []
    for at, (suspension, run) in enumerate(waiting):
        link = around.link((run.channel_id, run.thread_ts), "open")
        shown: list[Block] = []
        if at < CARDS_SHOWN:
            inputs = RenderInputs(run=run, detail="", doing="", suspension=suspension)
            shown = card(inputs, around, table=False, away=True)[1]
        if shown and len(blocks) + len(shown) < _BLOCKS_OF_CARDS and suspension.replaces is None:
            blocks += [*shown, {"type": "divider"}]
        elif len(blocks) < _BLOCKS_OF_CARDS:
            # A card that replaced another shows the difference, which the thread's card and the details have at hand.
            text = {
                "type": "mrkdwn",
                "text": mrkdwn(texts.one_pending(suspension, run, link))[:3_000],
                "verbatim": True,
            }
            press = button("details", "Details", press_value(suspension))
            blocks.append({"type": "section", "text": text, "accessory": press})
    return blocks
