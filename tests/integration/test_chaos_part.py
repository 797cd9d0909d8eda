"""The part of the chaos series that runs with every change: each scenario, and each port method in each phase.

``make chaos`` runs the whole of it; docs/reliability.md carries its figures.
"""

from datetime import UTC, datetime, timedelta
from uuid import uuid4

import asyncpg
import pytest

from storage.maintenance import PgMaintenance
from storage.worker_store import PgWorkerStore
from tests.chaos.boundary import LOOKING, READ_LATE, Call, Point
from tests.chaos.places import (
    Case,
    distinct,
    every_method,
    frozen_cases,
    kinds_of,
    kinds_tried,
    never_made,
    places_of,
)
from tests.chaos.run import places_in
from tests.chaos.scenarios import CROWDS, FROZEN, SCENARIOS
from tests.chaos.series import broken, in_order, part, play_all
from tests.chaos.target import Target
from tests.chaos.theatre import Report

SEED = 1
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def fault_free(postgres: str, template: str) -> list[Report]:
    """Every scenario, played once without a fault: it says what the boundaries are."""
    return play_all(postgres, template, [(scenario.name, ()) for scenario in SCENARIOS])


def test_every_scenario_ends_well_without_a_fault(fault_free: list[Report]) -> None:
    """What follows would mean nothing otherwise."""
    assert broken(fault_free) == []


def test_long_conversations_are_read_after_the_effect(fault_free: list[Report]) -> None:
    """Else the scenarios that are about it would say nothing; the others are played with every message at once."""
    late = {report.scenario for report in fault_free if any(READ_LATE in call.moves for call in report.calls)}
    assert late == {scenario.name for scenario in SCENARIOS if scenario.long}
    for report in fault_free:
        read = [READ_LATE in call.moves for call in report.calls if call.name in ("WorkerStore.load", "Tool.execute")]
        assert read[-1:] != [True], f"{report.scenario}: the rest was never read"


def test_what_only_looks_changes_nothing(postgres: str, template: str) -> None:
    """Reads are done on connections that refuse every write: places that differ by a read only are one place."""
    assert broken(play_all(postgres, template, [(scenario.name, (LOOKING,)) for scenario in SCENARIOS])) == []


def test_every_method_of_every_port_and_every_move_is_tried(fault_free: list[Report]) -> None:
    """A method that no scenario calls is a boundary at which nothing was ever killed."""
    assert never_made(fault_free) == []


def test_a_fault_at_each_kind_of_boundary_breaks_nothing(
    fault_free: list[Report], postgres: str, template: str
) -> None:
    """Every method of every port: killed before, during and after; cut off once; over all scenarios."""
    reports = play_all(postgres, template, part(distinct(places_in(fault_free), SEED), SEED))
    assert broken(reports) == []
    assert {report.scenario for report in reports} == {scenario.name for scenario in SCENARIOS}
    missed = sum(report.fired < len(report.plan) for report in reports)
    assert missed <= len(reports) // 20, "boundaries that did not come up again"


def test_what_comes_back_late_changes_nothing(fault_free: list[Report], postgres: str, template: str) -> None:
    """A process stopped in each method of each port, past its lease, while another finishes its work."""
    seen: dict[str, Case] = {}
    for case in in_order(frozen_cases(fault_free, FROZEN, SEED), SEED):
        point = case[1][0]
        if point.phase != "midway":  # those wait for PostgreSQL to end the session: see below
            seen.setdefault(f"{point.call} {point.phase}" if point.call.startswith("Slack.") else point.call, case)
    reports = play_all(postgres, template, list(seen.values()))
    assert broken(reports) == []
    assert every_method() <= {report.plan[0].call for report in reports if report.fired}
    missed = sum(not report.fired for report in reports)
    assert missed <= len(reports) // 20, "boundaries that did not come up again"


STOPPED_MEANWHILE: Case = ("stop in doubt", (Point("Desk.stop", 1, "after", "freeze"),))


def test_a_request_that_was_in_flight_may_arrive_after_its_run_was_stopped(postgres: str, template: str) -> None:
    """Its process stood still within the tool; nobody asked for it again, so its key is new to the target."""
    (report,) = play_all(postgres, template, [STOPPED_MEANWHILE])
    assert (report.fired, report.late_requests) == (1, 1)
    assert broken([report]) == []


