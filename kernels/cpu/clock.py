"""Where the time of the C++ kernels goes, measured inside them: replayed graphs included."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager

from kernels.cpu.build import function

KERNELS = (
    "gemm",
    "attention",
    "kv_write",
    "norm",
    "rotary",
    "activation",
    "embedding",
    "quantised_gemm",
    "sampling",
    "lora",
)
"""In the order of `Kernel` in graph.h."""

_time_kernels = function("time_kernels", "p")


@contextmanager
def timed_kernels() -> Iterator[dict[str, float]]:
    """Seconds by kernel of what runs inside the block; the dictionary is filled at its end."""
    seconds = (ctypes.c_double * len(KERNELS))()
    result: dict[str, float] = {}
    _time_kernels(ctypes.addressof(seconds))
    try:
        yield result
    finally:
        _time_kernels(None)
        result.update(zip(KERNELS, seconds, strict=True))
