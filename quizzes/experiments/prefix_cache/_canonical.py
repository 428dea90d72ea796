"""Canonical and naive spelling of one prompt."""

from __future__ import annotations

import json
import re
from typing import Any


def canonical_prompt(parts: dict[str, Any]) -> bytes:
    """Return the prompt with stable parts first, in one spelling, and volatile parts last.

    Instructions lose trailing blanks and doubled spaces; tools are sorted by name and written as JSON with sorted
    keys; date, request id and question, which change with every request, come last.
    """
    text = re.sub(r"[ \t]+", " ", parts["instructions"].replace("\r\n", "\n")).strip()
    tools = json.dumps(
        sorted(parts["tools"], key=lambda tool: tool["name"]), sort_keys=True, ensure_ascii=False
    )
    volatile = f"date: {parts['date']}\nrequest: {parts['request']}\nquestion: {parts['question']}"
    return f"{text}\n{tools}\n{volatile}".encode()


def naive_prompt(parts: dict[str, Any], stamped: bool = True) -> bytes:
    """Return the prompt with order and white space unchanged; stamped: with request id and date first."""
    stamp = f"request: {parts['request']}\ndate: {parts['date']}\n" if stamped else ""
    tools = json.dumps(parts["tools"], ensure_ascii=False)
    return f"{stamp}{parts['instructions']}\n{tools}\n{parts['question']}".encode()
