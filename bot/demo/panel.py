"""The panel beside the workspace: levers of the world, what waits and for how long, and what happened.

Decides: which levers there are and what each does. The workspace's server forwards ``GET /panel/state`` and
``POST /panel/set`` here and knows nothing of what they mean; the script pulls the same levers. The failure it can
cause: whoever reaches the port can kill the demo's Atlas; it listens on loopback and asks for the page's header.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import aiohttp
from aiohttp import web

from bot.demo.children import CannotStart, Part
from bot.demo.records import Waiting
from bot.demo.stage import Stage
from core.errors import AtlasError

HEADER = "X-Atlas-Page"
HENDERSON = "4471"
RITA_EMAIL = "rita.reyes@northwind.example"
SEND = "POST /quotes/{id}/send"
HOLD = {"reason": "2 invoices overdue"}
USUAL_DISCOUNT, USUAL_ROLE = "10", "inside_sales"
HASTEN_S = 5.0
_DISCOUNTS = ("5", "10", "12", "15", "20")
_ROLES = (
    ("inside_sales", "Inside sales (may send)"),
    ("viewer", "Viewer (may only look)"),
    ("manager", "Manager"),
)
_WATCH_S = 0.4
_ARMED_POLL_S = 0.03
# What a lever that cannot reach its program raises: said in the page, never a broken panel.
AWAY = (aiohttp.ClientError, TimeoutError, ValueError, AtlasError)

Json = dict[str, Any]
Lever = Callable[[Any], Awaitable[str]]


class LeverStuck(Exception):
    """A lever that does nothing now; the text says why."""


@dataclass(frozen=True, slots=True)
class _World:
    """The CRM as the panel shows it."""

    hold: bool
    discount: str
    role: str
    faults: list[Json]

    def fault(self, kind: str, route: str) -> bool:
        return any(fault["kind"] == kind and fault["route"] == route for fault in self.faults)


class Panel:
    """Levers over a stage. ``await start()`` listens and returns the address for the workspace's server."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.levers: dict[str, Lever] = {
            "hold": self._hold,
            "discount": self._discount,
            "role": self._role,
            "directory_down": self._directory,
            "send_fails": lambda _: self._spoil("fail", "The next send fails; nothing is sent"),
            "send_answer_lost": lambda _: self._spoil("answer_lost", "The next send is done, but its answer is lost"),
            "kill": self._kill,
            "kill_after_commit": self._arm,
            "deploy": self._deploy,
            "start": self._start,
            "returns": self._returns,
            "second": self._second,
            "lose_post": self._lose_post,
            "rate_limit": self._rate_limit,
            "twice": self._twice,
            "drop_sockets": self._drop_sockets,
            "calm": self._calm,
        }
        self._runner: web.AppRunner | None = None
        self._armed: asyncio.Task[None] | None = None
        self._watching: asyncio.Task[None] | None = None

    async def start(self) -> str:
        """Listen on a free port; return the address."""
        app = web.Application()
        app.router.add_get("/panel/state", self._serve_state)
        app.router.add_post("/panel/set", self._serve_set)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.2)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        return f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    def watch(self) -> None:
        """Begin to note what the CRM does."""
        if not self.stage.without_crm:
            self._watching = asyncio.create_task(self._watch_effects())

    async def stop(self) -> None:
        """Stop listening and watching."""
        tasks = [task for task in (self._armed, self._watching) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._runner is not None:
            await self._runner.cleanup()

    async def pull(self, lever: str, value: Any = True) -> str:
        """Pull a lever as the page does; return what it did, for people.

        Raises: LeverStuck when it does nothing now; KeyError for an unknown lever; AWAY when its program is away.
        """
        if lever.startswith("hasten:"):
            return await self._hasten(lever.removeprefix("hasten:"))
        text = await self.levers[lever](value)
        self.stage.note(text)
        return text

    # ---- what the page sees -----------------------------------------------------------------------------------------

    async def state(self) -> Json:
        """Return groups of controls and the log, as the page draws them."""
        groups = [await self._waiting_controls()]
        if not self.stage.without_crm:
            groups += await self._world_controls()
        groups.append(self._atlas_controls())
        groups.append(_group("Slack", *self._slack_controls()))
        return {
            "groups": [group for group in groups if group["controls"]],
            "log": [{"at": at, "text": text} for at, text in self.stage.log[-60:]],
        }

    async def _waiting_controls(self) -> Json:
        controls: list[Json] = []
        if self.stage.records is not None:
            with suppress(AtlasError):
                controls += [_expiring(waiting) for waiting in await self.stage.records.waiting()]
        return _group("Waiting for a person", *controls)

    async def _world_controls(self) -> list[Json]:
        try:
            world = await self._world()
        except AWAY:
            return [_group("The CRM", _button("calm", "The CRM is away", "It comes back by itself.", disabled=True))]
        discounts = sorted({*_DISCOUNTS, world.discount}, key=float)
        return [
            _group(
                "The world, while a card waits",
                _toggle("hold", "Henderson (4471) on credit hold", world.hold, "Then press Approve: it is not sent."),
                _select(
                    "discount", "Gold tier discount", world.discount, [(it, f"{it} %") for it in discounts],
                    "Changed under a waiting card, it is asked again with the difference.",
                ),
                _select("role", "Rita's role in the CRM", world.role, list(_ROLES), "Permission is checked again."),
                _toggle("directory_down", "CRM's directory is down", world.fault("fail", "GET /people/{email}"),
                        "Atlas cannot check who may do what: nothing is done."),
            ),
            _group(
                "The CRM's next send",
                _button("send_fails", "Let it fail", disabled=world.fault("fail", SEND)),
                _button("send_answer_lost", "Do it, lose the answer", "Atlas asks the CRM whether it happened.",
                        disabled=world.fault("answer_lost", SEND)),
                _button("calm", "Back to normal", "Faults, hold, discount and role."),
            ),
        ]  # fmt: skip

    def _atlas_controls(self) -> Json:
        first, second = self.stage.first, self.stage.second
        alive = [part for part in (first, second) if part.up]
        state = " and ".join(f"process {part.child.pid}" for part in alive if part.child) or "not running"
        armed = self._armed is not None and not self._armed.done()
        after_commit = _button(
            "kill_after_commit",
            "Armed: dies after the next send" if armed else "Kill it after the next send",
            "Before it can store that it was sent. It still goes out once.",
            danger=True,
            disabled=armed or not alive,
        )
        return _group(
            "Atlas",
            _button("kill", "Kill it now (SIGKILL)", f"Now: {state}.", danger=True, disabled=not alive),
            # It is the CRM's next send; another agent's writes go elsewhere.
            *(() if self.stage.without_crm else (after_commit,)),
            _button("deploy", "Deploy a new one (SIGTERM)", disabled=not first.up),
            _button("start", "Start it now", disabled=first.up),
            _toggle("returns", f"It comes back by itself after {first.comeback_s:g} s", first.returns),
            _toggle("second", "A second Atlas beside it", second.wanted, "Both share the work and the database."),
        )

    @staticmethod
    def _slack_controls() -> list[Json]:
        return [
            _button("twice", "Deliver the next event twice"),
            _button("lose_post", "Lose the answer of the next post", "It stands in the thread once all the same."),
            _button("rate_limit", "Rate-limit the next 3 calls"),
            _button("drop_sockets", "Close Atlas's connection"),
        ]

    async def _world(self) -> _World:
        account, tiers, people, faults = await asyncio.gather(
            self.stage.ask_crm("GET", f"/accounts/{HENDERSON}"),
            self.stage.ask_crm("GET", "/tiers"),
            self.stage.ask_crm("GET", "/people"),
            self.stage.ask_crm("GET", "/admin/faults"),
        )
        gold = next(tier for tier in tiers["tiers"] if tier["name"] == "gold")
        rita = next(person for person in people["people"] if person["email"] == RITA_EMAIL)
        hold = account["credit_hold"] is not None
        return _World(hold, str(gold["discount_percent"]), str(rita["role"]), list(faults["faults"]))

    # ---- levers -----------------------------------------------------------------------------------------------------

    async def _hold(self, value: Any) -> str:
        on = _is_on(value)
        await self.stage.ask_crm("POST", f"/admin/accounts/{HENDERSON}", {"credit_hold": HOLD if on else None})
        return f"Henderson (4471) is {'on credit hold' if on else 'off credit hold'}"

    async def _discount(self, value: Any) -> str:
        tier = await self.stage.ask_crm("POST", "/admin/tiers/gold", {"discount_percent": str(value)})
        return f"The gold tier's discount is {tier['discount_percent']} %"

    async def _role(self, value: Any) -> str:
        person = await self.stage.ask_crm("POST", f"/admin/people/{RITA_EMAIL}", {"role": str(value)})
        return f"Rita's role in the CRM is {str(person['role']).replace('_', ' ')}"

    async def _directory(self, value: Any) -> str:
        if not _is_on(value):
            await self._forget_faults("GET /people/{email}")
            return "The CRM's directory is up again"
        await self.stage.ask_crm("POST", "/admin/faults", {"kind": "fail_directory", "times": None})
        return "The CRM's directory is down"

    async def _forget_faults(self, route: str) -> None:
        """Clear the faults of one route; the CRM only knows how to clear all, so the others are put back."""
        waiting = (await self.stage.ask_crm("GET", "/admin/faults"))["faults"]
        await self.stage.ask_crm("DELETE", "/admin/faults")
        for fault in waiting:
            if fault["route"] != route:
                kept = {key: fault[key] for key in ("kind", "route", "times", "seconds")}
                await self.stage.ask_crm("POST", "/admin/faults", kept)

    async def _spoil(self, kind: str, text: str) -> str:
        await self.stage.ask_crm("POST", "/admin/faults", {"kind": kind, "route": SEND, "times": 1})
        return text

    async def _kill(self, _: Any) -> str:
        part = self._alive()
        pid = part.child.pid if part.child else 0
        # The answer says what is so: who presses again, or starts it, finds it gone.
        await part.killed()
        return f"{part.label} (process {pid}) was killed"

    def _alive(self) -> Part:
        part = next((part for part in (self.stage.first, self.stage.second) if part.up), None)
        if part is None:
            raise LeverStuck("Atlas is not running.")
        return part

    async def _arm(self, _: Any) -> str:
        self._alive()
        if self._armed is not None and not self._armed.done():
            raise LeverStuck("It is armed already.")
        before = len(await self._sends())
        # The answer never comes, so that the kill is in time however fast Atlas is.
        await self._spoil("hang_after_commit", "")
        self._armed = asyncio.create_task(self._kill_after(before))
        return "Atlas will die right after the CRM's next send"

    async def _kill_after(self, before: int) -> None:
        while len(sends := await self._sends()) == before:  # noqa: ASYNC110 - the CRM is another process
            await asyncio.sleep(_ARMED_POLL_S)
        for part in (self.stage.first, self.stage.second):
            part.kill()
        self.stage.note(f"The CRM has sent {sends[-1]['quote']}; Atlas was killed before it could know")

    async def _sends(self) -> list[Json]:
        effects = (await self.stage.ask_crm("GET", "/admin/effects"))["effects"]
        return [effect for effect in effects if effect["kind"] == "send_quote"]

    async def _deploy(self, _: Any) -> str:
        if not self.stage.first.redeploy():
            raise LeverStuck("Atlas is not running.")
        return "Deploy: Atlas was asked to end"

    async def _start(self, _: Any) -> str:
        if self.stage.first.up:
            raise LeverStuck("Atlas is running already.")
        self.stage.first.start_now()
        return "Atlas starts"

    async def _returns(self, value: Any) -> str:
        on = _is_on(value)
        for part in (self.stage.first, self.stage.second):
            part.returns = on
        if on and not self.stage.first.up:
            self.stage.first.start_now()
        return f"Atlas {'comes back by itself' if on else 'stays away when it dies, until you start it'}"

    async def _second(self, value: Any) -> str:
        if not _is_on(value):
            await self.stage.second.off()
            return "The second Atlas is gone"
        try:
            await self.stage.second.on()
        except CannotStart as error:
            raise LeverStuck(str(error)) from error
        return "A second Atlas runs beside the first"

    async def _hasten(self, run_id: str) -> str:
        if self.stage.records is None or not await self.stage.records.hasten(run_id, HASTEN_S):
            raise LeverStuck("Nothing of that run waits that long any more.")
        text = f"Run {run_id}: its card expires in {HASTEN_S:.0f} s"
        self.stage.note(text)
        return text

    async def _lose_post(self, _: Any) -> str:
        await self.stage.ask_workspace("/faults", {"kind": "store_then_drop", "method": "chat.postMessage"})
        return "Slack takes the next post and never answers"

    async def _rate_limit(self, _: Any) -> str:
        fault = {"kind": "ratelimited", "method": "*", "times": 3, "retry_after": 2}
        await self.stage.ask_workspace("/faults", fault)
        return "Slack answers the next 3 calls with 429"

    async def _twice(self, _: Any) -> str:
        await self.stage.ask_workspace("/faults", {"socket": "duplicate", "times": 1})
        return "Slack delivers the next event twice"

    async def _drop_sockets(self, _: Any) -> str:
        await self.stage.ask_workspace("/sockets", {"do": "disconnect"})
        return "Slack closes Atlas's connection; Atlas opens another"

    async def _calm(self, _: Any) -> str:
        await self.stage.ask_crm("DELETE", "/admin/faults")
        await self._hold(False)
        await self._discount(USUAL_DISCOUNT)
        await self._role(USUAL_ROLE)
        if self.stage.url:
            await self.stage.ask_workspace("/faults", {"clear": True})
        return "Everything is back to normal"

    # ---- what the CRM did -------------------------------------------------------------------------------------------

    async def _watch_effects(self) -> None:
        seen: dict[str, int] = {}
        while True:
            with suppress(*AWAY):
                for effect in (await self.stage.ask_crm("GET", "/admin/effects"))["effects"]:
                    before = seen.get(effect["key"], 0)
                    seen[effect["key"]] = effect["requests"]
                    if before == 0:
                        done = "sent" if effect["kind"] == "send_quote" else "drafted"
                        amount = f"{Decimal(effect['total']):,} USD"
                        self.stage.note(f"CRM: {done} {effect['quote']} for account {effect['account']}, {amount}")
                    elif effect["requests"] > before:
                        self.stage.note(f"CRM: asked again for {effect['quote']} under the same key; done once")
            await asyncio.sleep(_WATCH_S)

    # ---- HTTP -------------------------------------------------------------------------------------------------------

    async def _serve_state(self, request: web.Request) -> web.Response:
        _only_the_page(request)
        return web.json_response(await self.state())

    async def _serve_set(self, request: web.Request) -> web.Response:
        _only_the_page(request)
        try:
            body = await request.json()
            text = await self.pull(str(body["id"]), body.get("value", True))
        except LeverStuck as stuck:
            return web.json_response({"ok": False, "text": str(stuck)})
        except KeyError as unknown:
            return web.json_response({"ok": False, "text": f"There is no such lever: {unknown}"}, status=404)
        except AWAY as error:
            return web.json_response({"ok": False, "text": f"That did not work: {error}"})
        return web.json_response({"ok": True, "text": text})


def _only_the_page(request: web.Request) -> None:
    if request.headers.get(HEADER) != "1":
        raise web.HTTPForbidden(text=f"the header {HEADER}: 1 is missing")


def _is_on(value: Any) -> bool:
    return value in (True, "true", "on", 1)


def _expiring(waiting: Waiting) -> Json:
    hint = f"{waiting.title} · {_clock(waiting.left_s)} left · run {waiting.run_id}"
    label = f"Let it expire in {HASTEN_S:.0f} s"
    return _button(f"hasten:{waiting.run_id}", label, hint, disabled=waiting.left_s <= HASTEN_S)


def _clock(seconds: float) -> str:
    whole = max(0, round(seconds))
    return f"{whole // 60}:{whole % 60:02d}"


def _group(title: str, *controls: Json) -> Json:
    return {"title": title, "controls": list(controls)}


def _control(kind: str, lever: str, label: str, hint: str, **more: Any) -> Json:
    return {"id": lever, "label": label, "kind": kind, "hint": hint or None, "danger": False, "disabled": False} | more


def _button(lever: str, label: str, hint: str = "", *, danger: bool = False, disabled: bool = False) -> Json:
    return _control("button", lever, label, hint, danger=danger, disabled=disabled)


def _toggle(lever: str, label: str, value: bool, hint: str = "") -> Json:
    return _control("toggle", lever, label, hint, value=value)


def _select(lever: str, label: str, value: str, options: list[tuple[str, str]], hint: str = "") -> Json:
    choices = [{"value": it, "label": words} for it, words in options]
    return _control("select", lever, label, hint, value=value, options=choices)
