"""The demo's programs as child processes: started, watched, brought back, and ended without a trace.

Decides: when a program that died comes back, and when it has died too often. Does not: know what the programs are. Each
child is a process group of its own, so that Ctrl-C at the terminal reaches only the demo, which then ends them in
order; the leash ends them when the demo cannot. The failure it can cause: a child that ignores SIGTERM is killed
after ``GRACE_S``.
"""

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

GRACE_S = 10.0
READY_S = 45.0
# A program that does not live this long, this often in a row, will not get better by starting it again.
SHORT_LIFE_S = 5.0
MOST_SHORT_LIVES = 3
_TAIL_LINES = 8


class CannotStart(Exception):
    """A program of the demo cannot start or stay up. The text says which, why, and where its log is."""


class Leash:
    """The one process that outlives us if we are killed, and ends what we started."""

    def __init__(self) -> None:
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """Start it."""
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, "-I", "-S", str(Path(__file__).with_name("leash.py")),
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip

    def hold(self, group: int) -> None:
        """Name a process group."""
        self._say(f"+{group}")

    def drop(self, group: int) -> None:
        """Forget a process group that has ended."""
        self._say(f"-{group}")

    async def stop(self) -> None:
        """Let go: it ends whatever is still named, and itself."""
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
            await self._process.wait()

    def _say(self, line: str) -> None:
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.write(f"{line}\n".encode())


class Child:
    """One process, from start to end; its output goes to *log*."""

    def __init__(self, argv: Sequence[str], environment: Mapping[str, str], log: Path, leash: Leash) -> None:
        self.log = log
        self.started_at = time.monotonic()
        self._argv = list(argv)
        self._environment = dict(environment)
        self._leash = leash
        self._process: asyncio.subprocess.Process | None = None
        self._copying: asyncio.Task[None] | None = None
        self._first: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    @property
    def pid(self) -> int:
        """Process id; 0 before the start."""
        return self._process.pid if self._process else 0

    @property
    def gone(self) -> bool:
        """Whether its process has ended."""
        return self._process is not None and self._process.returncode is not None

    async def start(self) -> None:
        """Start the process. Raises: OSError."""
        with self.log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *self._argv, env=self._environment, stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE, stderr=log, start_new_session=True,
            )  # fmt: skip
        self._leash.hold(self._process.pid)
        self._copying = asyncio.create_task(self._copy())

    async def first_line(self) -> dict[str, Any]:
        """Return the JSON object that the program prints once it listens.

        Raises: CannotStart when it ends or stays silent instead.
        """
        try:
            line = await asyncio.wait_for(asyncio.shield(self._first), READY_S)
        except TimeoutError:
            raise CannotStart(f"it said nothing within {READY_S:.0f} s; its log is {self.log}") from None
        try:
            spoken = json.loads(line)
        except ValueError:
            code = await self.ended()
            raise CannotStart(f"it ended at once ({described(code)}): {self.last_words()}") from None
        return dict(spoken)

    async def exit(self) -> int:
        """Wait until its process is gone, and return the exit status (negative: the signal)."""
        assert self._process is not None
        return await self._process.wait()

    async def ended(self) -> int:
        """Wait for the end, sweep what it left in its group, and return the exit status (negative: the signal)."""
        assert self._process is not None
        code = await self.exit()
        if self._copying is not None:
            await asyncio.shield(self._copying)
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._leash.drop(self._process.pid)
        return code

    def tell(self, number: signal.Signals) -> None:
        """Send a signal to it and whatever it started; nothing when it is gone."""
        if self._process is not None and self._process.returncode is None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, number)

    async def stop(self) -> None:
        """End it: SIGTERM, and SIGKILL when that was not enough."""
        self.tell(signal.SIGTERM)
        try:
            await asyncio.wait_for(self.ended(), GRACE_S)
        except TimeoutError:
            self.tell(signal.SIGKILL)
            await self.ended()

    def last_words(self) -> str:
        """Return the end of its log, for a message to people."""
        try:
            lines = self.log.read_text("utf-8", "replace").strip().splitlines()
        except OSError:
            return "it left no log"
        return "\n".join(lines[-_TAIL_LINES:]) or "it said nothing"

    async def _copy(self) -> None:
        """Copy standard output to the log until it closes; the first line is also kept."""
        assert self._process is not None
        assert self._process.stdout is not None
        with self.log.open("ab") as log:
            async for line in self._process.stdout:
                if not self._first.done():
                    self._first.set_result(line.decode("utf-8", "replace"))
                log.write(line)
                log.flush()
        if not self._first.done():
            self._first.set_result("")


