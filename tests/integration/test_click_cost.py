"""What a click costs before its ack: two statements, each a round trip, whatever becomes of it.

People wait for them, and hundreds of clicks come at once when an alert names a channel.
"""

import asyncio

import asyncpg
import pytest

from core.agent import Agent
from core.approvals import Refusal, Via
from core.engine import Actor, Engine, Rules
from core.tools import Approval
from tests.conftest import STATEMENTS_KEPT
from tests.integration.storeworld import Members, no_scope, world_on


@pytest.mark.parametrize(
    ("who", "token", "before", "refusal"),
    [
        ("U1", None, False, None),
        ("U1", None, True, Refusal.DECIDED),
        ("U1", "forged", False, Refusal.PRESS_AGAIN),
        ("U2", None, False, Refusal.NOT_AN_APPROVER),
    ],
    ids=["approved", "decided already", "another token", "may not"],
)
async def test_a_click_is_two_statements(
    database: str, who: str, token: str | None, before: bool, refusal: Refusal | None
) -> None:
    """One reads, one writes; no transaction is opened that a lock could be held in."""
    sent: list[str] = []

    async def listened(connection: "asyncpg.Connection[asyncpg.Record]") -> None:
        connection.add_query_logger(lambda record: sent.append(record.query[:40]))

    async def as_it_is(connection: object) -> None:
        """Connections go back as they are, as in the process (``storage.database``)."""

    async with asyncpg.create_pool(
        database, min_size=1, max_size=4, statement_cache_size=STATEMENTS_KEPT, init=listened, reset=as_it_is
    ) as pool:
        world = world_on(pool)
        _, (ask,) = await world.suspended(policy=Approval(by=("U1",)))
        engine = Engine(Agent(instructions="", tools=[], scopes=no_scope), world.desk, Members(), Rules())
        actor = Actor("T1", who, Via.BUTTON)
        if before:
            await engine.decide(Actor("T1", "U1", Via.BUTTON), ask.id, ask.token, approve=True, digest=ask.digest)
        await asyncio.sleep(0)  # a query is told of at the end of its turn of the event loop
        sent.clear()
        decided = await engine.decide(actor, ask.id, token or ask.token, approve=True, digest=ask.digest)
        await asyncio.sleep(0)
        assert decided.refusal is refusal
        assert [query.split()[1] for query in sent] == [
            "read_suspension",
            "decide_suspension" if refusal is None else "audit_attempt",
        ]
