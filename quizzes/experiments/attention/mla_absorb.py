from typing import Any

from quizzes.experiments import Context, Result, arg, experiment

SAME = 1e-9


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

    Returns:
        Per layer, for one query and one cached position.
        cached_numbers [numbers]: Per token: latent and rotary key.
        mha_numbers [numbers]: Per token, if keys and values of all heads were kept.
        pair_flops_absorbed [FLOP]: One new query, one cached token, all heads: scores and sums on the latent vector.
        pair_flops_expanded [FLOP]: The same after keys and values have been expanded, expansion not counted.
        expand_flops [FLOP]: Making keys and values of one cached token: what the other way does for each token and
            step.
        intensity [FLOP/B]: Arithmetic intensity of absorbed decode on a 16-bit cache.
        difference: Largest, between both ways on small random matrices in float64.
        is_equal
    """
    absorbed = 2 * heads * (latent + rope) + 2 * heads * latent
    difference = _difference(
        ctx, min(heads, 8), min(latent, 64), min(rope, 16), min(nope, 32), min(value, 32)
    )
    return Result(
        cached_numbers=latent + rope,
        mha_numbers=heads * (nope + rope + value),
        pair_flops_absorbed=absorbed,
        pair_flops_expanded=2 * heads * (nope + rope) + 2 * heads * value,
        expand_flops=2 * latent * heads * (nope + value),
        intensity=absorbed / (2 * (latent + rope)),
        difference=difference,
        is_equal=difference < SAME,
    )


def _difference(ctx: Context, heads: int, latent: int, rope: int, nope: int, value: int) -> float:
    import numpy as np

    rng = np.random.default_rng(ctx.seed)
    tokens = 40
    c, k_rope = rng.normal(size=(tokens, latent)), rng.normal(size=(tokens, rope))
    up_k = rng.normal(size=(heads, nope, latent)) / latent**0.5
    up_v = rng.normal(size=(heads, value, latent)) / latent**0.5
    q_nope, q_rope = rng.normal(size=(heads, nope)), rng.normal(size=(heads, rope))
    scale = (nope + rope) ** -0.5

    keys = np.einsum("hnl,tl->htn", up_k, c)
    scores = np.einsum("hn,htn->ht", q_nope, keys) + q_rope @ k_rope.T
    expanded = np.einsum("ht,hvl,tl->hv", _softmax(scores * scale), up_v, c)

    latent_query = np.einsum("hn,hnl->hl", q_nope, up_k)
    scores = latent_query @ c.T + q_rope @ k_rope.T
    absorbed = np.einsum("hvl,hl->hv", up_v, _softmax(scores * scale) @ c)
    return float(np.abs(expanded - absorbed).max())


def _softmax(x: Any) -> Any:
    import numpy as np

    weights = np.exp(x - x.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)
