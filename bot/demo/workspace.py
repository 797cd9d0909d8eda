"""People of the workspace, played over the same HTTP that its page uses.

Decides: how to wait (for the workspace's next record, never for a time) and how a message reads as text. Does not:
know the story, or anything of Atlas but what it shows. The failure it can cause: a text that is looked for in a
message's fallback would not be what people see; so only blocks are read when there are any.
"""

import asyncio
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import aiohttp

RITA, MARCUS, VERA, OSKAR = "U0RITA00001", "U0MARCUS001", "U0VERA00001", "U0OSKAR0001"
SALES_DESK, ATLAS_OPS = "C0SALESDESK", "C0ATLASOPS1"
_HEADERS = {"X-Atlas-Page": "1"}
_ROUND_S = 1.0
# Only deadlines: a busy machine is slow, and only a story that is off waits this long.
PATIENCE_S = 60.0
# How often somebody presses a button while Slack shows its warning.
PRESSES = 5

Json = dict[str, Any]
T = TypeVar("T")


class Off(Exception):
    """Something is not as it must be; the text says what was expected and what was seen."""


class Workspace:
    """The page's API, for any person."""

    def __init__(self, url: str, http: aiohttp.ClientSession) -> None:
        self.url = url
        self._http = http

    async def state(self, person: str) -> Json:
        """Return everything that this person sees."""
        async with self._http.get(f"{self.url}/page/state", params={"as": person}) as response:
            state: Json = await response.json()
            return state

    async def act(self, what: str, **body: Any) -> Json:
        """Do what the page does: post, click, command, view_submit, home_open. Raises: Off when it is refused."""
        async with self._http.post(f"{self.url}/page/{what}", json=body, headers=_HEADERS) as response:
            answer: Json = await response.json()
        if not answer.get("ok"):
            raise Off(f"{what} was refused: {answer.get('text') or answer.get('error')}")
        return answer

    async def settled(self, interaction_id: str, within_s: float = PATIENCE_S) -> str:
        """Return how a click fared: "acked" or "failed"."""
        seen = 0
        while True:
            record = await self._record({"kind": "interaction", "id": interaction_id}, seen, within_s)
            if record is None:
                raise Off(f"the click was neither acked nor given up within {within_s:.0f} s")
            if record["state"] != "pending":
                return str(record["state"])
            seen = int(record["seq"])

    async def until(self, person: str, found: Callable[[Json], T | None], what: str, within_s: float = PATIENCE_S) -> T:
        """Return what *found* finds in this person's state, asked again at each of the workspace's records.

        Raises: Off when it finds nothing within *within_s*.
        """
        deadline = time.monotonic() + within_s
        since = await self.latest()
        while True:
            value = found(await self.state(person))
            if value:
                return value
            left = deadline - time.monotonic()
            if left <= 0:
                raise Off(f"waited {within_s:.0f} s in vain for {what}")
            answer = await self._wait({}, since, min(left, _ROUND_S))
            since = int((answer["record"] or {"seq": since})["seq"])

    async def journal(self, since: int = 0) -> list[Json]:
        """Return the workspace's records after *since*."""
        async with self._http.get(f"{self.url}/journal", params={"since": str(since)}) as response:
            records: list[Json] = (await response.json())["records"]
            return records

    async def latest(self) -> int:
        """Return the number of the newest record."""
        return int((await self._wait({"kind": "none"}, 0, 0))["next"])

    async def _record(self, match: Json, since: int, within_s: float) -> Json | None:
        record: Json | None = (await self._wait(match, since, within_s))["record"]
        return record

    async def _wait(self, match: Json, since: int, within_s: float) -> Json:
        body = {"match": match, "since": since, "timeout": within_s}
        async with self._http.post(f"{self.url}/wait", json=body) as response:
            answer: Json = await response.json()
            return answer


