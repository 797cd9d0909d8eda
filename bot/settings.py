"""Settings: the only reader of the environment.

Decides: whether the environment (and ``.env`` in the working directory) makes a start possible, listing everything
that is wrong at once. Does not: connect to anything (doctor does). The failure it can cause: a setting that is read
later, elsewhere, would fail in the middle of a run; so nobody else reads the environment.
"""

import io
import logging
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from dotenv import load_dotenv
from dotenv.parser import parse_stream
from platformdirs import user_data_path

from core.errors import Misconfigured

log = logging.getLogger("atlas.settings")

LONGEST_SUSPENSION_S = 1800.0
DESK = "bot.desk:agent"
_WORD = r"[^\W\d]\w*"
_ENV_FILE = Path(".env")


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything that the environment says. Durations in seconds. *database_url* None: embedded PostgreSQL."""

    database_url: str | None
    behind_pooler: bool
    data_dir: Path
    bot_token: str
    app_token: str
    signing_secret: str
    slack_api_url: str
    agent: str
    model: str | None
    alert_channel: str | None
    operators: frozenset[str]
    suspension_ttl_s: float
    lease_s: float
    reap_every_s: float
    expire_every_s: float
    http_host: str
    http_port: int
    crm_url: str | None
    runs_at_once: int
    runs_per_person: int

    @property
    def socket_mode(self) -> bool:
        """Say whether events come over Socket Mode (an app token is set) rather than HTTP."""
        return bool(self.app_token)


NAMES: dict[str, str] = {
    "DATABASE_URL": "PostgreSQL; unset: an embedded PostgreSQL in ATLAS_DATA_DIR",
    "ATLAS_PG_POOLER": '"transaction" behind a transaction pooler',
    "ATLAS_DATA_DIR": "where embedded data lives; default: the platform's user data directory",
    "SLACK_BOT_TOKEN": "the bot token, xoxb-…",
    "SLACK_APP_TOKEN": "the app-level token, xapp-…: Socket Mode",
    "SLACK_SIGNING_SECRET": "the signing secret; without SLACK_APP_TOKEN: HTTP",
    "SLACK_API_URL": "another base URL of the Web API; default Slack's",
    "ATLAS_AGENT": f"module:attribute of the Agent to serve; default {DESK}",
    "ATLAS_MODEL": "provider:model; unset: the agent's own model",
    "ATLAS_ALERT_CHANNEL": "channel id for alerts, C…",
    "ATLAS_OPERATORS": "Slack user ids of operators, separated by commas",
    "ATLAS_SUSPENSION_TTL_S": "how long a suspension waits, at most 1800; default 1800",
    "ATLAS_LEASE_S": "how long claims outlive the last beat; default 90",
    "ATLAS_REAP_EVERY_S": "period of the reaper; default 60",
    "ATLAS_EXPIRE_EVERY_S": "period of the expiry job; default 15",
    "ATLAS_RUNS_AT_ONCE": "how many runs a process works on at once; the others wait in line; default 64",
    "ATLAS_RUNS_PER_PERSON": "how many of one person's, over all processes; default 16",
    "ATLAS_HTTP_HOST": "where /slack/events, /healthz, /readyz and /metrics listen; default 127.0.0.1",
    "ATLAS_HTTP_PORT": "its port; default 8080 (0: any free one)",
    "ATLAS_CRM_URL": "the sales desk's CRM; unset in demo: the sandbox",
}


class _Reader:
    """Reads one value after the other and collects what is wrong."""

    def __init__(self, values: Mapping[str, str]) -> None:
        self.values = values
        self.problems: list[str] = []

    def text(self, name: str, default: str = "") -> str:
        return self.values.get(name, "").strip() or default

    def matching(self, name: str, pattern: str, shape: str, *, required: bool = False) -> str:
        value = self.text(name)
        if not value:
            if required:
                self.problems.append(f"{name} is not set: {NAMES[name]}")
            return ""
        if not re.fullmatch(pattern, value):
            self.problems.append(f"{name} does not look right: it should be {shape}")
        return value

    def seconds(self, name: str, default: float, least: float, most: float) -> float:
        value = self.text(name)
        if not value:
            return default
        try:
            seconds = float(value)
        except ValueError:
            self.problems.append(f"{name}={value!r} is not a number of seconds")
            return default
        if not least <= seconds <= most:
            self.problems.append(f"{name}={value} must be from {least:g} to {most:g} seconds")
        return seconds

    def count(self, name: str, default: int, most: int) -> int:
        value = self.text(name, str(default))
        if not (value.isdecimal() and 1 <= int(value) <= most):
            self.problems.append(f"{name}={value!r} must be a whole number from 1 to {most}")
            return default
        return int(value)

    def address(self, name: str, default: str = "") -> str:
        value = self.text(name, default)
        if value and not _is_address(value):
            self.problems.append(f"{name}={value!r} must be http://host or https://host, with a path if it has one")
        return value


def _is_address(url: str) -> bool:
    """Say whether requests could be sent to *url*."""
    try:
        parts = urlsplit(url)
        port_fits = parts.port is None or parts.port > 0  # reading a port that is none raises
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(parts.hostname) and port_fits


def _is_dsn(dsn: str) -> bool:
    """Say whether *dsn* can be read at all; it may name several hosts, each with a port of its own."""
    try:
        parts = urlsplit(dsn)
        asked = parse_qs(parts.query, strict_parsing=True) if parts.query else {}
    except ValueError:
        return False
    before, at, after = parts.netloc.partition("@")
    hosts = (after if at else before).split(",")
    ports = [host.rpartition("]")[2].partition(":")[2] for host in hosts] + ",".join(asked.get("port", [])).split(",")
    fits = all(not port or (port.isdecimal() and 0 < int(port) <= 65535) for port in ports)
    return parts.scheme in ("postgres", "postgresql") and "@" not in after and fits


def _take_env_file() -> list[str]:
    """Set what ``.env`` says and the environment does not; return what is wrong with the file."""
    if not _ENV_FILE.exists() or _ENV_FILE.is_dir():  # a directory of that name may be somebody's venv
        return []
    where = _ENV_FILE.absolute()
    try:
        text = _ENV_FILE.read_text("utf-8-sig")
    except UnicodeDecodeError:
        return [f"{where} is not UTF-8 text: save it as UTF-8"]
    except OSError as error:
        return [f"{where} cannot be read ({error.strerror}): let this user read it, or move it away"]
    wrong = [line.original.line for line in parse_stream(io.StringIO(text)) if line.error]
    if wrong:  # a line that is passed over would be a setting that is lost
        return [f"{where}, line {number}: write it as NAME=value, or with # before it" for number in wrong]
    # Into the environment itself, so that an agent of one's own finds its settings there too.
    load_dotenv(stream=io.StringIO(text), override=False)
    return []


def read_settings(environment: Mapping[str, str] | None = None, *, slack: bool = True) -> Settings:
    """Return the settings of *environment* (default: the process's, over ``.env``).

    *slack*: the command needs Slack's tokens. Raises: Misconfigured with everything that is wrong.
    """
    unread = _take_env_file() if environment is None else []
    values = os.environ if environment is None else environment
    read = _Reader(values)
    read.problems += unread
    for name in sorted(name for name in values if name.startswith("ATLAS_") and name not in NAMES):
        # A warning, not a refusal: other programs of the same machine may use the prefix too.
        log.warning("%s is not a setting of Atlas; if it was meant as one, correct its name", name)
    database_url = read.text("DATABASE_URL") or None
    if database_url and not _is_dsn(database_url):
        # Not shown: it holds a password.
        read.problems.append(
            "DATABASE_URL must be postgresql://user:password@host:port/database, "
            "with %23 for #, %2F for /, %3F for ?, %40 for @ and %5B for [ in the password"
        )
    pooler = read.text("ATLAS_PG_POOLER")
    if pooler not in ("", "transaction"):
        read.problems.append(f'ATLAS_PG_POOLER={pooler!r}: set it to "transaction" or leave it unset')
    app_token = read.matching("SLACK_APP_TOKEN", r"xapp-\S+", "an app-level token, xapp-…")
    signing_secret = read.text("SLACK_SIGNING_SECRET")
    if slack and not app_token and not signing_secret:
        read.problems.append(
            "SLACK_APP_TOKEN is not set: give an app-level token (xapp-…) for Socket Mode, "
            "or SLACK_SIGNING_SECRET for HTTP"
        )
    agent = read.text("ATLAS_AGENT", DESK)
    if not re.fullmatch(rf"{_WORD}(\.{_WORD})*:{_WORD}", agent):
        read.problems.append(f"ATLAS_AGENT={agent!r} must be module:attribute, such as {DESK}")
    model = read.text("ATLAS_MODEL") or None
    if model and not re.fullmatch(r"[\w-]+:\S+", model):
        read.problems.append(f"ATLAS_MODEL={model!r} must be provider:model")
    operators = frozenset(part.strip() for part in read.text("ATLAS_OPERATORS").split(",") if part.strip())
    read.problems += [
        f"ATLAS_OPERATORS names {user!r}, which is no Slack user id (U… or W…)"
        for user in sorted(operators)
        if not re.fullmatch(r"[UW][A-Z0-9]{2,}", user)
    ]
    port = read.text("ATLAS_HTTP_PORT", "8080")
    if not (port.isdecimal() and int(port) <= 65535):
        read.problems.append(f"ATLAS_HTTP_PORT={port!r} must be a port number, 0 to 65535")
        port = "0"
    api_url = read.address("SLACK_API_URL", "https://slack.com/api/")
    crm_url = read.address("ATLAS_CRM_URL") or None
    if slack and agent == DESK and crm_url is None:
        read.problems.append(
            "ATLAS_CRM_URL is not set: the sales desk needs its CRM's address (or name your ATLAS_AGENT)"
        )
    settings = Settings(
        database_url=database_url,
        behind_pooler=pooler == "transaction",
        data_dir=Path(read.text("ATLAS_DATA_DIR", str(user_data_path("atlas")))),
        bot_token=read.matching("SLACK_BOT_TOKEN", r"xox[be]\S*-\S+", "a bot token, xoxb-…", required=slack),
        app_token=app_token,
        signing_secret=signing_secret,
        slack_api_url=api_url if api_url.endswith("/") else api_url + "/",
        agent=agent,
        model=model,
        alert_channel=read.matching("ATLAS_ALERT_CHANNEL", r"[CG][A-Z0-9]{2,}", "a channel id, C…") or None,
        operators=operators,
        suspension_ttl_s=read.seconds("ATLAS_SUSPENSION_TTL_S", LONGEST_SUSPENSION_S, 1, LONGEST_SUSPENSION_S),
        lease_s=read.seconds("ATLAS_LEASE_S", 90, 3, 3600),
        reap_every_s=read.seconds("ATLAS_REAP_EVERY_S", 60, 0.2, 3600),
        expire_every_s=read.seconds("ATLAS_EXPIRE_EVERY_S", 15, 0.2, 3600),
        http_host=read.text("ATLAS_HTTP_HOST", "127.0.0.1"),
        http_port=int(port),
        crm_url=crm_url,
        runs_at_once=read.count("ATLAS_RUNS_AT_ONCE", 64, 10_000),
        runs_per_person=read.count("ATLAS_RUNS_PER_PERSON", 16, 10_000),
    )
    if read.problems:
        raise Misconfigured(read.problems)
    if settings.runs_per_person >= settings.runs_at_once:
        log.warning(
            "ATLAS_RUNS_PER_PERSON=%s is not below ATLAS_RUNS_AT_ONCE=%s: one person's burst may fill a whole process, "
            "and others then wait for a run to end",
            settings.runs_per_person,
            settings.runs_at_once,
        )
    return settings
