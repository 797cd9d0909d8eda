"""The documents say what is so: what can be generated is current, what is named exists, nothing private is told."""

import argparse
import ast
import inspect
import re
import subprocess
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from pydantic import BaseModel

import core
from bot import cli
from bot.settings import NAMES
from bot.wiring import Replica
from core.run import FailReason, HaltReason, diagram

REPOSITORY = Path(__file__).parents[2]
DOCS = (REPOSITORY / "README.md", REPOSITORY / "CHANGELOG.md", *sorted((REPOSITORY / "docs").glob("*.md")))
PACKAGES = ("bot", "core", "jobs", "storage")
EXAMPLE = REPOSITORY / "docs" / "example_tool.py"
# Everything else that a document links to lies in the repository.
HOSTS = {"api.slack.com", "keepachangelog.com", "semver.org"}
CHANGES = {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}


def text(name: str) -> str:
    return (REPOSITORY / name).read_text("utf-8")


def between(name: str, marker: str) -> str:
    """Return what stands between the two markers of a document."""
    _, begin, rest = text(name).partition(f"<!-- {marker}: begin -->\n")
    body, end, _ = rest.partition(f"<!-- {marker}: end -->")
    assert begin, f"{name} has no marker where {marker} begins"
    assert end, f"{name} has no marker where {marker} ends"
    return body


def outside_code(document: str) -> str:
    return re.sub(r"^\s*```.*?^\s*```$", "", document, flags=re.MULTILINE | re.DOTALL)


def section(name: str, title: str) -> str:
    """Return a document's section of that title, up to the next of the same depth."""
    found = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", text(name), re.MULTILINE | re.DOTALL)
    assert found, f"{name} has no section {title}"
    return found[1]


def rows(name: str, title: str) -> dict[str, str]:
    """Return the rows of a section's tables by what stands in their first cell, without backticks."""
    lines = [line for line in section(name, title).splitlines() if line.startswith("| ")]
    cells = (re.split(r"(?<!\\)\|", line.strip("|")) for line in lines)
    return {first.strip().strip("`"): " ".join(rest) for first, *rest in cells if not set(first) <= set("- ")}


# ---- generated ------------------------------------------------------------------------------------------------------


def settings_table() -> str:
    lines = [f"| `{name}` | {meaning} |" for name, meaning in NAMES.items()]
    return "\n".join(["| name | meaning |", "| --- | --- |", *lines, ""])


def test_the_diagram_of_moves_is_the_one_that_the_code_draws() -> None:
    assert between("docs/architecture.md", "diagram") == f"```mermaid\n{diagram()}\n```\n"


def test_the_table_of_settings_is_the_one_that_the_code_knows() -> None:
    assert between("docs/operating.md", "settings") == settings_table()


# ---- complete -------------------------------------------------------------------------------------------------------


def commands() -> dict[str, argparse.ArgumentParser]:
    """Return the commands that help lists; those without a line there are no one's to call."""
    (subparsers,) = (a for a in cli._parser()._actions if isinstance(a, argparse._SubParsersAction))
    listed = {action.dest for action in subparsers._choices_actions}
    return {name: parser for name, parser in subparsers.choices.items() if name in listed}


@pytest.mark.parametrize("name", sorted(commands()))
def test_a_command_is_documented_with_all_that_it_takes(name: str) -> None:
    (usage,) = [row for row in rows("docs/operating.md", "Commands") if row.split()[:2] == ["atlas", name]]
    for action in commands()[name]._actions:
        if isinstance(action, argparse._HelpAction):
            continue
        wanted = [action.option_strings[0]] if action.option_strings else []
        if action.choices:
            wanted.append(r"\|".join(map(str, action.choices)))
        elif action.nargs != 0:
            wanted.append(str(action.metavar or action.dest.upper()))
        for part in wanted:
            assert part in usage, f"atlas {name}: {part} is not documented"


