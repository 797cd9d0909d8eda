"""The Bolt app: static authorization, the inbox middleware, all listeners. The same for Socket Mode and HTTP.

Decides: what is registered in which order. Does not: connect (socket does) or listen. The failure it can cause: Bolt's
own authorization asks ``auth.test`` per event, and one failed answer eats that event; so who we are is asked once, at
start.
"""

import logging
from collections.abc import Awaitable, Callable, Sequence

import aiohttp
from aiohttp import web
from slack_bolt.adapter.aiohttp import to_aiohttp_response, to_bolt_request
from slack_bolt.async_app import AsyncApp
from slack_bolt.authorization import AuthorizeResult

from bot.homes import Homes
from bot.listeners import actions, commands, events, others, views
from bot.listeners import examples as examples_
from bot.listeners.service import COMMIT_WITHIN_S, InFlight, Service
from bot.slack import Installation, web_client
from core.engine import Engine
from core.ports import Inbox

BOLT_LOG = logging.getLogger("atlas.bolt")
# Bolt finds SLACK_BOT_TOKEN in the environment and warns at each start that it will not use it: so it is meant.
BOLT_LOG.addFilter(lambda record: not record.getMessage().startswith("As you gave `client`"))


def _nothing() -> None:
    return None


def _unheard(channel_id: str, thread_ts: str) -> None:
    return None


def build_app(
    installation: Installation,
    engine: Engine,
    inbox: Inbox,
    homes: Homes,
    session: aiohttp.ClientSession,
    *,
    api_url: str = "",
    signing_secret: str = "",
    examples: Sequence[str] = (),
    groups: Callable[[], dict[str, str]] = dict,
    arrived: Callable[[], None] = _nothing,
    heard: Callable[[str, str], None] = _unheard,
    moved: Callable[[], None] = _nothing,
    in_flight: InFlight | None = None,
    commit_within_s: float = COMMIT_WITHIN_S,
) -> AsyncApp:
    """Return the app with every listener.

    *session*: shared by all calls, with its own timeout. *signing_secret*: set in HTTP mode only; requests are then
    verified. *arrived*: the inbox has something new; *heard*: (channel, thread) of a message that
    was stored, for a first sign; *moved*: a person's act was recorded, so work and messages may be
    due. *in_flight* counts running listeners for a clean shutdown.
    """
    result = AuthorizeResult(
        enterprise_id=installation.enterprise_id,
        team_id=installation.team_id,
        url=installation.url,
        bot_user_id=installation.bot_user_id,
        bot_id=installation.bot_id,
        bot_token=installation.bot_token,
    )

    async def authorize() -> AuthorizeResult:
        return result

    app = AsyncApp(
        name="atlas",
        logger=BOLT_LOG,
        client=web_client(None, session, api_url),
        authorize=authorize,
        signing_secret=signing_secret,
        request_verification_enabled=bool(signing_secret),
        ssl_check_enabled=bool(signing_secret),
        url_verification_enabled=bool(signing_secret),
        attaching_function_token_enabled=False,
    )
    service = Service(
        engine=engine,
        installation=installation,
        homes=homes,
        moved=moved,
        groups=groups,
        examples=tuple(examples),
        commit_within_s=commit_within_s,
        in_flight=in_flight or InFlight(),
    )
    events.register(app, service, inbox, arrived, heard)
    examples_.register(app, service, inbox, arrived)
    actions.register(app, service)
    commands.register(app, service)
    views.register(app, service)
    others.register(app, service)
    return app


def events_route(app: AsyncApp) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    """Return the aiohttp handler for Slack's requests in HTTP mode; Bolt verifies signature and age first."""

    async def handle(request: web.Request) -> web.StreamResponse:
        return await to_aiohttp_response(await app.async_dispatch(await to_bolt_request(request)))

    return handle
