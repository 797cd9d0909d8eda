"""The doctor: everything that a start needs, checked one by one, each with what to do.

Decides: nothing; it looks. It opens a Socket Mode connection ticket (Bolt itself never fails fast on a bad app token),
compares the granted oauth scopes with the manifest's, and renders each preview twice (a clock in a preview would mean
asking for ever). The failure it can cause: none; it changes nothing anywhere.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from slack_sdk.web.async_client import AsyncWebClient

from bot.loading import load_agent, load_model
from bot.opening import database_report, known_calls, required_oauth_scopes
from bot.people import SlackDirectory
from bot.policies import examine_policies
from bot.settings import Settings
from bot.slack import (
    CALL_ERRORS,
    CallFailed,
    FailureKind,
    identify,
    read_failure,
    unreachable,
    web_client,
    web_session,
)
from bot.wiring import SystemClock
from core.agent import Agent
from core.approvals import digest_of
from core.calls import Ready, ready
from core.conversation import CallKey, ToolCall
from core.errors import AtlasError, Misconfigured
from core.next_act import OpenCall
from core.tools import Scope, Tool, ToolContext, User


@dataclass(frozen=True, slots=True)
class Finding:
    """One part and how it is; *text* says what to do when it is not ok."""

    part: str
    ok: bool
    text: str


async def examine(settings: Settings) -> list[Finding]:
    """Look at everything; never raises for what it finds."""
    findings = [Finding("settings", True, "complete")]
    findings += [Finding(*part) for part in await database_report(settings)]
    findings += await _slack(settings)
    try:
        agent = load_agent(settings.agent)
        load_model(agent, settings.model)
    except Misconfigured as error:
        findings += [Finding("agent", False, problem) for problem in error.problems]
        return findings
    alone = f"; done without approval: {', '.join(unasked(agent))}" if unasked(agent) else ""
    findings.append(Finding("agent", True, f"{settings.agent}: {len(agent.tools)} tools{alone}"))
    findings += await _policies(settings, agent)
    findings += await _previews(settings, agent)
    return findings


def unasked(agent: Agent) -> list[str]:
    """Name the writes that nobody approves: one with a misspelt ``approval`` is among them."""
    return [t.name for t in agent.tools if t.writes and t.approval is None and type(t).policy is Tool.policy]


async def _policies(settings: Settings, agent: Agent) -> list[Finding]:
    """Hold the agent's policies against the workspace, as a start does."""
    async with web_session() as session:
        client = web_client(settings.bot_token, session, settings.slack_api_url)
        try:
            installation = await identify(client)
        except (Misconfigured, CallFailed):
            return []  # said already, as the bot token's finding
        verdict = await examine_policies(agent, client, SlackDirectory(client, installation, SystemClock()))
    if verdict.problems:
        return [Finding("policies", False, problem) for problem in verdict.problems]
    if verdict.unknown:
        return [Finding("policies", True, f"not checked: {doubt}") for doubt in verdict.unknown]
    return [Finding("policies", True, "the groups, channels and people that they name are there")]


async def _slack(settings: Settings) -> list[Finding]:
    client = AsyncWebClient(token=settings.bot_token, base_url=settings.slack_api_url, timeout=10)
    findings: list[Finding] = []
    try:
        answer = await client.auth_test()
    except CALL_ERRORS as error:
        fix = "Slack refused SLACK_BOT_TOKEN: {}; reinstall the app and copy its bot token"
        return [_unanswered("bot token", settings, error, fix)]
    findings.append(Finding("bot token", True, f"{answer['user']} in {answer['team']}"))
    findings.append(_oauth_scopes(answer.headers))
    if settings.app_token:
        try:
            await client.apps_connections_open(app_token=settings.app_token)
            findings.append(Finding("app token", True, "Socket Mode opens"))
        except CALL_ERRORS as error:
            fix = "Slack refused SLACK_APP_TOKEN: {}; make one with connections:write"
            findings.append(_unanswered("app token", settings, error, fix))
    findings.append(await _alert_channel(client, settings))
    return findings


