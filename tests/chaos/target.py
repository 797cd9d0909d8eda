"""What the agent acts on: a target system that is a store of its own, its tools, and a scripted model that bills.

Decides: what really happened, independent of what Atlas believes. Does not: know of runs. It is an SQLite file, so an
effect survives the process that asked for it, and one that is "on its way" arrives at its time. The failure it can
cause: a target that forgives doubles would hide them; so one kind of tool honours keys and the other does each request,
but where a process comes back late: nothing but its target can tell a request that was in flight all the while.
"""

import json
import os
import signal
import sqlite3
from collections.abc import Sequence
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

from pydantic import BaseModel

from bot.simulator.workspace import MARCUS, RITA
from core import (
    Agent,
    Approval,
    DidNotHappen,
    Happened,
    Limits,
    Message,
    ModelReply,
    Preview,
    Refused,
    Scope,
    Tool,
    ToolCall,
    ToolContext,
    ToolSpec,
    Unknown,
    User,
)
from core.errors import ModelRefused, ModelUnavailable
from core.tools import UserGroup
from tests.chaos.boundary import Lost, Stage
from tests.chaos.clock import SharedClock

PRICE = Decimal("0.01")
# An effect on its way arrives this long before the moment from which "did not happen" may be believed.
LATE_BY_S = 1.0
IN_FLIGHT_MARGIN_S = 5.0


