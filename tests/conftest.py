"""What every test shares: a real PostgreSQL, a database of its own cloned from a migrated template, and no network.

One server a session: DATABASE_URL when set (its role must be allowed to create databases), else an embedded one in a
temporary directory. `database` is a fresh, migrated database; a test that leaves a connection open in it fails.
With ATLAS_PG_POOLER=transaction in the environment, PgBouncer in transaction mode stands before every such database.
"""

import asyncio
import os
import shutil
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Generator, Iterator
from contextlib import suppress
from ipaddress import ip_address
from itertools import count
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import asyncpg
import psutil
import pytest
from hypothesis import HealthCheck, settings

from storage.embedded import start_embedded
from storage.lending import lending_of
from storage.migrate import migrate
from tests.integration.pgbouncer import MISSING, found, pgbouncer, spread, through

_LOCAL_NAMES = {None, "", "localhost", b"localhost"}
_GONE_WITHIN_S = 60.0
_numbers = count(1)
# Behind a transaction pooler no statement stays prepared: the next one may run in another session.
POOLED = os.environ.get("ATLAS_PG_POOLER") == "transaction"
STATEMENTS_KEPT = 0 if POOLED else 100
# What a process of Atlas is told of it.
POOLER = {"ATLAS_PG_POOLER": "transaction"} if POOLED else {}