class Part:
    """A program that is meant to be up: it comes back when it dies, until it is switched off.

    Args:
        label: its name for people, such as "Atlas".
        spawn: starts it and returns once it is ready. Raises: CannotStart.
        note: gets a sentence for people on each change.
        comeback_s: how long after a death it comes back.
    """

    def __init__(
        self, label: str, spawn: Callable[[], Awaitable[Child]], note: Callable[[str], None], comeback_s: float
    ) -> None:
        self.label = label
        self.comeback_s = comeback_s
        self.returns = True
        self.child: Child | None = None
        self.failed: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._spawn = spawn
        self._note = note
        self._wanted = False
        self._now = asyncio.Event()
        self._at_once = False
        self._watching: asyncio.Task[None] | None = None

    @property
    def up(self) -> bool:
        """Whether its process is there; one that has ended is not, even while its last output is still copied."""
        return self.child is not None and not self.child.gone

    @property
    def wanted(self) -> bool:
        """Whether it is meant to be up."""
        return self._wanted

    async def on(self) -> None:
        """Start it and keep it up. Raises: CannotStart."""
        if self._wanted:
            return
        self._wanted = True
        try:
            self.child = await self._spawn()
        except BaseException:
            self._wanted = False
            raise
        self._unless_off(self.child)
        self._watching = asyncio.create_task(self._watch(self.child))

    async def off(self) -> None:
        """End it and keep it down."""
        self._wanted = False
        self._now.set()
        if self.child is not None:
            self.child.tell(signal.SIGTERM)
            try:
                await asyncio.wait_for(self._settled(), GRACE_S)
            except TimeoutError:
                self.kill()
        await self._settled()
        self._now.clear()

    def kill(self) -> None:
        """Kill it; nothing when it is not there."""
        if self.child is not None:
            self.child.tell(signal.SIGKILL)

    async def killed(self) -> None:
        """Kill it, and return when it is gone; it may be coming back by then."""
        if self.child is not None:
            child = self.child
            child.tell(signal.SIGKILL)
            await child.exit()

    def redeploy(self) -> bool:
        """Ask it to end (SIGTERM) and bring it back at once; False when it is not there."""
        if self.child is None or self.child.gone:
            return False
        self._at_once = True
        self.child.tell(signal.SIGTERM)
        return True

    def start_now(self) -> None:
        """Bring it back without waiting."""
        self._now.set()

    async def _settled(self) -> None:
        if self._watching is not None:
            await asyncio.shield(self._watching)

    async def _watch(self, child: Child | None) -> None:
        short = 0
        while child is not None:
            code = await child.ended()
            self.child = None
            if not self._wanted:
                return
            asked = self._at_once or code == -signal.SIGKILL
            lived = time.monotonic() - child.started_at
            short = short + 1 if lived < SHORT_LIFE_S and not asked else 0
            if short >= MOST_SHORT_LIVES:
                self._give_up(f"{self.label} keeps dying ({described(code)}); its log is {child.log}:", child)
                return
            await self._pause(code)
            child = await self._again(child)

    async def _pause(self, code: int) -> None:
        at_once, self._at_once = self._at_once, False
        if at_once:
            self._note(f"{self.label} ended in order ({described(code)}); the new one starts")
            return
        if self.returns:
            self._note(f"{self.label} is gone ({described(code)}); it comes back in {self.comeback_s:g} s")
        else:
            self._note(f"{self.label} is gone ({described(code)}); start it when you like")
        with suppress(TimeoutError):
            await asyncio.wait_for(self._now.wait(), self.comeback_s if self.returns else None)

    async def _again(self, before: Child) -> Child | None:
        if not self._wanted:
            return None
        try:
            self.child = await self._spawn()
        except CannotStart as error:
            self._give_up(f"{self.label} cannot come back: {error}", before)
            return None
        self._unless_off(self.child)
        # Cleared here and not before the pause: it may be asked for from the moment that its process is gone.
        self._now.clear()
        if self._wanted:
            self._note(f"{self.label} is back")
        return self.child

    def _unless_off(self, child: Child) -> None:
        """End what was switched off while it started, when there was no child yet to tell."""
        if not self._wanted:
            child.tell(signal.SIGTERM)

    def _give_up(self, text: str, child: Child) -> None:
        if not self.failed.done():
            self.failed.set_result(f"{text}\n{child.last_words()}")


def described(code: int) -> str:
    """Say how a process ended."""
    if code >= 0:
        return f"exit status {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"
