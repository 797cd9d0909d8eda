"""Facts about people, from Slack: implements core.ports.Directory.

Decides: what Slack's flags mean (guest, foreign, bot, deactivated) and how long a fact may be believed. Does not:
judge anybody (core.approvals does). The failure it can cause: a stale or guessed fact lets somebody act; so facts are
60 s old at most, and what cannot be asked is CouldNotCheck, never a guess. Sources: Slack, users.info,
conversations.members, usergroups.list.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from slack_sdk.errors import SlackApiError
from slack_sdk.web.async_client import AsyncWebClient

from bot.slack import CALL_ERRORS, FailureKind, Installation, read_failure
from core.approvals import Person
from core.errors import CouldNotCheck, NoSuchGroup
from core.ports import Clock
from core.tools import User

log = logging.getLogger("atlas.people")

BELIEVED_FOR_S = 60.0
# A fresh question waits out the pauses that Slack asks for (429): many approvals at once are more than users.info
# (Tier 4, 100 a minute) takes, and those who wait for the same fact share its next answer.
PATIENT_FOR_S = 8.0
_MOST_FACTS = 20_000
_MEMBERS_PAGE = 1_000
_MOST_PAGES = 50
T = TypeVar("T")


class SlackDirectory:
    """Asks Slack about people, and remembers the answers for 60 s."""

    def __init__(self, client: AsyncWebClient, installation: Installation, clock: Clock) -> None:
        self.client = client
        self.installation = installation
        self.clock = clock
        self._facts: dict[tuple[str, str], tuple[float, Any]] = {}
        self._asking: dict[tuple[str, str], asyncio.Lock] = {}

    async def person(self, team_id: str, user_id: str, *, fresh: bool = False) -> Person:
        """Return what is known of somebody. Raises: CouldNotCheck."""
        return await self._fact("person", user_id, lambda: self._ask_person(user_id), fresh=fresh)

    async def in_channel(self, channel_id: str, user_id: str, *, fresh: bool = False) -> bool:
        """Say whether somebody is a member of a channel. Raises: CouldNotCheck."""
        members = await self._fact("members", channel_id, lambda: self._ask_members(channel_id), fresh=fresh)
        return user_id in members

    async def in_group(self, handle: str, user_id: str, *, fresh: bool = False) -> bool:
        """Say whether somebody is a member of a user group. Raises: CouldNotCheck, also for an unknown handle."""
        return user_id in await self.group_members(handle, fresh=fresh)

    async def group_members(self, handle: str, *, fresh: bool = False) -> frozenset[str]:
        """Return who is in a user group. Raises: CouldNotCheck; NoSuchGroup for an unknown handle."""
        groups = await self._fact("groups", "", self._ask_groups, fresh=fresh)
        if handle not in groups:
            raise NoSuchGroup(handle)
        members: frozenset[str] = groups[handle][1]
        return members

    async def groups_of(self, user_id: str, *, fresh: bool = False) -> frozenset[str]:
        """Return the handles of the user groups that somebody is in: one question for all. Raises: CouldNotCheck."""
        groups = await self._fact("groups", "", self._ask_groups, fresh=fresh)
        return frozenset(handle for handle, (_, members) in groups.items() if user_id in members)

    async def channel_members(self, channel_id: str) -> frozenset[str]:
        """Return who is in a channel. Raises: CouldNotCheck."""
        return await self._fact("members", channel_id, lambda: self._ask_members(channel_id), fresh=False)

    def group_ids(self) -> dict[str, str]:
        """Return user group ids by handle, as last heard; nothing is asked."""
        known = self._facts.get(("groups", ""))
        return {handle: group_id for handle, (group_id, _) in known[1].items()} if known else {}

    async def learn_groups(self) -> None:
        """Ask for the user groups, so that cards can mention them. Failing to is no harm."""
        try:
            await self._fact("groups", "", self._ask_groups, fresh=True)
        except CouldNotCheck as error:
            log.info("user groups are not known: %s", error)

    async def _fact(self, kind: str, key: str, ask: Callable[[], Awaitable[T]], *, fresh: bool) -> T:
        name = (kind, key)
        asked_at = self.clock.monotonic()
        known = self._facts.get(name)
        if not fresh and known is not None and known[0] >= asked_at - BELIEVED_FOR_S:
            # Not behind somebody's fresh question: a click waits for this.
            believed: T = known[1]
            return believed
        lock = self._asking.setdefault(name, asyncio.Lock())
        try:
            async with lock:
                known = self._facts.get(name)
                # A fresh fact is one that was heard after this question was asked.
                limit = asked_at if fresh else self.clock.monotonic() - BELIEVED_FOR_S
                if known is not None and known[0] >= limit:
                    fact: T = known[1]
                    return fact
                while True:
                    began = self.clock.monotonic()
                    try:
                        heard = await ask()
                    except CALL_ERRORS as error:
                        failure = read_failure(error)
                        over = self.clock.monotonic() + failure.pause_s - asked_at > PATIENT_FOR_S
                        if not fresh or failure.kind is not FailureKind.PAUSE or over:
                            raise CouldNotCheck(f"{kind} {key}".strip(), failure.error) from error
                        await self.clock.sleep(failure.pause_s)
                        continue
                    self._remember(name, began, heard)
                    return heard
        finally:
            if not lock.locked():
                self._asking.pop(name, None)

    def _remember(self, name: tuple[str, str], began: float, fact: Any) -> None:
        if len(self._facts) >= _MOST_FACTS:
            limit = self.clock.monotonic() - BELIEVED_FOR_S
            self._facts = {key: known for key, known in self._facts.items() if known[0] >= limit}
        self._facts[name] = (began, fact)

    async def _ask_person(self, user_id: str) -> Person:
        try:
            answer = await self.client.users_info(user=user_id)
        except SlackApiError as error:
            if read_failure(error).error in ("user_not_found", "user_not_visible", "users_not_found"):
                # Slack does not show us this person, so they are nobody of this workspace.
                stranger = User(team_id="", user_id=user_id, name=user_id)
                return Person(stranger, foreign=True)
            raise
        user: dict[str, Any] = answer["user"]
        profile: dict[str, Any] = user.get("profile") or {}
        grid: dict[str, Any] = user.get("enterprise_user") or {}
        team_id = str(user.get("team_id") or profile.get("team") or "")
        ours = self.installation
        same_team = team_id == ours.team_id or ours.team_id in (grid.get("teams") or [])
        if ours.enterprise_id and grid.get("enterprise_id") == ours.enterprise_id:
            same_team = True
        name = profile.get("display_name") or profile.get("real_name") or user.get("real_name") or user.get("name")
        return Person(
            # Identity is the installing team's: a Grid member's home team may be another of the same company.
            User(
                team_id=ours.team_id if same_team else team_id,
                user_id=user_id,
                name=str(name or user_id),
                email=profile.get("email") or None,
            ),
            deactivated=bool(user.get("deleted")),
            bot=bool(user.get("is_bot") or user.get("is_workflow_bot")) or user_id == "USLACKBOT",
            guest=bool(user.get("is_restricted") or user.get("is_ultra_restricted")),
            foreign=bool(user.get("is_stranger")) or not same_team,
        )

    async def _ask_members(self, channel_id: str) -> frozenset[str]:
        members: set[str] = set()
        cursor = ""
        for _ in range(_MOST_PAGES):
            answer = await self.client.conversations_members(channel=channel_id, limit=_MEMBERS_PAGE, cursor=cursor)
            members |= set(answer.get("members") or [])
            cursor = str((answer.get("response_metadata") or {}).get("next_cursor") or "")
            if not cursor:
                break
        return frozenset(members)

    async def _ask_groups(self) -> dict[str, tuple[str, frozenset[str]]]:
        answer = await self.client.usergroups_list(include_users=True)
        return {
            str(group["handle"]): (str(group["id"]), frozenset(group.get("users") or []))
            for group in answer.get("usergroups") or []
            if not group.get("date_delete")
        }
