"""A process that starts on a database that cannot be written: it says so and waits, never a traceback."""

from tests.acceptance.stack import Stack
from tests.acceptance.waiting import wait_until


async def test_a_start_on_a_read_only_database_says_why_and_waits(stack: Stack) -> None:
    """As on a standby that is about to be promoted. Taking the half-started process apart once broke, and that hid the
    reason from the operator."""
    name = await stack.value("select current_database()")
    await stack.value(f'alter database "{name}" set default_transaction_read_only = on')
    bot = stack.spawn("serve")
    await wait_until(lambda: "waits for its database" in bot.log and "read-only" in bot.log, "it says why it waits")
    # By a session that was there before: it may still write.
    await stack.value(f'alter database "{name}" reset default_transaction_read_only')
    await wait_until(lambda: " serves " in bot.log, "it serves")
    assert "Traceback" not in bot.log
