"""One authorizer: whoever acts, under whatever policy, gets the same verdict through every door.

Each act goes through the real Bolt app as Slack's payload (button, Home button, submitted modal) or through the command
line's own command. The expected verdict is DESIGN section 6, written down a second time.
"""

import argparse
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from bot import cli
from bot.blocks.cards import press_value
from bot.blocks.modals import DECLINE, DETAILS_APPROVE
from bot.simulator.workspace import DORA, EMIL, GINA, MARCUS, OSKAR, RITA, SALES_DESK, VERA
from core.approvals import Refusal, Via
from core.engine import Actor
from core.run import Suspension, SuspensionKind, SuspensionStatus
from core.tools import Approval, UserGroup
from tests.integration.slack_stage import Stage, connected, stage, until

BOT = "U0ATLAS0001"
FOREIGN_TEAM = "T0ELSEWHERE"
EDITOR = VERA
PEOPLE = {
    "owner": RITA,
    "editor": EDITOR,
    "manager": MARCUS,
    "operator": OSKAR,
    "guest": GINA,
    "external": EMIL,
    "deactivated": DORA,
    "bot": BOT,
    "foreign team": MARCUS,
}
POLICIES = {
    "requester": Approval(),
    "requester or operators": Approval(operators=True),
    "operators only": Approval(self_approval=False, operators=True),
    "everybody named": Approval(by=(RITA, MARCUS, GINA, EMIL, DORA, BOT)),
    "named, not their own": Approval(by=(RITA, EDITOR, MARCUS), self_approval=False),
    "group": Approval(by=UserGroup(handle="sales-managers")),
    "group, operators too": Approval(by=UserGroup(handle="sales-managers"), operators=True, severity="high"),
    "anyone": Approval(by="anyone"),
    "anyone, not their own": Approval(by="anyone", self_approval=False),
}
GROUP = {MARCUS}
DOORS = (Via.BUTTON, Via.MODAL, Via.HOME)


def expected(policy: Approval, kind: str, *, approve: bool) -> Refusal | None:
    """Say what DESIGN says; the owner is Rita, the call was edited by Vera, Oskar is the operator."""
    who = PEOPLE[kind]
    named = isinstance(policy.by, tuple) and who in policy.by
    if kind == "foreign team":
        return Refusal.UNKNOWN
    if kind in ("deactivated", "bot") or (kind in ("guest", "external") and not named):
        return Refusal.NOT_AN_APPROVER
    if not approve and kind in ("owner", "operator"):
        return None
    if approve and not policy.self_approval and kind in ("owner", "editor"):
        return Refusal.OWN_REQUEST
    by = policy.by
    if isinstance(by, tuple):
        allowed = named
    elif isinstance(by, UserGroup):
        allowed = who in GROUP
    else:
        allowed = (
            kind in ("owner", "editor") if by == "requester" else kind in ("owner", "editor", "manager", "operator")
        )
    return None if allowed or (kind == "operator" and policy.operators) else Refusal.NOT_AN_APPROVER


@pytest.fixture
async def on(pool: "asyncpg.Pool[asyncpg.Record]") -> AsyncIterator[Stage]:
    """The stage, connected; Gina is let into the channel, so that membership alone decides nothing."""
    async with stage(pool, operators=frozenset({OSKAR})) as on, connected(on):
        on.slack.change_world({"channel": SALES_DESK, "set": {"members": [BOT, RITA, MARCUS, VERA, OSKAR, GINA, EMIL]}})
        yield on


async def opened(on: Stage, policy: Approval, kind: SuspensionKind = SuspensionKind.APPROVAL) -> Suspension:
    """Return an open suspension of Rita's, whose arguments Vera has edited."""
    suspension_id = await on.suspend(await on.run(), policy=policy, kind=kind)
    await on.pool.execute("update suspensions set asked_by = $2 where id = $1", suspension_id, EDITOR)
    return await stored(on, suspension_id)


async def stored(on: Stage, suspension_id: str) -> Suspension:
    """Return a suspension as stored."""
    found = await on.desk.suspension(suspension_id)
    assert found is not None
    return found[0]


async def open_again(on: Stage, suspension: Suspension) -> None:
    """Undo a decision, so that the next act meets the same suspension."""
    async with on.pool.acquire() as connection, connection.transaction():
        await connection.execute("delete from votes where suspension_id = $1", suspension.id)
        await connection.execute(
            "update suspensions set status = 'open', decided_at = null, decided_by = null, reason = null where id = $1",
            suspension.id,
        )
        await connection.execute(
            "update runs set state = 'suspended', claim_token = null, claimed_by = null where id = $1",
            suspension.run_id,
        )


