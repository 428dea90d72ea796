from time import perf_counter, process_time
from typing import Any

from quizzes.experiments import Context, NeedsHardware, Result, arg, experiment


@experiment("E61", "E65", determinism="statistical", seconds=60, device="cuda")
def gpu_busy(
    ctx: Context,
    few: int = arg(1, 1, 1024),
    many: int = arg(4096, 1, 8192),
    size: int = arg(8192, 1024, 16_384),
) -> Result:
    """Show on a GPU that full utilisation says nothing about throughput: few rows against many.

    Runs bf16 products with a size x size matrix for about one second each while the host sleeps.

    Returns:
        device_busy_few, device_busy_many [share]: Share of the wall time in which products ran on the device.
        host_busy [share]: CPU time of this process over wall time, while the device works on many rows.
        tflops_few, tflops_many [TFLOP/s]
        ratio [x]
    """
    import torch

    if not torch.cuda.is_available():
        raise NeedsHardware("a GPU's counters can be compared on a GPU only")

    weight = torch.randn(size, size, device="cuda", dtype=torch.bfloat16)

    def work(rows: int) -> tuple[float, float, float]:
        """(device busy, host busy, TFLOP/s)"""
        x = torch.randn(rows, size, device="cuda", dtype=torch.bfloat16)
        for _ in range(3):
            x @ weight.T
        torch.cuda.synchronize()
        repeats = 4000 if rows < 256 else 300
        event: Any = torch.cuda.Event
        first, last = (event(enable_timing=True, blocking=True) for _ in range(2))
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
    return Result(
        device_busy_few=small[0],
        device_busy_many=large[0],
        host_busy=large[1],
        tflops_few=small[2],
        tflops_many=large[2],
        ratio=large[2] / small[2],
    )
