"""Let events come late in a process of a jitter run; copied by ``run.py`` as the run's ``sitecustomize``.

It decides, in every Python process of the run, which readable or writable file and which child's exit its event loops
hear of a moment late; such moments happen anyway, on a busy machine, once in many thousand tests. It works on asyncio's
own loop, so while it is on there is no uvloop here. It also writes down which processes a test stops itself, for
``stopper.py``. The failure it can cause: it replaces private methods of asyncio; a version that has them no more fails
at start, loudly.
"""

import asyncio
import json
import random
import signal
import sys
import time
from asyncio.base_subprocess import BaseSubprocessTransport
from asyncio.selector_events import BaseSelectorEventLoop
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
EVENT_S, EVENT_AT_MOST_S = 0.12, 0.6
EXIT_CHANCE, EXIT_AT_MOST_S = 0.4, 1.5
TURN_S = 0.002

_Method = Callable[..., Any]


def _replace(owner: type, name: str, made_of: Callable[[_Method], _Method]) -> None:
    setattr(owner, name, made_of(getattr(owner, name)))


def _late_events(chance: random.Random, late: float) -> None:
    def made_of(real: _Method) -> _Method:
        def process(loop: Any, events: list[tuple[Any, int]]) -> None:
            held: dict[int, float] = loop.__dict__.setdefault("_jitter_held", {})
            now = time.monotonic()
            ready = []
            for key, mask in events:
                # Not the loop's own waker: it would hold back every signal and thread at once.
                waker = loop._ssock is not None and key.fd == loop._ssock.fileno()
                if key.fd not in held and not waker and chance.random() < late:
                    held[key.fd] = now + min(EVENT_AT_MOST_S, chance.expovariate(1 / EVENT_S))
                if held.get(key.fd, 0.0) <= now:
                    held.pop(key.fd, None)
                    ready.append((key, mask))
            if events and not ready:
                time.sleep(TURN_S)  # what is held back is ready all the time
            real(loop, ready)

        return process

    _replace(BaseSelectorEventLoop, "_process_events", made_of)


def _late_exits(chance: random.Random) -> None:
    def made_of(real: _Method) -> _Method:
        def exited(transport: Any, code: int) -> None:
            loop: asyncio.AbstractEventLoop = transport._loop
            if chance.random() < EXIT_CHANCE:
                loop.call_later(chance.random() * EXIT_AT_MOST_S, real, transport, code)
            else:
                real(transport, code)

        return exited

    _replace(BaseSubprocessTransport, "_process_exited", made_of)


def _note_stops(stopped: Path) -> None:
    def note(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "os.kill" and arguments[1] in {signal.SIGSTOP, signal.SIGCONT}:
            with suppress(FileNotFoundError):  # the run is over
                noted = stopped / str(arguments[0])
                noted.touch() if arguments[1] == signal.SIGSTOP else noted.unlink()

    sys.addaudithook(note)


def _begin() -> None:
    told = json.loads((HERE / "chances.json").read_text("utf-8"))
    _note_stops(HERE / "stopped")
    if told["late"]:
        chance = random.Random(f"{told['seed']} {sys.orig_argv}")
        modules: dict[str, Any] = sys.modules
        modules["uvloop"] = None  # an import of it fails, as where it is not installed
        _late_events(chance, told["late"])
        _late_exits(chance)


if __name__ == "sitecustomize":
    _begin()
