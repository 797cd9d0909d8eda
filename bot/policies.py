"""Whether the workspace can keep what the agent's policies promise: groups, channels and people that they name.

Decides: which policies stop the start. Does not: judge policies that a tool computes per call (their groups are asked
when the card is opened). The failure it can cause: a policy that nobody can satisfy would make every card wait in vain;
so what Slack says for certain stops the start, and what it cannot say now is only logged.
"""

import logging
from dataclasses import dataclass, field
from typing import Any

from slack_sdk.web.async_client import AsyncWebClient

from bot.people import SlackDirectory
from bot.scopes import SlackGroupScopes
from bot.slack import CALL_ERRORS, FailureKind, read_failure
from core.agent import Agent
from core.errors import CouldNotCheck
from core.tools import Approval, UserGroup

log = logging.getLogger("atlas.policies")


@dataclass
class Verdict:
    """What was found: *problems* for certain, and what is *unknown* since Slack could not be asked."""

    problems: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)


async def examine_policies(agent: Agent, client: AsyncWebClient, directory: SlackDirectory) -> Verdict:
    """Hold the ``approval`` of each tool, and scopes from user groups, against the workspace."""
    verdict = Verdict()
    policies = [(f"tool {tool.name}", tool.approval) for tool in agent.tools if tool.approval is not None]
    handles = {policy.by.handle: label for label, policy in policies if isinstance(policy.by, UserGroup)}
    if isinstance(agent.scopes, SlackGroupScopes):
        handles |= dict.fromkeys(agent.scopes.handles, "scopes")
    groups = await _groups(client, verdict) if handles else None
    if groups is not None:
        for handle, label in sorted(handles.items()):
            if handle not in groups:
                fix = "make it in Slack, or correct the handle"
                verdict.problems.append(f"{label}: the workspace has no user group @{handle}; {fix}")
    for label, policy in policies:
        if isinstance(policy.by, UserGroup) and groups is not None:
            _enough(label, policy, f"@{policy.by.handle}", groups.get(policy.by.handle), verdict)
        if isinstance(policy.by, tuple):
            await _named(label, policy, policy.by, directory, verdict)
        if policy.channel is not None:
            await _channel(label, policy.channel, client, verdict)
    for doubt in verdict.unknown:
        log.warning("a policy could not be checked: %s", doubt)
    return verdict


def _enough(label: str, policy: Approval, who: str, members: frozenset[str] | None, verdict: Verdict) -> None:
    """Operators (and the command line) can always make up for people who are missing."""
    if members is not None and len(members) < policy.count and not policy.operators:
        size = "1 member" if len(members) == 1 else f"{len(members)} members"
        having = f"{who} has {size}" if members else f"{who} is empty"
        verdict.problems.append(f"{label}: {having} and count={policy.count}: nobody could approve; add people to it")


async def _groups(client: AsyncWebClient, verdict: Verdict) -> dict[str, frozenset[str]] | None:
    try:
        answer = await client.usergroups_list(include_users=True)
    except CALL_ERRORS as error:
        failure = read_failure(error)
        text = f"user groups cannot be read ({failure.error})"
        if failure.kind is FailureKind.REFUSED:
            verdict.problems.append(f"{text}; give the app usergroups:read, as manifest.yml does, and reinstall it")
        else:
            verdict.unknown.append(text)
        return None
    listed: list[dict[str, Any]] = answer.get("usergroups") or []
    return {str(it["handle"]): frozenset(it.get("users") or ()) for it in listed if not it.get("date_delete")}


async def _named(
    label: str, policy: Approval, named: tuple[str, ...], directory: SlackDirectory, verdict: Verdict
) -> None:
    """One departed approver breaks nothing while the others suffice."""
    active: set[str] = set()
    for user_id in dict.fromkeys(named):
        try:
            person = await directory.person("", user_id)
        except CouldNotCheck as error:
            verdict.unknown.append(f"{label}: {error}")
            return
        stranger = person.foreign and not person.user.team_id
        if not (person.deactivated or person.bot or stranger):
            active.add(user_id)
    gone = sorted(set(named) - active)
    if gone:
        log.warning("%s: of those whom it names, these cannot approve any more: %s", label, ", ".join(gone))
    if len(active) < policy.count and not policy.operators:
        fix = f"these left or are nobody here: {', '.join(gone)}; name people who can approve"
        verdict.problems.append(f"{label}: count={policy.count} but only {len(active)} of its people are there; {fix}")


async def _channel(label: str, channel: str, client: AsyncWebClient, verdict: Verdict) -> None:
    try:
        answer = await client.conversations_info(channel=channel)
    except CALL_ERRORS as error:
        failure = read_failure(error)
        if failure.kind is FailureKind.REFUSED:
            fix = "there is no such channel, or it is private and Atlas is not in it: /invite @Atlas there"
            verdict.problems.append(f"{label}: channel {channel} ({failure.error}): {fix}")
        else:
            verdict.unknown.append(f"{label}: channel {channel} ({failure.error})")
        return
    found: dict[str, Any] = answer["channel"]
    if found.get("is_archived"):
        verdict.problems.append(f"{label}: channel {channel} is archived; name another one")
    elif not (found.get("is_member") or found.get("is_im")):
        verdict.problems.append(f"{label}: Atlas is not in channel {channel}: /invite @Atlas there")
