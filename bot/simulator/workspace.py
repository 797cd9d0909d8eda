"""Who and what is in the simulated workspace: the one place where its stable ids are written.

Decides the team, its people, channels, user groups, tokens and the installed app's manifest.
It holds no messages and knows no protocol. Failure it can cause: ids that change here break
every test and every demo that names them, so they do not change.

================  =============  =====================================================
who / what        id             what it stands for
================  =============  =====================================================
Northwind Sales   T0NORTHWIND    the team in which Atlas is installed
Atlas             U0ATLAS0001    its bot user; bot B0ATLAS0001, app A0ATLAS0001
Rita Reyes        U0RITA00001    inside sales rep
Marcus Hale       U0MARCUS001    sales manager (user group @sales-managers)
Vera Lindqvist    U0VERA00001    viewer: may look, may not send
Oskar Ops         U0OSKAR0001    operator
Gina Guest        U0GINA00001    multi-channel guest (is_restricted), in #deals
Emil Extern       U0EMIL00001    external, of Contoso (T0CONTOSO01), in #contoso-northwind
Dora Departed     U0DORA00001    deactivated
#sales-desk       C0SALESDESK    everyone of Northwind; Atlas is a member
#deals            C0DEALS0001    Rita, Marcus, Vera, Gina; Atlas is a member
#atlas-ops        C0ATLASOPS1    alerts: Oskar, Marcus; Atlas is a member
#contoso-north..  C0CONTOSO01    shared with Contoso (is_ext_shared); Atlas is a member
#random           C0RANDOM001    everyone of Northwind; Atlas is NOT a member
@sales-managers   S0SALESMGRS    Marcus
@inside-sales     S0INSIDESLS    Rita, Marcus
================  =============  =====================================================

Emails are first.last@northwind.example (Emil: @contoso.example).
"""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

TEAM_ID = "T0NORTHWIND"
PARTNER_TEAM_ID = "T0CONTOSO01"
APP_ID = "A0ATLAS0001"
BOT_ID = "B0ATLAS0001"
BOT_USER_ID = "U0ATLAS0001"
RITA = "U0RITA00001"
MARCUS = "U0MARCUS001"
VERA = "U0VERA00001"
OSKAR = "U0OSKAR0001"
GINA = "U0GINA00001"
EMIL = "U0EMIL00001"
DORA = "U0DORA00001"
SALES_DESK = "C0SALESDESK"
DEALS = "C0DEALS0001"
ATLAS_OPS = "C0ATLASOPS1"
CONTOSO = "C0CONTOSO01"
RANDOM = "C0RANDOM001"

Kind = Literal["member", "guest", "external", "deactivated", "bot"]


@dataclass
class Person:
    """One account of the workspace; `kind` decides Slack's flags (deleted, is_restricted, ...)."""

    id: str
    name: str
    real_name: str
    title: str = ""
    email: str = ""
    kind: Kind = "member"
    team_id: str = TEAM_ID
    color: str = "4a5568"
    is_admin: bool = False
    tz: str = "Europe/Amsterdam"
    tz_offset: int = 3600


@dataclass
class ChannelSpec:
    """A channel as it is when the workspace starts."""

    id: str
    name: str
    members: list[str]
    is_private: bool = False
    is_archived: bool = False
    is_ext_shared: bool = False
    topic: str = ""
    is_mpim: bool = False


@dataclass
class UserGroup:
    """A user group (@handle) with its members' user ids."""

    id: str
    handle: str
    name: str
    users: list[str]


@dataclass
class Command:
    """A slash command as the manifest declares it."""

    command: str
    description: str = ""
    usage_hint: str = ""
    should_escape: bool = False


ALL_SCOPES = (
    "app_mentions:read",
    "assistant:write",
    "channels:history",
    "channels:join",
    "channels:read",
    "chat:write",
    "commands",
    "groups:history",
    "groups:read",
    "im:history",
    "im:read",
    "im:write",
    "mpim:history",
    "mpim:read",
    "mpim:write",
    "reactions:write",
    "team:read",
    "usergroups:read",
    "users:read",
    "users:read.email",
)


@dataclass
class AppManifest:
    """What the installed app may do: the parts of Slack's app manifest that change behaviour."""

    scopes: tuple[str, ...] = ALL_SCOPES
    events: tuple[str, ...] = ("app_mention", "message.im", "app_home_opened")
    commands: list[Command] = field(
        default_factory=lambda: [
            Command("/atlas", "Talk to Atlas", "help | pending | runs | show | continue | stop", True)
        ]
    )
    name: str = "Atlas"
    home_tab: bool = True
    messages_tab: bool = True
    messages_tab_read_only: bool = False
    interactivity: bool = True
    socket_mode: bool = True
    request_url: str | None = None

    @classmethod
    def load(cls, path: Path) -> "AppManifest":
        """Read a manifest file (YAML or JSON).

        Raises:
            ValueError: the file is not a mapping.
        Source: Slack's app manifest schema, version 2.
        """
        import yaml  # needed only by those who give a manifest

        document = yaml.safe_load(path.read_text(encoding="utf-8"))
        if not isinstance(document, dict):
            raise ValueError(f"{path}: not a manifest (a mapping is expected)")
        return cls.from_document(document)

    @classmethod
    def from_document(cls, document: dict[str, Any]) -> "AppManifest":
        """Read a manifest that is already parsed."""
        features = document.get("features", {})
        home = features.get("app_home", {})
        settings = document.get("settings", {})
        subscriptions = settings.get("event_subscriptions", {})
        return cls(
            scopes=tuple(document.get("oauth_config", {}).get("scopes", {}).get("bot", [])),
            events=tuple(subscriptions.get("bot_events", [])),
            commands=[
                Command(
                    entry["command"],
                    entry.get("description", ""),
                    entry.get("usage_hint", ""),
                    bool(entry.get("should_escape", False)),
                )
                for entry in features.get("slash_commands", [])
            ],
            name=features.get("bot_user", {}).get("display_name")
            or document.get("display_information", {}).get("name", "Atlas"),
            home_tab=bool(home.get("home_tab_enabled", False)),
            messages_tab=bool(home.get("messages_tab_enabled", True)),
            messages_tab_read_only=bool(home.get("messages_tab_read_only_enabled", False)),
            interactivity=bool(settings.get("interactivity", {}).get("is_enabled", False)),
            socket_mode=bool(settings.get("socket_mode_enabled", False)),
            request_url=subscriptions.get("request_url"),
        )


