"""axe finds nothing on any page in either theme; one h1 per page; the keyboard passes the block map in one step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect

from app.debugger.main import PAGES

pytestmark = pytest.mark.slow

AT_REST = "[data-test-script-state=notRunning]"
RUN = "run=memory-pressure&step=34"
STATES = {
    "step": f"{RUN}&request=eve&block=5",
    "requests": f"{RUN}&request=eve",
    "blocks": f"{RUN}&block=5",
    "metrics": RUN,
    "compare": f"{RUN}&other=full-cache",
    "kernel": RUN,
    "learn": "tour=ttft&stop=2",
}
"""Page -> parameters of its address with which all its parts are shown."""
OF_STREAMLIT = {"presentation-role-conflict": '[data-testid="stFileUploaderDropzone"]'}
"""Rules that an element of Streamlit itself breaks, with the element."""
FIND = """async (mine) => {
    const {violations} = await axe.run({resultTypes: ["violations"]});
    const html = (node) => `${node.target.flat().join(" ")} ${node.html.slice(0, 160)}`;
    const isKnown = (rule, node) => mine[rule] && document.querySelector(node.target[0])?.matches(mine[rule]);
    return violations.flatMap(({id, nodes}) =>
        nodes.filter((node) => !isKnown(id, node)).map((node) => `${id}: ${html(node)}`));
}"""


@pytest.fixture(scope="module")
def axe() -> str:
    package: Any = pytest.importorskip(
        "axe_playwright_python", reason="needs: pip install axe-playwright-python"
    )
    return Path(package.__file__).with_name("axe.min.js").read_text()


def opened(tab: Page, app_url: str, page: str) -> Locator:
    """Open a page; return its h1 once all parts are there."""
    tab.goto(f"{app_url}/{page}?{STATES.get(page, '')}")
    title = tab.get_by_role("heading", level=1)
    expect(title.first).to_be_visible()
    tab.locator(AT_REST).wait_for()
    expect(tab.get_by_test_id("stSkeleton")).to_have_count(0)
    tab.locator("html.prep-shown").wait_for(state="attached")
    return title


@pytest.mark.parametrize("page", PAGES)
def test_axe_finds_nothing_and_there_is_one_h1(app_url: str, tab: Page, axe: str, page: str) -> None:
    title = opened(tab, app_url, page)
    expect(title).to_have_count(1)
    for scheme in ("dark", "light"):
        tab.emulate_media(color_scheme=scheme)
        tab.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
        tab.evaluate(axe)
        assert not tab.evaluate(FIND, OF_STREAMLIT), scheme


def test_the_block_map_and_the_timeline_are_one_tab_stop_each(app_url: str, tab: Page) -> None:
    opened(tab, app_url, "step")
    expect(tab.locator(".step-view[data-details=ready]")).to_be_visible()
    for canvas, inside in (("map", "Shift+ArrowRight"), ("timeline", "ArrowRight")):
        drawn = tab.locator(f"canvas.{canvas}")
        drawn.focus()
        tab.keyboard.press(inside)
        expect(drawn).to_be_focused()
        tab.keyboard.press("Tab")
        expect(drawn).not_to_be_focused()
        tab.keyboard.press("Shift+Tab")
        expect(drawn).to_be_focused()


def test_the_block_map_follows_the_systems_theme_at_once(app_url: str, tab: Page) -> None:
    opened(tab, app_url, "step")
    expect(tab.locator(".step-view[data-details=ready]")).to_be_visible()
    for scheme, ground in (("light", [255, 255, 255]), ("dark", [11, 16, 32])):
        tab.emulate_media(color_scheme=scheme)
        corner = """async (canvas) => {
            for (let frame = 0; frame < 3; frame++) await new Promise(requestAnimationFrame);
            const at = [canvas.width - 1, canvas.height - 1, 1, 1];
            return [...canvas.getContext("2d").getImageData(...at).data].slice(0, 3);
        }"""
        assert tab.locator("canvas.map").evaluate(corner) == ground
