"""Find source lines at run time, because fixed line numbers become wrong with the next edit."""

from __future__ import annotations

import inspect
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]


class SourceLine(NamedTuple):
    """A line of this repository. `path` is relative to its root, lines count from 1."""

    path: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}"


def definition_of(thing: Any) -> str:
    """`path:line (name)` of a function or class."""
    path = Path(inspect.getsourcefile(thing) or "").resolve().relative_to(ROOT)
    _, line = inspect.getsourcelines(thing)
    return f"{path}:{line} ({thing.__name__})"


@cache
def find_line(path: str, fragment: str) -> SourceLine | None:
    """The first line that contains a fragment; None if there is none, or no such file."""
    try:
        lines = (ROOT / path).read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    matches = ((number, text) for number, text in enumerate(lines, 1) if fragment in text)
    return next((SourceLine(path, number, text.strip()) for number, text in matches), None)
