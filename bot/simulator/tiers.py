"""Slack's rate limits: tiers per method, about one post a second per channel.

Decides whether a call is answered 429 and after how many seconds to come back. Off unless asked
for. Failure it can cause: buckets start full, so the first minute allows a burst, as in Slack.
Source: Slack, "Rate limits"; the tier of each method as in java-slack-sdk's table.
"""

import math
from dataclasses import dataclass

from bot.simulator.clock import Clock

PER_MINUTE = {1: 1, 2: 20, 3: 50, 4: 100}
# calls a minute where Slack names a number of its own
SPECIAL = {"assistant.threads.setStatus": 600, "auth.test": 300, "chat.postMessage": 300}
POST_BURST = 3
METHOD_TIERS = {
    "apps.connections.open": 3, "chat.update": 3, "chat.delete": 3, "chat.postEphemeral": 4,
    "chat.getPermalink": 4, "conversations.replies": 3, "conversations.history": 3,
    "conversations.open": 3, "conversations.info": 3, "conversations.join": 3,
    "conversations.list": 2, "conversations.members": 4, "users.info": 4, "users.list": 2,
    "usergroups.list": 2, "usergroups.users.list": 2, "views.open": 4, "views.push": 4,
    "views.update": 4, "views.publish": 4, "reactions.add": 3, "reactions.remove": 2,
    "chat.startStream": 2, "chat.appendStream": 4, "chat.stopStream": 2, "team.info": 3,
    "bots.info": 3, "agents.sessions.setStatus": 3, "assistant.threads.setTitle": 3,
    "assistant.threads.setSuggestedPrompts": 3,
}  # fmt: skip


@dataclass
class _Bucket:
    capacity: float
    per_second: float
    level: float
    at: float

    def wait(self, now: float) -> float:
        """Refill; return the seconds until one call fits (0: it fits now)."""
        self.level = min(self.capacity, self.level + (now - self.at) * self.per_second)
        self.at = now
        return 0.0 if self.level >= 1 else (1 - self.level) / self.per_second


class RateTiers:
    """Token buckets per method and, for posts, per channel."""

    def __init__(self, clock: Clock, enabled: bool = False) -> None:
        self._clock = clock
        self.enabled = enabled
        self._buckets: dict[tuple[str, str], _Bucket] = {}

    def refuse(self, method: str, channel: str) -> int | None:
        """Count one call; return Retry-After in seconds when it is one too many."""
        if not self.enabled:
            return None
        per_minute = SPECIAL.get(method) or PER_MINUTE[METHOD_TIERS.get(method, 3)]
        wanted = [self._bucket((method, ""), per_minute, per_minute / 60)]
        if method == "chat.postMessage":
            wanted.append(self._bucket((method, channel), POST_BURST, 1.0))
        if method == "response_url":
            wanted = [self._bucket((method, channel), POST_BURST, 1.0)]
        now = self._clock.monotonic()
        wait = max(bucket.wait(now) for bucket in wanted)
        if wait > 0:
            return max(1, math.ceil(wait))
        for bucket in wanted:
            bucket.level -= 1
        return None

    def _bucket(self, key: tuple[str, str], capacity: float, per_second: float) -> _Bucket:
        if key not in self._buckets:
            now = self._clock.monotonic()
            self._buckets[key] = _Bucket(capacity, per_second, capacity, now)
        return self._buckets[key]
