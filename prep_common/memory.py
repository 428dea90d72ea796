"""Memory that this process may still take, and how often it looks for garbage."""

from __future__ import annotations

import gc
from pathlib import Path

import psutil


def free_host_bytes() -> int:
    """Return the bytes of memory that this process may still take."""
    free = int(psutil.virtual_memory().available)
    try:  # a container's limit (cgroup v2)
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
        used = Path("/sys/fs/cgroup/memory.current").read_text().strip()
    except OSError:
        return free
    return free if limit == "max" else min(free, max(0, int(limit) - int(used)))


def total_host_bytes() -> int:
    """Return the bytes of memory of this machine, or of this container."""
    total = int(psutil.virtual_memory().total)
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
    except OSError:
        return total
    return total if limit == "max" else min(total, int(limit))


def collect_rarely() -> None:
    """Collect garbage now, and later only what a burst of requests leaves.

    A large body is hundreds of thousands of objects, and by default Python visits all objects again and again while
    they are made: most of the time that such a body takes, with the event loop held up.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
