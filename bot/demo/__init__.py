"""``atlas demo``: a workspace in the browser, with no account anywhere; ``--script`` plays the story by itself.

Decides: what is said at the terminal, and that everything ends when the demo does. Does not: run anything itself; the
stage does. The failure it can cause: none outside the machine, everything listens on loopback only.
"""

import argparse
import asyncio
import os
import signal
import sys
import time
import webbrowser
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager

from bot.demo import story
from bot.demo.children import CannotStart
from bot.demo.panel import Panel
from bot.demo.records import Records
from bot.demo.stage import Stage, records_of, stage
from bot.demo.workspace import RITA, SALES_DESK
from bot.loading import load_agent, load_model
from bot.settings import DESK, Settings, read_settings
from core.errors import Misconfigured

INVITATION = """
  Atlas demo · a small Slack workspace on this machine

  Open     {url}
  You are  Rita Reyes, inside sales (change who you are at the top left)
  Ask      @Atlas {ask}
  Then     {then}

  A fresh workspace at each start. Ctrl-C stops everything.
"""
DESK_ASK = "draft and send a quote for Henderson, 200 of SKU-4411"
DESK_THEN = """Approve it in the thread. Or open “The world” first: put the account
           on credit hold, change the discount, kill Atlas, let it expire."""
OWN_ASK = "something that your agent can do"
OWN_THEN = """Decide on its cards in the thread. Or open “The world” first:
           kill Atlas, let a card expire, lose an answer of Slack's."""


async def show_page(options: argparse.Namespace) -> int:
    """Serve the page until Ctrl-C or SIGTERM; 0 then, 1 or 2 when something cannot start or stay up."""
    settings = read_settings(slack=False)
    if settings.agent != DESK or settings.model:  # the likeliest mistakes are said before there is a page
        load_model(load_agent(settings.agent), settings.model)

    async def serve(opened: Stage) -> int:
        opened.own_agent = True
        own = opened.without_crm
        began = time.monotonic()
        async with _curtain_up(opened, settings, options.port, lambda: _invite(opened, options, own=own)):
            _say(f"  Ready: Atlas is connected ({time.monotonic() - began:.0f} s).")
            why = await opened.failure()
            opened.keep_logs = True
        _complain(why)
        return 1

    return await _until_stopped(settings, serve, stopped=0)


async def play(options: argparse.Namespace) -> int:
    """Play the whole story without a person; 0 when every step went as it must, else 1."""
    settings = read_settings(slack=False)

    async def told(opened: Stage) -> int:
        opened.first.comeback_s = opened.second.comeback_s = 0.2
        async with _curtain_up(opened, settings, options.port, lambda: _announce(opened)) as panel:
            telling = asyncio.ensure_future(story.tell(opened, panel, _say))
            failing = asyncio.ensure_future(opened.failure())
            try:
                await asyncio.wait({telling, failing}, return_when=asyncio.FIRST_COMPLETED)
                if telling.done():
                    return 0 if telling.result() else 1
                opened.keep_logs = True
                _complain(failing.result())
                return 1
            finally:
                for task in (telling, failing):
                    task.cancel()
                await asyncio.gather(telling, failing, return_exceptions=True)

    return await _until_stopped(settings, told, stopped=1)


@asynccontextmanager
async def _curtain_up(
    opened: Stage, settings: Settings, port: int, page_up: Callable[[], None]
) -> AsyncIterator[Panel]:
    """Put everything up: the page first, since people look at it while the rest comes.

    A database of one's own comes before it: it may refuse, and then no page has been shown. Ours takes seconds.
    """
    panel = Panel(opened)
    async with AsyncExitStack() as ends:
        ends.push_async_callback(panel.stop)
        records: Records | None = None
        if settings.database_url is not None:
            records = await ends.enter_async_context(records_of(settings))
        ends.push_async_callback(opened.close)
        await opened.open(port, await panel.start())
        page_up()
        panel.watch()
        if records is None:
            records = await ends.enter_async_context(records_of(settings))
        ends.push_async_callback(opened.close)  # before the database goes
        await opened.start_atlas(records)
        yield panel


async def _until_stopped(settings: Settings, act: Callable[[Stage], Awaitable[int]], *, stopped: int) -> int:
    """Act on a stage until it is over or somebody stops it; everything is gone when this returns."""
    asked = asyncio.Event()
    opened: Stage | None = None

    def ask() -> None:
        if asked.is_set() and opened is not None:
            opened.hurry()
        asked.set()

    async def on_stage() -> int:
        nonlocal opened
        async with stage(settings) as opened:
            return await act(opened)

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, ask)
    acting = asyncio.ensure_future(on_stage())
    waiting = asyncio.ensure_future(asked.wait())
    await asyncio.wait({acting, waiting}, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    if not acting.done():
        _say("\n  Stopping …")
        acting.cancel()
        await asyncio.wait({acting})
    if acting.cancelled():
        _say("  Stopped; nothing is left running.")
        return stopped
    try:
        return acting.result()
    except CannotStart as error:
        _complain(str(error))
        return 1
    except Misconfigured:
        raise
    except OSError as error:
        _complain(f"cannot start: {error}")
        return 1


def _invite(opened: Stage, options: argparse.Namespace, *, own: bool) -> None:
    url = f"{opened.url}/#/as/{RITA}/{SALES_DESK}"
    ask, then = (OWN_ASK, OWN_THEN) if own else (DESK_ASK, DESK_THEN)
    _say(INVITATION.format(url=url, ask=ask, then=then))
    if not options.no_browser and _has_screen():
        webbrowser.open(url)


def _announce(opened: Stage) -> None:
    _say(f"\n  Atlas demo, played by itself · watch it at {opened.url}\n")


def _has_screen() -> bool:
    """Say whether a browser could show anything; without a screen, a text browser would take the terminal over."""
    return sys.platform in ("darwin", "win32") or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


def _say(text: str) -> None:
    try:
        print(text, flush=True)
    except BrokenPipeError:
        # Whoever read us has gone; there is nobody left to tell, and the demo still ends in order.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _complain(text: str) -> None:
    print(f"atlas demo: {text}", file=sys.stderr, flush=True)
