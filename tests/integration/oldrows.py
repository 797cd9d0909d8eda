"""Rows of every kind that a release leaves behind when it is replaced: kept, to be loaded into the next schema.

``upgrades/NNNN.jsonl`` holds what the last code of schema NNNN wrote: a line about it, then a line for each row. A new
migration needs the file of the schema before it: ``ATLAS_KEEP_ROWS=tests/integration/upgrades pytest -k kept_rows``,
with the code as it was before. The failure it can cause: rows that no release has written prove nothing, so every row
here was written by the stores.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import asyncpg

from core.conversation import CallKey
from core.ports import Batch, Fence, NewSuspension
from core.run import SuspensionKind
from core.tools import Approval
from tests.integration.storeworld import TABLES, World, an_action, an_ask, clicker, turn

KEPT = Path(__file__).parent / "upgrades"


@dataclass(frozen=True)
class Left:
    """What a release left. *runs*: by what each is about, its id and what else names it."""

    schema: int
    now: datetime
    dead: str
    runs: dict[str, dict[str, Any]]
    rows: tuple[tuple[str, str], ...]


def read(lines: Iterable[str]) -> Left:
    """Return what the lines of a kept file say."""
    first, *others = (json.loads(line) for line in lines)
    rows = tuple((other["table"], json.dumps(other["row"])) for other in others)
    return Left(first["schema"], datetime.fromisoformat(first["now"]), first["dead"], first["runs"], rows)


async def load(connection: "asyncpg.Connection[asyncpg.Record]", left: Left) -> None:
    """Put the rows into a database of their own schema."""
    for table, row in left.rows:
        await connection.execute(
            f"insert into {table} overriding system value select * from json_populate_record(null::{table}, $1::json)",
            row,
        )
    for table in TABLES:
        numbered = "select column_name from information_schema.columns where table_name = $1 and is_identity = 'YES'"
        for column in await connection.fetch(numbered, table):
            name = column["column_name"]
            await connection.execute(
                f"select setval(pg_get_serial_sequence('{table}', '{name}'), greatest(max({name}), 1)) from {table}"
            )


class Story:
    """The moves that bring a run of somebody's own to each place at which a release can leave it."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.runs: dict[str, dict[str, Any]] = {}
        self._people = 0

    async def write(self, schema: int) -> list[str]:
        """Write everything; return the lines of a kept file."""
        world = self.world
        await world.upkeep.register(world.worker_id, "gone", 1, "worker", 1, holds_lock=False)
        await self._suspended("waits")
        ask = await self._suspended("has one vote of two", policy=Approval(by="anyone", count=2))
        await world.desk.decide(ask.id, ask.token, ask.digest, clicker("U90"), approve=True, worker_id=world.worker_id)
        await self._approved("approved")
        await self._executing("executes")
        await self._in_doubt("in doubt")
        self.runs["runs"] = {"run": (await self._asking())[0].run_id}
        fence, _ = await self._asking()
        await world.worker.release(fence)
        self.runs["released"] = {"run": fence.run_id}
        self.runs["halted"] = {"run": await world.halted(user=self._somebody())}
        fence = await world.started(user=self._somebody())
        said = Batch(messages=(turn(1, text="42"),), steps=1)
        await world.worker.answer(fence, said, 0, "The answer is 42.")
        self.runs["answered"] = {"run": fence.run_id}
        letter = await world.letter("hello, anybody?", user="U80")
        self.runs["letter"] = {"run": "", "letter": letter.id}
        about = {"schema": schema, "now": world.now.isoformat(), "dead": world.worker_id, "runs": self.runs}
        lines = [json.dumps(about)]
        for table in TABLES:
            rows = await world.pool.fetch(f"select to_json(t)::text as row from {table} t order by t::text")
            lines += [json.dumps({"table": table, "row": json.loads(row["row"])}) for row in rows]
        return lines

    def _somebody(self) -> str:
        self._people += 1
        return f"U{self._people}"

    async def _asking(self) -> tuple[Fence, CallKey]:
        fence = await self.world.started(user=self._somebody())
        await self.world.worker.step(fence, Batch(messages=(turn(1, "send"),), steps=1, tool_calls=1))
        return fence, CallKey(1, 0)

    async def _suspended(self, name: str, **more: Any) -> NewSuspension:
        fence, key = await self._asking()
        ask = an_ask(fence.run_id, key, **more)
        await self.world.worker.suspend(fence, Batch(), 0, [ask])
        self.runs[name] = {"run": fence.run_id, "suspension": ask.id}
        return ask

    async def _approved(self, name: str) -> tuple[Fence, NewSuspension]:
        world = self.world
        ask = await self._suspended(name)
        owner = await world.value("select user_id from runs where id = $1", self.runs[name]["run"])
        decided = await world.desk.decide(
            ask.id, ask.token, ask.digest, clicker(owner), approve=True, worker_id=world.worker_id
        )
        assert decided.claimed is not None
        return decided.claimed, ask

    async def _executing(self, name: str) -> tuple[Fence, NewSuspension]:
        fence, ask = await self._approved(name)
        action = an_action(fence.run_id, ask.call, ask.arguments, suspension_id=ask.id)
        await self.world.worker.intend(fence, Batch(), action)
        return fence, ask

    async def _in_doubt(self, name: str) -> None:
        fence, ask = await self._executing(name)
        question = an_ask(
            fence.run_id, ask.call, kind=SuspensionKind.OUTCOME, alert="somebody has to look", arguments=ask.arguments
        )
        news = await self.world.value("select news from runs where id = $1", fence.run_id)
        await self.world.worker.suspend(fence, Batch(), news, [question])
        self.runs[name]["suspension"] = question.id
