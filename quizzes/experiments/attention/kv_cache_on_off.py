from typing import Any

from engine.sim.cost import pairs_of
from engine.sim.models import get_model
from quizzes.experiments import Ask, Context, Result, arg, experiment


@experiment("E25")
def kv_cache_on_off(
    ctx: Context,
    prompt: int = arg(100, 1, 5000),
    generated: int = arg(50, 1, 2000),
    model: str = "llama-2-7b",
) -> Result:
    """Count positions, attention pairs and arithmetic of one request with the KV cache and without it.

    Without a cache each token is a separate request whose prompt is everything before it; prefix caching is off.

    Returns:
        Counted by the scheduler; arithmetic from the model's shape (linear layers, head, attention).
        with_cache, without_cache [positions]: Positions computed, prompt included.
        position_ratio [x]
        pairs_with, pairs_without [pairs]: (query, key) pairs of attention, one head and layer.
        flop_with, flop_without [GFLOP]
        flop_ratio [x]
        last_token_ratio [x]: Arithmetic of the last token alone: without over with.
        kv_mb [MB]: KV held at the end.
    """
    settings: dict[str, Any] = {
        "enable_prefix_caching": False,
        "max_num_batched_tokens": 100_000,
        "num_blocks": 20_000,
    }
    cached = ctx.core(**settings)
    cached.run([Ask("r", prompt, generated)])
    chunks = [chunk for step in cached.steps for chunk in step.rows.values()]
    bare = ctx.core(max_num_seqs=1, **settings)
    bare.run([Ask(f"r{i}", prompt + i, 1) for i in range(generated)])
    repeats = [chunk for step in bare.steps for chunk in step.rows.values()]

    shape = get_model(model)
    head = 2 * shape.vocab_size * shape.hidden_size
    linear = 2 * (shape.common_params + shape.active_routed_params)

    def flops(rows: list[tuple[int, int]]) -> float:
        """Return the arithmetic of chunks (first position, count), each followed by one row of logits."""
        attention = (
            sum(pairs_of(start, count, None) for start, count in rows) * shape.attention_flops_per_pair
        )
        return sum(count for _, count in rows) * linear + attention + head * len(rows)

    def pairs(rows: list[tuple[int, int]]) -> int:
        return sum(pairs_of(start, count, None) for start, count in rows)

    positions = cached.outcomes["r"].computed_tokens
    again = sum(outcome.computed_tokens for outcome in bare.outcomes.values())
    return Result(
        with_cache=positions,
        without_cache=again,
        position_ratio=again / positions,
        pairs_with=pairs(chunks),
        pairs_without=pairs(repeats),
        flop_with=flops(chunks) / 1e9,
        flop_without=flops(repeats) / 1e9,
        flop_ratio=flops(repeats) / flops(chunks),
        last_token_ratio=flops(repeats[-1:]) / flops(chunks[-1:]),
        kv_mb=positions * shape.kv_elements_per_token() * 2 / 1e6,
    )
