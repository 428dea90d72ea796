from collections.abc import Callable
from time import perf_counter
from typing import Any

from quizzes.experiments import Context, Result, arg, experiment
from quizzes.experiments.measure import paired_ratio


@experiment("E24", "E26", "E61", determinism="statistical", seconds=20)
def gemm_tokens(
    ctx: Context, few: int = arg(1, 1, 64), many: int = arg(128, 2, 512), size: int = arg(2048, 256, 4096)
) -> Result:
    """Time one matrix product over a few tokens and over many on this machine.

    `ops.linear` with a size x size fp32 matrix over `few` rows and over `many`, in pairs. The processor is busy all
    the time in both.

    Returns:
        Per token: time of `few` over time of `many`, each for one token. 95 % interval.
        per_token [x]: How many times cheaper a token is among many: also the ratio of GFLOP/s, many over few.
        lo, hi
        intensity_few, intensity_many [FLOP/B]
        busy_few, busy_many [share]: Share of the time in which a product was running, as a utilisation counter shows
            it.
    """
    import torch

    from kernels import ops

    weight = ops.pack_weight(torch.randn(size, size))
    inputs = {rows: torch.randn(rows, size) for rows in (few, many)}

    def run(rows: int) -> Any:
        return ops.linear(inputs[rows], weight)

    with torch.inference_mode():
        repeat = max(1, many // few // 4)  # both sides last long enough to be measured
        ratio = paired_ratio(lambda: [run(few) for _ in range(repeat)], lambda: run(many), seconds=6)
        busy = [_busy(run, rows, times) for rows, times in ((few, 40), (many, 5))]
    scale = many / (few * repeat)

    def intensity(rows: int) -> float:
        return 2 * rows * size * size / (4 * size * size)

    return Result(
        per_token=ratio.median * scale,
        lo=ratio.lo * scale,
        hi=ratio.hi * scale,
        intensity_few=intensity(few),
        intensity_many=intensity(many),
        busy_few=busy[0],
        busy_many=busy[1],
    )


def _busy(run: Callable[[int], Any], rows: int, times: int) -> float:
    """Time inside products over the time of the loop around them."""
    inside = 0.0
    began = perf_counter()
    for _ in range(times):
        start = perf_counter()
        run(rows)
        inside += perf_counter() - start
    return inside / (perf_counter() - began)