async def act(
    on: Stage, suspension: Suspension, user: str, via: Via, *, approve: bool, team: str | None = None
) -> None:
    """Send what Slack would send when *user* acts through *via*, and wait for the ack."""
    person = on.slack.workspace.person(user)
    assert person is not None
    value = press_value(suspension)
    if via is Via.MODAL:
        view = {
            "id": "V0FORGED",
            "type": "modal",
            "callback_id": DETAILS_APPROVE if approve else DECLINE,
            "private_metadata": value,
            "state": {"values": {}},
            "blocks": [],
        }
        payload = on.slack.payloads.view_submission(person, "trigger", view)
    else:
        action = {"type": "button", "action_id": "approve" if approve else "decline", "block_id": "b", "value": value}
        payload = on.slack.payloads.block_actions(person, "trigger", [action])
        here: dict[str, Any] = {"container": {"type": "message", "message_ts": "1.1", "channel_id": SALES_DESK}}
        here["channel"] = {"id": SALES_DESK, "name": "sales-desk"}
        payload |= {"container": {"type": "view", "view_id": "V0HOME"}} if via is Via.HOME else here
    if team is not None:
        payload["team"] = {**payload["team"], "id": team}
    kind = "view_submission" if via is Via.MODAL else "block_actions"
    sent = await on.slack.send_interaction(kind, payload).settled()
    assert sent.state == "acked", (user, via, approve)


async def shared_messages(on: Stage) -> list[str]:
    """Return what is wanted of every message."""
    return [row["it"] for row in await on.pool.fetch("select place || version as it from outbox order by place")]


async def verdict(
    on: Stage, suspension: Suspension, kind: str, via: Via, *, approve: bool
) -> tuple[bool, Refusal | None]:
    """Act, and return whether it was recorded and the refusal that the audit names; undone afterwards."""
    team = FOREIGN_TEAM if kind == "foreign team" else None
    before = await shared_messages(on)
    seen = await on.pool.fetchval("select coalesce(max(id), 0) from audit")
    # Decline opens a form on a card and in Home, and so it is the form's submit that declines.
    door = Via.MODAL if not approve else via
    await act(on, suspension, PEOPLE[kind], door, approve=approve, team=team)
    (entry,) = await on.pool.fetch("select * from audit where id > $1 order by id", seen)
    assert (entry["by"], entry["via"]) == (PEOPLE[kind], door.value)
    assert entry["digest"] == suspension.digest
    after = await stored(on, suspension.id)
    recorded = after.status is not SuspensionStatus.OPEN
    assert recorded is entry["allowed"]
    if not recorded:
        assert await shared_messages(on) == before, "a refused act changes nothing that others see"
        return False, Refusal(entry["why"].partition(":")[0])
    assert after.status is (SuspensionStatus.APPROVED if approve else SuspensionStatus.DECLINED)
    assert after.decided_by == PEOPLE[kind]
    await open_again(on, suspension)
    return True, None


@pytest.mark.parametrize("name", list(POLICIES))
async def test_the_verdict_is_the_same_through_every_door(on: Stage, name: str) -> None:
    """Button, modal, Home; approve, decline; nine kinds of people. Refused acts are audited and change nothing.

    windmill-labs/windmill#10262: one of several endpoints forgot the ban on approving one's own request.
    """
    policy = POLICIES[name]
    suspension = await opened(on, policy)
    for kind in PEOPLE:
        for via in DOORS:
            recorded, refusal = await verdict(on, suspension, kind, via, approve=True)
            assert (recorded, refusal) == (
                expected(policy, kind, approve=True) is None,
                expected(policy, kind, approve=True),
            ), (kind, via)
        recorded, refusal = await verdict(on, suspension, kind, Via.MODAL, approve=False)
        assert refusal == expected(policy, kind, approve=False), kind
    # What somebody may decide is what their Home and /atlas pending list, and nothing else.
    for kind, user in PEOPLE.items():
        team = FOREIGN_TEAM if kind == "foreign team" else on.installation.team_id
        for via in (Via.HOME, Via.COMMAND, Via.MENTION):
            listed = await on.engine.pending(Actor(team, user, via))
            assert bool(listed) is (expected(policy, kind, approve=True) is None), (kind, via)


