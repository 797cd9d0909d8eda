"""Reap orphans: hand back the runs whose worker is gone.

Decides: when a lapse may be believed. Does not: call a tool, reconcile or resume (the process that claims the run
does, before its loop goes on). Safe in every replica: each statement re-checks what it takes.

The failure it can cause: a host that is only cut off is taken for dead, and its runs go on elsewhere. The fence then
stops the old worker at its next write; at most it resends the one request that was in flight, with the same key. This
is why a lease is 90 s, and why this process must itself have had the database for three beats, and for ten after it
was away.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from jobs.heartbeat import Heartbeat

BATCH = 20


@dataclass(frozen=True, slots=True)
class Report:
    """What one round did: *reaped* run ids (handed back or, with their recoveries used up, failed)."""

    reaped: tuple[str, ...]


class Orphans(Protocol):
    """The store's side of reaping."""

    async def reap(self, *, lease_s: float, quick: bool, since: datetime, limit: int) -> Sequence[str]:
        """Hand back up to *limit* orphans, oldest first; return their ids. Nobody who has beaten since *since* is dead.

        *quick*: also those of killed processes on this evidence: their session lock is free and the last beat is over
        4 s old."""
        ...


class ReapOrphans:
    """The job. *lease_s*: seconds without a beat after which a worker counts as gone."""

    def __init__(self, orphans: Orphans, heartbeat: Heartbeat, lease_s: float) -> None:
        self.orphans = orphans
        self.heartbeat = heartbeat
        self.lease_s = lease_s

    async def run_once(self, *, quick: bool = False) -> Report:
        """Reap until nothing is left; nothing at all while this process cannot judge."""
        reaped: list[str] = []
        while self.heartbeat.may_judge if quick else self.heartbeat.may_judge_leases:
            since = self.heartbeat.since
            batch = await self.orphans.reap(lease_s=self.lease_s, quick=quick, since=since, limit=BATCH)
            reaped += batch
            if len(batch) < BATCH:
                break
        return Report(tuple(reaped))
