"""The loop: take a claimed run from its next act to its next stop.

Decides: when the model is called, when a run halts, when it answers. Does not: claim (the worker does) or decide who
may do what. The failure it can cause: an act computed from a stale view; so news reloads, and every final move names
the news that it saw.
"""

import asyncio
import logging
import unicodedata
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from typing import assert_never

from core.agent import Agent
from core.budget import MOST_OUTPUT_TOKENS, Allowance, allow, money, worst_case
from core.calls import Calls
from core.conversation import CallKey, Message, Model, ModelReply, error_text, sizeof, unkeepable
from core.errors import ClaimLost, ModelError, ModelRefused, ModelUnavailable, NewsArrived, words_of
from core.foreign import asked
from core.holder import Holder
from core.leaving import heard
from core.next_act import (
    Act,
    Answer,
    Believe,
    CallModel,
    Conclude,
    Consider,
    Execute,
    Reconcile,
    Refresh,
    Stop,
    Supersede,
    Wait,
    last_turn,
    model_was_perhaps_asked,
    next_act,
)
from core.ports import Alert, Batch, Clock, Closing, Directory, Fence, Names, TraceEntry, WorkerStore
from core.recover import Recover
from core.results import unanswered
from core.resume import Resume
from core.run import FailReason, HaltReason, Run

log = logging.getLogger("atlas.loop")

MODEL_TIMEOUT_S = 180.0
MODEL_TRIES = 5
# A reply larger than this cannot be stored, shown or paid for again.
REPLY_LIMIT = 4_000_000
NOT_EXECUTED_BUDGET = "not_executed_budget"
# Reaped more often than this many recoveries: one last, model-free pass.
RECOVERIES = 2


