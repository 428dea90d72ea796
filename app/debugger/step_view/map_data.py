"""Data of the block map and the timeline: figures of every step, and the block changes in a window.

Both are numbers only. What is said about a step in words and tables comes from `details.py`, a few steps at a time.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.debugger.runs import Run
from app.debugger.step_view.envelope import pack
from engine.core.sched_output import Reason

EVENT_BITS = ("preempt", "evict", "hit", "oom", "finish", "add", "abort", "resume")
"""Bit i of a step's event byte. oom: a request waits for blocks."""
WINDOW_STEPS = 5_000
WHOLE_RUN_BYTES = 12_000_000
"""Maximum bytes of changes and keyframes in the browser. A smaller run is one window; windows of larger runs are small
enough to load at once."""
WINDOW_BYTES = 2_500_000
KEYFRAME_STEPS = 64
"""As in `frames.js`."""
_PROBE_STEPS = 128
_CHANGE_BYTES = 5


def overview(run: Run, first: int = 0) -> bytes:
    """Six figures of every step from `first` on, counts after it, and its events: 25 bytes per step, uncompressed."""
    index = run.index
    series = index.series
    figures: dict[str, NDArray[Any]] = {
        "tokens": series.num_tokens,
        "running": series.running,
        "waiting": series.waiting,
        "free": series.free_blocks,
        "hashed": series.cached_blocks,
        "kv": series.kv_tokens,
    }
    last = min(map(len, figures.values()))
    arrays: dict[str, NDArray[Any]] = {"events": event_bytes(run, last)[first:]}
    arrays |= {name: np.asarray(values[first:last], np.int32) for name, values in figures.items()}
    return pack({"first": first, "last": last}, arrays)


def event_bytes(run: Run, num_steps: int) -> NDArray[np.uint8]:
    """One byte per step, a bit per kind of event that happened in it."""
    bits = np.zeros(num_steps, np.uint8)
    for bit, kind in enumerate(EVENT_BITS):
        steps = run.index.reason_steps(Reason.NO_BLOCKS) if kind == "oom" else run.index.event_steps(kind)
        steps = np.asarray(steps)
        # Events after the last step belong to a step that does not exist.
        bits[steps[steps < num_steps]] |= 1 << bit
    return bits


def window_steps(run: Run) -> int:
    """Steps per window of this run: all if the browser can hold them."""
    index = run.index
    num_steps = index.num_steps
    probe = min(num_steps, _PROBE_STEPS)
    if not probe:
        return WINDOW_STEPS
    first = (num_steps - probe) // 2
    changes = index.block_changes(first, first + probe)
    bytes_a_step = _CHANGE_BYTES * len(changes.block) / probe + index.num_blocks / KEYFRAME_STEPS
    if num_steps <= WINDOW_STEPS and num_steps * bytes_a_step <= WHOLE_RUN_BYTES and not run.is_live:
        return num_steps
    return max(KEYFRAME_STEPS, min(WINDOW_STEPS, int(WINDOW_BYTES / max(bytes_a_step, 1))))


def window(run: Run, first: int, last: int, grows: bool = False) -> bytes:
    """The state of every block before step `first`, and the changes in steps first .. last - 1.

    grows: the browser adds it to the window that it has.
    """
    changes = run.index.block_changes(first, last)
    return pack(
        {"first": first, "last": last, "num_blocks": run.index.num_blocks, "grows": grows},
        {
            "offsets": np.asarray(changes.offsets, np.uint32),
            "block": np.asarray(changes.block, np.uint32),
            "base": np.asarray(run.index.block_states(first - 1), np.uint8),
            "state": np.asarray(changes.state, np.uint8),
        },
    )
