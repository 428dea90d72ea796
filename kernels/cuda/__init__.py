"""CUDA C++: compiled by NVRTC, launched from Python; without a GPU they run on a host shim, thread by thread."""

from __future__ import annotations


def unavailable() -> str | None:
    """Why the CUDA kernels cannot be used in this process; None if they can."""
    from kernels.cuda.launch import problem

    return problem()
