"""Named statements: read, called by keyword, and all of them true to the schema."""

import ast
from pathlib import Path

import asyncpg
import pytest

import storage
from core.errors import InvariantBroken
from storage import sql
from storage.sql import Statement, load_statements

STATEMENTS = load_statements()

SAMPLE = """-- About pairs.

-- name: add_pair(a, b)
-- any -> stored; the sum comes back
-- no row: never
insert into pairs (a, b) values ($1, $2)  -- in order
returning a + b as total;

-- name: count_pairs()
select count(*) from pairs;
"""


def written(directory: Path, text: str) -> dict[str, Statement]:
    (directory / "sample.sql").write_text(text)
    return load_statements(directory)


def test_a_file_is_read_into_statements_with_parameters_and_description(tmp_path: Path) -> None:
    statements = written(tmp_path, SAMPLE)
    assert list(statements) == ["add_pair", "count_pairs"]
    add = statements["add_pair"]
    assert add.parameters == ("a", "b")
    assert add.description == "any -> stored; the sum comes back no row: never"
    assert add.text.startswith("/* add_pair */ insert into pairs")
    assert not add.text.rstrip().endswith(";")
    assert statements["count_pairs"].parameters == ()


async def test_statements_are_called_by_keyword_in_any_order(
    tmp_path: Path, connection: "asyncpg.Connection[asyncpg.Record]"
) -> None:
    statements = written(tmp_path, SAMPLE)
    await connection.execute("create table pairs (a int, b int)")
    add, count = statements["add_pair"], statements["count_pairs"]
    row = await add.row(connection, b=2, a=40)
    assert row is not None
    assert row["total"] == 42
    assert await add.value(connection, a=1, b=1) == 2
    assert [r["total"] for r in await add.rows(connection, a=1, b=2)] == [3]
    assert await add.run(connection, a=1, b=3) == 1
    assert await count.value(connection) == 4


@pytest.mark.parametrize("values", [{}, {"a": 1}, {"a": 1, "b": 2, "c": 3}, {"a": 1, "c": 3}])
def test_a_missing_or_an_extra_argument_is_a_type_error(tmp_path: Path, values: dict[str, object]) -> None:
    with pytest.raises(TypeError, match="add_pair"):
        written(tmp_path, SAMPLE)["add_pair"].arguments(values)


@pytest.mark.parametrize(
    "text",
    [
        "select 1;",
        "-- name: Upper(a)\nselect $1;",
        "-- name: one(a, a)\nselect $1;",
        "-- name: one(a)\nselect $1, $2;",
        "-- name: one(a, b)\nselect $2;",
        "-- name: one(a)\nselect $1",
        "-- name: one(a)\nselect $1; select 2;",
        "-- name: one(a)\n",
        "-- name: one()\nselect 1;\n-- name two()\nselect 2;",
        "-- name: one()\nselect 1;\n-- name: one()\nselect 1;",
    ],
)
def test_a_file_that_does_not_read_as_meant_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(InvariantBroken):
        written(tmp_path, text)


def test_an_unknown_statement_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no_such_statement"):
        _ = sql.no_such_statement


async def test_every_statement_prepares_on_the_migrated_schema_with_its_headers_parameters(
    connection: "asyncpg.Connection[asyncpg.Record]",
) -> None:
    wrong: dict[str, str] = {}
    for statement in STATEMENTS.values():
        try:
            taken = len((await connection.prepare(statement.text)).get_parameters())
        except asyncpg.PostgresError as error:
            wrong[statement.name] = str(error)
        else:
            if taken != len(statement.parameters):
                wrong[statement.name] = f"takes {taken} parameters, its header names {statement.parameters}"
    assert wrong == {}


def test_code_and_files_name_the_same_statements() -> None:
    named = {
        node.attr
        for file in Path(storage.__path__[0]).glob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Attribute)
        and node.attr not in dir(sql)
        and isinstance(node.value, ast.Name)
        and node.value.id == "sql"
    }
    assert named == set(STATEMENTS), "a statement nobody calls, or a call of none"
