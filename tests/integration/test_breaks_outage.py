"""An outage of the database: what runs does not fill a disk with one warning, what cannot start says why."""

import logging

from bot.logs import Repeats
from jobs.scheduler import Schedule


def _line(words: str, level: int = logging.WARNING) -> logging.LogRecord:
    return logging.LogRecord("atlas", level, __file__, 1, words, (), None)


def test_the_same_warning_is_written_once_in_a_while() -> None:
    """A repeated warning goes through once; another one, and every error, always."""
    repeats = Repeats()
    assert [repeats.filter(_line("the inbox cannot be read")) for _ in range(5)] == [True] + [False] * 4
    assert repeats.filter(_line("the outbox cannot be read"))
    assert [repeats.filter(_line("a defect", logging.ERROR)) for _ in range(2)] == [True, True]


async def test_a_schedule_that_never_started_stops_quietly() -> None:
    """Taking apart what failed to start must not hide why it failed."""
    await Schedule().stop()
