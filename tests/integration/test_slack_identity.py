"""Who may come in by which door: every kind of person, every kind of payload; and what no door lets in.

Each payload goes over the wire as Slack would send it. Whatever comes: it is acked, and refused acts change no row but
the audit.
"""

import json
import logging
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import asyncpg
import pytest

from bot.simulator.workspace import CONTOSO, DEALS, DORA, EMIL, GINA, MARCUS, RITA, SALES_DESK
from bot.slack import Installation
from bot.texts import Texts
from bot.wiring import SystemNames
from core.mail import Drain
from core.run import RunState, SuspensionStatus
from core.tools import Approval
from tests.integration.slack_stage import LONG, RealClock, Stage, connected, stage, until

GRID = "E0NORTHWIND"


@pytest.fixture
async def on(pool: "asyncpg.Pool[asyncpg.Record]") -> AsyncIterator[Stage]:
    """The stage, connected."""
    async with stage(pool) as on, connected(on):
        yield on


@pytest.fixture
async def grid(pool: "asyncpg.Pool[asyncpg.Record]") -> AsyncIterator[Stage]:
    """The same in a workspace of an Enterprise Grid company."""
    async with stage(pool) as on:
        on.installation = on.directory.installation = replace(on.installation, enterprise_id=GRID)
        async with connected(on):
            yield on


async def drained(on: Stage) -> None:
    """Handle all mail."""
    drain = Drain(on.engine, on.desk, on.directory, Texts(), RealClock(), SystemNames(), {})
    while await drain.once():
        pass


async def shared_rows(on: Stage) -> str:
    """Return all that others can see: runs, suspensions, votes, outbox."""
    tables = [await on.pool.fetch(f"select * from {table} order by 1") for table in ("runs", "suspensions", "votes")]
    owed = await on.pool.fetch("select place, version, content from outbox order by place")
    return repr([*tables, owed])


async def audit(on: Stage) -> list[tuple[str, str, bool]]:
    """Return (act, by, allowed) of each audited attempt."""
    return [tuple(row) for row in await on.pool.fetch("select act, by, allowed from audit order by id")]


def mention(user: str, channel: str = SALES_DESK, **more: Any) -> dict[str, Any]:
    """Return an app_mention event."""
    event = {"type": "app_mention", "user": user, "channel": channel, "text": "<@U0ATLAS0001> quote Henderson"}
    return {**event, "ts": "1764500000.000100", "event_ts": "1764500000.000100", **more}


def direct(user: str, **more: Any) -> dict[str, Any]:
    """Return a message.im event."""
    event = {**mention(user, "D0SOMEBODY1"), "type": "message", "channel_type": "im", "text": "quote Henderson"}
    return {**event, **more}


async def acked(on: Stage, event_id: str) -> None:
    """Wait until the envelope of this event was acked; Slack has nothing left to send again."""

    def look() -> bool:
        sent = [it["envelope"] for it in on.slack.journal.find({"kind": "envelope"})]
        ids = {it["envelope_id"] for it in sent if it["payload"].get("event_id") == event_id}
        return bool(ids & {it["envelope_id"] for it in on.slack.journal.find({"kind": "ack"})})

    await until(look)


async def click(on: Stage, suspension_id: str, user: str, channel: str = SALES_DESK, **changes: Any) -> Any:
    """Press Approve on a card with a payload that differs from Slack's by *changes*."""
    card = await on.card(suspension_id)
    person = on.slack.workspace.person(user) or on.slack.workspace.person(RITA)
    assert person is not None
    press = next(b for b in card["blocks"] if b["type"] == "actions")["elements"][0]
    action = {key: press[key] for key in ("type", "action_id", "value")} | {"block_id": "b", "action_ts": "1.1"}
    payload = on.slack.payloads.block_actions(person, "trigger", [action])
    payload["user"] = {**payload["user"], "id": user}
    payload |= {"container": {"type": "message", "channel_id": channel, "message_ts": card["ts"]}}
    return await on.slack.send_interaction("block_actions", payload | changes).settled()


