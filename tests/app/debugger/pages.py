"""A page of the debugger, run without a browser."""

from __future__ import annotations

from collections.abc import Callable
from html import unescape
from pathlib import Path

from streamlit.testing.v1 import AppTest

MAIN = Path(__file__).parents[3] / "app" / "debugger" / "entry" / "workbench.py"

Opener = Callable[..., AppTest]
"""Type of the fixture `open_page`."""


def said(app: AppTest) -> str:
    """All sentences of a page."""
    kinds = ("markdown", "caption", "info", "warning", "error")
    texts = [str(each.value) for kind in kinds for each in app.get(kind)]
    return "\n".join([*texts, *(unescape(each.proto.body) for each in app.get("html"))])
