from quizzes.experiments import BadArguments, Context, Result, arg, experiment
from quizzes.experiments.performance._floor import floor_of, load_of_rows
from quizzes.experiments.performance.batch_scaling import _first


@experiment("E26")
def moe_reads(
    ctx: Context,
    model: str = "mixtral-8x7b",
    hardware: str = "h100",
    dtype: str = "bfloat16",
    tokens: int = arg(8, 1, 65_536),
) -> Result:
    """Count the experts and bytes that a decode step of a mixture of experts reads, by batch size.

    Uses the simulator's cost model for `tokens` rows.

    Returns:
        One decode step.
        experts_read [experts]: Expected experts per MoE layer under uniform routing.
        expert_gb [GB]: Read by the step, all layers.
        gb_per_token [GB]: All weights but the head, per token.
        tokens_per_expert [tokens]: Mean rows of one expert's matrix product.
        intensity, ridge [FLOP/B]
        knee [tokens]: Tokens in a step from which the linear layers are limited by arithmetic.
    """
    floor = floor_of(model, hardware, dtype)
    shape = floor.deployment.model
    if shape.moe is None:
        raise BadArguments(f"{model} has no experts; choose mixtral-8x7b, qwen3-30b-a3b or deepseek-v3")
    load = load_of_rows(tokens, 1, 0)
    total = floor.cost.bytes_and_flops(load)[0] - shape.vocab_size * shape.hidden_size * 2
    dense = shape.common_params * floor.deployment.precision.weight_bytes
    expert_bytes = total - dense
    all_experts = shape.routed_params * floor.deployment.precision.weight_bytes
    share = expert_bytes / all_experts
    return Result(
        experts_read=share * shape.moe.num_experts,
        expert_gb=expert_bytes / 1e9,
        gb_per_token=total / tokens / 1e9,
        tokens_per_expert=tokens * shape.moe.top_k / (share * shape.moe.num_experts),
        intensity=floor.cost.intensity(load),
        ridge=floor.ridge,
        knee=_first(lambda rows: floor.cost.intensity(load_of_rows(rows, 1, 0)) > floor.ridge),
    )
