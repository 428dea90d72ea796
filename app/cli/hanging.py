"""Wrapped lines that keep the indentation of their first line."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.text import Text

_LAYOUT = {"soft_wrap", "width", "justify"}
"""Options of `print` with which the caller decides on the layout."""
_COLUMNS = re.compile(r"^ *(?:[-•*]|\d+\.) +(?=\S)|^ +|(?<=\S) {2,}(?=\S)")


class HangingConsole(Console):
    """A console that wraps a string below its last column, the text of its list item, or its first word."""

    def print(self, *objects: Any, **options: Any) -> None:
        """Print as Rich does, a single string with hanging indents."""
        if len(objects) == 1 and isinstance(objects[0], str) and not _LAYOUT & {*options}:
            text = self.render_str(objects[0], markup=options.get("markup"), highlight=False)
            objects = (hung(text, self, self.width),)
        super().print(*objects, **options)


@dataclass(frozen=True)
class Hung:
    """Text with hanging indents, inside of another renderable such as Padding."""

    text: Text

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield hung(self.text, console, options.max_width)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement.get(console, options, self.text)


def hung(text: Text, console: Console, width: int) -> Text:
    """Return the text with lines of at most `width` columns."""
    lines: list[Text] = []
    for line in text.split("\n", allow_blank=True):
        lines += [line] if line.cell_len <= width else _wrapped(line, console, width)
    return Text("\n", end=text.end).join(lines)


def _wrapped(line: Text, console: Console, width: int) -> list[Text]:
    start = _start(line.plain, width)
    indent = cell_len(line.plain[:start])
    first, *rest = line[start:].wrap(console, width - indent)
    return [line[:start] + first, *(Text(" " * indent) + part for part in rest)]


def _start(line: str, width: int) -> int:
    """Return the index of the character below which the line continues.

    Columns of a row are separated by two spaces or more. One in the right half leaves too little room for text: the
    column before it is used.
    """
    starts = [match.end() for match in _COLUMNS.finditer(line)]
    return max((start for start in starts if cell_len(line[:start]) <= width // 2), default=0)
