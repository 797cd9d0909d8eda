"""A broken statement must still be one that PostgreSQL takes: a syntax error would be noticed by any test at all."""

from pathlib import Path

import asyncpg

from storage.sql import load_statements
from tests.mutations.run import REPOSITORY, mutations


async def test_every_mutated_statement_prepares(
    connection: "asyncpg.Connection[asyncpg.Record]", tmp_path: Path
) -> None:
    wrong: dict[str, str] = {}
    tried = 0
    for mutation in mutations():
        for path, (_, now) in mutation.broken(REPOSITORY).items():
            if path.parent.name != "queries":
                continue
            folder = tmp_path / mutation.name / path.stem
            folder.mkdir(parents=True)
            (folder / path.name).write_text(now, "utf-8")
            sound = load_statements()
            for name, statement in load_statements(folder).items():
                if statement.text == sound[name].text:
                    continue
                tried += 1
                try:
                    await connection.prepare(statement.text)
                except asyncpg.PostgresError as error:
                    wrong[f"{mutation.name}: {name}"] = str(error)
    assert tried > 20
    assert wrong == {}