class Target:
    """The target system and the world around it, shared by all processes of a case."""

    def __init__(self, path: Path, clock: SharedClock) -> None:
        self.clock = clock
        self._db = sqlite3.connect(path, isolation_level=None, timeout=10)
        self._db.execute("pragma journal_mode = wal")
        self._db.execute("pragma synchronous = off")
        self._db.executescript("""
            create table if not exists effects (id integer primary key, key text not null, tool text not null);
            create table if not exists requests (id integer primary key, key text not null);
            create table if not exists begun (key text not null, pid int not null);
            create table if not exists coming (key text not null, tool text not null, once int, at real not null);
            create table if not exists bills (id integer primary key, usd text not null);
            create table if not exists facts (name text primary key, value text not null);
            create table if not exists meanwhile (id integer primary key, tool text, command text, done int default 0);
        """)

    def close(self) -> None:
        """Let go of the file."""
        self._db.close()

    # -- effects ----------------------------------------------------------------------------------------------

    def perform(self, key: str, tool: str, *, once: bool) -> str:
        """Do it. *once*: a key that is known already is not done again."""
        self._arrive()
        self._db.execute("insert into requests (key) values (?)", (key,))
        self._take_effect(key, tool, once=once)
        return f"{tool}-{self._db.execute('select min(id) from effects where key = ?', (key,)).fetchone()[0]}"

    def honour_keys(self) -> None:
        """Never do a request again under its key, of whatever tool."""
        self.let("honours keys", "1")

    def _take_effect(self, key: str, tool: str, *, once: bool) -> None:
        self._db.execute(
            "insert into effects (key, tool) select ?, ?"
            " where not (? and exists (select 1 from effects where key = ?))",
            (key, tool, once or self.fact("honours keys") != "", key),
        )

    def send(self, key: str, tool: str, at: float, *, once: bool) -> None:
        """Put a request on its way that takes effect *at* that moment of the clock."""
        self._db.execute("insert into requests (key) values (?)", (key,))
        self._db.execute("insert into coming (key, tool, once, at) values (?, ?, ?, ?)", (key, tool, once, at))

    def _arrive(self, at: float | None = None) -> None:
        now = self.clock.monotonic() if at is None else at
        for rowid, key, tool, once in self._db.execute(
            "select rowid, key, tool, once from coming where at <= ? order by at", (now,)
        ).fetchall():
            self._db.execute("begin immediate")
            if self._db.execute("delete from coming where rowid = ?", (rowid,)).rowcount:
                self._take_effect(key, tool, once=bool(once))
            self._db.execute("commit")

    def happened(self, key: str) -> str | None:
        """Return what was done under *key*."""
        self._arrive()
        row = self._db.execute("select tool, id from effects where key = ? order by id", (key,)).fetchone()
        return None if row is None else f"{row[0]}-{row[1]}"

    def effects(self) -> list[tuple[str, str]]:
        """Return (key, tool) of everything that was ever done, what is on its way included."""
        self._arrive(float("inf"))
        return [(key, tool) for key, tool in self._db.execute("select key, tool from effects order by id")]

    def begin(self, key: str) -> None:
        """Note that this process executes a write under *key*."""
        self._db.execute("insert into begun (key, pid) values (?, ?)", (key, os.getpid()))

    def end(self, key: str) -> None:
        """Note that it does not any more."""
        self._db.execute("delete from begun where key = ? and pid = ?", (key, os.getpid()))

    def begun(self, pid: int) -> set[str]:
        """Return the keys of the writes that the process *pid* executes."""
        return {key for (key,) in self._db.execute("select key from begun where pid = ?", (pid,))}

    def requested(self) -> list[str]:
        """Return the key of each request, oldest first."""
        return [key for (key,) in self._db.execute("select key from requests order by id")]

    def requests(self) -> int:
        """Return how often the target was asked to do something."""
        return int(self._db.execute("select count(*) from requests").fetchone()[0])

    # -- bills, facts, what people do meanwhile -----------------------------------------------------------------

    def bill(self, usd: Decimal) -> None:
        """The provider charges for a call."""
        self._db.execute("insert into bills (usd) values (?)", (str(usd),))

    def billed(self) -> Decimal:
        """Return what the provider charged in all."""
        return sum((Decimal(usd) for (usd,) in self._db.execute("select usd from bills")), Decimal(0))

    def fact(self, name: str, default: str = "") -> str:
        """Return what the world says of *name*."""
        row = self._db.execute("select value from facts where name = ?", (name,)).fetchone()
        return default if row is None else str(row[0])

    def let(self, name: str, value: str) -> None:
        """Change the world."""
        self._db.execute("insert or replace into facts (name, value) values (?, ?)", (name, value))

    def next_of(self, name: str) -> str:
        """Take the first word of a fact that lists words, for behaviour that changes from attempt to attempt."""
        first, _, rest = self.fact(name).partition(" ")
        if first:
            self.let(name, rest)
        return first

    def meanwhile(self, tool: str, **command: Any) -> None:
        """Somebody will do *command* while *tool* executes."""
        self._db.execute("insert into meanwhile (tool, command) values (?, ?)", (tool, json.dumps(command)))

    def due_meanwhile(self, tool: str | None = None) -> list[tuple[int, dict[str, Any]]]:
        """Return what is to be done while *tool* executes (None: all that is left)."""
        rows = self._db.execute(
            "select id, command from meanwhile where not done and (? is null or tool = ?) order by id", (tool, tool)
        )
        return [(number, json.loads(command)) for number, command in rows.fetchall()]

    def was_done(self, number: int) -> None:
        """Cross one of these off."""
        self._db.execute("update meanwhile set done = 1 where id = ?", (number,))


# ---- tools -----------------------------------------------------------------------------------------------------------


class Errand(BaseModel):
    """The arguments of every tool."""

    what: str = "quote"
    amount: int = 1

    @classmethod
    def model_json_schema(cls, *args: Any, **more: Any) -> dict[str, Any]:
        """Return its schema, made once: it takes pydantic longer than a process of a case lives."""
        return _schema(cls) if not args and not more else super().model_json_schema(*args, **more)


@cache
def _schema(model: type[BaseModel]) -> dict[str, Any]:
    return super(Errand, Errand).model_json_schema()


