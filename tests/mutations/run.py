"""Break each safeguard in turn; the tests that guard it must notice.

Each ``tests/mutations/*.toml`` names one change: ``claim`` (what the safeguard promises), ``file``, ``old``, ``new``
(an exact text that stands there once) and ``tests`` (pytest node ids). A safeguard that stands at two places is broken
at both: ``[[also]]`` with ``file``, ``old``, ``new``. ``may_hang = true``: the broken code may wait for ever, so that
running out of time counts as noticed; without it, it proves nothing.

Each mutation is applied to a copy of the repository and its tests run there, two at a time in two copies. A copy has
an interpreter of its own that knows no other Atlas, so that the processes which tests start run the broken code too,
whatever their directory and environment. The failure it can cause: none to the repository; it is only read.

    make mutants                       all
    make mutants ARGS="fence digest"   only those whose name contains one of the words
    make mutants ARGS="--why fence"    and which test noticed each, with its first words

    make mutants ARGS=--lanes=1        one at a time

Exit code: 0 every mutation was noticed; 1 at least one survived; 2 something could not be judged (a text that does not
stand there any more, tests that fail without a mutation or cannot run).
"""

import argparse
import asyncio
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
import tomllib
import venv
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from queue import SimpleQueue

from storage.embedded import start_embedded

HERE = Path(__file__).parent
REPOSITORY = HERE.parent.parent
LEFT_OUT = shutil.ignore_patterns(".git", ".venv*", "node_modules", "__pycache__", ".*_cache", ".hypothesis", "screens")
LANES = 2
# Far beyond what any mutation's tests take on a slow machine.
TIMEOUT_S = 180.0
WIDTH = 80
PACKAGES = ("bot", "core", "jobs", "storage")


class CannotJudge(Exception):
    """Neither noticed nor survived: nothing is proved."""


@dataclass(frozen=True)
class Edit:
    """One text replaced. *old* stands in *file* exactly once."""

    file: str
    old: str
    new: str

    def applied(self, before: str) -> str:
        """Return the file's text with the safeguard broken. Raises: CannotJudge."""
        found = before.count(self.old)
        if found != 1:
            raise CannotJudge(f"its old text stands {found} times in {self.file}; it must stand once")
        return before.replace(self.old, self.new)


@dataclass(frozen=True)
class Mutation:
    """One safeguard broken."""

    name: str
    claim: str
    edits: tuple[Edit, ...]
    tests: tuple[str, ...]
    may_hang: bool

    @property
    def cost(self) -> int:
        """Say roughly how long its tests take, for the order: real processes, a database, nothing."""
        return sum({"acceptance": 100, "integration": 10}.get(test.split("/")[1], 1) for test in self.tests)

    def broken(self, root: Path) -> dict[Path, tuple[str, str]]:
        """Return what stands in each file of *root*, and what stands there once broken. Raises: CannotJudge."""
        files: dict[Path, tuple[str, str]] = {}
        for edit in self.edits:
            path = root / edit.file
            if not path.is_file():
                raise CannotJudge(f"there is no file {edit.file}")
            before, now = files.get(path) or (path.read_text("utf-8"),) * 2
            files[path] = before, edit.applied(now)
        return files


class Verdict(Enum):
    """What became of a mutation."""

    NOTICED = "noticed"
    SURVIVED = "SURVIVED"
    UNJUDGED = "UNJUDGED"


@dataclass(frozen=True)
class Judged:
    """A mutation's verdict. *words*: why it could not be judged, or what noticed it."""

    mutation: Mutation
    verdict: Verdict
    seconds: float
    words: str = ""


def mutations(words: Sequence[str] = ()) -> list[Mutation]:
    """Read the mutations whose name contains one of *words* (all, without words)."""
    return [read(path) for path in sorted(HERE.glob("*.toml")) if not words or any(word in path.stem for word in words)]


def read(path: Path) -> Mutation:
    """Read one mutation. Raises: CannotJudge for a file that is none."""
    fields = tomllib.loads(path.read_text("utf-8"))
    known = {"claim", "file", "old", "new", "tests", "also", "may_hang"}
    if set(fields) - known or not {"claim", "file", "old", "new", "tests"} <= set(fields):
        raise CannotJudge(f"{path.name} has the keys {sorted(fields)}; it may have {sorted(known)}")
    edits = [Edit(each["file"], each["old"], each["new"]) for each in (fields, *fields.get("also", ()))]
    return Mutation(
        path.stem, fields["claim"], tuple(edits), tuple(fields["tests"]), bool(fields.get("may_hang", False))
    )


