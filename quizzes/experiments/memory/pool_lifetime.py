from quizzes.experiments import Context, Result, arg, experiment, greedy


@experiment("E02")
def pool_lifetime(
    ctx: Context,
    requests: int = arg(4, 1, 16),
    output: int = arg(24, 1, 64),
    num_blocks: int = arg(128, 16, 1024),
) -> Result:
    """Check that a live engine's KV cache does not grow with the load.

    Serves `requests` prompts of 40 tokens with `output` tokens each.

    Returns:
        The cache's tensor and the pool's counters.
        bytes_before, bytes_after [B]
        same_memory: The tensor starts at the same address afterwards.
        used_before, peak_used, used_after [blocks]
        generated [tokens]
    """
    with ctx.llm(num_gpu_blocks_override=num_blocks, max_model_len=256) as llm:
        core = llm.llm_engine.engine_core
        cache, pool = core.executor.worker.runner.kv_cache.blocks, core.scheduler.kv.pool
        before, address, used_before = cache.nbytes, cache.data_ptr(), pool.num_used
        peak = 0

        def watch(*event: object) -> None:
            nonlocal peak
            peak = max(peak, pool.num_used)

        pool.on_event = watch
        params = greedy(output)
        prompts = [{"prompt_token_ids": list(range(10 + i, 50 + i))} for i in range(requests)]
        answers = llm.generate(prompts, params, use_tqdm=False)
        after = core.executor.worker.runner.kv_cache.blocks
        return Result(
            bytes_before=before,
            bytes_after=after.nbytes,
            same_memory=after.data_ptr() == address,
            used_before=used_before,
            peak_used=peak,
            used_after=pool.num_used,
            generated=sum(len(answer.outputs[0].token_ids) for answer in answers),
        )
