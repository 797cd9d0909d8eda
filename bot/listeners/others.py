"""What no listener of ours knows: forms of an older version, shortcuts, other commands. Acked, noted, and nothing done.

Decides: that nobody waits in vain. Does not: touch what is ours; what ours did not commit stays unacked. The failure it
can cause: a pattern that also matches one of ours would ack what was never stored; so ours are left out by name.
"""

import logging
import re

from slack_bolt.async_app import AsyncApp
from slack_bolt.kwargs_injection.async_args import AsyncArgs

from bot import texts
from bot.blocks.edit_form import EDIT
from bot.blocks.modals import DECLINE, DETAILS_APPROVE, DETAILS_NEXT, told
from bot.listeners.service import Service, whisper

log = logging.getLogger("atlas.listeners")

OURS = (DECLINE, DETAILS_APPROVE, DETAILS_NEXT, EDIT)


def register(app: AsyncApp, service: Service) -> None:
    """Add listeners for everything else to *app*; call this last."""

    @service.listener
    async def unknown_form(args: AsyncArgs) -> None:
        log.info("a form of an unknown kind: %s", str((args.body.get("view") or {}).get("callback_id"))[:100])
        await args.ack(response_action="update", view=told((texts.UNKNOWN_BUTTON,)))

    @service.listener
    async def unknown_command(args: AsyncArgs) -> None:
        log.info("an unknown command: %s", str(args.body.get("command"))[:100])
        await args.ack()
        await whisper(args, (texts.UNKNOWN_COMMAND,))

    @service.listener
    async def noted(args: AsyncArgs) -> None:
        log.info("nothing is done about a %s", str(args.body.get("type"))[:100])
        await args.ack()

    app.view(re.compile(rf"\A(?!(?:{'|'.join(map(re.escape, OURS))})\Z)"))(unknown_form)
    app.view_closed(re.compile(".*"))(noted)
    app.shortcut(re.compile(".*"))(noted)
    app.options(re.compile(".*"))(noted)
    app.command(re.compile(r"\A(?!/atlas\Z)"))(unknown_command)
