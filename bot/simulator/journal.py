"""The record of everything that crossed the simulator's edge.

Every request, answer, envelope, ack, socket and interaction becomes one record, in memory (the
last `KEPT` of them) and, when a path is given, one JSON line in a file. Tokens are never written.
Failure it can cause: a reader that lags by more than `KEPT` records misses the oldest ones.
"""

import asyncio
import json
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from bot.simulator.clock import Clock

KEPT = 200_000
Record = dict[str, Any]


def matches(record: object, pattern: object) -> bool:
    """Return whether every key and value of `pattern` is found in `record`, at any depth."""
    if isinstance(pattern, dict):
        return isinstance(record, dict) and all(
            key in record and matches(record[key], value) for key, value in pattern.items()
        )
    return record == pattern


class Journal:
    """Append-only list of records, each with a gap-free `seq` from 1."""

    def __init__(self, clock: Clock, path: Path | None = None) -> None:
        self._clock = clock
        self._records: deque[Record] = deque(maxlen=KEPT)
        self._last = 0
        self._waiting: set[asyncio.Future[None]] = set()
        self._file: IO[str] | None = path.open("a", encoding="utf-8") if path else None

    @property
    def last(self) -> int:
        """The `seq` of the newest record, 0 when there is none."""
        return self._last

    @property
    def records(self) -> list[Record]:
        """All kept records, oldest first."""
        return list(self._records)

    def write(self, kind: str, **fields: Any) -> Record:
        """Append a record of this kind; `t` is monotonic seconds, `at` seconds since the epoch."""
        self._last += 1
        record: Record = {
            "seq": self._last,
            "t": self._clock.monotonic(),
            "at": self._clock.now(),
            "kind": kind,
            **fields,
        }
        self._records.append(record)
        if self._file:
            self._file.write(json.dumps(record, default=str) + "\n")
            self._file.flush()
        for waiter in list(self._waiting):
            if not waiter.done():
                waiter.set_result(None)
        return record

    def since(self, seq: int) -> list[Record]:
        """Return the kept records whose `seq` is greater than the given one, oldest first."""
        fresh = min(len(self._records), max(0, self._last - seq))
        start = len(self._records) - fresh
        return [self._records[index] for index in range(start, len(self._records))]

    def find(self, pattern: Record, since: int = 0) -> list[Record]:
        """Return the records after `since` that contain `pattern`."""
        return [record for record in self.since(since) if matches(record, pattern)]

    async def changed(self, timeout: float) -> None:
        """Return at the next record, or after `timeout` real seconds."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(waiter)
        try:
            await asyncio.wait([waiter], timeout=timeout)
        finally:
            self._waiting.discard(waiter)

    async def wait(self, pattern: Record, since: int = 0, timeout: float = 10.0) -> Record | None:
        """Return the first record after `since` that contains `pattern`, None after `timeout`."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        seen = since
        while True:
            for record in self.since(seen):
                seen = record["seq"]
                if matches(record, pattern):
                    return record
            left = deadline - loop.time()
            if left <= 0:
                return None
            await self.changed(left)

    def wait_until(self, predicate: Callable[[], Any]) -> Callable[[float], Any]:
        """Bind `predicate` to this journal: the result awaits its truth, checked at every record."""

        async def wait(timeout: float) -> Any:
            loop = asyncio.get_running_loop()
            deadline = loop.time() + timeout
            while not (value := predicate()):
                left = deadline - loop.time()
                if left <= 0:
                    raise TimeoutError(f"not within {timeout} s: {predicate}")
                # 50 ms: the predicate may read things that no record announces
                await self.changed(min(left, 0.05))
            return value

        return wait

    def close(self) -> None:
        """Close the file; memory stays readable."""
        if self._file:
            self._file.close()
            self._file = None
