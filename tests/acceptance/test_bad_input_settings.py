"""Wrong settings, agents, tokens and databases: one clear message that says what to do, exit code 2, no traceback."""

import asyncio
import os
import re
import socket
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import asyncpg
import pytest

from tests.acceptance.stack import Stack

GOOD = {
    "DATABASE_URL": "postgresql://atlas@127.0.0.1:1/atlas",
    "SLACK_BOT_TOKEN": "xoxb-1-abc",
    "SLACK_APP_TOKEN": "xapp-1-abc",
    "SLACK_API_URL": "http://127.0.0.1:1/api/",
    "ATLAS_CRM_URL": "http://127.0.0.1:1",
    "ATLAS_HTTP_PORT": "0",
}
PERMITTED = "    writes = True\n    def permitted(self, args, scope): return True"
PREVIEWED = f"{PERMITTED}\n    async def preview(self, args, ctx): ..."
AGENT = """
from core import Agent, Approval, ModelReply, Preview, Scope, Tool
from pydantic import BaseModel


class Nothing(BaseModel):
    pass


class Model:
    async def respond(self, messages, tools, max_output_tokens):
        return ModelReply(text="hello")


async def scopes(user):
    return Scope()


def agent_with(*tools, model=Model()):
    return Agent(instructions="", tools=tools, scopes=scopes, model=model)
"""


def refusal(directory: Path, *command: str, **settings: str) -> list[str]:
    """Start a bot (``serve``, unless told) that must refuse to; return the problems that it lists."""
    environment = {name: value for name, value in {**GOOD, **settings}.items() if value}
    ended = subprocess.run(
        [sys.executable, "-m", "bot", *(command or ("serve",))],
        cwd=directory,
        env={**{name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ}, **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )
    return problems(ended.returncode, ended.stdout + ended.stderr)


def problems(code: int | None, output: str) -> list[str]:
    """Return what a refused start lists, after checking that it is one message and nothing else."""
    assert code == 2, output
    assert "Traceback" not in output
    first, *rest = output.strip().splitlines()
    assert re.fullmatch(r"atlas [\w-]+: .*:?", first), output
    assert all(line.startswith("  ") for line in rest), output
    return [first, *rest] if not rest or "cannot start" not in first else [line.strip(" -") for line in rest]


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"SLACK_BOT_TOKEN": ""}, "SLACK_BOT_TOKEN is not set"),
        ({"SLACK_BOT_TOKEN": "xapp-1-abc"}, "SLACK_BOT_TOKEN does not look right"),
        ({"SLACK_APP_TOKEN": ""}, "SLACK_APP_TOKEN is not set"),
        ({"SLACK_APP_TOKEN": "xoxb-1-abc"}, "SLACK_APP_TOKEN does not look right"),
        ({"SLACK_API_URL": "slack.com/api"}, "SLACK_API_URL='slack.com/api' must be http://host or https://host"),
        ({"SLACK_API_URL": "http://["}, "SLACK_API_URL='http://[' must be http://host or https://host"),
        ({"ATLAS_CRM_URL": "crm.example:80"}, "ATLAS_CRM_URL='crm.example:80' must be http://host or https://host"),
        ({"DATABASE_URL": "mysql://root@127.0.0.1/atlas"}, "DATABASE_URL must be postgresql://"),
        ({"DATABASE_URL": "postgresql://user:password@host:port/database"}, "DATABASE_URL must be postgresql://"),
        ({"DATABASE_URL": "postgresql://atlas:half#other@127.0.0.1/atlas"}, "%23 for #"),
        ({"DATABASE_URL": "postgresql://atlas@[::1/atlas"}, "DATABASE_URL must be postgresql://"),
        ({"ATLAS_PG_POOLER": "session"}, "ATLAS_PG_POOLER"),
        ({"ATLAS_CRM_URL": ""}, "ATLAS_CRM_URL is not set"),
        ({"ATLAS_AGENT": "no colon"}, "ATLAS_AGENT"),
        ({"ATLAS_AGENT": ".:agent"}, "ATLAS_AGENT='.:agent' must be module:attribute"),
        ({"ATLAS_MODEL": "gpt"}, "ATLAS_MODEL='gpt' must be provider:model"),
        ({"ATLAS_MODEL": "openai:no-such-model-at-all"}, "no-such-model-at-all"),
        ({"ATLAS_MODEL": "opnai:gpt"}, "Unknown provider: opnai; write it like anthropic:… or openai:…"),
        ({"ATLAS_ALERT_CHANNEL": "#ops"}, "ATLAS_ALERT_CHANNEL does not look right"),
        ({"ATLAS_OPERATORS": "oskar"}, "ATLAS_OPERATORS names 'oskar'"),
        ({"ATLAS_SUSPENSION_TTL_S": "1801"}, "ATLAS_SUSPENSION_TTL_S=1801 must be from 1 to 1800 seconds"),
        ({"ATLAS_SUSPENSION_TTL_S": "soon"}, "ATLAS_SUSPENSION_TTL_S='soon' is not a number"),
        ({"ATLAS_SUSPENSION_TTL_S": "nan"}, "ATLAS_SUSPENSION_TTL_S"),
        ({"ATLAS_LEASE_S": "1"}, "ATLAS_LEASE_S"),
        ({"ATLAS_REAP_EVERY_S": "0"}, "ATLAS_REAP_EVERY_S"),
        ({"ATLAS_EXPIRE_EVERY_S": "-1"}, "ATLAS_EXPIRE_EVERY_S"),
        ({"ATLAS_RUNS_AT_ONCE": "0"}, "ATLAS_RUNS_AT_ONCE='0' must be a whole number from 1 to"),
        ({"ATLAS_RUNS_PER_PERSON": "many"}, "ATLAS_RUNS_PER_PERSON='many' must be a whole number"),
        ({"ATLAS_HTTP_PORT": "http"}, "ATLAS_HTTP_PORT"),
        ({"ATLAS_HTTP_PORT": "65536"}, "ATLAS_HTTP_PORT"),
        ({"ATLAS_HTTP_PORT": "8²"}, "ATLAS_HTTP_PORT='8²' must be a port number"),
        ({"ATLAS_AGENT": "no_such_module:agent"}, "cannot import no_such_module"),
        ({"ATLAS_AGENT": "bot.desk:nobody"}, "nobody is not a core.Agent"),
    ],
)  # fmt: skip
def test_a_wrong_setting_is_named(tmp_path: Path, settings: dict[str, str], says: str) -> None:
    """Each missing or wrong setting is named, with what it should be."""
    found = refusal(tmp_path, **settings)
    assert len(found) == 1, found
    assert says in found[0]


