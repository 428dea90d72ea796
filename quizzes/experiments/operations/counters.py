from quizzes.experiments import Ask, Context, Result, arg, experiment


@experiment("E51")
def counters(
    ctx: Context,
    requests: int = arg(6, 1, 64),
    shared: int = arg(64, 0, 2000),
    own: int = arg(20, 1, 2000),
    output: int = arg(30, 1, 500),
    gap: int = arg(2, 0, 100),
    num_blocks: int = arg(200, 8, 4000),
    max_num_seqs: int = arg(8, 1, 64),
) -> Result:
    """Check the engine's counters against a recount from its steps.

    Requests with a common prefix of `shared` tokens and `own` distinct tokens arrive one every `gap` steps.

    Returns:
        Sums of `StepStats` over all steps, and the names under which vLLM exports them.
        prompt_tokens [tokens]: Prompt tokens of all requests: `vllm:prompt_tokens`.
        prefill_tokens [tokens]: Computed as prompt: without what was cached, with what was recomputed.
        generation_tokens [tokens]
        prefix_queries [tokens]: `vllm:prefix_cache_queries`: tokens that were looked up.
        prefix_hits [tokens]
        hit_rate [share]
        preemptions: `vllm:num_preemptions`.
        peak_running, peak_waiting [requests]
        peak_kv_usage [share]: `vllm:kv_cache_usage_perc`: 0 to 1, in spite of its name.
        usage_at_end [share]: KV usage at the end; unreferenced cached blocks count as free.
        recount_differs: Counters that a recount from rows, outputs and events does not confirm.
    """
    head = list(range(1, shared + 1))
    asks = [
        Ask(f"r{i}", [*head, *range((i + 1) << 20, ((i + 1) << 20) + own)], output, arrival=i * gap)
        for i in range(requests)
    ]
    engine = ctx.core(num_blocks=num_blocks, max_num_seqs=max_num_seqs, traced=True).run(asks)
    stats = [step.stats for step in engine.steps]
    outcomes = list(engine.outcomes.values())
    generated = sum(stat.num_generated_tokens for stat in stats)
    scheduled = sum(stat.num_scheduled_tokens for stat in stats)
    hits = sum(stat.prefix_cache_hits for stat in stats)
    queries = sum(stat.prefix_cache_queries for stat in stats)
    preemptions = sum(stat.num_preempted for stat in stats)
    recount = [
        (generated, sum(len(o.token_steps) for o in outcomes)),
        (scheduled, sum(step.num_tokens for step in engine.steps)),
        (hits, sum(o.cached_tokens for o in outcomes)),
        (preemptions, sum(len(o.preemptions) for o in outcomes)),
        (sum(stat.num_finished for stat in stats), sum(o.finished is not None for o in outcomes)),
    ]
    return Result(
        prompt_tokens=requests * (shared + own),
        prefill_tokens=sum(stat.num_prefill_tokens for stat in stats),
        generation_tokens=generated,
        prefix_queries=queries,
        prefix_hits=hits,
        hit_rate=hits / queries,
        preemptions=preemptions,
        peak_running=max(stat.num_running for stat in stats),
        peak_waiting=max(stat.num_waiting for stat in stats),
        peak_kv_usage=max(stat.kv_cache_usage for stat in stats),
        usage_at_end=stats[-1].kv_cache_usage,
        recount_differs=sum(counter != count for counter, count in recount),
    )
