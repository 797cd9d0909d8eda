"""The simulated workspace as one server: wiring, start, stop, and the acts that tests use.

Decides which part serves which address. Everything listens on one port. Failure it can cause:
state lives in memory, so stopping it forgets the workspace.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from aiohttp import web

from bot.simulator.acts import Acts, Values
from bot.simulator.chat_methods import ChatMethods
from bot.simulator.clock import Clock
from bot.simulator.control_routes import ControlRoutes
from bot.simulator.delivery import RETRY_SCHEDULE_S, Dispatch, Interaction
from bot.simulator.events import Events
from bot.simulator.faults import Faults
from bot.simulator.hooks import Hooks
from bot.simulator.http_mode import HttpMode
from bot.simulator.journal import Journal
from bot.simulator.live import Live
from bot.simulator.page_routes import PageRoutes
from bot.simulator.payloads import Payloads
from bot.simulator.read_methods import ReadMethods
from bot.simulator.rooms import STATUS_LIFE_S, Change, Message, Rooms
from bot.simulator.sockets import SocketMode
from bot.simulator.stream_methods import StreamMethods
from bot.simulator.tickets import ResponseUrls, Triggers
from bot.simulator.tiers import RateTiers
from bot.simulator.view_methods import ViewMethods
from bot.simulator.views import View, ViewChange, Views
from bot.simulator.webapi import HISTORY, READ, Method, WebApi
from bot.simulator.workspace import AppManifest, Workspace

T = TypeVar("T")


class Simulator:
    """A local Slack. Use as `async with Simulator() as slack`, or start() and stop().

    Args:
        workspace: who and what is in it; the default cast when None.
        manifest: the installed app's manifest, as read or as a file; a permissive one when None.
        port: 0 lets the system choose.
        panel_url: where `/panel/...` is forwarded.
        journal_path: a file that gets every journal record as one JSON line.
        rate_tiers: enforce Slack's rate limits.
        request_url: HTTP mode: post events and interactions there instead of to sockets.
        retry_schedule_s: pauses before an event's second, third and fourth delivery.
    """

    def __init__(
        self,
        workspace: Workspace | None = None,
        manifest: AppManifest | Path | None = None,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        panel_url: str | None = None,
        journal_path: Path | None = None,
        rate_tiers: bool = False,
        request_url: str | None = None,
        retry_schedule_s: tuple[float, ...] = RETRY_SCHEDULE_S,
    ) -> None:
        self.workspace = workspace or Workspace()
        loaded = AppManifest.load(manifest) if isinstance(manifest, Path) else manifest
        self.manifest = loaded or AppManifest()
        self._host, self._port = host, port
        self.clock = Clock()
        self.journal = Journal(self.clock, journal_path)
        self.faults = Faults()
        self.tiers = RateTiers(self.clock, rate_tiers)
        self.rooms = Rooms(self.workspace, self.clock)
        self.views = Views(self.workspace, self.clock)
        self.payloads = Payloads(self.workspace, self.clock)
        self.sockets = SocketMode(self.clock, self.journal, self.faults, self.workspace.app_id)
        self.http_mode: HttpMode | None = None
        if request_url:
            secret = self.workspace.signing_secret
            self.http_mode = HttpMode(self.clock, self.journal, request_url, secret)
        transport = self.http_mode or self.sockets
        self.dispatch = Dispatch(self.clock, self.journal, transport, retry_schedule_s)
        self.triggers = triggers = Triggers(self.clock)
        self.chat = ChatMethods(self.workspace, self.manifest, self.rooms, self.clock)
        self.streams = StreamMethods(self.workspace, self.rooms, self.chat)
        self._events = Events(self.workspace, self.manifest, self.rooms, self.payloads, self.dispatch)
        self._hooks = Hooks(
            self.rooms,
            self.chat,
            ResponseUrls(self.clock),
            self.journal,
            self.faults,
            self.tiers,
            lambda: self.url,
            self.workspace.team_id,
        )
        self.acts = Acts(
            self.workspace,
            self.manifest,
            self.rooms,
            self.views,
            self.payloads,
            triggers,
            self._hooks,
            self._events,
            self.dispatch,
        )
        self.web_api = WebApi(
            self.workspace,
            self.manifest,
            self.rooms,
            self.journal,
            self.faults,
            self.tiers,
            self._methods(triggers),
            lambda: self.url,
        )
        self.live = Live(
            self.workspace,
            self.manifest,
            self.rooms,
            self.views,
            self.clock,
            lambda: self.dispatch.transport.connected,
            panel_url is not None,
        )
        self._page = PageRoutes(self.workspace, self.acts, self.live, panel_url)
        self._control = ControlRoutes(
            self.journal, self.faults, self.sockets, self.clock, self.advance, self.change_world, self._send_raw
        )
        self._runner: web.AppRunner | None = None
        self._background: set[asyncio.Task[None]] = set()
        self._listen()

    # --- running ---------------------------------------------------------------------------------

    async def start(self) -> "Simulator":
        """Listen; `url` and `api_url` are known from here on."""
        app = web.Application(client_max_size=8 * 1024 * 1024)
        app.router.add_route("*", "/api/{method}", self.web_api.serve)
        app.router.add_get("/link/", self.sockets.link)
        app.router.add_post("/actions/{team}/{secret}", self._hooks.serve)
        app.router.add_post("/commands/{team}/{secret}", self._hooks.serve)
        self._page.add_to(app)
        self._control.add_to(app)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
        await self._runner.setup()
        site = web.TCPSite(self._runner, self._host, self._port)
        await site.start()
        self._port = self._runner.addresses[0][1]
        return self

    async def stop(self) -> None:
        """Stop listening and every delivery; the journal stays readable."""
        await self.dispatch.close()
        self.live.close()
        await self.sockets.close()
        await self._page.close()
        for task in list(self._background):
            task.cancel()
        if self.http_mode is not None:
            await self.http_mode.close()
        if self._runner is not None:
            await self._runner.cleanup()
        self.journal.close()

    async def __aenter__(self) -> "Simulator":
        return await self.start()

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    @property
    def url(self) -> str:
        """The address of the page."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"http://{host}:{self._port}"

    @property
    def api_url(self) -> str:
        """The base address of the Web API, with its trailing slash."""
        return f"{self.url}/api/"

    def addresses(self) -> dict[str, str]:
        """Return what another process needs to connect."""
        return {
            "url": self.url,
            "api_url": self.api_url,
            "app_token": self.workspace.app_token,
            "bot_token": self.workspace.bot_token,
            "signing_secret": self.workspace.signing_secret,
        }

    # --- what people do ----------------------------------------------------------------------------

    async def post_as(self, user: str, channel: str, text: str, thread_ts: str | None = None) -> Message:
        """Post as a person (`@Atlas` and `<@U...>` are mentions); return the stored message."""
        return self.acts.post(user, channel, text, thread_ts, keep_marks=True)

    async def click(
        self,
        user: str,
        channel: str | None,
        ts: str | None,
        action_id: str,
        **how: Any,
    ) -> Interaction:
        """Click as a person; `how` as in `Acts.click`. Await `.settled()` for the outcome."""
        return self.acts.click(user, action_id, channel=channel, ts=ts, **how)

    async def command(self, user: str, channel: str, command: str, text: str = "") -> Interaction:
        """Type a slash command as a person."""
        return self.acts.command(user, channel, command, text)

    async def submit(self, user: str, view_id: str, values: Values | None = None) -> Interaction:
        """Submit an open modal as a person."""
        return self.acts.submit(user, view_id, values)

    async def open_home(self, user: str, tab: str = "home") -> None:
        """Open the app's Home as a person."""
        self.acts.open_home(user, tab)

    def send_event(self, event: dict[str, Any], **wrapper: Any) -> str:
        """Send any event as it stands (a foreign team, another bot, an unknown subtype).

        `wrapper` overrides fields of the callback (event_id, team_id, authorizations, ...).
        Return its event_id.
        """
        ext_shared = bool(wrapper.get("is_ext_shared_channel", False))
        return self.dispatch.event({**self.payloads.wrapper(event, ext_shared), **wrapper})

    def send_interaction(self, kind: str, payload: dict[str, Any]) -> Interaction:
        """Send any interaction payload as it stands; kind: block_actions, view_submission, command."""
        user = payload.get("user_id") or payload.get("user", {}).get("id", "")
        return self.dispatch.interaction(kind, user, payload, lambda interaction, answer: None)

    async def wait_for(self, predicate: Callable[[], T | None], timeout: float = 60.0) -> T:
        """Return the first truthy value of `predicate`, asked again after every change.

        Raises:
            TimeoutError: none within `timeout` real seconds.
        """
        value: T = await self.journal.wait_until(predicate)(timeout)
        return value

    # --- what is there -----------------------------------------------------------------------------

    def messages(self, channel: str, thread_ts: str | None = None) -> list[Message]:
        """Return a channel's messages, or one thread's (parent first), oldest first."""
        room = self.rooms.get(channel)
        if room is None:
            return []
        return room.thread(thread_ts) if thread_ts else list(room.messages.values())

    def message(self, channel: str, ts: str) -> Message | None:
        """Return one message as it is now."""
        room = self.rooms.get(channel)
        return room.messages.get(ts) if room else None

    def bot_messages(self, channel: str, thread_ts: str | None = None) -> list[Message]:
        """Return the bot's own messages in a channel or thread."""
        bot_id = self.workspace.bot_id
        return [m for m in self.messages(channel, thread_ts) if m.get("bot_id") == bot_id]

    def ephemerals(self, user: str, channel: str) -> list[Message]:
        """Return the ephemeral messages that this person sees in this channel."""
        room = self.rooms.get(channel)
        return list(room.ephemerals.get(user, {}).values()) if room else []

    def modals(self, user: str) -> list[View]:
        """Return this person's open modals, bottom first."""
        return list(self.views.stacks.get(user, []))

    def home(self, user: str) -> View | None:
        """Return this person's Home."""
        return self.views.homes.get(user)

    def dm(self, user: str) -> str:
        """Return the id of the DM between this person and the bot."""
        return self.rooms.dm(user).id

    def advance(self, seconds: float) -> None:
        """Move the workspace's clock forward, and tell the pages."""
        self.clock.advance(seconds)
        self.live.clock_moved()

    def change_world(self, change: dict[str, Any]) -> None:
        """Change people, groups or channels: see `POST /world`.

        Raises:
            ValueError: nobody and nothing of that name, or no such field.
        """
        if "person" in change:
            person = self.workspace.person(change["person"])
            _set(person, change["set"])
            self.live.people_changed()
        elif "group" in change:
            wanted = change["group"]
            groups = [g for g in self.workspace.user_groups if wanted in (g.id, g.handle)]
            _set(groups[0] if groups else None, {"users": change["users"]})
        elif "channel" in change:
            room = self.rooms.get(change["channel"])
            _set(room, change["set"])
            if room is not None:
                self.rooms.announce(room)
        elif "token_error" in change:
            self.web_api.token_error = change["token_error"] or None
        else:
            raise ValueError("person, group, channel or token_error is expected")

    # --- wiring ------------------------------------------------------------------------------------

    def _listen(self) -> None:
        self.rooms.listeners += [self._events.changed, self.live.room_changed, self._note_room, self._expire_status]
        self.views.listeners += [self.live.view_changed, self._note_view]
        self.dispatch.on_interaction.append(self.live.interaction)
        self.sockets.on_connected.append(self.live.bot)

    def _send_raw(self, body: dict[str, Any]) -> str:
        if "event" in body:
            return self.send_event(body["event"], **body.get("wrapper", {}))
        return self.send_interaction(body["kind"], body["payload"]).id

    def _expire_status(self, change: Change) -> None:
        if change.what != "status" or not change.message["status"]:
            return
        task = asyncio.ensure_future(self._clear_status(change.room.id, change.message["thread_ts"]))
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def _clear_status(self, channel: str, thread_ts: str) -> None:
        shown = self.rooms.statuses.get((channel, thread_ts))
        await self.clock.sleep(STATUS_LIFE_S)
        if shown is not None and self.rooms.statuses.get((channel, thread_ts)) is shown:
            self.rooms.set_status(self.rooms.all[channel], thread_ts, "", [])

    def _note_room(self, change: Change) -> None:
        self.journal.write(
            "room",
            what=change.what,
            channel=change.room.id,
            ts=change.message.get("ts"),
            user=change.user or change.message.get("user"),
            # a copy: the stored message goes on changing (reply counts, edits)
            message=dict(change.message),
        )

    def _note_view(self, change: ViewChange) -> None:
        self.journal.write(
            "view",
            what=change.what,
            user=change.user,
            view_id=change.view["id"],
            callback_id=change.view["callback_id"],
            errors=change.errors,
        )

    def _open_connection(self, call: Any) -> dict[str, Any]:
        ticket = self.sockets.tickets.issue(call.flag("debug_reconnects"))
        address = self.url.replace("http", "ws", 1)
        url = f"{address}/link/?ticket={ticket}&app_id={self.workspace.app_id}"
        return {"ok": True, "url": url}

    def _methods(self, triggers: Triggers) -> dict[str, Method]:
        chat, streams = self.chat, self.streams
        reads = ReadMethods(self.workspace, self.manifest, self.rooms)
        views = ViewMethods(self.workspace, self.manifest, self.views, triggers)
        write = ("chat:write",)
        agent = ("assistant:write", "chat:write")
        return {
            "apps.connections.open": Method(self._open_connection, app_token=True),
            "auth.test": Method(reads.auth_test),
            "team.info": Method(reads.team_info, ("team:read",)),
            "bots.info": Method(reads.bots_info, ("users:read",)),
            "users.info": Method(reads.users_info, ("users:read",)),
            "users.list": Method(reads.users_list, ("users:read",)),
            "usergroups.list": Method(reads.usergroups_list, ("usergroups:read",)),
            "usergroups.users.list": Method(reads.usergroup_users, ("usergroups:read",)),
            "conversations.open": Method(reads.open, ("im:write",)),
            "conversations.info": Method(reads.info, READ, by_kind=True),
            "conversations.list": Method(reads.listing, READ, by_kind=True),
            "conversations.members": Method(reads.members, READ, by_kind=True),
            "conversations.replies": Method(reads.replies, HISTORY, by_kind=True),
            "conversations.history": Method(reads.history, HISTORY, by_kind=True),
            "conversations.join": Method(reads.join, ("channels:join",)),
            "chat.postMessage": Method(chat.post_message, write),
            "chat.update": Method(chat.update, write),
            "chat.delete": Method(chat.delete, write),
            "chat.postEphemeral": Method(chat.post_ephemeral, write),
            "chat.getPermalink": Method(chat.permalink),
            "chat.startStream": Method(streams.start, write),
            "chat.appendStream": Method(streams.append, write),
            "chat.stopStream": Method(streams.stop, write),
            "reactions.add": Method(chat.react, ("reactions:write",)),
            "reactions.remove": Method(chat.unreact, ("reactions:write",)),
            "views.open": Method(views.open),
            "views.push": Method(views.push),
            "views.update": Method(views.update),
            "views.publish": Method(views.publish),
            "assistant.threads.setStatus": Method(streams.set_status, agent),
            "assistant.threads.setTitle": Method(streams.set_title, agent),
            "assistant.threads.setSuggestedPrompts": Method(streams.set_prompts, agent),
            "agents.sessions.setStatus": Method(streams.set_session, agent),
        }


def _set(thing: object, fields: dict[str, Any]) -> None:
    if thing is None:
        raise ValueError("there is nothing of that name")
    for name, value in fields.items():
        if not hasattr(thing, name):
            raise ValueError(f"no such field: {name}")
        setattr(thing, name, value)