def test_everything_wrong_is_listed_at_once(tmp_path: Path) -> None:
    """Nobody has to fix one setting to learn of the next."""
    found = refusal(tmp_path, SLACK_BOT_TOKEN="", ATLAS_LEASE_S="x", ATLAS_HTTP_PORT="y", ATLAS_OPERATORS="z")
    for name in ("SLACK_BOT_TOKEN", "ATLAS_LEASE_S", "ATLAS_HTTP_PORT", "ATLAS_OPERATORS"):
        assert sum(name in problem for problem in found) == 1, found


def test_settings_come_from_a_file_too_and_the_environment_wins(tmp_path: Path) -> None:
    """A .env in the working directory counts, below the environment."""
    (tmp_path / ".env").write_text("ATLAS_LEASE_S=1\nATLAS_HTTP_PORT=nonsense\n")
    found = refusal(tmp_path, ATLAS_HTTP_PORT="0")
    assert len(found) == 1
    assert "ATLAS_LEASE_S" in found[0]


@pytest.mark.parametrize(
    ("written", "says"),
    [
        (b"# mine\nATLAS_LEASE_S 90\nATLAS_REAP_EVERY_S=60\n", "line 2: write it as NAME=value"),
        ("ATLAS_LEASE_S=90\n".encode("utf-16"), "is not UTF-8 text: save it as UTF-8"),
    ],
)
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, written: bytes, says: str) -> None:
    """A .env that would be taken in part, or not at all: named, with what to do."""
    (tmp_path / ".env").write_bytes(written)
    found = refusal(tmp_path)
    assert len(found) == 1, found
    assert found[0].startswith(str(tmp_path / ".env"))
    assert says in found[0]


