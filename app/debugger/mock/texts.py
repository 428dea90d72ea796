"""Texts of an interview for the page: Markdown of scenarios, plain text of candidates."""

from __future__ import annotations

import re
from html import escape

from interview.mock.scenario import STAGE_NAMES

STAGES = {stage: words.capitalize() for stage, words in STAGE_NAMES.items()}
_CODE = re.compile(r"(```.*?```|`[^`\n]*`)", re.DOTALL)


def markdown(text: str) -> str:
    """Return a scenario's Markdown so that Streamlit reads it as CommonMark: $ is money, < is less than."""
    parts = _CODE.split(text)
    return "".join(
        part
        if place % 2
        else re.sub(r"(?<!\\)((?:\\\\)*)([$~])", r"\1\\\2", part)
        .replace("\\<", "<")  # escaped in a quotation of the candidate
        .replace("<", "&lt;")
        .replace(":material/", ": ")
        for place, part in enumerate(parts)
    )


def plain(text: str) -> str:
    """Return what a candidate typed as HTML: no markup, no control characters."""
    kept = "".join(char if char.isprintable() or char == "\n" else " " for char in text)
    return escape(kept).encode("utf-8", "replace").decode()


def clock_time(seconds: float) -> str:
    whole = int(max(0.0, seconds))
    return f"{whole // 60:02}:{whole % 60:02}"
