"""The PostgreSQL that is measured, and what a measurement cost it: one JSON line each.

Decides: how a measurement is counted (WAL from the insert position, commits and full-page images from pg_walinspect,
statements from pg_stat_statements) and what its line is called, the same as the scripts of the peers. Does not: judge.
The failure it can cause: anything else that works on the server meanwhile is counted too; so it is a server of its own.
"""

import json
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, Self, TypeAlias
from urllib.parse import urlsplit, urlunsplit

import asyncpg
import psutil

from bot import garbage
from storage.embedded import start_embedded
from storage.migrate import migrate

Connection: TypeAlias = "asyncpg.Connection[asyncpg.Record]"

# As the peers were measured: durable commits, and no checkpoint inside a measurement.
SETTINGS = {
    "fsync": "on",
    "synchronous_commit": "on",
    "checkpoint_timeout": "1h",
    "max_wal_size": "12GB",
    "max_connections": "200",
    "shared_preload_libraries": "pg_stat_statements",
    "pg_stat_statements.track": "none",
}
_numbers = count(1)


@dataclass
class Server:
    """The server and where lines go. *scale*: of the numbers of samples; 1 is a full pass."""

    dsn: str
    scale: float
    settings: dict[str, str]
    out: Callable[[str], object]
    round: int = 0

    def n(self, samples: int, least: int = 1) -> int:
        """Return how many samples a pass of this scale takes."""
        return max(least, int(samples * self.scale))

    @asynccontextmanager
    async def database(self, *, counted: bool = False, migrated: bool = True) -> AsyncIterator[str]:
        """Lend a database of its own. *counted*: its statements are counted, which costs some speed."""
        name = f"bench_{next(_numbers)}"
        admin = await asyncpg.connect(self.dsn)
        try:
            await admin.execute(f'drop database if exists "{name}" with (force)')
            await admin.execute(f'create database "{name}"')
            if counted:
                await admin.execute(f"alter database \"{name}\" set pg_stat_statements.track = 'top'")
            dsn = with_database(self.dsn, name)
            if migrated:
                await migrate(dsn)
            yield dsn
            # So that autovacuum has nothing left to do while the next one is measured.
            await admin.execute(f'drop database "{name}" with (force)')
        finally:
            await admin.close()

    def emit(self, line: dict[str, Any]) -> None:
        """Hand a line out, with the number of its round and how busy the machine was."""
        self.out(json.dumps({"round": self.round, **line, "load": round(os.getloadavg()[0], 1)}))


@asynccontextmanager
async def started(scale: float, given: str | None, out: Callable[[str], object]) -> AsyncIterator[Server]:
    """Lend the server at *given*, whose role may create databases; else an embedded one of its own."""
    garbage.settle()  # as a served process does, for the bare loop too
    if given is not None:
        await _extend(given)
        yield Server(given, scale, await _settings(given), out)
        return
    # Directly under /tmp and passable, so that the server's own user reaches it when root measures.
    directory = Path(tempfile.mkdtemp(prefix="atlas-bench-", dir="/tmp"))
    directory.chmod(0o711)
    embedded = await start_embedded(directory, settings=SETTINGS)
    try:
        await _extend(embedded.dsn)
        yield Server(embedded.dsn, scale, await _settings(embedded.dsn), out)
    finally:
        await embedded.stop()
        shutil.rmtree(directory)


async def _extend(dsn: str) -> None:
    """Add what counts commits and statements, where the role may and the server has it."""
    admin = await asyncpg.connect(dsn)
    try:
        for extension in ("pg_walinspect", "pg_stat_statements"):
            with suppress(asyncpg.PostgresError):
                await admin.execute(f"create extension if not exists {extension}")
    finally:
        await admin.close()


async def _settings(dsn: str) -> dict[str, str]:
    admin = await asyncpg.connect(dsn)
    try:
        names = ["server_version", "fsync", "synchronous_commit", "wal_sync_method", "full_page_writes"]
        return {name: str(await admin.fetchval("select current_setting($1)", name)) for name in names}
    finally:
        await admin.close()


def with_database(dsn: str, name: str) -> str:
    """Return the same DSN with another database."""
    return urlunsplit(urlsplit(dsn)._replace(path=f"/{name}"))


