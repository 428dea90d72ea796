"""In the browser: start an engine, watch it, pause, inject, abort, rewind, stop; and attach to one from outside."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[3]


def status(tab: Page) -> Locator:
    return tab.locator(".live-status")


def wait_for(tab: Page, pattern: str) -> str:
    """Until the status line says so; what it says."""
    tab.wait_for_function(
        "pattern => new RegExp(pattern).test(document.querySelector('.live-status')?.textContent ?? '')",
        arg=pattern,
    )
    return status(tab).inner_text()


def engine_step(tab: Page) -> int:
    return int(status(tab).get_attribute("data-step") or -1)


def press(tab: Page, name: str) -> None:
    tab.get_by_role("button", name=name, exact=True).click()


def test_start_watch_pause_inject_abort_rewind_stop(app_url: str, tab: Page) -> None:
    tab.goto(f"{app_url}/live")
    press(tab, "Start the engine")
    wait_for(tab, "running at 5 steps/s")
    view = tab.locator(".step-view")
    view.wait_for()
    tab.wait_for_function("() => Number(document.querySelector('.live-status').dataset.step) > 12")
    assert not view.locator("[data-break=preempt]").is_visible(), "the engine's breakpoints are the only list"
    press(tab, "Pause")
    wait_for(tab, "paused: a user asked for it")
    step = engine_step(tab)
    tab.locator(f'.step-view[data-step="{step}"]').wait_for()

    tab.get_by_role("button", name="Inject").click()
    tab.get_by_label("Prompt").fill("Which title is cheaper?")
    press(tab, "Inject")
    tab.get_by_text("injected-1 waits").wait_for()
    tab.get_by_label("Prompt").wait_for(state="hidden")
    tab.get_by_role("button", name="Abort").click()
    press(tab, "Abort it")
    tab.get_by_text("is aborted: its blocks are free").wait_for()
    assert engine_step(tab) == step, "none of this was a step"
    press(tab, "Step 10")
    wait_for(tab, f"paused: the requested steps have run.*after step {step + 10}")
    tab.locator(f'.step-view[data-step="{step + 10}"]').wait_for()

    before = re.match(r"live:\d+", status(tab).inner_text())
    tab.get_by_role("button", name="Rewind").click()
    tab.get_by_label("To the state after step").fill("6")
    tab.get_by_label("To the state after step").press("Tab")
    press(tab, "Rewind")
    tab.get_by_text("Replayed 7 steps").wait_for()
    tab.get_by_text("with the same decisions").wait_for()
    after = re.match(r"live:\d+", wait_for(tab, "paused: it was rewound to here · after step 6"))
    assert before and after and before[0] != after[0]

    press(tab, "Save and fork here")  # the page refreshes itself meanwhile; the next one must not
    assert tab.get_by_role("spinbutton", name="Fork at step, 0 to 6").input_value() == "6"
    tab.goto(f"{app_url}/live?run={after[0]}")
    wait_for(tab, "paused: it was rewound to here · after step 6")

    press(tab, "Stop")
    wait_for(tab, "ended: the engine was shut down")
    tab.locator('.step-view[data-step="6"]').wait_for()


CLICK_STOP = """() => {
    let clicked = -5000;  // a click on a button that is being replaced is lost
    const timer = setInterval(() => {
        const status = document.querySelector(".live-status")?.textContent ?? "";
        const stop = [...document.querySelectorAll("button")].find((each) => each.innerText.trim() === "Stop");
        if (status.includes("ended")) clearInterval(timer);
        else if (stop && performance.now() - clicked > 5000) { clicked = performance.now(); stop.click(); }
    }, 5);
}"""


def test_a_run_that_is_stopped_before_its_view_is_there_shows_its_last_step(app_url: str, tab: Page) -> None:
    tab.goto(f"{app_url}/live")
    press(tab, "Start the engine")
    tab.wait_for_function("() => Number(document.querySelector('.live-status')?.dataset.step) > 3")
    press(tab, "Pause")
    run = re.match(r"live:\d+", wait_for(tab, "paused: a user asked for it"))
    step = engine_step(tab)
    assert run
    slowed = tab.context.new_cdp_session(tab)
    slowed.send("Emulation.setCPUThrottlingRate", {"rate": 4})  # the view takes seconds to be there
    tab.goto(f"{app_url}/live?run={run[0]}")
    tab.evaluate(CLICK_STOP)
    wait_for(tab, "ended: the engine was shut down")
    slowed.send("Emulation.setCPUThrottlingRate", {"rate": 1})
    tab.locator(f'.step-view[data-step="{step}"]').wait_for()


RUN_IS = """isBlue => {
    const button = (name) => [...document.querySelectorAll("button")].filter((each) => each.innerText.trim() === name);
    const [[run, ...others], [pause]] = [button("Run"), button("Pause")];
    const ground = (element) => getComputedStyle(element).backgroundColor;
    return run && pause && !others.length && (ground(run) !== ground(pause)) === isBlue;
}"""


def until_run_is(tab: Page, is_blue: bool) -> None:
    """Wait until Run has another colour than Pause, or the same, with the mouse over neither."""
    tab.mouse.move(0, 0)
    tab.wait_for_function(RUN_IS, arg=is_blue)


def test_run_is_blue_while_the_engine_is_paused(app_url: str, tab: Page) -> None:
    tab.goto(f"{app_url}/live")
    press(tab, "Start the engine")
    wait_for(tab, "running at 5 steps/s")
    until_run_is(tab, False)
    press(tab, "Pause")
    wait_for(tab, "paused: a user asked for it")
    until_run_is(tab, True)
    tab.get_by_role("button", name="Breakpoints").click()
    tab.get_by_label("fewer free blocks than (0: off)").fill("1000")
    press(tab, "Set")
    tab.get_by_text("1 breakpoint set.").wait_for()
    press(tab, "Run")
    wait_for(tab, "paused: breakpoint")
    until_run_is(tab, True)  # the engine stopped by itself
    tab.get_by_role("button", name="Breakpoints").click()
    tab.get_by_label("fewer free blocks than (0: off)").fill("0")
    press(tab, "Set")
    tab.get_by_text("No breakpoints.").wait_for()
    press(tab, "Run")
    wait_for(tab, "running at 5 steps/s")
    until_run_is(tab, False)
    press(tab, "Stop")
    wait_for(tab, "ended: the engine was shut down")


ATTACHED = """
from engine import LLM, SamplingParams
with LLM("shop", debug_port=0, num_gpu_blocks_override=64) as llm:
    llm.llm_engine.engine_core.debug.control.pause()
    params = SamplingParams(max_tokens=200, ignore_eos=True)
    llm.generate(["The cheapest title", "Readers of"], params, use_tqdm=False)
    input()
"""


def test_attach_to_an_engine_that_runs_elsewhere_at_375_pixels(app_url: str, tab: Page) -> None:
    tab.set_viewport_size({"width": 375, "height": 740})
    engine = subprocess.Popen(
        [sys.executable, "-c", ATTACHED],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    try:
        assert engine.stderr is not None
        url = next(found[0] for line in engine.stderr if (found := re.search(r"http://\S+(?=')", line)))
        tab.goto(f"{app_url}/live?attach={url.replace('?', '%3F').replace('=', '%3D')}")
        wait_for(tab, "paused: .*clients wait.* before step 0 · 0 running · 2 waiting")
        assert "token" not in tab.url, "the token does not stay in the address"
        press(tab, "Step 10")
        wait_for(tab, "after step 9 · 2 running")
        tab.locator('.step-view[data-step="9"]').wait_for()
        assert tab.get_by_role("button", name="Rewind").count() == 0, "not ours to start again"
        width = tab.evaluate("document.documentElement.scrollWidth")
        assert width <= 375, "nothing sticks out"
        engine.kill()
        wait_for(tab, "ended: the engine has ended without a message")
        tab.locator('.step-view[data-step="9"]').wait_for()
    finally:
        engine.kill()
        engine.wait()
