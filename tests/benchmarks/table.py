"""Lines as a table for people, each rate beside the bare INSERT loop of the same minutes.

Usage: python tests/benchmarks/table.py LINES.jsonl
"""

import json
import statistics
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

HEAD = ("what", "size", "per s", "× bare", "p50 ms", "p95 ms", "WAL B", "commits", "client µs", "server µs")
SIZES = ("mode", "concurrency", "messages", "suspended", "runs", "processes")


def table(lines: list[dict[str, Any]]) -> str:
    """Return a Markdown table: a row for each measurement, medians where there are several."""
    groups: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    bare = {}
    for line in lines:
        if line["bench"] == "machine":
            continue
        size = ", ".join(f"{line[name]} {name}" if name != "mode" else line[name] for name in SIZES if name in line)
        size += ", counted" if line.get("counted") else ""
        groups[f"{line['peer']} {line['bench']}", size].append(line)
        if line["bench"] == "asyncpg" and line.get("mode", "asyncio") == "asyncio":
            bare[line.get("round"), line["concurrency"]] = line["per_s"]
    rows = ["| " + " | ".join(HEAD) + " |", "|" + " --- |" * len(HEAD)]
    for (what, size), group in groups.items():
        keys = [(line.get("round"), line.get("concurrency")) for line in group]
        ratios = [
            line["per_s"] / bare[key] for line, key in zip(group, keys, strict=True) if key in bare and "per_s" in line
        ]
        cells = [
            _median(group, "per_s", 0) or _other(group),
            f"{statistics.median(ratios):.2f}" if ratios else "",
            _median(group, "p50_ms", 2),
            _median(group, "p95_ms", 2),
            _median(group, "wal_bytes_per_step", 0),
            _median(group, "commits_per_step", 2) + _statements(group),
            _median(group, "client_cpu_us_per_step", 0),
            _median(group, "server_cpu_us_per_step", 0),
        ]
        rows.append(f"| {what} | {size} | " + " | ".join(cells) + " |")
    return "\n".join(rows)


def _median(group: list[dict[str, Any]], key: str, digits: int) -> str:
    values = [line[key] for line in group if line.get(key) is not None]
    return f"{statistics.median(values):,.{digits}f}" if values else ""


def _statements(group: list[dict[str, Any]]) -> str:
    found = _median(group, "statements_per_step", 2)
    return f" ({found} statements)" if found else ""


def _other(group: list[dict[str, Any]]) -> str:
    """Return the figure of a line that has no rate."""
    line = group[-1]
    named = {
        "median_s": "s",
        "kb_per_run": "KB a run",
        "ratio_median": "× alone",
        "statements_per_s": "statements a second",
    }
    return next((f"{line[key]} {unit}" for key, unit in named.items() if key in line), "")


if __name__ == "__main__":
    print(table([json.loads(line) for line in Path(sys.argv[1]).read_text().splitlines()]))
