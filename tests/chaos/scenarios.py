"""The stories that are played at every boundary: who asks for what, who decides what, and how the world changes.

Decides: what may be true at the end of each. Does not: kill. A story must end well however often it is interrupted, so
it acts on what it sees (the open cards), never on what should be there by now.
"""

from decimal import Decimal

from bot.simulator.workspace import MARCUS, OSKAR, RITA, SALES_DESK, VERA
from core.run import HaltReason
from core.tools import Limits
from tests.chaos.target import Turn
from tests.chaos.theatre import Scenario, Theatre

ASK = "send a quote"
WIDE = 10_000_000.0


def turn(*tools: str, **arguments: object) -> Turn:
    """Return a turn of the model that calls *tools*, each with its own amount unless given."""
    return tuple((tool, {"amount": number, **arguments}) for number, tool in enumerate(tools, start=1))


async def _ask(t: Theatre) -> None:
    await t.say(ASK)


async def _approve(t: Theatre) -> None:
    await t.say(ASK)
    await t.decide()


async def _decline(t: Theatre) -> None:
    await t.say(ASK)
    await t.decide(approve=False)


async def _expire(t: Theatre) -> None:
    await t.say(ASK)
    await t.let_expire()
    await t.press_continue()


async def _late_click(t: Theatre) -> None:
    """The click itself expires the card; then its owner asks for something else."""
    await t.say(ASK)
    t.pass_time(1801)
    for card in await t.open_cards():
        await t.click(card)
    await t.say("look again")


async def _changed(t: Theatre) -> None:
    await t.say(ASK)
    t.target.let("price", "120")
    await t.decide()
    await t.decide()


async def _held(t: Theatre) -> None:
    await t.say(ASK)
    t.target.let("hold", "the account is on credit hold")
    await t.decide()


async def _not_permitted(t: Theatre) -> None:
    await t.say(ASK)
    t.target.let("permissions", "look")
    await t.decide()


async def _could_not_check(t: Theatre) -> None:
    await t.say(ASK)
    t.target.let("down:preview", "1")
    await t.decide()
    t.target.let("down:preview", "")
    await t.decide()


async def _old_approval(t: Theatre) -> None:
    """Approved while no worker takes it up for longer than an approval may be acted on."""
    await t.say(ASK)
    for card in await t.open_cards():
        await t.approve_elsewhere(card)
    t.pass_time(1801)
    await t.settle()
    await t.decide()


async def _one_by_one(t: Theatre) -> None:
    await t.say(ASK)
    while cards := await t.open_cards():
        await t.click(cards[0])


async def _edit(t: Theatre) -> None:
    await t.say(ASK)
    for card in await t.open_cards():
        if card.arguments["amount"] != 7:
            await t.do(
                "edit",
                who=(t.team, RITA),
                suspension=card.id,
                token=card.token,
                arguments={"amount": 7, "what": "quote"},
            )
    await t.settle()
    await t.decide()


async def _two_votes(t: Theatre) -> None:
    await t.say(ASK)
    await t.decide(users=(RITA, MARCUS))


async def _others_approve(t: Theatre) -> None:
    """A member of the channel, then a manager; a stranger's click is refused before."""
    await t.say(ASK)
    for card in await t.open_cards():
        await t.click(card, user=VERA)
        await t.click(card, user=MARCUS)


async def _breaks_once(t: Theatre, how: str, tool: str) -> None:
    t.target.let(f"breaks:{tool}", how)
    await t.say(ASK)
    await t.decide()
    await t.decide()  # a card that comes again since nothing could be checked


async def _happened(t: Theatre) -> None:
    await _breaks_once(t, "unheard", "order")


async def _did_not_happen(t: Theatre) -> None:
    await _breaks_once(t, "unsent", "order")


async def _again_with_key(t: Theatre) -> None:
    await _breaks_once(t, "unheard", "wire")


async def _person_says_yes(t: Theatre) -> None:
    await _breaks_once(t, "unheard", "fax")


async def _person_says_no(t: Theatre) -> None:
    await _breaks_once(t, "unsent", "fax")


async def _nobody_says(t: Theatre) -> None:
    """The outcome card expires; the run halts, continue asks again, and then somebody looks."""
    await _breaks_once(t, "unheard", "fax")
    await t.let_expire()
    await t.press_continue()


async def _told_after_halt(t: Theatre) -> None:
    """The outcome card expires; its late answer is recorded and starts nothing; then its owner continues."""
    await _breaks_once(t, "unheard", "fax")
    asked = await t.outcome_cards()
    await t.let_expire()
    for card in asked:
        await t.tell_outcome(card)
    await t.press_continue()


async def _unreachable(t: Theatre) -> None:
    """The target cannot be asked for a minute; a person is; then it is back."""
    t.target.let("down:reconcile", "1")
    await _breaks_once(t, "unheard", "send")
    t.target.let("down:reconcile", "")


