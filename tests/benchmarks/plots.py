"""Draw docs/plots/*.svg, light and dark, from JSON lines: ours and the peers'.

    python tests/benchmarks/plots.py docs/bench docs/plots

Decides: which lines are drawn, and that a rate is drawn as a ratio to the bare asyncpg INSERT loop of its own round,
since the rounds are of different minutes. Does not: measure.
"""

import json
import math
import statistics
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

Line = dict[str, Any]


@dataclass(frozen=True)
class Theme:
    """Colours of one variant. *series*: by the colour names of ``COLOURS``."""

    name: str
    ground: str
    text: str
    quiet: str
    grid: str
    series: dict[str, str]


THEMES = (
    Theme(
        *("light", "#ffffff", "#1f2328", "#59636e", "#d9dee3"),
        {"blue": "#0b57d0", "teal": "#00796b", "amber": "#8a6100", "brown": "#a04000", "red": "#b3261e"}
        | {"violet": "#8250df", "grey": "#5f6b76"},
    ),
    Theme(
        *("dark", "#0d1117", "#e6edf3", "#9198a1", "#30363d"),
        {"blue": "#6ea8fe", "teal": "#4dd0c0", "amber": "#e3b341", "brown": "#ffa657", "red": "#ff8a80"}
        | {"violet": "#d2a8ff", "grey": "#9aa4af"},
    ),
)
# One colour an engine in every chart; ours by what it is.
COLOURS = {
    "Atlas": "blue",
    "Atlas, step path": "blue",
    "Atlas, warm": "blue",
    "Atlas, whole engine": "teal",
    "Atlas, other process": "teal",
    "bare SQL": "grey",
    "LangGraph": "amber",
    "LangGraph, delta": "amber",
    "LangGraph, append": "brown",
    "DBOS": "red",
    "Absurd": "violet",
}
NAMES = {
    "atlas": "Atlas",
    "raw": "bare SQL",
    "langgraph": "LangGraph",
    "langgraph delta": "LangGraph, delta",
    "langgraph append": "LangGraph, append",
    "dbos": "DBOS",
    "absurd": "Absurd",
}
WIDTH, HEIGHT = 720, 420
LEFT, RIGHT, TOP, BOTTOM = 76, 196, 58, 52


@dataclass
class Plot:
    """A chart with logarithmic axes. *series*: name → points (x, y)."""

    file: str
    title: str
    x_name: str
    y_name: str
    series: dict[str, list[tuple[float, float]]]
    level: tuple[float, str] | None = None
    ticks: Sequence[float] = field(default_factory=tuple)


def read(directory: Path) -> list[Line]:
    """Return every line under *directory*, with the file that it is from."""
    lines: list[Line] = []
    for file in sorted(directory.glob("*.jsonl")):
        if "slow-sync" in file.name:
            continue  # another disk: not to be mixed
        lines += [{"file": file.name, **json.loads(text)} for text in file.read_text().splitlines()]
    return [line for line in lines if not line.get("counted") and "statements_per_step" not in line]


def medians(
    lines: list[Line], bench: str, x: str, y: Callable[[Line], float | None]
) -> dict[str, list[tuple[float, float]]]:
    """Return for each engine the median of *y* at each *x*; an engine's best mode where it has several."""
    groups: dict[str, dict[float, dict[str, list[float]]]] = defaultdict(lambda: defaultdict(lambda: defaultdict(list)))
    for line in lines:
        value = y(line) if line["bench"] == bench and x in line else None
        if value is not None:
            mode = " ".join(str(line[name]) for name in ("mode", "channel", "durability") if name in line)
            engine = f"{line['peer']} {line['channel']}" if "channel" in line else line["peer"]
            groups[engine][line[x]][mode].append(value)
    return {
        peer: sorted((at, _best(bench, [statistics.median(v) for v in modes.values()])) for at, modes in points.items())
        for peer, points in groups.items()
    }


def _best(bench: str, values: list[float]) -> float:
    return max(values) if bench == "steps" else min(values)


def plots(lines: list[Line]) -> list[Plot]:
    """Return the charts."""
    bare: dict[tuple[Any, ...], float] = {}
    for line in lines:
        if line["peer"] == "raw" and line["bench"] == "asyncpg" and line.get("mode", "asyncio") == "asyncio":
            bare[line["file"], line.get("round"), line["concurrency"]] = line["per_s"]

    def ratio(line: Line) -> float | None:
        loop = bare.get((line["file"], line.get("round"), line.get("concurrency")))
        return None if loop is None else line["per_s"] / loop

    rates = medians([line for line in lines if line["bench"] == "steps"], "steps", "concurrency", ratio)
    path = medians(
        [line | {"bench": "steps"} for line in lines if line["bench"] == "step_path"], "steps", "concurrency", ratio
    )
    costs = medians(lines, "growth", "messages", lambda line: line["ms_per_step"])
    wal = medians(lines, "growth", "messages", lambda line: line["wal_bytes_per_step"] / 1000)
    waits = [line for line in lines if line["bench"] == "suspend_resume"]
    resumed = named(medians(waits, "suspend_resume", "messages", lambda line: line.get("p50_ms")))
    for mode in ("warm", "other process"):
        mine = [line for line in waits if line.get("mode") == mode]
        resumed[f"Atlas, {mode}"] = medians(mine, "suspend_resume", "messages", lambda line: line["p50_ms"]).get(
            "atlas", []
        )
    resumed.pop("Atlas", None)
    resumed = dict(sorted(resumed.items(), key=lambda one: not one[0].startswith("Atlas")))
    ours = {"Atlas, step path": path.get("atlas", []), "Atlas, whole engine": rates.pop("atlas", [])}
    lengths = (10, 100, 1000)
    return [
        Plot(
            "steps", "Durable steps per second beside a bare asyncpg INSERT loop", "concurrent runs", "× bare loop",
            ours | named(rates), (1.0, "bare loop"), (1, 8, 32, 128),
        ),
        Plot("growth", "One more step of a conversation", "messages of 2 KB so far", "ms", named(costs), None, lengths),
        Plot("wal", "Write-ahead log of one more step", "messages of 2 KB so far", "KB", named(wal), None, lengths),
        Plot("resume", "From the decision to the tool, median", "messages of 2 KB", "ms", resumed, None, lengths),
    ]  # fmt: skip


