"""What many do to few: suspended runs beside active ones, orphans, expiries, all at once.

Decides: how big a crowd is, and that what is compared alternates, so that a noisy machine disturbs both sides alike.
The crowd is written by plain SQL from one run that the moves themselves have brought there.
"""

import statistics
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import asyncpg

from bot.wiring import SystemClock
from core import Agent
from core.conversation import Message, ToolCall
from core.holder import Holder
from jobs.expire_suspensions import ExpireSuspensions
from jobs.reap_orphans import ReapOrphans
from tests.benchmarks.server import Meter, Server
from tests.benchmarks.steps import STEPS, Counted, drained
from tests.benchmarks.subjects import InstantModel, Look, Send, Subject, scopes, subject, vacuum

RUN_COLUMNS = (
    "team_id, channel_id, owner, question, route, max_steps, max_tool_calls, max_spend_usd, max_elapsed_ms, scope,"
    " scope_resolved_at, step, next_seq"
)


async def copies(dsn: str, run_id: str, count: int, prefix: str, changes: str = "state = 'suspended'") -> None:
    """Write *count* copies of a run with its messages, suspensions and cards, each with a user and a thread."""
    connection = await asyncpg.connect(dsn)
    try:
        async with connection.transaction():
            await connection.execute(
                f"insert into runs (id, user_id, thread_ts, state, {RUN_COLUMNS})"
                f" select '{prefix}' || n, '{prefix}' || n, '{prefix}' || n, state, {RUN_COLUMNS}"
                " from runs, generate_series(1, $2::integer) n where id = $1",
                run_id,
                count,
            )
            await connection.execute(
                "insert into messages (run_id, seq, role, body, answers_seq, answers_position)"
                f" select '{prefix}' || n, seq, role, body, answers_seq, answers_position"
                " from messages, generate_series(1, $2::integer) n where run_id = $1",
                run_id,
                count,
            )
            await connection.execute(
                "insert into suspensions (id, run_id, call_seq, call_position, number, kind, status, token, tool,"
                " tool_version, arguments, preview, digest, policy, asked_by, opened_at, expires_at)"
                f" select '{prefix}' || n || '.s', '{prefix}' || n, call_seq, call_position, number, kind, status,"
                f" '{prefix}' || n || '.t', tool, tool_version, arguments, preview, digest, policy, asked_by,"
                " opened_at, expires_at from suspensions, generate_series(1, $2::integer) n where run_id = $1",
                run_id,
                count,
            )
            await connection.execute(
                "insert into outbox (place, run_id, kind, ref, channel_id, thread_ts, delivered_version)"
                f" select 'card:{prefix}' || n || '.s', '{prefix}' || n, kind, '{prefix}' || n || '.s', channel_id,"
                " thread_ts, version from outbox, generate_series(1, $2::integer) n"
                " where run_id = $1 and kind = 'card'",
                run_id,
                count,
            )
            await connection.execute(
                "insert into live_threads (team_id, channel_id, thread_ts, user_id, run_id)"
                f" select team_id, channel_id, thread_ts, user_id, id from runs where id like '{prefix}%'"
                " on conflict do nothing"
            )
            if changes != "state = 'suspended'":
                await connection.execute(f"update runs set {changes} where id like '{prefix}%'")
    finally:
        await connection.close()


async def a_suspended_run(opened: Subject) -> str:
    """Return a run that waits for a click, brought there by the moves themselves."""
    fence = await opened.claimed()
    holder = Holder(fence, opened.worker, SystemClock())
    await holder.reload()
    call = ToolCall(id="call", tool="send", arguments={"n": 1})
    holder.append(Message(role="assistant", text="I would send it.", calls=(call,)))
    await holder.step(holder.batch())
    await opened.loop(fence, Agent("", [Send()], scopes), InstantModel(0)).run()
    return fence.run_id


