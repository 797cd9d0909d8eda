"""Submitted modals: Decline with its reason, pages of Details, Approve on the last one.

Decides: nothing but the order commit, then ack. A refusal is shown in the modal itself. The failure it can cause: the
same as for buttons; so the same engine, the same checks, the same limit of time.
"""

from typing import Any

from slack_bolt.async_app import AsyncApp
from slack_bolt.kwargs_injection.async_args import AsyncArgs

from bot import texts
from bot.blocks.edit_form import EDIT, read_form
from bot.blocks.modals import DECLINE, DETAILS_APPROVE, DETAILS_NEXT, REASON_BLOCK, REASON_INPUT, REASON_LIMIT, told
from bot.listeners.actions import page_of
from bot.listeners.service import Service, read_press
from core.approvals import Via


def register(app: AsyncApp, service: Service) -> None:
    """Add the modal listeners to *app*."""

    async def decide(args: AsyncArgs, *, approve: bool, reason: str | None = None) -> None:
        press = read_press(args.body["view"].get("private_metadata"))
        if press is None or not press.suspension_id:
            await service.refuse_unreadable(args.body, Via.MODAL, "approve" if approve else "decline")
            await args.ack(response_action="update", view=told((texts.BUTTON_UNREADABLE,)))
            return
        async with service.committing():
            decided = await service.engine.decide(
                service.actor(args.body, Via.MODAL),
                press.suspension_id,
                press.token,
                approve=approve,
                digest=press.digest,
                reason=reason,
            )
        if decided.refusal is not None:
            await args.ack(response_action="update", view=told(service.refusal(decided)))
        else:
            await args.ack(response_action="clear")
        service.moved()

    @service.listener
    async def declined(args: AsyncArgs) -> None:
        await decide(args, approve=False, reason=_reason(args.body["view"]))

    @service.listener
    async def approved(args: AsyncArgs) -> None:
        await decide(args, approve=True)

    @service.listener
    async def edited(args: AsyncArgs) -> None:
        view = args.body["view"]
        press = read_press(view.get("private_metadata"))
        if press is None or not press.suspension_id:
            await service.refuse_unreadable(args.body, Via.MODAL, "edit")
            await args.ack(response_action="update", view=told((texts.BUTTON_UNREADABLE,)))
            return
        async with service.committing():
            found = await service.engine.desk.suspension(press.suspension_id)
            tool = service.engine.agent.tool(found[0].tool) if found else None
            if found is None or tool is None:
                await args.ack(response_action="update", view=told((texts.NOT_EDITABLE,)))
                return
            arguments, errors = read_form(view, tool.arguments_model, found[0].arguments)
            if errors:
                await args.ack(response_action="errors", errors=errors)
                return
            decided = await service.engine.edit(
                service.actor(args.body, Via.MODAL), press.suspension_id, press.token, arguments
            )
        if decided.refusal is not None:
            await args.ack(response_action="update", view=told(service.refusal(decided)))
        else:
            await args.ack(response_action="clear")
        service.moved()

    @service.listener
    async def next_page(args: AsyncArgs) -> None:
        press = read_press(args.body["view"].get("private_metadata"))
        if press is None:
            await args.ack(response_action="update", view=told((texts.BUTTON_UNREADABLE,)))
            return
        await args.ack(response_action="update", view=await page_of(service, args, press, press.page + 1))

    app.view(DECLINE)(declined)
    app.view(DETAILS_APPROVE)(approved)
    app.view(DETAILS_NEXT)(next_page)
    app.view(EDIT)(edited)


def _reason(view: dict[str, Any]) -> str | None:
    values = (view.get("state") or {}).get("values") or {}
    typed = ((values.get(REASON_BLOCK) or {}).get(REASON_INPUT) or {}).get("value")
    return str(typed).strip()[:REASON_LIMIT] or None if typed else None