@pytest.mark.parametrize("name", list(POLICIES))
async def test_the_command_line_asks_the_same_authorizer(
    on: Stage, name: str, database: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """`atlas decide` approves only where the policy names operators, and may always decline; on record as operator.

    gravitational/teleport#7663: the administrator's command skipped what the web refused.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DATABASE_URL", database)
    suspension = await opened(on, POLICIES[name])
    for word, allowed in (("approve", POLICIES[name].operators), ("decline", True)):
        asked = argparse.Namespace(command="decide", suspension=suspension.id, verdict=word, reason=None, json=False)
        assert await cli.decide(asked) == (0 if allowed else 1)
        entry = await on.pool.fetchrow("select * from audit where act = $1 order by id desc limit 1", word)
        assert entry is not None
        assert (entry["allowed"], entry["via"], entry["by"].partition(":")[0]) == (allowed, "cli", "operator")
        assert ((await stored(on, suspension.id)).status is SuspensionStatus.OPEN) is not allowed
        if allowed:
            await open_again(on, suspension)


@pytest.mark.parametrize(
    ("kind", "words"),
    [(SuspensionKind.APPROVAL, ("happened", "did_not_happen")), (SuspensionKind.OUTCOME, ("approve", "decline"))],
)
async def test_the_command_line_takes_no_answer_to_another_question(
    on: Stage,
    kind: SuspensionKind,
    words: tuple[str, ...],
    database: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Whether it may be done and whether it happened are two questions; an answer to one is none to the other."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DATABASE_URL", database)
    suspension = await opened(on, Approval(operators=True), kind)
    for word in words:
        asked = argparse.Namespace(command="decide", suspension=suspension.id, verdict=word, reason=None, json=False)
        assert await cli.decide(asked) == 1
        assert "nothing was decided" in capsys.readouterr().err
        assert (await stored(on, suspension.id)).status is SuspensionStatus.OPEN


@pytest.mark.parametrize("door", DOORS)
async def test_who_knows_whether_it_happened_is_the_same_through_every_door(on: Stage, door: Via) -> None:
    """An outcome is answered by the owner or an operator; nobody else, whatever the door."""
    suspension = await opened(on, Approval(), SuspensionKind.OUTCOME)
    for kind, user in PEOPLE.items():
        team = FOREIGN_TEAM if kind == "foreign team" else None
        await act(on, suspension, user, door, approve=True, team=team)
        answered = (await stored(on, suspension.id)).status is SuspensionStatus.HAPPENED
        assert answered is (kind in ("owner", "operator")), kind
        if answered:
            await open_again(on, suspension)


async def test_forged_and_foreign_values_are_audited_and_change_nothing(on: Stage) -> None:
    """A button with another run's suspension, an invented id, somebody else's token or digest: refused, on record."""
    mine, other = await opened(on, Approval()), await opened(on, Approval(by=(MARCUS,)))
    real = json.loads(press_value(mine))
    forged = [
        {**real, "s": "k7d2m9qa.nothere"},
        {**real, "s": other.id},
        {**real, "t": other.token},
        {**real, "d": other.digest[::-1]},
    ]
    before = await shared_messages(on)
    person = on.slack.workspace.person(RITA)
    assert person is not None
    for value in forged:
        action = {"type": "button", "action_id": "approve", "block_id": "b", "value": json.dumps(value)}
        payload = on.slack.payloads.block_actions(person, "trigger", [action])
        payload |= {"container": {"type": "view", "view_id": "V0HOME"}}
        assert (await on.slack.send_interaction("block_actions", payload).settled()).state == "acked"
    refused = await on.pool.fetch("select * from audit where by = $1 and not allowed order by id", RITA)
    assert [row["why"].partition(":")[0] for row in refused] == ["unknown", "not_an_approver", "press_again", "unknown"]
    assert refused[0]["run_id"] == "k7d2m9qa"
    assert await shared_messages(on) == before
    for suspension in (mine, other):
        assert (await stored(on, suspension.id)).status is SuspensionStatus.OPEN


async def test_continue_and_stop_of_somebody_elses_run_are_refused_alike_and_audited(on: Stage) -> None:
    """Button, command and mention: a stranger gets nothing, and each attempt is on record."""
    fence = await on.run()
    await on.suspend(fence)
    for via in (Via.BUTTON, Via.HOME, Via.COMMAND, Via.MENTION):
        actor = Actor(on.installation.team_id, MARCUS, via)
        assert (await on.engine.stop_run(actor, fence.run_id)).how == "ended"
        assert (await on.engine.continue_run(actor, fence.run_id)).run is None
    audited = await on.pool.fetch("select act, via, allowed from audit where by = $1 order by id", MARCUS)
    assert [tuple(row) for row in audited] == [
        (what, via, False) for via in ("button", "home", "command", "mention") for what in ("stop", "continue")
    ]


async def test_text_never_approves_even_when_its_writer_may(on: Stage) -> None:
    """`/atlas approve` is no command, and a mention of it decides nothing."""
    suspension = await opened(on, Approval(by="anyone"))
    seen = len(on.slack.ephemerals(RITA, SALES_DESK))
    await (await on.slack.command(RITA, SALES_DESK, "/atlas", f"approve {suspension.id}")).settled()
    await until(lambda: len(on.slack.ephemerals(RITA, SALES_DESK)) > seen)
    assert "no command" in str(on.slack.ephemerals(RITA, SALES_DESK)[-1])
    assert (await stored(on, suspension.id)).status is SuspensionStatus.OPEN
