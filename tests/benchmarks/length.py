"""What the length of a conversation costs: one more step (``growth``), and a resumption (``resume``).

Decides: where the clock starts and stops. A resumption is timed from the engine's ``decide`` (a click that was
authorized from a warm cache) to the first line of the tool's ``execute``; its three checks answer at once. ``warm``:
the process that suspended the run goes on with it; ``other process``: one that has never seen it.
"""

import asyncio
import statistics
import time
from dataclasses import dataclass

from bot.wiring import SystemClock
from core import Agent
from core.approvals import Via
from core.conversation import CallKey, Message, ToolCall
from core.engine import Actor, Engine, Rules
from core.holder import Holder
from core.worker import Worker
from storage.kept import MOST_BYTES
from tests.benchmarks.server import Meter, Server, counting
from tests.benchmarks.subjects import (
    Everybody,
    InstantModel,
    Send,
    Subject,
    conversation,
    scopes,
    subject,
    text2k,
    vacuum,
)

LENGTHS = (10, 100, 1000)


async def growth(server: Server, *, counted: bool = False) -> None:
    """Measure one step that adds one message of 2 KB to a conversation of 10, 100 and 1,000 of them."""
    for messages in LENGTHS:
        async with server.database(counted=counted) as dsn:
            opened = await subject(dsn)
            holder = Holder(await opened.claimed(conversation(messages)), opened.worker, SystemClock())
            await holder.reload()
            await vacuum(dsn)
            texts = [text2k() for _ in range(server.n(300) + 20)]
            lat: list[float] = []

            async def one(text: str, holder: Holder = holder) -> None:
                holder.append(Message(role="assistant", text=text))
                holder.note("model", ms=0)
                holder.owe(steps=1)
                await holder.step(holder.batch())

            for text in texts[:20]:
                await one(text)
            async with Meter(server, counted=counted) as meter:
                for text in texts[20:]:
                    begun = time.perf_counter()
                    await one(text)
                    lat.append(time.perf_counter() - begun)
            payload = 2000
            meter.emit("growth", len(lat), lat, messages=messages, payload_bytes=payload, **counting(counted))
            await opened.close()


@dataclass
class Timed:
    """When each run's tool began, and who waits for it."""

    began: dict[str, float]
    waiting: dict[str, "asyncio.Event"]

    def __call__(self, run_id: str) -> None:
        self.began[run_id] = time.perf_counter()
        self.waiting[run_id].set()


async def resume(server: Server) -> None:
    """Measure resumptions at 10, 100 and 1,000 messages of 2 KB: warm, in the process that suspended them while it
    keeps their conversations (the last 64 MB of them), and in another process."""
    for messages in LENGTHS:
        count = server.n({10: 200, 100: 150, 1000: 60}[messages], least=8)
        fit = min(count, MOST_BYTES // (messages * 2500))
        async with server.database() as dsn:
            first, second = await subject(dsn), await subject(dsn)
            suspended = [await _suspended(first, messages) for _ in range(count + fit)]
            await vacuum(dsn)
            for mode, opened, runs in (
                ("warm", first, suspended[count:]),
                ("other process", second, suspended[:count]),
            ):
                waits = [wait for _, wait in runs]
                lat, meter = await _resumed(server, opened, [run_id for run_id, _ in runs])
                meter.emit(
                    "suspend_resume",
                    len(lat),
                    lat,
                    mode=mode,
                    messages=messages,
                    suspend_p50_ms=round(1000 * statistics.median(waits), 2),
                    note="decide to the first line of execute",
                )
            await first.close()
            await second.close()


def _engine(opened: Subject, timed: Timed) -> tuple[Engine, Worker]:
    agent = Agent("", [Send(timed)], scopes)
    model = InstantModel(0)
    worker = Worker(
        opened.worker_id, opened.worker, lambda fence: opened.loop(fence, agent, model), SystemClock(), capacity=64
    )
    return Engine(agent, opened.desk, Everybody(), Rules(), worker), worker


async def _suspended(opened: Subject, messages: int) -> tuple[str, float]:
    """Return a run that waits for a click after that many messages, and how long its suspension took."""
    fence = await opened.claimed(conversation(messages - 1))
    call = ToolCall(id="call", tool="send", arguments={"n": 1})
    holder = Holder(fence, opened.worker, SystemClock())
    await holder.reload()
    if holder.messages[-1].message.role == "assistant":
        last = holder.messages[-1]
        holder.append(Message(role="tool", text=text2k(), call_id=last.message.calls[0].id), CallKey(last.seq, 0))
    holder.append(Message(role="assistant", text=text2k(), calls=(call,)))
    await holder.step(holder.batch())
    begun = time.perf_counter()
    await opened.loop(fence, Agent("", [Send()], scopes), InstantModel(0)).run()
    return fence.run_id, time.perf_counter() - begun


async def _resumed(server: Server, opened: Subject, runs: list[str]) -> tuple[list[float], Meter]:
    timed = Timed({}, {run_id: asyncio.Event() for run_id in runs})
    engine, worker = _engine(opened, timed)
    lat: list[float] = []
    warm = max(2, len(runs) // 10)
    async with Meter(server) as meter:
        for number, run_id in enumerate(runs):
            ((suspension, run),) = await opened.desk.pending(run_id=run_id)
            actor = Actor("T1", run.owner.user_id, Via.BUTTON)
            begun = time.perf_counter()
            decided = await engine.decide(
                actor, suspension.id, suspension.token, approve=True, digest=suspension.digest
            )
            assert decided.refusal is None, decided.refusal
            await timed.waiting[run_id].wait()
            if number >= warm:
                lat.append(timed.began[run_id] - begun)
            await worker.until_idle()
    return lat, meter