async def _continue(t: Theatre) -> None:
    await t.say(ASK)
    for _ in range(4):
        if any(run.halt_reason in (HaltReason.BUDGET_STEPS, HaltReason.BUDGET_SPEND) for run in await t.runs()):
            await t.press_continue()


async def _follow_up(t: Theatre) -> None:
    await t.say(ASK)
    await t.say("look again")


async def _while_running(t: Theatre) -> None:
    """Its owner writes while a tool executes."""
    await t.say_meanwhile("note", "look again")
    await t.say(ASK)


async def _while_sibling_runs(t: Theatre) -> None:
    """Two approvals; one executes while its owner writes something new, which replaces the other."""
    await t.say_meanwhile("send", "look again")
    await t.say(ASK)
    for card in await t.open_cards():
        if card.tool == "send":
            await t.click(card)


async def _supersede(t: Theatre) -> None:
    await t.say(ASK)
    await t.say("look again")


async def _assent(t: Theatre) -> None:
    """Words never approve; commands in the thread are answered."""
    await t.say(ASK)
    for words in ("yes please", "pending", "runs", "show", "help"):
        await t.say(words)
    await t.do("home", who=(t.team, RITA))
    await t.decide()


async def _stop_waiting(t: Theatre) -> None:
    await t.say(ASK)
    await t.stop()


async def _stop_by_word(t: Theatre) -> None:
    await t.say(ASK)
    await t.say("stop")


async def _stop_running(t: Theatre) -> None:
    t.target.meanwhile("note", do="stop", who=(t.team, RITA))
    await t.say(ASK)


async def _stop_in_doubt(t: Theatre) -> None:
    """Stopped while the outcome of an action is not known."""
    t.target.let("breaks:order", "unheard")
    t.target.meanwhile("order", do="stop", who=(t.team, RITA))
    await t.say(ASK)
    await t.decide()


async def _reap(t: Theatre) -> None:
    """A run that takes its process down each time."""
    await t.say(ASK)


async def _deploy(t: Theatre) -> None:
    """Cleanly replaced before, between and while a write executes."""
    await t.say(ASK)
    await t.deploy()
    t.target.meanwhile("send", do="leave")
    await t.decide()
    await t.deploy()
    await t.decide()


async def _no_scopes(t: Theatre) -> None:
    """The permissions cannot be read at the start: said, tried again, and given up after five minutes."""
    t.target.let("down:scopes", "1")
    await t.say(ASK)
    t.target.let("down:scopes", "")


async def _slack_trouble(t: Theatre) -> None:
    """Slack drops an answer, asks for a pause, refuses a message for good."""
    t.slack.faults.add("store_then_drop", "chat.postMessage")
    t.slack.faults.add("ratelimited", "chat.postMessage", retry_after=3)
    t.slack.faults.add("http_error", "chat.update", status=503)
    await t.say(ASK)
    await t.decide()


async def _retention(t: Theatre) -> None:
    await t.say(ASK)
    await t.thaw()  # who stands still for longer than everything is kept would find no trace of a stored event
    t.pass_time(40 * 86_400)
    await t.do("retention")


async def _reminded(t: Theatre) -> None:
    """Two cards are about to expire; one is decided before its reminder goes out, which then says nothing."""
    await t.say(ASK)
    t.pass_time(1600)
    await t.do("remind")
    for card in await t.open_cards():
        if card.tool == "send":
            await t.click(card)
    await t.decide()


async def _closed_place(t: Theatre) -> None:
    """Slack takes nothing in the channel any more: who may decide is written to directly."""
    t.slack.faults.add("error", "chat.postMessage", times=None, error="is_archived", where={"channel": SALES_DESK})
    await t.say(ASK)
    await t.decide()


async def _example(t: Theatre) -> None:
    """A newcomer is welcomed, and clicks an example."""
    await t.do("welcome", who=(t.team, RITA), channel=SALES_DESK)
    event = await t.event("hello")
    await t.do("example", event={**event, "text": ASK, "thread_ts": ""}, thread=t.thread)
    await t.settle()
    await t.decide()


async def _alert_taken_up(t: Theatre) -> None:
    """An operator takes up the alert about an outcome that nobody knows; a stranger may not."""
    await _breaks_once(t, "unheard", "fax")
    for place in await t.alerts():
        for user in (VERA, OSKAR):
            await t.do("acknowledge", who=(t.team, user), place=place)
    await t.settle()


# Resumed by a process that never saw the run, after a look: it reads the approved turn, acts, and then reads the rest.


async def _long_approved(t: Theatre) -> None:
    await t.say(ASK)
    await t.deploy()
    await t.decide()


async def _long_one_by_one(t: Theatre) -> None:
    """The last of three writes is approved in a process that has seen none of them."""
    await t.say(ASK)
    while cards := await t.open_cards():
        await t.deploy()
        await t.click(cards[0])


