"""The invariants themselves: each kind of broken promise is seen, so that a silent check cannot pass for a proof."""

from tests.acceptance.stack import Stack
from tests.acceptance.workshop import call, say, script
from tests.invariants import Effect, violations

# What is broken, by which statement, how it is undone, and what the check must say.
BREAKAGES = [
    ("update runs set spend_usd = spend_usd + 1", "update runs set spend_usd = spend_usd - 1", "its trace says"),
    ("update runs set step = step + 1", "update runs set step = step - 1", "turns of the model"),
    ("update runs set tool_calls = 2", "update runs set tool_calls = 1", "tool calls counted"),
    (
        "update runs set state = 'running', ended_at = null",
        "update runs set state = 'answered', ended_at = now()",
        "nobody works on it",
    ),
    ("update actions set state = 'intended'", "update actions set state = 'succeeded'", "still intended"),
    ("update actions set state = 'failed'", "update actions set state = 'succeeded'", "says failed"),
    (
        "update suspensions set digest = 'x' || digest",
        "update suspensions set digest = substr(digest, 2)",
        "was shown",
    ),
    (
        "update suspensions set status = 'declined'",
        "update suspensions set status = 'approved'",
        "its suspension is declined",
    ),
    ("update audit set allowed = false", "update audit set allowed = true", "no recorded approval"),
    ("update actions set suspension_id = null", "update actions set suspension_id = (select id from suspensions)",
     "without any suspension"),
    ("update messages set answers_position = 7 where role = 'tool'",
     "update messages set answers_position = 0 where role = 'tool'", "have no result"),
    ("update outbox set message_ts = '1.' || message_ts where kind = 'answer'",
     "update outbox set message_ts = substr(message_ts, 3) where kind = 'answer'", "no message stands for it"),
    ("update audit set by = 'x' || by", "update audit set by = substr(by, 2)", "1 acked clicks of"),
    ("update inbox set handled_at = null", "update inbox set handled_at = now()", "nobody has handled it"),
    ("update inbox set ts = '1.' || ts", "update inbox set ts = substr(ts, 3)", "acked, and not stored"),
]  # fmt: skip


async def test_each_broken_promise_is_seen(shop: Stack) -> None:
    """After a story that holds, every single breakage of its rows, effects or messages is reported."""
    shop.workshop.think = script(call(("pay", {"what": "rent"})), say("Paid."))
    await shop.serve()
    thread = await shop.ask("@Atlas pay the rent")
    card = await shop.card(thread)
    await shop.press(card, "approve")
    await shop.until(thread, "answered")
    await shop.check()
    shop.bots[0].kill()
    for broken, undone, said in BREAKAGES:
        await shop.rows(broken)
        found = await _found(shop)
        assert any(said in line for line in found), (broken, found)
        await shop.rows(undone)
        await shop.rows("delete from watched")
    assert await _found(shop) == []

    effects = [Effect(effect.key) for effect in shop.workshop.effects()]
    assert any("2 effects of one call" in line for line in await _found(shop, [*effects, *effects]))
    assert any("succeeded with 0 effects" in line for line in await _found(shop, []))
    assert any("no action intended" in line for line in await _found(shop, [*effects, Effect("nobody's")]))

    message = shop.shown(card)
    kept = dict(message)
    message["blocks"] = [{"type": "section", "text": {"type": "mrkdwn", "text": "Approved · running"}}]
    assert any("should say 'Done'" in line for line in await _found(shop))
    message["blocks"] = kept["blocks"]
    for amount in ("spend_usd", "step"):
        await shop.rows(f"update runs set {amount} = {amount} + 1")
        await shop.rows(f"update runs set {amount} = {amount} - 1")
    assert sum("an amount decreased" in line for line in await _found(shop)) == 2
    await shop.rows("delete from watched")


async def _found(shop: Stack, effects: list[Effect] | None = None) -> list[str]:
    done = [Effect(effect.key) for effect in shop.workshop.effects()] if effects is None else effects
    return await violations(await shop.pool(), done, shop.slack, "C0ATLASOPS1", needs_approval=frozenset({"pay"}))


# The same after a run was stopped by command, continued by its button and edited in its form.
ACTS = [
    ("update audit set act = 'x' || act where act = 'stop'", "update audit set act = 'stop' where act = 'xstop'",
     "to stop"),
    ("update audit set act = 'x' || act where act = 'continue'",
     "update audit set act = 'continue' where act = 'xcontinue'", "to continue"),
    ("update audit set by = 'x' || by where act = 'edit'", "update audit set by = substr(by, 2) where act = 'edit'",
     "acked clicks of"),
    ("update runs set halt_reason = 'outcome_unknown' where state = 'halted'",
     "update runs set halt_reason = 'stopped_by_user' where state = 'halted'", "without an alert"),
]  # fmt: skip


async def test_an_acked_act_without_its_record_is_seen(shop: Stack) -> None:
    """A stop, a continue and an edit that Slack was told are done leave a record each."""
    shop.workshop.think = script(call(("pay", {"what": "rent"})), call(("pay", {"what": "rent"})), say("Paid."))
    await shop.serve()
    thread = await shop.ask("@Atlas pay the rent")
    await shop.card(thread)
    run = await shop.run(thread)
    await shop.command(f"stop {run['id']}")
    await shop.until(thread, "stopped_by_user")
    await shop.press(await shop.halt_card(thread), "continue", thread=thread)
    card = await shop.card(thread, 2)
    edited = {"what": {"value": {"type": "plain_text_input", "value": "half the rent"}}}
    assert (await shop.fill(card, "edit", "edit_arguments", lambda _: edited)).state == "acked"
    await shop.card(thread, 3)
    await shop.command(f"stop {run['id']}")
    await shop.until(thread, "stopped_by_user")
    await shop.check()
    shop.bots[0].kill()
    for broken, undone, said in ACTS:
        await shop.rows(broken)
        found = await _found(shop)
        assert any(said in line for line in found), (broken, found)
        await shop.rows(undone)
        await shop.rows("delete from watched")
    assert await _found(shop) == []
