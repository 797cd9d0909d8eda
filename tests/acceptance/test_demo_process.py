"""`atlas demo`: comes up on nothing, tells the story by itself, and leaves no process whatever ends it.

Decides whether a newcomer can play, and stop. The story's own checks are the demo's (`bot/demo/story.py`).
"""

import asyncio
import os
import signal
import socket
import stat
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import asyncpg
import pytest

from tests.acceptance.demo_process import READY_WITHIN_S, Demo, demo

pytestmark = pytest.mark.slow
RITA = "U0RITA00001"
STORY_WITHIN_S = 900.0


@pytest.fixture
def data_dir() -> Iterator[Path]:
    """A directory that the embedded server's own user can reach too, when the tests run as root."""
    with tempfile.TemporaryDirectory(prefix="atlas-demo-", dir="/tmp", ignore_cleanup_errors=True) as made:
        Path(made).chmod(stat.S_IRWXU | stat.S_IXGRP | stat.S_IXOTH)
        yield Path(made)


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


async def panel(http: aiohttp.ClientSession, running: Demo) -> dict[str, dict[str, Any]]:
    async with http.get(f"{running.url}/panel/state") as response:
        groups = (await response.json())["groups"]
    return {control["id"]: control for group in groups for control in group["controls"]}


async def pull(http: aiohttp.ClientSession, running: Demo, lever: str, value: Any = True) -> dict[str, Any]:
    body = {"id": lever, "value": value}
    async with http.post(f"{running.url}/panel/set", json=body, headers={"X-Atlas-Page": "1"}) as response:
        answer: dict[str, Any] = await response.json()
        return answer


async def log(http: aiohttp.ClientSession, running: Demo) -> list[str]:
    async with http.get(f"{running.url}/panel/state") as response:
        return [entry["text"] for entry in (await response.json())["log"]]


async def connected(http: aiohttp.ClientSession, running: Demo) -> bool:
    async with http.get(f"{running.url}/page/state", params={"as": RITA}) as response:
        return bool((await response.json())["bot"]["connected"])


async def until(look: Any, what: str, within: float = READY_WITHIN_S) -> Any:
    deadline = asyncio.get_running_loop().time() + within
    while not (seen := await look()):
        assert asyncio.get_running_loop().time() < deadline, f"not within {within:g} s: {what}"
        await asyncio.sleep(0.05)
    return seen


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 0), (signal.SIGTERM, 0), (signal.SIGKILL, -9)])
async def test_a_demo_comes_up_on_nothing_and_leaves_no_process(
    data_dir: Path, number: signal.Signals, status: int
) -> None:
    async with demo("--no-browser", data_dir=data_dir) as running:
        await running.says("Ready")
        assert any("/#/as/U0RITA00001/C0SALESDESK" in line for line in running.said)
        assert all(len(line) <= 80 for line in running.said)
        assert len(running.family) > 5  # the demo, its leash, the CRM, the workspace, Atlas, PostgreSQL
        running.process.send_signal(number)
        assert await running.rest() == status
        assert await running.gone() == []
        left = sorted(entry.name for entry in (data_dir / "demo").glob("run-*"))
        assert (left == []) == (number is not signal.SIGKILL)


async def test_ctrl_c_reaches_the_whole_group_and_while_it_starts(data_dir: Path) -> None:
    async with demo("--no-browser", data_dir=data_dir) as running:
        await running.says("Open")
        os.killpg(running.process.pid, signal.SIGINT)
        assert await running.rest() == 0
        assert await running.gone() == []


