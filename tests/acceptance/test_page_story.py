"""The story in the page, with the mouse: a person asks, approves, declines, changes the world; in a real browser.

Decides whether the demo is playable by people, on the real bot. With SCREENS_DIR set (``docs/screens`` in this
repository), it leaves pictures there. The failure it can cause: none outside; the demo is a process of its own.
"""

import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.demo_process import Demo, demo

playwright_api = pytest.importorskip("playwright.async_api", reason="playwright is not installed")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = [pytest.mark.browser, pytest.mark.slow]
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
FLAGS += ["--disable-sync", "--no-first-run"]
RITA, MARCUS, DESK = "U0RITA00001", "U0MARCUS001", "C0SALESDESK"
WIDE, NARROW = (1440, 900), (390, 844)
# Generous, since it is only a deadline: a busy machine is slow, and only a failing test waits this long.
SLOW_MS = 120_000
PRESSES = 8
# How long a second press waits for its button before it looks again whether the button is still wanted.
LOOK_MS = 5_000
expect = playwright_api.expect
expect.set_options(timeout=SLOW_MS)

Opener = Callable[..., Awaitable[Any]]


@pytest.fixture
async def running(postgres: str, tmp_path: Path) -> AsyncIterator[Demo]:
    async with demo("--no-browser", data_dir=tmp_path, database_url=postgres) as started:
        await started.says("Ready")
        yield started


@pytest.fixture
async def page_of(running: Demo) -> AsyncIterator[Opener]:
    """Open the page: `await page_of(RITA, place, size=…, dark=…)`; its script errors fail the test."""
    async with playwright_api.async_playwright() as playwright:
        if CHROMIUM is None and not Path(playwright.chromium.executable_path).exists():
            pytest.skip("no Chromium on this machine")
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        troubles: list[str] = []

        async def open_page(person: str, place: str = DESK, size: tuple[int, int] = WIDE, dark: bool = False) -> Any:
            context = await browser.new_context(
                viewport={"width": size[0], "height": size[1]},
                color_scheme="dark" if dark else "light",
                device_scale_factor=1.5,
                reduced_motion="reduce",
            )
            context.set_default_timeout(SLOW_MS)
            page = await context.new_page()
            page.on("pageerror", lambda error: troubles.append(str(error)))
            await page.goto(f"{running.url}/#/as/{person}/{place}")
            await page.wait_for_selector("body[data-ready='1']")
            return page

        yield open_page
        await browser.close()
        assert troubles == []


