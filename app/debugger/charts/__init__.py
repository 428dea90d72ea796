"""Components written in JavaScript; two charts that several pages use: selectable rectangles, figures over steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import streamlit as st


def nothing() -> None:
    """A component's trigger requires a callback."""


def mount(
    name: str,
    stem: Path,
    data: Any,
    key: str,
    events: Sequence[str] = (),
    *,
    html: str = "",
    js: str = "",
    then: Callable[[], None] = nothing,
) -> Any:
    """Show the component of STEM.css, STEM.js and STEM.html (or `js`, `html`). `then` is called after its `events`.

    Returns the values of the events as attributes.
    """
    component = _component(name, stem, html, js)
    return component(data=data, key=key, **{f"on_{event}_change": then for event in events})


@cache
def _component(name: str, stem: Path, html: str, js: str) -> Any:
    html, js = (
        text or stem.with_suffix(end).read_text("utf-8") for text, end in ((html, ".html"), (js, ".js"))
    )
    return st.components.v2.component(name, html=html, css=stem.with_suffix(".css").read_text("utf-8"), js=js)
