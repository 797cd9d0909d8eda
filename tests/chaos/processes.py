"""Processes of Atlas as the theatre has them: forked from a warm parent, told what to do, heard, and buried.

Decides: what counts as gone (its line is closed) and as frozen (the kernel says stopped). Does not: replace anybody.
The failure it can cause: a child that closed what its parent holds would break the parent's connections; so it closes
nothing of it and ends without cleaning up.
"""

import asyncio
import gc
import json
import os
import signal
import socket
from pathlib import Path
from typing import Any

from tests.chaos.boundary import read_log
from tests.chaos.life import Setting, live

ANSWER_S = 60.0


class Broke(AssertionError):
    """A process could not go on."""


class Process:
    """A forked process of Atlas and the line to it."""

    def __init__(self, pid: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.pid = pid
        self.reader = reader
        self.writer = writer

    async def heard(self, timeout_s: float = ANSWER_S) -> dict[str, Any] | None:
        """Return its next answer; None: it is gone. Raises: Broke, TimeoutError."""
        try:
            async with asyncio.timeout(timeout_s):
                raw = await self.reader.readline()
        except ConnectionError:
            return None  # it was killed before it read what was sent
        if not raw.endswith(b"\n"):
            return None
        answer: dict[str, Any] = json.loads(raw)
        if "broke" in answer:
            raise Broke(answer["broke"])
        return answer

    async def heard_unless_frozen(self, log: Path) -> tuple[bool, dict[str, Any] | None]:
        """Return (False, its next answer), or (True, None) once the plan, by its *log*, has stopped it."""
        answer = asyncio.ensure_future(self.heard())
        while not answer.done():
            await asyncio.wait({answer}, timeout=0.01)
            if not answer.done() and self._stopped() and any(line["kind"] == "fired" for line in read_log(log)):
                answer.cancel()
                await asyncio.wait({answer})
                return True, None
        return False, answer.result()

    def _stopped(self) -> bool:
        try:
            return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0] in "Tt"
        except FileNotFoundError:
            return False

    def tell(self, **command: Any) -> None:
        """Send a command."""
        self.writer.write((json.dumps(command) + "\n").encode())

    def bury(self) -> bool:
        """Take leave of a process that has ended; True: it was killed."""
        self.writer.close()
        _, status = os.waitpid(self.pid, 0)
        return os.WIFSIGNALED(status)

    def end(self) -> None:
        """Kill and bury it."""
        os.kill(self.pid, signal.SIGKILL)
        self.bury()


async def fork(setting: Setting, role: str) -> Process:
    """Fork a process of Atlas from this warm one. Returns when it serves. Raises: Broke."""
    ours, its = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        gc.disable()  # what the parent holds is not ours to close, and nobody lives long enough to fill the memory
        ours.close()
        live(setting, role, its)
    its.close()
    reader, writer = await asyncio.open_connection(sock=ours)
    process = Process(pid, reader, writer)
    if await process.heard() is None:
        process.bury()
        raise Broke("a process ended before it served")
    return process
