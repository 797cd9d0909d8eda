"""What there is to try: which faults, at which places, and which places are one and the same.

Decides: the points of a scenario from its own fault-free run, and what is missing: a port's method or a move that no
scenario ever made fails the series. Does not: play cases. The failure it can cause: a boundary kept by hand goes stale,
so none is; and two places taken for one would leave one untried, so these alone are:

- *A kill* ends what the process knew; all that is left is the world outside: rows, target, Slack, and what somebody was
  told. "After" a call is "before" the next one, and before a call that only looks is before the one that follows it.
  Places between which no acting call was under way and nobody was told anything are one place. A commit or a request
  that went out takes effect whether or not anybody waits for its answer, so "during" it is "after" it. What only looks
  is not believed: a run of each scenario does those calls on connections on which PostgreSQL refuses every write.
- *Cut connections* are seen by the next call that uses one. "Before" the calls between two uses of the database (a
  tool's, the model's, Slack's) is before the second use.
- *A shutdown* that begins in a call that only looks is taken for one that begins in the next such call: the process
  asks again whether it is to leave either between them, as after the call that acts before, or in the one after them.

Of places that are one, the one is tried whose method and phase were tried least so far.
"""

import inspect
import random
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass

from core import ports
from core.conversation import Model
from core.run import MOVES
from core.tools import Tool
from jobs.expire_suspensions import Expiry
from jobs.reap_orphans import Orphans
from jobs.remind import Reminders
from jobs.retention import Removal
from tests.chaos.boundary import EFFECTS, INSTANT, STORES, Call, Point, looks
from tests.chaos.theatre import Report

Case = tuple[str, tuple[Point, ...]]
# Calls after which somebody is told.
ACKED = ("Desk.", "Inbox.", "Upkeep.")


@dataclass(frozen=True, slots=True)
class Place:
    """A point, and what it shares with others: *world* names the one place that they are (None: it is its own)."""

    point: Point
    world: tuple[str, int] | None = None


def places_of(calls: Iterable[Call], faults: Sequence[str] = ("kill", "cut")) -> list[Place]:
    """Return every fault at every boundary of a run that made *calls*."""
    return [place for call in calls for fault in faults for place in _places(call, fault)]


