"""Faults of the sandbox CRM: what the caller sees, and what was done all the same."""

import asyncio
import json
import signal
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import pytest

from bot.sandbox import Crm

RITA = "rita.reyes@northwind.example"
ORDER = {"account_id": "4471", "lines": [{"sku": "SKU-4411", "quantity": 200}], "by": RITA}
ROOT = Path(__file__).parents[2]


class Held(Crm):
    """The service; whatever takes its time in it waits for *go* first, however slow the machine is."""

    def __init__(self) -> None:
        super().__init__()
        self.go = asyncio.Event()

    async def _pause(self, seconds: float | None) -> None:
        await self.go.wait()
        await super()._pause(seconds)

    async def _come_back(self, seconds: float) -> None:
        await self.go.wait()
        await super()._come_back(seconds)


@pytest.fixture
async def held() -> AsyncIterator[Held]:
    async with Held() as crm:
        yield crm


@pytest.fixture
async def crm() -> AsyncIterator[Crm]:
    async with Crm() as crm:
        yield crm


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


async def post(
    session: aiohttp.ClientSession, url: str, body: object, key: str = "", timeout_s: float = 60
) -> tuple[int, Any]:
    timeout = aiohttp.ClientTimeout(total=timeout_s)
    async with session.post(url, json=body, headers={"Idempotency-Key": key}, timeout=timeout) as answer:
        return answer.status, await answer.json()


async def get(session: aiohttp.ClientSession, url: str) -> tuple[int, Any]:
    async with session.get(url) as answer:
        return answer.status, await answer.json()


async def eventually(holds: Callable[[], Awaitable[bool]], within_s: float = 60) -> None:
    async with asyncio.timeout(within_s):
        while not await holds():
            await asyncio.sleep(0.01)


async def add_fault(session: aiohttp.ClientSession, crm: Crm, **fault: object) -> None:
    status, _ = await post(session, f"{crm.url}/admin/faults", fault)
    assert status == 201


async def give_up_once(crm: Crm, session: aiohttp.ClientSession, holds: Callable[[], bool]) -> None:
    """Ask for a quote, and give it up, unanswered, once something holds."""
    asking = asyncio.create_task(post(session, f"{crm.url}/quotes", ORDER, "k1"))

    async def look() -> bool:
        return holds()

    await eventually(look)
    assert not asking.done()
    asking.cancel()
    with suppress(asyncio.CancelledError):
        await asking


async def test_fail_answers_503_that_many_times_and_does_nothing(crm: Crm, session: aiohttp.ClientSession) -> None:
    await add_fault(session, crm, kind="fail", route="POST /quotes", times=2)
    for _ in range(2):
        status, body = await post(session, f"{crm.url}/quotes", ORDER, "k1")
        assert (status, body["error"]) == (503, "unavailable")
    assert crm.books.effects() == []
    assert (await get(session, f"{crm.url}/accounts/4471"))[0] == 200
    assert (await post(session, f"{crm.url}/quotes", ORDER, "k1"))[0] == 201


async def test_a_fault_for_one_route_leaves_the_others_alone(crm: Crm, session: aiohttp.ClientSession) -> None:
    await add_fault(session, crm, kind="fail", route="POST /quotes/{id}/send", times=None)
    assert (await post(session, f"{crm.url}/quotes", ORDER, "k1"))[0] == 201
    assert (await post(session, f"{crm.url}/quotes/Q-1042/send", {"by": RITA}, "s1"))[0] == 503
    _, shown = await get(session, f"{crm.url}/admin/faults")
    assert shown["faults"][0]["met"] == 1
    async with session.delete(f"{crm.url}/admin/faults") as answer:
        assert answer.status == 200
    assert (await post(session, f"{crm.url}/quotes/Q-1042/send", {"by": RITA}, "s1"))[0] == 200


async def test_fail_directory_stops_questions_about_people_only(crm: Crm, session: aiohttp.ClientSession) -> None:
    await add_fault(session, crm, kind="fail_directory", times=1)
    assert (await get(session, f"{crm.url}/accounts/4471"))[0] == 200
    assert (await get(session, f"{crm.url}/people/{RITA}"))[0] == 503
    assert (await get(session, f"{crm.url}/people/{RITA}"))[0] == 200


async def test_answer_lost_commits_and_the_key_tells(crm: Crm, session: aiohttp.ClientSession) -> None:
    await add_fault(session, crm, kind="answer_lost", route="POST /quotes")
    with pytest.raises(aiohttp.ClientConnectionError):
        await post(session, f"{crm.url}/quotes", ORDER, "k1")
    status, operation = await get(session, f"{crm.url}/operations/k1")
    assert (status, operation["result"]["number"]) == (200, "Q-1042")
    status, again = await post(session, f"{crm.url}/quotes", ORDER, "k1")
    assert (status, again["number"]) == (201, "Q-1042")
    assert len(crm.books.quotes()) == 1


async def test_hang_does_nothing_and_never_answers(crm: Crm, session: aiohttp.ClientSession) -> None:
    await add_fault(session, crm, kind="hang", route="POST /quotes")
    await give_up_once(crm, session, lambda: crm.faults.shown() == [])
    assert (await get(session, f"{crm.url}/operations/k1"))[0] == 404


