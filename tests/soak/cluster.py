"""A PostgreSQL that a test may stop, crash, restart and fail over, and a wire before it that can be cut.

Decides: nothing. The programs are those of the embedded server; the cluster is one of the test's own, over TCP on
loopback. The failure it can cause: a server left behind, so ``running`` ends it whatever happens.
"""

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import asyncpg

from storage.embedded import _binaries, _server_owner

READY_S = 60.0
POLL_S = 0.05


def kept_port() -> socket.socket:
    """Return a socket that keeps a port, on which nothing answers, until it is closed.

    Whoever lets the system choose a port, and whoever connects to somewhere, is given another one; whoever names this
    one, and reuses addresses as servers do, may listen on it meanwhile. Source: Linux, inet_csk_get_port.
    """
    kept = socket.socket()
    kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    kept.bind(("127.0.0.1", 0))
    return kept


class Cluster:
    """One PostgreSQL. *port*: stays the same over restarts."""

    def __init__(self, directory: Path, settings: Mapping[str, str]) -> None:
        self.directory = directory
        self.home = directory / "pgdata"
        self.settings = dict(settings)
        self._kept = kept_port()
        self.port = int(self._kept.getsockname()[1])
        self._owner = _server_owner(directory)
        self._programs = _binaries(directory, self._owner)
        self._process: subprocess.Popen[bytes] | None = None

    def dsn(self, database: str = "postgres") -> str:
        """Return the way to one of its databases."""
        return f"postgresql://atlas@127.0.0.1:{self.port}/{database}"

    def create(self) -> None:
        """Make an empty cluster that trusts this machine."""
        self._run(
            "initdb", f"--pgdata={self.home}", "--username=atlas", "--auth=trust", "--encoding=UTF8", "--no-locale"
        )

    def follow(self, primary: "Cluster", name: str) -> None:
        """Make this one a standby of *primary*, which knows it as *name*."""
        whence = (f"--dbname={primary.dsn()}", "--wal-method=stream", "--checkpoint=fast")
        self._run("pg_basebackup", f"--pgdata={self.home}", "-R", *whence)
        to = f"host=127.0.0.1 port={primary.port} user=atlas application_name={name}"
        self.settings["primary_conninfo"] = to

    def _run(self, program: str, *arguments: str) -> None:
        ended = self._owner.run([str(self._programs / program), *arguments], self.directory)
        assert ended.returncode == 0, ended.stderr

    async def start(self) -> None:
        """Start it and wait until it takes connections."""
        command = [str(self._programs / "postgres"), "-D", str(self.home)]
        fixed = {"listen_addresses": "127.0.0.1", "port": str(self.port), "unix_socket_directories": ""}
        for name, value in {**self.settings, **fixed}.items():
            command += ["-c", f"{name}={value}"]
        with (self.directory / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                user=self._owner.uid if self._owner.switch else None,
                group=self._owner.gid if self._owner.switch else None,
                extra_groups=[] if self._owner.switch else None,
                umask=0o077,
            )
        async with asyncio.timeout(READY_S):
            while not await self.answers():
                assert self._process.poll() is None, (self.directory / "server.log").read_text()[-3000:]
                await asyncio.sleep(POLL_S)

    async def answers(self) -> bool:
        """Say whether it takes connections."""
        try:
            opened = await asyncpg.connect(self.dsn())
        except (OSError, asyncpg.PostgresError):
            return False
        await opened.close()
        return True

    async def stop(self, how: str = "fast") -> None:
        """Stop it: "fast" (in order), or "immediate" (as a crash would)."""
        if self._process is None or self._process.poll() is not None:
            return
        self._process.send_signal(signal.SIGQUIT if how == "immediate" else signal.SIGINT)
        await asyncio.to_thread(self._process.wait, READY_S)

    async def end(self) -> None:
        """Stop it for good."""
        await self.stop("immediate")
        self._kept.close()

    async def execute(self, statement: str, database: str = "postgres") -> None:
        """Run a statement as its administrator."""
        opened = await asyncpg.connect(self.dsn(database))
        try:
            await opened.execute(statement)
        finally:
            await opened.close()

    async def value(self, query: str, database: str = "postgres") -> object:
        """Return one value."""
        opened = await asyncpg.connect(self.dsn(database))
        try:
            return await opened.fetchval(query)
        finally:
            await opened.close()


@asynccontextmanager
async def running(**settings: str) -> AsyncIterator[Cluster]:
    """Lend a server with *settings* for as long as the block lasts."""
    async with _directory() as directory:
        cluster = Cluster(directory, settings)
        try:
            cluster.create()
            await cluster.start()
            yield cluster
        finally:
            await cluster.end()


@asynccontextmanager
async def standby_of(primary: Cluster, name: str) -> AsyncIterator[Cluster]:
    """Lend a standby that follows *primary*."""
    async with _directory() as directory:
        cluster = Cluster(directory, {"fsync": "off"})
        try:
            cluster.follow(primary, name)
            await cluster.start()
            yield cluster
        finally:
            await cluster.end()


@asynccontextmanager
async def _directory() -> AsyncIterator[Path]:
    directory = Path(tempfile.mkdtemp(prefix="atlas-cluster-", dir="/tmp"))
    directory.chmod(0o711)
    owner = _server_owner(directory)
    if owner.switch:
        os.chown(directory, owner.uid, owner.gid)
    try:
        yield directory
    finally:
        shutil.rmtree(directory)


class Wire:
    """A TCP proxy on loopback. *to*: where it leads now (a failover moves it)."""

    def __init__(self, to: int) -> None:
        self.to = to
        self.port = 0
        self._server: asyncio.Server | None = None
        self._ends: set[asyncio.StreamWriter] = set()
        self._pumps: set[asyncio.Task[None]] = set()
        self._opening: set[asyncio.Task[Any]] = set()

    async def start(self) -> None:
        """Listen."""
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Cut everything and stop listening."""
        assert self._server is not None
        self._server.close()
        while self._opening or self._pumps:
            self.cut()
            await asyncio.wait(self._opening | self._pumps, timeout=POLL_S)

    def cut(self) -> int:
        """Abort every connection, as a broken network does; return how many."""
        ends = list(self._ends)
        for end in ends:
            end.transport.abort()
        return len(ends) // 2

    def leading(self, dsn: str) -> str:
        """Return *dsn* by way of this wire."""
        parts = urlsplit(dsn)
        return urlunsplit(parts._replace(netloc=f"{parts.username}@127.0.0.1:{self.port}"))

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)
        try:
            onward_reader, onward = await asyncio.open_connection("127.0.0.1", self.to)
        except OSError:
            writer.transport.abort()
            return
        self._ends |= {writer, onward}
        for source, sink in ((reader, onward), (onward_reader, writer)):
            pump = asyncio.get_running_loop().create_task(self._pump(source, sink))
            self._pumps.add(pump)
            pump.add_done_callback(self._pumps.discard)

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        try:
            while chunk := await source.read(65536):
                sink.write(chunk)
                await sink.drain()
        except OSError:
            sink.transport.abort()  # one end broke; so does the other
        finally:
            with suppress(OSError):
                sink.close()
            self._ends.discard(sink)