@dataclass
class Thread:
    """A thread that a person opened with a question."""

    workspace: Workspace
    owner: str
    ts: str
    channel: str = SALES_DESK
    asked_at: float = field(default_factory=time.monotonic)

    @classmethod
    async def opened(cls, workspace: Workspace, owner: str, text: str) -> "Thread":
        """Post *text* in the sales channel."""
        asked_at = time.monotonic()
        posted = await workspace.act("post", **{"as": owner}, channel=SALES_DESK, text=text)
        return cls(workspace, owner, posted["ts"], asked_at=asked_at)

    async def say(self, text: str, person: str | None = None) -> str:
        """Write in the thread; return the message's ts."""
        who = {"as": person or self.owner}
        return str((await self.workspace.act("post", **who, channel=self.channel, text=text, thread_ts=self.ts))["ts"])

    async def messages(self, person: str | None = None) -> list[Json]:
        """Return the bot's messages of the thread as this person sees them, oldest first."""
        return self.of(await self.workspace.state(person or self.owner))

    def of(self, state: Json) -> list[Json]:
        """Return the bot's messages of the thread out of a person's state."""
        return [m for m in state["messages"][self.channel] if m.get("thread_ts") == self.ts and m.get("bot_id")]

    async def shows(
        self, *words: str, after: str = "0", person: str | None = None, within_s: float = PATIENCE_S
    ) -> Json:
        """Wait for a message of the bot after *after* that has all *words*; return the newest. Raises: Off."""

        def found(state: Json) -> Json | None:
            fitting = [m for m in self.of(state) if m["ts"] > after and has(m, words)]
            return fitting[-1] if fitting else None

        try:
            return await self.workspace.until(person or self.owner, found, f"“{' … '.join(words)}”", within_s)
        except Off as off:
            seen = [text_of(m).replace("\n", " ")[:110] for m in (await self.messages(person))[-4:]]
            raise Off("\n".join([f"{off}; the thread's last messages:", *(f"· {text}" for text in seen)])) from None

    async def card(self, *words: str, after: str = "0", within_s: float = PATIENCE_S) -> Json:
        """Wait for a card that can be approved. Raises: Off."""

        def found(state: Json) -> Json | None:
            cards = [m for m in self.of(state) if m["ts"] > after and button_of(m, "approve")]
            return next((m for m in reversed(cards) if has(m, words)), None)

        what = f"a card to approve{' with ' + ', '.join(words) if words else ''}"
        try:
            return await self.workspace.until(self.owner, found, what, within_s)
        except Off as off:
            seen = [text_of(m).replace("\n", " ")[:110] for m in (await self.messages())[-4:]]
            raise Off("\n".join([f"{off}; the thread's last messages:", *(f"· {text}" for text in seen)])) from None

    async def press(self, message: Json, action: str, person: str | None = None) -> str:
        """Press a button; return the interaction's id. Raises: Off."""
        found = button_of(message, action)
        if found is None:
            raise Off(f"there is no button {action!r} on: {text_of(message)[:120]}")
        block_id, element = found
        clicked = await self.workspace.act(
            "click", **{"as": person or self.owner}, channel=self.channel, message_ts=message["ts"],
            block_id=block_id, action_id=action, element=element,
        )  # fmt: skip
        return str(clicked["interaction_id"])

    async def approve(self, card: Json) -> None:
        """Press Approve and see that the click was taken. Raises: Off."""
        await self.clicked(card, "approve")

    async def clicked(self, message: Json, action: str, person: str | None = None) -> None:
        """Press a button; again, as people do, while Slack shows its warning and the button is there. Raises: Off."""
        for _ in range(PRESSES):
            if await self.workspace.settled(await self.press(message, action, person)) == "acked":
                return
            message = await self.now(message)
            if button_of(message, action) is None:
                return  # it was taken all the same
        raise Off("the click was not taken: Slack shows its warning")

    async def refuses(self, message: Json, action: str, person: str, why: str) -> None:
        """Press a button and see that this person is told *why* not; again while Atlas could not check who it is, as it
        asks people to. Raises: Off."""
        after = str(message["ts"])
        for _ in range(PRESSES):
            await self.clicked(message, action, person)
            told = await self.shows("so nothing was done", person=person, after=after)
            if has(told, (why,)):
                return
            after = str(told["ts"])
        raise Off(f"never told “{why}”")

    async def acked(self, interaction_id: str) -> None:
        """See that a click was taken. Raises: Off."""
        if await self.workspace.settled(interaction_id) != "acked":
            raise Off("the click was not taken: Slack shows its warning")

    async def now(self, message: Json) -> Json:
        """Return the message as it is now. Raises: Off when it is gone."""
        found = next((m for m in await self.messages() if m["ts"] == message["ts"]), None)
        if found is None:
            raise Off("the message is gone")
        return found

    async def loses(self, message: Json, action: str) -> Json:
        """Wait until the message has no such button. Raises: Off."""

        def found(state: Json) -> Json | None:
            return next((_without(m, action) for m in self.of(state) if m["ts"] == message["ts"]), None)

        return await self.workspace.until(self.owner, found, f"the button {action!r} to go")

    async def becomes(self, message: Json, *words: str, within_s: float = PATIENCE_S) -> Json:
        """Wait until the message has all *words*. Raises: Off."""

        def found(state: Json) -> Json | None:
            same = [m for m in self.of(state) if m["ts"] == message["ts"]]
            return next((m for m in same if has(m, words)), None)

        try:
            return await self.workspace.until(self.owner, found, f"the message to read “{' … '.join(words)}”", within_s)
        except Off as off:
            reads = text_of(await self.now(message)).replace("\n", " · ")
            raise Off(f"{off}; it reads:\n{reads[:300]}") from None


