"""The same story over other wires and in split roles: Slack's requests over HTTP, listeners and workers apart."""

from bot.simulator import Simulator
from bot.simulator.workspace import RITA
from tests.acceptance.stack import ACK_WINDOW_S, Stack, words
from tests.acceptance.waiting import wait_until


async def test_the_story_over_http(stack: Stack) -> None:
    """With a signing secret and no app token, Slack posts to us: the listeners do not know the difference."""
    over_http = Simulator(manifest=stack.slack.manifest, request_url="http://127.0.0.1:1/until/it/is/known")
    posting = over_http.http_mode
    assert posting is not None
    posting.ack_window_s = over_http.triggers.life_s = ACK_WINDOW_S
    await stack.slack.stop()
    stack.slack = over_http
    await over_http.start()
    try:
        bot = await stack.serve(SLACK_APP_TOKEN="", SLACK_SIGNING_SECRET=over_http.workspace.signing_secret)
        posting.request_url = f"{bot.url}/slack/events"
        thread = await stack.ask()
        card = await stack.card(thread)
        click = await stack.press(card, "approve")
        assert click.state == "acked"
        await stack.until(thread, "answered")
        await stack.shows(card, "Done")
        assert [sent["requests"] for sent in stack.sent()] == [1]
        helped = await stack.command("help")
        assert "waits for a click" in helped
        assert over_http.journal.find({"kind": "socket"}) == []
        await stack.check()
    finally:
        await over_http.stop()


async def test_listeners_and_workers_in_processes_of_their_own(stack: Stack) -> None:
    """--role bot takes messages and clicks, --role worker works: the database is all that they share."""
    listening = stack.spawn("serve", "--role", "bot")
    working = stack.spawn("serve", "--role", "worker")
    await listening.ready()
    await working.ready()
    thread = await stack.ask()
    card = await stack.card(thread)
    assert "Send quote Q-1042" in words(stack.shown(card))
    await stack.press(card, "approve")
    await stack.until(thread, "answered")
    await stack.shows(card, "Done")
    claims = await stack.rows(
        "select distinct w.pid from trace t join workers w on w.id::text = t.body::json ->> 'worker'"
        " where t.kind = 'claimed'"
    )
    assert [row["pid"] for row in claims] == [working.process.pid]
    await stack.quiet()  # the listeners deliver: nothing may be owed when they go
    await listening.terminate()
    await wait_until(lambda: not stack.slack.sockets.connected, "nobody but the listeners is connected to Slack")


async def test_a_clicks_envelope_sent_again_changes_nothing(stack: Stack) -> None:
    """The same click, delivered three times more after it was acked: one effect, one decision, a private text."""
    await stack.serve()
    thread = await stack.ask()
    card = await stack.card(thread)
    await stack.press(card, "approve")
    await stack.until(thread, "answered")
    sent = stack.slack.journal.find({"kind": "envelope", "envelope": {"type": "interactive"}})

    async def refused() -> int:
        return int(await stack.value("select count(*) from audit where act = 'approve' and not allowed"))

    before = await refused()
    await stack.slack.sockets.replay(sent[-1]["envelope"], times=3)

    async def all_refused() -> bool:
        return await refused() == before + 3

    await wait_until(all_refused, "three refusals on record")
    await stack.whispered(thread, "Approved already by", to=RITA)
    assert [effect["requests"] for effect in stack.sent()] == [1]