async def test_hang_after_commit_has_done_it(crm: Crm, session: aiohttp.ClientSession) -> None:
    await add_fault(session, crm, kind="hang_after_commit", route="POST /quotes")
    await give_up_once(crm, session, lambda: len(crm.books.effects()) == 1)
    assert (await get(session, f"{crm.url}/operations/k1"))[0] == 200


async def test_slow_does_it_after_the_caller_gave_up(held: Held, session: aiohttp.ClientSession) -> None:
    await add_fault(session, held, kind="slow", route="POST /quotes", seconds=0.1)
    await give_up_once(held, session, lambda: held.faults.shown() == [])
    assert held.books.effects() == []
    held.go.set()

    async def done() -> bool:
        return (await get(session, f"{held.url}/operations/k1"))[0] == 200

    await eventually(done)


async def test_a_crashed_service_is_gone_then_back_at_its_address_with_the_effect(
    held: Held, session: aiohttp.ClientSession
) -> None:
    await add_fault(session, held, kind="crash_after_commit", route="POST /quotes", seconds=0.1)
    with pytest.raises(aiohttp.ClientConnectionError):
        await post(session, f"{held.url}/quotes", ORDER, "k1")
    with pytest.raises(aiohttp.ClientConnectionError):
        await get(session, f"{held.url}/operations/k1")
    held.go.set()

    async def back() -> bool:
        try:
            return (await get(session, f"{held.url}/operations/k1"))[0] == 200
        except aiohttp.ClientConnectionError:
            return False

    await eventually(back)
    assert len(held.books.quotes()) == 1


async def test_nobody_is_given_the_address_of_a_crashed_service_meanwhile(
    held: Held, session: aiohttp.ClientSession
) -> None:
    """Somebody who lets the system choose a port would keep it from coming back, for good."""
    await add_fault(session, held, kind="crash_after_commit", route="POST /quotes", seconds=0)
    port = urlsplit(held.url).port
    with pytest.raises(aiohttp.ClientConnectionError):
        await post(session, f"{held.url}/quotes", ORDER, "k1")
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind(("127.0.0.1", port))
    held.go.set()

    async def back() -> bool:
        with suppress(aiohttp.ClientConnectionError):
            return (await get(session, f"{held.url}/operations/k1"))[0] == 200
        return False

    await eventually(back)


async def test_many_requests_with_one_key_at_once_have_one_effect(crm: Crm, session: aiohttp.ClientSession) -> None:
    answers = await asyncio.gather(*(post(session, f"{crm.url}/quotes", ORDER, "k1") for _ in range(20)))
    assert all(answer == answers[0] for answer in answers)
    assert [effect["requests"] for effect in crm.books.effects()] == [20]


async def test_stopping_does_not_wait_for_a_hanging_request(session: aiohttp.ClientSession) -> None:
    crm = Crm()
    await crm.start()
    await add_fault(session, crm, kind="hang", route="GET /accounts")
    hanging = asyncio.create_task(get(session, f"{crm.url}/accounts"))

    async def met() -> bool:
        return crm.faults.shown() == []

    await eventually(met)
    async with asyncio.timeout(60):
        await crm.stop()
    with pytest.raises(aiohttp.ClientConnectionError):
        await hanging


class Program:
    """`python -m bot.sandbox` as a process of its own."""

    def __init__(self, process: asyncio.subprocess.Process, url: str) -> None:
        self.process = process
        self.url = url

    @classmethod
    async def run(cls, *options: str) -> "Program":
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "bot.sandbox", *options, cwd=ROOT, stdout=asyncio.subprocess.PIPE
        )
        assert process.stdout is not None
        async with asyncio.timeout(120):
            line = await process.stdout.readline()
        return cls(process, json.loads(line)["url"])


async def test_a_killed_program_keeps_quotes_keys_and_changes_in_its_file(
    tmp_path: Path, session: aiohttp.ClientSession
) -> None:
    state = str(tmp_path / "crm.sqlite")
    program = await Program.run("--state", state)
    _, quote = await post(session, f"{program.url}/quotes", ORDER, "k1")
    await post(session, f"{program.url}/admin/accounts/4471", {"credit_hold": {"reason": "r", "since": "2025-01-02"}})
    program.process.kill()
    await program.process.wait()

    program = await Program.run("--state", state)
    try:
        assert (await post(session, f"{program.url}/quotes", ORDER, "k1")) == (201, quote)
        assert len((await get(session, f"{program.url}/quotes"))[1]["quotes"]) == 1
        assert (await get(session, f"{program.url}/accounts/4471"))[1]["credit_hold"]["reason"] == "r"
    finally:
        program.process.send_signal(signal.SIGTERM)
        assert await program.process.wait() == 0


async def test_exit_on_crash_ends_the_program_after_the_commit(tmp_path: Path, session: aiohttp.ClientSession) -> None:
    state = str(tmp_path / "crm.sqlite")
    program = await Program.run("--state", state, "--exit-on-crash")
    await post(session, f"{program.url}/admin/faults", {"kind": "crash_after_commit", "route": "POST /quotes"})
    with pytest.raises(aiohttp.ClientConnectionError):
        await post(session, f"{program.url}/quotes", ORDER, "k1")
    assert await program.process.wait() == 70

    async with Crm(state=Path(state)) as crm:
        assert (await get(session, f"{crm.url}/operations/k1"))[0] == 200
