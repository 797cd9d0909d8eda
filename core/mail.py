"""The inbox drain: what a stored message becomes (a command, a run, news for a live run, a supersede).

Decides: by the conversation rules of DESIGN section 2, one letter at a time, a thread's letters in order. Does not:
receive (the inbox stored it before the ack) or reply by itself (notices go through the outbox). The failure it can
cause: a letter that fails for ever would block its thread; so it is retried with backoff and parked after 5 minutes.
"""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from core.agent import Agent
from core.approvals import Person, Via
from core.conversation import Message, StoredMessage
from core.engine import Actor, Engine
from core.errors import Conflict, CouldNotCheck, StoreUnavailable, words_of
from core.holder import resolved
from core.ports import Alert, Clock, Desk, Directory, Letter, LiveRun, Names, NewRun, Stopped, Voice
from core.results import unanswered
from core.run import Run, RunState, RunView
from core.words import Command, command_of, is_bare_assent

log = logging.getLogger("atlas.mail")

PARK_AFTER_S = 300.0
# An outage of Atlas itself ages letters too: each is tried this often before it is given up.
PARK_AFTER_ATTEMPTS = 3
LEASE_S = 30.0


class Drain:
    """Turns letters into moves. *route*: what new runs keep across deploys (model, tools)."""

    def __init__(
        self,
        engine: Engine,
        desk: Desk,
        directory: Directory,
        voice: Voice,
        clock: Clock,
        names: Names,
        route: dict[str, Any],
    ) -> None:
        self.engine = engine
        self.desk = desk
        self.directory = directory
        self.voice = voice
        self.clock = clock
        self.names = names
        self.route = route

    @property
    def agent(self) -> Agent:
        """Return the agent that new runs get."""
        return self.engine.agent

    async def once(self, limit: int = 20) -> int:
        """Handle the letters that are due, different threads side by side; return how many were taken.

        Raises: StoreUnavailable (what was taken comes back when its lease ends).
        """
        letters = await self.desk.take_mail(limit, LEASE_S)
        await asyncio.gather(*(self._handle(letter) for letter in letters))
        return len(letters)

    async def _handle(self, letter: Letter) -> None:
        try:
            await self._become(letter)
        except StoreUnavailable:
            raise
        except Conflict:
            # Somebody moved first (the run ended, another replica took it): look again at once.
            await self.desk.retry_letter(letter, "raced", 0.1, None)
        except Exception as error:
            known = isinstance(error, CouldNotCheck)
            if not known:
                log.exception("letter %s", letter.id)
            await self._failed(letter, words_of(error), known=known)

    async def _failed(self, letter: Letter, why: str, *, known: bool) -> None:
        if letter.age_s > PARK_AFTER_S and letter.attempts >= PARK_AFTER_ATTEMPTS:
            tries = f"It failed {letter.attempts + 1} times in {round(letter.age_s / 60)} minutes"
            alert = Alert(
                f"letter:{letter.id}",
                "A message could not be handled",
                f"{tries}, last: {why} (message {letter.id})",
                user_id=letter.user_id,
                channel_id=letter.channel_id,
                thread_ts=letter.thread_ts,
            )
            await self.desk.park_letter(letter, why, self.voice.parked(why), alert)
            return
        notice = self.voice.could_not_start(why) if known and letter.attempts == 0 else None
        await self.desk.retry_letter(letter, why, min(2.0**letter.attempts, 30.0), notice)

    async def _become(self, letter: Letter) -> None:
        person = await self.directory.person(letter.team_id, letter.user_id)
        if person.bot or person.deactivated or person.foreign:
            log.info("letter %s is not taken: its writer %s is no member", letter.id, letter.user_id)
            # A guest of another company learns why nothing happens, and nobody else reads along; it names nobody.
            told = person.foreign and not (person.bot or person.deactivated)
            await self.desk.answer_letter(letter, self.voice.not_served() if told else None, private=True)
            return
        command = Command("help") if not letter.text.strip() else command_of(letter.text)
        if command is not None:
            notice = await self._obey(letter, command)
            await self.desk.answer_letter(letter, notice, offers=command.name == "help")
            return
        if letter.kind == "direct":
            text = self.voice.help(self.agent.examples)
            await self.desk.welcome(letter.team_id, letter.user_id, letter.channel_id, text)
        live = await self.desk.live_run(letter)
        if live is None:
            await self._start(letter, person)
        else:
            await self._news(letter, live)

    async def _news(self, letter: Letter, live: LiveRun) -> None:
        run = live.run
        if live.open_suspensions and is_bare_assent(letter.text):
            await self.desk.answer_letter(letter, self.voice.text_never_approves(run, None))
        elif live.open_suspensions and not live.open_outcome and run.state is RunState.SUSPENDED:
            fence = await self.desk.supersede(letter, run.id, self.engine.room.worker_id_if_room())
            if fence is not None:
                self.engine.room.adopt(fence)
        elif not await self.desk.attach(letter, run.id):
            raise Conflict(f"run {run.id} ended meanwhile")

    async def _start(self, letter: Letter, person: Person) -> None:
        scope = await resolved(self.clock, self.agent, person.user, 0.0)
        parent = await self.desk.last_ended(letter)
        messages = follow_up(parent, letter.text) if parent else [StoredMessage(0, _asked(letter.text))]
        new = NewRun(
            id=self.names.run_id(),
            team_id=letter.team_id,
            channel_id=letter.channel_id,
            thread_ts=letter.thread_ts,
            owner=person.user,
            question=letter.text,
            route=self.route,
            limits=self.agent.limits,
            scope=scope,
            messages=tuple(messages),
            parent_id=parent.run.id if parent else None,
        )
        fence = await self.desk.start(letter, new, self.engine.room.worker_id_if_room())
        if fence is not None:
            self.engine.room.adopt(fence)

    # -- commands in a thread ---------------------------------------------------------------------------------

    async def _obey(self, letter: Letter, command: Command) -> str | None:
        actor = Actor(letter.team_id, letter.user_id, Via.MENTION)
        match command.name:
            case "runs":
                return self.voice.runs([run for run in await self.engine.runs(actor) if _shown(letter, run)])
            case "pending":
                waiting = await self.engine.pending(actor)
                return self.voice.pending([(it, run) for it, run in waiting if _shown(letter, run)])
            case "show":
                return await self._show(letter, actor, command.argument)
            case "continue":
                run = await self._meant(letter, actor, command.argument, RunState.HALTED)
                if run is None:
                    return self.voice.not_found() if command.argument else self.voice.nothing_to_continue()
                continued = await self.engine.continue_run(actor, run.id)
                here = continued.run is not None and _here(letter, continued.run)
                return self.voice.continued(continued.run, here=here) if continued.run else self.voice.not_found()
            case "stop":
                run = await self._meant(letter, actor, command.argument, RunState.RUNNING, RunState.SUSPENDED)
                if run is None:
                    return self.voice.not_found() if command.argument else self.voice.stopped(Stopped("ended", None))
                return self.voice.stopped(await self.engine.stop_run(actor, run.id), here=_here(letter, run))
            case _:
                return self.voice.help(self.agent.examples)

    async def _show(self, letter: Letter, actor: Actor, run_id: str) -> str:
        run = await self._meant(letter, actor, run_id)
        view = await self.engine.show(actor, run.id) if run else None
        if view is None:
            return self.voice.not_found() if run_id else self.voice.runs([])
        return self.voice.show(view) if _shown(letter, view.run) else self.voice.elsewhere(view.run.id)

    async def _meant(self, letter: Letter, actor: Actor, run_id: str, *states: RunState) -> Run | None:
        """Return the run that a command means: the named one, else the person's newest of this thread, else (where
        nothing but the command was written) their newest of all, in one of *states*."""
        if run_id:
            return await self.desk.run(run_id)
        mine: Sequence[Run] = await self.desk.thread_runs(
            letter.team_id, letter.channel_id, letter.thread_ts, letter.user_id
        )
        if not mine and letter.ts == letter.thread_ts:
            mine = await self.desk.runs(
                team_id=actor.team_id, user_id=actor.user_id, limit=1, states=[state.value for state in states]
            )
        return next((run for run in mine if not states or run.state in states), None)


def _here(letter: Letter, run: Run) -> bool:
    return (letter.channel_id, letter.thread_ts) == (run.channel_id, run.thread_ts)


def _shown(letter: Letter, run: Run) -> bool:
    """Say whether a run may be told of where the letter stands: a channel reads along, so only of its own runs."""
    return letter.kind == "direct" or letter.channel_id == run.channel_id


def follow_up(parent: RunView, text: str) -> list[StoredMessage]:
    """Return the first messages of a follow-up run: the parent's conversation, every call with a result, the text.

    Seqs stay the parent's, so that results keep answering their calls.
    """
    messages = list(parent.messages)
    for call, result in unanswered(parent):
        answer = Message(role="tool", text=result, call_id=call.call.id)
        messages.append(StoredMessage(len(messages), answer, call.key))
    messages.append(StoredMessage(len(messages), _asked(text)))
    return [replace(stored, seq=seq) for seq, stored in enumerate(messages)]


def _asked(text: str) -> Message:
    return Message(role="user", text=text)
