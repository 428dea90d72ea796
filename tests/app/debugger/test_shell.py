"""The workbench starts, serves its first page, and asks nothing of the network."""

from __future__ import annotations

import json
import re

import pytest
from playwright.sync_api import Page

from app.cli.app import SCRIPT, SETTINGS


@pytest.mark.slow
def test_the_first_page_lists_the_runs(app_url: str, tab: Page) -> None:
    tab.goto(app_url)
    tab.get_by_role("heading", name="Runs", exact=True).wait_for()


def test_headings_have_their_size_before_the_style_sheet_arrives() -> None:
    """The theme is there at the first paint: with other sizes the page would jump."""
    sheet = (SCRIPT.parents[1] / "shell.css").read_text(encoding="utf-8")
    sizes = [
        re.search(rf"^h{level} {{ font-size: (\S+) !important", sheet, re.MULTILINE) for level in (1, 2, 3)
    ]
    assert json.loads(SETTINGS["theme.headingFontSizes"]) == [size and size[1] for size in sizes]


def test_no_folder_of_pages_lies_beside_the_script() -> None:
    """Streamlit would run one of its files alone for the first direct link to a fresh server."""
    assert SCRIPT.is_file()
    assert not (SCRIPT.parent / "pages").exists()
