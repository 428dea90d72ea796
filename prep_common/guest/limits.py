"""Limits that the kernel keeps: what this process sets for itself before it loads learner code."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys
import threading
import time

_SPARE_MEGABYTES = 4096
"""Private memory beyond the limit that libraries map and do not use."""
_PDEATHSIG = 1


def confine(megabytes: int, disk_megabytes: int) -> str:
    """Set the limits of this process. Return "rlimits"."""
    limits = {
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_FSIZE: disk_megabytes << 20,
        resource.RLIMIT_NOFILE: 256,
        resource.RLIMIT_DATA: (megabytes + _SPARE_MEGABYTES) << 20,
    }
    for which, value in limits.items():
        try:
            resource.setrlimit(which, (value, value))
        except (ValueError, OSError):  # lower already, or unknown to this platform
            continue
    return "rlimits"


def end_with(parent: int) -> None:
    """End this process when its parent ends, whatever it computes."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        if os.getppid() != parent:
            os._exit(0)
    else:
        threading.Thread(target=_watch, args=(parent,), daemon=True).start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(0)