def _places(call: Call, fault: str) -> Iterator[Place]:
    def at(phase: str, state: int | None = None, send: int = 0) -> Place:
        point = Point(call.name, call.number, phase, fault, send)
        return Place(point, None if state is None else (fault, state))

    before = {"kill": call.before, "cut": call.untouched}.get(fault)
    after = {"kill": call.after, "cut": call.left}.get(fault)
    stores, only_looks = call.name.startswith(STORES), looks(call.name)
    if fault == "leave":
        # A shutdown asks only whether a call is under way, not how far it has come.
        yield at("before", call.before) if only_looks else at("during", send=call.sends)
        return
    yield at("before", before)
    if only_looks and (fault != "cut" or call.name in INSTANT):
        return
    if stores:
        if call.sends >= 3 and not only_looks:
            yield at("midway", send=(call.sends + 1) // 2)
        if call.sends:
            # The statement, or the commit, was sent; its answer has not come.
            yield at("during", after if fault == "kill" else None, call.sends)
    else:
        # A request took effect, its answer is lost; a question's answer is lost.
        yield at("during", after if fault == "kill" else None)
        if call.name == "Tool.execute":
            yield at("late")
    if call.name.startswith(ACKED) or (call.name in EFFECTS and fault == "cut"):
        yield at("after", after)


def distinct(found: Sequence[tuple[str, Place]], seed: int) -> list[Case]:
    """Return one case for each place of the (scenario, place) *found* that differs from all others of its scenario."""
    shuffled = list(found)
    random.Random(seed).shuffle(shuffled)
    same: dict[tuple[object, ...], list[tuple[str, Place]]] = {}
    for scenario, place in shuffled:
        same.setdefault((scenario, place.world or place.point), []).append((scenario, place))
    tried: Counter[tuple[str, str, str]] = Counter()

    def kind(entry: tuple[str, Place]) -> tuple[str, str, str]:
        point = entry[1].point
        return point.fault, point.call, point.phase

    chosen: list[Case] = []
    # Those without a choice first, so that a choice sees what they cover.
    for entries in sorted(same.values(), key=len):
        best = min(entries, key=lambda entry: tried[kind(entry)])
        tried[kind(best)] += 1
        chosen.append((best[0], (best[1].point,)))
    for entry in shuffled:  # a kind that was never chosen is tried all the same
        if not tried[kind(entry)]:
            tried[kind(entry)] += 1
            chosen.append((entry[0], (entry[1].point,)))
    return chosen


# ---- is anything left out? -------------------------------------------------------------------------------------------


def _methods(port: str, protocol: type) -> set[str]:
    found = inspect.getmembers(protocol, inspect.iscoroutinefunction)
    return {f"{port}.{name}" for name, _ in found if not name.startswith("_")}


def every_method() -> set[str]:
    """Return every method of every port, as boundaries are named; from the protocols themselves."""
    return {
        *_methods("WorkerStore", ports.WorkerStore),
        *_methods("Desk", ports.Desk),
        *_methods("Outbox", ports.Outbox),
        *_methods("Inbox", ports.Inbox),
        *_methods("Directory", ports.Directory),
        *_methods("Upkeep", Orphans),
        *_methods("Upkeep", Expiry),
        *_methods("Upkeep", Removal),
        *_methods("Upkeep", Reminders),
        *_methods("Model", Model),
        *_methods("Tool", Tool),
        "Tool.permitted",
        "Scopes.resolve",
        "Slack.chat_postMessage",
        "Slack.chat_update",
    }


def never_made(reports: Iterable[Report]) -> list[str]:
    """Return the methods of ports and the moves that no fault-free run made."""
    calls = [call for report in reports for call in report.calls]
    methods = every_method() - {call.name for call in calls}
    moves = {move.name for move in MOVES} - {move for call in calls for move in call.moves}
    return [*sorted(f"port method {name}" for name in methods), *sorted(f"move {name}" for name in moves)]


def kinds_of(found: Iterable[tuple[str, Place]]) -> set[tuple[str, str, str]]:
    """Return each (fault, method, phase) among the places."""
    return {(place.point.fault, place.point.call, place.point.phase) for _, place in found}


def kinds_tried(cases: Iterable[Case]) -> set[tuple[str, str, str]]:
    """Return each (fault, method, phase) among the cases."""
    return {(point.fault, point.call, point.phase) for _, plan in cases for point in plan}


# ---- two in a row, and those that come back --------------------------------------------------------------------------


def pairs_of(reports: Iterable[Report]) -> list[Case]:
    """Return each distinct (next act after the first kill, boundary of its recovery) once, as two kills in a row.

    Boundaries that are one place in a recovery are all tried by one kill.
    """
    seen: set[tuple[str, str, int, str]] = set()
    found: list[Case] = []
    for report in reports:
        if report.wrong or report.deaths != 1 or len(report.plan) != 1 or report.plan[0].fault != "kill":
            continue
        act = report.acts_after[0] if report.acts_after else "none"
        within: Counter[str] = Counter()
        same: dict[object, list[tuple[tuple[str, str, int, str], Point]]] = {}
        for call in report.after_first_fault:
            within[call.name] += 1
            for place in places_of([call], ("kill",)):
                what = (act, call.name, within[call.name], place.point.phase)
                same.setdefault(place.world or place.point, []).append((what, place.point))
        for entries in same.values():
            if new := [point for what, point in entries if what not in seen]:
                seen.update(what for what, _ in entries)
                found.append((report.scenario, (*report.plan, new[0])))
    return found


def frozen_of(calls: Iterable[Call]) -> list[Point]:
    """Return every boundary at which a process may be stopped and come back late."""
    return [place.point for place in places_of(calls, ("freeze",)) if place.point.phase != "late"]


def frozen_cases(reports: Iterable[Report], whole: Container[str], seed: int) -> list[Case]:
    """Return every boundary of the fault-free runs of *whole*, and of the others each kind that those do not have.

    A kind is a port's method, what it did in terms of the table of moves, and the phase; *seed* chooses where.
    """
    found: list[Case] = []
    kinds: set[tuple[object, ...]] = set()
    others: list[tuple[tuple[object, ...], Case]] = []
    for report in reports:
        for call in report.calls:
            for point in frozen_of([call]):
                kind: tuple[object, ...] = (call.name, call.moves, point.phase)
                case: Case = (report.scenario, (point,))
                if report.scenario in whole:
                    kinds.add(kind)
                    found.append(case)
                else:
                    others.append((kind, case))
    random.Random(seed).shuffle(others)
    for kind, case in others:
        if kind not in kinds:
            kinds.add(kind)
            found.append(case)
    return found
