"""The shape of the repository: what the packages ship, what they are called, and what is pinned."""

import ast
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

REPOSITORY = Path(__file__).parents[2]
PACKAGES = ("bot", "core", "jobs", "storage")
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
LOCK = {
    requirement.name.lower().replace("_", "-"): requirement
    for requirement in map(Requirement, (REPOSITORY / "requirements.lock").read_text().splitlines())
}
BANNED = {"manager", "helper", "helpers", "util", "utils", "common", "base", "data", "info", "process", "stuff"}


def sources() -> list[Path]:
    return [file for package in PACKAGES for file in sorted((REPOSITORY / package).rglob("*.py"))]


def words(name: str) -> set[str]:
    return set(re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower().split("_"))


@pytest.fixture(scope="module")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """Names of the files in the wheel."""
    target = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(target)],
        cwd=REPOSITORY,
        check=True,
        capture_output=True,
    )
    (wheel,) = target.glob("*.whl")
    return set(zipfile.ZipFile(wheel).namelist())


def test_the_wheel_ships_everything_the_packages_need_and_nothing_else(shipped: set[str]) -> None:
    tracked = subprocess.run(
        ["git", "ls-files", *PACKAGES], cwd=REPOSITORY, check=True, capture_output=True, text=True
    ).stdout.split()
    assert set(tracked) - shipped == set()
    assert {name.partition("/")[0] for name in shipped if ".dist-info/" not in name} == set(PACKAGES)


@pytest.mark.parametrize("package", PACKAGES)
def test_each_package_says_that_it_is_typed(package: str, shipped: set[str]) -> None:
    assert f"{package}/py.typed" in shipped


def test_every_folder_of_code_is_a_package() -> None:
    assert [str(file) for file in sources() if not (file.parent / "__init__.py").exists()] == []


def test_no_folder_of_tests_shadows_a_package() -> None:
    assert [
        str(place)
        for place in (REPOSITORY / "tests").rglob("*")
        if place.is_dir() and place.name in PACKAGES and "node_modules" not in place.parts
    ] == []


def test_every_dependency_is_locked_at_a_version_that_it_allows() -> None:
    wanted = [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["dev"], "hatchling>=1.27", "editables"]
    for requirement in map(Requirement, wanted):
        (pin,) = LOCK[requirement.name.lower()].specifier
        assert pin.operator == "=="
        assert requirement.specifier.contains(Version(pin.version)), requirement


def test_the_lock_takes_versions_only_never_addresses() -> None:
    assert [str(requirement) for requirement in LOCK.values() if requirement.url] == []
    assert "://" not in (REPOSITORY / "requirements.lock").read_text()


def test_names_say_what_a_thing_is() -> None:
    vague = [
        f"{file.relative_to(REPOSITORY)}: {name}"
        for file in sources()
        for name in (
            file.stem,
            *(
                node.name
                for node in ast.walk(ast.parse(file.read_text()))
                if isinstance(node, ast.ClassDef)
                # The simulator's functions bear the names of Slack's methods, such as team.info.
                or (isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and "simulator" not in file.parts)
            ),
        )
        if words(name) & BANNED
    ]
    assert vague == []


def test_every_module_says_what_it_decides() -> None:
    silent = [
        str(file.relative_to(REPOSITORY))
        for file in sources()
        if file.read_text().strip() and not ast.get_docstring(ast.parse(file.read_text()))
    ]
    assert silent == []
