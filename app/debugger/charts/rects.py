"""The component of `rects.js`: rectangles in rows, with selection."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from app.debugger.charts import mount

_HTML = """
<div class="rects">
  <div class="scroll">
    <svg role="img" tabindex="0">
      <defs>
        <pattern id="hatch" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">
          <rect class="ground"/><rect class="preempted"/>
        </pattern>
        <pattern id="hatch-cached" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">
          <rect class="ground"/><rect class="cached"/>
        </pattern>
        <pattern id="stripes" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">
          <rect class="stripe"/>
        </pattern>
        <pattern id="lines" width="4" height="4" patternUnits="userSpaceOnUse">
          <rect width="4" height="4" style="fill: var(--line)"/>
        </pattern>
        <pattern id="dots" width="6" height="6" patternUnits="userSpaceOnUse">
          <rect width="6" height="6" style="fill: var(--shared)"/><circle cx="3" cy="3" r="1" fill="#0b1020"/>
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
    """waiting, passed (over), prefill, decode, preempted, hit; phase, work (shades behind them); used, shared, cached,
    gone."""
    label: str
    """Text inside, if it fits. A second line is shortened to the room."""
    title: str
    """Tooltip, also for screen readers."""
    id: str | int
    """The value of `picked`."""
    colour: int | str | None = None
    """Index of the request's colour (`TraceIndex.colours`), or a custom property for the reason of a wait; None: the
    style's colour."""


class Picked(NamedTuple):
    id: str | int
    x: int | None
    """The column that was clicked; None for a click on the name of a row."""


def rect_chart(rects: Sequence[Rect], key: str, **view: Any) -> Picked | None:
    """Draw, and return the last click. `view`: x (first and end), unit, alt, hint, row_height; optional are rows
    (label, id), lanes (names of the rows that one label has), marker (a column to highlight), flag (column, text) and
    chosen (an id)."""
    data = {"rects": rects, "rows": (), "lanes": (), "marker": None, "flag": None, "chosen": None, **view}
    picked = mount("prep_rects", Path(__file__), data, key, ("picked",), html=_HTML).picked
    return Picked(picked["id"], picked["x"]) if picked else None
