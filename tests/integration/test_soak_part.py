"""The part of the soak that runs with every change: bad weather for a minute, then everything comes to its end.

``make soak`` lets it storm for minutes; docs/reliability.md says what it found.
"""

import pytest

from tests.soak.run import soak

SEED = 3


@pytest.mark.slow
async def test_after_bad_weather_everything_ends_and_nothing_is_broken() -> None:
    """Three processes; each kind of fault comes at least once."""
    outcome = await soak(60.0, SEED, ask_every_s=1.0, fault_every_s=1.5)
    assert outcome.wrong == [], outcome.table()
    assert outcome.effects > 0
    assert outcome.weather["SIGKILL of a process"] > 0
    assert outcome.weather["PostgreSQL restarted, immediate"] > 0
