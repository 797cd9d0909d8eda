"""What a start says of an agent that cannot be imported: which file, which line, and what to do."""

from pathlib import Path

import pytest

from bot.loading import load_agent
from core.errors import Misconfigured


@pytest.mark.parametrize(
    ("source", "says"),
    [
        (None, "start in the directory that holds it"),
        ("import no_such_package", "install what it needs beside Atlas"),
        ("from pathlib import NoSuchName", "cannot import name 'NoSuchName' from 'pathlib'"),
        ("x = 1\nint('three')", "ValueError: invalid literal for int() with base 10: 'three' (agent_{}.py, line 2)"),
        ("class Brain\n    pass", "SyntaxError: expected ':' (agent_{}.py, line 1)"),
    ],
)
def test_an_agent_that_cannot_be_imported_says_where_and_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str | None, says: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    name = abs(hash((source, says)))
    if source is not None:
        (tmp_path / f"agent_{name}.py").write_text(source)
    with pytest.raises(Misconfigured) as refused:
        load_agent(f"agent_{name}:agent")
    assert says.format(name) in refused.value.problems[0]
