"""Components written in JavaScript; two charts that several pages use: selectable rectangles, figures over steps."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import streamlit as st


def mount(name: str, stem: Path, html: str, data: Any, key: str, events: Sequence[str] = ()) -> Any:
    """Show the component of STEM.js and STEM.css. Returns the values of its triggers `events` as attributes."""
    script, style = stem.with_suffix(".js").read_text("utf-8"), stem.with_suffix(".css").read_text("utf-8")
    return register(name, html, style, script)(
        data=data, key=key, **{f"on_{event}_change": nothing for event in events}
    )


@cache
def register(name: str, html: str, css: str, js: str) -> Any:
    return st.components.v2.component(name, html=html, css=css, js=js)


def nothing() -> None:
    """A component's trigger requires a callback."""
