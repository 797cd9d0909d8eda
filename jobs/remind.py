"""Remind: tell those who can still decide, once, that a card is about to expire.

Decides: how early (a third of the suspension's time, at most 5 minutes). Does not: know whom to mention or in which
words (delivery renders that from the rows as they are then, and sends nothing for what was decided meanwhile).
The failure it can cause: none that matters twice: a reminder is owed once per copy of the card, whoever runs this.
"""

from collections.abc import Sequence
from typing import Protocol

BATCH = 50
AT_MOST_S = 300.0


class Reminders(Protocol):
    """The store's side."""

    async def to_remind(self, at_most_s: float, limit: int) -> Sequence[str]:
        """List ids of open, unreminded suspensions of which a third of the time, at most *at_most_s*, is left."""
        ...

    async def remind(self, suspension_id: str) -> int:
        """Owe a reminder beside each copy of the card, once; return how many were owed now."""
        ...


class Remind:
    """The job."""

    def __init__(self, reminders: Reminders) -> None:
        self.reminders = reminders

    async def run_once(self) -> int:
        """Remind of everything that is due; return how many reminders were owed."""
        total = 0
        while True:
            due = await self.reminders.to_remind(AT_MOST_S, BATCH)
            owed = 0
            for suspension_id in due:
                owed += await self.reminders.remind(suspension_id)
            total += owed
            # Owing none of what is due: it was decided, or another replica was first. The next time will tell.
            if len(due) < BATCH or owed == 0:
                return total
