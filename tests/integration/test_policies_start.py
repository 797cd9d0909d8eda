"""What the workspace cannot keep stops the start, with one message; and scopes that come from user groups."""

import asyncio
import os
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from bot.doctor import examine
from bot.people import SlackDirectory
from bot.policies import Verdict, examine_policies
from bot.scopes import slack_group_scopes
from bot.settings import read_settings
from bot.simulator import Simulator
from bot.simulator.workspace import DEALS, DORA, MARCUS, OSKAR, RANDOM, RITA, VERA
from bot.slack import identify, web_client, web_session
from bot.wiring import replica
from core.agent import Agent
from core.errors import CouldNotCheck, Misconfigured
from core.tools import Approval, Preview, Scope, ScopeResolver, Tool, ToolContext, User, UserGroup
from tests.conftest import POOLER
from tests.integration.policies_agent import Scripted
from tests.integration.slack_stage import MANIFEST, PATIENCE_S, RealClock, no_scope


class Nothing(BaseModel):
    """No arguments."""


class Send(Tool[Nothing]):
    """A write whose approval a test sets."""

    name = "send"
    writes = True
    unknown = "ask_person"

    def permitted(self, args: Nothing, scope: Scope) -> bool:
        """Allow everybody."""
        return True

    async def preview(self, args: Nothing, ctx: ToolContext) -> Preview:
        """Show nothing much."""
        return Preview(title="Send")

    async def execute(self, args: Nothing, ctx: ToolContext) -> None:
        """Do nothing."""


def serving(policy: Approval | None, scopes: ScopeResolver = no_scope) -> Agent:
    """Return an agent whose one write has this policy."""
    tool = Send()
    tool.approval = policy
    return Agent(instructions="", tools=[tool], scopes=scopes, model=Scripted())


@dataclass
class Workspace:
    """A simulated Slack and what asks it."""

    slack: Simulator
    client: Any
    directory: SlackDirectory

    async def verdict(self, agent: Agent) -> Verdict:
        """Examine an agent's policies."""
        return await examine_policies(agent, self.client, self.directory)

    def user(self, user_id: str) -> User:
        """Return somebody of this workspace."""
        return User(team_id=self.slack.workspace.team_id, user_id=user_id, name=user_id)


@pytest.fixture
async def workspace() -> AsyncIterator[Workspace]:
    """The simulated workspace."""
    async with Simulator(manifest=MANIFEST) as slack, web_session(PATIENCE_S) as session:
        client = web_client(slack.workspace.bot_token, session, slack.api_url)
        yield Workspace(slack, client, SlackDirectory(client, await identify(client), RealClock()))


@pytest.mark.parametrize(
    ("policy", "problem"),
    [
        (None, None),
        (Approval(), None),
        (Approval(by=UserGroup(handle="sales-managers"), channel=DEALS), None),
        (Approval(by=UserGroup(handle="sale-managers")), "tool send: the workspace has no user group @sale-managers"),
        (Approval(by=UserGroup(handle="sales-managers"), count=2), "@sales-managers has 1 member and count=2"),
        (Approval(by=UserGroup(handle="sales-managers"), count=2, operators=True), None),
        (Approval(channel=RANDOM), f"tool send: Atlas is not in channel {RANDOM}: /invite @Atlas there"),
        (Approval(channel="C0NOSUCH001"), "channel C0NOSUCH001 (channel_not_found)"),
        (Approval(by=(DORA, MARCUS)), None),
        (Approval(by=(DORA,)), f"count=1 but only 0 of its people are there; these left or are nobody here: {DORA}"),
        (Approval(by=("U0NOBODY001",)), "count=1 but only 0 of its people are there"),
        (Approval(by=(DORA, MARCUS), count=2), "count=2 but only 1 of its people are there"),
        (Approval(by=(DORA, OSKAR), operators=True, count=2), None),
    ],
)
async def test_a_policy_that_the_workspace_cannot_keep_is_a_problem(
    workspace: Workspace, policy: Approval | None, problem: str | None
) -> None:
    """denoland/clawpatrol (human.go): what is configured and cannot be enforced stops the start; one departed
    person does not."""
    verdict = await workspace.verdict(serving(policy))
    assert verdict.unknown == []
    assert (verdict.problems == []) if problem is None else (problem in " ".join(verdict.problems))


