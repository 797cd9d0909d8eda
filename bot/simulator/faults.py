"""Faults that a test asks for: what goes wrong, where, and how many times.

Decides which call or frame is spoiled; the Web API and the sockets carry it out. A fault is used
up in call order. Failure it can cause: a fault left behind spoils the next test (`clear`).
"""

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from bot.simulator.journal import matches

FaultKind = Literal["store_then_drop", "drop_before", "ratelimited", "http_error", "delay", "error", "store_then_error"]
KINDS: tuple[FaultKind, ...] = (
    "store_then_drop",
    "drop_before",
    "ratelimited",
    "http_error",
    "delay",
    "error",
    "store_then_error",
)


@dataclass
class MethodFault:
    """One spoiled answer of a Web API method (`*` means any, `response_url` those posts).

    store_then_drop: the method runs, the connection closes without an answer.
    drop_before: the connection closes, nothing ran.
    ratelimited: 429 with Retry-After `retry_after` seconds.
    http_error: HTTP `status`, nothing ran.
    delay: the method runs after `seconds` (real time).
    error: `{"ok": false, "error": error}`, nothing ran.
    store_then_error: the method runs, then that error (or HTTP `status` when error is empty).
    """

    kind: FaultKind
    method: str = "*"
    times: int | None = 1
    skip: int = 0
    retry_after: int = 1
    status: int = 500
    seconds: float = 0.0
    error: str = "internal_error"
    where: dict[str, Any] = field(default_factory=dict)


@dataclass
class SocketFaults:
    """How many of the next handshakes, acks and envelopes go wrong."""

    refuse_tickets: int = 0
    refuse_status: int = 409
    forget_acks: int = 0
    duplicate: int = 0
    withhold: int = 0
    reorder: int = 0


class Faults:
    """The faults that wait to happen."""

    def __init__(self) -> None:
        self._methods: list[MethodFault] = []
        self.sockets = SocketFaults()

    def add(self, kind: FaultKind, method: str = "*", times: int | None = 1, **settings: Any) -> MethodFault:
        """Spoil the next `times` calls (None: until cleared) of `method`; see `MethodFault`.

        Raises:
            ValueError: an unknown kind or setting.
        """
        if kind not in KINDS:
            raise ValueError(f"unknown fault kind {kind!r}; known: {', '.join(KINDS)}")
        try:
            fault = MethodFault(kind, method, times, **settings)
        except TypeError as error:
            raise ValueError(str(error)) from error
        self._methods.append(fault)
        return fault

    def take(self, method: str, arguments: dict[str, Any]) -> MethodFault | None:
        """Return the fault for this call, using it up, or None."""
        for fault in self._methods:
            if fault.method not in ("*", method) or not matches(arguments, fault.where):
                continue
            if fault.skip > 0:
                fault.skip -= 1
                continue
            if fault.times is not None:
                fault.times -= 1
                if fault.times <= 0:
                    self._methods.remove(fault)
            return fault
        return None

    def take_socket(self, name: str) -> bool:
        """Use up one of the named socket faults; False when none is left."""
        left = getattr(self.sockets, name)
        if left <= 0:
            return False
        setattr(self.sockets, name, left - 1)
        return True

    def clear(self) -> None:
        """Forget every fault that has not happened yet."""
        self._methods.clear()
        self.sockets = SocketFaults()

    def listing(self) -> dict[str, Any]:
        """Return what still waits to happen, as JSON."""
        return {
            "methods": [asdict(fault) for fault in self._methods],
            "sockets": asdict(self.sockets),
        }
