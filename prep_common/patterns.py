"""Check of regular expressions that a file gives."""

from __future__ import annotations

import re


def pattern_fault(pattern: str) -> str:
    """Return why a text is not a regular expression; empty if it is one."""
    try:
        re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        return f"not a regular expression: {error}"
    return ""
