"""The jitter of `tests/jitter`: it stops and continues what is of its run, whatever happens to it, and nothing else.

A run is a real one: its pytest plays a small test that starts processes, which write down when they are continued.
"""

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tests.jitter.stopper import look

ROOT = Path(__file__).parents[2]
PATIENCE_S = 120.0
CROWD = 12
STOPPER = str(ROOT / "tests/jitter/stopper.py")
# Ends by itself once there is a file `over`, so that no failure leaves it running.
NOTER = """
    import os, signal, sys, time
    from pathlib import Path

    def note(word):
        with open(sys.argv[1], "a") as notes:
            notes.write(f"{word}\\n")

    signal.signal(signal.SIGCONT, lambda *_: note("continued"))
    note(os.getpid())
    while not Path(sys.argv[1]).with_name("over").exists():
        time.sleep(0.02)
"""
PLAYED = """
    import asyncio, os, signal, socket, subprocess, sys, time
    from pathlib import Path

    import pytest

    PLACE = Path(__file__).parent
    NOTER = [sys.executable, str(PLACE / "noter.py")]

    def notes(name):
        file = PLACE / f"{name}.notes"
        return file.read_text().split() if file.exists() else []

    def until(condition):
        deadline = time.monotonic() + 120
        while not condition():
            assert time.monotonic() < deadline
            time.sleep(0.02)

    def start(name, **how):
        started = subprocess.Popen([*NOTER, str(PLACE / f"{name}.notes")], start_new_session=True, **how)
        until(lambda: notes(name))
        return started

    def test_stops():
        start("child")
        start("bare", env={})
        shell = subprocess.Popen(["sh", "-c", '"$@" &', "sh", *NOTER, str(PLACE / "daemon.notes")])
        assert shell.wait() == 0
        stopped_by_us = start("ours")
        os.kill(stopped_by_us.pid, signal.SIGSTOP)
        others = ("child", "bare", "daemon")
        until(lambda: all(notes(name).count("continued") > 2 for name in others))
        seen = Path(f"/proc/{stopped_by_us.pid}/stat").read_text().split()
        assert seen[2] == "T"
        os.kill(stopped_by_us.pid, signal.SIGCONT)
        until(lambda: "continued" in notes("ours"))

    def test_crowd():
        for number in range(CROWD):
            start(number)
        until((PLACE / "over").exists)

    def test_late():
        with pytest.raises(ImportError):
            import uvloop
        assert subprocess.run([sys.executable, "-c", "import uvloop"], capture_output=True).returncode == 1

        async def main():
            orders, heard, pairs = set(), [], [socket.socketpair() for _ in range(2)]
            for number, (reader, _) in enumerate(pairs):
                hear = lambda number=number, reader=reader: heard.append((number, reader.recv(1))[0])
                asyncio.get_running_loop().add_reader(reader, hear)
            for _ in range(500):
                heard.clear()
                for _, writer in pairs:
                    writer.send(b"x")
                while len(heard) < 2:
                    await asyncio.sleep(0)
                orders.add(tuple(heard))
                if len(orders) == 2:
                    break
            assert orders == {(0, 1), (1, 0)}
            for pair in pairs:
                asyncio.get_running_loop().remove_reader(pair[0])
                for end in pair:
                    end.close()

        asyncio.run(main())
"""


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


def pids(place: Path) -> list[int]:
    return [int(words[0]) for notes in place.glob("*.notes") if (words := notes.read_text().split())]


def standing(place: Path) -> list[int]:
    return [pid for pid in pids(place) if (seen := look(pid)) and seen.state == "T"]


def alive(pid: int) -> bool:
    return (seen := look(pid)) is not None and seen.state not in "ZX"


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """Where the played test lies; whatever it starts has ended at the end."""
    if any((Path(entry) / "chances.json").exists() for entry in sys.path):
        pytest.skip("what another jitter stops is not this one's")
    (tmp_path / "noter.py").write_text(textwrap.dedent(NOTER), "utf-8")
    (tmp_path / "test_played.py").write_text(f"CROWD = {CROWD}\n" + textwrap.dedent(PLAYED), "utf-8")
    yield tmp_path
    (tmp_path / "over").touch()
    left = standing(tmp_path)
    for pid in left:
        os.kill(pid, signal.SIGCONT)
    until(lambda: not any(map(alive, pids(tmp_path))))
    assert left == []


def begin(place: Path, test: str, *options: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, ROOT / "tests/jitter/run.py", *options, "-n0", "-q", f"{place / 'test_played.py'}::{test}"],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
        env={**os.environ, "TMPDIR": str(place)},  # what a killed run leaves behind goes with the test
    )  # fmt: skip


def test_only_what_is_of_the_run_is_stopped_and_what_a_test_stops_stays_stopped(place: Path) -> None:
    elsewhere = place / "elsewhere"
    elsewhere.mkdir()
    with subprocess.Popen([sys.executable, place / "noter.py", elsewhere / "bystander"]) as bystander:
        until((elsewhere / "bystander").exists)
        run = begin(place, "test_stops", "--stop", "0.1", "--late", "0")
        said, _ = run.communicate()
        changed = os.waitid(os.P_PID, bystander.pid, os.WSTOPPED | os.WCONTINUED | os.WNOHANG | os.WNOWAIT)
        (elsewhere / "over").touch()
    assert run.returncode == 0, said
    assert "all continued" in said
    assert changed is None
    assert (elsewhere / "bystander").read_text().split() == [str(bystander.pid)]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_run_that_is_told_to_end_continues_all(place: Path, number: signal.Signals) -> None:
    run = begin(place, "test_crowd", "--stop", "3")
    until(lambda: len(pids(place)) == CROWD and standing(place))
    run.send_signal(number)
    said, _ = run.communicate()
    assert run.returncode == 128 + number, said
    assert standing(place) == []
    assert all(map(alive, pids(place)))


@pytest.mark.parametrize("killed", ["run.py", "stopper.py"])
def test_when_one_of_its_two_processes_is_killed_the_other_continues_all(place: Path, killed: str) -> None:
    with begin(place, "test_crowd", "--stop", "3") as run:
        until(lambda: len(pids(place)) == CROWD and standing(place))
        (stopper,) = [each.pid for each in psutil.Process(run.pid).children() if STOPPER in each.cmdline()]
        os.kill(run.pid if killed == "run.py" else stopper, signal.SIGKILL)
        until(lambda: not alive(stopper))
        until(lambda: standing(place) == [])
        (place / "over").touch()
        assert run.stdout
        said = run.stdout.read()
    assert "1 passed" in said
    assert run.returncode == (-signal.SIGKILL if killed == "run.py" else 0)


def test_events_come_late_and_there_is_no_uvloop(place: Path) -> None:
    run = begin(place, "test_late", "--stop", "0", "--late", "0.5")
    said, _ = run.communicate()
    assert run.returncode == 0, said
