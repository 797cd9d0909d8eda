"""Fixtures of the acceptance tests: a stack with the sales desk, one with the tests' own agent; both checked after.

After a test that passed, everything is waited for and the invariants are held against all that was left behind.
"""

from collections.abc import AsyncIterator, Generator
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.stack import Stack, stack_of
from tests.acceptance.workshop import Workshop
from tests.invariants import watch

_passed = pytest.StashKey[bool]()


def pytest_configure(config: pytest.Config) -> None:
    """Register the mark that gives the tests' own agent its budget."""
    config.addinivalue_line("markers", "limits(**fields): core.Limits of the tests' own agent")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: "pytest.CallInfo[None]"
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Note whether the test itself passed: only then is it worth waiting for its end."""
    report = yield
    if call.when == "call":
        item.stash[_passed] = report.passed
    return report


@pytest.fixture
async def stack(database: str, tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Stack]:
    """The sales desk; the test starts its bots."""
    await watch(database)
    async with stack_of(database, tmp_path) as made:
        yield made
        if request.node.stash.get(_passed, False):
            await made.check()


@pytest.fixture
async def shop(database: str, tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Stack]:
    """The tests' own agent, whose model and tools are ``shop.workshop``; mark ``limits`` gives its budget."""
    await watch(database)
    marker = request.node.get_closest_marker("limits")
    limits: dict[str, Any] = dict(marker.kwargs) if marker else {}
    workshop = Workshop()
    await workshop.start(tmp_path, limits)
    try:
        async with stack_of(database, tmp_path, workshop) as made:
            yield made
            if request.node.stash.get(_passed, False):
                await made.check()
    finally:
        await workshop.stop()
