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
