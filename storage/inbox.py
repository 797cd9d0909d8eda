"""Where Slack's events go before they are acked (core.ports.Inbox).

Decides: what is a double (the event's id, or the message's place in its channel). Does not: handle anything; the drain
takes it from here through the desk. The failure it can cause: an ack without a stored row loses somebody's message, so
``put`` raises rather than returns when it is not stored.
"""

from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING

from core.ports import InboundEvent
from storage import sql
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
            if stored is not None and self._database.hints:
                await sql.hint.value(connection, channel=MAIL, run_id="")
        return stored is not None
