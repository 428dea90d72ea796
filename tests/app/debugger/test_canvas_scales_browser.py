"""Every canvas draws the same picture at the same places at each ratio of device pixels to CSS pixels."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from playwright.sync_api import Locator, Page, expect

from app.debugger.colours import REQUESTS
from app.debugger.runs import open_run
from engine.core.request import Request
from engine.sampling_params import SamplingParams
from engine.trace.writer import TraceWriter
from tests.trace.trace_workloads import header, make_scheduler, sample

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.slow

FOLDER = Path(__file__).resolve().parents[3] / "app" / "debugger"
RUN = "memory-pressure"
READY = '.step-view[data-details="ready"][data-map="ready"]'
AT_REST = "[data-test-script-state=notRunning]"
RATIOS = (1.25, 1.5, 2, 3)
SIDE = 6
"""CSS pixels of a cell whose mean colour is compared; antialiased text differs inside of it."""
WITHIN = 48
"""Largest difference of a cell's mean channel between two ratios; a mark on a wrong place makes more than 100."""
MEANS = """(canvas, side) => {
    const { width, height } = canvas.getBoundingClientRect();
    const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
    const ground = getComputedStyle(canvas).getPropertyValue("--ground").trim();
    const behind = [1, 3, 5].map((at) => parseInt(ground.slice(at, at + 2), 16));
    const across = Math.floor(width / side), down = Math.floor(height / side);
    const sums = new Float64Array(across * down * 3), counts = new Uint32Array(across * down);
    for (let y = 0; y < canvas.height; y++) {
        const row = Math.floor(((y + 0.5) / canvas.height) * height / side);
        for (let x = 0; x < canvas.width; x++) {
            const column = Math.floor(((x + 0.5) / canvas.width) * width / side);
            if (row >= down || column >= across) continue;
            const at = 4 * (y * canvas.width + x), alpha = data[at + 3] / 255, cell = row * across + column;
            for (let i = 0; i < 3; i++) sums[3 * cell + i] += alpha * data[at + i] + (1 - alpha) * behind[i];
            counts[cell] += 1;
        }
    }
    return { across, down, means: Array.from(sums, (sum, at) => sum / counts[Math.floor(at / 3)]) };
}"""
COLOURS_AT = """(canvas, places) => {
    const { width, height } = canvas.getBoundingClientRect(), pen = canvas.getContext("2d");
    return places.map(([x, y]) => [...pen.getImageData(
        Math.floor((x * canvas.width) / width), Math.floor((y * canvas.height) / height), 1, 1).data].slice(0, 3));
}"""


@contextmanager
def tab_with(browser: Browser, ratio: float) -> Iterator[Page]:
    """A tab without animations whose screen has this ratio."""
    context = browser.new_context(
        viewport={"width": 1280, "height": 900},
        device_scale_factor=ratio,
        reduced_motion="reduce",
        color_scheme="dark",
    )
    page = context.new_page()
    page.set_default_timeout(60_000)
    yield page
    context.close()


def means(canvas: Locator) -> np.ndarray:
    found: dict[str, Any] = canvas.evaluate(MEANS, SIDE)
    return np.array(found["means"]).reshape(found["down"], found["across"], 3)


