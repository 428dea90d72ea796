from typing import Any

from quizzes.experiments import Context, Result, arg, experiment
from quizzes.experiments.charts import LINE, vega
from quizzes.experiments.performance._floor import floor_of, load_of_rows

LARGEST = 1 << 20


@experiment("E26", "E24")
def batch_scaling(
    ctx: Context,
    model: str = "llama-3-8b",
    hardware: str = "h100",
    dtype: str = "bfloat16",
    context: int = arg(1000, 0, 1_000_000),
    batches: list[int] = arg([1, 8, 32, 128, 512], 1, 65_536, count=(1, 20)),
    kv_cache_dtype: str = "auto",
) -> Result:
    """Scale the decode batch at the datasheet's rates: weights are read once for all rows, KV once per row.

    Returns:
        By batch size, in the order given.
        batches [rows]
        step_ms [ms]
        tokens_per_s [tokens/s]
        weight_mb_per_token, kv_mb_per_token [MB]
        kv_share [share]: KV in all bytes of the step.
        speedup [x]: Tokens per second of the last batch over the first.
        knee [rows]: The smallest batch whose linear layers are limited by arithmetic.
        kv_equals_weights [rows]: The smallest batch that reads at least as many bytes of KV as of weights.
    """
    floor = floor_of(model, hardware, dtype, kv_cache_dtype)
    loads = [load_of_rows(rows, 1, context) for rows in batches]
    seconds = [floor.cost.seconds(load) for load in loads]
    weights = [floor.cost.bytes_and_flops(load)[0] for load in loads]
    kv = [floor.kv_bytes(load) for load in loads]
    rates = [rows / time for rows, time in zip(batches, seconds, strict=True)]

    def is_compute_bound(rows: int) -> bool:
        return floor.cost.intensity(load_of_rows(rows, 1, context)) > floor.ridge

    def reads_more_kv(rows: int) -> bool:
        load = load_of_rows(rows, 1, context)
        return floor.kv_bytes(load) >= floor.cost.bytes_and_flops(load)[0]

    return Result(
        batches=list(batches),
        step_ms=[1e3 * time for time in seconds],
        tokens_per_s=rates,
        weight_mb_per_token=[num / rows / 1e6 for num, rows in zip(weights, batches, strict=True)],
        kv_mb_per_token=[num / rows / 1e6 for num, rows in zip(kv, batches, strict=True)],
        kv_share=[k / (k + w) for k, w in zip(kv, weights, strict=True)],
        speedup=rates[-1] / rates[0],
        knee=_first(is_compute_bound),
        kv_equals_weights=_first(reads_more_kv),
    )


def _first(holds: Any) -> int:
    """The smallest number of rows for which it holds, by bisection."""
    low, high = 0, LARGEST
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def chart(result: Result) -> dict[str, Any]:
    """Tokens per second over the batch."""
    pairs = zip(result.batches, result.tokens_per_s, strict=True)
    values = [{"batch": batch, "tokens/s": rate} for batch, rate in pairs]
    return vega(values, LINE, x=("batch:Q", {"scale": {"type": "log"}}), y="tokens/s:Q")
