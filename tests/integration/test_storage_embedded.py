"""The embedded PostgreSQL: started, shared, killed and started again, as root and as an ordinary user."""

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path

import asyncpg
import psutil
import pytest

from storage import embedded
from storage.embedded import EmbeddedPostgres, EmbeddedPostgresFailed, start_embedded

REPOSITORY = Path(__file__).parents[2]

HOLD = """
import asyncio, sys
from pathlib import Path
from storage.embedded import start_embedded

async def main():
    server = await start_embedded(Path(sys.argv[1]))
    print(server.dsn, flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await server.stop()

asyncio.run(main())
"""


@pytest.fixture
def directory() -> Iterator[Path]:
    """A directory that the server's user can reach, gone afterwards with whatever it links to."""
    place = Path(tempfile.mkdtemp(prefix="atlas-embedded-", dir="/tmp"))
    place.chmod(0o711)
    yield place
    home = (place / "postgres").resolve()
    pid = server_pid(place)
    if pid is not None:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGQUIT)
    shutil.rmtree(home, ignore_errors=True)
    shutil.rmtree(place)


@pytest.fixture
async def server(directory: Path) -> AsyncIterator[EmbeddedPostgres]:
    held = await start_embedded(directory)
    yield held
    await held.stop()


def server_pid(directory: Path) -> int | None:
    with suppress(OSError):
        return int((directory / "postgres/pgdata/postmaster.pid").read_text().split()[0])
    return None


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


async def until_gone(pid: int) -> None:
    async with asyncio.timeout(180):
        while alive(pid):
            await asyncio.sleep(0.02)


def holder(directory: Path, *prefix: str, python: str = sys.executable) -> "subprocess.Popen[str]":
    """Another process that holds the server until its input ends; its first line is the DSN."""
    return subprocess.Popen(
        [*prefix, python, "-c", HOLD, str(directory)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(REPOSITORY), *filter(None, sys.path)])},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