class Loop:
    """One claimed run, from claim to stop. ``run`` returns when the claim is given up, whatever the reason."""

    def __init__(
        self,
        fence: Fence,
        store: WorkerStore,
        agent: Agent,
        model: Model,
        directory: Directory,
        clock: Clock,
        names: Names,
        *,
        lifetime: timedelta,
        operators: frozenset[str] = frozenset(),
        model_for: Callable[[Run], Model] | None = None,
    ) -> None:
        self.holder = Holder(fence, store, clock)
        self.agent = agent
        self.model = model
        self.model_for = model_for
        self.specs = agent.specs()
        self.lifetime = lifetime
        self.calls = Calls(self.holder, agent, directory, names, lifetime)
        self.resume = Resume(self.calls, agent, operators)
        self.recover = Recover(self.calls, agent)
        self._assumed: Allowance | None = None

    @property
    def draining(self) -> bool:
        """Say whether nothing new may start: the process is leaving."""
        return self.holder.draining

    def drain(self) -> None:
        """Start nothing new: give the claim back at the next safe point."""
        self.holder.draining = True

    async def run(self) -> None:
        """Work until the run waits, ends, halts, or the claim is lost or given back.

        Raises: CancelledError after giving the claim back (shutdown).
        """
        try:
            await self.holder.reload(late=True)
            await self._catch_up()
            if self.model_for is not None:
                self.model = self.model_for(self.holder.run)  # a resumed run keeps its route across deploys
            await self._charge_crash()
            if self.holder.run.recovery_attempts > RECOVERIES:
                await self.recover.close_out()
                return
            await self._until_stop()
        except ClaimLost:
            log.info("run %s: its claim is lost; what was not stored is dropped", self.holder.fence.run_id)
        except asyncio.CancelledError:
            heard()
            await self._give_back()
            raise
        except Exception as error:
            log.exception("run %s: a defect", self.holder.fence.run_id)
            try:
                await self._defect(error)
            except asyncio.CancelledError:
                heard()
                await self._let_go()
                raise

    async def _catch_up(self) -> None:
        """Read the rows again if they changed, or if more of the conversation is wanted than the turn of an approved
        call: the checks, the effect and its record need no more."""
        holder = self.holder
        if holder.unread and not holder.stale:
            alone = not holder.run.charge_due and holder.run.recovery_attempts <= RECOVERIES
            if alone and isinstance(next_act(holder.view, self.lifetime), Execute):
                return
            holder.stale = True
        if holder.stale:
            await holder.reload()

    async def _until_stop(self) -> None:
        while True:
            if self.draining:
                await self._give_back()
                return
            await self._catch_up()
            act = next_act(self.holder.view, self.lifetime)
            try:
                if await self._perform(act):
                    return
            except NewsArrived:
                self.holder.stale = True

    async def _perform(self, act: Act) -> bool:
        """Do one act. True: the run is not ours any more."""
        match act:
            case CallModel():
                return await self._model_turn()
            case Consider():
                await self.calls.consider(act.calls)
            case Execute():
                await self.resume.execute(act)
            case Refresh():
                await self.resume.refresh(act)
            case Reconcile():
                await self.recover.reconcile(act)
            case Believe():
                await self.recover.believe(act)
            case Conclude():
                self.resume.conclude(act)
            case Wait():
                seen = self.holder.run.news
                batch = self.holder.batch(doing="waiting for a decision")
                await self.holder.commit(batch, lambda b: self.holder.store.wait(self.holder.fence, b, seen))
                return True
            case Supersede():
                await self._supersede()
            case Stop():
                await self.recover.stop(act.calls)
                return True
            case Answer():
                return await self._answer(act.text, None)
            case _:
                assert_never(act)
        return self.holder.ended

    async def _supersede(self) -> None:
        """The owner wrote a new instruction while a sibling was executing: what still waits is replaced by it."""
        holder = self.holder
        seen = holder.run.news
        await holder.commit(holder.batch(), lambda b: holder.store.supersede_open(holder.fence, b, seen))
        holder.stale = True

    # -- the model's turn -------------------------------------------------------------------------------------

    async def _model_turn(self) -> bool:
        holder = self.holder
        if self._calls_exceeded():
            return await self._halt(HaltReason.BUDGET_TOOL_CALLS)
        holder.take_mail()
        reply = await self._reply()
        if isinstance(reply, HaltReason):
            return await self._halt(reply)
        if isinstance(reply, ModelError):
            return await self._halt(HaltReason.MODEL_UNAVAILABLE, words_of(reply))
        holder.append(_said(reply))
        holder.owe(steps=1, tool_calls=self._refuse_calls_over_the_limit(reply))
        if not reply.calls:
            return await self._answer(reply.text, self._doing(reply))
        await holder.step(holder.batch(doing=self._doing(reply)))
        return False

    def _calls_exceeded(self) -> bool:
        """Say whether the last turn had calls over the limit, and no continue has raised it since."""
        run = self.holder.run
        turn, _ = last_turn(self.holder.messages)
        if turn is None or run.tool_calls < run.limits.max_tool_calls:
            return False
        results = self.holder.messages[turn.seq + 1 :]
        mark = f'"error": "{NOT_EXECUTED_BUDGET}"'
        return any(stored.message.role == "tool" and mark in stored.message.text[:60] for stored in results)

    def _refuse_calls_over_the_limit(self, reply: ModelReply) -> int:
        """Give the calls over the limit their result in the same commit; return how many calls count."""
        run, holder = self.holder.run, self.holder
        room = max(0, run.limits.max_tool_calls - run.tool_calls)
        seq = len(holder.messages) - 1
        for position, call in enumerate(reply.calls[room:], start=room):
            text = error_text(NOT_EXECUTED_BUDGET, "the run's limit of tool calls is used up; nothing was done")
            holder.append(Message(role="tool", text=text, call_id=call.id), CallKey(seq, position))
        return min(len(reply.calls), room)

    def _doing(self, reply: ModelReply) -> str:
        tool = self.agent.tool(reply.calls[0].tool) if reply.calls else None
        return (tool.doing or f"running {tool.name}") if tool else "thinking"

    async def _reply(self) -> ModelReply | HaltReason | ModelError:
        """Ask the model within the budget, with retries; return its reply, or why there is none.

        What a call that gave nothing cost is committed at once: neither a crash nor a shutdown may forget it.
        """
        holder = self.holder
        messages = holder.spoken()
        delay, empty = 1.0, 0
        failed: ModelError = ModelRefused("the model returned nothing")
        for attempt in range(1, MODEL_TRIES + 1):
            try:
                allowance = allow(self.model, holder.run_now, messages, self.specs)
            except ModelRefused as error:
                return error
            if not isinstance(allowance, Allowance):
                return allowance
            begun = holder.clock.monotonic()
            try:
                reply = await self._ask_model(messages, allowance)
            except ModelUnavailable as error:
                holder.note("model unavailable", words=words_of(error), attempt=attempt)
                if error.charged:
                    await self._charge(spend_usd=self._assume(allowance))
                failed = error
                if attempt < MODEL_TRIES:
                    await holder.clock.sleep(min(max(error.retry_after_s or delay, 0.0), 60.0))
                    delay *= 2
                continue
            except ModelError as error:
                holder.note("model refused", words=words_of(error))
                return error
            cost = money(reply.spend_usd)
            took = round((holder.clock.monotonic() - begun) * 1000)
            holder.note("model", ms=took, spend_usd=cost, calls=[call.tool for call in reply.calls])
            if reply.calls or _visible(reply.text):
                holder.owe(call_usd=cost)
                return reply
            await self._charge(call_usd=cost)
            empty += 1
            if empty == 2:
                return ModelRefused("the model returned nothing, twice")
        return failed

    async def _charge(self, *, spend_usd: Decimal = Decimal(0), call_usd: Decimal = Decimal(0)) -> None:
        """Commit what a model call cost that gave no message."""
        self.holder.owe(spend_usd=spend_usd, call_usd=call_usd)
        await self.holder.step(self.holder.batch())

    async def _ask_model(self, messages: list[Message], allowance: Allowance) -> ModelReply:
        """Return what the model said, if it can be kept. Raises: ModelError."""
        tokens = allowance.max_output_tokens
        try:
            reply: object = await asked(lambda: self.model.respond(messages, self.specs, tokens), MODEL_TIMEOUT_S)
        except TimeoutError as error:
            raise ModelUnavailable("the model did not answer in time", charged=True) from error
        except ModelError:
            raise
        except asyncio.CancelledError:
            self._assumed = allowance
            raise
        except ConnectionRefusedError as error:
            raise ModelUnavailable(words_of(error)) from error
        except OSError as error:  # a connection that broke: whether the request arrived is not known
            raise ModelUnavailable(words_of(error), charged=True) from error
        except Exception as error:  # an engineer's own model may raise anything, after the provider's bill as well
            await self._charge(spend_usd=self._assume(allowance))
            raise ModelRefused(words_of(error)) from error
        said = _usable(reply)
        if isinstance(said, str):
            # It was billed all the same.
            await self._charge(spend_usd=self._assume(allowance))
            raise ModelRefused(said)
        return said

    def _assume(self, allowance: Allowance) -> Decimal:
        """Return what a call whose bill is unknown is charged: its worst case, within what was left."""
        worst = max(allowance.worst_usd, self.holder.run.dearest_call_usd)
        charged = min(worst, max(Decimal(0), self.holder.run.limits.max_spend_usd - self.holder.run.spend_usd))
        self.holder.note("model", spend_usd=charged, assumed=True)
        return charged

    async def _answer(self, text: str, doing: str | None) -> bool:
        """End with the answer; when news came first, keep the words as a step and go on."""
        seen = self.holder.run.news
        fence, store = self.holder.fence, self.holder.store
        try:
            await self.holder.commit(self.holder.batch(doing=doing), lambda b: store.answer(fence, b, seen, text))
        except NewsArrived:
            await self.holder.step(self.holder.batch(doing=doing))
            self.holder.stale = True
            return False
        return True

    async def _halt(self, reason: HaltReason, words: str = "") -> bool:
        holder = self.holder
        holder.return_mail()
        messages = holder.spoken()
        try:
            worst = worst_case(self.model, holder.run, messages, self.specs, MOST_OUTPUT_TOKENS)
        except ModelRefused:
            worst = holder.run.dearest_call_usd
        holder.note("halted", reason=reason.value, words=words)
        batch = holder.batch(doing="halted")
        closing = Closing(detail=words, next_worst_usd=worst)
        await holder.commit(batch, lambda b: holder.store.halt(holder.fence, b, reason, closing))
        return True

    # -- crash, shutdown, defect ------------------------------------------------------------------------------

    async def _charge_crash(self) -> None:
        """Charge the model call that a crash may have cost, once per crash, before anything else."""
        holder = self.holder
        if not holder.run.charge_due:
            return
        if model_was_perhaps_asked(holder.view, self.lifetime):
            messages = holder.spoken()
            try:
                allowance = allow(self.model, holder.run, messages, self.specs)
            except ModelRefused:
                allowance = Allowance(MOST_OUTPUT_TOKENS, holder.run.dearest_call_usd)
            if isinstance(allowance, Allowance):
                holder.owe(spend_usd=self._assume(allowance))
        await holder.step(holder.batch(charges_crash=True))

    async def _give_back(self) -> None:
        """Release the claim at a clean shutdown; a model call that was cut short is charged at its worst case.

        Where the store said nothing of the last commit for all the time that a shutdown has, this is a crash: released,
        the run would go on without what was perhaps not written, its cost included. So it is left to be reaped.
        """
        holder = self.holder
        if self._assumed is not None and not holder.unsure:
            holder.owe(spend_usd=self._assume(self._assumed))
            self._assumed = None
        try:
            if holder.loaded and holder.uncommitted and not holder.unsure:
                await holder.commit(holder.batch(), lambda b: holder.store.step(holder.fence, b))
        except ClaimLost:
            return
        await self._let_go()

    async def _let_go(self) -> None:
        """Release the claim, unless something that must not be forgotten may not have been written."""
        holder = self.holder
        if holder.unsure or holder.owed:
            log.warning("run %s: its last commit is unknown; left to be recovered", holder.fence.run_id)
        elif not await holder.release():
            log.info("run %s: not released, its lease will lapse", holder.fence.run_id)

    async def _defect(self, error: Exception) -> None:
        """End the run as failed: calls closed, actions no longer intended, alert.

        Whatever broke may be in what was about to be committed, so only the amounts of that are kept.
        """
        holder = self.holder
        run_id = holder.fence.run_id
        words = words_of(error)
        alert = Alert(f"failed:{run_id}", f"Run {run_id} failed: a defect in Atlas", words)
        closing = Closing(detail="Something in Atlas itself went wrong; the operators have been told.", alert=alert)
        try:
            await self._close_calls()
        except ClaimLost:
            return
        except Exception:
            # Its rows do not even load: it can only be ended, or it would be claimed and break for ever.
            log.exception("run %s: its rows do not load", run_id)
            batch = Batch(trace=(TraceEntry("failed", {"reason": FailReason.DEFECT.value, "words": words}),))
            await holder.store.fail(holder.fence, replace(batch, elapsed_ms=1), FailReason.DEFECT.value, closing)
            return
        holder.note("failed", reason=FailReason.DEFECT.value, words=words)
        try:
            await holder.commit(
                holder.batch(doing="failed"),
                lambda b: holder.store.fail(holder.fence, b, FailReason.DEFECT.value, closing),
            )
        except ClaimLost:
            return

    async def _close_calls(self) -> None:
        """Drop what is not committed; give every open call its end."""
        holder = self.holder
        await holder.reload()
        holder.messages = holder.messages[: holder.stored]
        holder.taken_mail = []
        holder.trace = []
        holder.new_scope = None
        for call, text in unanswered(holder.view):
            holder.result(call, text)


def _said(reply: ModelReply) -> Message:
    return Message(role="assistant", text=reply.text, calls=reply.calls, raw=reply.raw)


def _visible(text: str) -> bool:
    """Say whether a person would see anything: spaces, controls and zero-width characters show nothing."""
    return any(not (c.isspace() or unicodedata.category(c) in ("Cc", "Cf", "Cs")) for c in text)


def _usable(reply: object) -> ModelReply | str:
    """Return the reply, or why it cannot be stored, shown or paid for."""
    if not isinstance(reply, ModelReply):
        return f"the model returned {type(reply).__name__}, not a ModelReply"
    message = _said(reply)
    wrong = unkeepable(message)
    if wrong is not None:
        return f"the model's reply cannot be kept: {wrong}"
    size = sizeof(message)
    if size > REPLY_LIMIT:
        return f"the model's reply is too large to keep ({size} characters)"
    try:
        money(reply.spend_usd)
    except (ValueError, ArithmeticError):
        return f"the model's spend_usd is no amount of US dollars: {reply.spend_usd}"
    return reply