class Lane:
    """A copy of the repository and an interpreter that knows this copy only."""

    def __init__(self, folder: Path, database: str) -> None:
        self.root = folder / "atlas"
        self.database = database
        self._running: subprocess.Popen[str] | None = None
        self._stopped = False
        shutil.copytree(REPOSITORY, self.root, ignore=LEFT_OUT)
        place = folder / "python"
        # Installed packages come from a line of a .pth file, whose own .pth files (the editable repository) do not
        # count; so the copy is the only Atlas here.
        venv.EnvBuilder(symlinks=True, with_pip=False).create(place)
        (packages,) = place.glob("lib/python*/site-packages")
        installed = [entry for entry in sys.path if entry.endswith(("site-packages", "dist-packages"))]
        (packages / "atlas_copy.pth").write_text("\n".join([str(self.root), *installed]) + "\n", "utf-8")
        self.python = str(place / "bin" / "python")
        self._prove()

    def _prove(self) -> None:
        """See that a process with no environment, in another directory, imports the copy."""
        probe = f"import {', '.join(PACKAGES)}; print(*({', '.join(f'{p}.__path__[0]' for p in PACKAGES)},), sep='\\n')"
        seen = subprocess.run(
            [self.python, "-c", probe], cwd="/", env={}, capture_output=True, text=True, check=True
        ).stdout.split()
        if seen != [str(self.root / package) for package in PACKAGES]:
            raise CannotJudge(f"child processes would import {seen}, not the copy {self.root}")

    def passes(self, tests: Sequence[str], timeout_s: float) -> tuple[bool, str]:
        """Run tests; return whether all passed, and the end of what was printed.

        Raises: CannotJudge when they could not run; TimeoutError.
        """
        slack = REPOSITORY.parent / "shared" / "slack"
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        # Broken code makes tests wait in vain: they give up sooner than where only the machine may be slow.
        environment |= {"PYTHONDONTWRITEBYTECODE": "1", "DATABASE_URL": self.database, "ATLAS_TESTS_PATIENCE_S": "45"}
        if slack.is_dir():
            environment.setdefault("ATLAS_SLACK_DATA", str(slack))
        command = [self.python, "-m", "pytest", "-q", "-x", "--no-header", "--tb=short", "-p", "no:cacheprovider"]
        with subprocess.Popen(
            [*command, *tests], cwd=self.root, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, start_new_session=True,
        ) as running:  # fmt: skip
            self._running = running
            try:
                if self._stopped:
                    raise CannotJudge("stopped")
                printed, _ = running.communicate(timeout=timeout_s)
            except subprocess.TimeoutExpired as error:
                raise TimeoutError(f"no end within {timeout_s:.0f} s") from error
            finally:
                _end(running)
        if running.returncode not in (0, 1):
            raise CannotJudge(f"pytest ended with {running.returncode}:\n{printed[-1500:]}")
        return running.returncode == 0, printed[-3000:]

    def stop(self) -> None:
        """Let what runs come to its end now, and nothing begin."""
        self._stopped = True
        if self._running is not None and self._running.poll() is None:
            self._running.send_signal(signal.SIGINT)

    def judge(self, mutation: Mutation) -> Judged:
        """Break, run, repair."""
        begun = time.monotonic()

        def judged(verdict: Verdict, words: str = "") -> Judged:
            return Judged(mutation, verdict, time.monotonic() - begun, words)

        try:
            files = mutation.broken(self.root)
        except CannotJudge as error:
            return judged(Verdict.UNJUDGED, str(error))
        try:
            for path, (_, now) in files.items():
                path.write_text(now, "utf-8")
            alive, printed = self.passes(mutation.tests, TIMEOUT_S)
        except TimeoutError as error:
            return judged(Verdict.NOTICED, str(error)) if mutation.may_hang else judged(Verdict.UNJUDGED, str(error))
        except CannotJudge as error:
            return judged(Verdict.UNJUDGED, str(error))
        finally:
            for path, (before, _) in files.items():
                path.write_text(before, "utf-8")
        return judged(Verdict.SURVIVED) if alive else judged(Verdict.NOTICED, _noticed_by(printed))


def _noticed_by(printed: str) -> str:
    """Return which test failed, and the first lines of why."""
    lines = printed.splitlines()
    failed = [line.partition("::")[2].partition(" - ")[0] for line in lines if line.startswith(("FAILED", "ERROR"))]
    why = [line[1:].strip() for line in lines if line.startswith("E ") and line[1:].strip()][:3]
    return "\n".join(["by " + ", ".join(failed), *why])


def _end(running: "subprocess.Popen[str]") -> None:
    """End what is still running: pytest itself first, so that its fixtures take their servers down."""
    if running.poll() is None:
        running.send_signal(signal.SIGINT)
        try:
            running.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(running.pid, signal.SIGKILL)


def _unmutated(lanes: Sequence[Lane], chosen: Sequence[Mutation]) -> str:
    """Run every named test without a mutation; return what was printed when one fails, else "". Raises: CannotJudge."""
    tests = list(dict.fromkeys(test for mutation in chosen for test in mutation.tests))
    tests.sort(key=lambda test: test.split("/")[:3])
    # Whole files stay together, so that a lane starts as few databases as it can.
    shares = [tests[number :: len(lanes)] for number in range(len(lanes))]

    def run(lane: Lane, share: list[str]) -> str:
        if not share:
            return ""
        sound, printed = lane.passes(share, TIMEOUT_S * 4)
        return "" if sound else printed

    with _threads(lanes) as pool:
        return "".join(pool.map(run, lanes, shares))


