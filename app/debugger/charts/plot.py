"""The component of `plot.js`: curves and points over two axes, with limits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from app.debugger.charts import mount

_HTML = """
<div class="plot">
  <figure>
    <figcaption><b></b><span></span></figcaption>
    <svg role="img" tabindex="0">
      <defs><clipPath id="inside"><rect/></clipPath></defs>
      <g class="layer"></g><g class="layer"></g>
    </svg>
  </figure>
  <div class="tip" hidden></div>
  <p class="said" aria-live="polite"></p>
</div>
"""


class Axis(NamedTuple):
    title: str
    unit: str
    low: float
    high: float
    log: bool = False


class Curve(NamedTuple):
    name: str
    points: Sequence[tuple[float, float]]
    """In order of x. Points without a finite value are left out."""
    colour: str = "--blue"
    style: Literal["", "dashed"] = ""


class Rule(NamedTuple):
    """A line across the chart: a limit, or the plan."""

    axis: Literal["x", "y"]
    at: float
    label: str
    style: Literal["", "alarm", "solid"] = ""
    beyond: bool = False
    """Whether the side above or right of it is shaded."""


class Mark(NamedTuple):
    """One point with a name."""

    name: str
    x: float
    y: float
    text: str
    """Shown while the pointer is on it."""
    colour: str = "--notice"
    shape: Literal["circle", "diamond", "hollow"] = "circle"
    label: str | None = None
    """Text at the point; None: its name."""
    id: int | None = None
    """The value that a click on the point returns; None: it cannot be clicked."""


def plot(
    title: str,
    x: Axis,
    y: Axis,
    *,
    key: str,
    alt: str,
    note: str = "",
    curves: Sequence[Curve] = (),
    rules: Sequence[Rule] = (),
    marks: Sequence[Mark] = (),
    height: int = 220,
) -> int | None:
    """Draw, and return the id of a point that was clicked.

    alt: the chart in words; note: text behind the title; height: in pixels."""
    data = {
        "title": title,
        "note": note,
        "height": height,
        "alt": alt,
        "x": x._asdict(),
        "y": y._asdict(),
        "curves": [
            curve._replace(points=[at for at in curve.points if math.isfinite(at[1])])._asdict()
            for curve in curves
        ],
        "rules": [rule._asdict() for rule in rules if math.isfinite(rule.at)],
        "marks": [mark._asdict() for mark in marks if math.isfinite(mark.y)],
    }
    picked: int | None = mount("prep_plot", Path(__file__), data, key, ("picked",), html=_HTML).picked
    return picked
