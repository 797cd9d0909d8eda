"""The Web API as Atlas calls it: clients without blind retries, what an answer means, who we are.

Decides: which failures prove that nothing happened, which prove that Slack refuses, and which leave the outcome open.
Does not: decide what to do about it (delivery and people do). The failure it can cause: an open outcome taken for a
refusal posts a message twice. Sources: slack_sdk 3.48 (its default client resends after a dropped connection, and a
message then stands twice); Slack's error tables of chat.postMessage and chat.update.
"""

import asyncio
from dataclasses import dataclass
from enum import StrEnum

import aiohttp
from slack_sdk.errors import SlackApiError, SlackRequestError
from slack_sdk.web.async_client import AsyncWebClient

from core.errors import Misconfigured

REQUEST_TIMEOUT_S = 10.0
DEFAULT_API_URL = "https://slack.com/api/"


def web_session(timeout_s: float = REQUEST_TIMEOUT_S) -> aiohttp.ClientSession:
    """Return the one HTTP session of this process for Slack. slack_sdk applies its own timeout only without one."""
    return aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=timeout_s))


def web_client(token: str | None, session: aiohttp.ClientSession, api_url: str = "") -> AsyncWebClient:
    """Return a client that sends each request once. *token* None: for Bolt, which puts it in per request."""
    return AsyncWebClient(token=token, base_url=api_url or DEFAULT_API_URL, session=session, retry_handlers=[])


@dataclass(frozen=True, slots=True)
class Installation:
    """Who we are in the workspace, from one ``auth.test`` at start. *url*: the workspace's own address."""

    team_id: str
    enterprise_id: str | None
    bot_user_id: str
    bot_id: str
    url: str
    bot_token: str
    oauth_scopes: frozenset[str] = frozenset()


async def identify(client: AsyncWebClient) -> Installation:
    """Return who the bot token is. Raises: Misconfigured when Slack refuses it; CallFailed when it cannot be asked."""
    try:
        answer = await client.auth_test()
    except (SlackApiError, SlackRequestError, aiohttp.ClientError, TimeoutError) as error:
        failure = read_failure(error)
        if failure.kind in (FailureKind.REFUSED, FailureKind.LOCKED_OUT):
            hint = "install the app in the workspace and copy its Bot User OAuth Token (xoxb-…)"
            raise Misconfigured([f"SLACK_BOT_TOKEN is refused by Slack ({failure.error}): {hint}"]) from error
        raise CallFailed(failure) from error
    scopes = str(answer.headers.get("x-oauth-scopes") or answer.headers.get("X-OAuth-Scopes") or "")
    return Installation(
        team_id=str(answer["team_id"]),
        enterprise_id=answer.get("enterprise_id"),
        bot_user_id=str(answer["user_id"]),
        bot_id=str(answer.get("bot_id") or ""),
        url=str(answer.get("url") or ""),
        bot_token=str(client.token),
        oauth_scopes=frozenset(scope.strip() for scope in scopes.split(",") if scope.strip()),
    )


class FailureKind(StrEnum):
    """What a failed call leaves behind."""

    NOTHING_HAPPENED = "nothing_happened"
    """Never reached Slack, or Slack says that it did nothing: safe to send again."""
    PAUSE = "pause"
    """429: nothing happened, and Slack names the pause."""
    OPEN = "open"
    """It may have happened."""
    REFUSED = "refused"
    """Slack said no, and will again."""
    LOCKED_OUT = "locked_out"
    """The token is refused: nothing works until somebody repairs it."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A failed call. *pause_s*: seconds that Slack asked for."""

    kind: FailureKind
    error: str
    pause_s: float = 0.0


class CallFailed(Exception):
    """A call that failed for a reason that may pass."""

    def __init__(self, failure: Failure) -> None:
        self.failure = failure
        super().__init__(failure.error)


# "Some aspect of the operation may have succeeded": Slack's own words for the first two.
_OPEN = frozenset({"internal_error", "fatal_error", "request_timeout", "service_unavailable", "update_failed"})
_LOCKED_OUT = frozenset(
    {"invalid_auth", "not_authed", "token_revoked", "token_expired", "account_inactive", "org_login_required"}
)


def read_failure(error: Exception) -> Failure:
    """Return what *error* of a call means."""
    if isinstance(error, SlackApiError):
        return _read_answer(error)
    if isinstance(error, aiohttp.ClientConnectorError):
        return Failure(FailureKind.NOTHING_HAPPENED, f"no connection ({type(error).__name__})")
    if isinstance(error, SlackRequestError):
        return Failure(FailureKind.REFUSED, f"the request could not be built ({error})")
    if isinstance(error, TimeoutError | asyncio.TimeoutError):
        return Failure(FailureKind.OPEN, "no answer in time")
    return Failure(FailureKind.OPEN, f"the connection broke ({type(error).__name__})")


def unreachable(api_url: str, failure: Failure) -> str:
    """Say what to do about a Slack that could not be asked at *api_url*."""
    return f"Slack cannot be reached at {api_url} ({failure.error}); check SLACK_API_URL and the network"


def _read_answer(error: SlackApiError) -> Failure:
    response = error.response
    status = int(getattr(response, "status_code", 0) or getattr(response, "status", 0) or 0)
    body = getattr(response, "data", None)
    code = str(body.get("error") or "") if isinstance(body, dict) else ""
    if status == 429 or code in ("ratelimited", "rate_limited"):
        headers = getattr(response, "headers", None) or {}
        pause = headers.get("Retry-After") or headers.get("retry-after") or "30"
        return Failure(FailureKind.PAUSE, "ratelimited", float(pause) if str(pause).isdigit() else 30.0)
    if status >= 500 or not code or code in _OPEN:
        return Failure(FailureKind.OPEN, code or f"HTTP {status}")
    if code in _LOCKED_OUT:
        return Failure(FailureKind.LOCKED_OUT, code)
    messages = body.get("response_metadata", {}).get("messages") if isinstance(body, dict) else None
    detail = f": {'; '.join(str(it) for it in messages)[:500]}" if messages else ""
    return Failure(FailureKind.REFUSED, code + detail)


CALL_ERRORS = (SlackApiError, SlackRequestError, aiohttp.ClientError, TimeoutError)
"""What a call of a client raises."""
