"""Number of processors this process may use."""

from __future__ import annotations

import os


def num_processors() -> int:
    """Return the number of processors that this process may use; containers and `taskset` can limit it."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
