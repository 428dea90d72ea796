"""Time spent in each C++ kernel, measured inside the kernels, replayed graphs included."""

from __future__ import annotations

import ctypes

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


class KernelClock:
    """Measures the seconds spent in each kernel from `start` to `stop`, and adds them up. One clock runs at a time."""

    def __init__(self) -> None:
        self._time_kernels = function("time_kernels", "p")
        self._seconds = (ctypes.c_double * len(KERNELS))()
        self._address = ctypes.addressof(self._seconds)

    def start(self) -> None:
        self._time_kernels(self._address)

    def stop(self) -> None:
        self._time_kernels(None)

    def seconds(self) -> dict[str, float]:
        return dict(zip(KERNELS, self._seconds, strict=True))
