"""Charts and tables end where their column ends, also on half of a screen."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from app.debugger.main import PAGES
from tests.app.debugger.test_accessibility_browser import opened
from tests.trace.trace_workloads import random_run

BEYOND = """() => [...document.querySelectorAll(".stMain :is(canvas, svg, table, img, input)")]
    .map((each) => [each, each.closest(".stColumn") ?? each.closest(".stMainBlockContainer")])
    .filter(([each, column]) => column && each.checkVisibility() && !each.closest("[data-testid=stDataFrame]"))
    .filter(([each, column]) => {
        for (let at = each.parentElement; at !== column; at = at.parentElement)
            if (getComputedStyle(at).overflowX !== "visible") return false;
        return each.getBoundingClientRect().right > column.getBoundingClientRect().right + 2;
    })
    .map(([each]) => each.outerHTML.slice(0, 120))"""
"""Elements that stick out of their column, unless they can be scrolled there."""
UNSEEN = """(frame) => {
    const scroller = frame.querySelector(".dvn-scroller");
    return scroller.scrollWidth - scroller.clientWidth;
}"""
"""Pixels of a table's rows that show only when it is scrolled sideways."""


@pytest.fixture
def half(tab: Page) -> Page:
    """A tab as wide as half of a screen."""
    tab.set_viewport_size({"width": 900, "height": 900})
    return tab


def test_nothing_sticks_out_of_its_column(app_url: str, half: Page) -> None:
    """CI's smoke test: every page opens in a browser, and none logs an error."""
    beyond = {}
    for page in PAGES:
        opened(half, app_url, page)
        beyond[page] = half.evaluate(BEYOND)
    assert not any(beyond.values()), beyond


OPEN_FRAMES = """() => [...document.querySelectorAll("[data-testid=stButtonGroup] button")]
    .filter((each) => ["Left", "Right"].some((side) => getComputedStyle(each)[`border${side}Color`].endsWith(", 0)")))
    .map((each) => each.textContent)"""
"""Choices without a line at one of their sides."""


@pytest.mark.slow
@pytest.mark.parametrize(("page", "most"), [("learn", 2), ("compare", 2), ("requests", 1)])
def test_choices_that_wrap_keep_their_frames(app_url: str, half: Page, page: str, most: int) -> None:
    opened(half, app_url, page)
    assert half.evaluate(OPEN_FRAMES) == []
    rows = half.get_by_test_id("stButtonGroup").first.evaluate(
        "(each) => new Set([...each.querySelectorAll('button')].map((b) => b.getBoundingClientRect().top)).size"
    )
    assert rows <= most


@pytest.mark.slow
def test_long_ids_leave_room_for_the_figures_of_a_step(
    app_url: str, half: Page, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = random_run(
        tmp_path_factory.mktemp("long") / "run.itrace", 7, 24, prefix="chatcmpl-0f3c9a7e52b84d1d"
    ).path
    half.goto(f"{app_url}/step?run=file:{path}&step=30")
    half.locator('.step-view[data-details="ready"][data-map="ready"]').wait_for()
    reason = half.locator(".queue td:nth-child(4)").first
    box, panel = reason.bounding_box(), half.locator(".right").bounding_box()
    assert box is not None and panel is not None
    assert box["x"] + box["width"] <= panel["x"] + panel["width"] and box["width"] > 90


@pytest.mark.slow
def test_the_roofline_stays_in_its_column(app_url: str, half: Page) -> None:
    opened(half, app_url, "capacity")
    half.get_by_text("Roofline", exact=True).first.click()
    half.locator("table.roofline").wait_for()
    assert half.evaluate(BEYOND) == []


@pytest.mark.slow
def test_the_chart_of_a_wrong_number_stays_in_its_column(app_url: str, half: Page) -> None:
    half.goto(f"{app_url}/questions?question=batching.static_vs_continuous")
    for name in ("static (steps)", "continuous (steps)"):
        half.get_by_label(name).fill("300")
        half.get_by_label(name).press("Tab")
    half.get_by_role("button", name="Commit and run").click()
    expect(half.get_by_test_id("stVegaLiteChart").locator("canvas, svg").first).to_be_visible(timeout=60_000)
    assert half.evaluate(BEYOND) == []


@pytest.mark.slow
@pytest.mark.parametrize("key", ["request_reasons", "blocks_history"])
def test_explanations_in_tables_are_seen_without_scrolling(app_url: str, tab: Page, key: str) -> None:
    opened(tab, app_url, "requests" if key == "request_reasons" else "blocks")
    table = tab.locator(f"[class*=st-key-{key}]")
    table.locator(".dvn-scroller").wait_for(state="attached")
    assert table.evaluate(UNSEEN) == 0
