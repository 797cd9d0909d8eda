"""The agent that a deployment serves: instructions, tools, scopes, limits, model; and what is wrong with it.

Decides: which agents may start. Does not: resolve or call anything. The failure it can cause: a check missing here
lets a write run without permission or without a way to find out whether it happened.
"""

import inspect
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from pydantic import BaseModel

from core.conversation import Model, ToolSpec
from core.tools import Approval, Limits, ScopeResolver, Tool, UserGroup

MOST_EXAMPLES = 3


@dataclass(frozen=True)
class Agent:
    """What Atlas serves. *scopes*: ``async (user) -> Scope``. *model*: None means ``ATLAS_MODEL`` must name one.

    *examples*: up to three requests shown to newcomers.
    """

    instructions: str
    tools: Sequence[Tool[Any]]
    scopes: ScopeResolver
    limits: Limits = field(default_factory=Limits)
    model: Model | None = None
    examples: Sequence[str] = ()

    def tool(self, name: str) -> Tool[Any] | None:
        """Return the tool of that name, or None."""
        return next((tool for tool in self.tools if tool.name == name), None)

    def specs(self) -> list[ToolSpec]:
        """Return the tools as the model sees them, in the agent's order."""
        return list(self._specs)

    @cached_property
    def _specs(self) -> tuple[ToolSpec, ...]:
        # Every claim asks for them, and a schema takes longer to make than a run to resume.
        return tuple(
            ToolSpec(name=t.name, description=t.description, parameters=t.arguments_model.model_json_schema())
            for t in self.tools
        )


def _overrides(tool: Tool[Any], method: str) -> bool:
    return getattr(type(tool), method) is not getattr(Tool, method)


def problems(agent: Agent) -> list[str]:
    """List everything that keeps *agent* from starting, each with its fix; empty when it may start."""
    found: list[str] = []
    seen: set[str] = set()
    for given in agent.tools:
        tool: object = given  # agents come from untyped modules too
        if not isinstance(tool, Tool):
            found.append(f"{tool!r} is not a core.Tool: subclass core.Tool[YourArguments] and pass an instance")
            continue
        label = f"tool {tool.name or type(tool).__name__}"
        name: object = tool.name
        if not isinstance(name, str) or not re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", name):
            found.append(f"{label}: its name must be 1 to 64 letters, digits, _ or -")
        if tool.name in seen:
            found.append(f"{label}: two tools have this name; rename one")
        seen.add(tool.name)
        if not isinstance(getattr(tool, "arguments_model", None), type) or not issubclass(
            tool.arguments_model, BaseModel
        ):
            found.append(f"{label}: name its argument model, class …(Tool[YourArguments])")
        if not _overrides(tool, "execute"):
            found.append(f"{label}: write async execute(self, args, ctx)")
        if not 0 < tool.timeout_s < math.inf:
            found.append(f"{label}: timeout_s must be above 0 seconds, and finite")
        found += _colour_problems(tool, label)
        found += _write_problems(tool, label)
    return found + _example_problems(agent.examples)


def _example_problems(examples: object) -> list[str]:
    if isinstance(examples, str) or not isinstance(examples, Sequence):
        return [f"examples={examples!r} is no list of requests: give up to three, such as ['what is in stock?']"]
    found = [
        f"examples: {example!r} is no request that somebody could write; give text"
        for example in examples
        if not isinstance(example, str) or not example.strip()
    ]
    if len(examples) > MOST_EXAMPLES:
        found.append(f"examples: {len(examples)} are given, but newcomers see {MOST_EXAMPLES}; keep the best ones")
    return found


def _colour_problems(tool: Tool[Any], label: str) -> list[str]:
    """A coroutine counts as true: an async ``permitted`` would permit everything."""
    awaited = ("policy", "preview", "guard", "execute", "reconcile")
    found = [
        f"{label}: {method} must be async def"
        for method in awaited
        if not inspect.iscoroutinefunction(inspect.unwrap(getattr(tool, method)))
    ]
    if inspect.iscoroutinefunction(tool.permitted):
        found.append(f"{label}: permitted must be a plain def that returns a bool, not async")
    return found


def _write_problems(tool: Tool[Any], label: str) -> list[str]:
    may_need_approval = tool.approval is not None or _overrides(tool, "policy")
    if not tool.writes:
        if may_need_approval:
            return [f"{label}: it has an approval but writes = False; reads are never approved, set writes = True"]
        return []
    found: list[str] = []
    if not _overrides(tool, "permitted"):
        found.append(f"{label}: it writes, so it needs permitted(self, args, scope) -> bool")
    if may_need_approval and not _overrides(tool, "preview"):
        found.append(f"{label}: it may need approval, so it needs async preview(self, args, ctx) -> Preview")
    if not (_overrides(tool, "reconcile") or tool.idempotent_by_key or tool.unknown == "ask_person"):
        found.append(
            f"{label}: it writes, so it needs async reconcile(self, args, ctx), or idempotent_by_key = True, "
            'or unknown = "ask_person"'
        )
    if tool.approval is not None:
        found += [f"{label}: {problem}" for problem in policy_problems(tool.approval)]
    return found


def policy_problems(policy: Approval, requesters: frozenset[str] = frozenset()) -> list[str]:
    """List why *policy* can never be satisfied or is not what it seems; empty when it is sound.

    *requesters*: who counts as requester of this very call, when there is one.
    """
    found: list[str] = []
    if policy.by == "requester":
        if not policy.self_approval and not policy.operators:
            found.append('by="requester" with self_approval=False: nobody could approve; name approvers')
        if policy.count > 1:
            found.append('by="requester" with count above 1: one person cannot approve twice; name approvers')
    if isinstance(policy.by, tuple):
        if not policy.by:
            found.append("by=() names nobody; give user ids")
        elif len(set(policy.by)) < policy.count and not policy.operators:
            found.append(f"count={policy.count} but by names only {len(set(policy.by))} people")
        elif not (policy.operators or policy.self_approval) and len(set(policy.by) - requesters) < policy.count:
            found.append(f"count={policy.count} but too few of those named are not the requester themselves")
        strangers = [user_id for user_id in policy.by if not re.fullmatch(r"[UW][A-Z0-9]{2,}", user_id)]
        found += [f"by names {user_id!r}, which is no Slack user id (U… or W…)" for user_id in strangers]
    if isinstance(policy.by, UserGroup) and not re.fullmatch(r"[^@\s]+", policy.by.handle):
        found.append(f"by=UserGroup({policy.by.handle!r}): give the handle without the @")
    if policy.channel is not None and not re.fullmatch(r"[CGD][A-Z0-9]{2,}", policy.channel):
        found.append(f"channel={policy.channel!r} is no Slack channel id (C…)")
    return found
