"""A local Slack: Web API, Socket Mode, response URLs and a page, for tests and for the demo.

It speaks Slack's wire protocol and knows nothing of the app that connects to it. In a test:

    async with Simulator() as slack:                  # slack.api_url, slack.addresses()
        asked = await slack.post_as(RITA, SALES_DESK, "@Atlas quote")
        card = (await slack.wait_for(lambda: slack.bot_messages(SALES_DESK, asked["ts"])))[0]
        click = await slack.click(RITA, SALES_DESK, card["ts"], "approve")
        assert (await click.settled()).state == "acked"
        slack.clock.advance(1800)                     # every deadline of Slack's runs on this clock
        slack.faults.add("store_then_drop", "chat.postMessage")

From another process, over HTTP on the same port (bodies are JSON objects):

    GET  /journal?since=N[&kind=K]     records after N
    POST /wait    {match, since?, timeout?}            the first record that contains `match`
    POST /faults  {kind, method?, times?, ...} | {socket, times?} | {clear: true}
    POST /sockets {do: disconnect|silence|cut|release|replay, ...}
    POST /clock   {advance: seconds}
    POST /world   {person|channel, set} | {group, users} | {token_error}
    POST /send    {event, wrapper?} | {kind, payload}  any payload as it stands
    POST /page/post, /page/click, /page/command, ...   act as a person (header X-Atlas-Page: 1)

Ids of people and channels are in `bot.simulator.workspace`.
"""

from bot.simulator.acts import ActRefused
from bot.simulator.clock import Clock
from bot.simulator.delivery import Interaction
from bot.simulator.server import Simulator
from bot.simulator.workspace import AppManifest, Person, Workspace

__all__ = ["ActRefused", "AppManifest", "Clock", "Interaction", "Person", "Simulator", "Workspace"]
