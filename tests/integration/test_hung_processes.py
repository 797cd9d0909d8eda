"""Processes whose event loop is blocked for good: they end, and keep nobody waiting for them."""

import asyncio
import sys
from pathlib import Path

import psutil
import pytest

from bot import wiring
from bot.loopwatch import EX_TEMPFAIL

DEADLINE_S = 60.0

_BLOCKED = """
import asyncio, time
from bot.loopwatch import LoopWatch

async def main():
    LoopWatch(give_up_after_s=1.0).start()
    await asyncio.sleep(0)
    time.sleep(3600)

asyncio.run(main())
"""

# Says which process it is, and hears no SIGTERM.
_DEAF = """#!/bin/sh
trap '' TERM
echo $$ > "$ATLAS_TEST_PID.part"
mv "$ATLAS_TEST_PID.part" "$ATLAS_TEST_PID"
while :; do sleep 1; done
"""


async def test_a_process_whose_event_loop_is_blocked_for_good_ends() -> None:
    """Nobody else could end it: it hears no signal but SIGKILL, and its run would block the next process, too."""
    blocked = await asyncio.create_subprocess_exec(sys.executable, "-c", _BLOCKED, stderr=asyncio.subprocess.PIPE)
    try:
        async with asyncio.timeout(DEADLINE_S):
            _, said = await blocked.communicate()
    finally:
        if blocked.returncode is None:
            blocked.kill()
            await blocked.wait()
    assert blocked.returncode == EX_TEMPFAIL
    assert b"blocked for good" in said


async def test_a_child_that_does_not_leave_keeps_no_process_from_leaving(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At a deploy, every process waits for the children that it started for runs that take processes down."""
    script, pid = tmp_path / "deaf", tmp_path / "pid"
    script.write_text(_DEAF)
    script.chmod(0o755)
    monkeypatch.setenv("ATLAS_TEST_PID", str(pid))
    monkeypatch.setattr(sys, "executable", str(script))
    monkeypatch.setattr(wiring, "ALONE_LEAVES_WITHIN_S", 0.1)
    carried = asyncio.create_task(wiring.start_alone("run00001"))
    async with asyncio.timeout(DEADLINE_S):
        while not pid.exists():
            await asyncio.sleep(0.01)
        carried.cancel()
        await asyncio.wait({carried})
    assert carried.cancelled()
    assert not psutil.pid_exists(int(pid.read_text()))


async def test_a_child_that_could_not_begin_is_told_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else its worker would start the next one at once, again and again, for as long as Slack is away."""
    script = tmp_path / "fails"
    script.write_text("#!/bin/sh\nexit 1\n")
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(script))
    with pytest.raises(RuntimeError, match="exit code 1"):
        await wiring.start_alone("run00001")
