from pathlib import Path
from typing import Any

from engine.config import ModelConfig, MoEConfig
from engine.config.model import ExpertNames, RopeConfig
from quizzes.experiments import BadArguments, Context, Result, arg, experiment
from quizzes.experiments.charts import vega


@experiment("E46", megabytes=2500)
def experts(
    ctx: Context,
    num_experts: int = arg(64, 2, 256),
    top_k: int = arg(4, 1, 16),
    tokens: int = arg(64, 1, 4096),
    ranks: int = arg(8, 1, 64),
    hidden: int = arg(64, 8, 256),
    skew: float = arg(0.0, 0, 20),
) -> Result:
    """Count visits of each expert in a mixture of experts, and the imbalance when ranks hold whole experts.

    Random tokens go through the engine's mixture layer. skew: how strongly the router prefers early experts. ranks
    must divide num_experts, and top_k must not exceed it.

    Returns:
        One layer, one step.
        visits [visits]: By expert: tokens that chose it.
        total_visits [visits]
        used_experts [experts]: Experts chosen by at least one token: their weights are read.
        rank_visits [visits]: By rank; experts are assigned in order.
        imbalance [x]: Busiest rank over the mean; the layer waits for the busiest.
        bytes_all_to_all [B]: 16-bit hidden states that leave their rank and return, with tokens spread evenly over the
            ranks.
        bytes_all_reduce [B]: Payload of this engine's way: every rank has all tokens, and the results are summed.
    """
    import torch

    from engine.layers.moe import FusedMoE

    if num_experts % ranks or top_k > num_experts:
        raise BadArguments(
            f"{ranks} ranks must divide {num_experts} experts; top_k={top_k} must not exceed them"
        )
    names = ExpertNames("mlp", "gate_proj", "up_proj", "down_proj")
    moe = MoEConfig(num_experts, top_k, 16, norm_topk_prob=True, layers=(True,), names=names)
    one_layer: dict[str, Any] = {"vocab_size": 64, "num_hidden_layers": 1, "intermediate_size": 16}
    one_layer |= {"hidden_size": hidden, "head_dim": hidden, "rms_norm_eps": 1e-5, "rope": RopeConfig(1e4)}
    one_layer |= {"num_attention_heads": 1, "num_key_value_heads": 1, "max_position_embeddings": 64}
    config = ModelConfig("moe", Path("."), "Mixture", "float32", **one_layer)
    layer = FusedMoE(config, moe, torch.float32)
    generator = torch.Generator().manual_seed(ctx.seed + 1)
    for storage in (layer.router, layer.gate_up, layer.down):
        storage.data.copy_(torch.randn(storage.shape, generator=generator) / hidden**0.5)
    states = torch.randn(tokens, hidden, generator=generator)
    if skew:  # all tokens share a direction that early experts prefer
        direction = torch.randn(hidden, generator=generator)
        direction /= direction.norm()
        states += direction
        preference = torch.linspace(1, 0, num_experts)[:, None]
        layer.router.data += skew * preference * direction
    layer.finish_loading()
    layer(states)
    visits = layer.tokens_per_expert.tolist()
    size = num_experts // ranks
    by_rank = [sum(visits[start : start + size]) for start in range(0, num_experts, size)]
    crossing = sum(by_rank) * (ranks - 1) / ranks
    return Result(
        visits=visits,
        total_visits=sum(visits),
        used_experts=sum(count > 0 for count in visits),
        rank_visits=by_rank,
        imbalance=max(by_rank) / (sum(by_rank) / ranks),
        bytes_all_to_all=round(2 * crossing * hidden * 2),
        bytes_all_reduce=tokens * hidden * 2 if ranks > 1 else 0,
    )


def chart(result: Result) -> dict[str, Any]:
    """Visits by expert, coloured by the rank that computes them."""
    per_rank = len(result.visits) // len(result.rank_visits)
    values = [
        {"expert": expert, "visits": count, "rank": expert // per_rank}
        for expert, count in enumerate(result.visits)
    ]
    return vega(values, "bar", x="expert:O", y="visits:Q", color="rank:N")