@pytest.mark.parametrize(("scenario", "point"), [
    STOPPED_MEANWHILE[:1] + STOPPED_MEANWHILE[1],
    ("approved", Point("Tool.execute", 2, "before", "freeze")),
], ids=["new to the target", "known to the target"])  # fmt: skip
def test_any_other_request_of_what_comes_back_late_is_seen(
    scenario: str, point: Point, postgres: str, template: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if no request had been in flight: whether or not it has an effect."""
    monkeypatch.setattr(Target, "begun", lambda *_: set())
    (report,) = play_all(postgres, template, [(scenario, (point,))])
    assert any("what came back requested ['atlas-" in line for line in broken([report]))


def test_neighbours_of_a_run_that_takes_its_process_down_all_end_well(postgres: str, template: str) -> None:
    """Twenty runs share a process with it; it ends as failed with one alert, they answer, each with one effect."""
    (report,) = play_all(postgres, template, [(crowd.name, ()) for crowd in CROWDS])
    assert report.deaths >= 3
    assert broken([report]) == []


# ---- found by the series ---------------------------------------------------------------------------------------------

FOUND: tuple[tuple[str, str, Point], ...] = (
    (
        "a claim whose answer was lost is worked on by the living process that holds it",
        "write without approval",
        Point("Desk.start", 1, "during", "cut", 1),
    ),
    (
        "a process stopped inside a transaction does not keep its run locked",
        "write without approval",
        Point("WorkerStore.answer", 1, "midway", "freeze", 3),
    ),
)


@pytest.mark.parametrize(("claim", "scenario", "point"), FOUND, ids=[claim for claim, _, _ in FOUND])
def test_what_the_series_once_found(claim: str, scenario: str, point: Point, postgres: str, template: str) -> None:
    """Each of these was a defect."""
    (report,) = play_all(postgres, template, [(scenario, (point,))])
    assert report.fired == 1, claim
    assert broken([report]) == []


def test_a_run_failed_by_the_reaper_has_a_result_for_every_call(
    fault_free: list[Report], postgres: str, template: str
) -> None:
    """A kill in its closing pass: the job fails the run, and closes the open calls as the pass would have."""
    (reap,) = [report for report in fault_free if report.scenario == "reap"]
    closing = [call for call in reap.calls if call.name in ("WorkerStore.fail", "WorkerStore.step")][-3:]
    points = [place.point for place in places_of(closing, ("kill",))]
    reports = play_all(postgres, template, [("reap", (point,)) for point in points])
    assert broken(reports) == []


# ---- the harness itself ----------------------------------------------------------------------------------------------


def test_places_cover_every_phase_of_a_call() -> None:
    """A process is killed before a statement, inside its transaction, when it was sent, and after its answer."""
    phases = [place.point.phase for place in places_of([Call("Desk.decide", 2, 5, ())], ("kill",))]
    assert phases == ["before", "midway", "during", "after"]
    cut = [place.point.phase for place in places_of([Call("Desk.show", 1, 1, ())], ("cut",))]
    assert cut == ["before", "during", "after"]
    assert "late" in [place.point.phase for place in places_of([Call("Tool.execute", 1, 0, ())], ("kill",))]


def test_places_are_one_only_while_nothing_happens_between(fault_free: list[Report]) -> None:
    """Of equal places one is tried; no kind of fault at any method is lost by it."""
    quiet = [Call("Desk.show", 1, 1, (), 3, 3, 1, 2), Call("Desk.stop", 1, 3, (), 3, 4, 2, 3)]
    assert [place.world for place in places_of(quiet, ("kill",))] == [
        ("kill", 3), ("kill", 3), None, ("kill", 4), ("kill", 4),
    ]  # fmt: skip
    assert [place.world for place in places_of(quiet, ("leave",))] == [("leave", 3), None]
    busy = [Call("Desk.show", 1, 1, ()), Call("Desk.stop", 1, 3, ())]
    assert {place.world for place in places_of(busy, ("kill", "cut"))} == {None}
    places = places_in(fault_free)
    assert kinds_tried(distinct(places, SEED)) == kinds_of(places)


def test_a_double_effect_is_seen(postgres: str, template: str) -> None:
    """The judge is no rubber stamp: a target that does a request twice is a violation."""
    (report,) = play_all(postgres, template, [("doubles", ())])
    assert any("effects of one call" in line for line in report.wrong)


# ---- a host with ten thousand runs -----------------------------------------------------------------------------------

MANY = 10_000


async def test_all_runs_of_a_host_that_died_go_on_at_full_speed(pool: "asyncpg.Pool[asyncpg.Record]") -> None:
    """None is charged an attempt, none is set apart: any worker may claim all of them."""
    moment = datetime.now(UTC)
    upkeep = PgMaintenance(pool, now=lambda: moment)
    dead = str(uuid4())
    await upkeep.register(dead, "gone", 1, "worker", 1, holds_lock=False)
    await pool.execute(
        """insert into runs (id, team_id, channel_id, thread_ts, user_id, owner, question, route, max_steps,
                             max_tool_calls, max_spend_usd, max_elapsed_ms, state, scope, scope_resolved_at,
                             claim_token, claimed_by)
           select 'run' || n, 'T1', 'C1', n::text, 'U' || n % 500,
                  '{"team_id": "T1", "user_id": "U1", "name": "Ada"}', 'q', '{}', 12, 24, 0.5, 300000, 'running',
                  '{"permissions": []}', now(), gen_random_uuid(), $1
           from generate_series(1, $2) as n""",
        dead,
        MANY,
    )
    moment += timedelta(seconds=91)
    reaped = 0
    while batch := await upkeep.reap(lease_s=90.0, quick=False, limit=200):
        reaped += len(batch)
    assert reaped == MANY
    store = PgWorkerStore(pool, now=lambda: moment)
    assert await store.to_be_alone(10) == []
    claimed: set[str] = set()
    living = str(uuid4())
    while found := await store.claim(living, 1000):
        claimed |= {each.fence.run_id for each in found}
        assert all(each.run.recovery_attempts == 0 and each.run.crashes == 1 for each in found)
    assert len(claimed) == MANY
