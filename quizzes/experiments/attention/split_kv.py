from typing import Any

from quizzes.experiments import Context, Result, arg, experiment

SAME = 1e-12


@experiment("E28", "E27")
def split_kv(
    ctx: Context,
    lens: list[int] = arg([4096], 1, 1_000_000, count=(1, 256)),
    kv_heads: int = arg(8, 1, 128),
    heads: int = arg(32, 1, 256),
    head_dim: int = arg(128, 8, 256),
    split: int = arg(256, 1, 65_536),
    sms: int = arg(132, 1, 1024),
) -> Result:
    """Split the keys of a decode step, attend to the splits in parallel and join them by log-sum-exp (Flash-Decoding).

    Counts the programs of one step on a GPU with `sms` processors and computes the join on random keys in float64.

    Returns:
        programs_whole [programs]: One for each row and kv head.
        programs_split [programs]: One for each row, kv head and split.
        idle_whole, idle_split [share]: SMs without work in the first wave.
        longest_whole, longest_split [keys]: Keys that the slowest program reads.
        partial_numbers [numbers]: m, l and acc that all splits of all query heads leave for the second kernel.
        difference: Largest, of joined partial results to attention in one piece: one head of the first row, at most
            4096 keys.
        is_exact
        mean_of_parts: Difference if the partial outputs were simply averaged.
    """
    import numpy as np

    parts = [-(-n // split) for n in lens]
    whole, divided = len(lens) * kv_heads, sum(parts) * kv_heads
    rng = np.random.default_rng(ctx.seed)
    keys = min(lens[0], 4096)
    scores, values = rng.normal(0, 3, keys), rng.normal(0, 1, (keys, head_dim))
    expected = _attend(scores, values)
    pieces = [_attend(scores[at : at + split], values[at : at + split]) for at in range(0, keys, split)]
    peak = max(m for m, _, _ in pieces)
    total = sum(np.exp(m - peak) * size for m, size, _ in pieces)
    joined = sum(np.exp(m - peak) * acc for m, _, acc in pieces) / total
    exact = expected[2] / expected[1]
    mean = sum(acc / size for _, size, acc in pieces) / len(pieces)
    difference = float(np.abs(joined - exact).max())
    return Result(
        programs_whole=whole,
        programs_split=divided,
        idle_whole=max(0, sms - whole) / sms,
        idle_split=max(0, sms - divided) / sms,
        longest_whole=max(lens),
        longest_split=min(split, max(lens)),
        partial_numbers=sum(parts) * heads * (head_dim + 2),
        difference=difference,
        is_exact=difference < SAME,
        mean_of_parts=float(np.abs(mean - exact).max()),
    )


def _attend(scores: Any, values: Any) -> tuple[Any, Any, Any]:
    """(m, l, acc): maximum, sum of exponentials, weighted sum of values, the last two relative to m."""
    import numpy as np

    peak = np.max(scores)
    weights = np.exp(scores - peak)
    return peak, weights.sum(), weights @ values
