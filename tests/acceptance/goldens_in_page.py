"""Every golden render as people see it: in the workspace's page, in light, in dark, and on a narrow window.

``python -m tests.acceptance.goldens_in_page docs/screens/goldens`` writes contact sheets (``--per-sheet 6 --png`` for
looking closely, ``--only cards-real`` for a part). Each render goes through the Web API first, so that the workspace
refuses here what Slack would. Decides nothing about what is beautiful: somebody has to look.
"""

import argparse
import asyncio
import base64
import shutil
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from slack_sdk.web.async_client import AsyncWebClient

from bot.simulator import Simulator
from bot.simulator.workspace import BOT_USER_ID, MARCUS, OSKAR, RITA, ChannelSpec, Workspace
from tests.unit.goldens import Golden, families

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
FLAGS += ["--disable-sync", "--no-first-run"]
# Only a failing look waits this long; a busy machine is slow.
PATIENCE_MS = 120_000
SIDEBAR = 252
TALL = 1_200
SHOWN = 900
"""What a sheet shows of one render, in pixels; the rest is cut off with a note."""


@dataclass(frozen=True)
class Look:
    """How a page is looked at."""

    name: str
    width: int
    dark: bool = False
    columns: int = 4

    @property
    def narrow(self) -> bool:
        """Whether the page shows one pane at a time."""
        return self.width < 760


LOOKS = (Look("light", 860), Look("dark", 860, dark=True), Look("narrow", 390, columns=7))


@dataclass(frozen=True)
class Shot:
    """One render as it was drawn. *wrong*: what the page itself can tell is not as it should be."""

    name: str
    png: bytes
    height: int
    wrong: tuple[str, ...]


# What a browser can tell by itself: something not drawn, lines that run together, or wider than its place without a
# way to scroll there.
_WRONG = """(root) => {
  const found = [...root.querySelectorAll('.unknown')].map((node) => node.textContent);
  for (const node of root.querySelectorAll('.rich-text blockquote, .rich-section')) {
    if (node.textContent.trim().includes('\\n') && !node.innerText.trim().includes('\\n')) {
      found.push(`the lines of “${node.textContent.slice(0, 40)}” run together`);
    }
  }
  const edge = root.getBoundingClientRect().right + 1;
  for (const node of root.querySelectorAll('*')) {
    const box = node.getBoundingClientRect();
    const style = getComputedStyle(node);
    const scrolls = node.closest('.table-scroll, pre, .block-carousel');
    if (!box.width || style.position === 'absolute' || scrolls || box.right <= edge) continue;
    found.push(`${node.tagName} ${node.className} is ${Math.round(box.right - edge)} px too wide`);
  }
  return found;
}"""


_STYLE = """<!doctype html><style>
body { margin: 12px; background: #8a8f94; font: 600 14px sans-serif; } h1 { font-size: 16px; margin: 2px 0 10px; }
div { column-gap: 12px; } figure { margin: 0 0 14px; break-inside: avoid; background: #fff; overflow: hidden; }
figcaption { padding: 5px 9px; } img { display: block; max-width: 100%; }
</style>"""


# The browser's own encoder, a quarter of a JPEG's size for the same letters, at four fifths of their size; no side may
# be longer than 16,383 pixels.
_SMALLER = """async (png) => {
  const bytes = Uint8Array.from(atob(png), (char) => char.charCodeAt(0));
  const image = await createImageBitmap(new Blob([bytes], { type: 'image/png' }));
  const [wide, tall] = [Math.round(image.width * 0.8), Math.round(Math.min(image.height, 20000) * 0.8)];
  const canvas = new OffscreenCanvas(wide, tall);
  const drawing = canvas.getContext('2d');
  drawing.imageSmoothingQuality = 'high';
  drawing.drawImage(image, 0, 0, image.width, tall / 0.8, 0, 0, wide, tall);
  const blob = await canvas.convertToBlob({ type: 'image/webp', quality: 0.3 });
  const url = await new Promise((done) => {
    const reader = new FileReader();
    reader.onload = () => done(reader.result);
    reader.readAsDataURL(blob);
  });
  return url.split(',')[1];
}"""


