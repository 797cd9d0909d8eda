"""Facts about people come from Slack, are believed for 60 s, and are never guessed."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest

from bot.people import SlackDirectory
from bot.simulator import Simulator
from bot.simulator.workspace import DEALS, DORA, EMIL, GINA, MARCUS, RITA, SALES_DESK, VERA
from bot.slack import identify, web_client, web_session
from core.errors import CouldNotCheck, Misconfigured
from tests.integration.slack_stage import PATIENCE_S


@dataclass
class TestClock:
    """Time that tests move."""

    __test__ = False
    at: float = 1000.0

    def monotonic(self) -> float:
        """Return the time."""
        return self.at

    async def sleep(self, seconds: float) -> None:
        """Move on."""
        self.at += seconds


@dataclass
class People:
    """The directory, its clock and its Slack."""

    slack: Simulator
    directory: SlackDirectory
    clock: TestClock
    team: str

    def calls(self, method: str) -> int:
        """Return how often Slack was asked."""
        return len(self.slack.journal.find({"kind": "request", "method": method}))


@pytest.fixture
async def people() -> AsyncIterator[People]:
    """A directory of the simulated workspace."""
    async with Simulator() as slack, web_session(PATIENCE_S) as session:
        client = web_client(slack.workspace.bot_token, session, slack.api_url)
        installation = await identify(client)
        clock = TestClock()
        yield People(slack, SlackDirectory(client, installation, clock), clock, installation.team_id)


async def test_each_kind_of_person_is_told_apart(people: People) -> None:
    """Member, guest, external, deactivated, bot, and somebody whom Slack does not show."""
    rita = await people.directory.person(people.team, RITA)
    assert (rita.deactivated, rita.bot, rita.guest, rita.foreign) == (False, False, False, False)
    assert (rita.user.team_id, rita.user.email) == (people.team, "rita.reyes@northwind.example")
    assert (await people.directory.person(people.team, GINA)).guest
    assert (await people.directory.person(people.team, EMIL)).foreign
    assert (await people.directory.person(people.team, DORA)).deactivated
    assert (await people.directory.person(people.team, "U0ATLAS0001")).bot
    assert (await people.directory.person(people.team, "U0NOBODY001")).foreign


async def test_facts_are_believed_for_60_seconds_and_read_again_when_asked_fresh(people: People) -> None:
    """A deactivation is seen at once by a fresh question, and by everybody after 60 s."""
    await people.directory.person(people.team, VERA)
    people.slack.change_world({"person": VERA, "set": {"kind": "deactivated"}})
    people.clock.at += 59
    assert not (await people.directory.person(people.team, VERA)).deactivated
    assert people.calls("users.info") == 1
    assert (await people.directory.person(people.team, VERA, fresh=True)).deactivated
    people.slack.change_world({"person": VERA, "set": {"kind": "member"}})
    people.clock.at += 61
    assert not (await people.directory.person(people.team, VERA)).deactivated


async def test_a_fresh_question_waits_out_the_pause_that_slack_asks_for(people: People) -> None:
    """For seconds, not for ever; who wants no fresh fact waits for nobody and believes what is known."""
    people.slack.faults.add("ratelimited", method="users.info", times=2, retry_after=2)
    begun = people.clock.at
    assert not (await people.directory.person(people.team, VERA, fresh=True)).deactivated
    assert (people.clock.at - begun, people.calls("users.info")) == (4, 3)
    people.clock.at += 1
    people.slack.faults.add("ratelimited", method="users.info", times=None, retry_after=3)
    with pytest.raises(CouldNotCheck, match="ratelimited"):
        await people.directory.person(people.team, VERA, fresh=True)
    assert people.clock.at - begun == 4 + 1 + 6
    assert not (await people.directory.person(people.team, VERA)).deactivated


async def test_who_believes_what_is_known_waits_for_no_fresh_question(people: People) -> None:
    """A click is judged while a resumption looks the same person up anew."""
    await people.directory.person(people.team, VERA)
    people.clock.at += 1
    people.slack.faults.add("delay", method="users.info", seconds=10 * PATIENCE_S)
    asking = asyncio.ensure_future(people.directory.person(people.team, VERA, fresh=True))
    await people.slack.wait_for(lambda: people.calls("users.info") == 2)
    async with asyncio.timeout(PATIENCE_S):
        assert not (await people.directory.person(people.team, VERA)).deactivated
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)


async def test_channel_and_group_membership(people: People) -> None:
    """Members of a channel and of a user group, by handle; the ids of groups are known for mentions."""
    assert await people.directory.in_channel(SALES_DESK, VERA)
    assert not await people.directory.in_channel(SALES_DESK, GINA)
    assert await people.directory.in_channel(DEALS, GINA)
    assert people.directory.group_ids() == {}
    assert await people.directory.in_group("sales-managers", MARCUS)
    assert not await people.directory.in_group("sales-managers", RITA)
    assert people.directory.group_ids()["sales-managers"] == "S0SALESMGRS"
    assert people.calls("usergroups.list") == 1


@pytest.mark.parametrize("fault", ["drop_before", "http_error", "ratelimited", "error"])
async def test_what_cannot_be_asked_is_never_guessed(people: People, fault: str) -> None:
    """Each failure is CouldNotCheck, and the next question asks again."""
    people.slack.faults.add(fault, times=None)  # type: ignore[arg-type]
    with pytest.raises(CouldNotCheck):
        await people.directory.person(people.team, RITA)
    with pytest.raises(CouldNotCheck):
        await people.directory.in_channel(SALES_DESK, RITA)
    with pytest.raises(CouldNotCheck):
        await people.directory.in_group("sales-managers", RITA)
    people.slack.faults.clear()
    assert (await people.directory.person(people.team, RITA)).user.user_id == RITA
    with pytest.raises(CouldNotCheck, match="no-such-group"):
        await people.directory.in_group("no-such-group", RITA)


async def test_a_refused_token_says_what_to_do(people: People) -> None:
    """The start stops with one clear message."""
    async with web_session(PATIENCE_S) as session:
        with pytest.raises(Misconfigured, match="SLACK_BOT_TOKEN is refused"):
            await identify(web_client("xoxb-wrong", session, people.slack.api_url))