class Acting(Tool[Errand]):
    """A tool whose every method is a boundary. *once*: its target honours keys."""

    once: ClassVar[bool] = True

    def __init__(self, stage: Stage, target: Target) -> None:
        self.stage = stage
        self.target = target

    def permitted(self, args: Errand, scope: Scope) -> bool:
        return self.stage.instantly("Tool.permitted", lambda: not self.writes or "act" in scope.permissions)

    async def policy(self, args: Errand, ctx: ToolContext) -> Approval | None:
        async def answer() -> Approval | None:
            return self.approval

        return await self.stage.track("Tool.policy", answer)

    async def preview(self, args: Errand, ctx: ToolContext) -> Preview:
        async def answer() -> Preview:
            self._reachable("preview")
            price = self.target.fact("price", "100")
            return Preview(title=f"{self.name} {args.what}", fields={"amount": str(args.amount), "price": price})

        return await self.stage.track("Tool.preview", answer)

    async def guard(self, args: Errand, ctx: ToolContext) -> Refused | None:
        async def answer() -> Refused | None:
            hold = self.target.fact("hold")
            return Refused(reason=hold) if hold else None

        return await self.stage.track("Tool.guard", answer)

    async def execute(self, args: Errand, ctx: ToolContext) -> Any:
        if not self.writes:
            return await self.stage.track("Tool.execute", lambda: self._execute(args, ctx))
        self.target.begin(ctx.idempotency_key)
        try:
            return await self.stage.track("Tool.execute", lambda: self._execute(args, ctx))
        finally:
            self.target.end(ctx.idempotency_key)

    async def _execute(self, args: Errand, ctx: ToolContext) -> Any:
        late = self.stage.late
        await self.stage.interject(self.name)
        if not self.writes:
            return {"price": self.target.fact("price", "100")}
        mode = self.target.next_of(f"breaks:{self.name}")
        if mode == "unsent":
            raise Lost("the request was never sent")
        if late:
            # Counted from its intention, as the moment is from which nobody expects it any more.
            at = self.stage.intended_at + self.timeout_s + IN_FLIGHT_MARGIN_S - LATE_BY_S
            self.target.send(ctx.idempotency_key, self.name, at, once=self.once)
            return None  # nobody hears this: the fault comes first
        done = self.target.perform(ctx.idempotency_key, self.name, once=self.once)
        if mode == "unheard":
            raise Lost("the answer never came")
        return {"id": done}

    def _reachable(self, what: str) -> None:
        if self.target.fact(f"down:{what}"):
            raise Lost(f"the {what} cannot be reached")


class Askable(Acting):
    """A write whose target can be asked by the key whether it happened."""

    writes = True

    async def reconcile(self, args: Errand, ctx: ToolContext) -> Happened | DidNotHappen | Unknown:
        async def answer() -> Happened | DidNotHappen | Unknown:
            self._reachable("reconcile")
            done = self.target.happened(ctx.idempotency_key)
            return Happened(result={"id": done}) if done else DidNotHappen()

        return await self.stage.track("Tool.reconcile", answer)


class Look(Acting):
    name, description, doing = "look", "Read a price.", "looking"


class Bomb(Acting):
    """A read that takes its process down, as code that exhausts the memory would."""

    name, description = "bomb", "Break."

    async def _execute(self, args: Errand, ctx: ToolContext) -> Any:
        os.kill(os.getpid(), signal.SIGKILL)


class Note(Askable):
    name, description, doing = "note", "Write a note.", "noting"


class Send(Askable):
    name, description, doing = "send", "Send a quote.", "sending"
    approval = Approval(by="requester")


class Order(Askable):
    """Its target does every request anew, and can tell by the key."""

    name, description = "order", "Order goods."
    approval = Approval(by="requester")
    once = False


class Wire(Acting):
    """Its target honours keys and cannot be asked."""

    name, description = "wire", "Wire money."
    writes = True
    approval = Approval(by="requester")
    idempotent_by_key = True


