"""Buttons: approve, decline, outcomes, continue, stop, details, acknowledge.

Decides: the order claim, then ack, then answer. Does not: judge anybody (the engine does). The failure it can cause: an
ack before the commit loses a decision that its maker believes made.
"""

import logging
import re

from slack_bolt.async_app import AsyncApp
from slack_bolt.kwargs_injection.async_args import AsyncArgs

from bot import texts
from bot.blocks.edit_form import can_be_edited, edit_form
from bot.blocks.modals import decline_form, details, loading, told
from bot.blocks.offers import EXAMPLE
from bot.listeners.service import NotCommitted, Press, Service, read_press, whisper
from bot.slack import CALL_ERRORS, read_failure
from core.approvals import Refusal, Via
from core.ports import Decided
from core.run import Run, Suspension, SuspensionStatus

log = logging.getLogger("atlas.listeners")


def register(app: AsyncApp, service: Service) -> None:
    """Add the button listeners to *app*."""

    async def decide(args: AsyncArgs, *, approve: bool) -> None:
        press = _press(args)
        if press is None or not press.suspension_id:
            await service.refuse_unreadable(args.body, _via(args), "approve" if approve else "decline")
            await args.ack()
            await whisper(args, (texts.BUTTON_UNREADABLE,))
            return
        async with service.committing():
            decided = await service.engine.decide(
                service.actor(args.body, _via(args)),
                press.suspension_id,
                press.token,
                approve=approve,
                digest=press.digest,
            )
        await args.ack()
        if decided.refusal in (None, Refusal.EXPIRED):
            service.moved()
        if decided.refusal is not None:
            await whisper(args, service.refusal(decided))
        await _redraw(args, service)

    @service.listener
    async def approve(args: AsyncArgs) -> None:
        await decide(args, approve=True)

    @service.listener
    async def did_not_happen(args: AsyncArgs) -> None:
        await decide(args, approve=False)

    @service.listener
    async def decline(args: AsyncArgs) -> None:
        # The form first: its trigger lives 3 s and nothing is changed before it is submitted.
        press = _press(args)
        await args.ack()
        if press is None or not press.suspension_id:
            await whisper(args, (texts.BUTTON_UNREADABLE,))
            return
        try:
            await args.client.views_open(trigger_id=args.body["trigger_id"], view=decline_form(press.raw))
        except CALL_ERRORS as error:
            log.info("the decline form did not open: %s", read_failure(error).error)
            await whisper(args, (texts.FORM_TOO_LATE,))

    @service.listener
    async def show_details(args: AsyncArgs) -> None:
        press = _press(args)
        await args.ack()
        if press is None or not press.suspension_id:
            await whisper(args, (texts.BUTTON_UNREADABLE,))
            return
        try:
            opened = await args.client.views_open(trigger_id=args.body["trigger_id"], view=loading())
        except CALL_ERRORS as error:
            log.info("the details did not open: %s", read_failure(error).error)
            await whisper(args, (texts.FORM_TOO_LATE,))
            return
        view = await page_of(service, args, press, 0)
        try:
            await args.client.views_update(view_id=opened["view"]["id"], view=view)
        except CALL_ERRORS as error:
            log.warning("the details could not be shown: %s", read_failure(error).error)

    @service.listener
    async def edit(args: AsyncArgs) -> None:
        press = _press(args)
        await args.ack()
        if press is None or not press.suspension_id:
            await whisper(args, (texts.BUTTON_UNREADABLE,))
            return
        try:
            opened = await args.client.views_open(trigger_id=args.body["trigger_id"], view=loading("Edit"))
            view = await edit_page(service, args, press)
            await args.client.views_update(view_id=opened["view"]["id"], view=view)
        except CALL_ERRORS as error:
            log.info("the edit form did not open: %s", read_failure(error).error)
            await whisper(args, (texts.FORM_TOO_LATE,))

    @service.listener
    async def go_on(args: AsyncArgs) -> None:
        press = _press(args)
        if press is None or not press.run_id or press.halt_number is None:
            await args.ack()
            await whisper(args, (texts.BUTTON_UNREADABLE,))
            return
        async with service.committing():
            continued = await service.engine.continue_run(
                service.actor(args.body, _via(args)), press.run_id, press.halt_number
            )
        await args.ack()
        service.moved()
        if continued.run is None:
            actor = service.actor(args.body, _via(args))
            view = await service.engine.show(actor, press.run_id)
            await whisper(args, (texts.not_continued_words(view.run if view else None, actor.user_id),))
        await _redraw(args, service)

    @service.listener
    async def stop(args: AsyncArgs) -> None:
        press = _press(args)
        if press is None or not press.run_id:
            await args.ack()
            await whisper(args, (texts.BUTTON_UNREADABLE,))
            return
        async with service.committing():
            stopped = await service.engine.stop_run(service.actor(args.body, _via(args)), press.run_id)
        await args.ack()
        service.moved()
        if stopped.how != "halted":
            await whisper(args, (texts.stopped_words(stopped),))
        await _redraw(args, service)

    @service.listener
    async def acknowledge(args: AsyncArgs) -> None:
        press = _press(args)
        if press is None or not press.alert:
            await args.ack()
            await whisper(args, (texts.BUTTON_UNREADABLE,))
            return
        async with service.committing():
            done = await service.engine.acknowledge(service.actor(args.body, _via(args)), press.alert)
        await args.ack()
        service.moved()
        if done is None or done.refused:
            await whisper(args, (texts.ACKNOWLEDGE_UNCHECKED if done is None else texts.NOT_AN_OPERATOR,))

    @service.listener
    async def link(args: AsyncArgs) -> None:
        await args.ack()

    @service.listener
    async def unknown(args: AsyncArgs) -> None:
        await args.ack()
        await whisper(args, (texts.UNKNOWN_BUTTON,))

    known = {
        "approve": approve,
        "happened": approve,
        "did_not_happen": did_not_happen,
        "decline": decline,
        "details": show_details,
        "edit": edit,
        "continue": go_on,
        "stop": stop,
        "acknowledge": acknowledge,
    }
    for action_id, listener in known.items():
        app.action(action_id)(listener)
    app.action(re.compile(r"\Alink\b"))(link)
    # Not for the ones above: Bolt tries the next listener when one did not ack, and what was not committed must stay
    # unacked.
    app.action(re.compile(rf"\A(?!(?:{'|'.join(known)})\Z|(?:link|{EXAMPLE})\b)"))(unknown)