class Gallery:
    """The workspace with every golden in it, and a browser to look at it."""

    def __init__(self, simulator: Simulator, browser: Any) -> None:
        self._simulator = simulator
        self._browser = browser
        self._client = AsyncWebClient(token=simulator.workspace.bot_token, base_url=simulator.api_url)
        self.troubles: list[str] = []

    async def post(self, family: str, goldens: dict[str, Golden]) -> dict[str, str]:
        """Post a family's messages to its channel; return their timestamps by name. Raises: SlackApiError."""
        placed = {}
        for name, golden in goldens.items():
            if golden.surface == "message":
                answer = await self._client.chat_postMessage(
                    channel=channel_of(family), text=golden.text, blocks=golden.blocks
                )
                placed[name] = str(answer["ts"])
        return placed

    async def shots(self, family: str, goldens: dict[str, Golden], placed: dict[str, str], look: Look) -> list[Shot]:
        """Draw a family in one look."""
        context = await self._browser.new_context(
            viewport={"width": look.width, "height": TALL},
            color_scheme="dark" if look.dark else "light",
            reduced_motion="reduce",
        )
        context.set_default_timeout(PATIENCE_MS)
        page = await context.new_page()
        page.on("pageerror", lambda error: self.troubles.append(f"{family}, {look.name}: {error}"))
        await page.goto(f"{self._simulator.url}/#/as/{RITA}/{channel_of(family)}")
        await page.wait_for_selector("body[data-ready='1']")
        await page.evaluate("document.getElementById('composer').style.setProperty('display', 'none', 'important')")
        found = []
        for name, golden in goldens.items():
            if golden.surface == "message":
                drawn = page.get_by_test_id(f"message-{placed[name]}")
            elif golden.surface == "modal":
                await page.set_viewport_size({"width": look.width, "height": 1_000})
                drawn = await self._open_modal(page, name, golden)
            else:
                await page.set_viewport_size({"width": look.width, "height": TALL})
                drawn = await self._open_home(page, golden)
            found.append(await _shot(name, page, drawn))
            if golden.surface == "modal":
                await page.get_by_test_id("modal-close").click()
        await context.close()
        return found

    async def _open_modal(self, page: Any, name: str, golden: Golden) -> Any:
        title, submit = ({"type": "plain_text", "text": text} for text in ("Atlas", "Submit"))
        takes_input = any(block["type"] == "input" for block in golden.blocks) or "details" in name
        given = {"type": "modal", "title": title, "blocks": golden.blocks} | ({"submit": submit} if takes_input else {})
        view = self._simulator.views.open(RITA, given)
        await page.wait_for_selector(f"dialog[open][data-view-id='{view['id']}']")
        return page.locator("dialog[open]")

    async def _open_home(self, page: Any, golden: Golden) -> Any:
        answer = await self._client.views_publish(user_id=RITA, view={"type": "home", "blocks": golden.blocks})
        ids = [block["block_id"] for block in answer["view"]["blocks"]]
        await page.goto(f"{self._simulator.url}/#/as/{RITA}/home")
        await page.wait_for_selector(f"#home [data-block-id={ids[-1]!r}]")
        return page.locator("#home")

    async def sheet(self, title: str, shots: Sequence[Shot], look: Look, columns: int, place: Path) -> None:
        """Write one contact sheet."""
        wide = look.width if look.narrow else look.width - SIDEBAR
        page = await self._browser.new_page(viewport={"width": columns * (wide + 12) + 12, "height": 400})
        figures = "".join(
            f"<figure><figcaption>{escape(shot.name)}{' (cut off)' if shot.height > SHOWN else ''}</figcaption>"
            f"<img src='data:image/png;base64,{base64.b64encode(shot.png).decode()}'></figure>"
            for shot in shots
        )
        await page.set_content(f"{_STYLE}<h1>{escape(title)}</h1><div style='columns:{columns}'>{figures}</div>")
        png = await page.screenshot(full_page=True)
        if place.suffix != ".png":
            small = await page.evaluate(_SMALLER, base64.b64encode(png).decode())
            png = base64.b64decode(small)
        place.write_bytes(png)
        await page.close()


async def _shot(name: str, page: Any, drawn: Any) -> Shot:
    await drawn.wait_for()
    wrong = await drawn.evaluate(_WRONG)
    await drawn.evaluate("(node) => node.scrollIntoView({block: 'start'})")
    box = await drawn.bounding_box()
    clip = {"x": box["x"], "y": box["y"], "width": box["width"], "height": min(box["height"], SHOWN)}
    return Shot(name, await page.screenshot(clip=clip), int(box["height"]), tuple(wrong))


def channel_of(family: str) -> str:
    """Return the channel in which a family's messages stand."""
    return "C0GOLDEN" + "".join(filter(str.isalnum, family.upper()))


@asynccontextmanager
async def gallery() -> AsyncIterator[Gallery]:
    """Lend a gallery with a channel for each family."""
    from playwright.async_api import async_playwright

    members = [BOT_USER_ID, RITA, MARCUS, OSKAR]
    rooms = [ChannelSpec(channel_of(family), family, members) for family in families()]
    rooms += [ChannelSpec("C0SALESDESK", "sales-desk", members), ChannelSpec("C0DEALS0001", "deals", members)]
    async with Simulator(workspace=Workspace(channels=rooms)) as simulator, async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        try:
            yield Gallery(simulator, browser)
        finally:
            await browser.close()


async def write_sheets(
    folder: Path, only: Sequence[str], looks: Sequence[Look], per_sheet: int, png: bool
) -> list[str]:
    """Write every sheet to *folder*; return what the page found wrong by itself."""
    folder.mkdir(parents=True, exist_ok=True)
    wrong: list[str] = []
    async with gallery() as shown:
        for family, goldens in families().items():
            if only and family not in only:
                continue
            placed = await shown.post(family, goldens)
            for look in looks:
                shots = await shown.shots(family, goldens, placed, look)
                wrong += [f"{family}, {shot.name}, {look.name}: {text}" for shot in shots for text in shot.wrong]
                chunks = (
                    [shots[at : at + per_sheet] for at in range(0, len(shots), per_sheet)] if per_sheet else [shots]
                )
                for number, chunk in enumerate(chunks, 1):
                    part = f"-{number}" if len(chunks) > 1 else ""
                    place = folder / f"{family}-{look.name}{part}.{'png' if png else 'webp'}"
                    columns = min(look.columns, max(1, len(chunk) // 2)) if per_sheet else look.columns
                    await shown.sheet(f"{family}, {look.name}", chunk, look, columns, place)
        return wrong + shown.troubles


def main() -> int:
    """Write the sheets of the command line; 1 when the page found something wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.acceptance.goldens_in_page", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", action="append", default=[], choices=list(families()))
    parser.add_argument("--look", action="append", default=[], choices=[look.name for look in LOOKS])
    parser.add_argument("--per-sheet", type=int, default=0, help="renders on one sheet (0: a family)")
    parser.add_argument("--png", action="store_true", help="lossless, and large")
    options = parser.parse_args()
    looks = [look for look in LOOKS if not options.look or look.name in options.look]
    wrong = asyncio.run(write_sheets(options.folder, options.only, looks, options.per_sheet, options.png))
    print("\n".join(wrong) or "Nothing that the page itself could tell is wrong; now look at the sheets.")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
