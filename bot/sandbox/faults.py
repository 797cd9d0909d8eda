"""Faults that can be asked for: which request goes wrong, how, and how many times.

Decides which waiting fault a request meets; the service carries it out. The failure it can cause:
a fault without ``times`` stays until it is cleared.
"""

from dataclasses import dataclass, field
from typing import Any, Final

from bot.sandbox.books import Rejected
from bot.sandbox.world import Json

FAULT_KINDS: Final[dict[str, str]] = {
    "fail": "answers 503; nothing is done",
    "hang": "nothing is done and no answer ever comes",
    "slow": "waits, then does it even if the caller has gone, then answers",
    "answer_lost": "does it, then cuts the connection instead of answering",
    "hang_after_commit": "does it, and never answers",
    "crash_after_commit": "does it, then the service dies without an answer and comes back later",
    "fail_directory": "fail, for every question about people",
}

_SECONDS: Final = {"slow": 2.0, "crash_after_commit": 1.0}
_PEOPLE_ROUTE: Final = "GET /people/{email}"


@dataclass
class Fault:
    """One fault in waiting.

    route is "METHOD /path/{pattern}" as listed by GET /admin/faults, a path pattern alone for any
    method, or "*" for everything but /admin. times None means until cleared. seconds: how long
    slow waits, how long a crashed service stays away, how long a hang lasts before the connection
    is cut (None: until the caller gives up).
    """

    kind: str
    route: str = "*"
    times: int | None = 1
    seconds: float | None = None
    met: int = field(default=0)

    @classmethod
    def parse(cls, body: Json, routes: list[str]) -> "Fault":
        """Read {kind, route, times, seconds}; rejects unknown kinds, routes and fields."""
        kind: Any = body.get("kind")
        if kind not in FAULT_KINDS:
            raise Rejected(422, "unknown_fault", f"kind is one of {', '.join(FAULT_KINDS)}.")
        unknown = sorted(set(body) - {"kind", "route", "times", "seconds"})
        if unknown:
            raise Rejected(422, "invalid_field", f"Unknown field {', '.join(unknown)}.")
        route: Any = body.get("route") or "*"
        if kind == "fail_directory":
            kind, route = "fail", _PEOPLE_ROUTE
        known = {*routes, *(name.partition(" ")[2] for name in routes), "*"}
        if route not in known:
            raise Rejected(422, "unknown_route", f"route is one of {', '.join(sorted(known))}.")
        times: Any = body.get("times", 1)
        if times is not None and (not isinstance(times, int) or isinstance(times, bool)):
            raise Rejected(422, "invalid_field", "times is a whole number or null.")
        if times is not None and times < 1:
            raise Rejected(422, "invalid_field", "times is at least 1.")
        seconds: Any = body.get("seconds", _SECONDS.get(kind))
        if seconds is not None and (not isinstance(seconds, int | float) or isinstance(seconds, bool) or seconds < 0):
            raise Rejected(422, "invalid_field", "seconds is a number, 0 or more, or null.")
        return cls(kind=kind, route=route, times=times, seconds=seconds)

    def shown(self) -> Json:
        """Return the fault as GET /admin/faults shows it; met counts the requests it hit."""
        return {
            "kind": self.kind,
            "route": self.route,
            "times": self.times,
            "seconds": self.seconds,
            "met": self.met,
        }


class Faults:
    """The faults in waiting, oldest first."""

    def __init__(self) -> None:
        self._waiting: list[Fault] = []

    def add(self, fault: Fault) -> None:
        """Queue a fault behind those already waiting."""
        self._waiting.append(fault)

    def clear(self) -> None:
        """Let everything work again from now on."""
        self._waiting.clear()

    def shown(self) -> list[Json]:
        """Return the faults still in waiting."""
        return [fault.shown() for fault in self._waiting]

    def meet(self, route: str) -> Fault | None:
        """Take the oldest fault for this "METHOD /pattern" and use up one of its times."""
        path = route.partition(" ")[2]
        for fault in self._waiting:
            if fault.route in ("*", route, path):
                fault.met += 1
                if fault.times is not None and fault.met >= fault.times:
                    self._waiting.remove(fault)
                return fault
        return None
