"""Every golden render drawn by the page: nothing is left out, and nothing is wider than its place on a narrow window.

Decides what a browser can tell by itself; whether it is beautiful is for eyes, on the sheets that the module
``goldens_in_page`` writes. The failure it can cause: none outside.
"""

from pathlib import Path

import pytest

from tests.acceptance.goldens_in_page import CHROMIUM, LOOKS, gallery
from tests.unit.goldens import families

playwright_api = pytest.importorskip("playwright.async_api", reason="playwright is not installed")
pytestmark = [pytest.mark.browser, pytest.mark.slow]
NARROW = next(look for look in LOOKS if look.narrow)


@pytest.mark.parametrize("family", families())
async def test_every_golden_is_taken_drawn_and_fits_a_narrow_window(family: str) -> None:
    if CHROMIUM is None:
        async with playwright_api.async_playwright() as playwright:
            if not Path(playwright.chromium.executable_path).exists():
                pytest.skip("no Chromium on this machine")
    goldens = families()[family]
    async with gallery() as shown:
        placed = await shown.post(family, goldens)
        shots = await shown.shots(family, goldens, placed, NARROW)
        assert [shot.name for shot in shots] == list(goldens)
        assert {shot.name: shot.wrong for shot in shots if shot.wrong} == {}
        assert shown.troubles == []