def _without(message: Json, action: str) -> Json | None:
    return message if button_of(message, action) is None else None


def has(message: Json, words: tuple[str, ...]) -> bool:
    """Say whether people read all of *words* in a message, however they are capitalised."""
    text = text_of(message).casefold()
    return all(word.casefold() in text for word in words)


def button_of(message: Json, action: str) -> tuple[str, Json] | None:
    """Return a button of a message, with its block's id."""
    for block in message.get("blocks", []):
        for element in block.get("elements", []) if block["type"] == "actions" else []:
            if element.get("action_id") == action:
                return str(block["block_id"]), element
    return None


def run_of(message: Json) -> str:
    """Return the run that a card belongs to; a suspension's id and token begin with it."""
    for action in ("approve", "details", "happened"):
        found = button_of(message, action)
        if found is not None:
            return str(json.loads(found[1]["value"])["t"]).partition(".")[0]
    return ""


def text_of(message: Json) -> str:
    """Return what people read in a message: its blocks' text, one block a line, else its plain text."""
    blocks = message.get("blocks") or []
    return "\n".join(filter(None, map(_block_text, blocks))) if blocks else str(message.get("text", ""))


def _block_text(block: Json) -> str:
    if block["type"] == "table":
        return "\n".join(" | ".join(str(cell.get("text", "")) for cell in row) for row in block["rows"])
    parts = [_plain(block.get("text"))]
    parts += [_plain(it) for it in block.get("fields", [])]
    within = [_plain(it) for it in block.get("elements", [])]
    return "\n".join(filter(None, [*parts, *within]))


def _plain(node: Any) -> str:
    if isinstance(node, str):
        return node
    if not isinstance(node, dict):
        return ""
    if node.get("type") == "user":
        return f"<@{node['user_id']}>"
    if isinstance(node.get("text"), str):
        return str(node["text"])
    if isinstance(node.get("text"), dict):
        return _plain(node["text"])
    between = "\n" if node.get("type") == "rich_text_list" else ""
    return between.join(_plain(it) for it in node.get("elements", []))


async def together(*acts: Any) -> list[Any]:
    """Do several things at the same instant."""
    return list(await asyncio.gather(*acts))
