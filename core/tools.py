"""What engineers write: tools, scopes, approvals, limits. The public surface of DESIGN section 9.

Decides: the shapes that cross between Atlas and a tool. Does not: run anything (the loop does) or judge a click
(approvals does). The failure it can cause: a tool that forgets ``permitted`` or ``reconcile`` would act without a
check; ``agent.problems`` therefore refuses it at start.
"""

from collections.abc import Awaitable, Callable
from decimal import Decimal
from typing import Any, Generic, Literal, TypeVar, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, JsonValue


class Frozen(BaseModel):
    """A public value: immutable, unknown fields refused so that a misspelt policy key fails at start."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class User(Frozen):
    """A verified person. Identity is (team_id, user_id); name and email are for people and directories."""

    team_id: str
    user_id: str
    name: str
    email: str | None = None


class Scope(Frozen):
    """What the run's owner may touch, as the engineer's resolver said at one moment."""

    permissions: frozenset[str] = frozenset()
    attributes: dict[str, JsonValue] = {}


class ToolContext(Frozen):
    """What a tool call gets besides its arguments.

    *call_id* is ours ("<run>:<seq>:<position>"), never the model's. *idempotency_key* covers run, call and
    arguments and stays the same over every retry. *confirmed*: a person approved exactly this. *scope* is the last
    resumption's for reads, fresh for writes.
    """

    run_id: str
    call_id: str
    idempotency_key: str
    user: User
    scope: Scope
    confirmed: bool = False
    approved_by: tuple[User, ...] = ()


class Preview(Frozen):
    """What a write would do, for a person. A pure function of arguments and fetched facts: no clock, no random.

    *lines*: a table, one dict a row, the first row's keys are the columns.
    """

    title: str
    fields: dict[str, str] = {}
    lines: list[dict[str, str]] = []
    totals: dict[str, str] = {}
    text: str = ""


class Refused(Frozen):
    """A guard's no: the world does not permit the action now. The reason goes to the model and onto the card."""

    reason: str


class Happened(Frozen):
    """Reconcile: the action happened, with this result."""

    result: JsonValue = None


class DidNotHappen(Frozen):
    """Reconcile: the target has no trace of the action."""


class Unknown(Frozen):
    """Reconcile: cannot tell."""

    reason: str = ""


class UserGroup(Frozen):
    """A Slack user group, by handle without the @."""

    handle: str


class Approval(Frozen):
    """Who must say yes before a write executes.

    *by*: the requester, anyone in the channel, named user ids, or a user group. *count*: how many different people.
    *self_approval*: may the requester (or who edited the call) be one of them. *severity* "high" adds a confirm
    dialog. *channel*: where the card goes when the requester may not approve. *operators*: operators (and the CLI)
    may approve too.
    """

    by: Literal["requester", "anyone"] | tuple[str, ...] | UserGroup = "requester"
    count: int = Field(default=1, ge=1, le=20)
    self_approval: bool = True
    severity: Literal["normal", "high"] = "normal"
    channel: str | None = None
    operators: bool = False


class Limits(Frozen):
    """Budget of a run. *max_spend_usd* in US dollars, *max_elapsed_s* in seconds of active time."""

    max_steps: int = Field(default=12, ge=1)
    max_tool_calls: int = Field(default=24, ge=0)
    max_spend_usd: Decimal = Field(default=Decimal("0.50"), gt=0, allow_inf_nan=False)
    max_elapsed_s: float = Field(default=300, gt=0, allow_inf_nan=False)


ArgsT = TypeVar("ArgsT", bound=BaseModel)


class Tool(Generic[ArgsT]):
    """One thing the agent can do. Subclass with the argument model: ``class SendQuote(Tool[SendQuoteArgs])``.

    Reads run at once and are never approved. From a write, ``ToolFailed`` means "certainly nothing happened"; any
    other exception, a timeout or a lost connection is an unknown outcome and is reconciled. From a read, any
    exception is an error result.
    """

    name: str = ""
    description: str = ""
    writes: bool = False
    approval: Approval | None = None
    version: str = "1"
    timeout_s: float = 30.0
    doing: str = ""
    idempotent_by_key: bool = False
    unknown: Literal["reconcile", "ask_person"] = "reconcile"
    arguments_model: type[BaseModel]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for parent in getattr(cls, "__orig_bases__", ()):
            origin = get_origin(parent)
            if isinstance(origin, type) and issubclass(origin, Tool):
                (model,) = get_args(parent)
                if isinstance(model, type) and issubclass(model, BaseModel):
                    cls.arguments_model = model

    def permitted(self, args: ArgsT, scope: Scope) -> bool:
        """Say whether *scope* allows this call. Required for writes; reads are allowed unless overridden."""
        return not self.writes

    async def policy(self, args: ArgsT, ctx: ToolContext) -> Approval | None:
        """Return who must approve this very call; None: nobody. Default: the class's ``approval``."""
        return self.approval

    async def preview(self, args: ArgsT, ctx: ToolContext) -> Preview:
        """Return what executing would do. Required if the tool may need approval."""
        raise NotImplementedError(f"{self.name} needs a preview")

    async def guard(self, args: ArgsT, ctx: ToolContext) -> Refused | None:
        """Return why the world does not permit the action now, or None."""
        return None

    async def execute(self, args: ArgsT, ctx: ToolContext) -> Any:
        """Do it; return any JSON value."""
        raise NotImplementedError(f"{self.name} needs execute")

    async def reconcile(self, args: ArgsT, ctx: ToolContext) -> Happened | DidNotHappen | Unknown:
        """Ask the target whether the action with ``ctx.idempotency_key`` happened."""
        return Unknown(reason="this tool cannot ask")


ScopeResolver = Callable[[User], Awaitable[Scope]]