async def suspended_beside_active(server: Server) -> None:
    """Measure the whole engine at 32 runs beside 100,000 suspended ones, against none: nine interleaved pairs."""
    crowd, clients, runs = server.n(100_000, least=1000), 32, 128
    pairs = 9 if server.scale >= 0.5 else 3
    async with server.database() as empty, server.database() as full:
        sides: dict[int, tuple[Subject, Agent, Counted]] = {}
        for size, dsn in ((0, empty), (crowd, full)):
            opened = await subject(dsn)
            if size:
                await copies(dsn, await a_suspended_run(opened), size, "many")
            await vacuum(dsn)
            model = Counted(STEPS)
            sides[size] = opened, Agent("", [Look()], scopes, model=model), model
        rates: dict[int, list[float]] = {0: [], crowd: []}
        for pair in range(-1, pairs):
            for size in (0, crowd) if pair % 2 else (crowd, 0):
                opened, agent, model = sides[size]
                for _ in range(runs):
                    await opened.start(claimed=False)
                model.lat.clear()
                async with Meter(server) as meter:
                    await drained(opened, agent, model, clients, runs)
                if pair >= 0:
                    rates[size].append(runs * STEPS / meter.seconds)
                    meter.emit(
                        "beside_suspended", runs * STEPS, model.lat, concurrency=clients, suspended=size, pair=pair
                    )
        ratios = [with_crowd / alone for alone, with_crowd in zip(rates[0], rates[crowd], strict=True)]
        server.emit(
            {
                "peer": "atlas",
                "bench": "beside_suspended_ratio",
                "suspended": crowd,
                "pairs": pairs,
                "ratio_median": round(statistics.median(ratios), 3),
                "ratio_min": round(min(ratios), 3),
                "ratio_max": round(max(ratios), 3),
            }
        )
        for opened, _, _ in sides.values():
            await opened.close()


class Judge:
    """A heartbeat that may judge: this process has had the database for long enough."""

    may_judge = may_judge_leases = True
    since = datetime.max.replace(tzinfo=UTC)


async def orphans(server: Server) -> None:
    """Measure how long the reaper takes for 1,000 and 10,000 runs of dead processes."""
    for count in (server.n(1000, least=100), server.n(10_000, least=1000)):
        async with server.database() as dsn:
            opened = await subject(dsn)
            fence = await opened.claimed()
            dead = [str(uuid4()) for _ in range(10)]
            for worker in dead:
                await opened.upkeep.register(worker, "gone", 1, "worker", 0, holds_lock=False)
            await opened.pool.execute("update workers set beat_at = now() - interval '1 hour' where host = 'gone'")
            listed = ",".join(f"'{worker}'" for worker in dead)
            claim = f"claim_token = gen_random_uuid(), claimed_by = (array[{listed}])[1 + abs(hashtext(id)) % 10]::uuid"
            await copies(dsn, fence.run_id, count, "lost", claim)
            await vacuum(dsn)
            reaper: Any = ReapOrphans(opened.upkeep, Judge(), 90.0)  # type: ignore[arg-type]
            async with Meter(server) as meter:
                report = await reaper.run_once()
            assert len(report.reaped) == count, len(report.reaped)
            meter.emit("orphans", count, runs=count, note="dead processes' runs handed back")
            await opened.close()


async def expiries(server: Server) -> None:
    """Measure one sweep over 2,000 suspensions that are due."""
    count = server.n(2000, least=100)
    async with server.database() as dsn:
        opened = await subject(dsn)
        await copies(dsn, await a_suspended_run(opened), count, "due")
        await opened.pool.execute(
            "update suspensions set opened_at = opened_at - interval '31 minutes',"
            " expires_at = expires_at - interval '31 minutes' where run_id like 'due%'"
        )
        await vacuum(dsn)
        async with Meter(server) as meter:
            expired = await ExpireSuspensions(opened.upkeep).run_once()
        assert expired == count, expired
        meter.emit("expiries", count, note="due at once, one sweep")
        await opened.close()
