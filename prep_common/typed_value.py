"""Values that people type: numbers, lists and words."""

from __future__ import annotations

import json
from typing import Any


def parse_value(text: str) -> Any:
    """4 -> 4, true -> True, 4,9,3 -> [4, 9, 3], [4, 9] -> [4, 9], fcfs -> "fcfs"."""
    try:
        return json.loads(text)
    except ValueError:
        pass
    if "," in text:
        return [parse_value(part.strip()) for part in text.split(",") if part.strip()]
    return {"True": True, "False": False, "None": None, "none": None}.get(text, text)


def value_text(value: Any) -> str:
    """Return the text that parse_value reads as a value: 4,9,3 for [4, 9, 3], JSON if nothing shorter does."""
    short = ",".join(map(str, value)) if isinstance(value, list) else str(value)
    return short if parse_value(short.strip()) == value else json.dumps(value)
