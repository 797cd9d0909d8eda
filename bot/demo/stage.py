"""The stage: CRM, workspace, database and Atlas itself, each a program of its own, put up and taken down together.

Decides: with what settings each program runs. Atlas runs as ``python -m bot serve``, unchanged, with nothing but the
environment that a real installation has. Does not: say anything to people (the callers do). The failure it can cause:
a second demo on the same port; the operating system chooses ports unless one is given.
"""

import asyncio
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

from bot.demo.children import READY_S, CannotStart, Child, Leash, Part
from bot.demo.records import Records, fresh_records
from bot.opening import manifest_text
from bot.settings import DESK, Settings
from core.errors import Misconfigured

ALERTS, OPERATOR = "C0ATLASOPS1", "U0OSKAR0001"
_OURS = ("ATLAS_", "SLACK_", "DATABASE_URL")
_REPLY_S = 10.0
_KEPT_S = 86_400.0

Json = dict[str, Any]


class Stage:
    """Everything that runs. Use ``stage(...)``.

    Attributes:
        log: (seconds since the epoch, sentence) of everything that happened, oldest first.
        own_agent: serve the agent and the model that the environment names, instead of the sales desk.
        without_crm: the agent that is served is not the sales desk, so nothing of the CRM concerns it.
        keep_logs: leave the programs' logs in ``place`` at the end.
        first, second: the two processes of Atlas; the second is off until it is wanted.
    """

    def __init__(self, settings: Settings, place: Path, leash: Leash, http: aiohttp.ClientSession) -> None:
        self.place = place
        self.http = http
        self.log: list[tuple[float, str]] = []
        self.records: Records | None = None
        self.crm_url = ""
        self.addresses: dict[str, str] = {}
        self.own_agent = False
        self.keep_logs = False
        self._settings = settings
        self._leash = leash
        self._panel_url = ""
        self._port = 0
        self.crm = Part("The CRM", self._spawn_crm, self.note, 1.0)
        self.workspace = Part("The workspace", self._spawn_workspace, self.note, 1.0)
        self.first = Part("Atlas", lambda: self._spawn_atlas("atlas"), self.note, 4.0)
        self.second = Part("The second Atlas", lambda: self._spawn_atlas("atlas-2"), self.note, 4.0)

    @property
    def without_crm(self) -> bool:
        """Whether another agent than the sales desk is served."""
        return self.own_agent and self._settings.agent != DESK

    @property
    def url(self) -> str:
        """The page's address."""
        return self.addresses.get("url", "")

    @property
    def parts(self) -> tuple[Part, ...]:
        """Every program, in the order in which they are taken down."""
        return (self.second, self.first, self.workspace, self.crm)

    def note(self, text: str) -> None:
        """Add a sentence to the log."""
        self.log.append((time.time(), text))
        del self.log[:-200]

    async def open(self, port: int, panel_url: str) -> None:
        """Start CRM and workspace: from here on the page is there. Raises: CannotStart."""
        self._port, self._panel_url = port, panel_url
        await asyncio.gather(self.crm.on(), self.workspace.on())

    async def start_atlas(self, records: Records) -> None:
        """Start Atlas on its database, and return when it is connected. Raises: CannotStart."""
        self.records = records
        await self.first.on()

    async def failure(self) -> str:
        """Wait until a program cannot be kept up; return why, for people."""
        waiting = [part.failed for part in self.parts]
        done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        return done.pop().result()

    async def close(self) -> None:
        """End every program, Atlas first, so that it can still say goodbye to the others."""
        await asyncio.gather(self.second.off(), self.first.off())
        await asyncio.gather(self.workspace.off(), self.crm.off())

    def hurry(self) -> None:
        """Kill what has not ended yet: somebody pressed Ctrl-C again."""
        for part in self.parts:
            part.kill()

    # ---- the world's levers -----------------------------------------------------------------------------------------

    async def ask_crm(self, method: str, path: str, body: Json | None = None) -> Json:
        """Ask the CRM. Raises: ValueError with its refusal; aiohttp's errors when it is away."""
        return await self._ask(method, self.crm_url + path, body)

    async def ask_workspace(self, path: str, body: Json) -> Json:
        """Ask the workspace for a fault."""
        return await self._ask("POST", self.url + path, body)

    async def _ask(self, method: str, url: str, body: Json | None) -> Json:
        timeout = aiohttp.ClientTimeout(total=_REPLY_S)
        async with self.http.request(method, url, json=body, timeout=timeout) as response:
            if response.status >= 400:
                raise ValueError(f"{method} {url}: {response.status} {(await response.text())[:200]}")
            answer: Json = await response.json()
            return answer

    # ---- the programs -----------------------------------------------------------------------------------------------

    async def _spawn_crm(self) -> Child:
        port = self.crm_url.rpartition(":")[2] or "0"
        child = self._child(["bot.sandbox", "--port", port, "--state", str(self.place / "crm.sqlite")], "crm")
        self.crm_url = str((await self._said(child, "The CRM"))["url"])
        return child

    async def _spawn_workspace(self) -> Child:
        manifest = self.place / "manifest.yml"
        manifest.write_text(manifest_text(), "utf-8")
        argv = ["bot.simulator", "--port", str(self._port), "--manifest", str(manifest)]
        argv += ["--panel-url", self._panel_url, "--journal", str(self.place / "journal.jsonl")]
        child = self._child(argv, "workspace")
        self.addresses = await self._said(child, "The workspace")
        self._port = int(self.url.rpartition(":")[2])
        return child

    async def _spawn_atlas(self, name: str) -> Child:
        child = self._child(["bot", "serve"], name, self._environment_of_atlas())
        before = await self._sockets()
        try:
            await child.start()
            if await self._connected(child, before):
                return child
            raise CannotStart(f"Atlas did not connect:\n{child.last_words()}\n(its log: {child.log})")
        except BaseException:
            await _put_down(child)
            raise

    async def _said(self, child: Child, label: str) -> Json:
        try:
            await child.start()
            return await child.first_line()
        except CannotStart as error:
            await _put_down(child)
            words = str(error)
            if self._port and "address already in use" in words.lower():
                words = f"port {self._port} is taken; choose another with --port, or leave it out"
            raise CannotStart(f"{label} cannot start: {words}") from None
        except BaseException:
            await _put_down(child)
            raise

    async def _sockets(self) -> int:
        """Return the newest record's number in the workspace's journal."""
        answer = await self._ask("POST", f"{self.url}/wait", {"match": {"kind": "none"}, "timeout": 0})
        return int(answer["next"])

    async def _connected(self, child: Child, since: int) -> bool:
        """Wait until a socket was opened after *since*; False when the process ends first, or it takes too long."""
        match = {"kind": "socket", "what": "open"}
        ended = asyncio.ensure_future(child.ended())
        opened = asyncio.ensure_future(
            self._ask_long(f"{self.url}/wait", {"match": match, "since": since, "timeout": READY_S})
        )
        try:
            await asyncio.wait({ended, opened}, return_when=asyncio.FIRST_COMPLETED)
            return opened.done() and not ended.done() and bool(opened.result()["ok"])
        finally:
            for task in (ended, opened):
                task.cancel()
            await asyncio.gather(ended, opened, return_exceptions=True)

    async def _ask_long(self, url: str, body: Json) -> Json:
        async with self.http.post(url, json=body, timeout=aiohttp.ClientTimeout(total=READY_S + 5)) as response:
            answer: Json = await response.json()
            return answer

    def _child(self, module: list[str], name: str, environment: dict[str, str] | None = None) -> Child:
        argv = [sys.executable, "-m", *module]
        return Child(argv, environment or self._environment(), self.place / f"{name}.log", self._leash)

    def _environment(self) -> dict[str, str]:
        """Return what every program gets: what is around, and nothing that is ours."""
        return {name: value for name, value in os.environ.items() if not name.startswith(_OURS)}

    def _environment_of_atlas(self) -> dict[str, str]:
        assert self.records is not None
        return self._environment() | {
            "DATABASE_URL": self.records.dsn,
            "ATLAS_DATA_DIR": str(self.place),
            "SLACK_BOT_TOKEN": self.addresses["bot_token"],
            "SLACK_APP_TOKEN": self.addresses["app_token"],
            "SLACK_API_URL": self.addresses["api_url"],
            "ATLAS_CRM_URL": self.crm_url,
            "ATLAS_ALERT_CHANNEL": ALERTS,
            "ATLAS_OPERATORS": OPERATOR,
            "ATLAS_EXPIRE_EVERY_S": "1",
            "ATLAS_HTTP_PORT": "0",
            # Set, though empty: a .env of this directory is a real installation's and must not reach the demo.
            "SLACK_SIGNING_SECRET": "",
            "ATLAS_PG_POOLER": "",
            "ATLAS_AGENT": self._settings.agent if self.own_agent else "",
            "ATLAS_MODEL": (self._settings.model or "") if self.own_agent else "",
        }


