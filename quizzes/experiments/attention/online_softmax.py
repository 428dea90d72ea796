import math

from quizzes.experiments import Context, Result, arg, experiment

SAME = 1e-12


@experiment("E28")
def online_softmax(
    ctx: Context,
    scores: list[int] = arg([1, 5, 2, 9, 3, 3, 11, 0], -700, 700, count=(1, 4096)),
    tile: int = arg(2, 1, 4096),
) -> Result:
    """Compute attention one tile of keys at a time, with a running maximum and sum (Milakov & Gimelshein 2018).

    One query has these scores; the values are drawn. Tiles of keys are taken from left to right.

    Returns:
        tiles [tiles]
        difference: Largest, to softmax over all scores at once, in float64.
        is_exact: The difference is that of rounding: below 1e-12.
        rescales [times]: Tiles after the first that raised the running maximum and so rescaled the running sums.
        scores_at_once, scores_dense [numbers]: Scores held for one query, tiled and dense.
        without_rescale: Difference if the running sum were never scaled: each tile normalised by its own maximum.
    """
    values = [ctx.rng.gauss(0, 1) for _ in scores]
    highest = max(scores)
    weights = [math.exp(score - highest) for score in scores]
    dense = sum(w * v for w, v in zip(weights, values, strict=True)) / sum(weights)

    running, total, out, rescales = -math.inf, 0.0, 0.0, 0
    naive_total = naive_out = 0.0
    for start in range(0, len(scores), tile):
        part, part_values = scores[start : start + tile], values[start : start + tile]
        peak = max(running, max(part))
        if start and peak > running:
            rescales += 1
        scale = math.exp(running - peak)
        exps = [math.exp(score - peak) for score in part]
        total = total * scale + sum(exps)
        out = out * scale + sum(e * v for e, v in zip(exps, part_values, strict=True))
        running = peak
        own = [math.exp(score - max(part)) for score in part]
        naive_total += sum(own)
        naive_out += sum(e * v for e, v in zip(own, part_values, strict=True))
    difference = abs(out / total - dense)
    return Result(
        tiles=-(-len(scores) // tile),
        difference=difference,
        is_exact=difference < SAME,
        rescales=rescales,
        scores_at_once=min(tile, len(scores)),
        scores_dense=len(scores),
        without_rescale=abs(naive_out / naive_total - dense),
    )
