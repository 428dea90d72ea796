"""Time the page Step of one trace in a browser: the first picture, jumps, and playing.

A real server (`prep app`) and a real Chromium without a window, driven by playwright; both run on this machine, so
that on two cores they slow one another down.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from subprocess import DEVNULL
from time import perf_counter
from typing import TYPE_CHECKING
from urllib.parse import quote

from app.bench.timing import Spread, Tell, spread
from engine.server.child_server import PREP, ChildServer

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator

ROOT = Path(__file__).resolve().parents[2]
HEALTH = "/_stcore/health"
"""Path at which Streamlit answers."""
RATE = 30
"""Steps per second while playing."""
PLAY_S = 6
MAP_SHOWN = 'html.prep-shown .step-view[data-map="ready"]'
TIMEOUT_MS = 120_000
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
MISSING = "needs Chromium: apt-get install chromium, or PREP_CHROMIUM=/path/to/it"

_JUMP_INSIDE = """async (root, jumps) => {
    const { view } = root, taken = [];
    const window = view.store.windows.values().next().value;
    for (let i = 0; i < jumps; i++) {
        const began = performance.now();
        view.step = window.first + ((i * 7919) % (window.last - window.first));
        view.refresh();
        taken.push((performance.now() - began) / 1000);
        await new Promise(requestAnimationFrame);
    }
    return taken;
}"""
_JUMP_ANYWHERE = """async (root, jumps) => {
    const { view } = root, taken = [], until = (part) => new Promise((done) => {
        const look = () => (root.dataset[part] === "ready" ? done() : setTimeout(look, 4));
        look();
    });
    for (let i = 1; i <= jumps; i++) {
        const began = performance.now();
        view.goTo(Math.floor(((i * 0.618034) % 1) * (view.last + 1)));  // spread over the run
        await until("map");
        taken.push((performance.now() - began) / 1000);
        await until("details");
        await new Promise((done) => setTimeout(done, 500));
    }
    return taken;
}"""
_PLAY = """async (root, [rate, seconds]) => {
    const { view } = root;
    for (const box of root.querySelectorAll("[data-break]")) box.checked = false;
    root.querySelector(".rate").value = rate;
    view.goTo(0);
    await new Promise((done) => setTimeout(done, 1500));
    const began = performance.now(), from = view.step;
    let frames = 0;
    view.play();
    await new Promise((done) => {
        const frame = () => {
            frames++;
            performance.now() - began > 1000 * seconds ? done() : requestAnimationFrame(frame);
        };
        requestAnimationFrame(frame);
    });
    const taken = (performance.now() - began) / 1000;
    view.pause();
    return [frames / taken, (view.step - from) / taken];
}"""


def find_chromium() -> str | None:
    """Return `PREP_CHROMIUM`, else the first Chromium on the path, else None."""
    names = ("chromium", "chromium-browser", "google-chrome")
    return os.environ.get("PREP_CHROMIUM") or next(filter(None, map(shutil.which, names)), None)


@dataclass(frozen=True)
class BrowserCost:
    first_map_s: float
    """Seconds from the address to the block map, with a server that has just started."""
    next_map_s: float
    """The same in a second tab."""
    jump_inside: Spread
    """Time of a jump inside the window that the browser holds: script time for map and tables."""
    jump_anywhere: Spread
    """Time of a jump to any step, until its map is shown."""
    frames_per_s: float
    """Frames per second while playing."""
    steps_per_s: float
    interrupted: bool = False


def measure_browser(tell: Tell, trace: Path, *, jumps: int = 40) -> BrowserCost:
    """Measure. Raises RuntimeError where playwright or Chromium is missing."""
    tell(f"the page Step shows {trace.name}")
    with workbench() as (url, browser):
        address = f"{url}/step?run={quote(f'file:{trace.resolve()}')}"
        first_s, _ = _open(browser, address)
        next_s, view = _open(browser, address)
        view.page.locator('.step-view[data-details="ready"]').wait_for()
        cost = BrowserCost(
            first_s,
            next_s,
            spread(view.evaluate(_JUMP_INSIDE, jumps)),
            spread(view.evaluate(_JUMP_ANYWHERE, max(1, jumps // 4))),
            *view.evaluate(_PLAY, [RATE, PLAY_S]),
        )
    return cost


@contextmanager
def workbench() -> Iterator[tuple[str, Browser]]:
    """Start a server and a browser. Raises RuntimeError where playwright or Chromium is missing."""
    chromium = find_chromium()
    if chromium is None:
        raise RuntimeError(MISSING)
    try:
        from playwright.sync_api import sync_playwright
    except ImportError as error:
        raise RuntimeError("playwright is not installed: pip install playwright") from error
    with _server() as url, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=list(FLAGS))
        yield url, browser
        browser.close()


def _open(browser: Browser, address: str) -> tuple[float, Locator]:
    tab = browser.new_context(viewport={"width": 1280, "height": 900}).new_page()
    tab.set_default_timeout(TIMEOUT_MS)
    began = perf_counter()
    tab.goto(address)
    view = tab.locator(MAP_SHOWN)
    view.wait_for()
    return perf_counter() - began, tab.locator(".step-view")


@contextmanager
def _server() -> Iterator[str]:
    words = ["app", "--no-browser"]
    with ChildServer(
        PREP, args=words, name="prep app", path=HEALTH, stdout=DEVNULL, stderr=DEVNULL
    ) as server:
        yield server.url
