"""A process that starts on a database that cannot be written: one message and exit code 2, never a traceback."""

from tests.acceptance.stack import Stack


async def test_a_start_on_a_read_only_database_says_why(stack: Stack) -> None:
    """Taking the half-started process apart once broke, and that hid the reason from the operator."""
    name = await stack.value("select current_database()")
    await stack.value(f'alter database "{name}" set default_transaction_read_only = on')
    bot = stack.spawn("serve")
    assert await bot.ended() == 2
    assert "read-only" in bot.log
    assert "Traceback" not in bot.log
