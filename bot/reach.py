"""Whom to write to directly when the place of a message is closed to Atlas.

Decides: which people get a copy of a card, and that an answer still reaches who asked. Does not: judge who may press
(core.approvals does), or send. The failure it can cause: a card that nobody sees expires unseen; so whoever may act is
asked, at least the run's owner, and what cannot be found out now is asked again.
"""

import logging
from collections.abc import Iterable
from typing import Protocol

from slack_sdk.web.async_client import AsyncWebClient

from bot.slack import CALL_ERRORS, CallFailed, FailureKind, read_failure
from core.approvals import channel_of
from core.errors import CouldNotCheck
from core.ports import Outbox, OutboxRow, RenderInputs
from core.run import Run, Suspension, SuspensionKind, SuspensionStatus
from core.tools import UserGroup

log = logging.getLogger("atlas.reach")

# A card in more people's direct messages than this would be noise; it stands in their Home all the same.
MOST_PEOPLE = 20
# How often it is tried to find out whom to write to.
TRIES_TO_REACH = 5


class Members(Protocol):
    """Who belongs where."""

    async def group_members(self, handle: str, *, fresh: bool = False) -> frozenset[str]:
        """Return who is in a user group. Raises: CouldNotCheck."""
        ...

    async def channel_members(self, channel_id: str) -> frozenset[str]:
        """Return who is in a channel. Raises: CouldNotCheck."""
        ...


class Copies(Outbox, Protocol):
    """The outbox, and the same card at one more place."""

    async def mirror_card(self, suspension_id: str, channel_id: str, thread_ts: str | None = None) -> bool:
        """Owe the same card at one more place; False: it is owed there already."""
        ...


class Reach:
    """Finds people in their direct messages. *members* None: only who is named can be found."""

    def __init__(
        self, outbox: Copies, client: AsyncWebClient, operators: frozenset[str], members: Members | None
    ) -> None:
        self.outbox = outbox
        self.client = client
        self.operators = operators
        self.members = members

    def concerns(self, row: OutboxRow) -> bool:
        """Say whether somebody has to see this message although its place is closed."""
        if row.kind == "card":
            return row.place == f"card:{row.ref}"
        return row.kind in ("answer", "halt", "failure", "notice")

    async def instead(self, row: OutboxRow, inputs: RenderInputs) -> str:
        """Owe copies of the message in direct messages; return a sentence about it for the alert, or nothing.

        Raises: CouldNotCheck, CallFailed (nobody knows now; ask again).
        """
        run, suspension = inputs.run, inputs.suspension
        if run is None or inputs.content.get("reminder"):
            return ""
        if row.kind == "card":
            if suspension is None or suspension.status is not SuspensionStatus.OPEN:
                return ""
            return await self._card(row, suspension, run)
        # A copy that is refused too has come to its end.
        channel = await self._direct_messages(run.owner.user_id) if row.channel_id == run.channel_id else None
        if channel is None or channel == row.channel_id:
            return ""
        await self.outbox.mirror(row, channel)
        return " It stands in its owner's direct messages."

    async def _card(self, row: OutboxRow, suspension: Suspension, run: Run) -> str:
        people = named_deciders(suspension, run, self.operators)
        try:
            if self.members is not None:
                people = await deciders(suspension, run, self.operators, self.members)
        except CouldNotCheck as error:
            # The members of a channel that is closed to us cannot be read either, now or later.
            if suspension.policy.by != "anyone" and row.attempts < TRIES_TO_REACH:
                raise
            log.warning("%s: not everybody who may decide is known (%s)", row.place, error)
        reached = 0
        for user_id in people:
            channel = await self._direct_messages(user_id)
            if channel is not None:
                await self.outbox.mirror_card(suspension.id, channel)
                reached += 1
        who = "1 person" if reached == 1 else f"{reached} people"
        return f" It stands in the direct messages of {who} who may decide, and in their Home."

    async def _direct_messages(self, user_id: str) -> str | None:
        """Return the channel of somebody's direct messages; None: Slack allows none. Raises: CallFailed."""
        try:
            opened = await self.client.conversations_open(users=user_id)
        except CALL_ERRORS as error:
            failure = read_failure(error)
            if failure.kind is not FailureKind.REFUSED:
                raise CallFailed(failure) from error
            log.warning("no direct messages with %s (%s)", user_id, failure.error)
            return None
        return str(opened["channel"]["id"])


def named_deciders(suspension: Suspension, run: Run, operators: Iterable[str]) -> list[str]:
    """List those who may act on *suspension* and about whom nobody need be asked: named people, the owner (who may
    always decline), operators where they may."""
    policy = suspension.policy
    named = policy.by if isinstance(policy.by, tuple) else ()
    may = policy.operators or suspension.kind is SuspensionKind.OUTCOME
    return list(dict.fromkeys([*named, run.owner.user_id, *(sorted(operators) if may else ())]))


async def deciders(suspension: Suspension, run: Run, operators: Iterable[str], members: Members) -> list[str]:
    """List those who may act on *suspension*; of more than MOST_PEOPLE in a group or channel, nobody is preferred and
    only those of a group are written to. Raises: CouldNotCheck."""
    known = named_deciders(suspension, run, operators)
    policy = suspension.policy
    found: list[str] = []
    if suspension.kind is SuspensionKind.APPROVAL and isinstance(policy.by, UserGroup):
        found = sorted(await members.group_members(policy.by.handle))[:MOST_PEOPLE]
    elif suspension.kind is SuspensionKind.APPROVAL and policy.by == "anyone":
        everybody = await members.channel_members(channel_of(policy, run.channel_id))
        found = sorted(everybody) if len(everybody) <= MOST_PEOPLE else []
    return list(dict.fromkeys([*known, *found]))