# A busy machine is slow: no example fails for the time that it took.
settings.register_profile("atlas", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("atlas")


# ---- the world is out of reach -------------------------------------------------------------------------------------


def _is_local(host: object) -> bool:
    if host in _LOCAL_NAMES:
        return True
    try:
        return ip_address(host.decode() if isinstance(host, bytes) else str(host)).is_loopback
    except ValueError:
        return False


def _loopback_only(event: str, arguments: tuple[object, ...]) -> None:
    host: object = None
    if event in {"socket.connect", "socket.sendto"}:
        address = arguments[1]
        host = address[0] if isinstance(address, tuple) else None  # a str or bytes is a Unix-domain socket's path
    elif event in {"socket.getaddrinfo", "socket.gethostbyname"}:
        host = arguments[0]
    if not _is_local(host):
        pytest.fail(f"{event} to {host!r}: tests reach this machine only")


sys.addaudithook(_loopback_only)


# ---- PostgreSQL ----------------------------------------------------------------------------------------------------


def with_database(dsn: str, name: str) -> str:
    """Return the same DSN with another database."""
    parts = urlsplit(dsn)
    if not parts.scheme:
        raise ValueError("DATABASE_URL must be a postgresql:// URI for the tests")
    return urlunsplit(parts._replace(path=f"/{name}"))


async def _admin(dsn: str, *statements: str) -> None:
    connection = await asyncpg.connect(dsn)
    try:
        for statement in statements:
            await connection.execute(statement)
    finally:
        await connection.close()


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """DSN of the session's server, for making databases."""
    given = os.environ.get("DATABASE_URL")
    if given:
        yield given
        return
    # Directly under /tmp and passable, so that the server's own user reaches it when the tests run as root.
    directory = Path(tempfile.mkdtemp(prefix="atlas-tests-", dir="/tmp"))
    directory.chmod(0o711)
    # Tests kill processes, never the host, so they need no fsync; max_connections leaves room for real processes.
    server = asyncio.run(start_embedded(directory, settings={"fsync": "off", "max_connections": "300"}))
    try:
        yield server.dsn
    finally:
        asyncio.run(server.stop())
        shutil.rmtree(directory)


@pytest.fixture(scope="session")
def template(postgres: str) -> Iterator[str]:
    """Name of a database migrated once per session and used by nobody, to be cloned."""
    name = f"atlas_template_{os.getpid()}"
    asyncio.run(_admin(postgres, f'drop database if exists "{name}"', f'create database "{name}"'))
    asyncio.run(migrate(with_database(postgres, name)))
    yield name
    asyncio.run(_admin(postgres, f'drop database if exists "{name}"'))


@pytest.fixture(scope="session")
def pooler(postgres: str) -> Iterator[Path | None]:
    """Where the session's pooler listens; None: there is none."""
    if not POOLED:
        yield None
        return
    if found() is None:
        pytest.skip(MISSING)
    with asyncio.Runner() as runner:
        running = pgbouncer(postgres)
        yield runner.run(running.__aenter__())
        runner.run(running.__aexit__(None, None, None))


@pytest.fixture
async def database(postgres: str, template: str, pooler: Path | None) -> AsyncIterator[str]:
    """DSN of a migrated database of this test's own."""
    async for dsn in _own_database(postgres, f'template "{template}"'):
        yield await _pooled(dsn, pooler)


@pytest.fixture
async def empty_database(postgres: str, pooler: Path | None) -> AsyncIterator[str]:
    """DSN of a database of this test's own with nothing in it."""
    async for dsn in _own_database(postgres, "template template0"):
        yield await _pooled(dsn, pooler)


@pytest.fixture
def direct(postgres: str, database: str) -> str:
    """DSN of this test's own database past the pooler, if there is one: for sessions that LISTEN or hold a lock."""
    return with_database(postgres, urlsplit(database).path.removeprefix("/"))


async def _pooled(dsn: str, pooler: Path | None) -> str:
    if pooler is None:
        return dsn
    pooled = through(pooler, dsn)
    await spread(pooled)
    return pooled


async def _own_database(postgres: str, how: str) -> AsyncIterator[str]:
    name = f"atlas_test_{os.getpid()}_{next(_numbers)}"
    admin = await asyncpg.connect(postgres)
    try:
        # Copying files is the faster way for a small database; PostgreSQL 14 knows no other and no such word.
        strategy = "strategy file_copy" if admin.get_server_version().major > 14 else ""
        await admin.execute(f'create database "{name}" {how} {strategy}')
        yield with_database(postgres, name)
        left = await _connections_left(admin, name)
        await admin.execute(f'drop database "{name}" with (force)')
        if left:
            pytest.fail(f"connections left open: {left}")
    finally:
        await admin.close()


async def _connections_left(admin: "asyncpg.Connection[asyncpg.Record]", name: str) -> list[str]:
    """Return what is still connected once killed processes' connections had time to go."""
    left: list[str] = []
    if POOLED:
        return left  # the pooler keeps its own open, whoever comes and goes
    for _ in range(int(_GONE_WITHIN_S / 0.02)):
        rows = await admin.fetch(
            "select pid, application_name, state, query from pg_stat_activity where datname = $1 and backend_type = $2",
            name,
            "client backend",
        )
        left = [str(dict(row)) for row in rows]
        if not left:
            break
        await asyncio.sleep(0.02)
    return left


@pytest.fixture
async def pool(database: str) -> "AsyncIterator[asyncpg.Pool[asyncpg.Record]]":
    """A pool of connections to this test's own database."""
    async with asyncpg.create_pool(database, min_size=1, max_size=10, statement_cache_size=STATEMENTS_KEPT) as opened:
        yield opened
        await lending_of(opened).let_go()  # else closing the pool waits for what is kept in hand


@pytest.fixture
async def connection(database: str) -> "AsyncIterator[asyncpg.Connection[asyncpg.Record]]":
    """One connection to this test's own database."""
    opened = await asyncpg.connect(database, statement_cache_size=STATEMENTS_KEPT)
    try:
        yield opened
    finally:
        await opened.close()


# ---- behind a pooler -------------------------------------------------------------------------------------------------


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With a pooler, play what it can change: the tests that have a database, but those that need a session."""
    if not POOLED:
        return
    kept = [item for item in items if _plays_behind_a_pooler(item)]
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = kept


def _plays_behind_a_pooler(item: pytest.Item) -> bool:
    return "pooler" in getattr(item, "fixturenames", ()) and item.get_closest_marker("own_session") is None


# ---- nothing is skipped where everything is installed ---------------------------------------------------------------


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """With ATLAS_TESTS_MUST_RUN set (CI sets it), a skipped test is a failed one."""
    report = yield
    if report.skipped and not hasattr(report, "wasxfail") and os.environ.get("ATLAS_TESTS_MUST_RUN"):
        report.outcome = "failed"
        report.longrepr = f"skipped, but ATLAS_TESTS_MUST_RUN is set: {report.longrepr}"
    return report


# ---- nothing is left behind ----------------------------------------------------------------------------------------


@pytest.fixture(scope="session", autouse=True)
def _no_process_left() -> Iterator[None]:
    yield
    # Made first, so ended last: by now the session's PostgreSQL is gone too.
    deadline = time.monotonic() + _GONE_WITHIN_S
    while (left := _running()) and time.monotonic() < deadline:
        time.sleep(0.02)
    if left:
        pytest.fail(f"processes left running: {left}")


def _running() -> list[str]:
    """Return the command lines of our descendants; whoever ends while it is looked at is none."""
    lines = []
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if child.status() != psutil.STATUS_ZOMBIE:
                lines.append(" ".join(child.cmdline()))
    return lines
