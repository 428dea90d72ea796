from typing import Any, Literal

from quizzes.experiments import Context, Result, arg, experiment, greedy


@experiment("E46", seconds=90, megabytes=3000)
def live(
    ctx: Context,
    split: Literal["tensor", "pipeline"] = "tensor",
    requests: int = arg(1, 1, 8),
    max_tokens: int = arg(12, 4, 48),
) -> Result:
    """Run the shop model over two processes, compare its tokens with one process, and count the messages.

    The workers compute in fp32 and communicate through gloo.

    Returns:
        Decode steps of two workers against one.
        same_tokens
        collectives_per_step [calls]: Messages of the sampling rank in a step of one token per row: all-reduces and a
            gather, or receives.
        bytes_per_step [B]: Bytes that this rank contributes to such a step.
        all_reduces_per_layer [calls]: (collectives - embedding's - gather) / layers; 0 for pipeline stages.
        bytes_per_token [B]
        layers [layers]
        idle_share [share]: Share of stage-steps in which a pipeline stage is idle; 0 for tensor ranks.
    """
    prompts = [[40 + 13 * row + i for i in range(9)] for row in range(requests)]
    params = greedy(max_tokens)
    with ctx.llm(dtype="float32", max_num_seqs=8) as llm:
        expected = [output.outputs[0].token_ids for output in llm.generate(prompts, params, use_tqdm=False)]
    two: dict[str, Any] = {f"{split}_parallel_size": 2}
    steps: list[tuple[int, int, int, int]] = []
    with ctx.llm(dtype="float32", max_num_seqs=8, **two) as llm:
        core = llm.llm_engine.engine_core
        step = core.step

        def counting() -> Any:
            outputs = step()
            stats = core.scheduler.stats
            steps.append(
                (
                    stats.num_scheduled_tokens,
                    stats.num_collectives,
                    stats.collective_bytes,
                    stats.num_idle_stages,
                )
            )
            return outputs

        core.step = counting
        found = [output.outputs[0].token_ids for output in llm.generate(prompts, params, use_tqdm=False)]
        layers = core.config.model.num_hidden_layers
    decode = [entry for entry in steps[requests:] if entry[1]]
    tokens, calls, num_bytes, _ = decode[len(decode) // 2]
    middle = steps[2:-2]
    return Result(
        same_tokens=found == expected,
        collectives_per_step=float(calls),
        bytes_per_step=num_bytes,
        all_reduces_per_layer=(calls - 2) / layers if split == "tensor" else 0.0,
        bytes_per_token=num_bytes / tokens,
        layers=layers,
        idle_share=sum(entry[3] for entry in middle) / (2 * len(middle)) if split == "pipeline" else 0.0,
    )
