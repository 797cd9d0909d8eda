"""A crowd in one channel: what matters goes first, however many progress lines came before it, with any replicas.

Both were once broken: turns were booked in the order of asking, so that cards waited behind every progress line of a
burst, and a turn booked by one replica was lost when another took the row.
"""

import asyncio

import asyncpg

from bot.delivery import LEAST_WAIT_S, POST_BURST_S, POST_EVERY_S
from bot.pace import Pace
from bot.simulator import Simulator
from tests.integration.slack_stage import MovableTime, StageClock, stage
from tests.integration.storeworld import world_on


async def test_a_turn_that_is_far_off_is_booked_by_nobody(pool: "asyncpg.Pool[asyncpg.Record]") -> None:
    """Of 20 who ask, those whose turn is near get it; another replica may then take the next one, none is lost."""
    outbox = world_on(pool).outbox
    one, other = Pace(outbox, "T1"), Pace(outbox, "T1")
    turns = await asyncio.gather(*(one.turn("C1", "chat.postMessage", 1.0, 4.5) for _ in range(20)))
    assert sorted(wait for booked, wait in turns if booked) == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert min(wait for booked, wait in turns if not booked) == 5.0
    assert await outbox.ahead("T1", "C1", "chat.postMessage") == 5.0
    assert await other.turn("C1", "chat.postMessage", 1.0, 4.5) == (False, 5.0)
    assert await other.turn("C1", "chat.postMessage", 1.0, 5.5) == (True, 5.0)


async def test_those_who_matter_more_get_the_near_turns(pool: "asyncpg.Pool[asyncpg.Record]") -> None:
    """Asked for at one moment, the turns go first to those who may book far ahead."""
    pace = Pace(world_on(pool).outbox, "T1")
    patience = [1.5, 1.5, 8.5, 1.5, 8.5]
    turns = await asyncio.gather(*(pace.turn("C1", "chat.postMessage", 1.0, within) for within in patience))
    # The first books for itself before the others have asked.
    assert [booked for booked, _ in turns] == [True, False, True, False, True]
    assert [wait for booked, wait in turns if booked] == [0.0, 1.0, 2.0]


async def test_a_card_goes_before_the_progress_lines_of_a_burst(pool: "asyncpg.Pool[asyncpg.Record]") -> None:
    """Ten people ask at once in a channel; the first card is not behind ten progress lines, which all come too."""
    async with stage(pool, still=True) as on:
        fences = [await on.run() for _ in range(10)]
        lines = [f"progress:{fence.run_id}" for fence in fences]
        await on.delivery.run_once(20)
        before = [line for line in lines if on.posted(line)]
        assert len(before) == int((LEAST_WAIT_S + POST_BURST_S) / POST_EVERY_S) + 1, (
            "some lines go out, the others ask again later"
        )
        card = await on.suspend(fences[0])
        await pool.execute("update outbox set next_attempt_at = '-infinity' where kind = 'progress'")
        await on.delivery.run_once(20)  # all ask at one moment, and there is one near turn
        assert len(on.posted(f"card:{card}")) == 1
        assert [line for line in lines if on.posted(line)] == before
        for _ in range(60):
            if all(on.posted(line) for line in lines):
                break
            on.time.advance(LEAST_WAIT_S)
            await on.delivery.run_once(20)
        assert [len(on.posted(line)) for line in lines] == [1] * 10


class Turns(StageClock):
    """Time that stands still until everybody waits: nobody's request is on its way when the next turn comes."""

    def __init__(self, time: MovableTime, slack: Simulator) -> None:
        super().__init__(time, slack)
        self.waiting: list[tuple[float, asyncio.Event]] = []

    async def sleep(self, seconds: float) -> None:
        """Wait until the time is moved that far."""
        come = asyncio.Event()
        self.waiting.append((self.monotonic() + seconds, come))
        await come.wait()

    def next_turn(self) -> None:
        """Move on to the turn that is nearest, Slack's time too."""
        at = min(until_s for until_s, _ in self.waiting)
        self.time.advance(at - self.monotonic())
        assert self.slack is not None
        self.slack.advance(at + 1e-6 - self.slack_ahead)
        self.slack_ahead = at + 1e-6
        for until_s, come in self.waiting:
            if until_s <= at:
                come.set()
        self.waiting = [each for each in self.waiting if each[0] > at]

    slack_ahead = 0.0


async def test_a_burst_in_one_channel_earns_no_refusal(pool: "asyncpg.Pool[asyncpg.Record]") -> None:
    """Ten lines at one moment, with Slack's rate tiers on: each is posted once, and Slack never says 429.

    Four went out at once where Slack takes three, so that every burst earned a pause.
    """
    async with stage(pool, still=True, rate_tiers=True) as on:
        places = [f"progress:{(await on.run()).run_id}" for _ in range(10)]
        turns = on.delivery.clock = Turns(on.time, on.slack)
        for _ in range(30):
            taken = asyncio.ensure_future(on.delivery.run_once(20))
            while not taken.done():
                # Those whose request is on its way hold a lease and do not wait.
                leased = await pool.fetchval("select count(*) from outbox where lease_token is not null")
                if turns.waiting and leased == len(turns.waiting):
                    turns.next_turn()
                await asyncio.wait([taken], timeout=0.02)
            assert await taken < 20
            if all(on.posted(place) for place in places):
                break
            on.time.advance(LEAST_WAIT_S)
            on.slack.advance(LEAST_WAIT_S)
        assert [len(on.posted(place)) for place in places] == [1] * 10
        posts = on.slack.journal.find({"kind": "request", "method": "chat.postMessage"})
        assert len(posts) == 10
        assert on.slack.journal.find({"kind": "answer", "status": 429}) == []
