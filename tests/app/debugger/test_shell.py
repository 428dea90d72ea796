"""The workbench starts, serves its first page, and asks nothing of the network."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page


@pytest.mark.slow
def test_the_first_page_lists_the_runs(app_url: str, tab: Page) -> None:
    tab.goto(app_url)
    tab.get_by_role("heading", name="Runs").wait_for()
