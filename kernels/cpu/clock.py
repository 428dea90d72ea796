"""Time spent in each C++ kernel, measured inside the kernels, replayed graphs included."""

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


@contextmanager
def timed_kernels() -> Iterator[dict[str, float]]:
    """Measure the seconds spent in each kernel inside the block; the dictionary is filled at its end."""
    time_kernels = function("time_kernels", "p")
    seconds = (ctypes.c_double * len(KERNELS))()
    result: dict[str, float] = {}
    time_kernels(ctypes.addressof(seconds))
    try:
        yield result
    finally:
        time_kernels(None)
        result.update(zip(KERNELS, seconds, strict=True))
