"""Line charts as SVG, drawn without a library."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
"""Wong's palette (Nature Methods 2011), distinct for colour-blind readers."""
DASHES = ("", "7 4", "2 3", "9 3 2 3", "4 4", "1 5")
WIDTH, HEIGHT = 760, 380
LEFT, RIGHT, TOP, BOTTOM = 84, 20, 34, 52
LEAST = 1e-300
"""Smaller ends of an axis have no power of ten below them."""


@dataclass(frozen=True)
class Line:
    name: str
    points: Sequence[tuple[float, float]]
    is_step: bool = False  # horizontal until the next point


def draw(
    lines: Sequence[Line],
    x_title: str,
    y_title: str,
    marks: Sequence[tuple[float, str]] = (),
    title: str = "",
) -> str:
    """Return an SVG of lines over x, from 0 on both axes; marks are vertical lines with a text.

    Raises ValueError for a number that is not finite.
    """
    most_x = _end_of_axis([x for line in lines for x, _ in line.points])
    most_y = _end_of_axis([1.05 * y for line in lines for _, y in line.points])

    def place(x: float, y: float) -> tuple[float, float]:
        across, down = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
        return LEFT + across * x / most_x, TOP + down * (1 - y / most_y)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="sans-serif" font-size="12">',
        f"<title>{escape(title or y_title)}</title>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
    ]
    for tick in round_ticks(most_y):
        _, y = place(0, tick)
        parts.append(f'<line x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}" stroke="#ddd"/>')
        parts.append(_text(LEFT - 6, y + 4, _number(tick), "end"))
    for tick in round_ticks(most_x):
        parts.append(_text(place(tick, 0)[0], HEIGHT - BOTTOM + 18, _number(tick), "middle"))
    for number, line in enumerate(lines):
        colour, dash = COLOURS[number % len(COLOURS)], DASHES[number % len(DASHES)]
        steps = " ".join(f"{x:.1f},{y:.1f}" for x, y in (place(*point) for point in _path(line)))
        style = f'fill="none" stroke="{colour}" stroke-width="2" stroke-dasharray="{dash}"'
        parts.append(f'<polyline points="{steps}" {style}/>')
        at = LEFT + 8 + number * (WIDTH - LEFT - RIGHT) / len(lines)
        parts.append(f'<line x1="{at:.0f}" y1="18" x2="{at + 24:.0f}" y2="18" {style}/>')
        parts.append(_text(at + 30, 22, line.name, "start"))
    for at_x, name in marks:
        x, _ = place(at_x, 0)
        parts.append(f'<line x1="{x:.1f}" y1="{TOP}" x2="{x:.1f}" y2="{HEIGHT - BOTTOM}" stroke="#666"/>')
        parts.append(_text(x + 4, TOP + 12, name, "start"))
    parts.append(_text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 12, x_title, "middle"))
    middle = (TOP + HEIGHT - BOTTOM) / 2
    parts.append(f'<g transform="rotate(-90 14 {middle})">{_text(14, middle, y_title, "middle")}</g>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def round_ticks(most: float) -> list[float]:
    """Return three to six round numbers from 0 to `most`. Raises ValueError unless that is positive and finite."""
    if not LEAST <= most < math.inf:
        raise ValueError(f"the end of an axis must be at least {LEAST:g} and finite, got {most}")
    power = 10.0 ** math.floor(math.log10(most))
    above = most * (1 + 1e-9)  # 0.3 is less than 6 * 0.05 in floating point
    step = next(part * power for part in (0.2, 0.25, 0.5, 1, 2, 5) if above < 6 * part * power)
    return [step * number for number in range(int(above / step) + 1)]


def _end_of_axis(values: Sequence[float]) -> float:
    """Return the largest value; 1 if none is positive."""
    if wrong := [value for value in values if not math.isfinite(value)]:
        raise ValueError(f"a chart needs finite numbers, got {wrong[0]}")
    most = max(values)
    return most if most >= LEAST else 1.0


def _path(line: Line) -> list[tuple[float, float]]:
    if not line.is_step:
        return list(line.points)
    corners = [(after[0], before[1]) for before, after in zip(line.points, line.points[1:], strict=False)]
    return [point for pair in zip(line.points, [*corners, line.points[-1]], strict=True) for point in pair]


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:,.3g}"
