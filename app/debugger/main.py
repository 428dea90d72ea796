"""The list of pages, and what stands above each of them. Streamlit runs `entry/workbench.py`, which calls `main`."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

import streamlit as st

from app.debugger import session
from engine.core.trace_format import TraceError

ICON = Path(__file__).with_name("icon.svg")
STYLE = Path(__file__).with_name("shell.css")


class PageEntry(NamedTuple):
    module: str
    title: str
    icon: str


PAGES = {
    "runs": PageEntry("app.debugger.pages.runs", "Runs", ":material/folder_open:"),
    "step": PageEntry("app.debugger.pages.step", "Step", ":material/grid_view:"),
    "requests": PageEntry("app.debugger.pages.requests", "Requests", ":material/view_timeline:"),
    "blocks": PageEntry("app.debugger.pages.blocks", "Blocks", ":material/account_tree:"),
    "metrics": PageEntry("app.debugger.pages.metrics", "Metrics", ":material/monitoring:"),
    "compare": PageEntry("app.debugger.pages.compare", "Compare", ":material/compare_arrows:"),
    "live": PageEntry("app.debugger.pages.live", "Live", ":material/play_circle:"),
    "kernel": PageEntry("app.debugger.pages.kernel", "Kernel", ":material/memory:"),
    "capacity": PageEntry("app.debugger.pages.capacity", "Capacity", ":material/calculate:"),
    "learn": PageEntry("app.debugger.pages.learn", "Learn", ":material/school:"),
}
"""By URL path. A page is a module with a function `show()`."""


def _page(path: str, entry: PageEntry) -> st.Page:
    def show() -> None:
        function: Callable[[], None] = import_module(entry.module).show
        try:
            function()
        except TraceError as error:
            st.error(str(error))
        except Exception as error:
            if os.environ.get("PREP_DEBUG"):
                raise
            _tell(error)
        session.write_url()

    show.__name__ = path
    return st.Page(show, title=entry.title, icon=entry.icon, url_path=path, default=path == _home())


def _tell(error: Exception) -> None:
    """A mistake of ours, on the page in one line and in the terminal in full: the rest of the workbench goes on."""
    logging.getLogger(__name__).error("a page failed", exc_info=error)
    st.error(
        f"This page failed with {type(error).__name__}: {error}. The terminal that runs `prep app` has the details; "
        "the other pages go on."
    )


def _home() -> str:
    return os.environ.get("PREP_APP_PAGE", "runs")


def main() -> None:
    # An icon of our own: for a page's Material icon the browser would be sent to fonts.gstatic.com.
    st.set_page_config(page_title="prep", page_icon=str(ICON), layout="wide", initial_sidebar_state="auto")
    st.html(STYLE)
    session.selection()
    pages = {path: _page(path, entry) for path, entry in PAGES.items()}
    session.register_pages(pages)
    st.navigation(list(pages.values()), position="top").run()


if __name__ == "__main__":
    main()
