"""Vega-Lite charts of results, for `prep run --plot`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

LINE = {"type": "line", "point": True}
POINTS = {"type": "point", "filled": True, "size": 90}
_TYPES = {"Q": "quantitative", "O": "ordinal", "N": "nominal"}


def vega(
    rows: Iterable[dict[str, Any]], mark: str | dict[str, Any], **channels: str | tuple[str, dict[str, Any]]
) -> dict[str, Any]:
    """Return a chart of `rows`. A channel is "field:Q" (or O, N), alone or with further options."""
    encoding = {}
    for channel, given in channels.items():
        shorthand, options = (given, {}) if isinstance(given, str) else given
        field, _, kind = shorthand.rpartition(":")
        encoding[channel] = {"field": field, "type": _TYPES[kind], **options}
    return {"data": {"values": list(rows)}, "mark": mark, "encoding": encoding}
