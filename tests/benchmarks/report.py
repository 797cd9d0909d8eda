"""Write measured lines into the document: the table, and each goal beside what was reached.

    python tests/benchmarks/report.py docs/bench/atlas.jsonl docs/performance.md

Decides: which line answers which goal (medians over the rounds). Does not: judge how the machine was; it says its load.
"""

import json
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.benchmarks.table import table

Line = dict[str, Any]


def median(lines: list[Line], key: str, **wanted: Any) -> float:
    """Return the median of a figure over the lines that are as wanted; NaN without any."""
    found = [
        float(line[key])
        for line in lines
        if not line.get("counted") and line.get(key) is not None and all(line.get(k) == v for k, v in wanted.items())
    ]
    return statistics.median(found) if found else float("nan")


def ratios(lines: list[Line], bench: str) -> str:
    """Return the ratios to the bare loop of the same round, at 1, 8 and 32 runs."""
    told = []
    for clients in (1, 8, 32):
        each = []
        for line in lines:
            if line["bench"] == bench and line["concurrency"] == clients and not line.get("counted"):
                bare = median(lines, "per_s", bench="asyncpg", mode="asyncio", concurrency=clients, round=line["round"])
                each.append(line["per_s"] / bare)
        told.append(f"{statistics.median(each):.2f}" if each else "?")
    return " / ".join(told)


def goals(lines: list[Line]) -> str:
    """Return the table of goals."""
    counted = [line for line in lines if line.get("counted")]
    growth: Callable[[int], float] = lambda messages: median(  # noqa: E731
        lines, "wal_bytes_per_step", bench="growth", messages=messages
    )
    statements = [line["statements_per_step"] for line in counted if line["bench"] == "step_path"]
    commits = [line["commits_per_step"] for line in lines if line["bench"] in ("step_path", "growth")]
    resume = {
        (messages, mode): median(lines, "p50_ms", bench="suspend_resume", messages=messages, mode=mode)
        for messages in (10, 1000)
        for mode in ("warm", "other process")
    }
    rows = [
        ("step path, × bare at 1 / 8 / 32 runs", "0.7 / 1.2 / 2.0 (least 0.6 / 0.9 / 1.2)", ratios(lines, "step_path")),
        ("whole engine, × bare at 1 / 8 / 32 runs", "0.6 / 0.8 / 0.8 (least 0.5 / 0.5 / 0.5)", ratios(lines, "steps")),
        ("p95 of a step at 32 runs", "5 ms", f"{median(lines, 'p95_ms', bench='step_path', concurrency=32):.1f} ms"),
        ("statements / commits a read-only step, at most", "1 / 1", f"{max(statements):.2f} / {max(commits):.2f}"),
        ("WAL over the payload of 2 KB", "0.8 KB", f"{(growth(10) - 2000) / 1000:.2f} KB"),
        ("WAL at 1,000 messages, × that at 10", "1.1", f"{growth(1000) / growth(10):.2f}"),
        ("resume p50 at 10 messages", "1.2 ms", _two(resume, 10)),
        ("resume p50 at 1,000 messages", "8 ms", _two(resume, 1000)),
        ("killed → its runs going again", "5 s", f"{median(lines, 'max_s', bench='killed_to_going'):.1f} s at most"),
        ("100,000 suspended beside 32 active, × none", "0.95", _crowd(lines)),
    ]
    head = ["| what | goal | reached |", "| --- | --- | --- |"]
    return "\n".join([*head, *(f"| {' | '.join(row)} |" for row in rows)])


def _two(resume: dict[tuple[int, str], float], messages: int) -> str:
    return f"{resume[messages, 'warm']:.2f} ms, in another process {resume[messages, 'other process']:.2f} ms"


def _crowd(lines: list[Line]) -> str:
    found = [line for line in lines if line["bench"] == "beside_suspended_ratio"]
    return f"{found[-1]['ratio_median']} (median of {found[-1]['pairs']} pairs)" if found else "?"


def put(document: str, marker: str, body: str) -> str:
    """Return the document with *body* between the marker's two lines."""
    begin, end = f"<!-- {marker}: begin -->\n", f"<!-- {marker}: end -->"
    before, _, rest = document.partition(begin)
    return f"{before}{begin}{body}\n{end}{rest.partition(end)[2]}"


def filled(document: str, lines: list[Line]) -> str:
    """Return the document with the figures of *lines*, but for clicks (``acks``): run.py prints a table of theirs."""
    (machine,) = [line for line in lines if line["bench"] == "machine"]
    lines = [line for line in lines if line["bench"] not in ("machine", "acks")]
    loads = [line["load"] for line in lines]
    about = (
        f"{machine['cores']} cores, {machine['memory_gb']} GB, Python {machine['python']}, "
        f"PostgreSQL {machine['server_version']}; medians of {1 + max(line['round'] for line in lines)} rounds at "
        f"`BENCH_SCALE={machine['scale']:g}`. Load of the machine meanwhile {min(loads)} to {max(loads)} "
        "(this measurement alone makes about 2). Rows that say *counted* count statements, which slows them.\n\n"
    )
    return put(put(document, "figures", about + table(lines)), "goals", goals(lines))


def main() -> None:
    """Read the lines, write the document."""
    lines = [json.loads(text) for text in Path(sys.argv[1]).read_text().splitlines()]
    document = Path(sys.argv[2])
    document.write_text(filled(document.read_text(), lines))


if __name__ == "__main__":
    main()