async def first_line(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    line = await asyncio.to_thread(process.stdout.readline)
    if not line:
        raise AssertionError(process.communicate()[1])
    return line.strip()


async def query(dsn: str, statement: str) -> object:
    connection = await asyncpg.connect(dsn)
    try:
        return await connection.fetchval(statement)
    finally:
        await connection.close()


async def test_data_written_before_a_stop_is_there_after_the_next_start(directory: Path) -> None:
    first = await start_embedded(directory)
    await query(first.dsn, "create table kept as select 42 as answer")
    pid = server_pid(directory)
    assert pid is not None
    await first.stop()
    assert not alive(pid), "stop() returned while the server was running"
    second = await start_embedded(directory)
    try:
        assert await query(second.dsn, "select answer from kept") == 42
        assert await query(second.dsn, "show fsync") == "on"
        assert await query(second.dsn, "show listen_addresses") == ""
    finally:
        await second.stop()


async def test_the_server_is_never_root_and_its_directory_is_closed_to_others(
    server: EmbeddedPostgres, directory: Path
) -> None:
    pid = server_pid(directory)
    assert pid is not None
    assert Path(f"/proc/{pid}").stat().st_uid != 0
    assert (directory / "postgres").stat().st_mode & 0o077 == 0


async def test_the_server_runs_for_as_long_as_one_process_is_attached(directory: Path) -> None:
    first = await start_embedded(directory)
    pid = server_pid(directory)
    assert pid is not None
    second = holder(directory)
    try:
        assert await first_line(second) == first.dsn
        await first.stop()
        await first.stop()
        assert alive(pid)
        assert await query(first.dsn, "select 1") == 1
    finally:
        second.communicate("", timeout=180)
    assert second.returncode == 0
    assert not alive(pid)


async def test_a_killed_owner_leaves_no_process_behind(directory: Path) -> None:
    owner = holder(directory)
    await first_line(owner)
    pid = server_pid(directory)
    assert pid is not None
    owner.kill()
    owner.communicate()
    await until_gone(pid)


async def test_an_owner_killed_with_keeper_and_server_loses_no_committed_row(directory: Path) -> None:
    owner = holder(directory)
    dsn = await first_line(owner)
    await query(dsn, "create table kept as select 42 as answer")
    pid = server_pid(directory)
    assert pid is not None
    keeper = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    for victim in (keeper, pid, owner.pid):
        os.kill(victim, signal.SIGKILL)
    owner.communicate()
    await until_gone(pid)
    await until_gone(keeper)
    assert (directory / "postgres/pgdata/postmaster.pid").exists(), "the stale file is what this test is about"
    again = await start_embedded(directory)
    try:
        assert await query(again.dsn, "select answer from kept") == 42
    finally:
        await again.stop()


@pytest.mark.skipif(not Path("/proc/sysvipc/shm").exists(), reason="this system does not show its shared memory")
async def test_a_start_waits_for_what_is_left_of_a_server_that_was_killed(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a busy machine the children of a killed server live on for a moment; PostgreSQL refuses to start meanwhile."""
    owner = holder(directory)
    await first_line(owner)
    pid = server_pid(directory)
    assert pid is not None
    keeper = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    (slow,) = [child for child in psutil.Process(pid).children() if "checkpointer" in " ".join(child.cmdline())]
    slow.suspend()
    for victim in (keeper, pid, owner.pid):
        os.kill(victim, signal.SIGKILL)
    owner.communicate()
    await until_gone(pid)
    await until_gone(keeper)
    waited = 0
    used = embedded._memory_used

    def looked_at(cluster: Path) -> bool:
        nonlocal waited
        if used(cluster):
            waited += 1
            slow.resume()
            return True
        return False

    monkeypatch.setattr(embedded, "_memory_used", looked_at)
    try:
        again = await start_embedded(directory)
        await again.stop()
    finally:
        with suppress(psutil.NoSuchProcess):
            slow.resume()
    assert waited > 0


async def test_a_server_whose_keeper_was_killed_is_kept_again_by_the_next_start(directory: Path) -> None:
    owner = holder(directory)
    await first_line(owner)
    orphan = server_pid(directory)
    assert orphan is not None
    keeper = int(Path(f"/proc/{orphan}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(keeper, signal.SIGKILL)
    owner.kill()
    owner.communicate()
    await until_gone(keeper)
    assert alive(orphan)
    again = await start_embedded(directory)
    pid = server_pid(directory)
    assert pid is not None
    assert pid != orphan
    assert not alive(orphan)
    await again.stop()
    assert not alive(pid)


async def test_a_stale_file_that_names_a_living_stranger_does_not_block_the_start(directory: Path) -> None:
    first = await start_embedded(directory)
    pid_file = directory / "postgres/pgdata/postmaster.pid"
    stale = pid_file.read_text().splitlines()
    await first.stop()
    owner = (directory / "postgres/pgdata").stat()
    user = owner.st_uid if os.geteuid() == 0 else None
    stranger = subprocess.Popen(["sleep", "600"], user=user)  # the server's own user: PostgreSQL disregards others
    try:
        pid_file.write_text("\n".join([str(stranger.pid), *stale[1:]]) + "\n")
        os.chown(pid_file, owner.st_uid, owner.st_gid)
        second = await start_embedded(directory)
        await second.stop()
    finally:
        stranger.kill()
        stranger.wait()


async def test_processes_that_start_at_the_same_moment_share_one_server(directory: Path) -> None:
    starters = [holder(directory) for _ in range(4)]
    try:
        assert len({await first_line(starter) for starter in starters}) == 1
        pid = server_pid(directory)
        assert pid is not None
    finally:
        for starter in starters:
            starter.communicate("", timeout=180)
    assert [starter.returncode for starter in starters] == [0, 0, 0, 0]
    assert not alive(pid)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
async def test_an_ordinary_user_starts_and_stops_it(directory: Path) -> None:
    python = interpreter_for_everyone()
    os.chown(directory, 65534, 65534)
    ordinary = holder(directory, "setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", python=python)
    try:
        assert await query(await first_line(ordinary), "select current_user") == "atlas"
        pid = server_pid(directory)
        assert pid is not None
        assert Path(f"/proc/{pid}").stat().st_uid == 65534
    finally:
        ordinary.communicate("", timeout=180)
    assert ordinary.returncode == 0
    assert not alive(pid)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root's directories are closed to the server's user")
async def test_root_keeps_the_cluster_elsewhere_when_the_directory_is_closed(directory: Path) -> None:
    directory.chmod(0o700)
    server = await start_embedded(directory)
    try:
        assert (directory / "postgres").is_symlink()
        assert directory.stat().st_mode & 0o777 == 0o700, "nobody asked us to open it"
        await query(server.dsn, "create table kept as select 42 as answer")
    finally:
        await server.stop()
    again = await start_embedded(directory)
    try:
        assert await query(again.dsn, "select answer from kept") == 42
    finally:
        await again.stop()


async def test_a_path_too_long_for_a_socket_still_works(directory: Path) -> None:
    deep = directory / ("long" * 20) / ("longer" * 12)
    server = await start_embedded(deep)
    pid = server_pid(deep)
    assert pid is not None
    sockets = Path((deep / "postgres/pgdata/postmaster.pid").read_text().splitlines()[4])
    assert await query(server.dsn, "select 1") == 1
    await server.stop()
    assert not alive(pid)
    assert not sockets.exists()


async def test_data_of_another_major_version_is_refused_with_what_to_do(directory: Path) -> None:
    first = await start_embedded(directory)
    await first.stop()
    (directory / "postgres/pgdata/PG_VERSION").write_text("12\n")
    with pytest.raises(EmbeddedPostgresFailed, match=r"made by PostgreSQL 12.*pg_upgrade"):
        await start_embedded(directory)


async def test_a_server_that_cannot_start_says_why_and_leaves_nothing_running(directory: Path) -> None:
    with pytest.raises(EmbeddedPostgresFailed, match="shared_buffers"):
        await start_embedded(directory, settings={"shared_buffers": "not a size"})
    assert server_pid(directory) is None
    server = await start_embedded(directory)
    await server.stop()


async def test_a_directory_that_cannot_be_made_is_one_clear_message(directory: Path) -> None:
    (directory / "file").write_text("in the way")
    with pytest.raises(EmbeddedPostgresFailed, match="ATLAS_DATA_DIR"):
        await start_embedded(directory / "file" / "data")


def interpreter_for_everyone() -> str:
    """A Python of our version that an ordinary user may run, or a skip."""
    for python in (sys.executable, shutil.which("python3", path=os.defpath)):
        if python is None:
            continue
        probe = [python, "-c", "import sys; print(*sys.version_info[:2])"]
        with suppress(OSError):
            tried = subprocess.run(probe, user=65534, group=65534, cwd="/", capture_output=True, text=True, check=False)
            if tried.stdout.split() == [str(part) for part in sys.version_info[:2]]:
                return python
    pytest.skip("no Python of this version that an ordinary user may run")
