"""Kernel view and Capacity in a real browser: with the keyboard, and 375 px wide."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from app.debugger.kernel_walk.sources import code_by_form
from app.debugger.runs import path_of
from engine.trace.reader import TraceReader

pytestmark = pytest.mark.slow

RUN = "memory-pressure"
LOADING_MS = 90_000
"""The first answer waits for torch, on a machine that may do something else."""


def longest_table() -> tuple[int, str, list[int]]:
    """A step of the recorded run, the request with most blocks after it, and its table."""
    reader = TraceReader(path_of(RUN))
    step = max(
        range(reader.num_steps),
        key=lambda step: max(map(len, reader.state_at(step).block_tables.values()), default=0),
    )
    tables = reader.state_at(step).block_tables
    request = max(tables, key=lambda name: len(tables[name]))
    return step, request, tables[request]


def is_as_wide_as_its_window(tab: Page) -> bool:
    return bool(tab.evaluate("document.documentElement.scrollWidth <= window.innerWidth"))


def test_the_walk_by_keyboard_shows_the_block_table_and_a_whole_softmax(app_url: str, tab: Page) -> None:
    step, request, blocks = longest_table()
    tab.goto(f"{app_url}/kernel?run={RUN}&step={step}&request={request}&layer=1&head=2")
    walk = tab.locator(".walk")
    rows = walk.locator("tbody tr")
    expect(rows).to_have_count(len(blocks), timeout=LOADING_MS)
    expect(walk.locator(".formulas dt").first).to_be_visible(timeout=LOADING_MS)
    shown = [rows.nth(index).locator("td").nth(1).inner_text() for index in range(len(blocks))]
    assert [int(re.sub(r"\D", "", text)) for text in shown] == blocks
    shares = [float(text.strip("<% ")) for text in rows.locator("td.share").all_inner_texts() if text.strip()]
    assert sum(shares) == pytest.approx(100, abs=0.1 * len(shares))

    walk.focus()
    tab.keyboard.press("Home")
    expect(walk).to_have_attribute("data-page", "0")
    expect(walk.locator(".formulas")).to_contain_text("max(−∞,")
    tab.keyboard.press("ArrowRight")
    expect(walk).to_have_attribute("data-page", "1")
    expect(walk.get_by_role("status")).to_contain_text(
        f"Page 1 of 0 to {len(blocks) - 1} is block {blocks[1]}"
    )
    expect(walk.locator("tr[aria-current]")).to_have_attribute("data-page", "1")
    tab.keyboard.press("End")
    expect(walk).to_have_attribute("data-page", str(len(blocks) - 1))
    walk.get_by_role("button", name="previous page").press("Enter")
    expect(walk).to_have_attribute("data-page", str(len(blocks) - 2))

    code = walk.get_by_role("region", name="the line of each calculation")
    lines = {form["form"]: form["lines"] for form in code_by_form()}
    for form in ("CUDA", "Triton"):  # the first one is open at the start
        expect(code.get_by_role("combobox")).to_have_value(form)
        for index, line in enumerate(lines[form]):
            expect(code.locator("dd").nth(index)).to_contain_text(line["text"])
        code.get_by_role("combobox").select_option("Triton")
    tab.keyboard.press("End")
    named = set(code.locator("dt").all_inner_texts()) - {"block", "out"}
    assert named <= set(walk.locator(".formulas dt").all_inner_texts())


def test_another_head_keeps_the_page_and_changes_the_scores(app_url: str, tab: Page) -> None:
    step, request, _ = longest_table()
    tab.goto(f"{app_url}/kernel?run={RUN}&step={step}&request={request}")
    walk = tab.locator(".walk")
    expect(walk.locator(".formulas dt").first).to_be_visible(timeout=LOADING_MS)
    walk.focus()
    tab.keyboard.press("ArrowRight")
    before = walk.locator(".formulas").inner_text()
    tab.get_by_label("Head, 0 to 7").fill("5")
    tab.keyboard.press("Enter")
    expect(walk.locator(".formulas")).not_to_have_text(before, timeout=LOADING_MS)
    expect(walk).to_have_attribute("data-page", "1")
    tab.wait_for_url(re.compile("head=5"))


def test_a_head_is_chosen_from_the_picture_of_all_heads(app_url: str, tab: Page) -> None:
    step, request, _ = longest_table()
    tab.goto(f"{app_url}/kernel?run={RUN}&step={step}&request={request}")
    heads = tab.locator(".heads button")
    expect(heads).to_have_count(8, timeout=LOADING_MS)  # the model has answered: nothing is drawn anew now
    expect(heads.nth(6)).to_be_visible()
    heads.nth(6).press("Enter")
    expect(tab.locator(".heads .chosen")).to_contain_text("head 6", timeout=LOADING_MS)
    expect(tab.get_by_label("Head, 0 to 7")).to_have_value("6")


def test_a_model_that_is_gone_is_a_sentence_and_the_page_stays(
    app_url: str, tab: Page, tmp_path: Path
) -> None:
    """The trace of a folder that was deleted since: said once, not tried for ever."""
    lines = gzip.decompress(path_of(RUN).read_bytes()).split(b"\n", 1)
    header = json.loads(lines[0])
    header["model"] = header["config"]["args"]["model"] = "/nowhere/model"
    moved = tmp_path / "moved.itrace"
    moved.write_bytes(gzip.compress(json.dumps(header).encode() + b"\n" + lines[1]))
    step, request, blocks = longest_table()
    tab.goto(f"{app_url}/kernel?run=file:{moved}&step={step}&request={request}")
    expect(tab.get_by_text("No scores: no folder /nowhere/model")).to_be_visible(timeout=LOADING_MS)
    expect(tab.get_by_role("button", name="Try again")).to_be_visible()
    expect(tab.locator(".walk tbody tr")).to_have_count(len(blocks), timeout=LOADING_MS)


def test_the_drawing_keeps_its_place_when_scores_arrive(app_url: str, tab: Page) -> None:
    step, request, blocks = longest_table()
    tab.goto(f"{app_url}/kernel?run={RUN}&step={step}&request={request}")
    expect(tab.locator(".walk tbody tr")).to_have_count(len(blocks), timeout=LOADING_MS)
    expect(tab.locator("[data-test-script-state=notRunning]")).to_be_attached()
    places = tab.locator(".walk").evaluate(
        """async (walk) => {
            const found = [], place = () => walk.querySelector(".rows").getBoundingClientRect().top;
            for (let frame = 0; frame < 3600; frame++) {
                found.push(place());
                if (walk.querySelector(".heads button") && found.length > 30) break;
                await new Promise(requestAnimationFrame);
            }
            return [Math.min(...found), Math.max(...found), walk.querySelectorAll(".heads button").length];
        }"""
    )
    assert places[2] > 0 and places[1] - places[0] <= 24


def test_the_kernel_view_fits_a_phone(app_url: str, tab: Page) -> None:
    step, request, blocks = longest_table()
    tab.set_viewport_size({"width": 375, "height": 800})
    tab.goto(f"{app_url}/kernel?run={RUN}&step={step}&request={request}")
    expect(tab.locator(".walk tbody tr")).to_have_count(len(blocks), timeout=LOADING_MS)
    assert is_as_wide_as_its_window(tab)
    tab.get_by_role("button", name="next page").click()
    expect(tab.locator(".walk")).to_have_attribute("data-page", re.compile(r"\d+"))


def test_a_figure_is_opened_by_keyboard_and_stays_open_when_inputs_change(app_url: str, tab: Page) -> None:
    tab.goto(f"{app_url}/capacity")
    most = tab.locator(".tree summary", has_text="Cost per hour")
    most.focus()
    tab.keyboard.press("Enter")
    opened = tab.locator(".tree details[open]", has=tab.locator("summary", has_text="Cost per hour")).last
    expect(opened.locator("dd").first).to_have_text("GPUs x price")
    tab.get_by_role("slider", name="Requests per second").focus()
    tab.keyboard.press("ArrowRight")
    tab.wait_for_url(re.compile("rate=20"))
    expect(opened.locator("dd").first).to_have_text("GPUs x price")


def test_formula_and_run_stand_side_by_side(app_url: str, tab: Page) -> None:
    tab.goto(f"{app_url}/capacity?rate=2")
    tab.get_by_role("button", name="Run the simulation").press("Enter")
    table = tab.get_by_role("table")
    expect(table).to_contain_text("run / formula", timeout=60_000)
    expect(table.get_by_role("row").filter(has_text="Time per output token")).to_contain_text(" ms")


def test_capacity_fits_a_phone(app_url: str, tab: Page) -> None:
    tab.set_viewport_size({"width": 375, "height": 800})
    tab.goto(f"{app_url}/capacity?model=llama-3-70b")
    expect(tab.get_by_text("short by 62.3 GiB per GPU")).to_be_visible(timeout=LOADING_MS)
    assert is_as_wide_as_its_window(tab)
    for view in ("Roofline", "Router"):
        tab.goto(f"{app_url}/capacity?view={view.lower()}")
        expect(tab.get_by_role("img").first).to_be_visible(timeout=LOADING_MS)
        assert is_as_wide_as_its_window(tab), view


def test_a_remedy_is_clicked_and_a_point_of_the_roofline_explains_itself(app_url: str, tab: Page) -> None:
    tab.goto(f"{app_url}/capacity?model=llama-3-70b&rate=20")
    tab.get_by_role("button", name="Tensor parallel 1 → 2").click(timeout=LOADING_MS)
    expect(tab.get_by_text("short by")).to_have_count(0)
    tab.wait_for_url(re.compile("tp=2"))
    tab.get_by_role("button", name="Undo: Tensor parallel 1 → 2").click()
    expect(tab.get_by_text("short by 62.3 GiB per GPU")).to_be_visible()
    tab.goto(f"{app_url}/capacity?view=roofline&batch=64")
    plot = tab.locator(".plot svg")
    plot.focus(timeout=LOADING_MS)
    tab.keyboard.press("ArrowRight")
    expect(tab.locator(".plot .tip")).to_contain_text("QKV, decode")
    expect(tab.locator(".plot .tip")).to_contain_text("x 64 tokens")
