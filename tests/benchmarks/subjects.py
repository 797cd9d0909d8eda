"""What is put on the server to be measured: runs, conversations, a trivial agent, an instant model.

Decides: the shapes that are the same in every measurement. Does not: measure. Runs begin as the drain begins them;
only crowds (100,000 suspended runs) are written by plain SQL, in the rows that the moves would have left.
"""

import random
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from itertools import count
from typing import Any
from uuid import uuid4

import asyncpg
from pydantic import BaseModel

from bot.wiring import SystemClock, SystemNames
from core import Agent, Approval, Limits, Preview, Scope, Tool, ToolContext, User
from core.approvals import Person
from core.conversation import CallKey, Message, ModelReply, StoredMessage, ToolCall, ToolSpec
from core.loop import Loop
from core.ports import Fence, InboundEvent, NewRun
from storage.database import open_pool
from storage.desk_store import PgDesk
from storage.inbox import PgInbox
from storage.maintenance import PgMaintenance
from storage.worker_store import PgWorkerStore

LIFETIME_S = 1800.0
RESULT = "x" * 100
WORDS = ["".join(random.choices("abcdefghijklmnopqrstuvwxyz", k=random.randint(2, 9))) for _ in range(2000)]
_numbers = count(1)


def text2k() -> str:
    """Return about 2 KB of text that does not compress away (prose-like: random words)."""
    out: list[str] = []
    while sum(map(len, out)) + len(out) < 2000:
        out.extend(random.choices(WORDS, k=20))
    return " ".join(out)[:2000]


class LookArgs(BaseModel):
    """What to look at."""

    n: int


class Look(Tool[LookArgs]):
    """A read that answers at once."""

    name = "look"
    description = "Look at a thing."

    async def execute(self, args: LookArgs, ctx: ToolContext) -> dict[str, str]:
        return {"content": RESULT}


class Send(Tool[LookArgs]):
    """A write that needs an approval; its checks and its effect take no time. *began*: calls ``execute`` first."""

    name = "send"
    description = "Send a thing."
    writes = True
    approval = Approval(by="requester")
    idempotent_by_key = True

    def __init__(self, began: Any = None) -> None:
        self.began = began

    def permitted(self, args: LookArgs, scope: Scope) -> bool:
        return "send" in scope.permissions

    async def preview(self, args: LookArgs, ctx: ToolContext) -> Preview:
        return Preview(title=f"Send {args.n}")

    async def execute(self, args: LookArgs, ctx: ToolContext) -> str:
        if self.began is not None:
            self.began(ctx.run_id)
        return "sent"


async def scopes(user: User) -> Scope:
    """Return what everybody here may touch."""
    return Scope(permissions=frozenset({"send"}))


class InstantModel:
    """Calls a tool until its turn *steps*, then answers; every reply is there at once, at a known price."""

    def __init__(self, steps: int, tool: str = "look") -> None:
        self.steps = steps
        self.tool = tool

    async def respond(self, messages: list[Message], tools: list[ToolSpec], max_output_tokens: int) -> ModelReply:
        turn = len(messages) // 2  # a question, then a turn and its result each
        if turn >= self.steps - 1:
            return ModelReply(text="done " + RESULT, spend_usd=Decimal("0.0001"))
        call = ToolCall(id=f"call_{turn}", tool=self.tool, arguments={"n": turn})
        return ModelReply(calls=(call,), spend_usd=Decimal("0.0001"))

    def worst_case_usd(self, messages: list[Message], tools: list[ToolSpec], max_output_tokens: int) -> Decimal:
        return Decimal("0.0001")


class Everybody:
    """A directory that is always warm: everyone is a member of everything."""

    async def person(self, team_id: str, user_id: str, *, fresh: bool = False) -> Person:
        return Person(User(team_id=team_id, user_id=user_id, name=user_id))

    async def in_channel(self, channel_id: str, user_id: str, *, fresh: bool = False) -> bool:
        return True

    async def in_group(self, handle: str, user_id: str, *, fresh: bool = False) -> bool:
        return True


PLENTY = Limits(max_steps=10**6, max_tool_calls=10**6, max_spend_usd=Decimal(9999), max_elapsed_s=10**6)


@dataclass
class Subject:
    """The stores of one process on one database, as the process opens them."""

    pool: Any
    worker: PgWorkerStore
    desk: PgDesk
    inbox: PgInbox
    upkeep: PgMaintenance
    worker_id: str

    async def close(self) -> None:
        self.pool.terminate()

    async def start(self, messages: tuple[StoredMessage, ...] = (), *, claimed: bool = True) -> Fence | str:
        """Begin a run as the drain does; return its fence, or its id when unclaimed."""
        number = next(_numbers)
        ts, user = f"17{number:08}.000001", f"U{number}"
        await self.inbox.put(InboundEvent(f"Ev{number}", "mention", "T1", "C1", ts, ts, user, "look", {}))
        (letter,) = await self.desk.take_mail(1, 60.0)
        new = NewRun(
            id=SystemNames().run_id(),
            team_id="T1",
            channel_id="C1",
            thread_ts=ts,
            owner=User(team_id="T1", user_id=user, name=user),
            question="look",
            route={"model": "instant"},
            limits=PLENTY,
            scope=Scope(permissions=frozenset({"send"})),
            messages=messages or (StoredMessage(0, Message(role="user", text="look")),),
        )
        fence = await self.desk.start(letter, new, self.worker_id if claimed else None)
        return new.id if fence is None else fence

    async def claimed(self, messages: tuple[StoredMessage, ...] = ()) -> Fence:
        """Begin a run that this process holds."""
        fence = await self.start(messages)
        assert isinstance(fence, Fence)
        return fence

    def loop(self, fence: Fence, agent: Agent, model: Any, kind: type[Loop] = Loop) -> Loop:
        """Return the loop of a claim, as the process makes it."""
        return kind(
            fence,
            self.worker,
            agent,
            model,
            Everybody(),
            SystemClock(),
            SystemNames(),
            lifetime=timedelta(seconds=LIFETIME_S),
        )


async def subject(dsn: str, *, size: int = 16) -> Subject:
    """Open the stores on a migrated database."""
    pool = await open_pool(dsn, size=size)
    upkeep = PgMaintenance(pool)
    worker_id = str(uuid4())
    await upkeep.register(worker_id, "bench", 1, "worker", random.getrandbits(62), holds_lock=False)
    return Subject(pool, PgWorkerStore(pool), PgDesk(pool), PgInbox(pool), upkeep, worker_id)


def conversation(messages: int) -> tuple[StoredMessage, ...]:
    """Return a conversation of that many messages of 2 KB: a question, then turns with their results."""
    said = [StoredMessage(0, Message(role="user", text=text2k()))]
    while len(said) < messages:
        seq = len(said)
        call = ToolCall(id=f"call_{seq}", tool="look", arguments={"n": seq})
        said.append(StoredMessage(seq, Message(role="assistant", text=text2k(), calls=(call,))))
        if len(said) < messages:
            result = Message(role="tool", text=text2k(), call_id=call.id)
            said.append(StoredMessage(seq + 1, result, CallKey(seq, 0)))
    return tuple(said)


async def vacuum(dsn: str) -> None:
    """Bring a freshly filled database to rest, so that no autovacuum falls into what follows."""
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute("vacuum analyze")
    finally:
        await connection.close()
