"""Tools and models that hold on, break out or flood: they cost their own call, never a run, a process or a reader.

The agent of these tests lives in ``breaks_agent.py``; the question's last two words say which tool does what. Each
test is one defect that was once there.
"""

import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.acceptance.stack import Stack, stack_of, words
from tests.acceptance.waiting import wait_until
from tests.invariants import watch

AGENT = Path(__file__).with_name("breaks_agent.py")


@pytest.fixture
async def broken(database: str, tmp_path: Path) -> AsyncIterator[Stack]:
    """A stack whose bots serve the agent that breaks things; the invariants are held at the end."""
    await watch(database)
    shutil.copy(AGENT, tmp_path / AGENT.name)
    async with stack_of(database, tmp_path) as made:
        yield made


async def serve(stack: Stack, **settings: str) -> None:
    """Start a replica that serves the agent of these tests."""
    await stack.serve(ATLAS_AGENT="breaks_agent:agent", **settings)


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ("swallow", "it took too long"),
        ("exit", "it tried to exit the process"),
        ("interrupt", "KeyboardInterrupt"),
        ("abort", "it raised Abort"),
        ("wordless", "Wordless"),
        ("flood", "yyy"),
        ("silent", "the tool gave no reason"),
    ],
)
async def test_whatever_a_read_does_the_run_goes_on(broken: Stack, how: str, told: str) -> None:
    """A swallowed cancellation, an exit, an error without words or with megabytes of them is an error result."""
    await serve(broken)
    thread = await broken.ask(f"@Atlas please read {how}")
    run = await broken.until(thread, "answered")
    (result,) = await broken.results(run)
    assert '"error": "tool_failed"' in result
    assert told in result
    assert len(result) < 10_000
    await broken.said(thread, "Finished.")
    await broken.check()


@pytest.mark.parametrize("how", ["swallow", "exit", "abort", "wordless"])
async def test_whatever_a_write_raises_its_outcome_is_looked_up(broken: Stack, how: str) -> None:
    """The same from a write is an unknown outcome: the target is asked, and the run goes on with what it says."""
    await serve(broken)
    thread = await broken.ask(f"@Atlas please write {how}")
    run = await broken.until(thread, "answered")
    assert await broken.results(run) == ['{"found": true}']
    assert "reconciled" in await broken.trace(run)
    assert run["crashes"] == run["recovery_attempts"] == 0


@pytest.mark.parametrize("how", ["flood", "silent"])
async def test_the_reason_of_a_write_that_failed_is_bounded(broken: Stack, how: str) -> None:
    """Megabytes of reason, or none at all, stay readable for the model; the answer is not held up by them."""
    await serve(broken)
    thread = await broken.ask(f"@Atlas please write {how}")
    run = await broken.until(thread, "answered")
    (result,) = await broken.results(run)
    assert len(result) < 10_000
    assert ("[cut: it had" in result) == (how == "flood")


async def test_a_guard_that_floods_is_cut_and_a_tool_that_is_not_there_is_not_echoed(broken: Stack) -> None:
    """A guard's reason of megabytes, a tool's name of 300 kB: neither is repeated in full in the conversation."""
    await serve(broken)
    for what in ("write guarded", "model nonsense"):
        thread = await broken.ask(f"@Atlas please {what}")
        run = await broken.until(thread, "answered")
        assert all(len(result) < 2_000 for result in await broken.results(run))


async def test_code_that_swallows_its_end_does_not_hold_up_a_shutdown(broken: Stack) -> None:
    """SIGTERM while a model ignores its cancellation: the process ends with 0, the run is free for the next one."""
    await serve(broken)
    thread = await broken.ask("@Atlas please model swallow")
    await wait_until((broken.directory / "swallowing").exists, "the model is asked")
    await broken.said(thread, "Working on it")
    assert await broken.bots[0].terminate() == 0
    run = await broken.run(thread)
    assert (run["state"], run["claim_token"], run["recovery_attempts"]) == ("running", None, 0)
    assert "is left behind" in broken.bots[0].log


async def test_who_blocks_the_event_loop_is_named(broken: Stack) -> None:
    """A tool that sleeps without awaiting stops every ack: the log names its file and function while it lasts."""
    await serve(broken)
    thread = await broken.ask("@Atlas please read block")
    await broken.until(thread, "answered")
    log = await wait_until(
        lambda: broken.bots[0].log if "the event loop turns again" in broken.bots[0].log else None, "the end is logged"
    )
    assert "the event loop is blocked" in log
    assert "breaks_agent.py" in log


async def test_an_answer_of_nothing_visible_is_no_answer(broken: Stack) -> None:
    """Zero-width characters are nothing: asked again, then halted with the reason, instead of an empty message."""
    await serve(broken)
    thread = await broken.ask("@Atlas please model invisible")
    await broken.until(thread, "model_unavailable")
    assert "the model returned nothing, twice" in words(await broken.halt_card(thread))
    assert all(text.strip() for text in broken.texts(thread))
