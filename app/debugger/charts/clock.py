"""The component of `clock.js`: the time spent of a limit. It ticks in the browser and is measured here."""

from __future__ import annotations

import time
from pathlib import Path

from app.debugger.charts import mount


def clock(
    name: str,
    spent: float,
    limit: float,
    *,
    key: str,
    step: tuple[float, float] | None = None,
    runs: bool = True,
    why: str = "",
    over: str = "",
) -> None:
    """Show a clock.

    Args:
        name: of the limit.
        spent: seconds so far, of `limit`.
        step: the same for the present step.
        key: of the component.
        runs: whether it ticks.
        why: reason why it stands still.
        over: words when the limit is over.
    """
    data = {
        "at": time.monotonic_ns(),  # names this measurement
        "name": name,
        "total": {"spent": spent, "limit": limit},
        "step": step and {"spent": step[0], "limit": step[1]},
        "runs": runs,
        "why": why,
        "over": over,
    }
    mount("prep_clock", Path(__file__), data, key, html="<div class='clock'></div>")
