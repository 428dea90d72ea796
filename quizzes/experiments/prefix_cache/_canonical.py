"""One prompt, one spelling: what has to happen before the cache can know two prompts for the same."""

from __future__ import annotations

import json
import re
from typing import Any


def canonical_prompt(parts: dict[str, Any]) -> bytes:
    """Stable parts first and spelled in one way, volatile parts last.

    Instructions lose trailing blanks and doubled spaces, tools are sorted by name and written as JSON with sorted
    keys, and what changes with every request (date, request id, question) stands behind all of it.
    """
    text = re.sub(r"[ \t]+", " ", parts["instructions"].replace("\r\n", "\n")).strip()
    tools = json.dumps(
        sorted(parts["tools"], key=lambda tool: tool["name"]), sort_keys=True, ensure_ascii=False
    )
    volatile = f"date: {parts['date']}\nrequest: {parts['request']}\nquestion: {parts['question']}"
    return f"{text}\n{tools}\n{volatile}".encode()


def naive_prompt(parts: dict[str, Any], stamped: bool = True) -> bytes:
    """Whatever order and blanks things came in; stamped: with request id and date on top."""
    stamp = f"request: {parts['request']}\ndate: {parts['date']}\n" if stamped else ""
    tools = json.dumps(parts["tools"], ensure_ascii=False)
    return f"{stamp}{parts['instructions']}\n{tools}\n{parts['question']}".encode()