# ---- messages --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["mention", "direct"])
@pytest.mark.parametrize(
    ("user", "served"), [(RITA, True), (GINA, True), (DORA, False), (EMIL, False), ("U0NOBODY001", False)]
)
async def test_members_and_guests_are_served_strangers_and_the_departed_are_not(
    on: Stage, kind: str, user: str, served: bool
) -> None:
    """A guest of ours may ask (its acts are judged apart); an outsider, one unknown, one departed may not."""
    channel = {GINA: DEALS, EMIL: CONTOSO}.get(user, SALES_DESK)
    event = mention(user, channel) if kind == "mention" else direct(user)
    if user == EMIL:
        event |= {"user_team": "T0CONTOSO01", "source_team": "T0CONTOSO01"}
    await acked(on, on.slack.send_event(event, is_ext_shared_channel=user == EMIL))
    await drained(on)
    assert await on.pool.fetchval("select count(*) from inbox where handled_at is null") == 0
    assert await on.pool.fetchval("select count(*) from runs") == int(served)
    if not served:
        owed = [row["place"] for row in await on.pool.fetch("select place from outbox where kind <> 'alert'")]
        # Somebody of another company is told why, alone; one who has left is told nothing.
        assert [place.partition(":")[0] for place in owed] == ([] if user == DORA else ["private"])


