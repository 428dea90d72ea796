"""The page Compare in a real browser: a fork from the form to the first difference, by keyboard; a narrow screen."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, expect

RUN = "memory-pressure"


@pytest.mark.slow
def test_a_fork_from_the_form_opens_at_the_decision_that_differs(app_url: str, tab: Page) -> None:
    tab.goto(f"{app_url}/compare?run={RUN}&fork=5")
    budget = tab.get_by_role("spinbutton", name="max_num_batched_tokens")
    recorded = int(budget.input_value())
    budget.fill(str(recorded // 2))
    budget.press("Tab")
    tab.get_by_role("button", name="Run the fork").press("Enter")
    tab.get_by_text(re.compile(r"The first different decision is in step \d+")).wait_for()
    left, right = tab.locator('[data-side="A"]'), tab.locator('[data-side="B"]')
    step = left.get_attribute("data-step")
    assert step is not None and right.get_attribute("data-step") == step
    expect(tab).to_have_url(re.compile(rf"other=mine%3A{RUN}-at5-\S*{recorded // 2}"))
    expect(
        tab.get_by_role("img", name=re.compile(rf"Blocks of run B after step {step}: \d+ shared"))
    ).to_be_visible()
    tab.get_by_role("button", name="Next ▶").press("Enter")
    expect(left).not_to_have_attribute("data-step", step)
    there = str(left.get_attribute("data-step"))
    expect(tab).to_have_url(re.compile(rf"step={there}\b"))
    tab.goto(tab.url)
    expect(left).to_have_attribute("data-step", there)


@pytest.mark.slow
def test_a_click_on_a_shaded_stretch_opens_its_step(app_url: str, tab: Page) -> None:
    tab.goto(f"{app_url}/compare?run=recompute&other=swap")
    lives = tab.get_by_role("img", name=re.compile(r"^1 request in A and in B .* dan differs in 29 steps"))
    stretch = lives.locator("rect.box.phase").last
    stretch.hover()
    expect(tab.get_by_text("dan, steps 71 to 72: decode in A, absent in B")).to_be_visible()
    stretch.click()
    expect(tab).to_have_url(re.compile(r"step=7[12]\b.*request=dan"))
    expect(tab.locator('[data-side="A"]')).to_have_attribute("data-step", re.compile("7[12]"))


@pytest.mark.slow
def test_it_fits_a_narrow_screen(app_url: str, tab: Page) -> None:
    tab.set_viewport_size({"width": 375, "height": 800})
    tab.goto(f"{app_url}/compare?run={RUN}&other=swap")
    tab.get_by_text("Blocks of both").wait_for()
    assert tab.evaluate("document.scrollingElement.scrollWidth") <= 375
