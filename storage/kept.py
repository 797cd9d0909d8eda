"""Conversations kept in memory by the process that wrote or read them, so that a resumption does not read them again.

Decides: which to keep, within a bound. Does not: hold anything that matters: messages are append-only and never change
once committed, so what is kept is a beginning of the conversation, and a load reads the rest, the claim and everything
else from PostgreSQL and counts both against the run's row. The failure it can cause: a message kept before its commit
took place would be shown to a model although it is not stored; so only what was read, or was told done, is kept.
"""

from collections import OrderedDict
from collections.abc import Sequence

from core.conversation import StoredMessage, sizeof

MOST_BYTES = 64_000_000


class KeptConversations:
    """Conversations by run, the least used dropped first beyond *most* bytes of text."""

    def __init__(self, most: int = MOST_BYTES) -> None:
        self._most = most
        self._size = 0
        self._kept: OrderedDict[str, tuple[list[StoredMessage], int]] = OrderedDict()

    def of(self, run_id: str) -> Sequence[StoredMessage]:
        """Return the beginning of a run's conversation that is kept; empty: none."""
        kept = self._kept.get(run_id)
        return kept[0] if kept is not None else ()

    def read(self, run_id: str, messages: Sequence[StoredMessage]) -> None:
        """Keep a whole conversation that was just read."""
        self.add(run_id, messages[len(self.of(run_id)) :])

    def add(self, run_id: str, messages: Sequence[StoredMessage]) -> None:
        """Keep committed messages, if they go on where what is kept ends."""
        kept, size = self._kept.pop(run_id, ([], 0))
        if messages and messages[0].seq == len(kept):
            more = sum([sizeof(stored.message) for stored in messages])
            kept.extend(messages)
            size += more
            self._size += more
        if kept:
            self._kept[run_id] = (kept, size)
        while self._size > self._most and self._kept:
            _, (_, dropped) = self._kept.popitem(last=False)
            self._size -= dropped

    def drop(self, run_id: str) -> None:
        """Forget a run that has ended or is given away."""
        kept = self._kept.pop(run_id, None)
        if kept is not None:
            self._size -= kept[1]
