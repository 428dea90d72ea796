"""E61 and E65 on a GPU: busy all the time with few rows and with many, while the host sleeps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from quizzes.experiments import Context, experiment
from quizzes.experiments.registry import NeedsHardware


@dataclass(frozen=True)
class Busy:
    device_busy_few: Annotated[float, "share"]
    """Share of the wall time in which products ran on the device."""
    device_busy_many: Annotated[float, "share"]
    host_busy: Annotated[float, "share"]
    """CPU time of this process over wall time, while the device works on many rows."""
    tflops_few: Annotated[float, "TFLOP/s"]
    tflops_many: Annotated[float, "TFLOP/s"]
    ratio: Annotated[float, "x"]


@experiment("E61", "E65", determinism="statistical", seconds=60, device="cuda")
def gpu_busy(
    ctx: Context,
    *,
    few: Annotated[int, Field(ge=1, le=1024)] = 1,
    many: Annotated[int, Field(ge=1, le=8192)] = 4096,
    size: Annotated[int, Field(ge=1024, le=16384)] = 8192,
) -> Busy:
    """bf16 products with a size x size matrix for about a second each."""
    import torch

    if not torch.cuda.is_available():
        raise NeedsHardware("a GPU's counters can be compared on a GPU only")
    from time import perf_counter, process_time

    weight = torch.randn(size, size, device="cuda", dtype=torch.bfloat16)

    def work(rows: int) -> tuple[float, float, float]:
        """(device busy, host busy, TFLOP/s)"""
        x = torch.randn(rows, size, device="cuda", dtype=torch.bfloat16)
        for _ in range(3):
            x @ weight.T
        torch.cuda.synchronize()
        repeats = 4000 if rows < 256 else 300
        first, last = (torch.cuda.Event(enable_timing=True, blocking=True) for _ in range(2))
        began, cpu = perf_counter(), process_time()
        first.record()
        for _ in range(repeats):
            x @ weight.T
        last.record()
        last.synchronize()
        wall, host = perf_counter() - began, process_time() - cpu
        device = first.elapsed_time(last) / 1e3
        return device / wall, host / wall, 2 * rows * size * size * repeats / device / 1e12

    small, large = work(few), work(many)
    return Busy(small[0], large[0], large[1], small[2], large[2], large[2] / small[2])