def test_no_command_is_documented_that_there_is_not() -> None:
    documented = {row.split()[1] for row in rows("docs/operating.md", "Commands") if row.startswith("atlas ")}
    assert documented == set(commands())


def returned(function: object) -> set[int]:
    """Return the numbers that a function of the command line returns, read from its source."""
    tree = ast.parse(inspect.getsource(function))  # type: ignore[arg-type]
    values = (node.value for node in ast.walk(tree) if isinstance(node, ast.Return) and node.value)
    constants = (each for value in values for each in ast.walk(value) if isinstance(each, ast.Constant))
    return {constant.value for constant in constants if type(constant.value) is int}


def test_every_exit_code_is_documented_and_no_other() -> None:
    codes = set().union(*(returned(f) for f in (cli.main, cli.doctor, cli._failed, cli._done)))
    assert codes >= {0, 1, 2}
    assert set(rows("docs/operating.md", "Exit codes")) - {"code"} == {str(code) for code in codes}


def test_every_reason_for_an_end_is_documented() -> None:
    table = section("docs/operating.md", "How runs end")
    missing = [reason.value for reason in (*HaltReason, *FailReason) if f"`{reason.value}`" not in table]
    assert missing == []


def test_every_metric_is_documented_and_no_other() -> None:
    source = inspect.getsource(Replica.metrics)
    found = set(re.findall(r"\"([a-z_]+)\":", source)) | set(re.findall(r"f'([a-z_]+)\{", source))
    found |= set(re.findall(r"figures\[\"([a-z_]+)\"\]", source))
    documented = {name.partition("{")[0] for name in rows("docs/operating.md", "Health and metrics")} - {"metric"}
    assert documented == {f"atlas_{name}" for name in found}