class Meter:
    """``async with Meter(server) as m: …; m.emit(bench, steps, …)``: what happened on the server meanwhile.

    *counted*: a database made with ``counted=True`` is at work, so statements are reported.
    """

    def __init__(self, server: Server, *, counted: bool = False) -> None:
        self._server = server
        self._counted = counted
        self._admin: Connection | None = None
        self.seconds = 0.0
        self._wal = 0
        self.client_cpu = 0.0
        self.server_cpu = 0.0
        self._postmaster: psutil.Process | None = None
        self._commits: int | None = None
        self._images: int | None = None
        self._statements: int | None = None

    async def __aenter__(self) -> Self:
        """Begin."""
        self._admin = await asyncpg.connect(self._server.dsn)
        if self._counted:
            await self._admin.execute("select pg_stat_statements_reset()")
        self._from = await self._position()
        self._postmaster = await self._find_postmaster()
        self._cpu = (time.process_time(), self._server_cpu())
        self._begun = time.perf_counter()
        return self

    async def _find_postmaster(self) -> psutil.Process | None:
        assert self._admin is not None
        try:
            return psutil.Process(await self._admin.fetchval("select pg_backend_pid()")).parent()
        except psutil.Error:
            return None  # a server on another host

    def _server_cpu(self) -> float:
        """Return the processor seconds that the server's processes have used so far."""
        total = 0.0
        for process in self._postmaster.children() if self._postmaster else ():
            with suppress(psutil.Error):
                used = process.cpu_times()
                total += used.user + used.system
        return total

    async def _position(self) -> str:
        assert self._admin is not None
        return str(await self._admin.fetchval("select pg_current_wal_insert_lsn()::text"))

    async def __aexit__(self, kind: object, *_: object) -> None:
        """End: read what it cost."""
        self.seconds = time.perf_counter() - self._begun
        client, server = self._cpu
        self.client_cpu, self.server_cpu = time.process_time() - client, self._server_cpu() - server
        admin = self._admin
        assert admin is not None
        until = await self._position()
        span = (self._from, until)
        self._wal = int(await admin.fetchval("select pg_wal_lsn_diff($2::text::pg_lsn, $1::text::pg_lsn)", *span))
        if self._counted:
            self._statements = await admin.fetchval(
                "select coalesce(sum(calls), 0)::bigint from pg_stat_statements s join pg_database d on d.oid = s.dbid"
                " where d.datname <> current_database()"
            )
        if kind is None:
            await admin.execute("select pg_current_xact_id()")  # a commit: flushes up to *until*
            with suppress(asyncpg.PostgresError):  # pg_walinspect is missing there: the line says null
                row = await admin.fetchrow(
                    "select coalesce(sum(count) filter"
                    " (where \"resource_manager/record_type\" = 'Transaction/COMMIT'), 0)::bigint as commits,"
                    " coalesce(sum(fpi_size), 0)::bigint as images"
                    " from pg_get_wal_stats($1::text::pg_lsn, $2::text::pg_lsn, true)",
                    *span,
                )
                assert row is not None
                self._commits, self._images = row["commits"], row["images"]
        await admin.close()

    def emit(self, bench: str, steps: int, lat: Sequence[float] = (), *, peer: str = "atlas", **more: Any) -> None:
        """Print the line. *lat*: seconds of each step."""
        line = {
            "peer": peer,
            "bench": bench,
            **more,
            "steps": steps,
            "seconds": round(self.seconds, 3),
            "per_s": round(steps / self.seconds, 1),
            "ms_per_step": round(1000 * self.seconds / steps, 3),
            "wal_bytes_per_step": round(self._wal / steps),
            "fpi_bytes_per_step": None if self._images is None else round(self._images / steps),
            "commits_per_step": None if self._commits is None else round(self._commits / steps, 2),
        }
        line["client_cpu_us_per_step"] = round(1e6 * self.client_cpu / steps, 1)
        if self._postmaster is not None:
            line["server_cpu_us_per_step"] = round(1e6 * self.server_cpu / steps, 1)
        if self._statements is not None:
            line["statements_per_step"] = round(self._statements / steps, 2)
        if lat:
            line |= {"p50_ms": round(1000 * statistics.median(lat), 2), "p95_ms": round(1000 * pct(lat, 0.95), 2)}
        self._server.emit(line)


def counting(counted: bool) -> dict[str, Any]:
    """Return what marks the line of a measurement whose statements were counted, which made it slower."""
    return {"counted": True} if counted else {}


def pct(values: Sequence[float], share: float) -> float:
    """Return the value below which *share* of *values* lie."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
