"""Where Slack's events go before they are acked (core.ports.Inbox).

Decides: what is a double (the event's id, or the message's place in its channel). Does not: handle anything; the drain
takes it from here through the desk. The failure it can cause: an ack without a stored row loses somebody's message, so
``put`` raises rather than returns when it is not stored.
"""

from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING

from core.ports import InboundEvent
from storage import endings, sql
from storage.database import Database
from storage.rows import clean, encode

if TYPE_CHECKING:
    from storage.database import Pool

# The drain of any replica listens here, and polls as well.
MAIL = "atlas_mail"


class PgInbox:
    """core.ports.Inbox. *hints*: NOTIFY may be used."""

    def __init__(self, pool: "Pool", *, now: Callable[[], datetime] | None = None, hints: bool = True) -> None:
        self._database = Database(pool, now, hints=hints)

    async def put(self, event: InboundEvent) -> bool:
        """Store the event; False when it is there already. Raises StoreUnavailable: do not ack."""
        async with self._database.connection() as connection:
            stored = await sql.put_event.value(
                connection,
                event_id=event.event_id,
                kind=event.kind,
                team_id=event.team_id,
                channel_id=event.channel_id,
                ts=event.ts,
                thread_ts=event.thread_ts,
                user_id=event.user_id,
                text=clean(event.text),
                payload=encode(event.payload),
                now=self._database.now(),
            )
            if stored is None:
                await sql.await_earlier_commits.value(connection)
            elif self._database.hints:
                await sql.hint.value(connection, channel=MAIL, run_id="")
        return stored is not None

    async def put_click(self, event: InboundEvent, thread_ts: str | None) -> bool:
        """Store a click on an example as its presser's message, and owe the line that says so; False when it is there.

        *thread_ts*: the thread that it goes on in; None: the line becomes the parent of a new one. The drain takes it
        once that line stands.
        """
        now = self._database.now()
        async with self._database.transaction() as connection:
            letter_id = await sql.put_click.value(
                connection,
                event_id=event.event_id,
                kind=event.kind,
                team_id=event.team_id,
                channel_id=event.channel_id,
                ts=event.ts,
                user_id=event.user_id,
                text=clean(event.text),
                payload=encode(event.payload),
                now=now,
            )
            if letter_id is None:
                await sql.await_earlier_commits.value(connection)
                return False
            await sql.owe_once.value(
                connection,
                place=f"asked:{letter_id}",
                run_id=None,
                kind="notice",
                ref="",
                channel_id=event.channel_id,
                thread_ts=thread_ts,
                content=encode({"asked": event.text, "by": event.user_id}),
                now=now,
            )
            await endings.hint(connection, endings.OUTBOX, "", allowed=self._database.hints)
        return True
