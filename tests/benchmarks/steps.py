"""Steps per second: the shipped step path, the whole engine, and the bare INSERT loop that both are held against.

Decides: what counts as a step. ``step_path``: what a turn of the loop commits (budget, the model's message, a read's
result, spend, trace, fence), through the holder and the store as they ship, without model and tools. ``engine``: runs
of ten steps from claim to answer, with a trivial tool and an instant model. The failure it can cause: none; a ratio
says nothing unless its bare loop ran in the same minute, so each concurrency has its own.
"""

import asyncio
import json
import time
import uuid
from decimal import Decimal
from typing import Any

import asyncpg

from bot.wiring import SystemClock
from core import Agent
from core.budget import Allowance, allow
from core.conversation import CallKey, Message, ToolCall
from core.holder import Holder
from core.loop import Loop
from core.ports import Claimed
from core.worker import Worker
from tests.benchmarks.server import Meter, Server, counting
from tests.benchmarks.subjects import RESULT, InstantModel, Look, Subject, scopes, subject

CONCURRENCY = (1, 8, 32, 128)
SECONDS = 4.0
STEPS = 10
BODY = json.dumps({"role": "tool", "content": RESULT})
TABLE = """create table raw_insert(id bigint generated always as identity primary key, run uuid not null,
 seq int not null, body jsonb not null)"""
INSERT = "insert into raw_insert(run, seq, body) values ($1, $2, $3::jsonb)"


async def bare(server: Server, clients: int, mode: str) -> None:
    """Measure one prepared INSERT, one commit, from a connection a client: the peers' anchor, 1.00 by definition.

    *mode*: the event loop that this runs on.
    """
    async with server.database(migrated=False) as dsn:
        connections = [await asyncpg.connect(dsn) for _ in range(clients)]
        await connections[0].execute(TABLE)
        lat: list[float] = []
        end = 0.0

        async def one(connection: Any) -> None:
            statement = await connection.prepare(INSERT)
            run = uuid.uuid4()
            while (begun := time.perf_counter()) < end:
                await statement.fetch(run, 1, BODY)
                lat.append(time.perf_counter() - begun)

        async with Meter(server) as meter:
            end = time.perf_counter() + SECONDS * server.scale
            await asyncio.gather(*map(one, connections))
        meter.emit("asyncpg", len(lat), lat, peer="raw", concurrency=clients, mode=mode)
        for connection in connections:
            await connection.close()


async def a_step(holder: Holder, model: InstantModel, specs: list[Any]) -> None:
    """Do what the loop does around a turn, the model and the tool left out."""
    allowance = allow(model, holder.run, [], specs)
    assert isinstance(allowance, Allowance), allowance
    seq = len(holder.messages)
    call = ToolCall(id=f"call_{seq}", tool="look", arguments={"n": seq})
    holder.append(Message(role="tool", text=RESULT, call_id="call"), CallKey(seq - 1, 0) if seq > 1 else CallKey(0, 0))
    holder.note("read", ms=0, tool="look", outcome="ok")
    holder.append(Message(role="assistant", text="", calls=(call,)))
    holder.note("model", ms=0, spend_usd=Decimal("0.0001"), calls=["look"])
    holder.owe(steps=1, tool_calls=1, call_usd=Decimal("0.0001"))
    await holder.step(holder.batch(doing="looking"))


async def step_path(server: Server, clients: int, *, counted: bool = False) -> None:
    """Measure the shipped step path with that many runs in one process."""
    async with server.database(counted=counted) as dsn:
        opened = await subject(dsn)
        holders = []
        for _ in range(clients):
            holder = Holder(await opened.claimed(), opened.worker, SystemClock())
            await holder.reload()
            holders.append(holder)
        model, specs = InstantModel(10**6), Agent("", [Look()], scopes).specs()
        lat: list[float] = []

        async def run(holder: Holder, until: float) -> None:
            while (begun := time.perf_counter()) < until:
                await a_step(holder, model, specs)
                lat.append(time.perf_counter() - begun)

        warm = time.perf_counter() + 0.3
        await asyncio.gather(*(run(holder, warm) for holder in holders))
        lat.clear()
        async with Meter(server, counted=counted) as meter:
            until = time.perf_counter() + SECONDS * server.scale
            await asyncio.gather(*(run(holder, until) for holder in holders))
        meter.emit("step_path", len(lat), lat, concurrency=clients, **counting(counted))
        await opened.close()


class Counted(InstantModel):
    """An instant model that takes the time of each turn."""

    def __init__(self, steps: int) -> None:
        super().__init__(steps)
        self.lat: list[float] = []
        self._last: dict[int, float] = {}

    async def respond(self, messages: Any, tools: Any, max_output_tokens: int) -> Any:
        now = time.perf_counter()
        key = id(asyncio.current_task())
        if len(messages) > 1:
            self.lat.append(now - self._last[key])
        self._last[key] = now
        return await super().respond(messages, tools, max_output_tokens)


async def engine(server: Server, clients: int, *, counted: bool = False) -> None:
    """Measure whole runs of ten steps, claimed, worked on and answered by one worker that carries *clients*."""
    per_client = {1: 150, 8: 60, 32: 30, 128: 10}[clients]
    runs = server.n(per_client * clients, least=clients)
    async with server.database(counted=counted) as dsn:
        opened = await subject(dsn)
        warm = min(clients * 2, 64)
        for _ in range(runs + warm):
            await opened.start(claimed=False)
        model = Counted(STEPS)
        agent = Agent("", [Look()], scopes, model=model)
        await drained(opened, agent, model, clients, warm)
        model.lat.clear()
        async with Meter(server, counted=counted) as meter:
            await drained(opened, agent, model, clients, runs)
        meter.emit("steps", runs * STEPS, model.lat, concurrency=clients, **counting(counted))
        left = await opened.pool.fetchval("select count(*) from runs where state = 'running'")
        steps = await opened.pool.fetchval("select sum(step) from runs")
        assert left == 0, left
        assert steps == (runs + warm) * STEPS
        await opened.close()


class Rationed:
    """The store of a worker, which hands out no more runs than are measured."""

    def __init__(self, opened: Subject, runs: int) -> None:
        self._store = opened.worker
        self.left = runs

    async def claim(self, worker_id: str, room: int) -> list[Claimed]:
        """Claim as the store does, within the ration."""
        claimed = await self._store.claim(worker_id, min(room, self.left))
        self.left -= len(claimed)
        return claimed

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


async def drained(opened: Subject, agent: Agent, model: Any, clients: int, runs: int) -> None:
    """Run a worker that carries *clients* at once until *runs* have ended."""
    ended = 0
    over = asyncio.Event()

    class Ending(Loop):
        """The loop, which says that it has ended."""

        async def run(self) -> None:
            nonlocal ended
            await super().run()
            ended += 1
            if ended == runs:
                over.set()

    rationed: Any = Rationed(opened, runs)
    worker = Worker(
        opened.worker_id,
        rationed,
        lambda fence: opened.loop(fence, agent, model, Ending),
        SystemClock(),
        capacity=clients,
    )
    task = asyncio.create_task(worker.run())
    await over.wait()
    await worker.until_idle()
    worker.draining = True
    worker.wake()
    await task
