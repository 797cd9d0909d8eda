"""What docs/bench holds is what the documents show: tables, plots, and one table with the peers."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.benchmarks import plots
from tests.benchmarks.beside_peers import THEIR_KINDS, lines_of_theirs
from tests.benchmarks.report import filled

DOCS = Path(__file__).parents[2] / "docs"


def lines_in(name: str) -> list[dict[str, Any]]:
    return [json.loads(text) for text in (DOCS / "bench" / name).read_text("utf-8").splitlines()]


def test_the_tables_of_figures_are_those_of_the_lines() -> None:
    """No figure of them is written by hand: ``report.py`` again, after each change of the lines."""
    document = (DOCS / "performance.md").read_text("utf-8")
    assert filled(document, lines_in("atlas.jsonl")) == document


@pytest.mark.parametrize("theme", plots.THEMES, ids=[theme.name for theme in plots.THEMES])
@pytest.mark.parametrize("plot", plots.plots(plots.read(DOCS / "bench")), ids=lambda plot: str(plot.file))
def test_each_plot_is_drawn_from_the_lines(plot: plots.Plot, theme: plots.Theme) -> None:
    """In both themes; ``plots.py`` again, after each change of the lines."""
    assert (DOCS / "plots" / f"{plot.file}-{theme.name}.svg").read_text("utf-8") == plots.draw(plot, theme)


def test_our_lines_fit_into_one_table_with_the_peers() -> None:
    """The table of the peers' scripts asks each line for these; a rate stands beside the bare loop of its own round."""
    ours, theirs = list(lines_of_theirs(lines_in("atlas.jsonl"))), lines_in("peers.jsonl")
    assert {line["bench"] for line in ours} == set(THEIR_KINDS)
    for line in ours:
        assert {"round", "peer", "bench", "per_s", "p50_ms", "p95_ms", "wal_bytes_per_step"} <= set(line)
        assert line["peer"] in ("raw", "atlas")
    bare = {(line["round"], line["concurrency"]): line for line in ours if line["peer"] == "raw"}
    assert len(bare) == sum(line["peer"] == "raw" for line in ours), "one bare loop a round and concurrency"
    rates = [line for line in ours if line["bench"] in ("steps", "step_path")]
    assert {(line["round"], line["concurrency"]) for line in rates} <= set(bare)
    assert not {line["round"] for line in ours} & {line["round"] for line in theirs}
    # What tells two of their rows apart; a second measurement of one kind in one round would be mixed with the first.
    keys = [
        tuple(line.get(name) for name in ("round", "peer", "bench", "mode", "concurrency", "messages")) for line in ours
    ]
    assert len(keys) == len(set(keys))
