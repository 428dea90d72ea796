"""C++ for the CPU, compiled once (`build.py`) and called through ctypes."""

from __future__ import annotations


def unavailable() -> str | None:
    """Reason why the C++ kernels cannot be used in this process; None if they can."""
    from kernels.cpu.build import load_library

    return load_library().problem
