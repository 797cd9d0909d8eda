"""`atlas demo` as people start it: a process of its own, told and ended from outside.

Decides nothing. The failure it can cause: a demo left behind; so ``ended`` kills its whole family in the end.
"""

import asyncio
import contextlib
import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil

ROOT = Path(__file__).parents[2]
# Generous, since they are only deadlines: a busy machine is slow, and only a failing test waits this long.
READY_WITHIN_S = 240.0
GONE_WITHIN_S = 90.0


@dataclass
class Demo:
    """A running demo. *said*: its lines so far."""

    process: asyncio.subprocess.Process
    said: list[str] = field(default_factory=list)
    family: dict[int, psutil.Process] = field(default_factory=dict)

    @property
    def url(self) -> str:
        """The page's address."""
        found = re.search(r"http://127\.0\.0\.1:\d+", "\n".join(self.said))
        assert found, self.said
        return found[0]

    async def says(self, words: str, within: float = READY_WITHIN_S) -> str:
        """Return the first line that contains *words*."""
        assert self.process.stdout is not None
        async with asyncio.timeout(within):
            while not (heard := [line for line in self.said if words in line]):
                line = await self.process.stdout.readline()
                assert line, f"it ended without saying {words!r}: {self.said}"
                self.said.append(line.decode().rstrip("\n"))
        self.know()
        return heard[0]

    async def rest(self, within: float = GONE_WITHIN_S) -> int:
        """Read to the end; return the exit status."""
        assert self.process.stdout is not None
        async with asyncio.timeout(within):
            async for line in self.process.stdout:
                self.said.append(line.decode().rstrip("\n"))
                self.know()
            return await self.process.wait()

    def know(self) -> None:
        """Remember every process that descends from the demo now, wherever it may hang later."""
        with contextlib.suppress(psutil.NoSuchProcess):
            parent = psutil.Process(self.process.pid)
            self.family |= {it.pid: it for it in (parent, *parent.children(recursive=True))}

    async def gone(self) -> list[str]:
        """Return what is still there of the family when it had its time to go."""
        deadline = asyncio.get_running_loop().time() + GONE_WITHIN_S
        while (left := self.left()) and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(0.05)
        return left

    def left(self) -> list[str]:
        """Return the command lines of those of the family that still run."""
        lines = []
        for member in self.family.values():
            with contextlib.suppress(psutil.NoSuchProcess):
                if member.is_running() and member.status() != psutil.STATUS_ZOMBIE:
                    lines.append(" ".join(member.cmdline()))
        return lines


@asynccontextmanager
async def demo(*arguments: str, data_dir: Path, database_url: str = "") -> AsyncIterator[Demo]:
    """Start `python -m bot demo …` in a process group of its own; whatever is left of it is killed at the end."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("ATLAS_", "SLACK_", "DATABASE_URL"))}
    environment |= {"ATLAS_DATA_DIR": str(data_dir), "PYTHONUNBUFFERED": "1"}
    if database_url:
        environment["DATABASE_URL"] = database_url
    command: Sequence[str] = (sys.executable, "-m", "bot", "demo", *arguments)
    process = await asyncio.create_subprocess_exec(
        *command, cwd=ROOT, env=environment, stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT, start_new_session=True,
    )  # fmt: skip
    started = Demo(process)
    try:
        yield started
    finally:
        started.know()
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
            try:
                await started.rest()
            except TimeoutError:
                process.kill()
                await process.wait()
        for member in started.family.values():
            with contextlib.suppress(psutil.NoSuchProcess):
                member.kill()
