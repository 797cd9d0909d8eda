"""Reported faults of authorization, each as a test. Their neighbours: the matrix of all doors is in
test_policies_entry_points, whole runs in test_policies_runs, departed approvers and severity in test_policies_delivery,
unknown keys and what cannot be enforced in test_policies_start and test_core_approvals. The last test holds that every
reference of the list stands in the docstring of a test.
"""

import json
import re
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest

from bot.simulator.workspace import MARCUS, OSKAR, RITA, SALES_DESK, VERA
from core.run import Suspension, SuspensionStatus
from core.tools import Approval, Tool, UserGroup
from tests.integration.slack_stage import Stage, connected, stage, until
from tests.integration.test_faults_slack import docstrings


@pytest.fixture
async def on(pool: "asyncpg.Pool[asyncpg.Record]") -> AsyncIterator[Stage]:
    """The stage, connected."""
    async with stage(pool) as on, connected(on):
        yield on


async def stored(on: Stage, suspension_id: str) -> Suspension:
    """Return a suspension as stored."""
    found = await on.desk.suspension(suspension_id)
    assert found is not None
    return found[0]


async def click(on: Stage, user: str, card: dict[str, Any], **how: Any) -> str:
    """Press Approve on a card; return what the presser was told privately."""
    seen = len(on.slack.ephemerals(user, SALES_DESK))
    clicked = await (await on.slack.click(user, SALES_DESK, card["ts"], "approve", **how)).settled()
    assert clicked.state == "acked"
    await until(lambda: len(on.slack.ephemerals(user, SALES_DESK)) > seen)
    return str(on.slack.ephemerals(user, SALES_DESK)[-1]["text"])


async def test_a_strangers_click_is_refused_privately_and_audited(on: Stage) -> None:
    """NousResearch/hermes-agent#6735: any member could approve. The row stays pending, the shared card as it was."""
    suspension_id = await on.suspend(await on.run())
    card = await on.card(suspension_id)
    told = await click(on, VERA, card)
    assert "You are not an approver" in told
    assert f"<@{RITA}>" in told
    assert (await stored(on, suspension_id)).status is SuspensionStatus.OPEN
    assert await on.card(suspension_id) == card
    (entry,) = await on.pool.fetch("select * from audit")
    assert (entry["by"], entry["act"], entry["allowed"], entry["via"]) == (VERA, "approve", False, "button")
    assert entry["why"].startswith("not_an_approver")
    assert entry["at"] is not None


async def test_another_groups_button_is_never_answered_as_approved(on: Stage) -> None:
    """hoophq/hoop#1166: what a clicker is told follows from the stored rows, for each state that they can be in."""
    suspension_id = await on.suspend(await on.run(), policy=Approval(by=UserGroup(handle="sales-managers")))
    card = await on.card(suspension_id)
    told = await click(on, VERA, card)
    assert "not an approver" in told
    assert "@sales-managers may" in told
    assert "pproved" not in told
    await (await on.slack.click(MARCUS, SALES_DESK, card["ts"], "approve")).settled()
    assert (await stored(on, suspension_id)).decided_by == MARCUS
    late = await click(on, MARCUS, card)
    assert f"Approved already by <@{MARCUS}>" in late


async def test_identity_comes_from_the_verified_payload_only(on: Stage) -> None:
    """curie-eng/curie#1531: the approver was a string that the caller supplied. A name in the button's value, its text
    or the username claims nothing."""
    suspension_id = await on.suspend(await on.run(), policy=Approval(by=(MARCUS,)))
    card = await on.card(suspension_id)
    real = (await stored(on, suspension_id)).token
    claims = {"s": suspension_id, "t": real, "d": (await stored(on, suspension_id)).digest}
    claims |= {"user": MARCUS, "user_id": MARCUS, "by": MARCUS, "u": MARCUS, "team": on.installation.team_id}
    on.slack.change_world({"person": VERA, "set": {"name": "marcus.hale", "real_name": "Marcus Hale"}})
    told = await click(on, VERA, card, forge={"value": json.dumps(claims), "user": MARCUS, "text": {"text": MARCUS}})
    assert "not an approver" in told
    assert (await stored(on, suspension_id)).status is SuspensionStatus.OPEN
    assert await on.pool.fetchval("select array_agg(by) from audit") == [VERA]


@pytest.mark.parametrize("member", [MARCUS, VERA, OSKAR])
async def test_membership_of_the_channel_is_no_approver_list(on: Stage, member: str) -> None:
    """initializ/forge#311: without a word about approvers it is the requester alone; "anyone" has to be said."""
    assert Tool.approval is None, "a write without approval is declared by leaving it out, never by membership"
    silent = await on.suspend(await on.run(), policy=Approval())
    assert "not an approver" in await click(on, member, await on.card(silent))
    assert (await stored(on, silent)).status is SuspensionStatus.OPEN
    said = await on.suspend(await on.run(), policy=Approval(by="anyone"))
    card = await on.card(said)
    await (await on.slack.click(member, SALES_DESK, card["ts"], "approve")).settled()
    assert (await stored(on, said)).decided_by == member


async def test_the_ban_on_self_approval_survives_being_stored(on: Stage) -> None:
    """windmill-labs/windmill#10262: the ban was dropped at save. What is judged is the stored policy, whole."""
    policy = Approval(
        by=(RITA, MARCUS), self_approval=False, count=1, severity="high", operators=False, channel=SALES_DESK
    )
    suspension_id = await on.suspend(await on.run(), policy=policy)
    assert (await stored(on, suspension_id)).policy == policy
    told = await click(on, RITA, await on.card(suspension_id))
    assert "You asked for this yourself" in told
    assert (await stored(on, suspension_id)).status is SuspensionStatus.OPEN


AUTHORIZATION = (
    "NousResearch/hermes-agent#6735", "windmill-labs/windmill#10262", "gravitational/teleport#7663",
    "agno-agi/agno#8386", "hoophq/hoop#1166", "curie-eng/curie#1531", "initializ/forge#311",
    "fivexl/terraform-aws-sso-elevator#139", "gravitational/teleport#52348", "gravitational/teleport#61094",
    "denoland/clawpatrol (human.go)",
)  # fmt: skip


@pytest.mark.parametrize("reference", AUTHORIZATION)
def test_every_reported_fault_is_the_case_of_a_test(reference: str) -> None:
    """Each reference stands in a test's docstring, as a whole word."""
    words = re.compile(rf"(?<![\w/-]){re.escape(reference)}(?![\w])")
    assert [name for name, said in docstrings().items() if words.search(said)], f"no test names {reference}"
