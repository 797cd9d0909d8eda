"""Scopes from Slack user groups: what somebody may touch follows from the groups that they are in now.

For agents: ``Agent(scopes=slack_group_scopes({"sales": {"quotes.send"}}), …)``. Decides: which permissions a membership
gives. Does not: remember; each resolution asks Slack, and so a person who left a group loses its permissions before the
next write. The failure it can cause: a guessed membership would let somebody act; what Slack does not answer is
CouldNotCheck, and nothing is done.
"""

from collections.abc import Iterable, Mapping
from typing import Protocol

from core.approvals import Person
from core.errors import CouldNotCheck
from core.tools import Scope, ScopeResolver, User


class Groups(Protocol):
    """Who is in which user group: the directory's side."""

    async def person(self, team_id: str, user_id: str, *, fresh: bool = False) -> Person:
        """Return what is known of somebody. Raises: CouldNotCheck."""
        ...

    async def groups_of(self, user_id: str, *, fresh: bool = False) -> frozenset[str]:
        """Return the handles of the user groups that somebody is in. Raises: CouldNotCheck."""
        ...


class SlackGroupScopes:
    """A ``core.ScopeResolver``; made by ``slack_group_scopes``, bound to Slack when Atlas starts."""

    def __init__(
        self, groups: Mapping[str, Iterable[str]], everyone: Iterable[str], also: ScopeResolver | None
    ) -> None:
        self.permissions = {handle: frozenset(permissions) for handle, permissions in groups.items()}
        self.everyone = frozenset(everyone)
        self.also = also
        self._directory: Groups | None = None

    @property
    def handles(self) -> frozenset[str]:
        """Return the user groups that must exist."""
        return frozenset(self.permissions)

    def bind(self, directory: Groups) -> None:
        """Ask *directory* from now on."""
        self._directory = directory

    async def __call__(self, user: User) -> Scope:
        """Return what *user* may touch, as Slack says at this moment. Raises: CouldNotCheck."""
        if self._directory is None:
            raise CouldNotCheck("the user groups", "not bound to Slack: give it to Agent(scopes=…) itself")
        person = await self._directory.person(user.team_id, user.user_id, fresh=True)
        if person.deactivated or person.bot or person.foreign:
            return Scope()
        member_of = sorted(self.handles & await self._directory.groups_of(user.user_id, fresh=True))
        found = await self.also(user) if self.also is not None else Scope()
        permissions = self.everyone.union(found.permissions, *(self.permissions[handle] for handle in member_of))
        return Scope(permissions=permissions, attributes={**found.attributes, "slack_groups": list(member_of)})


def slack_group_scopes(
    groups: Mapping[str, Iterable[str]], *, everyone: Iterable[str] = (), also: ScopeResolver | None = None
) -> SlackGroupScopes:
    """Return a resolver for ``Agent(scopes=…)``.

    *groups*: a user group's handle, without the @ -> the permissions of its members. *everyone*: permissions of every
    active person of the workspace. *also*: another resolver, whose permissions and attributes are added. The handles
    that somebody is in are the scope's attribute ``slack_groups``. Raises: ValueError for a handle with an @.
    """
    if wrong := sorted(handle for handle in groups if not handle or handle.startswith("@")):
        raise ValueError(f"user group handles go without the @: {wrong}")
    return SlackGroupScopes(groups, everyone, also)
