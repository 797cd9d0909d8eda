"""The documented example is a working agent: served as an engineer would serve it, its card approved, its effect once.

Runs ``docs/example_tool.py`` through the real ``python -m bot serve`` in a directory outside the repository, named by
ATLAS_AGENT and nothing else.
"""

import shutil
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from bot.simulator.workspace import ATLAS_OPS
from tests.acceptance.stack import ROOT, Stack, has_button, stack_of, words
from tests.invariants import Effect, violations, watch

AGENT = "example_tool:agent"


@pytest.fixture
async def place(database: str, tmp_path: Path) -> AsyncIterator[Stack]:
    """A workspace, and a directory with nothing in it but the example."""
    assert ROOT not in tmp_path.parents
    await watch(database)
    shutil.copy(ROOT / "docs" / "example_tool.py", tmp_path)
    async with stack_of(database, tmp_path) as made:
        yield made


def orders(place: Stack) -> list[tuple[str, str, int]]:
    """Return what the shop has in its books: (idempotency key, item, pieces)."""
    with sqlite3.connect(place.directory / "orders.db") as shop:
        found: list[tuple[str, str, int]] = shop.execute("select key, item, pieces from orders").fetchall()
    shop.close()
    return found


async def serve(place: Stack) -> None:
    """Start Atlas with the example as its agent and no CRM."""
    await place.serve(ATLAS_AGENT=AGENT, ATLAS_CRM_URL="")


async def check(place: Stack) -> None:
    """Hold the promises of every story against the shop's own books."""
    await place.quiet()
    effects = [Effect(key) for key, _, _ in orders(place)]
    broken = await violations(
        await place.pool(), effects, place.slack, ATLAS_OPS, needs_approval=frozenset({"place_order"})
    )
    assert not broken, "\n".join(broken)


async def test_the_example_shows_its_card_and_orders_once_after_the_click(place: Stack) -> None:
    """Nothing is ordered before the click; one click orders once; a second click changes nothing."""
    await serve(place)
    thread = await place.ask("@Atlas order 3 chairs")
    card = await place.card(thread)
    shown = words(place.shown(card))
    assert "Order 3 chairs" in shown
    assert "360 USD" in shown
    assert orders(place) == []

    click = await place.press(card, "approve")

    assert click.state == "acked"
    run = await place.until(thread, "answered")
    await place.said(thread, "ordered 3 chairs")
    await place.shows(card, "Done")
    assert [(item, pieces) for _, item, pieces in orders(place)] == [("chairs", 3)]
    assert not has_button(place.shown(card), "approve")
    actions = await place.rows("select state, idempotency_key as key from actions where run_id = $1", run["id"])
    assert [(action["state"], action["key"]) for action in actions] == [("succeeded", orders(place)[0][0])]
    await check(place)


async def test_a_declined_order_of_the_example_is_not_placed(place: Stack) -> None:
    """A no reaches the model, and the shop's books stay empty."""
    await serve(place)
    thread = await place.ask("@Atlas order 2 desks")
    card = await place.card(thread)
    await place.decline(card, "too dear")
    await place.until(thread, "answered")
    await place.said(thread, "too dear")
    assert orders(place) == []
    await check(place)
