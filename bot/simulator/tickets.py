"""Things Slack hands out that are good once, or for a while: ids, tickets, triggers, URLs.

Decides whether a trigger id, a socket ticket or a response URL may still be used. Deadlines run
on the workspace's clock. Failure it can cause: none of these survive the simulator's own restart.
"""

import secrets
import string
from dataclasses import dataclass

from bot.simulator.clock import Clock

TRIGGER_LIFE_S = 3.0
TICKET_LIFE_S = 30.0
RESPONSE_URL_LIFE_S = 1800.0
RESPONSE_URL_USES = 5
_ALPHABET = string.ascii_uppercase + string.digits


def new_id(prefix: str, length: int = 10) -> str:
    """Return an id in Slack's look: the prefix and random capitals and digits."""
    return prefix + "".join(secrets.choice(_ALPHABET) for _ in range(length))


def new_uuid() -> str:
    """Return a random UUID, the shape of envelope ids and client_msg_id."""
    raw = secrets.token_hex(16)
    return f"{raw[:8]}-{raw[8:12]}-4{raw[13:16]}-a{raw[17:20]}-{raw[20:]}"


@dataclass
class Trigger:
    """What a trigger id stands for: whose act it was, and in which open view."""

    user: str
    view_id: str | None
    born: float
    spent: bool = False


class Triggers:
    """Trigger ids: 3 s, once. Source: Slack, "Handling user interaction", trigger_id."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._issued: dict[str, Trigger] = {}
        self.life_s = TRIGGER_LIFE_S

    def issue(self, user: str, view_id: str | None = None) -> str:
        """Return a fresh trigger id for what this person just did."""
        trigger_id = f"{secrets.randbelow(10**12)}.{secrets.randbelow(10**12)}.{secrets.token_hex(16)}"
        self._issued[trigger_id] = Trigger(user, view_id, self._clock.monotonic())
        return trigger_id

    def exchange(self, trigger_id: str) -> Trigger | str:
        """Spend a trigger id; a string is Slack's error code."""
        trigger = self._issued.get(trigger_id)
        if trigger is None:
            return "invalid_trigger_id"
        if trigger.spent:
            return "exchanged_trigger_id"
        if self._clock.monotonic() - trigger.born > self.life_s:
            return "expired_trigger_id"
        trigger.spent = True
        return trigger


class SocketTickets:
    """Tickets of apps.connections.open: one handshake each, short-lived."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._issued: dict[str, tuple[float, bool]] = {}

    def issue(self, debug_reconnects: bool = False) -> str:
        """Return a ticket; `debug_reconnects` makes its connection live 360 s."""
        ticket = secrets.token_hex(16)
        self._issued[ticket] = (self._clock.monotonic(), debug_reconnects)
        return ticket

    def redeem(self, ticket: str) -> bool | None:
        """Spend a ticket: its debug_reconnects flag, or None when unknown, spent or too old."""
        born, debug = self._issued.pop(ticket, (float("-inf"), False))
        return debug if self._clock.monotonic() - born <= TICKET_LIFE_S else None


@dataclass
class ResponseUrl:
    """Where a response URL leads: channel, person, and the message it may replace."""

    channel: str
    user: str
    born: float
    message_ts: str | None = None
    ephemeral: bool = False
    thread_ts: str | None = None
    uses: int = 0


class ResponseUrls:
    """Response URLs: 5 uses within 30 minutes. Source: Slack, "Handling user interaction"."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._issued: dict[str, ResponseUrl] = {}

    def issue(
        self,
        channel: str,
        user: str,
        message_ts: str | None = None,
        ephemeral: bool = False,
        thread_ts: str | None = None,
    ) -> str:
        """Return the secret path part of a fresh response URL."""
        secret = secrets.token_hex(12)
        self._issued[secret] = ResponseUrl(channel, user, self._clock.monotonic(), message_ts, ephemeral, thread_ts)
        return secret

    def use(self, secret: str) -> ResponseUrl | str:
        """Count one use; a string is the error Slack answers (used_url, expired_url, no_such_url)."""
        target = self._issued.get(secret)
        if target is None:
            return "no_such_url"
        if self._clock.monotonic() - target.born > RESPONSE_URL_LIFE_S:
            return "expired_url"
        if target.uses >= RESPONSE_URL_USES:
            return "used_url"
        target.uses += 1
        return target
