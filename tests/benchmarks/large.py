"""What size does: hot statements among a million runs, the tables after a million steps, retention beside steps.

Decides: that a statement counts as led by its keys when its plan scans no table, and how many blocks it touches. Does
not: judge figures. The failure it can cause: autovacuum works meanwhile, as it does in life, so rates vary.
"""

import asyncio
import time
from typing import Any

import asyncpg

from bot.wiring import SystemClock
from core import Agent
from core.conversation import CallKey
from core.ports import Batch, TraceEntry
from jobs.retention import BATCH, Retention
from storage.commits import SharedCommits
from storage.database import open_pool
from storage.rows import batch_columns
from tests.benchmarks.crowd import a_suspended_run, copies
from tests.benchmarks.server import Meter, Server, pct
from tests.benchmarks.steps import STEPS, Counted, drained
from tests.benchmarks.subjects import Look, scopes, subject, vacuum
from tests.integration.storeworld import result, turn, world_on
from tests.integration.test_store_plans import crowd, plans

TABLES = ("runs", "messages", "trace", "actions", "inbox", "outbox", "live_threads", "suspensions")


async def million(server: Server) -> None:
    """Fill runs, messages and trace with a million answered runs; look at the plans, then work beside them."""
    count = server.n(1_000_000, least=20_000)
    async with server.database() as dsn:
        pool = await open_pool(dsn)
        world = world_on(pool)
        fence = await world.started()
        begun = time.perf_counter()
        await crowd(world, fence.run_id, count=count)
        filled = time.perf_counter() - begun
        scanned = {}
        found: dict[str, str] = {}
        for when in ("before statistics", "after"):
            found = await plans(world, fence)
            scanned[when] = [name for name, plan in found.items() if any(f"Seq Scan on {t}" in plan for t in TABLES)]
            await vacuum(dsn)
        await pool.execute("delete from inbox")  # names of events are this module's and those of the tests
        await pool.close()
        server.emit(
            {
                "peer": "atlas",
                "bench": "million_plans",
                "runs": count,
                "statements": len(found),
                "scanning": scanned,
                "fill_s": round(filled, 1),
            }
        )
        opened = await subject(dsn)
        model = Counted(STEPS)
        agent = Agent("", [Look()], scopes, model=model)
        for _ in range(128):
            await opened.start(claimed=False)
        async with Meter(server) as meter:
            await drained(opened, agent, model, 32, 128)
        meter.emit("beside_million", 128 * STEPS, model.lat, concurrency=32, runs=count)
        await opened.close()


async def bloat(server: Server) -> None:
    """Take a million steps with 64 runs and look at what they leave in runs and its indexes."""
    steps, runs = server.n(1_000_000, least=20_000), 64
    async with server.database() as dsn:
        opened = await subject(dsn)
        fences = [await opened.claimed() for _ in range(runs)]
        commits = SharedCommits(opened.pool, lambda: None)
        before = await _sizes(opened.pool)

        async def work(fence: Any) -> None:
            for n in range(steps // runs):
                seq = 2 * n + 1
                batch = Batch(
                    messages=(turn(seq, "look"), result(seq + 1, CallKey(seq, 0))),
                    trace=(TraceEntry("model", {}, 1),),
                    steps=1,
                    elapsed_ms=1,
                    doing="at work",
                )
                assert await commits.step(fence, batch_columns(batch)) is not None

        async with Meter(server) as meter:
            await asyncio.gather(*map(work, fences))
        await asyncio.sleep(1.5)  # the last counts of a session are flushed a second later at the latest
        after = await _sizes(opened.pool)
        counted = await opened.pool.fetchrow(
            "select n_tup_upd, n_tup_hot_upd, n_dead_tup, autovacuum_count, autoanalyze_count"
            " from pg_stat_user_tables where relname = 'runs'"
        )
        assert counted is not None
        taken = steps // runs * runs
        meter.emit(
            "bloat",
            taken,
            runs=runs,
            hot_share=round(counted["n_tup_hot_upd"] / max(1, counted["n_tup_upd"]), 4),
            dead_rows=counted["n_dead_tup"],
            autovacuums=counted["autovacuum_count"],
            runs_kb=[before["runs"] // 1024, after["runs"] // 1024],
            runs_indexes_kb=[before["runs_indexes"] // 1024, after["runs_indexes"] // 1024],
            messages_b_per_step=round((after["messages"] - before["messages"]) / taken),
            trace_b_per_step=round((after["trace"] - before["trace"]) / taken),
        )
        await opened.close()


async def _sizes(pool: Any) -> dict[str, int]:
    row = await pool.fetchrow(
        "select pg_relation_size('runs') as runs, pg_indexes_size('runs') as runs_indexes,"
        " pg_total_relation_size('messages') as messages, pg_total_relation_size('trace') as trace"
    )
    return dict(row)


async def retention(server: Server) -> None:
    """Remove 100,000 old runs as the job does, while eight runs step; against the same steps before it."""
    count = server.n(100_000, least=2000)
    async with server.database() as dsn:
        opened = await subject(dsn)
        old = "state = 'answered', ended_at = now() - interval '31 days'"
        await copies(dsn, await a_suspended_run(opened), count, "old", old)
        await vacuum(dsn)
        fences = [await opened.claimed() for _ in range(8)]
        ended = asyncio.Event()
        lat: list[float] = []

        async def work(fence: Any) -> None:
            while not ended.is_set():
                begun = time.perf_counter()
                await opened.worker.step(fence, Batch(steps=1, elapsed_ms=1, trace=(TraceEntry("model", {}, 1),)))
                lat.append(time.perf_counter() - begun)
                await asyncio.sleep(0.005)

        async def beside(work_done: Any) -> list[float]:
            lat.clear()
            ended.clear()
            stepping = [asyncio.create_task(work(fence)) for fence in fences]
            await work_done
            ended.set()
            await asyncio.gather(*stepping)
            return list(lat)

        alone = await beside(asyncio.sleep(3.0))
        watching = asyncio.create_task(_row_waits(dsn))
        async with Meter(server) as meter:
            during = await beside(Retention(opened.upkeep, SystemClock()).run_once())
        watching.cancel()
        waits = (await asyncio.gather(watching, return_exceptions=True))[0]
        assert await opened.pool.fetchval("select count(*) from runs where id like 'old%'") == 0
        assert await opened.pool.fetchval("select count(*) from messages where run_id like 'old%'") == 0
        meter.emit(
            "retention",
            count,
            batch=BATCH,
            step_p50_ms=[round(1000 * pct(each, 0.5), 2) for each in (alone, during)],
            step_p95_ms=[round(1000 * pct(each, 0.95), 2) for each in (alone, during)],
            steps_beside=len(during),
            row_waits_seen=waits if isinstance(waits, int) else None,
            note="runs removed by the job with its pauses; steps without it, then beside it",
        )
        await opened.close()


async def _row_waits(dsn: str) -> int:
    """Count, until cancelled, how often a session is seen waiting for a row."""
    connection = await asyncpg.connect(dsn)
    seen = 0
    try:
        while True:
            seen += await connection.fetchval(
                "select count(*) from pg_stat_activity where datname = current_database()"
                " and wait_event_type = 'Lock' and wait_event in ('tuple', 'transactionid')"
            )
            await asyncio.sleep(0.02)
    except asyncio.CancelledError:
        return seen
    finally:
        connection.terminate()
