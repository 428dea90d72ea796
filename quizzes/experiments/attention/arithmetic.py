"""Attention by tiles and splits, and on latent vectors: bytes, arithmetic and exactness."""

import math
from typing import Any

from quizzes.experiments import Context, Result, arg, experiment


@experiment("E28")
def attention_traffic(
    queries: int = arg(4096, 1, 65_536),
    keys: int = arg(4096, 1, 1_000_000),
    head_dim: int = arg(128, 8, 512),
    tile: int = arg(128, 1, 1024),
    bytes_per_number: int = arg(2, 1, 4),
) -> Result:
    """Count bytes between memory and chip: textbook attention against tiles that stay on the chip (FlashAttention).

    Returns: One head, `queries` queries over `keys` keys, no mask.
        textbook [B]: Three kernels: scores are written, read and written by softmax, and read again.
        fused [B]: FlashAttention: for each tile of queries, all keys and values once; scores stay on the chip.
        ratio [x]
        score_bytes [B]: Bytes of the whole score matrix, which the textbook version must hold.
        flops [FLOP]: The same for both.
    """
    row = head_dim * bytes_per_number
    scores = queries * keys * bytes_per_number
    textbook = (queries + keys) * row + scores  # scores = q k^T
    textbook += scores + scores  # softmax
    textbook += scores + keys * row + queries * row  # probabilities times values
    tiles = -(-queries // tile)
    # Queries in, outputs out; keys and values for each tile.
    fused = 2 * queries * row + tiles * 2 * keys * row
    return Result(
        textbook=textbook,
        fused=fused,
        ratio=textbook / fused,
        score_bytes=scores,
        flops=4 * queries * keys * head_dim,
    )


SAME = 1e-12


@experiment("E28")
def online_softmax(
    ctx: Context,
    scores: list[int] = arg([1, 5, 2, 9, 3, 3, 11, 0], -700, 700, count=(1, 4096)),
    tile: int = arg(2, 1, 4096),
) -> Result:
    """Compute attention one tile of keys at a time, with a running maximum and sum (Milakov & Gimelshein 2018).

    Returns: One query has these scores; the values are drawn. Tiles of keys are taken from left to right.
        tiles [tiles]
        difference: Largest, to softmax over all scores at once, in float64.
        is_exact: The difference is that of rounding: below 1e-12.
        rescales [times]: Tiles after the first that raised the running maximum and so rescaled the running sums.
        scores_at_once, scores_dense [numbers]: Scores held for one query, tiled and dense.
        without_rescale: Difference if the running sum were never scaled: each tile normalised by its own maximum.
    """
    values = [ctx.rng.gauss(0, 1) for _ in scores]
    weights = [math.exp(score - max(scores)) for score in scores]
    dense = sum(w * v for w, v in zip(weights, values, strict=True)) / sum(weights)

    running, total, out, rescales = -math.inf, 0.0, 0.0, 0
    naive_total = naive_out = 0.0
    for start in range(0, len(scores), tile):
        part, part_values = scores[start : start + tile], values[start : start + tile]
        peak = max(running, *part)
        rescales += bool(start) and peak > running
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

    Returns: Programs of one step on a GPU with `sms` processors; the join is computed on random keys in float64.
        programs_whole [programs]: One for each row and kv head.
        programs_split [programs]: One for each row, kv head and split.
        idle_whole, idle_split [share]: SMs without work in the first wave.
        longest_whole, longest_split [keys]: Keys that the slowest program reads.
        partial_numbers [numbers]: m, l and acc that all splits of all query heads leave for the second kernel.
        difference: Largest, of joined partial results to attention in one piece: one head, at most 4096 keys.
        is_exact
        mean_of_parts: Difference if the partial outputs were simply averaged.
    """
    import numpy as np

    parts = sum(-(-n // split) for n in lens)
    programs = {"whole": len(lens) * kv_heads, "split": parts * kv_heads}
    rng = np.random.default_rng(ctx.seed)
    keys = min(lens[0], 4096)
    scores, values = rng.normal(0, 3, keys), rng.normal(0, 1, (keys, head_dim))
    _, size, acc = _attend(scores, values)
    pieces = [_attend(scores[at : at + split], values[at : at + split]) for at in range(0, keys, split)]
    peak = max(m for m, _, _ in pieces)
    total = sum(np.exp(m - peak) * size for m, size, _ in pieces)
    joined = sum(np.exp(m - peak) * acc for m, _, acc in pieces) / total
    mean = sum(acc / size for _, size, acc in pieces) / len(pieces)
    difference, off_mean = (float(np.abs(out - acc / size).max()) for out in (joined, mean))
    return Result(
        **{f"programs_{name}": count for name, count in programs.items()},
        **{f"idle_{name}": max(0, sms - count) / sms for name, count in programs.items()},
        longest_whole=max(lens),
        longest_split=min(split, max(lens)),
        partial_numbers=parts * heads * (head_dim + 2),
        difference=difference,
        is_exact=difference < SAME,
        mean_of_parts=off_mean,
    )


def _attend(scores: Any, values: Any) -> tuple[Any, Any, Any]:
    """(m, l, acc): maximum, sum of exponentials, weighted sum of values, the last two relative to m."""
    import numpy as np

    peak = np.max(scores)
    weights = np.exp(scores - peak)
    return peak, weights.sum(), weights @ values


@experiment("E27")
def mla_absorb(
    ctx: Context,
    heads: int = arg(128, 1, 256),
    latent: int = arg(512, 8, 1024),
    rope: int = arg(64, 2, 128),
    nope: int = arg(128, 8, 256),
    value: int = arg(128, 8, 256),
) -> Result:
    """Decode with multi-head latent attention on the latent vectors, with the up-projections absorbed.

    Numbers and arithmetic follow DeepSeek-V2 (2405.04434, section 2.1); both ways are computed once and compared.

    Returns: Per layer, for one query and one cached position.
        cached_numbers [numbers]: Per token: latent and rotary key.
        mha_numbers [numbers]: Per token, if keys and values of all heads were kept.
        pair_flops_absorbed [FLOP]: One new query, one cached token, all heads: scores and sums on the latent vector.
        pair_flops_expanded [FLOP]: The same after keys and values have been expanded, expansion not counted.
        expand_flops [FLOP]: Keys and values of one cached token: what the other way computes for each token and step.
        intensity [FLOP/B]: Arithmetic intensity of absorbed decode on a 16-bit cache.
        difference: Largest, between both ways on small random matrices in float64.
        is_equal
    """
    absorbed = 2 * heads * (latent + rope) + 2 * heads * latent
    small = [min(heads, 8), min(latent, 64), min(rope, 16), min(nope, 32), min(value, 32)]
    difference = _difference(ctx, *small)
    return Result(
        cached_numbers=latent + rope,
        mha_numbers=heads * (nope + rope + value),
        pair_flops_absorbed=absorbed,
        pair_flops_expanded=2 * heads * (nope + rope) + 2 * heads * value,
        expand_flops=2 * latent * heads * (nope + value),
        intensity=absorbed / (2 * (latent + rope)),
        difference=difference,
        is_equal=difference < 1e-9,
    )


def _difference(ctx: Context, heads: int, latent: int, rope: int, nope: int, value: int) -> float:
    import numpy as np

    rng = np.random.default_rng(ctx.seed)
    tokens = 40
    c, k_rope = rng.normal(size=(tokens, latent)), rng.normal(size=(tokens, rope))
    up_k = rng.normal(size=(heads, nope, latent)) / latent**0.5
    up_v = rng.normal(size=(heads, value, latent)) / latent**0.5
    q_nope, q_rope = rng.normal(size=(heads, nope)), rng.normal(size=(heads, rope))

    def weights(scores: Any) -> Any:
        scores = (scores + q_rope @ k_rope.T) * (nope + rope) ** -0.5
        exps = np.exp(scores - scores.max(-1, keepdims=True))
        return exps / exps.sum(-1, keepdims=True)

    keys = np.einsum("hnl,tl->htn", up_k, c)
    expanded = np.einsum("ht,hvl,tl->hv", weights(np.einsum("hn,htn->ht", q_nope, keys)), up_v, c)
    latent_query = np.einsum("hn,hnl->hl", q_nope, up_k)
    absorbed = np.einsum("hvl,hl->hv", up_v, weights(latent_query @ c.T) @ c)
    return float(np.abs(expanded - absorbed).max())
