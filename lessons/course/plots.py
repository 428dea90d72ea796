"""One style for all plots: small, readable in print, safe for colour-blind readers."""

from __future__ import annotations

import io
from typing import Any

COLOURS = {
    "blue": "#0072B2",
    "vermillion": "#D55E00",
    "green": "#009E73",
    "purple": "#8A4F9E",
    "orange": "#E69F00",
    "sky": "#56B4E9",
    "grey": "#777777",
    "black": "#111111",
}
"""Okabe and Ito's palette; on white use orange and sky for areas only."""
CYCLE = ("blue", "vermillion", "green", "purple", "black", "orange", "sky")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
_DPI = 100
SHORT = 1000.0
"""Ratio of an axis' ends below which powers of ten are too few ticks."""


def figure(width: float = 6.4, height: float = 3.2, **axes: Any) -> tuple[Any, Any]:
    """Return (figure, axes) in the course's style; axes: arguments of `Axes.set`, such as xlabel and title."""
    from matplotlib.figure import Figure

    drawing = Figure(figsize=(width, height), dpi=_DPI, layout="constrained")
    plot = drawing.add_subplot()
    style(plot)
    plot.set(**axes)
    return drawing, plot


def style(plot: Any) -> None:
    """Give axes the course's colours, markers of their own per line, and light grid lines."""
    from cycler import cycler

    plot.set_prop_cycle(cycler(color=[COLOURS[name] for name in CYCLE]) + cycler(marker=list(MARKERS)))
    plot.grid(True, color="#DDDDDD", linewidth=0.6)
    plot.set_axisbelow(True)
    for side in ("top", "right"):
        plot.spines[side].set_visible(False)


def label_short_log_axes(drawing: Any) -> None:
    """Put ticks at 1, 2 and 5 on short logarithmic axes, where matplotlib labels only powers of ten."""
    from matplotlib.ticker import LogFormatterSciNotation, LogLocator, NullFormatter, StrMethodFormatter

    for plot in drawing.axes:
        for axis in (plot.xaxis, plot.yaxis):
            low, high = sorted(axis.get_view_interval())
            is_default = isinstance(axis.get_major_formatter(), LogFormatterSciNotation)
            if axis.get_scale() == "log" and is_default and 0 < low and high / low < SHORT:
                axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
                axis.set_major_formatter(StrMethodFormatter("{x:g}"))
                axis.set_minor_formatter(NullFormatter())


def png(drawing: Any) -> bytes:
    """Return a figure as PNG bytes."""
    label_short_log_axes(drawing)
    buffer = io.BytesIO()
    drawing.savefig(buffer, format="png", dpi=_DPI, metadata={"Software": None})
    return buffer.getvalue()
