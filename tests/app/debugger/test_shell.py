"""The workbench starts, serves its first page, and asks nothing of the network."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page

from app.cli.app import SCRIPT
from app.debugger.first_paint import with_style


@pytest.mark.slow
def test_the_first_page_lists_the_runs(app_url: str, tab: Page) -> None:
    tab.goto(app_url)
    tab.get_by_role("heading", name="Runs", exact=True).wait_for()


def test_the_style_sheet_is_in_the_first_html() -> None:
    """A sheet that arrives later would move what is already painted."""
    page = with_style("<html><head></head><body><div id=root></div></body></html>")
    sheet = (SCRIPT.parents[1] / "shell.css").read_text(encoding="utf-8")
    assert page.index("h1 {") < page.index("<div id=root>") and sheet in page


def test_no_folder_of_pages_lies_beside_the_script() -> None:
    """Streamlit would run one of its files alone for the first direct link to a fresh server."""
    assert SCRIPT.is_file()
    assert not (SCRIPT.parent / "pages").exists()