@pytest.mark.parametrize(
    ("tool", "says"),
    [
        ("    writes = True\n    async def reconcile(self, args, ctx): ...", "needs permitted"),
        (PERMITTED, "needs async reconcile"),
        (f"{PERMITTED}\n    approval = Approval()\n    idempotent_by_key = True", "needs async preview"),
        ("    approval = Approval()", "reads are never approved"),
        ("    timeout_s = 0", "timeout_s must be above 0"),
        (f"{PREVIEWED}\n    approval = Approval(by=())\n    idempotent_by_key = True", "names nobody"),
    ],
)  # fmt: skip
def test_an_agent_that_could_do_harm_does_not_start(tmp_path: Path, tool: str, says: str) -> None:
    """A write without permitted or reconcile, an approval nobody can give: refused at start, the tool named."""
    source = f'{AGENT}\nclass Act(Tool[Nothing]):\n    name = "act"\n    description = "Act."\n{tool}\n'
    body = "    async def execute(self, args, ctx): return 1\n\nagent = agent_with(Act())\n"
    (tmp_path / "mine.py").write_text(source + body)
    found = refusal(tmp_path, ATLAS_AGENT="mine:agent")
    assert len(found) == 1, found
    assert "tool act" in found[0]
    assert says in found[0]


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("raise RuntimeError('its own trouble')", "its own trouble"),
        ("this is no python", "mine"),
        (AGENT + "agent = agent_with(model=None)", "ATLAS_MODEL is not set"),
        (AGENT + "agent = agent_with(object())", "is not a core.Tool"),
        (AGENT + "class Act(Tool[Nothing]):\n    approval = Approval(untold=True)\nagent = agent_with()", "untold"),
    ],
)  # fmt: skip
def test_a_module_that_cannot_be_served_is_refused(tmp_path: Path, source: str, says: str) -> None:
    """A module that raises or does not parse, an agent without a model, a misspelt policy key: said in one line."""
    (tmp_path / "mine.py").write_text(source)
    found = refusal(tmp_path, ATLAS_AGENT="mine:agent")
    assert says in " ".join(found)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"ATLAS_AGENT": "no_such_module:agent"}, "cannot import no_such_module"),
        ({"ATLAS_MODEL": "openai:gpt-4o"}, "set OPENAI_API_KEY"),
        ({}, "DATABASE_URL cannot be used"),
    ],
)
def test_a_demo_that_cannot_be_shows_no_page(tmp_path: Path, settings: dict[str, str], says: str) -> None:
    """An agent that cannot be imported, a model without its key, a database that is not there: said, that is all."""
    found = refusal(tmp_path, "demo", "--no-browser", **settings)
    assert len(found) == 1, found
    assert says in found[0]


def test_wrong_usage_exits_with_2(tmp_path: Path) -> None:
    """An unknown command, a command without its argument, a port that is none: wrong usage."""
    for arguments in (("sreve",), ("show",), ("continue", "abc"), ("demo", "--port", "65536")):
        ended = subprocess.run([sys.executable, "-m", "bot", *arguments], cwd=tmp_path, capture_output=True, text=True)
        assert ended.returncode == 2
        assert "usage:" in ended.stderr
        assert "Traceback" not in ended.stderr


async def _refused(stack: Stack, **settings: str) -> list[str]:
    bot = stack.spawn("serve", **settings)
    code = await bot.ended()
    return problems(code, bot.log)


async def test_a_database_that_is_not_there(stack: Stack) -> None:
    """Said with what to do; one where nobody listens is waited for (test_store_adversary)."""
    (missing,) = await _refused(stack, DATABASE_URL=re.sub(r"/atlas_test_\w+", "/no_such_database", stack.dsn))
    assert missing.endswith("create it, or correct DATABASE_URL")


