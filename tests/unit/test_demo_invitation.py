"""What ``atlas demo`` says first: it fits a terminal, and nothing is shown of a demo that cannot be."""

import pytest

from bot.demo import DESK_ASK, DESK_THEN, INVITATION, OWN_ASK, OWN_THEN
from bot.demo.workspace import RITA, SALES_DESK


@pytest.mark.parametrize(("ask", "then"), [(DESK_ASK, DESK_THEN), (OWN_ASK, OWN_THEN)], ids=["desk", "own"])
def test_the_invitation_fits_eighty_columns(ask: str, then: str) -> None:
    said = INVITATION.format(url=f"http://127.0.0.1:65535/#/as/{RITA}/{SALES_DESK}", ask=ask, then=then)
    assert [line for line in said.splitlines() if len(line) > 80] == []