def _press(args: AsyncArgs) -> Press | None:
    actions = args.body.get("actions") or [{}]
    return read_press(actions[0].get("value"))


def _via(args: AsyncArgs) -> Via:
    container = args.body.get("container") or {}
    return Via.HOME if container.get("type") == "view" else Via.BUTTON


async def _redraw(args: AsyncArgs, service: Service) -> None:
    """Draw the Home anew on which a button was pressed."""
    if _via(args) is Via.HOME:
        actor = service.actor(args.body, Via.HOME)
        await service.homes.opened(actor.team_id, actor.user_id)


async def page_of(service: Service, args: AsyncArgs, press: Press, page: int) -> dict[str, object]:
    """Return a page of the details that *press* asks for, or why there is none. Whoever sees the card may read it."""
    try:
        async with service.committing():
            found = await service.engine.desk.suspension(press.suspension_id)
            versus = None
            if found and found[0].replaces:
                older = await service.engine.desk.suspension(found[0].replaces)
                versus = older[0] if older else None
    except NotCommitted as error:
        log.warning("details of %s: %s", press.suspension_id, error)
        return told(("Atlas could not read the details just now. Please press Details again.",))
    actor = service.actor(args.body, Via.BUTTON)
    if found is None or found[1].team_id != actor.team_id:
        return told(service.refusal(Decided(Refusal.UNKNOWN, None, None)))
    suspension, run, expired = found
    late = _late(suspension, run, press, expired=expired)
    if late is not None:
        return told(service.refusal(late))
    return details(suspension, versus, run, press.raw, page)


async def edit_page(service: Service, args: AsyncArgs, press: Press) -> dict[str, object]:
    """Return the form that edits what *press* names, or why there is none. Submitting it is judged, not opening it."""
    try:
        async with service.committing():
            found = await service.engine.desk.suspension(press.suspension_id)
    except NotCommitted as error:
        log.warning("editing %s: %s", press.suspension_id, error)
        return told(("Atlas could not read the request just now. Please press Edit again.",))
    if found is None or found[1].team_id != service.actor(args.body, Via.BUTTON).team_id:
        return told(service.refusal(Decided(Refusal.UNKNOWN, None, None)))
    suspension, run, expired = found
    if suspension.status is not SuspensionStatus.OPEN:
        replaced = suspension.status is SuspensionStatus.REPLACED
        return told(service.refusal(Decided(Refusal.REPLACED if replaced else Refusal.DECIDED, suspension, run)))
    late = _late(suspension, run, press, expired=expired)
    if late is not None:
        return told(service.refusal(late))
    tool = service.engine.agent.tool(suspension.tool)
    if tool is None or not can_be_edited(suspension, tool.arguments_model):
        return told((texts.NOT_EDITABLE,))
    return edit_form(suspension, tool.arguments_model, press.raw)


def _late(suspension: Suspension, run: Run, press: Press, *, expired: bool) -> Decided | None:
    """Say whether the pages would show something else than the pressed card, or nothing that can be approved."""
    if suspension.status is SuspensionStatus.REPLACED:
        return Decided(Refusal.REPLACED, suspension, run)
    if suspension.status is SuspensionStatus.OPEN and expired:
        return Decided(Refusal.EXPIRED, suspension, run)
    if suspension.status is SuspensionStatus.OPEN and (suspension.token, suspension.digest) != (
        press.token,
        press.digest,
    ):
        return Decided(Refusal.PRESS_AGAIN, suspension, run)
    return None