def preempted_step() -> int:
    event = open_run(RUN).index.next_event("preempt", -1)
    assert event is not None
    return event.step


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with 5000 blocks, more than have glyphs, of which three requests hold some."""
    path = tmp_path_factory.mktemp("large") / "large.itrace"
    scheduler = make_scheduler(num_blocks=5000, max_num_batched_tokens=8192)
    with TraceWriter(path, header(), scheduler) as tracer:
        for name, length in (("a", 900), ("b", 1700), ("c", 2600)):
            request = Request(name, list(range(length)), SamplingParams(max_tokens=6), 0)
            scheduler.add(request)
            tracer.add(request)
        for _ in range(5):
            out = scheduler.schedule()
            result = sample(scheduler, out, random.Random(0))
            tracer.step(out, result, scheduler.update(out, result), 0.0)
    return path


PICTURES = {
    "step": (f"step?run={RUN}&step={{step}}&block=5", (".map", ".timeline", ".lanes")),
    "a selected request": (f"step?run={RUN}&step={{step}}&request=ana", (".map", ".lanes")),
    "5000 blocks": ("step?run=file:{large}&step=3", (".map",)),
    "metrics": (f"metrics?run={RUN}&step={{step}}", (".lines .grid figure:nth-child(1) canvas",)),
    "router": ("capacity?view=router", (".routes canvas",)),
}
"""Name -> address, and the canvases of its page."""


def test_no_script_draws_on_a_canvas_that_is_not_compared_here() -> None:
    drawing = {path.stem for path in FOLDER.rglob("*.js") if 'getContext("2d")' in path.read_text()}
    assert drawing == {"block_map", "timeline", "lanes", "lines", "router_map"}


@pytest.mark.parametrize("name", PICTURES)
def test_a_canvas_draws_the_same_at_every_ratio(
    app_url: str, browser: Browser, large: Path, name: str
) -> None:
    address, canvases = PICTURES[name]
    address = address.format(step=preempted_step(), large=large)
    drawn: dict[float, list[np.ndarray]] = {}
    for ratio in (1, *RATIOS):
        with tab_with(browser, ratio) as page:
            page.goto(f"{app_url}/{address}")
            for canvas in canvases:
                page.locator(canvas).wait_for()
            if address.startswith("step"):
                page.locator(READY).wait_for()
            page.locator(AT_REST).wait_for()
            drawn[ratio] = [means(page.locator(canvas)) for canvas in canvases]
    for canvas, *pictures in zip(canvases, *drawn.values(), strict=True):
        first, *others = pictures
        assert first.std() > 10, f"{canvas}: nothing is drawn"
        for ratio, other in zip(RATIOS, others, strict=True):
            difference = np.abs(first - other).max(axis=2)
            row, column = np.unravel_index(difference.argmax(), difference.shape)
            where = f"{canvas} at ratio {ratio}, x {column * SIDE}, y {row * SIDE}"
            assert difference.max() < WITHIN, where


@pytest.mark.parametrize("ratio", (1, *RATIOS))
def test_the_corner_of_a_given_up_block_is_on_that_block(
    app_url: str, browser: Browser, ratio: float
) -> None:
    step, run = preempted_step(), open_run(RUN)
    victim = run.index.next_event("preempt", -1)
    assert victim is not None
    given = set(run.reader(step - 1).state_at(step - 1).block_tables[victim.request_id]) - {0}
    with tab_with(browser, ratio) as page:
        page.goto(f"{app_url}/step?run={RUN}&step={step}")
        page.locator(READY).wait_for()
        canvas = page.locator("canvas.map")
        grid = page.locator(".step-view").evaluate("(root) => root.view.map.grid")
        cell, columns = grid["cell"], grid["columns"]
        blocks = range(1, run.index.num_blocks)
        inside = [(block % columns * cell + cell - 9, block // columns * cell + cell - 8) for block in blocks]
        found = canvas.evaluate(COLOURS_AT, inside)
        colour = run.index.colours[run.reader(step).find(victim.request_id, step).number]
    wanted = [int(REQUESTS[colour][at : at + 2], 16) for at in (1, 3, 5)]
    marked = {block for block, shade in zip(blocks, found, strict=True) if shade == wanted}
    assert marked == given


CELLS = """(root, names) => {
    const { view } = root, owners = view.owners(), { cell, columns } = view.map.grid, scale = view.map.scale;
    const pen = root.querySelector(".map").getContext("2d"), found = {};
    for (let block = 1; block < view.map.numBlocks; block++) {
        if (owners.counts[block] !== 1) continue;
        const [x, y] = [(block % columns) * cell * scale, Math.floor(block / columns) * cell * scale];
        const data = pen.getImageData(x + scale, y + scale, (cell - 3) * scale, (cell - 3) * scale).data;
        found[owners.nameOf(block)] ??= [...data].join();
    }
    return [cell, found];
}"""
"""The pixels of one block of each request, without its edges."""


@pytest.mark.parametrize(("num_blocks", "cells"), [(150, (30, 60)), (700, (14, 20)), (2600, (4, 14))])
def test_two_requests_of_one_batch_never_look_alike(
    app_url: str, browser: Browser, tmp_path: Path, num_blocks: int, cells: tuple[int, int]
) -> None:
    """20 requests and 7 colours, with names that are shortened to the same letters."""
    path = tmp_path / "crowd.itrace"
    scheduler = make_scheduler(num_blocks=num_blocks, max_num_batched_tokens=512, max_num_seqs=32)
    names = [f"chatcmpl-{chr(97 + n)}-from-the-client" for n in range(20)]
    with TraceWriter(path, header(), scheduler) as tracer:
        for number, name in enumerate(names):
            request = Request(name, [number] * 9, SamplingParams(max_tokens=6), 0)
            scheduler.add(request)
            tracer.add(request)
        for _ in range(3):
            out = scheduler.schedule()
            result = sample(scheduler, out, random.Random(0))
            tracer.step(out, result, scheduler.update(out, result), 0.0)
    with tab_with(browser, 1) as page:
        page.goto(f"{app_url}/step?run=file:{path}&step=1")
        page.locator(READY).wait_for()
        cell, found = page.locator(".step-view").evaluate(CELLS)
        assert cells[0] <= cell <= cells[1] and set(found) == set(names)
        assert len(set(found.values())) == len(names)
        expect(page.locator(".key.marks")).to_be_visible()
        rows = page.locator(".batch tbody tr")
        looks = rows.evaluate_all(
            "(rows) => rows.map((row) => [row.style.cssText, row.querySelector('.swatch').textContent].join())"
        )
        assert len(set(looks)) == len(names) == len(looks)
