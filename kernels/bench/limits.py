"""Measured limits of this machine: memory bandwidth and rates of matrix products.

Data sheets promise what no program reaches, and a laptop shares its memory with a browser. So the limits are
measured in the same run as the kernels: torch copies and sums a buffer far larger than any cache, and multiplies
square matrices large enough to keep every unit busy. The best of many tries counts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from time import perf_counter

import torch

from kernels import ops
from kernels.reference import linear as reference

GPU_BUFFER_BYTES, CPU_BUFFER_BYTES = 2**31, 2**28
GPU_SIDE, CPU_SIDE = 8192, 1024
"""Rows and columns of the matrices."""
MIN_TRIES = 5
MIN_SECONDS = 0.4


@dataclass(frozen=True, slots=True)
class Limits:
    """Bytes and operations per second."""

    copy_bandwidth: float
    """Bytes read plus bytes written, when copying."""
    read_bandwidth: float
    """Bytes read, when summing up."""
    flops: dict[str, float] = field(default_factory=dict)
    """FLOP/s by type of the factors: float32, bfloat16, float16, int8, float8_e4m3fn, as far as torch has them here."""
    link_bandwidth: float | None = None
    """Bytes from pinned host memory to the GPU."""

    def or_better(self, other: Limits) -> Limits:
        """The higher of both in everything."""
        return Limits(
            max(self.copy_bandwidth, other.copy_bandwidth),
            max(self.read_bandwidth, other.read_bandwidth),
            {name: max(rate, other.flops.get(name, 0.0)) for name, rate in self.flops.items()},
            max(self.link_bandwidth, other.link_bandwidth)
            if self.link_bandwidth and other.link_bandwidth
            else None,
        )


def measure_limits(device: str, tell: Callable[[str], None] = lambda text: None) -> Limits:
    """A few seconds."""
    tell("memory bandwidth")
    size = GPU_BUFFER_BYTES if device == "cuda" else CPU_BUFFER_BYTES
    source = torch.ones(size // 4, device=device)
    target = torch.empty_like(source)
    copy = 2 * size / best_seconds(lambda: target.copy_(source), device)
    read = size / best_seconds(lambda: source.sum(), device)
    link = None
    if device == "cuda":
        pinned = torch.empty(2**28, dtype=torch.uint8, pin_memory=True)
        landing = torch.empty_like(pinned, device=device)
        link = pinned.nbytes / best_seconds(lambda: landing.copy_(pinned, non_blocking=True), device)
    flops = {}
    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.int8, torch.float8_e4m3fn):
        name = str(dtype).removeprefix("torch.")
        tell(f"matrix products in {name}")
        if (rate := gemm_rate(dtype, device)) is not None:
            flops[name] = rate
    return Limits(copy, read, flops, link)


def gemm_rate(dtype: torch.dtype, device: str) -> float | None:
    """FLOP/s of a large square product (integer operations for int8); None where torch has no such product.

    In float32 on a CPU it is the best of three libraries: torch's BLAS, oneDNN and our own. BLAS alone is half as fast
    as the others on some processors (MKL on AMD's), and a limit that is beaten is none.
    """
    size = CPU_SIDE if device == "cpu" else GPU_SIDE // 2 if dtype == torch.float32 else GPU_SIDE
    left = torch.randn(size, size, device=device).to(dtype)
    right = torch.randn(size, size, device=device).to(dtype)
    try:
        seconds = best_seconds(_product(left, right), device)
    except (RuntimeError, NotImplementedError):
        return None
    if device == "cpu" and dtype == torch.float32:
        for library in (reference, ops):
            weight = library.pack_weight(right)
            seconds = min(seconds, best_seconds(partial(library.linear, left, weight), device))
    return 2.0 * size**3 / seconds


def _product(left: torch.Tensor, right: torch.Tensor) -> Callable[[], object]:
    if left.dtype == torch.int8:
        return lambda: torch._int_mm(left, right.T)
    if left.dtype == torch.float8_e4m3fn:
        one = torch.ones((), device=left.device)
        return lambda: torch._scaled_mm(left, right.T, one, one, out_dtype=torch.bfloat16)
    return lambda: left @ right.T


def best_seconds(call: Callable[[], object], device: str) -> float:
    """The shortest of as many tries as fit into `MIN_SECONDS`, after one to warm up."""
    call()
    begin = perf_counter()
    times: list[float] = []
    while len(times) < MIN_TRIES or perf_counter() - begin < MIN_SECONDS:
        times.append(_seconds(call, device))
    return min(times)


def _seconds(call: Callable[[], object], device: str) -> float:
    if device == "cpu":
        start = perf_counter()
        call()
        return perf_counter() - start
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    call()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) * 1e-3


def cache_bytes(device: str) -> int:
    """The last cache before memory: what a measurement has to stay out of."""
    if device == "cuda":
        return torch.cuda.get_device_properties(0).L2_cache_size
    levels = Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")
    sizes = [
        int(text[:-1]) * 1024 for text in (path.read_text().strip() for path in levels) if text[-1:] == "K"
    ]
    return max(sizes, default=2**25)
