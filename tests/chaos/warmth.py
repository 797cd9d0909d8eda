"""What a process of Atlas would find out by itself, found out once, before it is forked.

Decides: which knowledge a forked process starts with: statements, types of PostgreSQL, schemas, imports. Does not: keep
anything that depends on a database's rows. Code and statements are all read here, too: a change of the working tree
while a series runs reaches none of its processes. The failure it can cause: what is remembered must be true of every
database; so only built-in types are, whose numbers PostgreSQL never changes.
"""

import gc
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import asyncpg
from aiohttp.helpers import parse_content_type
from asyncpg.connection import Connection

from storage.sql import beat_worker
from tests.chaos.target import KINDS

# Arrays that our statements take; asyncpg asks each new connection for them with a query that takes longer than most.
ARRAYS = ("_bytea", "_int4", "_int8", "_numeric", "_bool", "_text", "_timestamptz", "_uuid")
_known: dict[int, list[Any]] = {}
# Its own name for this has no type.
_connection: Any = Connection
_ask = _connection._introspect_types


async def _introspect(connection: Any, numbers: Iterable[int], timeout: float | None) -> tuple[Any, Any]:
    asked = list(numbers)
    if all(number in _known for number in asked):
        # Named: no statement without a name was sent that would have replaced another one.
        return [row for number in asked for row in _known[number]], SimpleNamespace(name="known")
    types, statement = await _ask(connection, asked, timeout)
    return types, statement


async def warm_up(dsn: str) -> None:
    """Find out what every process would; call it once in the process that forks."""
    connection = await asyncpg.connect(dsn)
    try:
        for row in await connection.fetch("select oid from pg_type where typname = any ($1)", list(ARRAYS)):
            _known[row["oid"]], _ = await _ask(connection, [row["oid"]], None)
    finally:
        await connection.close()
    _connection._introspect_types = _introspect
    assert beat_worker.text  # reads all statements
    for kind in KINDS:
        kind.arguments_model.model_json_schema()
    parse_content_type("application/json; charset=utf-8")
    gc.collect()
    gc.freeze()
