"""The pages Requests, Blocks and Metrics in a real browser: what a click, a drag and a key do."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Locator, Page, expect

pytestmark = pytest.mark.slow
expect.set_options(timeout=20_000)  # as the tab's own: a machine may be busy
RUN = "run=memory-pressure"


def gantt(tab: Page) -> Locator:
    return tab.get_by_role("img", name=re.compile("Gantt chart of 5 requests"))


def test_a_click_on_a_bar_opens_its_request_at_its_step(app_url: str, tab: Page) -> None:
    tab.goto(f"{app_url}/requests?{RUN}")
    gantt(tab).locator("rect.box.preempted").first.click()
    expect(tab.get_by_role("heading", name="Request dan")).to_be_visible()
    expect(tab).to_have_url(re.compile(r"step=4\d.*request=dan"))
    expect(tab.get_by_text(re.compile("Preempted in step 43.*released 13 blocks"))).to_be_visible()
    tab.get_by_role("tab", name=re.compile("Tokens")).click()
    expect(tab.get_by_role("img", name="44 output tokens in order")).to_be_visible()
    tab.get_by_role("button", name="Open step 4").click()
    expect(tab).to_have_url(re.compile(r"/step\?.*step=4\d"))


def test_arrow_keys_and_enter_choose_a_bar(app_url: str, tab: Page) -> None:
    tab.goto(f"{app_url}/requests?{RUN}")
    gantt(tab).wait_for()
    gantt(tab).focus()
    for key in ("ArrowRight", "ArrowDown", "Enter"):
        tab.keyboard.press(key)
    expect(tab.get_by_role("heading", name="Request ben")).to_be_visible()


def test_the_detail_stands_beside_the_list_and_follows_the_arrow_keys(app_url: str, tab: Page) -> None:
    tab.set_viewport_size({"width": 1440, "height": 900})
    tab.goto(f"{app_url}/requests?{RUN}&step=34&request=dan")
    expect(tab.get_by_text("waits: too few free blocks")).to_be_visible()
    expect(gantt(tab).locator("circle.hit")).to_have_count(5)
    title = tab.get_by_role("heading", name="Request dan")
    chart, detail = gantt(tab).bounding_box(), title.bounding_box()
    assert chart is not None and detail is not None and detail["x"] > chart["x"] + chart["width"]
    tab.keyboard.press("ArrowDown")
    expect(tab.get_by_role("heading", name="Request eve")).to_be_visible()
    expect(tab).to_have_url(re.compile("request=eve"))
    tab.set_viewport_size({"width": 1024, "height": 700})
    title = tab.get_by_role("heading", name="Request eve")
    expect(gantt(tab)).to_have_attribute("viewBox", re.compile(r"^0 0 9\d\d "))
    assert title.evaluate("each => each.getBoundingClientRect().top") > 400


def test_a_row_of_the_table_opens_its_request(app_url: str, tab: Page) -> None:
    tab.goto(f"{app_url}/requests?{RUN}")
    table = tab.get_by_test_id("stDataFrame").first
    table.wait_for()
    gantt(tab).wait_for()
    table.click(position={"x": 17, "y": 36 * 3.5})
    expect(tab.get_by_role("heading", name="Request cleo")).to_be_visible()
    expect(tab).to_have_url(re.compile("request=cleo"))


def test_a_node_of_the_tree_opens_its_block_and_stepping_moves_the_tree(app_url: str, tab: Page) -> None:
    tab.goto(f"{app_url}/blocks?{RUN}&step=20")
    tree = tab.get_by_role("img", name=re.compile("Tree of shared prefixes after step 20"))
    tree.locator("rect.box.shared").first.click()
    expect(tab).to_have_url(re.compile(r"block=\d+"))
    expect(tab.get_by_text(re.compile(r"Block \d+ is held by"))).to_be_visible()
    tab.get_by_role("button", name="▶").click()
    expect(tab.get_by_role("heading", name="Prefix tree after step 21")).to_be_visible()
    expect(tab).to_have_url(re.compile("step=21"))


def test_a_drag_over_a_chart_is_a_range_for_the_page_requests_and_a_click_a_step(
    app_url: str, tab: Page
) -> None:
    tab.goto(f"{app_url}/metrics?{RUN}")
    chart = tab.locator(".lines canvas").first
    box = chart.bounding_box()
    assert box is not None
    y = box["y"] + 40
    tab.mouse.move(box["x"] + 150, y)
    tab.mouse.down()
    tab.mouse.move(box["x"] + 220, y, steps=4)
    tab.mouse.move(box["x"] + 300, y, steps=4)
    tab.mouse.up()
    expect(tab.get_by_text(re.compile(r"Range: \d+ steps, \d+ to \d+"))).to_be_visible()
    said = tab.get_by_text(re.compile(r"Range: \d+ steps, \d+ to \d+")).inner_text()
    first, last = re.findall(r"\d+", said)[1:3]
    chart.click(position={"x": 400, "y": 40})
    expect(tab).to_have_url(re.compile(r"step=\d+"))
    tab.get_by_role("button", name="Requests in range").click()
    expect(tab.get_by_role("img", name=re.compile(f"over steps {first} to {last}"))).to_be_visible()


def test_the_keyboard_moves_a_cursor_over_the_charts_and_the_text_tells_what_is_there(
    app_url: str, tab: Page
) -> None:
    tab.goto(f"{app_url}/metrics?{RUN}&step=30")
    charts = tab.get_by_role("group", name=re.compile("6 charts over 71 steps"))
    charts.wait_for()
    charts.focus()
    for _ in range(4):
        tab.keyboard.press("ArrowRight")
    expect(tab.get_by_text(re.compile("step 34: running 4.*1 preempted"))).to_be_visible()
    tab.keyboard.press("Enter")
    expect(tab).to_have_url(re.compile("step=34"))


@pytest.mark.parametrize("page", ["requests", "blocks", "metrics"])
def test_pages_fit_a_phone(app_url: str, tab: Page, page: str) -> None:
    tab.set_viewport_size({"width": 375, "height": 800})
    tab.goto(f"{app_url}/{page}?{RUN}&step=34&request=eve&block=3")
    expect(tab.get_by_role("button", name="Open step 34")).to_be_visible()
    expect(tab.locator("svg[role=img], .lines canvas").first).to_be_visible()
    assert tab.evaluate("document.documentElement.scrollWidth") <= 375
    for chart in tab.locator("svg[role=img], .lines canvas").all():
        box = chart.bounding_box()
        assert box is not None and box["x"] >= 0 and box["x"] + box["width"] <= 375
