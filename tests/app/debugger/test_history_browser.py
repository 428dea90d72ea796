"""The browser's history and address: one entry per page, Back and a refresh keep the step, a title per page."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, expect

from app.debugger import main

pytestmark = pytest.mark.slow
RUN = "memory-pressure"
AT_REST = "[data-test-script-state=notRunning]"
PAGES = {entry.title: path for path, entry in main.PAGES.items() if path not in ("runs", "step")}


def address(step: int) -> re.Pattern[str]:
    return re.compile(rf"run={RUN}&step={step}\b")


def test_steps_replace_the_address_and_every_page_is_one_entry(app_url: str, tab: Page) -> None:
    tab.goto(f"{app_url}/step?run={RUN}&step=30")
    view = tab.locator(".step-view[data-details=ready]")
    expect(view).to_have_attribute("data-step", "30")
    before = tab.evaluate("history.length")
    for step in range(31, 35):
        tab.keyboard.press("ArrowRight")
        expect(view).to_have_attribute("data-step", f"{step}")
    expect(tab).to_have_url(address(34))
    assert tab.evaluate("history.length") == before
    visited = []
    for entries, (title, path) in enumerate(PAGES.items(), start=1):
        tab.get_by_role("link", name=title).click()
        expect(tab).to_have_title(f"{title} · prep")
        expect(tab).to_have_url(re.compile(rf"/{path}\?run={RUN}&step=34\b"))
        tab.locator(AT_REST).wait_for()
        visited.append(tab.url)
        assert tab.evaluate("history.length") == before + entries
    tab.reload()
    expect(tab).to_have_url(visited[-1])
    for title, url in reversed(list(zip(PAGES, visited, strict=True))[:-1]):
        tab.go_back()
        expect(tab).to_have_url(url)
        expect(tab).to_have_title(f"{title} · prep")  # the server has answered: it leads a faster reader back
        tab.locator(AT_REST).wait_for()
    tab.go_back()
    expect(view).to_have_attribute("data-step", "34")
    tab.locator(AT_REST).wait_for()
    tab.go_forward()
    expect(tab).to_have_url(visited[0])
    expect(tab.get_by_role("heading", name="Requests", level=1)).to_be_visible()


def test_back_returns_to_the_step_that_its_page_showed(app_url: str, tab: Page) -> None:
    tab.goto(f"{app_url}/step?run={RUN}&step=34")
    view = tab.locator(".step-view[data-details=ready]")
    expect(view).to_have_attribute("data-step", "34")
    tab.get_by_role("link", name="Metrics").click()
    expect(tab.get_by_role("heading", name="Metrics")).to_be_visible()
    tab.locator(AT_REST).wait_for()
    tab.keyboard.press("ArrowRight")
    expect(tab).to_have_url(address(35))
    tab.locator(AT_REST).wait_for()
    tab.go_back()
    expect(tab).to_have_url(address(34))
    expect(view).to_have_attribute("data-step", "34")


def test_back_from_run_b_returns_to_the_comparison_as_it_was(app_url: str, tab: Page) -> None:
    tab.goto(f"{app_url}/compare?run=recompute&step=31&other=swap")
    tab.get_by_role("button", name="Open B at step 31").click()
    expect(tab).to_have_url(re.compile(r"/step\?run=swap&step=31"))
    tab.locator(AT_REST).wait_for()
    tab.go_back()
    expect(tab).to_have_url(f"{app_url}/compare?run=recompute&step=31&other=swap")
    expect(tab.get_by_text("B has 2 fewer steps")).to_be_visible()
