from typing import Any

from quizzes.experiments import Context, Result, arg, experiment


@experiment("E32")
def kv_scales(
    ctx: Context,
    tokens: int = arg(128, 4, 1024),
    kv_heads: int = arg(4, 1, 16),
    head_dim: int = arg(32, 8, 128, multiple_of=8),
    loud_token: float = arg(30.0, 1, 1000),
    loud_head: float = arg(8.0, 1, 1000),
) -> Result:
    """Quantise keys and values to 8 bits under scales of different granularity: error and scale bytes.

    Gaussian keys and values; one token is `loud_token` times larger, one head `loud_head` times. The loud token's key
    points away from the queries, unlike an attention sink: it sets scales but gets no attention weight.

    Returns:
        Errors of the attention output of random queries, relative to attention over float keys and values.
        int8_tensor: One int8 scale for all keys, one for all values.
        int8_token: One for each token, all its heads together.
        int8_token_head: One for each token and head: the engine's int8_per_token_head.
        fp8_unscaled: The engine's fp8 cache with scales of 1.
        order: The three int8 ones, smallest error first.
        int8_beats_tensor: Scales for each token and head leave a smaller error than one for all.
        saturated [numbers]: Keys and values beyond 448 in the fp8 cache.
    """
    import torch

    from kernels import ops
    from kernels.ops import dequantise_int8, quantise_int8

    generator = torch.Generator().manual_seed(ctx.seed)
    key, value = torch.randn(2, tokens, kv_heads, head_dim, generator=generator)
    query = torch.randn(16, kv_heads, head_dim, generator=generator)
    for x in (key, value):
        x[:, 0] *= loud_head
    value[tokens // 2] *= loud_token
    key[tokens // 2] = -loud_token * query.mean(0)
    exact = _attend(query, key, value)

    def rounded(x: Any, rows: int) -> Any:
        return dequantise_int8(*quantise_int8(x.reshape(rows, -1))).reshape(x.shape)

    pool = torch.zeros(2, 2, kv_heads, tokens, head_dim, dtype=torch.float8_e4m3fn)
    ops.reshape_and_cache(key, value, pool, tokens + torch.arange(tokens), torch.ones(2))
    fp8_key, fp8_value = (part.transpose(0, 1) for part in pool[1].float())
    found = {
        "int8_tensor": _attend(query, rounded(key, 1), rounded(value, 1)),
        "int8_token": _attend(query, rounded(key, tokens), rounded(value, tokens)),
        "int8_token_head": _attend(query, rounded(key, tokens * kv_heads), rounded(value, tokens * kv_heads)),
        "fp8_unscaled": _attend(query, fp8_key, fp8_value),
    }
    errors = {name: float((out - exact).norm() / exact.norm()) for name, out in found.items()}
    ints = sorted((name for name in errors if name != "fp8_unscaled"), key=errors.__getitem__)
    return Result(
        **errors,
        order=ints,
        int8_beats_tensor=errors["int8_token_head"] < errors["int8_tensor"],
        saturated=int((torch.stack((key, value)).abs() > 448).sum()),
    )


def _attend(query: Any, key: Any, value: Any) -> Any:
    """Every query over every key, head by head, in float64."""
    q, k, v = (x.double().transpose(0, 1) for x in (query, key, value))
    scores = q @ k.transpose(1, 2) / k.shape[-1] ** 0.5
    return scores.softmax(-1) @ v
