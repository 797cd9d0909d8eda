"""App Home of each person: drawn when it is opened, and again while it may be open and something of it changed.

Decides: whose Home is drawn anew and when. Does not: lay it out (blocks does) or judge who may decide (the engine
does). The failure it can cause: a Home that shows what is no longer so; its buttons are judged like all others, so a
stale one is refused, and it is drawn anew at once.
"""

import json
import logging
from collections.abc import Callable, Sequence

from slack_sdk.web.async_client import AsyncWebClient

from bot.blocks import Surroundings
from bot.blocks.home import GOING, RUNS_SHOWN, home
from bot.lines import Block
from bot.slack import CALL_ERRORS, FailureKind, Installation, read_failure
from core.approvals import Via
from core.engine import Actor, Engine
from core.errors import CouldNotCheck, StoreUnavailable
from core.ports import Clock

log = logging.getLogger("atlas.homes")

# Slack does not say when a Home is closed, so it counts as open for this long after it was opened or used.
OPEN_FOR_S = 600.0
# views.publish is Tier 4, 100 a minute and workspace.
MOST_OPEN = 100
MOST_PUBLISHED_AT_ONCE = 5
# Each look asks who may decide what; many open Homes take turns rather than the process's time.
MOST_LOOKED_AT_ONCE = 10


class Homes:
    """The Homes of one workspace, as this process knows them."""

    def __init__(
        self,
        engine: Engine,
        client: AsyncWebClient,
        installation: Installation,
        clock: Clock,
        *,
        examples: Sequence[str] = (),
        groups: Callable[[], dict[str, str]] = dict,
    ) -> None:
        self.engine = engine
        self.client = client
        self.installation = installation
        self.clock = clock
        self.examples = tuple(examples)
        self.groups = groups
        self._seen: dict[Actor, float] = {}
        self._shown: dict[Actor, str] = {}
        self._paused_until = 0.0
        self._turn = 0

    async def opened(self, team_id: str, user_id: str) -> None:
        """Draw the Home of somebody who looks at it now; the ids come from a verified payload."""
        actor = Actor(team_id, user_id, Via.HOME)
        self._seen.pop(actor, None)
        self._seen[actor] = self.clock.monotonic()
        while len(self._seen) > MOST_OPEN:
            gone = next(iter(self._seen))
            self._forget(gone)
        self._shown.pop(actor, None)
        await self._draw(actor)

    async def run_once(self) -> int:
        """Draw anew the Homes that may be open and show something else by now; return how many were."""
        now = self.clock.monotonic()
        for actor in [actor for actor, seen in self._seen.items() if now - seen > OPEN_FOR_S]:
            self._forget(actor)
        drawn = 0
        actors = list(self._seen)
        for _ in range(min(MOST_LOOKED_AT_ONCE, len(actors))):
            if self.clock.monotonic() < self._paused_until or drawn >= MOST_PUBLISHED_AT_ONCE:
                break
            self._turn = (self._turn + 1) % len(actors)
            drawn += await self._draw(actors[self._turn])
        return drawn

    async def _draw(self, actor: Actor) -> bool:
        """Publish somebody's Home unless it stands there already; say whether it was published."""
        try:
            view = await self.view(actor)
        except (StoreUnavailable, CouldNotCheck) as error:
            log.warning("the Home of %s could not be drawn: %s", actor.user_id, error)
            return False
        looks = json.dumps(view, sort_keys=True)
        if self._shown.get(actor) == looks:
            return False
        try:
            await self.client.views_publish(user_id=actor.user_id, view=view)
        except CALL_ERRORS as error:
            failure = read_failure(error)
            log.warning("the Home of %s was refused: %s", actor.user_id, failure.error)
            if failure.kind is FailureKind.PAUSE:
                self._paused_until = self.clock.monotonic() + failure.pause_s
            elif failure.kind is FailureKind.REFUSED:
                # Such as a person who has left: the same answer would come every time, until they open it anew.
                self._forget(actor)
            return False
        if actor in self._seen:
            self._shown[actor] = looks
        return True

    async def view(self, actor: Actor) -> Block:
        """Return somebody's Home as it is now. Raises: StoreUnavailable, CouldNotCheck."""
        waiting = await self.engine.pending(actor)
        going = await self.engine.runs(actor, limit=RUNS_SHOWN, states=GOING)
        recent = await self.engine.runs(actor, limit=RUNS_SHOWN)
        return home(waiting, going, recent, self.examples, Surroundings(self.installation.url, self.groups()))

    def _forget(self, actor: Actor) -> None:
        self._seen.pop(actor, None)
        self._shown.pop(actor, None)