def _unanswered(part: str, settings: Settings, error: Exception, refused: str) -> Finding:
    """Tell a refusal of Slack's, which *refused* explains, from a Slack that was not there to be asked."""
    failure = read_failure(error)
    if failure.kind in (FailureKind.REFUSED, FailureKind.LOCKED_OUT):
        return Finding(part, False, refused.format(failure.error))
    return Finding(part, False, unreachable(settings.slack_api_url, failure))


def _oauth_scopes(headers: Mapping[str, Any]) -> Finding:
    granted_header = next((value for name, value in headers.items() if name.lower() == "x-oauth-scopes"), "")
    granted = {part.strip() for part in str(granted_header).split(",") if part.strip()}
    missing = sorted(required_oauth_scopes() - granted)
    if missing:
        fix = f"missing: {', '.join(missing)}; update the app from manifest.yml and reinstall it"
        return Finding("oauth scopes", False, fix)
    return Finding("oauth scopes", True, f"{len(granted)} granted")


async def _alert_channel(client: AsyncWebClient, settings: Settings) -> Finding:
    channel = settings.alert_channel
    if channel is None:
        return Finding("alert channel", True, "none set: alerts are only logged (set ATLAS_ALERT_CHANNEL)")
    try:
        answer = await client.conversations_info(channel=channel)
    except CALL_ERRORS as error:
        return _unanswered("alert channel", settings, error, channel + ": {}; check ATLAS_ALERT_CHANNEL")
    if not answer["channel"].get("is_member"):
        return Finding("alert channel", False, f"Atlas is not in {channel}: /invite @Atlas there")
    return Finding("alert channel", True, f"member of #{answer['channel'].get('name', channel)}")


async def _previews(settings: Settings, agent: Agent) -> list[Finding]:
    """Render the preview of a known or exemplary call of each tool twice and compare digests."""
    findings: list[Finding] = []
    stored = await known_calls(settings)
    for tool in agent.tools:
        if not tool.writes or type(tool).preview is Tool.preview:
            continue
        arguments = stored.get(tool.name) or _example(tool)
        part = f"preview of {tool.name}"
        if arguments is None:
            findings.append(
                Finding(part, True, "not rendered: no call of it is stored, and its arguments have no example")
            )
            continue
        call = OpenCall(CallKey(0, 0), ToolCall(id="doctor", tool=tool.name, arguments=arguments), arguments)
        prepared = ready(agent, call)
        if isinstance(prepared, str):
            findings.append(Finding(part, False, f"its stored arguments no longer load: {prepared}"))
            continue
        findings.append(await _twice(prepared, part))
    return findings


def _example(tool: Tool[Any]) -> dict[str, Any] | None:
    examples = tool.arguments_model.model_json_schema().get("examples")
    return examples[0] if isinstance(examples, list) and examples and isinstance(examples[0], dict) else None


async def _twice(prepared: Ready, part: str) -> Finding:
    nobody = User(team_id="T0", user_id="U0", name="doctor", email=None)
    ctx = ToolContext(run_id="doctor", call_id="doctor:0:0", idempotency_key="doctor", user=nobody, scope=Scope())
    tool = prepared.tool
    try:
        digests = [
            digest_of(tool.name, tool.version, prepared.arguments, await tool.preview(prepared.args, ctx))
            for _ in range(2)
        ]
    except AtlasError as error:
        return Finding(part, True, f"not rendered: {error}")
    except Exception as error:  # noqa: BLE001  a tool's preview may raise anything; that is the finding
        return Finding(part, False, f"it raised {type(error).__name__}: {error}")
    if digests[0] != digests[1]:
        return Finding(
            part, False, "two renderings differ: take clocks and randomness out of it, or people are asked for ever"
        )
    return Finding(part, True, f"stable ({digests[0][:8]})")