class Visit:
    """One person at the page."""

    def __init__(self, page: Any) -> None:
        self.page = page

    @property
    def thread(self) -> Any:
        """The open thread's messages."""
        return self.page.locator("#replies .message")

    async def ask(self, text: str) -> str:
        """Post in the channel and open the thread; return its ts."""
        own = self.page.locator("#messages .message")
        before = await own.count()
        await self.page.get_by_test_id("composer").fill(text)
        await self.page.get_by_test_id("send").click()
        await expect(own).to_have_count(before + 1)
        ts = str(await own.last.get_attribute("data-ts"))
        await self.page.get_by_test_id(f"replies-{ts}").click()
        await expect(self.page.get_by_test_id(f"thread-root-{ts}")).to_be_visible()  # not the thread of before
        return ts

    async def say(self, text: str) -> None:
        """Write in the open thread."""
        await self.page.get_by_test_id("thread-composer").fill(text)
        await self.page.get_by_test_id("thread-send").click()

    async def card(self) -> Any:
        """Return the newest card that can be approved."""
        waiting = self.thread.filter(has=self.page.get_by_test_id("action-approve")).last
        await expect(waiting).to_be_visible(timeout=SLOW_MS)
        return self.page.get_by_test_id(f"message-{await waiting.get_attribute('data-ts')}")

    @property
    def form(self) -> Any:
        """The open form."""
        return self.page.get_by_test_id("modal")

    async def press(
        self, message: Any, action: str, presses: int = PRESSES, *, sure: bool = False, key: str = ""
    ) -> None:
        """Press a button of a message, or of Home; again, as people do, when the page says that nobody took it in
        Slack's 3 s, as long as there is still something to press. *sure*: say yes in the dialog that it opens; *key*:
        not with the mouse, but with this key."""
        button = message.get_by_test_id(f"action-{action}")
        for number in range(presses):
            if number and not await self._wanted(button):
                return
            await (button.press(key) if key else button.click())
            if sure:
                await expect(self.page.get_by_test_id("confirm")).to_contain_text("Really approve?")
                await self.page.get_by_test_id("confirm-ok").click()
            await expect(message.locator(f'[data-testid="action-{action}"][aria-busy="true"]')).to_have_count(0)
            if not await message.get_by_test_id(f"failed-{action}").count():
                return

    async def _wanted(self, button: Any) -> bool:
        """Say whether to press again: what was taken too late for Slack is done all the same, and shows it in time."""
        for _ in range(SLOW_MS // LOOK_MS):
            if not await button.count() or await self.form.is_visible():
                return False
            try:
                await button.click(timeout=LOOK_MS, trial=True)
            except playwright_api.TimeoutError:
                continue
            return True
        raise AssertionError("a button that is there and cannot be pressed")

    async def opens(self, message: Any, action: str, *, key: str = "") -> Any:
        """Press a button until its form is open: one that Slack did not open in time asks to be wanted again."""
        late = self.page.locator("#replies .message.ephemeral", has_text="Please press the button again")
        for _ in range(PRESSES):
            told = await late.count()
            await self.press(message, action, key=key)
            await expect(self.form.or_(late.nth(told)).first).to_be_visible(timeout=SLOW_MS)
            if await self.form.is_visible():
                break
        return self.form

    async def submit(self, *, key: str = "") -> None:
        """Send the open form; again, as people do, when the page says that nobody took it."""
        button = self.page.get_by_test_id("modal-submit")
        tries = 0
        while tries < PRESSES:
            tries += 1
            await (button.press(key) if key else button.click())
            # A form that was closed keeps its last look, unseen.
            await expect(self.form.locator('[data-testid="modal-submit"][aria-busy="true"]:visible')).to_have_count(0)
            if not await self.form.locator('[data-testid="modal-failed"]:visible').count():
                break
        if tries > 1 and await self.form.is_visible() and not await button.count():
            await self.page.get_by_test_id("modal-close").click()  # it was taken the first time, and says so

    async def reads(self, message: Any, *words: str) -> None:
        """Expect words on a message."""
        for word in words:
            await expect(message).to_contain_text(word, timeout=SLOW_MS)

    async def answered(self, *words: str) -> None:
        """Expect words in a message of the thread that is no card; whether other lines follow it is not said."""
        answers = self.thread.filter(has_not=self.page.locator(".framed"))
        for word in words:
            answers = answers.filter(has_text=word)
        await expect(answers).to_have_count(1, timeout=SLOW_MS)

    async def world(self, *, shown: bool) -> None:
        """Open or close the panel."""
        if shown != await self.page.get_by_test_id("panel").is_visible():
            await self.page.get_by_test_id("panel-toggle").click()

    async def picture(self, name: str, of: Any = None) -> None:
        """Leave a picture, if pictures are wanted."""
        directory = os.environ.get("SCREENS_DIR")
        path = Path(directory or tempfile.gettempdir()) / f"{name}.png"
        if directory:
            path.parent.mkdir(parents=True, exist_ok=True)
            await self.page.mouse.move(2, 2)
            await self.page.evaluate("document.querySelector('#toasts').replaceChildren()")
            await (of or self.page).screenshot(path=path, animations="disabled", caret="hide")


async def test_the_story_is_playable_in_the_page(page_of: Opener) -> None:
    rita = Visit(await page_of(RITA))

    # Asked, approved, answered.
    await rita.world(shown=False)
    await rita.ask("@Atlas draft and send a quote for Henderson, 200 of SKU-4411")
    card = await rita.card()
    await rita.reads(card, "Henderson Manufacturing (4471)", "8,730.00 USD", "Waiting for @Rita Reyes")
    await rita.picture("card-waiting")
    await rita.picture("card", card)
    await rita.press(card, "approve")
    await rita.reads(card, "Done", "Q-1042", "approved by @Rita Reyes")
    await expect(card.get_by_test_id("action-approve")).to_have_count(0)
    await rita.answered("was sent to buying@henderson-mfg.example")
    await rita.picture("done")

    # Declined, with a reason.
    await rita.ask("@Atlas draft and send a quote for Castillo Packaging, 10 of SKU-4441 and 2 of SKU-4500")
    card = await rita.card()
    form = await rita.opens(card, "decline")
    await form.get_by_role("textbox").fill("They want delivery in May first")
    await rita.picture("decline-form")
    await rita.submit()
    await rita.reads(card, "Declined", "They want delivery in May first")
    await rita.answered("was not sent")
    await rita.picture("declined")
    await rita.picture("declined-card", card)

    # The discount changes while a card waits: the same panel that people use.
    await rita.ask("@Atlas draft and send a quote for Kestrel Aerospace, 50 of SKU-4440")
    card = await rita.card()
    await rita.world(shown=True)
    await rita.page.get_by_test_id("control-discount").select_option("12")
    await expect(rita.page.get_by_test_id("panel-log")).to_contain_text("discount is 12 %")
    await rita.page.set_viewport_size({"width": WIDE[0], "height": 1640})
    await rita.picture("world")
    await rita.page.set_viewport_size({"width": WIDE[0], "height": WIDE[1]})
    await rita.world(shown=False)
    await rita.press(card, "approve")
    await rita.reads(card, "Replaced by a newer version")
    newer = await rita.card()
    await rita.reads(newer, "What changed", "10 %", "12 %", "4,241.60 USD")
    await rita.picture("changed")
    await rita.press(newer, "approve")
    await rita.reads(newer, "Done")

    # Expired: the panel shortens the wait; somebody else is refused in private, the owner continues.
    await rita.ask("@Atlas draft and send a quote for Ironwood Cranes, 6 of SKU-4440")
    card = await rita.card()
    await rita.world(shown=True)
    await rita.page.get_by_role("button", name="Let it expire in 5 s").click()
    await rita.reads(card, "Expired", "nothing was done")
    await rita.world(shown=False)
    await rita.thread.last.scroll_into_view_if_needed()
    await rita.picture("halted")
    await rita.picture("expired-card", card)
    marcus = Visit(await page_of(MARCUS, rita.page.url.partition(f"{RITA}/")[2]))
    theirs = marcus.thread.filter(has=marcus.page.get_by_test_id("action-continue")).last
    await marcus.world(shown=False)
    await marcus.press(theirs, "continue")
    await expect(marcus.page.locator("#replies .message.ephemeral").last).to_contain_text("Nothing was continued")
    await marcus.picture("not-yours")
    await rita.press(card, "continue")
    again = await rita.card()
    await rita.reads(again, "Ironwood Cranes (4507)")

    # On a phone, at night, and at home, with that card still waiting.
    narrow = Visit(await page_of(RITA, rita.page.url.partition(f"{RITA}/")[2], size=NARROW))
    await rita.reads(await narrow.card(), "Ironwood Cranes (4507)")
    await narrow.picture("narrow")
    night = Visit(await page_of(RITA, rita.page.url.partition(f"{RITA}/")[2], dark=True))
    await night.world(shown=False)
    await night.card()
    await night.picture("dark")
    home = Visit(await page_of(RITA, "home"))
    await expect(home.page.get_by_test_id("home")).to_contain_text("Ironwood Cranes", timeout=SLOW_MS)
    await home.world(shown=False)
    await home.picture("home")
    await home.press(home.page.get_by_test_id("home"), "approve")
    await rita.reads(again, "Done")


async def test_a_killed_atlas_and_a_click_that_nobody_takes(page_of: Opener) -> None:
    rita = Visit(await page_of(RITA))
    await rita.ask("@Atlas draft and send a quote for Henderson, 20 of SKU-4411")
    card = await rita.card()
    await rita.world(shown=True)
    await rita.page.get_by_test_id("control-returns").click()
    await rita.page.get_by_test_id("control-kill").click()
    await expect(rita.page.get_by_test_id("control-start")).to_be_enabled(timeout=SLOW_MS)
    await rita.world(shown=False)
    await rita.press(card, "approve", 1)
    await expect(card.get_by_test_id("failed-approve")).to_be_visible(timeout=SLOW_MS)
    await rita.picture("nobody-there")
    await rita.world(shown=True)
    await rita.page.get_by_test_id("control-start").click()
    await expect(rita.page.get_by_test_id("panel-log")).to_contain_text("Atlas is back", timeout=SLOW_MS)
    await rita.world(shown=False)
    await rita.press(card, "approve")
    await rita.reads(card, "Done")


async def test_the_menu_of_people_shows_everybody(page_of: Opener) -> None:
    """Each person's face is a square, and name and badge stand inside the menu."""
    page = await page_of(RITA)
    await page.get_by_test_id("switcher").click()
    people = page.locator("#people .person")
    await expect(people.first).to_be_visible()
    menu = await page.locator("#people").bounding_box()
    kinds = set()
    for person in await people.all():
        face = await person.locator(".avatar").bounding_box()
        assert face["width"] == face["height"], await person.inner_text()
        for part in await person.locator(".name, .badge").all():
            box = await part.bounding_box()
            assert box["width"] > 0
            assert menu["x"] < box["x"] < box["x"] + box["width"] < menu["x"] + menu["width"]
        kinds |= {str(badge) for badge in await person.locator(".badge").all_inner_texts()}
    assert kinds == {"Guest", "External", "Deactivated"}