@asynccontextmanager
async def stage(settings: Settings) -> AsyncIterator[Stage]:
    """Lend an empty stage; whatever was started on it is gone at the end. Logs stay if the block says or fails so."""
    base = settings.data_dir / "demo"
    try:
        base.mkdir(parents=True, exist_ok=True)
        _sweep(base)
        place = Path(tempfile.mkdtemp(prefix="run-", dir=base))
    except OSError as error:
        hint = "set ATLAS_DATA_DIR to a directory that you may write to"
        raise Misconfigured([f"the demo needs {base} ({error.strerror}): {hint}"]) from error
    leash = Leash()
    await leash.start()
    opened: Stage | None = None
    failed = True
    try:
        async with aiohttp.ClientSession() as http:
            opened = Stage(settings, place, leash, http)
            try:
                yield opened
            finally:
                await opened.close()
        failed = False
    except asyncio.CancelledError:
        failed = False
        raise
    finally:
        await leash.stop()
        if not failed and not (opened is not None and opened.keep_logs):
            shutil.rmtree(place, ignore_errors=True)


async def _put_down(child: Child) -> None:
    if child.pid:
        child.tell(signal.SIGKILL)
        await child.ended()


def _sweep(base: Path) -> None:
    """Remove what demos that failed or were killed left a day ago or earlier."""
    for left in base.glob("run-*"):
        if left.stat().st_mtime < time.time() - _KEPT_S:
            shutil.rmtree(left, ignore_errors=True)


@asynccontextmanager
async def records_of(settings: Settings) -> AsyncIterator[Records]:
    """Lend the demo's database."""
    async with fresh_records(settings.database_url, settings.data_dir / "demo") as records:
        yield records
