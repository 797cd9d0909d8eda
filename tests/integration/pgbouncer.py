"""PgBouncer in transaction mode between the tests and their server: the hardest pooler that Atlas promises to bear.

Decides: the settings that show most. Each transaction takes the server connection that was idle longest, so that two
transactions of one client hardly ever meet in one session, and nothing resets a session in between. It listens on a
Unix-domain socket of its own directory. The failure it can cause: none but being missing (Debian: pgbouncer).
"""

import asyncio
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import parse_qs, quote, unquote, urlsplit, urlunsplit

import asyncpg

_PORT = 6432  # names the socket file only
_READY_S = 90.0
MISSING = "PgBouncer is not installed (Debian: pgbouncer)"


def found() -> str | None:
    """Return the program, or None."""
    return shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin:/usr/local/sbin")


def through(pooler: Path, dsn: str) -> str:
    """Return a DSN of the same database as *dsn*, by way of the pooler that listens in *pooler*."""
    return f"postgresql://atlas@/{urlsplit(dsn).path.removeprefix('/')}?host={quote(str(pooler))}&port={_PORT}"


async def spread(dsn: str, sessions: int = 3) -> None:
    """Let the pooler have several sessions of this database, so that the next transactions take turns in them."""
    clients = [await asyncpg.connect(dsn, statement_cache_size=0) for _ in range(sessions)]
    try:
        for client in clients:
            await client.execute("begin")
        for client in clients:
            await client.execute("rollback")
    finally:
        for client in clients:
            await client.close()


async def new_sessions(dsn: str) -> None:
    """Let whatever comes next through the pooler of *dsn* meet sessions opened after now (none of its own: no pooler).

    For what a database sets at the start of its sessions.
    """
    parts = urlsplit(dsn)
    if parse_qs(parts.query).get("port") != [str(_PORT)]:
        return
    console = await asyncpg.connect(urlunsplit(parts._replace(path="/pgbouncer")), statement_cache_size=0)
    try:
        name = parts.path.removeprefix("/")
        await console.execute(f"reconnect {name}")
        await console.execute(f"wait_close {name}")
    finally:
        console.terminate()  # the console knows no transactions to roll back, and no more is to be said
    await spread(dsn)


@asynccontextmanager
async def pgbouncer(dsn: str, *, connections: int = 8) -> AsyncIterator[Path]:
    """Run one in front of the server of *dsn* for as long as the block lasts; yield where it listens.

    *connections*: of the server, for each database. Clients beyond that wait for a transaction to end.
    """
    program = found()
    assert program is not None, MISSING
    directory = Path(tempfile.mkdtemp(prefix="atlas-pooler-", dir="/tmp"))
    settings = directory / "pgbouncer.ini"
    settings.write_text(_settings(dsn, directory, connections))
    as_user: int | None = None
    if os.geteuid() == 0:  # it refuses to be root, as PostgreSQL does; the embedded server's user can reach its socket
        nobody = pwd.getpwnam("nobody")
        as_user = nobody.pw_uid
        for place in (directory, settings):
            os.chown(place, nobody.pw_uid, nobody.pw_gid)
    output = (directory / "output").open("wb")
    process = subprocess.Popen(
        [program, "-q", str(settings)], user=as_user, stdin=subprocess.DEVNULL, stdout=output, stderr=output
    )
    try:
        await _ready(process, directory, through(directory, dsn))
        yield directory
    finally:
        process.kill()  # asked nicely it would wait for clients
        process.wait()
        output.close()
        shutil.rmtree(directory)


def _settings(dsn: str, directory: Path, connections: int) -> str:
    parts = urlsplit(dsn)
    query = parse_qs(parts.query)
    server = {
        "host": query.get("host", [parts.hostname or "127.0.0.1"])[0],
        "port": query.get("port", [str(parts.port or 5432)])[0],
        "user": unquote(parts.username or "postgres"),
        "password": unquote(parts.password or ""),
    }
    words = " ".join(f"{name}='{value}'" for name, value in server.items() if value)
    return f"""
[databases]
* = {words}

[pgbouncer]
listen_addr =
unix_socket_dir = {directory}
unix_socket_mode = 0777
listen_port = {_PORT}
auth_type = any
admin_users = atlas
pool_mode = transaction
server_round_robin = 1
server_reset_query_always = 0
min_pool_size = 3
default_pool_size = {connections}
max_client_conn = 1000
# A client that waits for a server that is gone learns so in this time, not in two minutes.
query_wait_timeout = 15
server_login_retry = 1
idle_transaction_timeout = 15
"""


async def _ready(process: "subprocess.Popen[bytes]", directory: Path, dsn: str) -> None:
    async with asyncio.timeout(_READY_S):
        while True:
            if process.poll() is not None:
                raise AssertionError(f"PgBouncer ended: {(directory / 'output').read_text(errors='replace')}")
            try:
                connection = await asyncpg.connect(dsn, statement_cache_size=0)
            except (OSError, asyncpg.PostgresError):
                await asyncio.sleep(0.02)
            else:
                await connection.close()
                return
