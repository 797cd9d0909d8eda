"""The target and the brain of the tests' own agent, in the test's process: what it does, the test decides.

Keeps every effect under its idempotency key, as a real target would. Failure it can cause: none outside its test.
"""

import asyncio
import json
import shutil
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web

from tests.acceptance.waiting import wait_until

Json = dict[str, Any]
Think = Callable[[list[Json]], Json | Awaitable[Json]]
Execute = Callable[[Json], Awaitable[Json]]
AGENT = Path(__file__).with_name("workshop_agent.py")
# Of the tools: long, since a busy machine is slow, and a call given up is another story; then what hangs is given up
# soon enough to be waited for.
TIMEOUT_S, HANGING_S = 10.0, 3.0


def say(text: str, spend: str = "0.01") -> Json:
    """Return a model's answer."""
    return {"text": text, "spend": spend}


def call(*calls: tuple[str, Json], spend: str = "0.01") -> Json:
    """Return a model's turn that calls tools; ids repeat in every turn, as some models' do."""
    return {
        "calls": [{"id": f"call_{n}", "tool": tool, "arguments": args} for n, (tool, args) in enumerate(calls, 1)],
        "spend": spend,
    }


def script(*turns: Json) -> Callable[[list[Json]], Json]:
    """Return a model that gives its n-th turn after n-1 turns of its own since the last thing a person wrote."""

    def think(messages: list[Json]) -> Json:
        last = max(i for i, message in enumerate(messages) if message["role"] == "user")
        made: int = sum(message["role"] == "assistant" for message in messages[last:])
        return turns[min(made, len(turns) - 1)]

    return think


def results(messages: list[Json]) -> list[str]:
    """Return the texts of the tool results that a model was given."""
    return [message["text"] for message in messages if message["role"] == "tool"]


@dataclass
class Effect:
    """Something that was done. *requests*: how often it was asked for under this key."""

    key: str
    tool: str
    what: str
    run: str
    requests: int = 1


@dataclass
class Workshop:
    """A server. *think*: the model; *execute*: per tool, instead of doing it and answering."""

    think: Think = field(default_factory=lambda: script(say("Nothing to do.")))
    execute: dict[str, Execute] = field(default_factory=dict)
    facts: Json = field(default_factory=dict)
    guard: str | None = None
    permissions: list[str] | None = field(default_factory=lambda: ["everything"])
    cannot_tell: bool = False
    done: dict[str, Effect] = field(default_factory=dict)
    asked: list[list[Json]] = field(default_factory=list)
    executions: list[Json] = field(default_factory=list)
    released: asyncio.Event = field(default_factory=asyncio.Event)
    _runner: web.AppRunner | None = None
    _directory: Path = Path()

    async def start(self, directory: Path, limits: Json) -> None:
        """Listen, and put the agent's module into *directory*."""
        app = web.Application()
        for path in ("execute", "facts", "guard", "reconcile", "model", "scope"):
            app.router.add_post(f"/{path}", getattr(self, f"_{path}"))
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        shutil.copy(AGENT, directory / AGENT.name)
        (directory / "workshop.url").write_text(f"http://127.0.0.1:{self._runner.addresses[0][1]}")
        (directory / "workshop.limits").write_text(json.dumps(limits))
        self._directory = directory
        self.give_up_after(TIMEOUT_S)

    def give_up_after(self, seconds: float) -> None:
        """Let the tools of bots that start from now on give their calls up after so long."""
        (self._directory / "workshop.timeout").write_text(str(seconds))

    async def stop(self) -> None:
        """Let go of everything that hangs and stop listening."""
        self.released.set()
        if self._runner is not None:
            await self._runner.cleanup()

    def do(self, asked: Json) -> Json:
        """Do it, once per key; return its result."""
        known = self.done.get(asked["key"])
        if known is not None:
            known.requests += 1
        else:
            self.done[asked["key"]] = Effect(asked["key"], asked["tool"], asked["what"], asked["run"])
        return {"result": {"done": asked["what"]}}

    def effects(self, what: str | None = None) -> list[Effect]:
        """Return what was done (as *what*)."""
        return [effect for effect in self.done.values() if what is None or effect.what == what]

    async def hang(self, _: Json) -> Json:
        """Answer nothing until the test ends; nothing is done."""
        await self.released.wait()
        return {"do": "fail", "words": "let go"}

    async def do_and_hang(self, asked: Json) -> Json:
        """Do it, and answer nothing."""
        self.do(asked)
        return await self.hang(asked)

    async def executing(self, tool: str, times: int = 1) -> None:
        """Wait until a tool was asked to execute so many times."""
        await wait_until(
            lambda: sum(asked["tool"] == tool for asked in self.executions) >= times, f"{tool} executes {times} times"
        )

    async def thinking(self, times: int = 1) -> None:
        """Wait until the model was asked so many times."""
        await wait_until(lambda: len(self.asked) >= times, f"the model is asked {times} times")

    async def _execute(self, request: web.Request) -> web.Response:
        asked: Json = await request.json()
        self.executions.append(asked)
        if asked["tool"] in self.execute:
            return web.json_response(await self.execute[asked["tool"]](asked))
        if asked["tool"] == "look":
            return web.json_response({"result": {"seen": asked["what"]}})
        return web.json_response(self.do(asked))

    async def _facts(self, _: web.Request) -> web.Response:
        return web.json_response(self.facts)

    async def _guard(self, _: web.Request) -> web.Response:
        return web.json_response(self.guard)

    async def _reconcile(self, request: web.Request) -> web.Response:
        if self.cannot_tell:
            return web.json_response({"found": "unknown"})
        effect = self.done.get((await request.json())["key"])
        found = {"found": "happened", "result": {"done": effect.what}} if effect else {"found": "nothing"}
        return web.json_response(found)

    async def _model(self, request: web.Request) -> web.Response:
        messages: list[Json] = (await request.json())["messages"]
        self.asked.append(messages)
        told = self.think(messages)
        return web.json_response(told if isinstance(told, dict) else await told)

    async def _scope(self, _: web.Request) -> web.Response:
        if self.permissions is None:
            return web.Response(status=503)
        return web.json_response(self.permissions)