async def _long_changed(t: Theatre) -> None:
    """What was approved is not what would be done any more: asked anew by a process that has read the turn only."""
    await t.say(ASK)
    t.target.let("price", "120")
    await t.deploy()
    await t.decide()
    await t.deploy()
    await t.decide()


async def _long_in_doubt(t: Theatre) -> None:
    """Nobody hears how it ended; a person says."""
    t.target.let("breaks:fax", "unheard")
    await t.say(ASK)
    await t.deploy()
    await t.decide()
    await t.decide()


async def _long_written_to(t: Theatre) -> None:
    """Its owner writes between the turn and the rest of the conversation."""
    await t.say_meanwhile("send", "look again")
    await t.say(ASK)
    await t.deploy()
    await t.decide()


async def _long_stopped(t: Theatre) -> None:
    """It is stopped between the turn and the rest of the conversation."""
    t.target.meanwhile("send", do="stop", who=(t.team, RITA))
    await t.say(ASK)
    await t.deploy()
    await t.decide()


NEIGHBOURS = 20


async def _bystanders(t: Theatre) -> None:
    """Twenty runs share a process with one that takes it down each time."""
    for number in range(NEIGHBOURS + 1):
        t.thread = ""
        await t.say("break" if number == NEIGHBOURS // 2 else ASK, settle=False)
    await t.settle()


async def _only_one_fell(t: Theatre) -> list[str]:
    runs = await t.runs()
    fell = [run for run in runs if run.question == "break"]
    wrong = [
        f"run {run.id} ({run.question}) is {run.state}" for run in runs if (run in fell) != (run.state == "failed")
    ]
    wrong += [f"run {run.id} failed for {run.fail_reason}" for run in fell if run.fail_reason != "recovery_exhausted"]
    alerts = [place for place in await t.alerts() if place.startswith("alert:failed:")]
    if len(fell) != 1 or alerts != [f"alert:failed:{fell[0].id}"]:
        wrong.append(f"{len(runs)} runs, {len(fell)} fell, alerts: {alerts}")
    return wrong


LOOK_AGAIN = {"look again": (turn("look"),)}

SCENARIOS: tuple[Scenario, ...] = (
    Scenario("read", _ask, {ASK: (turn("look"), turn("look", "look"))}, (0,)),
    Scenario("write without approval", _ask, {ASK: (turn("look", "note"),)}, (1,)),
    Scenario("approved", _approve, {ASK: (turn("look", "send"),)}, (1,)),
    Scenario("declined", _decline, {ASK: (turn("send"),)}, (0,), stance="decline"),
    Scenario("expired", _expire, {ASK: (turn("send"),)}, (0,), ("answered", "halted"), stance=""),
    Scenario(
        "late click", _late_click, {ASK: (turn("send"),), **LOOK_AGAIN}, (0,), ("answered", "halted"), stance=""
    ),
    Scenario("changed", _changed, {ASK: (turn("send"),)}, (1,)),
    Scenario("guard refused", _held, {ASK: (turn("send"),)}, (0,)),
    Scenario("permission gone", _not_permitted, {ASK: (turn("send"),)}, (0,)),
    Scenario("could not check", _could_not_check, {ASK: (turn("send"),)}, (1,)),
    Scenario("old approval", _old_approval, {ASK: (turn("send"),)}, (1,)),
    Scenario("two writes", _one_by_one, {ASK: (turn("note", "send", "order"),)}, (3,)),
    Scenario("edit", _edit, {ASK: (turn("send"),)}, (1,)),
    Scenario("two votes", _two_votes, {ASK: (turn("sign"),)}, (1,)),
    Scenario("others approve", _others_approve, {ASK: (turn("announce", "discount"),)}, (2,)),
    Scenario("it happened", _happened, {ASK: (turn("order"),)}, (1,)),
    Scenario("it did not happen", _did_not_happen, {ASK: (turn("order"),)}, (1,)),
    Scenario("again with its key", _again_with_key, {ASK: (turn("wire"),)}, (1,)),
    Scenario("a person says it happened", _person_says_yes, {ASK: (turn("fax"),)}, (1,)),
    Scenario("a person says it did not", _person_says_no, {ASK: (turn("fax"),)}, (1,)),
    Scenario("nobody says", _nobody_says, {ASK: (turn("fax"),)}, (1,)),
    Scenario("told after the halt", _told_after_halt, {ASK: (turn("fax"),)}, (1,)),
    Scenario("unreachable", _unreachable, {ASK: (turn("send"),)}, (1,)),
    Scenario(
        "budget", _continue, {ASK: (turn("look"), turn("note"), turn("look"))}, (1,),
        limits=Limits(max_steps=2, max_elapsed_s=WIDE),
    ),
    Scenario(
        "spend", _continue, {ASK: (turn("look"), turn("note"), turn("look"))}, (1,),
        limits=Limits(max_spend_usd=Decimal("0.02"), max_elapsed_s=WIDE),
    ),
    Scenario("follow-up", _follow_up, {ASK: (turn("note"),), **LOOK_AGAIN}, (1,)),
    Scenario("message while running", _while_running, {ASK: (turn("note"),), **LOOK_AGAIN}, (1,)),
    Scenario(
        # None, where the first one's last check was cut short: its card comes again, and the message replaces it.
        "message while a sibling runs", _while_sibling_runs, {ASK: (turn("send", "order"),), **LOOK_AGAIN}, (0, 1, 2),
        stance="decline",
    ),
    Scenario("supersede", _supersede, {ASK: (turn("send"),), **LOOK_AGAIN}, (0,)),
    Scenario("words", _assent, {ASK: (turn("send"),)}, (1,)),
    Scenario("stop waiting", _stop_waiting, {ASK: (turn("send"),)}, (0,), ("halted",)),
    Scenario("stop by word", _stop_by_word, {ASK: (turn("send"),)}, (0,), ("halted",)),
    Scenario("stop running", _stop_running, {ASK: (turn("note"),)}, (0, 1), ("halted", "answered")),
    Scenario("stop in doubt", _stop_in_doubt, {ASK: (turn("order", "note"),)}, (1, 2), ("halted", "answered")),
    Scenario("reap", _reap, {ASK: (turn("note"), turn("bomb"))}, (1,), ("failed",)),
    Scenario("deploy", _deploy, {ASK: (turn("send"), turn("order"))}, (2,)),
    Scenario("no scopes", _no_scopes, {ASK: (turn("note"),)}, (0, 1)),
    Scenario("Slack trouble", _slack_trouble, {ASK: (turn("send"),)}, (1,)),
    Scenario("reminded", _reminded, {ASK: (turn("send", "order"),)}, (2,)),
    Scenario("closed place", _closed_place, {ASK: (turn("send"),)}, (1,), closed=True),
    Scenario("example", _example, {ASK: (turn("send"),)}, (1,)),
    Scenario("alert taken up", _alert_taken_up, {ASK: (turn("fax"),)}, (1,)),
    Scenario("retention", _retention, {ASK: (turn("look"),)}, (0,), forgets=True),
    Scenario("long, approved", _long_approved, {ASK: (turn("look"), turn("send"))}, (1,), long=True),
    Scenario(
        "long, two writes", _long_one_by_one, {ASK: (turn("look"), turn("note", "send", "order"))}, (3,), long=True,
    ),
    Scenario("long, changed", _long_changed, {ASK: (turn("look"), turn("send"))}, (1,), long=True),
    Scenario("long, in doubt", _long_in_doubt, {ASK: (turn("look"), turn("fax"))}, (1,), long=True),
    Scenario(
        # None, for the same reason as above: the message replaces a card that came again.
        "long, written to", _long_written_to, {ASK: (turn("look"), turn("send")), **LOOK_AGAIN}, (0, 1), long=True,
        stance="decline",
    ),
    Scenario(
        "long, stopped", _long_stopped, {ASK: (turn("look"), turn("send"))}, (0, 1), ("halted", "answered"), long=True,
    ),
)  # fmt: skip


async def _double(t: Theatre) -> None:
    """A target that does a request twice: the judge must say so."""
    await t.say(ASK)
    for key, tool in t.target.effects():
        t.target.perform(key, tool, once=False)


DOUBLES = Scenario("doubles", _double, {ASK: (turn("note"),)}, (1,))

# Played as they are; what they are about kills by itself.
CROWDS: tuple[Scenario, ...] = (
    Scenario(
        "bystanders", _bystanders, {ASK: (turn("note"), turn("look")), "break": (turn("look"), turn("bomb"))},
        (NEIGHBOURS,), ("answered", "failed"), check=_only_one_fell,
    ),
)  # fmt: skip
# Those that are killed twice in a row: every way in which a write is executed or looked for again, and a read.
PAIRED = (
    "read", "write without approval", "approved", "two writes", "two votes", "changed", "could not check",
    "it happened", "it did not happen", "again with its key", "a person says it happened",
    "a person says it did not", "budget", "message while running", "stop in doubt",
    "long, approved", "long, two writes",
)  # fmt: skip
# Those in which a process is stopped and comes back at every boundary also within the hour; of the others it is each
# kind of boundary that these do not have.
FROZEN = (
    "write without approval", "approved", "again with its key", "read", "declined", "two votes", "unreachable",
    "follow-up", "supersede", "edit", "long, approved",
)  # fmt: skip
BY_NAME = {scenario.name: scenario for scenario in (*SCENARIOS, *CROWDS, DOUBLES)}
