"""Features of Linux that macOS lacks: the files that need them, and what they do without.

`tests/prep_common/test_platforms.py` fails if another file of the tree needs one of these, and runs each on a faked
macOS.
"""

from __future__ import annotations

import sys

NEEDS = {
    "/proc": {
        "app/bench/sides/side_protocol.py": "peak memory from getrusage; that of another process is 0",
        "app/bench/upgrade_sides.py": "the memory a process has now, for its peak",
        "kernels/bench/limits.py": "the processor's name from `platform`",
        "kernels/cpu/build.py": "the processor from `platform`; OpenMP from torch's folder",
        "prep_common/process_family.py": "psutil reads the parents of all processes",
        "prep_common/sandbox/places.py": "the audit hook compares names that do not exist",
        "prep_common/sandbox/process.py": "no credit for a busy machine; deleted files that are open do not count",
        "prep_common/stages.py": "the start of a process from psutil",
    },
    "fork": {
        "app/debugger/trace_scan.py": "one process reads a large trace",
        "prep_common/guest/nursery.py": "guests import libraries themselves: see `sandbox.nursery.is_useful`",
    },
    "Landlock": {"prep_common/guest/landlock.py": "the audit hook and limits alone confine learner code"},
    "prctl": {
        "app/bench/sides/side_protocol.py": "the end of stdin ends a side",
        "app/cli/app.py": "the command ends its server itself, but not after kill -9",
        "prep_common/guest/landlock.py": "only called with Landlock",
        "prep_common/guest/limits.py": "a thread watches the parent",
    },
}
"""Feature: file: what the file does instead.

OpenMP and HWCAP are C++: without OpenMP `kernels/cpu/threads.cpp` computes with one thread; `kernels/cpu/arm/forms.cpp`
asks sysctl on macOS."""


def can_fork() -> bool:
    """Return whether a process with threads may fork and go on in Python: macOS ends such a child in its libraries."""
    return sys.platform == "linux"
