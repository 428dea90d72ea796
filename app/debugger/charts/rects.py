"""The component of `rects.js`: rectangles in rows, with selection."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import streamlit as st

_HERE = Path(__file__).parent
_HTML = """
<div class="rects">
  <div class="scroll">
    <svg role="img" tabindex="0">
      <defs>
        <pattern id="hatch" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">
          <rect width="6" height="6" fill="#3b1a06"/><rect width="2.5" height="6" fill="#D55E00"/>
        </pattern>
        <pattern id="hatch-cached" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">
          <rect width="6" height="6" fill="#0b1020"/><rect width="4" height="6" fill="#009E73"/>
        </pattern>
        <pattern id="lines" width="4" height="4" patternUnits="userSpaceOnUse">
          <rect width="4" height="4" fill="#1f2937"/>
        </pattern>
        <pattern id="dots" width="6" height="6" patternUnits="userSpaceOnUse">
          <rect width="6" height="6" fill="#E69F00"/><circle cx="3" cy="3" r="1" fill="#0b1020"/>
        </pattern>
      </defs>
    </svg>
  </div>
  <p class="status" aria-live="polite"></p>
</div>
"""


class Rect(NamedTuple):
    """One rectangle: columns [left, right), rows [top, bottom)."""

    left: int
    right: int
    top: int
    bottom: int
    style: str
    """waiting, prefill, decode, preempted; used, shared, cached, gone."""
    label: str
    """Text inside, if it fits."""
    title: str
    """Tooltip, also for screen readers."""
    id: str | int
    """The value of `picked`."""


class Picked(NamedTuple):
    id: str | int
    x: int | None
    """The column that was clicked; None for a click on the name of a row."""


@cache
def _component() -> Any:
    css, js = (_HERE / "rects.css").read_text(), (_HERE / "rects.js").read_text()
    return st.components.v2.component("prep_rects", html=_HTML, css=css, js=js)


def rect_chart(
    rects: Sequence[Rect],
    *,
    rows: Sequence[tuple[str, str | int]] = (),
    x: tuple[int, int],
    unit: str,
    alt: str,
    key: str,
    hint: str = "",
    marker: int | None = None,
    chosen: str | int | None = None,
    row_height: int = 18,
) -> Picked | None:
    """Draw, and return the last click. `x`: first and end; `marker`: a column to highlight."""
    data = {
        "rects": rects,
        "rows": rows,
        "x": x,
        "unit": unit,
        "alt": alt,
        "hint": hint,
        "marker": marker,
        "chosen": chosen,
        "row_height": row_height,
    }
    result = _component()(data=data, key=key, on_picked_change=_nothing)
    picked = result.picked
    return Picked(picked["id"], picked["x"]) if picked else None


def _nothing() -> None:
    """A component's trigger requires a callback."""
