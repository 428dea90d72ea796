"""Vega-Lite charts of results, for `prep run --plot`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

LINE = {"type": "line", "point": True}
POINTS = {"type": "point", "filled": True, "size": 90}
_TYPES = {"Q": "quantitative", "O": "ordinal", "N": "nominal"}


def vega(
    columns: Mapping[str, Sequence[Any]],
    mark: str | dict[str, Any],
    **channels: str | tuple[str, dict[str, Any]],
) -> dict[str, Any]:
    """Return a chart of columns by field. A channel is "field:Q" (or O, N), alone or with further options."""
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    encoding = {}
    for channel, given in channels.items():
        shorthand, options = (given, {}) if isinstance(given, str) else given
        field, _, kind = shorthand.rpartition(":")
        encoding[channel] = {"field": field, "type": _TYPES[kind], **options}
    return {"data": {"values": rows}, "mark": mark, "encoding": encoding}


def stacked(x: str, xs: Sequence[Any], y: str, **series: Sequence[Any]) -> dict[str, list[Any]]:
    """Return the columns of several series over the same `xs`: x, y, and the name of the series as "what"."""
    rows = [
        (at, value, name) for name, column in series.items() for at, value in zip(xs, column, strict=True)
    ]
    return {name: [row[place] for row in rows] for place, name in enumerate((x, y, "what"))}