def _one(user_id: str, full_name: str, title: str, color: str, domain: str = "northwind") -> Person:
    handle = full_name.lower().replace(" ", ".")
    email = f"{handle}@{domain}.example"
    return Person(user_id, handle, full_name, title, email, color=color)


def _people() -> list[Person]:
    oskar = _one(OSKAR, "Oskar Ops", "Operator", "166534")
    gina = _one(GINA, "Gina Guest", "Contractor", "a16207")
    emil = _one(EMIL, "Emil Extern", "Buyer at Contoso", "be123c", "contoso")
    dora = _one(DORA, "Dora Departed", "Left in May", "4a5568")
    return [
        Person(BOT_USER_ID, "atlas", "Atlas", "Agent with approvals", kind="bot", color="4f46e5"),
        _one(RITA, "Rita Reyes", "Inside sales rep", "0e7490"),
        _one(MARCUS, "Marcus Hale", "Sales manager", "9a3412"),
        _one(VERA, "Vera Lindqvist", "Viewer, finance", "6d28d9"),
        replace(oskar, is_admin=True),
        replace(gina, kind="guest"),
        replace(emil, kind="external", team_id=PARTNER_TEAM_ID),
        replace(dora, kind="deactivated"),
    ]


def _channels() -> list[ChannelSpec]:
    staff = [RITA, MARCUS, VERA, OSKAR]
    return [
        ChannelSpec(SALES_DESK, "sales-desk", [BOT_USER_ID, *staff], topic="Quotes and questions"),
        ChannelSpec(DEALS, "deals", [BOT_USER_ID, RITA, MARCUS, VERA, GINA], topic="Open deals"),
        ChannelSpec(ATLAS_OPS, "atlas-ops", [BOT_USER_ID, OSKAR, MARCUS], topic="Atlas alerts"),
        ChannelSpec(CONTOSO, "contoso-northwind", [BOT_USER_ID, RITA, MARCUS, EMIL], is_ext_shared=True),
        ChannelSpec(RANDOM, "random", staff, topic="Everything else"),
    ]


def _groups() -> list[UserGroup]:
    return [
        UserGroup("S0SALESMGRS", "sales-managers", "Sales managers", [MARCUS]),
        UserGroup("S0INSIDESLS", "inside-sales", "Inside sales", [RITA, MARCUS]),
    ]


@dataclass
class Workspace:
    """The whole cast. Mutable: tests deactivate people, change groups, archive channels."""

    team_id: str = TEAM_ID
    team_name: str = "Northwind Sales"
    domain: str = "northwind-sales"
    app_id: str = APP_ID
    bot_id: str = BOT_ID
    bot_user_id: str = BOT_USER_ID
    people: list[Person] = field(default_factory=_people)
    channels: list[ChannelSpec] = field(default_factory=_channels)
    user_groups: list[UserGroup] = field(default_factory=_groups)
    bot_token: str = "xoxb-simulator-atlas"  # noqa: S105  opens nothing but this simulator
    app_token: str = "xapp-simulator-atlas"  # noqa: S105  opens nothing but this simulator
    signing_secret: str = "simulator-signing-secret"  # noqa: S105  signs for nobody else
    verification_token: str = "simulator-verification"  # noqa: S105  a deprecated payload field

    @classmethod
    def from_document(cls, document: dict[str, Any]) -> "Workspace":
        """Build a workspace from JSON; every key that is left out keeps its default.

        Keys are the field names of this class, of `Person`, `ChannelSpec` and `UserGroup`.

        Raises:
            ValueError: an unknown key, or an entry of the wrong shape.
        """
        known = {**document}
        try:
            for key, kind in (("people", Person), ("channels", ChannelSpec), ("user_groups", UserGroup)):
                if key in known:
                    known[key] = [kind(**entry) for entry in known[key]]
            return cls(**known)
        except TypeError as error:
            raise ValueError(f"workspace: {error}") from error

    def person(self, user_id: str) -> Person | None:
        """Return the person with this id."""
        return next((person for person in self.people if person.id == user_id), None)

    def named(self, name: str) -> Person | None:
        """Return the person whose handle, real name or first name is `name`, ignoring case."""
        wanted = name.casefold()
        for person in self.people:
            if wanted in (person.name.casefold(), person.real_name.casefold()):
                return person
        return next(
            (p for p in self.people if p.real_name.casefold().split(" ")[0] == wanted),
            None,
        )
