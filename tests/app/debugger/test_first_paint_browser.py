"""Layout shifts as the browser counts them, over all pages: a page stays where it is once it is shown."""

from __future__ import annotations

from typing import Literal

import pytest
from playwright.sync_api import Page, expect

from app.debugger.first_paint import STYLE
from app.debugger.main import PAGES
from tests.app.debugger.test_accessibility_browser import AT_REST, STATES, opened

pytestmark = pytest.mark.slow
MOST = 0.05
"""Sum of the shifts of all pages; the browser rates 0.1 on one page as good."""
COUNT = """
    window.shifts = [];
    new PerformanceObserver((list) => {
        for (const entry of list.getEntries()) window.shifts.push(entry.value);
    }).observe({type: "layout-shift", buffered: true});
"""
SHIFTED = """async () => {
    for (let frame = 0; frame < 60; frame++) await new Promise(requestAnimationFrame);
    return window.shifts.reduce((sum, value) => sum + value, 0);
}"""


def test_no_page_moves_after_its_first_paint(app_url: str, tab: Page) -> None:
    tab.add_init_script(COUNT)
    shifts = {}
    for page in PAGES:
        tab.goto(f"{app_url}/{page}?{STATES.get(page, '')}")  # the server loads what the page needs
        tab.locator(AT_REST).wait_for()
        opened(tab, app_url, page)
        shifts[page] = tab.evaluate(SHIFTED)
    assert sum(shifts.values()) < MOST, shifts


def without_streamlit(tab: Page, app_url: str, script: str = "") -> None:
    """Open the page with another script in the place of Streamlit's."""
    tab.route("**/static/js/index*", lambda route: route.fulfill(content_type="text/javascript", body=script))
    tab.goto(app_url)


def test_the_style_is_there_before_the_first_element(app_url: str, tab: Page) -> None:
    without_streamlit(tab, app_url)
    ground = "getComputedStyle(document.documentElement).getPropertyValue('--ground')"
    assert tab.evaluate(ground) == "#ffffff"


def test_a_page_that_waits_is_shown_while_it_waits(app_url: str, tab: Page) -> None:
    spinner = "document.body.insertAdjacentHTML('beforeend', '<i data-testid=stSpinner></i>')"
    without_streamlit(tab, app_url, spinner)
    expect(tab.locator("html.prep-shown")).to_be_attached()


@pytest.mark.parametrize("motion", ["reduce", "no-preference"])
def test_a_page_is_shown_after_10_s_without_a_script(
    tab: Page, motion: Literal["reduce", "no-preference"]
) -> None:
    style = f"<style>{STYLE.read_text(encoding='utf-8')}</style>"
    tab.emulate_media(reduced_motion=motion)
    tab.set_content(f"{style}<p class=stMainBlockContainer>contents</p>")
    main = tab.locator(".stMainBlockContainer")
    assert main.evaluate("element => getComputedStyle(element).opacity") == "0"
    later = """(element, ms) => {
        for (const animation of element.getAnimations()) { animation.pause(); animation.currentTime = ms; }
        return getComputedStyle(element).opacity;
    }"""
    assert [main.evaluate(later, ms) for ms in (9_999, 10_001)] == ["0", "1"]
