"""Each mutation still breaks what it names: its text stands there once, it stays a program, and its tests exist.

Whether its tests notice it, only ``make mutants`` says. This is what a refactoring must keep alive.
"""

import ast
import tomllib
from functools import cache
from pathlib import Path

import pytest

from storage.sql import load_statements
from tests.mutations import run as runner
from tests.mutations.run import CannotJudge, Mutation, mutations, read

MUTATIONS = mutations()
NAMED = pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)


@cache
def functions_of(file: str) -> frozenset[str]:
    """Return the names of the test functions of a file."""
    tree = ast.parse((runner.REPOSITORY / file).read_text("utf-8"))
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    return frozenset(node.name for node in tree.body if isinstance(node, functions) and node.name.startswith("test_"))


@NAMED
def test_a_mutation_breaks_a_text_that_stands_once(mutation: Mutation, tmp_path: Path) -> None:
    """And leaves Python that compiles, or statements that load."""
    for path, (before, now) in mutation.broken(runner.REPOSITORY).items():
        assert before != now
        if path.suffix == ".py":
            compile(now, str(path), "exec")
        elif path.parent.name == "queries":
            (tmp_path / path.name).write_text(now, "utf-8")
            assert load_statements(tmp_path)


@NAMED
def test_a_mutation_names_tests_that_exist(mutation: Mutation) -> None:
    """Without any, every mutation would count as noticed, or none."""
    assert mutation.tests
    for test in mutation.tests:
        file, _, name = test.partition("::")
        assert (runner.REPOSITORY / file).is_file(), test
        assert name.partition("[")[0] in functions_of(file), test


def test_a_claim_is_said_once_and_fits_a_line() -> None:
    """A list of what is guarded, to be read."""
    claims = [mutation.claim for mutation in MUTATIONS]
    assert len(set(claims)) == len(claims)
    assert all(len(claim) <= 110 and claim.endswith(".") for claim in claims)


@pytest.mark.parametrize(
    ("old", "words"), [("not there", "stands 0 times"), ("def ", "must stand once")], ids=["gone", "twice"]
)
def test_a_text_that_does_not_stand_once_proves_nothing(tmp_path: Path, old: str, words: str) -> None:
    """The runner then says so instead of calling it noticed."""
    (tmp_path / "code.py").write_text("def a(): ...\ndef b(): ...\n")
    toml = tmp_path / "one.toml"
    toml.write_text(f'claim = "x"\nfile = "code.py"\nold = "{old}"\nnew = ""\ntests = ["t"]\n')
    with pytest.raises(CannotJudge, match=words):
        read(toml).broken(tmp_path)


def test_a_misspelt_key_is_refused(tmp_path: Path) -> None:
    """``test`` instead of ``tests`` would run nothing."""
    toml = tmp_path / "one.toml"
    toml.write_text('claim = "x"\nfile = "f"\nold = "o"\nnew = ""\ntest = ["t"]\n')
    assert "test" in tomllib.loads(toml.read_text())
    with pytest.raises(CannotJudge, match="keys"):
        read(toml)
