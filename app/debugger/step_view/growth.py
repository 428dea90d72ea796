"""Updates of a live run for the browser: the newest figures, block changes, and details.

A message may be lost, because only the newest is drawn when several come at once. So each goes back to where the run
was a few looks ago, the browser skips what it knows, and now and then all figures come again.
"""

from __future__ import annotations

from collections import deque

from app.debugger.runs import Run
from app.debugger.step_view import details, map_data
from app.debugger.step_view.envelope import pack
from app.debugger.step_view.parts import Sizes

LOOKS_BACK = 4
ALL_AGAIN_EVERY = 40
"""Looks."""
MOST_STEPS_BACK = 512
"""Maximum steps of block changes per update; a browser that lacks more requests the window."""


class Growth:
    """The part of one run that one tab has received."""

    def __init__(self) -> None:
        self._reached: deque[int] = deque([0], maxlen=LOOKS_BACK)
        """Number of steps at the last refreshes."""
        self._looks = 0

    def parts(self, run: Run, cut: Sizes) -> dict[str, bytes]:
        """Parts by key, as in `parts.make`; empty if there was no new step for several refreshes."""
        num_steps = run.index.num_steps
        since = min(self._reached)
        self._reached.append(num_steps)
        self._looks += 1
        if since == num_steps:
            return {}
        window = (num_steps - 1) // cut.window * cut.window
        chunk = (num_steps - 1) // cut.chunk * cut.chunk
        first = max(window, since, num_steps - MOST_STEPS_BACK)
        return {
            "o": map_data.overview_since(run, since if self._looks % ALL_AGAIN_EVERY else 0),
            f"w:{window}": map_data.window(run, first, num_steps, grows=True),
            f"d:{chunk}": pack(details.chunk(run.reader(chunk), chunk, num_steps)),
        }
