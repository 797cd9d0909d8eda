"""Loads the named statements of `storage/queries/*.sql` and calls them by keyword.

A statement reads

    -- name: answer_run(run_id, claim_token, now)
    -- running -> answered; no row: the claim is lost
    update runs set ... where id = $1 and claim_token = $2 ... returning *;

and is then `sql.answer_run`: the header's names are `$1, $2 ...` in that order. asyncpg knows only numbers, and a
number is easily off by one; a name is not. Hot paths may hand `sql.answer_run.text` to a connection themselves.

It decides nothing about results and maps no errors (`storage.database` does). The failure it can cause: none at run
time that a test does not find first, since one prepares every statement against the migrated schema.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import TYPE_CHECKING, Any, TypeAlias

from core.errors import InvariantBroken

if TYPE_CHECKING:
    import asyncpg
    from asyncpg.pool import PoolConnectionProxy

    Connection: TypeAlias = (
        asyncpg.Connection[asyncpg.Record] | PoolConnectionProxy[asyncpg.Record] | asyncpg.Pool[asyncpg.Record]
    )

_HEADER = re.compile(r"--\s*name:\s*(\w+)\(([\w\s,]*)\)\s*")
_NAME = re.compile(r"[a-z][a-z0-9_]*")
_NUMBER = re.compile(r"\$(\d+)")


@dataclass(frozen=True, slots=True)
class Statement:
    """One statement of one file.

    Attributes:
        parameters: the names of $1, $2 ... in order.
        description: the comment under the header: the move, and what no row means.
        text: what PostgreSQL gets, led by the name so that pg_stat_activity is readable.
        source: the file, for messages.
    """

    name: str
    parameters: tuple[str, ...]
    description: str
    text: str
    source: str

    def arguments(self, values: Mapping[str, object]) -> list[object]:
        """Put keyword arguments into the order of $1, $2 ...; a missing or an extra one is a TypeError."""
        if len(values) == len(self.parameters):
            try:
                return [values[name] for name in self.parameters]
            except KeyError:
                pass  # said below, with everything that is wrong
        missing = [name for name in self.parameters if name not in values]
        extra = [name for name in values if name not in self.parameters]
        raise TypeError(f"{self.name}({', '.join(self.parameters)}): missing {missing}, unexpected {extra}")

    async def rows(self, connection: "Connection", /, **values: object) -> "list[asyncpg.Record]":
        """Run it and return every row."""
        return await connection.fetch(self.text, *self.arguments(values))

    async def row(self, connection: "Connection", /, **values: object) -> "asyncpg.Record | None":
        """Run it and return its first row, None when there is none: for a guarded move, a conflict."""
        return await connection.fetchrow(self.text, *self.arguments(values))

    async def value(self, connection: "Connection", /, **values: object) -> Any:
        """Run it and return the first column of its first row, None when there is none."""
        return await connection.fetchval(self.text, *self.arguments(values))

    async def run(self, connection: "Connection", /, **values: object) -> int:
        """Run it for its effect and return how many rows it touched."""
        status: str = await connection.execute(self.text, *self.arguments(values))
        count = status.rpartition(" ")[2]
        return int(count) if count.isdigit() else 0


def load_statements(directory: Traversable | None = None) -> dict[str, Statement]:
    """Read every statement, by name; of another directory in tests.

    Raises InvariantBroken for a double name, a file that does not start with a header, more or less than one statement
    under a header, or numbers that are not exactly $1 to $n of the header.
    """
    statements: dict[str, Statement] = {}
    sources = (directory or files("storage") / "queries").iterdir()
    for file in sorted((file for file in sources if file.name.endswith(".sql")), key=lambda file: file.name):
        for statement in _parse(file.read_text(encoding="utf-8"), file.name):
            if statement.name in statements:
                raise InvariantBroken(
                    f"statement {statement.name} is in {statements[statement.name].source} and {statement.source}"
                )
            statements[statement.name] = statement
    return statements


def _parse(text: str, source: str) -> list[Statement]:
    statements: list[Statement] = []
    name, parameters, description, body = "", "", list[str](), list[str]()

    def finish() -> None:
        if name:
            statements.append(_statement(name, parameters, description, body, source))

    for line in text.splitlines():
        if header := _HEADER.fullmatch(line):
            finish()
            name, parameters, description, body = header[1], header[2], [], []
        elif not name:
            if line.strip() and not line.startswith("--"):
                raise InvariantBroken(f"{source} has SQL before its first header: {line.strip()}")
        elif line.startswith("-- name"):
            raise InvariantBroken(f"{source} has a header that does not read `-- name: verb_noun(a, b)`: {line}")
        elif not body and line.startswith("--"):
            description.append(line.removeprefix("--").strip())
        elif line.strip():
            body.append(line.rstrip())
    finish()
    return statements


def _statement(name: str, parameters: str, description: list[str], body: list[str], source: str) -> Statement:
    names = tuple(part.strip() for part in parameters.split(",") if part.strip())
    where = f"statement {name} in {source}"
    for word in (name, *names):
        if not _NAME.fullmatch(word):
            raise InvariantBroken(f"{where}: {word!r} is not a lower-case name")
    if len(set(names)) != len(names):
        raise InvariantBroken(f"{where} has a parameter twice")
    code = "\n".join(line.partition("--")[0] for line in body).rstrip()
    if not code.endswith(";") or code.count(";") != 1:
        raise InvariantBroken(f"{where} must be one statement ending in a semicolon")
    numbers = {int(number) for number in _NUMBER.findall(code)}
    if numbers != set(range(1, len(names) + 1)):
        raise InvariantBroken(f"{where} has parameters {names} and uses {sorted(numbers)}")
    whole = "\n".join(body)
    # A comment may follow the semicolon; what PostgreSQL gets ends before it.
    return Statement(name, names, " ".join(description), f"/* {name} */ {whole[: whole.rindex(';')]}", source)


@cache
def _loaded() -> dict[str, Statement]:
    return load_statements()


def __getattr__(name: str) -> Statement:
    """Make every statement an attribute of this module."""
    try:
        return _loaded()[name]
    except KeyError:
        raise AttributeError(f"no statement {name!r} in storage/queries") from None