def named(series: dict[str, list[tuple[float, float]]]) -> dict[str, list[tuple[float, float]]]:
    """Return series by the names that people know, ours first."""
    return {NAMES[engine]: series[engine] for engine in NAMES if series.get(engine)}


def draw(plot: Plot, theme: Theme) -> str:
    """Return the SVG of a chart."""
    points = [point for line in plot.series.values() for point in line]
    values = [y for _, y in points] + ([plot.level[0]] if plot.level else [])
    low, high = math.floor(math.log10(min(values)) - 0.05), math.ceil(math.log10(max(values)) + 0.05)
    first, last = math.log10(plot.ticks[0]), math.log10(plot.ticks[-1])

    def across(x: float) -> float:
        return LEFT + (math.log10(x) - first) / (last - first) * (WIDTH - LEFT - RIGHT)

    def up(y: float) -> float:
        return HEIGHT - BOTTOM - (math.log10(y) - low) / (high - low) * (HEIGHT - TOP - BOTTOM)

    end = WIDTH - RIGHT

    def text(x: float, y: float, words: str, colour: str, more: str = "") -> None:
        out.append(f'<text x="{x:.1f}" y="{y:.1f}" fill="{colour}"{more}>{escape(words)}</text>')

    def path(d: str, colour: str, more: str = "") -> None:
        out.append(f'<path d="{d}" stroke="{colour}" fill="none"{more}/>')

    out = [f'<rect width="{WIDTH}" height="{HEIGHT}" fill="{theme.ground}"/>']
    text(16, 28, plot.title, theme.text, ' font-size="16" font-weight="600"')
    text(LEFT, 48, f"{plot.y_name}, logarithmic", theme.quiet)
    text((LEFT + end) / 2, HEIGHT - 12, plot.x_name, theme.quiet, ' text-anchor="middle"')
    for power in range(low, high + 1):
        y = up(10.0**power)
        path(f"M{LEFT} {y:.1f}H{end}", theme.grid)
        text(LEFT - 8, y + 4, f"{10.0**power:,.{max(0, -power)}f}", theme.quiet, ' text-anchor="end"')
    for tick in plot.ticks:
        text(across(tick), HEIGHT - BOTTOM + 20, f"{tick:,.0f}", theme.quiet, ' text-anchor="middle"')
    ends = [(up(line[-1][1]), name) for name, line in plot.series.items() if line]
    labels = spread([*ends, *([(up(plot.level[0]), plot.level[1])] if plot.level else [])])
    if plot.level:
        path(f"M{LEFT} {up(plot.level[0]):.1f}H{end}", theme.quiet, ' stroke-dasharray="4 4"')
        text(end + 18, labels[plot.level[1]], f"{plot.level[1]} 1", theme.quiet)
    for name, line in reversed(plot.series.items()):  # ours, the first, is drawn over the others
        if not line:
            continue
        colour = theme.series[COLOURS[name]]
        width = 3 if name.startswith("Atlas") else 2
        path("M" + "L".join(f"{across(x):.1f} {up(y):.1f}" for x, y in line), colour, f' stroke-width="{width}"')
        for x, y in line:
            shape = f'<circle cx="{across(x):.1f}" cy="{up(y):.1f}" r="4" fill="{colour}">'
            out.append(f"{shape}<title>{escape(name)}: {y:.3g}</title></circle>")
        x, value = across(line[-1][0]), line[-1][1]
        path(f"M{x + 6:.1f} {up(value):.1f}L{end + 14} {labels[name] - 4:.1f}", colour)
        text(end + 18, labels[name], f"{name} {short(value)}", colour)
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        f'font-family="system-ui, sans-serif" font-size="13" role="img"><title>{escape(plot.title)}</title>'
    )
    return "\n".join([head, *out, "</svg>"]) + "\n"


def short(value: float) -> str:
    """Return a figure in at most three digits that say something."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def spread(wanted: list[tuple[float, str]]) -> dict[str, float]:
    """Return where each label stands: near where it belongs, none over another."""
    placed: dict[str, float] = {}
    floor = float(TOP)
    for y, name in sorted(wanted):
        floor = max(y + 4, floor + 17)
        placed[name] = floor
    over = max(placed.values()) - (HEIGHT - BOTTOM + 4)
    return {name: y - max(0.0, over) for name, y in placed.items()}


def main() -> None:
    """Draw every chart in both themes."""
    source, target = Path(sys.argv[1]), Path(sys.argv[2])
    target.mkdir(parents=True, exist_ok=True)
    for plot in plots(read(source)):
        for theme in THEMES:
            (target / f"{plot.file}-{theme.name}.svg").write_text(draw(plot, theme))


if __name__ == "__main__":
    main()
