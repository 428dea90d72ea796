"""Standard streams of the `prep` command: usable when closed, and in any encoding."""

from __future__ import annotations

import codecs
import io
import os
import sys

PLAIN = {
    "·": "-", "…": "...", "–": "-", "—": "-", "─": "-", "→": "->", "←": "<-", "×": "x", "≈": "~", "≤": "<=", "≥": ">=",
    "µ": "u", "μ": "u", "²": "2", "“": '"', "”": '"', "’": "'", "█": "#", "░": "-", "✓": "ok", "✗": "x",
}  # fmt: skip
"""Replacements for characters that a stream cannot encode; other characters become "?"."""


def prepare_streams() -> None:
    """Replace closed streams by the null device, and characters that a stream cannot encode by plain ones."""
    codecs.register_error("prep-plain", _plain)
    if sys.stdin is None:
        sys.stdin = open(os.devnull, encoding="utf-8")
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="prep-plain")


def _plain(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(PLAIN.get(c, "?") for c in error.object[error.start : error.end]), error.end
