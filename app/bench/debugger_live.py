"""Measure the live page in a browser: steps shown per second, and the delay of a pause.

The engine runs in a separate process, the workbench attaches to it, and a real Chromium shows it; on two cores all
three compete.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import quote

from app.bench.debugger_browser import TIMEOUT_MS, workbench
from app.bench.timing import Spread, Tell, spread
from app.debugger.live.client import Port
from app.debugger.live.process import EngineProcess
from app.debugger.live.settings import LiveSettings
from app.debugger.live.workloads import Traffic, make

PACE = 12.0
"""Steps per second that the engine is set to run."""
WATCH_S = 6
POLL_S = 0.005

_STEPS_SEEN = """async (root, seconds) => {
    const seen = new Set(), began = performance.now();
    await new Promise((done) => {
        const frame = () => {
            seen.add(root.dataset.step);
            performance.now() - began > 1000 * seconds ? done() : requestAnimationFrame(frame);
        };
        requestAnimationFrame(frame);
    });
    return seen.size / ((performance.now() - began) / 1000);
}"""
_SAYS = "text => (document.querySelector('.live-status')?.textContent ?? '').includes(text)"


@dataclass(frozen=True)
class LiveCost:
    pace: float
    steps_shown_per_s: float
    """Different steps that the page showed while the engine ran at that pace."""
    engine_steps_per_s: float
    """Steps per second of the engine in that time."""
    pause_engine: Spread
    """Time from the click on Pause until the engine has stopped."""
    pause_shown: Spread
    """Time from the click until the page shows it."""
    interrupted: bool = False


def measure_live(tell: Tell, *, pauses: int = 10) -> LiveCost:
    """Measure. Raises RuntimeError where playwright or Chromium is missing."""
    tell("an engine starts")
    traffic = Traffic(200, 96, full_length=True, seed=0, priorities=False, adapters=())
    engine = EngineProcess(LiveSettings(), make("chat", traffic), steps_per_s=PACE)
    try:
        url = engine.wait_for_url()
        port = Port(url)
        with workbench() as (address, browser):
            tab = browser.new_page(viewport={"width": 1280, "height": 900})
            tab.set_default_timeout(TIMEOUT_MS)
            tab.goto(f"{address}/live?attach={quote(url, safe='')}")
            view = tab.locator('.step-view[data-map="ready"]')
            view.wait_for()
            tell("watching it run")
            tab.wait_for_timeout(2000)
            first, began = port.info()["step"], time.perf_counter()
            shown = view.evaluate(_STEPS_SEEN, WATCH_S)
            ran = (port.info()["step"] - first) / (time.perf_counter() - began)
            tell("pausing")
            stopped, said = [], []
            for _ in range(pauses):
                tab.wait_for_function(_SAYS, arg="running")
                tab.wait_for_timeout(700)
                watch = _Watch(lambda: bool(port.info()["paused"]))
                clicked = time.perf_counter()
                tab.get_by_role("button", name="Pause", exact=True).click()
                tab.wait_for_function(_SAYS, arg="paused")
                said.append(time.perf_counter() - clicked)
                stopped.append(watch.wait() - clicked)
                tab.get_by_role("button", name="Run", exact=True).click()
    finally:
        engine.stop()
    return LiveCost(PACE, shown, ran, spread(stopped), spread(said))


class _Watch(threading.Thread):
    """Record the time at which a condition becomes true."""

    def __init__(self, is_true: Callable[[], bool]) -> None:
        super().__init__(daemon=True)
        self._is_true = is_true
        self._when = 0.0
        self.start()

    def run(self) -> None:
        while not self._is_true():
            time.sleep(POLL_S)
        self._when = time.perf_counter()

    def wait(self) -> float:
        self.join(10)
        return self._when
