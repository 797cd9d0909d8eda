"""Who may do what, as the CRM's directory says at this moment.

Decides how a directory entry becomes a scope. The failure it can cause: somebody the directory does not know must get
nothing, while a directory that can't be asked must be an error, never an empty or an old scope.
"""

from bot.desk.crm import CrmClient, CrmRefused
from core import Scope, ScopeResolver, User


def scope_resolver(crm: CrmClient) -> ScopeResolver:
    """Return the resolver: by verified email, asking the CRM each time."""

    async def resolve(user: User) -> Scope:
        if user.email is None:
            return Scope()
        try:
            person = await crm.get("people", user.email)
        except CrmRefused as refusal:
            if refusal.error == "unknown_person":
                return Scope()
            raise
        return Scope(
            permissions=frozenset(person["permissions"]),
            attributes={"role": person["role"], "accounts": list(person["accounts"])},
        )

    return resolve
