from quizzes.experiments import Ask, Context, Result, arg, experiment


@experiment("E14", "E15")
def mixed_step(
    ctx: Context,
    decodes: int = arg(8, 1, 256),
    prompt: int = arg(200, 1, 16_000),
    budget: int = arg(512, 1, 16_384),
    chunked: bool = True,
) -> Result:
    """Send a prompt to an engine that decodes, with and without chunked prefill, and look at its steps.

    `decodes` requests decode when the prompt arrives. Without chunked prefill the budget must hold the longest prompt,
    so a smaller budget is raised.

    Returns:
        The prompt is added before step 2.
        mixed_steps [steps]: Steps with tokens of the prompt and of decodes.
        chunks [tokens]: Chunks of the prompt, step by step.
        is_cut: The prompt took more than one step.
        ttft [steps]: Steps from the prompt's arrival to its first token; at least 1.
        decode_gap [steps]: Longest gap between two tokens of a decode; 1: no delay.
        largest_step [tokens]: Tokens of the largest step after the arrival, which delays the decodes most.
    """
    if not chunked:
        budget = max(budget, prompt + 2)
    engine = ctx.core(
        max_num_batched_tokens=budget,
        max_num_seqs=min(budget, 512),
        max_model_len=max(prompt, 100) + 2 if not chunked else 100_000,
        enable_chunked_prefill=chunked,
        enable_prefix_caching=False,
        traced=True,
    )
    length = 24 + -(-prompt // max(1, budget - decodes)) if budget > decodes else 24
    asks = [Ask(f"d{i}", 1, min(length, 97)) for i in range(decodes)]
    engine.run([*asks, Ask("new", prompt, 2, arrival=2)])
    new = engine.outcomes["new"]
    with_new = [step for step in engine.steps if "new" in step.rows and step.index <= new.token_steps[0]]
    gaps = [
        later - earlier
        for ask in asks
        for steps in [engine.outcomes[ask.request_id].token_steps]
        for earlier, later in zip(steps, steps[1:], strict=False)
    ]
    return Result(
        mixed_steps=sum(len(step.rows) > 1 for step in with_new),
        chunks=[step.rows["new"][1] for step in with_new],
        is_cut=len(with_new) > 1,
        ttft=new.token_steps[0] - new.arrival + 1,
        decode_gap=max(gaps, default=0),
        largest_step=max(step.num_tokens for step in engine.steps[2:]),
    )