class Fax(Acting):
    """Its target honours nothing and cannot be asked: a person is."""

    name, description = "fax", "Send a fax."
    writes = True
    approval = Approval(by="requester")
    unknown = "ask_person"
    once = False


class Sign(Askable):
    name, description = "sign", "Sign; two people must agree."
    approval = Approval(by=(RITA, MARCUS), count=2)


class Announce(Askable):
    name, description = "announce", "Announce; anyone of the channel may approve."
    approval = Approval(by="anyone")


class Discount(Askable):
    name, description = "discount", "Give a discount; a manager approves."
    approval = Approval(by=UserGroup(handle="sales-managers"))


KINDS: tuple[type[Acting], ...] = (Look, Bomb, Note, Send, Order, Wire, Fax, Sign, Announce, Discount)
NEEDS_APPROVAL = frozenset(kind.name for kind in KINDS if kind.approval is not None)
REFUSES_DOUBLES = frozenset(kind.name for kind in KINDS if kind.once)


# ---- the model -------------------------------------------------------------------------------------------------------

Turn = Sequence[tuple[str, dict[str, Any]]]


class Scripted:
    """A model that plays the turns written for the last request it finds, then answers. Each call is billed.

    Like a provider it refuses a conversation in which a call has no result or two.
    """

    def __init__(self, stage: Stage, target: Target, script: dict[str, Sequence[Turn]]) -> None:
        self.stage = stage
        self.target = target
        self.script = script

    def worst_case_usd(self, messages: list[Message], tools: list[ToolSpec], max_output_tokens: int) -> Decimal:
        """Return the most that a call can cost."""
        return PRICE

    async def respond(self, messages: list[Message], tools: list[ToolSpec], max_output_tokens: int) -> ModelReply:
        """Return the next turn."""

        async def answer() -> ModelReply:
            self.target.bill(PRICE)
            return self._turn(messages)

        try:
            return await self.stage.track("Model.respond", answer)
        except Lost as error:
            # What an adapter says of a connection that broke: the call may have been billed.
            raise ModelUnavailable(str(error), charged=True) from error

    def _turn(self, messages: list[Message]) -> ModelReply:
        _refuse_unanswered(messages)
        request, since = "", 0
        for message in messages:
            if message.role == "user" and message.text in self.script:
                request, since = message.text, 0
            elif message.role == "assistant":
                since += 1
        turns = self.script.get(request, ())
        if since >= len(turns):
            return ModelReply(text=f"Done with {request}.", spend_usd=PRICE)
        calls = tuple(
            ToolCall(id=f"call_{number}", tool=tool, arguments=arguments)
            for number, (tool, arguments) in enumerate(turns[since], start=1)
        )
        return ModelReply(text="Working on it.", calls=calls, spend_usd=PRICE)


def _refuse_unanswered(messages: list[Message]) -> None:
    waiting: list[str] = []
    for message in messages:
        if message.role == "tool":
            if message.call_id not in waiting:
                raise ModelRefused(f"a result for {message.call_id}, which is not open")
            waiting.remove(str(message.call_id))
            continue
        if waiting:
            raise ModelRefused(f"{waiting} have no result")
        waiting = [call.id for call in message.calls]
    if waiting:
        raise ModelRefused(f"{waiting} have no result")


def an_agent(stage: Stage, target: Target, limits: Limits) -> Agent:
    """Return the agent that every case serves."""

    async def scopes(user: User) -> Scope:
        async def answer() -> Scope:
            if target.fact("down:scopes"):
                raise Lost("the permissions cannot be reached")
            return Scope(permissions=frozenset(target.fact("permissions", "act").split()))

        return await stage.track("Scopes.resolve", answer)

    return Agent(
        instructions="Do what is asked.",
        tools=[kind(stage, target) for kind in KINDS],
        scopes=scopes,
        limits=limits,
        examples=("send a quote",),
    )