def alert_titles() -> Iterator[tuple[str, list[str]]]:
    """Return where each alert is made, with the words of its title that are always the same."""
    for file in (file for package in PACKAGES for file in sorted((REPOSITORY / package).rglob("*.py"))):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if not (isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Alert"):
                continue
            titles = [word.value for word in node.keywords if word.arg == "title"] or node.args[1:2]
            parts = [p.value for t in titles for p in ast.walk(t) if isinstance(p, ast.Constant)]
            yield f"{file.name}:{node.lineno}", [p.strip(" :.") for p in parts if isinstance(p, str)]


def test_every_alert_is_documented() -> None:
    table = section("docs/operating.md", "Alerts")
    found = list(alert_titles())
    assert len(found) >= 5
    missing = [(where, part) for where, parts in found for part in parts if part not in table]
    assert missing == []


def test_every_public_name_is_documented() -> None:
    missing = [name for name in core.__all__ if not re.search(rf"\b{name}\b", text("docs/tools.md"))]
    assert missing == []


def test_everything_that_a_tool_may_declare_is_documented() -> None:
    attributes, methods = set(core.Tool.__annotations__), set()
    for name, member in vars(core.Tool).items():
        if not name.startswith("_") and inspect.isfunction(member):
            methods.add(name)
    table = rows("docs/tools.md", "A tool")
    documented = {name.partition("(")[0] for name in table} - {"attribute", "method"}
    assert documented == attributes | methods
    for name in attributes - {"name", "arguments_model"}:
        default = getattr(core.Tool, name)
        shown = f'"{default}"' if isinstance(default, str) else str(default)
        assert f"`{shown}`" in table[name], f"{name}: its default is {shown}"


@pytest.mark.parametrize(
    ("model", "title"), [(core.Approval, "Approval"), (core.Limits, "Agent and limits")], ids=["approval", "limits"]
)
def test_every_field_is_documented_with_its_default(model: type[BaseModel], title: str) -> None:
    table = rows("docs/tools.md", title)
    for name, field in model.model_fields.items():
        shown = f'"{field.default}"' if isinstance(field.default, str) else str(field.default)
        assert f"`{shown}`" in table[name], f"{name}: its default is {shown}"


def test_what_a_tool_is_given_is_documented() -> None:
    given = section("docs/tools.md", "What a tool is given") + section("docs/tools.md", "A model of your own")
    models = (core.ToolContext, core.User, core.Scope, core.Preview, core.Message, core.ToolSpec, core.ModelReply)
    missing = [f"{m.__name__}.{name}" for m in models for name in m.model_fields if f"`{name}`" not in given]
    assert missing == []


# ---- true -----------------------------------------------------------------------------------------------------------


def test_the_two_commands_of_the_readme_are_there() -> None:
    (block,) = re.findall(r"^```sh\n(make .*?)^```$", section("README.md", "Try it"), re.MULTILINE | re.DOTALL)
    assert block.splitlines() == ["make demo", "make test"]
    targets = set(re.findall(r"^([a-z]+):", text("Makefile"), re.MULTILINE))
    named = {
        target for file in DOCS for target in re.findall(r"\bmake ([a-z]+)(?: ARGS=\S+)?$", code_of(file), re.MULTILINE)
    }
    assert {"demo", "test"} <= named
    assert named <= targets


def code_of(file: Path) -> str:
    """Return a document's code, blocks and spans, a line each."""
    document = file.read_text("utf-8")
    blocks = re.findall(r"^\s*```\w*\n(.*?)^\s*```$", document, re.MULTILINE | re.DOTALL)
    return "\n".join([*blocks, *re.findall(r"`([^`\n]+)`", outside_code(document))])


def anchors(document: str) -> set[str]:
    titles = re.findall(r"^#+ (.+)$", outside_code(document), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("file", DOCS, ids=lambda file: str(file.name))
def test_every_link_leads_somewhere(file: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", outside_code(file.read_text("utf-8"))):
        if target.startswith("https://"):
            assert target.split("/")[2] in HOSTS, target
            continue
        path, _, anchor = target.partition("#")
        found = (file.parent / path).resolve() if path else file
        assert found.exists(), f"{file.name} links to {target}"
        assert found.is_relative_to(REPOSITORY)
        if anchor:
            assert anchor in anchors(found.read_text("utf-8")), f"{file.name} links to {target}"


@cache
def defined(file: Path) -> frozenset[str]:
    """Return the names that a module defines: functions, classes, methods, constants."""
    names: set[str] = set()

    def collect(body: list[ast.stmt], prefix: str) -> None:
        for node in body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                names.add(prefix + node.name)
                if isinstance(node, ast.ClassDef):
                    collect(node.body, f"{prefix}{node.name}.")
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            names.update(prefix + target.id for target in targets if isinstance(target, ast.Name))

    collect(ast.parse(file.read_text("utf-8")).body, "")
    return frozenset(names)


@pytest.mark.parametrize("name", ["docs/architecture.md", "docs/decisions.md"])
def test_every_place_in_the_code_is_there(name: str) -> None:
    places = re.findall(r"`((?:bot|core|jobs|storage)/[\w/.]+)(?::([\w.]+))?`", text(name))
    assert len(places) > 10
    for path, member in places:
        assert (REPOSITORY / path).exists(), path
        if member:
            assert member in defined(REPOSITORY / path), f"{path} defines no {member}"


@pytest.mark.parametrize("file", [f for f in DOCS if "```python" in f.read_text("utf-8")], ids=lambda f: str(f.name))
def test_sample_code_parses_and_imports_only_what_is_public(file: Path) -> None:
    for block in re.findall(r"^```python\n(.*?)^```$", file.read_text("utf-8"), re.MULTILINE | re.DOTALL):
        assert_public(ast.parse(block))


# A resolver that needs Slack cannot be in core.
PUBLIC_BESIDE_CORE = {"bot.scopes": {"slack_group_scopes"}}


def assert_public(tree: ast.AST) -> None:
    """Fail for what an engineer's own module may not name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] in PACKAGES:
            names = {alias.name for alias in node.names}
            assert names <= PUBLIC_BESIDE_CORE.get(node.module, set(core.__all__) if node.module == "core" else set())
        if isinstance(node, ast.Import):
            ours = {alias.name for alias in node.names if alias.name.split(".")[0] in PACKAGES}
            assert ours <= {"core"}
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "core":
            assert node.attr in core.__all__, node.attr


def test_the_example_is_short_and_uses_public_names_only() -> None:
    source = EXAMPLE.read_text("utf-8")
    assert_public(ast.parse(source))
    assert sum(bool(line.strip()) for line in source.splitlines()) <= 50


# ---- in shape -------------------------------------------------------------------------------------------------------


def test_the_changelog_keeps_its_form() -> None:
    changelog = text("CHANGELOG.md")
    assert changelog.startswith("# Changelog\n")
    assert "keepachangelog.com" in changelog
    titles = re.findall(r"^## (.+)$", changelog, re.MULTILINE)
    assert titles[0] == "[Unreleased]"
    released = [re.fullmatch(r"\[(\d+)\.(\d+)\.(\d+)\] - (\d{4}-\d{2}-\d{2})", title) for title in titles[1:]]
    assert all(released), titles
    versions = [tuple(map(int, match.groups()[:3])) for match in released if match]
    assert versions == sorted(set(versions), reverse=True)
    current = tuple(map(int, tomllib.loads(text("pyproject.toml"))["project"]["version"].split(".")))
    assert all(version <= current for version in versions)
    assert set(re.findall(r"^### (.+)$", changelog, re.MULTILINE)) <= CHANGES
    for part in re.split(r"^### .+$", changelog, flags=re.MULTILINE)[1:]:
        assert re.search(r"^- \S", part, re.MULTILINE), "a heading without an entry"


def test_each_decision_is_five_lines_newest_first() -> None:
    _, *decisions = re.split(r"^## ", text("docs/decisions.md"), flags=re.MULTILINE)
    numbers = []
    for decision in decisions:
        title, *body = [line for line in decision.splitlines() if line.strip()]
        numbers.append(int(title.partition(".")[0]))
        assert [line.partition(":")[0] for line in body] == ["What", "Why", "Else", "Cost", "Where"], title
    assert numbers == list(range(len(numbers), 0, -1))


def test_the_readme_says_what_atlas_is_in_five_lines_and_a_picture() -> None:
    title, what, picture, *_ = text("README.md").split("\n\n")
    assert title == "# Atlas"
    assert len(what.splitlines()) == 5
    assert "](docs/screens/card-waiting.png)" in picture


PRIVATE = {
    "a path of somebody's machine": r"(?<![\w./-])/(?:home|root|Users|tmp|work|opt|mnt|srv|farm)/",
    "a real token": r"\bx(?:ox[abeprs]|app)-[A-Za-z0-9]",
    "a key of a provider": r"\bsk-[A-Za-z0-9]",
    "a real id of Slack": r"\b[CGUWT]0[A-Z0-9]{8,}\b",
    "a password in an address": r"://[^/\s:]+:[^/\s@]+@",
    "an address of a person": r"[\w.]+@[\w-]+\.(?!example\b)[a-z]{2,}",
    "an address on a network": r"\b(?:10|172|192)\.\d+\.\d+\.\d+\b",
}


@pytest.mark.parametrize("what", sorted(PRIVATE))
def test_the_documents_tell_nothing_private(what: str) -> None:
    tracked = subprocess.run(
        ["git", "ls-files", "docs"], cwd=REPOSITORY, check=True, capture_output=True, text=True
    ).stdout.split()
    files = {*DOCS, EXAMPLE, REPOSITORY / "manifest.yml", *(REPOSITORY / name for name in tracked)}
    told = [
        f"{file.name}: {match[0]}"
        for file in sorted(files)
        if file.suffix in (".md", ".py", ".yml")
        for match in re.finditer(PRIVATE[what], file.read_text("utf-8"))
    ]
    assert told == []