@pytest.mark.parametrize(
    ("change", "policy", "problem"),
    [
        (
            {"group": "sales-managers", "users": []},
            Approval(by=UserGroup(handle="sales-managers")),
            "@sales-managers is empty",
        ),
        ({"channel": DEALS, "set": {"is_archived": True}}, Approval(channel=DEALS), "is archived"),
        ({"channel": DEALS, "set": {"members": [RITA]}}, Approval(channel=DEALS), f"Atlas is not in channel {DEALS}"),
    ],
    ids=["empty group", "archived channel", "not a member"],
)
async def test_a_workspace_that_changed_is_a_problem_too(
    workspace: Workspace, change: dict[str, Any], policy: Approval, problem: str
) -> None:
    """Each with what to do about it."""
    workspace.slack.change_world(change)
    assert problem in " ".join((await workspace.verdict(serving(policy))).problems)


async def test_a_missing_oauth_scope_is_a_problem_and_an_outage_is_not(workspace: Workspace) -> None:
    """What Slack says for certain stops the start; what it cannot say now does not."""
    agent = serving(Approval(by=UserGroup(handle="sales-managers"), channel=DEALS))
    workspace.slack.faults.add("error", "usergroups.list", times=1, error="missing_scope")
    assert "usergroups:read" in " ".join((await workspace.verdict(agent)).problems)
    workspace.slack.faults.add("http_error", "*", times=None)
    verdict = await workspace.verdict(agent)
    assert verdict.problems == []
    assert len(verdict.unknown) == 2


BROKEN = serving(Approval(by=UserGroup(handle="nobody-knows"), channel=RANDOM))


async def test_the_start_stops_and_the_doctor_says_the_same(
    workspace: Workspace, database: str, tmp_path: Path
) -> None:
    """Everything that is wrong at once; nothing is served."""
    settings = read_settings(
        {
            "DATABASE_URL": database,
            **POOLER,
            "ATLAS_DATA_DIR": str(tmp_path),
            "SLACK_BOT_TOKEN": workspace.slack.workspace.bot_token,
            "SLACK_APP_TOKEN": workspace.slack.workspace.app_token,
            "SLACK_API_URL": workspace.slack.api_url,
            "ATLAS_AGENT": f"{__name__}:BROKEN",
        }
    )
    with pytest.raises(Misconfigured) as stopped:
        async with replica(settings, "all"):
            pytest.fail("it started")
    words = " ".join(stopped.value.problems)
    assert "no user group @nobody-knows" in words
    assert f"Atlas is not in channel {RANDOM}" in words
    found = [finding.text for finding in await examine(settings) if finding.part == "policies" and not finding.ok]
    assert len(found) == 2
    assert all(text in words for text in found)


@pytest.mark.parametrize("path", ["/api/", "/nowhere/"])
async def test_the_doctor_says_what_to_do_about_a_slack_that_does_not_answer(
    workspace: Workspace, tmp_path: Path, path: str
) -> None:
    """Slack is out of order, or SLACK_API_URL names another server: a finding, not a traceback."""
    workspace.slack.faults.add("http_error", "*", times=None)
    settings = read_settings(
        {
            "DATABASE_URL": "postgresql://atlas@127.0.0.1:1/atlas",
            "ATLAS_DATA_DIR": str(tmp_path),
            "SLACK_BOT_TOKEN": workspace.slack.workspace.bot_token,
            "SLACK_APP_TOKEN": workspace.slack.workspace.app_token,
            "SLACK_API_URL": workspace.slack.api_url.replace("/api/", path),
            "ATLAS_AGENT": f"{__name__}:BROKEN",
        }
    )
    found = {finding.part: finding for finding in await examine(settings)}
    assert not found["bot token"].ok
    assert found["bot token"].text.startswith(f"Slack cannot be reached at {settings.slack_api_url} (")
    assert "check SLACK_API_URL" in found["bot token"].text
    assert "policies" not in found


UNKEPT = """
from core import Agent, Approval, Message, ModelReply, Preview, Scope, Tool, UserGroup
from pydantic import BaseModel

class Nothing(BaseModel):
    pass

class Send(Tool[Nothing]):
    name, writes, unknown = "send", True, "ask_person"
    approval = Approval(by=UserGroup(handle="nobody-knows"))
    def permitted(self, args, scope): return True
    async def preview(self, args, ctx): return Preview(title="Send")
    async def execute(self, args, ctx): return None

class Model:
    async def respond(self, messages, tools, max_output_tokens): return ModelReply(text="no")

async def scopes(user): return Scope()

agent = Agent(instructions="", tools=[Send()], scopes=scopes, model=Model())
"""


