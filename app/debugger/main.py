"""The list of pages, and what stands above each of them. Streamlit runs `entry/workbench.py`, which calls `main`."""

from __future__ import annotations

import os
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import streamlit as st

from app.debugger import session
from app.debugger.page_frame import in_words

ICON = Path(__file__).with_name("icon.svg")


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
    "server": PageEntry("app.debugger.pages.server", "Server", ":material/dns:"),
    "kernel": PageEntry("app.debugger.pages.kernel", "Kernel", ":material/memory:"),
    "capacity": PageEntry("app.debugger.pages.capacity", "Capacity", ":material/calculate:"),
    "cards": PageEntry("app.debugger.pages.cards", "Cards", ":material/style:"),
    "questions": PageEntry("app.debugger.pages.questions", "Questions", ":material/quiz:"),
    "mock": PageEntry("app.debugger.pages.mock", "Mock", ":material/forum:"),
    "drill": PageEntry("app.debugger.pages.drill", "Drill room", ":material/emergency_home:"),
    "learn": PageEntry("app.debugger.pages.learn", "Learn", ":material/school:"),
}
"""The pages, keyed by URL path. A page is a module with a function `show()`."""


def _page(path: str, **place: Any) -> st.Page:
    entry = PAGES[path]

    def show() -> None:
        in_words(import_module(entry.module).show)()
        session.write_url()

    show.__name__ = path
    return st.Page(show, title=entry.title, icon=entry.icon, **place)


def _address(path: str, first: str) -> dict[str, Any]:
    return {"url_path": "", "default": True} if path == first else {"url_path": path}


def main() -> None:
    session.adopt_url()
    # A local icon: for a page's Material icon the browser would contact fonts.gstatic.com.
    st.set_page_config(page_icon=str(ICON), layout="wide", initial_sidebar_state="auto")
    first = os.environ.get("PREP_APP_PAGE", "runs")
    pages = {path: _page(path, **_address(path, first)) for path in PAGES}
    session.register_pages(pages)
    # Streamlit knows the first page only under "/": a hidden page answers to its name.
    named = _page(first, url_path=first, visibility="hidden")
    page = st.navigation([*pages.values(), named], position="top")
    st.set_page_config(page_title=f"{page.title} · prep", page_icon=str(ICON))
    page.run()


if __name__ == "__main__":
    main()