async def test_a_taken_port_is_one_message_and_no_process(data_dir: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        async with demo("--no-browser", "--port", str(port), data_dir=data_dir) as running:
            assert await running.rest() == 1
            said = "\n".join(running.said)
            assert f"port {port} is taken" in said
            assert "Traceback" not in said
            assert await running.gone() == []


async def test_an_unusable_database_is_one_message(data_dir: Path) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        url = f"postgresql://atlas@127.0.0.1:{nobody.getsockname()[1]}/atlas"
        async with demo("--no-browser", data_dir=data_dir, database_url=url) as running:
            assert await running.rest() == 2
            said = "\n".join(running.said)
            assert "DATABASE_URL" in said
            assert "Traceback" not in said
            assert "Open" not in said  # no page is shown that nobody can use
            assert await running.gone() == []


async def test_a_directory_that_cannot_be_used_is_one_message(data_dir: Path) -> None:
    """The likeliest wrong place: a file of that name."""
    (data_dir / "file").touch()
    async with demo("--no-browser", data_dir=data_dir / "file") as running:
        assert await running.rest() == 2
        said = "\n".join(running.said)
        assert "set ATLAS_DATA_DIR to a directory" in said
        assert "Traceback" not in said
        assert await running.gone() == []


async def test_killed_atlas_comes_back_and_the_panel_says_so(
    data_dir: Path, postgres: str, http: aiohttp.ClientSession
) -> None:
    async with demo("--no-browser", data_dir=data_dir, database_url=postgres) as running:
        await running.says("Ready")
        assert (await pull(http, running, "returns", False))["ok"]
        assert (await pull(http, running, "kill"))["ok"]
        assert not (await pull(http, running, "kill"))["ok"]
        assert not (await panel(http, running))["start"]["disabled"]

        async def away() -> bool:
            return not await connected(http, running)

        await until(away, "Atlas gone")
        assert (await pull(http, running, "start"))["ok"]
        await until(lambda: connected(http, running), "Atlas back")
        told = await until(lambda: _told(http, running, "Atlas is back"), "the log")
        assert any("was killed" in text for text in told)
        assert any("SIGKILL" in text for text in told)


async def _told(http: aiohttp.ClientSession, running: Demo, words: str) -> list[str]:
    lines = await log(http, running)
    return lines if any(words in text for text in lines) else []


async def test_the_panel_moves_the_world(data_dir: Path, postgres: str, http: aiohttp.ClientSession) -> None:
    async with demo("--no-browser", data_dir=data_dir, database_url=postgres) as running:
        await running.says("Ready")
        for lever, value in (("hold", True), ("discount", "12"), ("role", "viewer"), ("directory_down", True)):
            assert (await pull(http, running, lever, value))["ok"]
            assert (await panel(http, running))[lever]["value"] == value
        assert (await pull(http, running, "second", True))["ok"]
        running.know()
        assert len([line for line in running.left() if line.endswith("-m bot serve")]) == 2
        assert (await pull(http, running, "second", False))["ok"]
        assert len([line for line in running.left() if line.endswith("-m bot serve")]) == 1
        for lever in ("lose_post", "rate_limit", "twice", "send_fails", "send_answer_lost"):
            assert (await pull(http, running, lever))["ok"]
        async with http.get(f"{running.url}/faults") as response:
            faults = await response.json()
        assert [fault["kind"] for fault in faults["methods"]] == ["store_then_drop", "ratelimited"]
        assert faults["sockets"]["duplicate"] == 1
        assert (await panel(http, running))["send_fails"]["disabled"]
        assert (await pull(http, running, "calm"))["ok"]
        async with http.get(f"{running.url}/faults") as response:
            assert (await response.json())["methods"] == []
        assert (await pull(http, running, "drop_sockets"))["ok"]
        await until(lambda: connected(http, running), "another connection")
        controls = await panel(http, running)
        usual = {"hold": False, "discount": "10", "role": "inside_sales", "directory_down": False}
        assert {lever: controls[lever]["value"] for lever in usual} == usual
        async with http.post(f"{running.url}/panel/set", json={"id": "kill", "value": True}) as refused:
            assert refused.status == 403


async def test_the_story_tells_itself_and_its_database_goes(data_dir: Path, postgres: str) -> None:
    async with demo("--script", data_dir=data_dir, database_url=postgres) as running:
        await running.says("played by itself")
        name = f"atlas_demo_{running.process.pid}"  # by its own name: others may play on this server
        await until(lambda: _is_there(postgres, name), "its database")
        running.know()
        assert await running.rest(STORY_WITHIN_S) == 0, "\n".join(running.said)
        steps = [line for line in running.said if line.startswith(("  ✓", "  ✗"))]
        assert len(steps) >= 15
        assert all(line.startswith("  ✓") and len(line) <= 80 for line in steps)
        assert await running.gone() == []
    assert not await _is_there(postgres, name)


async def _is_there(server: str, database: str) -> bool:
    connection = await asyncpg.connect(server)
    try:
        return bool(await connection.fetchval("select exists (select from pg_database where datname = $1)", database))
    finally:
        await connection.close()
