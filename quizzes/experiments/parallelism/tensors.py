"""Experts, shards and two processes of the real model."""

from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from engine.config import EngineArgs, ModelConfig, MoEConfig
from engine.config.model import ExpertNames, RopeConfig
from engine.core.stats import StepStats
from quizzes.experiments import BadArguments, Context, Result, arg, experiment, generate, greedy
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

    Returns: One layer, one step.
        visits [visits]: By expert: tokens that chose it.
        total_visits [visits]
        used_experts [experts]: Experts chosen by at least one token: their weights are read.
        rank_visits [visits]: By rank; experts are assigned in order.
        imbalance [x]: Busiest rank over the mean; the layer waits for the busiest.
        bytes_all_to_all [B]: 16-bit hidden states that leave their rank and return, with tokens spread evenly.
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
    config = ModelConfig("moe", Path("."), "Mixture", "float32", moe=moe, **one_layer)
    layer = FusedMoE(config, torch.float32)
    generator = torch.Generator().manual_seed(ctx.seed + 1)
    for storage in (layer.router, layer.gate_up, layer.down):
        storage.data.copy_(torch.randn(storage.shape, generator=generator) / hidden**0.5)
    states = torch.randn(tokens, hidden, generator=generator)
    if skew:  # all tokens share a direction that early experts prefer
        direction = torch.nn.functional.normalize(torch.randn(hidden, generator=generator), dim=0)
        states += direction
        layer.router.data += skew * torch.linspace(1, 0, num_experts)[:, None] * direction
    layer.finish_loading()
    layer(states)
    visits = layer.tokens_per_expert.tolist()
    by_rank = layer.tokens_per_expert.reshape(ranks, -1).sum(1).tolist()
    return Result(
        visits=visits,
        total_visits=sum(visits),
        used_experts=sum(count > 0 for count in visits),
        rank_visits=by_rank,
        imbalance=max(by_rank) / (sum(visits) / ranks),
        bytes_all_to_all=round(2 * sum(visits) * (ranks - 1) / ranks * hidden * 2),
        bytes_all_reduce=tokens * hidden * 2 if ranks > 1 else 0,
    )


def experts_chart(result: Result) -> dict[str, Any]:
    """Visits by expert, coloured by the rank that computes them."""
    experts, per_rank = range(len(result.visits)), len(result.visits) // len(result.rank_visits)
    columns = {"expert": experts, "visits": result.visits, "rank": [expert // per_rank for expert in experts]}
    return vega(columns, "bar", x="expert:O", y="visits:Q", color="rank:N")


@experiment("E46", seconds=30, megabytes=2500)
def shards(split: Literal["tensor", "pipeline", "data"] = "tensor", size: Literal[1, 2, 4] = 2) -> Result:
    """Count what each rank holds: a slice of every matrix (TP), some of the layers (PP), or everything (DP).

    Returns: The shop model on `size` ranks. Each rank's part is built in this process, as its worker would.
        parameters [parameters]: By rank, norms and embedding included.
        matrix_parameters [parameters]: Parameters of the layers' matrices only.
        layers [layers]: By rank: layers it computes.
        q_rows [rows]: By rank: rows of the first layer's query projection that it holds; 0 without that layer.
        kv_heads [heads]: By rank: KV heads per layer.
        whole [parameters]
    """
    import torch

    from engine.models.hf_config import load_model_config
    from engine.models.loader import checkpoint_tensors, create_model
    from engine.parallel import Group, Ranks
    from engine.worker.worker import local_part

    config = load_model_config(EngineArgs.create(model="shop"))

    def part(ranks: Ranks) -> dict[str, Any]:
        """Return every tensor that loading fills, by its name in the checkpoint."""
        return checkpoint_tensors(create_model(config, torch.device("cpu"), ranks))

    groups = [Group(tuple(range(size)), rank) for rank in range(size)]
    divisions = {
        "tensor": [Ranks(group, Group()) for group in groups],
        "pipeline": [Ranks(Group(), group) for group in groups],
        "data": [Ranks() for _ in groups],
    }
    all_ranks = divisions[split]
    parts = [part(ranks) for ranks in all_ranks]
    queries = [tensors.get("model.layers.0.self_attn.q_proj.weight") for tensors in parts]
    return Result(
        parameters=[sum(tensor.numel() for tensor in tensors.values()) for tensors in parts],
        matrix_parameters=[
            sum(tensor.numel() for name, tensor in tensors.items() if "_proj" in name) for tensors in parts
        ],
        layers=[len(ranks.layers(config.num_hidden_layers)) for ranks in all_ranks],
        q_rows=[0 if query is None else query.shape[0] for query in queries],
        kv_heads=[local_part(config, ranks).num_key_value_heads for ranks in all_ranks],
        whole=sum(tensor.numel() for tensor in part(Ranks()).values()),
    )


@experiment("E46", seconds=90, megabytes=3000)
def live(
    ctx: Context,
    split: Literal["tensor", "pipeline"] = "tensor",
    requests: int = arg(1, 1, 8),
    max_tokens: int = arg(12, 4, 48),
) -> Result:
    """Run the shop model over two processes, compare its tokens with one process, and count the messages.

    Returns: Decode steps of two workers (fp32, gloo) against one.
        same_tokens
        collectives_per_step [calls]: Messages of the sampling rank per step: all-reduces and a gather, or receives.
        bytes_per_step [B]: Bytes that this rank contributes to such a step.
        all_reduces_per_layer [calls]: (collectives - embedding's - gather) / layers; 0 for pipeline stages.
        bytes_per_token [B]; layers [layers]
        idle_share [share]: Share of stage-steps in which a pipeline stage is idle; 0 for tensor ranks.
    """
    prompts = [[40 + 13 * row + i for i in range(9)] for row in range(requests)]

    def answers(llm: Any) -> list[list[int]]:
        return [output.token_ids for output in generate(llm, prompts, greedy(max_tokens))]

    with ctx.llm(dtype="float32", max_num_seqs=8) as llm:
        expected = answers(llm)
    two: dict[str, Any] = {f"{split}_parallel_size": 2}
    steps: list[StepStats] = []
    with ctx.llm(dtype="float32", max_num_seqs=8, **two) as llm:
        core = llm.llm_engine.engine_core
        step = core.step

        def counting() -> Any:
            outputs = step()
            steps.append(replace(core.scheduler.stats))
            return outputs

        core.step = counting
        answered = answers(llm)
        layers = core.config.model.num_hidden_layers
    decode = [stats for stats in steps[requests:] if stats.num_collectives]
    typical, middle = decode[len(decode) // 2], steps[2:-2]
    idle = sum(stats.num_idle_stages for stats in middle) / (2 * len(middle))
    return Result(
        same_tokens=answered == expected,
        collectives_per_step=float(typical.num_collectives),
        bytes_per_step=typical.collective_bytes,
        all_reduces_per_layer=(typical.num_collectives - 2) / layers if split == "tensor" else 0.0,
        bytes_per_token=typical.collective_bytes / typical.num_scheduled_tokens,
        layers=layers,
        idle_share=idle if split == "pipeline" else 0.0,
    )
