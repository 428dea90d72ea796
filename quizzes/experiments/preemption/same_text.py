from typing import Any, Literal

from quizzes.experiments import Context, Result, arg, experiment, greedy


@experiment("E17", "E18")
def same_text(
    ctx: Context,
    mode: Literal["recompute", "swap"] = "recompute",
    num_requests: int = arg(6, 2, 8),
    max_tokens: int = arg(40, 1, 64),
    num_blocks: int = arg(16, 12, 512),
) -> Result:
    """Check that preemption does not change the answers of the shop model, greedy.

    The same prompts run in ample memory and in `num_blocks` blocks of 16 tokens.

    Returns:
        Answers compared token by token.
        num_requests, num_preemptions
        preempted [preemptions]: Preemptions by request, in order of arrival.
        same_answers [requests]: Whose tokens are those of the run without pressure.
        blocks_copied [blocks]: Blocks copied from the host to the device; 0 with recompute.
    """
    prompts = [
        f"Hello, I am customer {i}. When will my order of {i + 2} lamps arrive, please?" for i in range(8)
    ]
    params = greedy(max_tokens)
    with ctx.llm(max_model_len=160) as llm:
        ample = llm.generate(prompts[:num_requests], params, use_tqdm=False)
    tight: dict[str, Any] = {
        "num_gpu_blocks_override": num_blocks,
        "preemption_mode": mode,
        "max_model_len": 160,
    }
    with ctx.llm(traced=True, **tight) as llm:
        scheduler = llm.llm_engine.engine_core.scheduler
        copied, update = [], scheduler.update

        def counting(*step: Any) -> Any:
            outputs = update(*step)
            copied.append(scheduler.stats.num_blocks_copied_in)
            return outputs

        scheduler.update = counting
        scarce = llm.generate(prompts[:num_requests], params, use_tqdm=False)
    return Result(
        num_requests=num_requests,
        num_preemptions=sum(output.metrics.num_preemptions for output in scarce),
        preempted=[output.metrics.num_preemptions for output in scarce],
        same_answers=sum(
            a.outputs[0].token_ids == b.outputs[0].token_ids for a, b in zip(ample, scarce, strict=True)
        ),
        blocks_copied=sum(copied),
    )