@pytest.mark.parametrize(
    ("event", "why"),
    [
        (mention(MARCUS, bot_id="B0OTHERBOT1"), "written by a bot"),
        # Bolt itself drops what its own bot wrote.
        (mention("U0ATLAS0001"), ""),
        (direct(RITA, subtype="message_changed", hidden=True), "subtype message_changed"),
        (direct(RITA, subtype="message_deleted", hidden=True), "subtype message_deleted"),
        (direct(RITA, subtype="bot_message"), "subtype bot_message"),
        (direct(RITA, subtype="a_subtype_of_2030"), "subtype a_subtype_of_2030"),
        (direct(RITA, subtype="x" * 4_000), "subtype xxx"),
        (mention(""), "without a writer"),
        ({**mention(RITA), "ts": None}, "without a writer"),
    ],
)
async def test_what_is_no_persons_own_message_is_acked_noted_and_left(
    on: Stage, event: dict[str, Any], why: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Bots, edits, deletions, unknown subtypes, torn events: the log says why, and no row is written."""
    caplog.set_level(logging.INFO, "atlas.events")
    await acked(on, on.slack.send_event(event))
    assert why in caplog.text
    assert await on.pool.fetchval("select count(*) from inbox") == 0


async def test_an_event_of_another_team_is_left_out_and_one_heard_through_ours_is_not(
    on: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    """In a shared channel the other company's team id may stand on the wrapper; the authorization says it is for us."""
    caplog.set_level(logging.INFO, "atlas.events")
    foreign = {"team_id": "T0MALLORY01", "context_team_id": "T0MALLORY01", "authorizations": []}
    await acked(on, on.slack.send_event(mention(RITA), **foreign))
    assert "of another team (T0MALLORY01)" in caplog.text
    assert await on.pool.fetchval("select count(*) from inbox") == 0
    await acked(on, on.slack.send_event(mention(RITA), team_id="T0CONTOSO01"))
    assert await on.pool.fetchval("select team_id from inbox") == on.installation.team_id


async def test_a_bot_without_a_bot_id_is_known_by_what_slack_says_of_it(on: Stage) -> None:
    """A workflow's post may name only a user; the directory knows that it is no person."""
    await acked(on, on.slack.send_event(mention("USLACKBOT")))
    await drained(on)
    assert await on.pool.fetchval("select count(*) from runs") == 0


async def test_on_grid_the_company_is_the_team(grid: Stage) -> None:
    """Events and clicks that name only the company, or a sister workspace of it, are served under the one team."""
    wrapper: dict[str, Any] = {"team_id": "T0SISTER001", "context_team_id": None, "context_enterprise_id": GRID}
    await acked(grid, grid.slack.send_event(mention(RITA), authorizations=[], **wrapper))
    await drained(grid)
    run = await grid.pool.fetchrow("select team_id, user_id from runs")
    assert run is not None
    assert tuple(run) == (grid.installation.team_id, RITA)
    for team in (None, {"id": "T0SISTER001", "enterprise_id": GRID}):
        suspension_id = await grid.suspend(await grid.run("another"))
        company: dict[str, Any] = {"enterprise": {"id": GRID, "name": "Northwind"}, "is_enterprise_install": True}
        assert (await click(grid, suspension_id, RITA, team=team, **company)).state == "acked"
        assert await status(grid, suspension_id) is SuspensionStatus.APPROVED


# ---- clicks, forms, commands -----------------------------------------------------------------------------------------


async def status(on: Stage, suspension_id: str) -> SuspensionStatus:
    """Return a suspension's status as stored."""
    found = await on.desk.suspension(suspension_id)
    assert found is not None
    return found[0].status


@pytest.mark.parametrize(
    ("user", "changes"),
    [
        (GINA, {}),
        (EMIL, {}),
        (DORA, {}),
        ("U0ATLAS0001", {}),
        ("U0NOBODY001", {}),
        (RITA, {"team": {"id": "T0MALLORY01", "domain": "mallory"}}),
        (RITA, {"team": None, "enterprise": {"id": "E0MALLORY01", "name": "Mallory"}}),
        (RITA, {"team": None}),
    ],
)
async def test_a_click_of_whoever_may_not_act_changes_nothing_and_is_audited(
    on: Stage, user: str, changes: dict[str, Any]
) -> None:
    """ "Anyone" is anyone of ours: guests, externals, the departed, bots and other teams are refused, on record."""
    suspension_id = await on.suspend(await on.run(), policy=Approval(by="anyone"))
    await on.card(suspension_id)
    before = await shared_rows(on)
    assert (await click(on, suspension_id, user, **changes)).state == "acked"
    assert await shared_rows(on) == before
    assert await audit(on) == [("approve", user, False)]


async def form(on: Stage, user: str, callback: str, carried: Any, **changes: Any) -> Any:
    """Submit a form whose private metadata is *carried*."""
    person = on.slack.workspace.person(user)
    assert person is not None
    view = {"id": "V1", "type": "modal", "callback_id": callback, "blocks": [], "state": {"values": {}}, "hash": "1.1"}
    view["private_metadata"] = carried if isinstance(carried, str) else json.dumps(carried)
    payload = on.slack.payloads.view_submission(person, "trigger", view) | changes
    return await on.slack.send_interaction("view_submission", payload).settled()


async def carried_by(on: Stage, suspension_id: str) -> dict[str, str]:
    """Return what the suspension's buttons and forms carry."""
    found = await on.desk.suspension(suspension_id)
    assert found is not None
    return {"s": found[0].id, "t": found[0].token, "d": found[0].digest}


@pytest.mark.parametrize(("user", "team"), [(GINA, None), (EMIL, None), (DORA, None), (RITA, "T0MALLORY01")])
@pytest.mark.parametrize("callback", ["details_approve", "decline_reason", "edit"])
async def test_a_form_of_whoever_may_not_act_changes_nothing_and_is_audited(
    on: Stage, user: str, team: str | None, callback: str
) -> None:
    """The modal's submit is judged as the button is."""
    suspension_id = await on.suspend(await on.run(), LONG, Approval(by="anyone"))
    await on.card(suspension_id)
    carried = await carried_by(on, suspension_id)
    before = await shared_rows(on)
    changes = {"team": {"id": team, "domain": "x"}} if team else {}
    submitted = await form(on, user, callback, carried, **changes)
    assert submitted.state == "acked"
    assert await shared_rows(on) == before
    attempts = await audit(on)
    if callback == "edit":
        assert attempts in ([], [("edit", user, False)])
    else:
        assert attempts == [("approve" if callback == "details_approve" else "decline", user, False)]


@pytest.mark.parametrize("carried", ["", "not json", "[]", "17", "null", '{"s": 7}', '{"t": "x"}', "{" * 2_900])
async def test_a_tampered_form_or_button_is_refused_on_record(on: Stage, carried: str) -> None:
    """What names no request at all is still an attempt: acked, answered, audited."""
    suspension_id = await on.suspend(await on.run())
    await on.card(suspension_id)
    before = await shared_rows(on)
    for callback in ("details_approve", "decline_reason"):
        assert (await form(on, RITA, callback, carried)).state == "acked"
    action = {"type": "button", "action_id": "approve", "block_id": "b", "value": carried}
    assert (await click(on, suspension_id, RITA, actions=[action])).state == "acked"
    assert await shared_rows(on) == before
    assert await audit(on) == [("approve", RITA, False), ("decline", RITA, False), ("approve", RITA, False)]


@pytest.mark.parametrize("callback", ["details_approve", "decline_reason"])
async def test_a_form_submitted_after_expiry_expires_and_decides_nothing(on: Stage, callback: str) -> None:
    """The pages were opened in time and submitted late: expired, said so in the form, audited."""
    fence = await on.run()
    suspension_id = await on.suspend(fence, LONG)
    carried = await carried_by(on, suspension_id)
    on.time.advance(1_801)
    submitted = await form(on, RITA, callback, carried)
    assert submitted.state == "acked"
    assert "expired" in json.dumps(on.slack.journal.find({"kind": "ack"})[-1])
    assert await status(on, suspension_id) is SuspensionStatus.EXPIRED
    run = await on.desk.run(fence.run_id)
    assert run is not None
    assert run.state is RunState.HALTED
    assert not any(allowed for _, _, allowed in await audit(on))


async def test_a_button_of_another_runs_card_decides_neither(on: Stage) -> None:
    """The suspension of one card with the token of another: each token belongs to its own suspension."""
    mine, other = await on.suspend(await on.run()), await on.suspend(await on.run("second"))
    await on.card(mine)
    before = await shared_rows(on)
    mixed = {**await carried_by(on, mine), "t": (await carried_by(on, other))["t"]}
    action = {"type": "button", "action_id": "approve", "block_id": "b", "value": json.dumps(mixed)}
    assert (await click(on, mine, RITA, actions=[action])).state == "acked"
    assert await shared_rows(on) == before
    assert await audit(on) == [("approve", RITA, False)]


async def test_a_replayed_click_decides_once(on: Stage) -> None:
    """The same envelope twice: one decision; the second is told who decided."""
    suspension_id = await on.suspend(await on.run())
    await on.card(suspension_id)
    on.slack.faults.sockets.duplicate = 1
    assert (await click(on, suspension_id, RITA)).state == "acked"
    await until(lambda: on.pool.fetchval("select count(*) = 2 from audit"))
    assert sorted(allowed for _, _, allowed in await audit(on)) == [False, True]


@pytest.mark.parametrize(
    ("kind", "payload"),
    [
        (
            "view_submission",
            {"view": {"id": "V1", "type": "modal", "callback_id": "of_2019", "private_metadata": "{}"}},
        ),
        ("block_actions", {"actions": [{"type": "button", "action_id": "of_2019", "value": "x", "block_id": "b"}]}),
        ("block_actions", {"actions": [{"type": "static_select", "action_id": "menu", "block_id": "b"}]}),
        ("block_actions", {"type": "shortcut", "callback_id": "of_2019"}),
        ("block_actions", {"type": "view_closed", "view": {"id": "V1", "callback_id": "decline_reason"}}),
    ],
)
async def test_what_nobody_here_knows_is_acked(on: Stage, kind: str, payload: dict[str, Any]) -> None:
    """slackapi/slack-github-action#513: whatever may be pressed has a listener that acks it."""
    person = on.slack.workspace.person(RITA)
    assert person is not None
    whole = on.slack.payloads.block_actions(person, "trigger", []) | {"type": kind, **payload}
    assert (await on.slack.send_interaction(kind, whole).settled()).state == "acked"


async def test_a_command_of_4000_characters_or_of_another_team_changes_nothing(on: Stage) -> None:
    """Long texts are answered and cut; another team's person finds no run."""
    fence = await on.run()
    await on.suspend(fence)
    for text in ("x" * 4_000, "stop " + "y" * 3_990, "\u202e" * 4_000, "&lt;" * 1_000):
        command = await (await on.slack.command(RITA, SALES_DESK, "/atlas", text)).settled()
        assert command.state == "acked"
    await until(lambda: len(on.slack.ephemerals(RITA, SALES_DESK)) >= 4)
    assert all("no command" in message["text"] for message in on.slack.ephemerals(RITA, SALES_DESK))
    room, person = on.slack.rooms.all[SALES_DESK], on.slack.workspace.person(RITA)
    assert person is not None
    before = await shared_rows(on)
    for words in (f"stop {fence.run_id}", "stop", f"continue {fence.run_id}", "runs"):
        payload = on.slack.payloads.slash_command(person, room, "/atlas", words, "trigger", "")
        stranger = {**payload, "team_id": "T0MALLORY01"}
        assert (await on.slack.send_interaction("command", stranger).settled()).state == "acked"
    assert await shared_rows(on) == before
    assert await audit(on) == [("stop", RITA, False), ("continue", RITA, False)]


def test_the_installation_is_asked_of_slack_and_never_of_a_payload() -> None:
    """There is one installing team, known from auth.test."""
    assert {"team_id", "enterprise_id"} <= set(Installation.__dataclass_fields__)