async def test_serve_ends_with_exit_code_2_and_one_message(workspace: Workspace, database: str, tmp_path: Path) -> None:
    """As an operator sees it."""
    (tmp_path / "unkept.py").write_text(UNKEPT, encoding="utf-8")
    environment = {
        "PATH": os.environ["PATH"],
        "DATABASE_URL": database,
        **POOLER,
        "SLACK_BOT_TOKEN": workspace.slack.workspace.bot_token,
        "SLACK_APP_TOKEN": workspace.slack.workspace.app_token,
        "SLACK_API_URL": workspace.slack.api_url,
        "ATLAS_AGENT": "unkept:agent",
        "ATLAS_HTTP_PORT": "0",
    }
    served = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "bot", "serve", cwd=tmp_path, env=environment, stdout=PIPE, stderr=PIPE
    )
    try:
        async with asyncio.timeout(300):
            _, said = await served.communicate()
    finally:
        if served.returncode is None:
            served.kill()
            await served.wait()
    assert served.returncode == 2
    words = said.decode()
    assert words.count("cannot start") == 1
    assert "ATLAS_AGENT=unkept:agent: tool send: the workspace has no user group @nobody-knows" in words
    assert "Traceback" not in words


# ---- scopes from user groups -----------------------------------------------------------------------------------------


async def test_permissions_follow_the_groups_of_this_moment(workspace: Workspace) -> None:
    """Each resolution asks Slack: who left a group has lost its permissions at once."""
    scopes = slack_group_scopes(
        {"inside-sales": {"quotes.draft"}, "sales-managers": {"quotes.send", "discounts"}}, everyone={"accounts.read"}
    )
    scopes.bind(workspace.directory)
    assert await scopes(workspace.user(VERA)) == Scope(
        permissions=frozenset({"accounts.read"}), attributes={"slack_groups": []}
    )
    marcus = await scopes(workspace.user(MARCUS))
    assert marcus.permissions == {"accounts.read", "quotes.draft", "quotes.send", "discounts"}
    assert marcus.attributes == {"slack_groups": ["inside-sales", "sales-managers"]}
    workspace.slack.change_world({"group": "sales-managers", "users": []})
    assert (await scopes(workspace.user(MARCUS))).permissions == {"accounts.read", "quotes.draft"}
    workspace.slack.change_world({"person": MARCUS, "set": {"kind": "deactivated"}})
    assert await scopes(workspace.user(MARCUS)) == Scope()


async def test_another_resolver_adds_to_the_groups(workspace: Workspace) -> None:
    """Permissions and attributes of one's own directory stand beside the groups'."""

    async def own(user: User) -> Scope:
        return Scope(permissions=frozenset({"own"}), attributes={"region": "north"})

    scopes = slack_group_scopes({"inside-sales": ["quotes.draft"]}, also=own)
    scopes.bind(workspace.directory)
    found = await scopes(workspace.user(RITA))
    assert found.permissions == {"own", "quotes.draft"}
    assert found.attributes == {"region": "north", "slack_groups": ["inside-sales"]}


@pytest.mark.parametrize("method", ["usergroups.list", "users.info"])
async def test_groups_that_cannot_be_asked_are_never_guessed(workspace: Workspace, method: str) -> None:
    """Not even from what was heard a moment ago."""
    scopes = slack_group_scopes({"inside-sales": {"quotes.draft"}})
    with pytest.raises(CouldNotCheck, match="not bound"):
        await scopes(workspace.user(RITA))
    scopes.bind(workspace.directory)
    await scopes(workspace.user(RITA))
    workspace.slack.faults.add("http_error", method, times=1)
    with pytest.raises(CouldNotCheck):
        await scopes(workspace.user(RITA))
    assert (await scopes(workspace.user(RITA))).permissions == {"quotes.draft"}


async def test_a_scope_map_with_an_unknown_group_stops_the_start(workspace: Workspace) -> None:
    """A handle that does not exist would grant nothing to anybody, in silence."""
    agent = serving(None, slack_group_scopes({"inside-sale": {"quotes.draft"}, "sales-managers": {"quotes.send"}}))
    (problem,) = (await workspace.verdict(agent)).problems
    assert "scopes: the workspace has no user group @inside-sale" in problem
    with pytest.raises(ValueError, match="without the @"):
        slack_group_scopes({"@inside-sales": {"x"}})