def _in_lanes(lanes: Sequence[Lane], chosen: Sequence[Mutation]) -> Iterator[Judged]:
    """Judge each mutation in whichever lane is free; yield as they end."""
    done: SimpleQueue[Judged] = SimpleQueue()
    free: SimpleQueue[Lane] = SimpleQueue()
    for lane in lanes:
        free.put(lane)

    def one(mutation: Mutation) -> None:
        lane = free.get()
        try:
            done.put(lane.judge(mutation))
        except BaseException as error:
            done.put(Judged(mutation, Verdict.UNJUDGED, 0.0, repr(error)))
            raise
        finally:
            free.put(lane)

    with _threads(lanes) as pool:
        for mutation in sorted(chosen, key=lambda each: -each.cost):
            pool.submit(one, mutation)
        for _ in chosen:
            yield done.get()


@contextmanager
def _threads(lanes: Sequence[Lane]) -> Iterator[ThreadPoolExecutor]:
    """Lend a thread to each lane; when it does not end well, stop what runs and forget what waits."""
    with ThreadPoolExecutor(len(lanes)) as pool:
        try:
            yield pool
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for lane in lanes:
                lane.stop()
            raise


@contextmanager
def _postgres(folder: Path) -> Iterator[str]:
    """Lend the DSN of a server for all tests: each session of them makes databases of its own in it."""
    if given := os.environ.get("DATABASE_URL"):
        yield given
        return
    server = asyncio.run(start_embedded(folder, settings={"fsync": "off", "max_connections": "300"}))
    try:
        yield server.dsn
    finally:
        asyncio.run(server.stop())


def _told(judged: Judged) -> str:
    """Return what people must know of a mutation that was not noticed."""
    mutation = judged.mutation
    lines = [f"{judged.verdict.value} {mutation.name}"]
    parts = [
        mutation.claim,
        "in " + ", ".join(edit.file for edit in mutation.edits),
        "tests: " + " ".join(mutation.tests),
    ]
    for part in parts:
        lines += textwrap.wrap(part, WIDTH - 2, initial_indent="  ", subsequent_indent="    ", break_on_hyphens=False)
    if judged.words:
        lines += ["  " + line for line in judged.words.splitlines()]
    return "\n".join(lines)


def _asked(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make mutants", description="Break each safeguard in turn.")
    parser.add_argument("words", nargs="*", help="only those whose name contains one of the words")
    parser.add_argument("--why", action="store_true", help="say which test noticed each, with its first words")
    parser.add_argument("--lanes", type=int, default=LANES, help="how many at a time (%(default)s)")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    """Run; return the exit code."""
    begun = time.monotonic()
    asked = _asked(arguments)
    why, at_once = asked.why, asked.lanes
    chosen = mutations(asked.words)
    if not chosen:
        print("there is no such mutation; the names are:", *(mutation.name for mutation in mutations()), sep="\n  ")
        return 2
    results: list[Judged] = []
    with tempfile.TemporaryDirectory(prefix="mutants-") as name:
        folder = Path(name)
        # Passable, so that a database server of another user finds its own program in it.
        folder.chmod(0o755)
        with _postgres(folder / "postgres") as database:
            lanes = [Lane(folder / str(number), database) for number in range(min(at_once, len(chosen)))]
            print(f"{len(chosen)} mutations, {len(lanes)} at a time; first their tests without any", flush=True)
            failed = _unmutated(lanes, chosen)
            if failed:
                print(f"the tests fail without any mutation:\n{failed}")
                return 2
            print(f"they pass ({time.monotonic() - begun:.0f} s)", flush=True)
            for judged in _in_lanes(lanes, chosen):
                results.append(judged)
                print(_line(judged, f"{len(results)}/{len(chosen)}", why=why), flush=True)
    by = {verdict: [judged for judged in results if judged.verdict is verdict] for verdict in Verdict}
    for judged in (*by[Verdict.SURVIVED], *by[Verdict.UNJUDGED]):
        print("\n" + _told(judged))
    minutes, seconds = divmod(round(time.monotonic() - begun), 60)
    print(f"\n{len(by[Verdict.NOTICED])} of {len(chosen)} mutations noticed in {minutes} min {seconds:02} s")
    return 2 if by[Verdict.UNJUDGED] else 1 if by[Verdict.SURVIVED] else 0


def _line(judged: Judged, count: str, *, why: bool) -> str:
    name = textwrap.shorten(judged.mutation.name, WIDTH - 29)
    lines = [f"{count:>7}  {judged.verdict.value:<8} {judged.seconds:6.1f} s  {name}"]
    if why and judged.verdict is Verdict.NOTICED:
        lines += [f"{'':>11}{line[: WIDTH - 11]}" for line in judged.words.splitlines()]
    return "\n".join(lines)


def _interrupted(number: int, frame: object) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    for ending in (signal.SIGINT, signal.SIGTERM):
        signal.signal(ending, _interrupted)
    try:
        sys.exit(main(sys.argv[1:]))
    except CannotJudge as problem:
        print(problem)
        sys.exit(2)
    except KeyboardInterrupt:
        print("stopped")
        sys.exit(130)