async def test_a_database_that_does_not_let_us_in(stack: Stack) -> None:
    """A role that PostgreSQL does not know, and one that may read nothing: said with what to check, not as a defect."""
    parts = urlsplit(stack.dsn)
    role = f"weak_{parts.path.rpartition('_')[2]}"
    as_another = f"{{}}:secret@{parts.netloc.rpartition('@')[2]}"
    await _in_database(stack, f"create role \"{role}\" login password 'secret'")
    try:
        unknown, weak = await asyncio.gather(
            _refused(stack, DATABASE_URL=parts._replace(netloc=as_another.format("no_such_role")).geturl()),
            _refused(stack, DATABASE_URL=parts._replace(netloc=as_another.format(role)).geturl()),
        )
    finally:
        await _in_database(stack, f'drop role "{role}"')
    for found in (unknown, weak):
        assert len(found) == 1, found
        assert "PostgreSQL refuses (" in found[0]
        assert "check the user and the password in DATABASE_URL" in found[0]


async def test_a_schema_that_is_behind(stack: Stack, empty_database: str) -> None:
    """A database without the schema asks for a migration."""
    behind = await _refused(stack, DATABASE_URL=empty_database)
    assert "atlas migrate" in " ".join(behind)


async def test_a_schema_of_the_next_release(stack: Stack) -> None:
    """A release keeps serving on the schema of the next one (else no deploy could roll), but never migrates it."""
    await _in_database(
        stack,
        "insert into schema_migrations (number, name, checksum)"
        " select max(number) + 1, 'next', 'not ours' from schema_migrations",
    )
    await stack.serve()
    migrating = stack.spawn("migrate")
    refused = problems(await migrating.ended(), migrating.log)
    assert "Run the newer release" in refused[0]


async def test_a_schema_that_nobody_knows(stack: Stack) -> None:
    """A migration that is not the one this release carries: nobody knows what the schema is, so nothing starts."""
    await _in_database(stack, "update schema_migrations set checksum = 'another' where number = 1")
    refused = await _refused(stack)
    assert "is not the one this database has run" in refused[0]


async def _in_database(stack: Stack, statement: str) -> None:
    connection = await asyncpg.connect(stack.dsn)
    try:
        await connection.execute(statement)
    finally:
        await connection.close()


async def test_a_token_that_slack_refuses(stack: Stack) -> None:
    """Refused bot and app tokens are told apart, with where to get a good one."""
    bot, app = await asyncio.gather(
        _refused(stack, SLACK_BOT_TOKEN="xoxb-not-this-one"), _refused(stack, SLACK_APP_TOKEN="xapp-not-this-one")
    )
    assert "SLACK_BOT_TOKEN is refused by Slack (invalid_auth)" in bot[0]
    assert "SLACK_APP_TOKEN is refused by Slack (invalid_auth)" in app[0]


async def test_a_slack_that_is_not_there_and_a_port_that_is_taken(stack: Stack) -> None:
    """An address where no Slack answers, and a port that somebody else has: each said with its setting.

    Neither takes anything up first: not even a beat is given.
    """
    await stack.value(
        "create function noted() returns trigger language plpgsql as"
        " $$ begin insert into watched (what) values ('a refused start gave a beat'); return new; end $$"
    )
    await stack.value("create trigger noted before insert on workers for each row execute function noted()")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        slack, port, host = await asyncio.gather(
            _refused(stack, SLACK_API_URL="http://127.0.0.1:1/api/"),
            _refused(stack, ATLAS_HTTP_PORT=str(taken.getsockname()[1])),
            _refused(stack, ATLAS_HTTP_HOST="192.0.2.1"),  # TEST-NET-1 (RFC 5737): no address of any host
        )
    assert "SLACK_API_URL" in slack[0]
    assert "ATLAS_HTTP_PORT" in port[0]
    assert "ATLAS_HTTP_HOST" in host[0]
    assert await stack.rows("select what from watched") == []
