"""Seconds of the last start of a replica, by model, for what `prep fleet up` tells its user to expect.

CACHE/fleet_starts.json     {"shop": 4.1}
"""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

from prep_common.paths import cache_dir, write_atomically


def last(model: str) -> float | None:
    """Return the seconds of the last start of a replica of this model. None: none is known."""
    seconds = _read().get(model)
    return seconds if isinstance(seconds, float) else None


def note(model: str, seconds: float) -> None:
    """Keep the seconds of a start. Without a folder for it, only the estimate of the next start is lost."""
    with suppress(OSError):
        write_atomically(_file(), json.dumps(_read() | {model: round(seconds, 2)}))


def _file() -> Path:
    return cache_dir() / "fleet_starts.json"


def _read() -> dict[str, object]:
    try:
        times = json.loads(_file().read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return times if isinstance(times, dict) else {}
