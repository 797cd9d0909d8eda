"""App Home: what waits for you, your runs, and what Atlas can do.

Decides: its layout. Does not: know who is looking (the caller gives what that person may see). The failure it can
cause: a Home above Slack's limits is refused whole; so each part is bounded.
"""

import json
from collections.abc import Sequence

from bot import texts
from bot.blocks.artefact import header
from bot.blocks.cards import Surroundings, button, card, continue_value
from bot.blocks.modals import sections
from bot.blocks.offers import offers
from bot.lines import Block
from core.ports import RenderInputs
from core.run import Run, RunState, Suspension

# A whole card takes up to 15 blocks; Home has room for 100.
CARDS_SHOWN = 3
RUNS_SHOWN = 8
_BLOCKS_OF_CARDS = 60


def home(
    waiting: Sequence[tuple[Suspension, Run]], runs: Sequence[Run], examples: Sequence[str], around: Surroundings
) -> Block:
    """Return the Home view of one person."""
    about = [header("What Atlas can do"), *offers(examples)]
    # Whoever has no run yet is new here: what they may ask comes first.
    blocks: list[Block] = [] if runs else about
    blocks.append(header("Waiting for you"))
    blocks += _waiting(waiting, around) if waiting else sections([("Nothing waits for your decision.",)])
    blocks.append(header("Your runs"))
    if not runs:
        blocks += sections([(texts.NO_RUNS,)])
    for run in runs[:RUNS_SHOWN]:
        link = around.link((run.channel_id, run.thread_ts), "open")
        blocks += sections([texts.one_run(run, link)])
        if run.state is RunState.HALTED:
            press = button("continue", "Continue", continue_value(run))
            blocks.append({"type": "actions", "elements": [press]})
        elif run.state in (RunState.RUNNING, RunState.SUSPENDED):
            press = button("stop", "Stop", json.dumps({"r": run.id}))
            blocks.append({"type": "actions", "elements": [press]})
    return {"type": "home", "blocks": [*blocks, *(about if runs else [])][:100]}


def _waiting(waiting: Sequence[tuple[Suspension, Run]], around: Surroundings) -> list[Block]:
    blocks: list[Block] = []
    for at, (suspension, run) in enumerate(waiting):
        link = around.link((run.channel_id, run.thread_ts), "open")
        shown: list[Block] = []
        if at < CARDS_SHOWN:
            inputs = RenderInputs(run=run, detail="", doing="", suspension=suspension)
            shown = card(inputs, around, table=False)[1]
        if shown and len(blocks) + len(shown) < _BLOCKS_OF_CARDS and suspension.replaces is None:
            blocks += [*shown, {"type": "divider"}]
        elif len(blocks) < _BLOCKS_OF_CARDS:
            # A card that replaced another shows the difference, which only the thread's card has at hand.
            blocks += sections([texts.one_pending(suspension, run, link)])
    return blocks
