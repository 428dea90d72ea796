from quizzes.experiments import Ask, BadArguments, Context, Result, arg, experiment

WARM_STEPS = 2
"""The decoding requests read their prompts (one token each) before the long prompt comes."""

MOST_ROWS = 400_000
"""Maximum rows over all steps: a few seconds."""


@experiment("E15", "E14")
def token_budget(
    ctx: Context,
    decodes: int = arg(60, 0, 256),
    prompt: int = arg(4000, 1, 40_000),
    budget: int = arg(512, 1, 65_536),
    threshold: int = arg(0, 0, 65_536),
    chunked: bool = True,
) -> Result:
    """Cut a prompt into chunks by the step's token budget, beside requests that decode.

    Running requests come first, one token each; the prompt gets the rest of `budget`, at most `threshold`
    (long_prefill_token_threshold; 0: no limit). chunked=False: the whole prompt must fit into one step.

    Returns:
        Steps count from the first one with the prompt.
        chunks [tokens]: Chunks of the prompt, step by step.
        steps_to_first_token [steps]: Steps until the prompt's request has its first token, that one included.
        step_tokens [tokens]: All tokens of each of these steps.
        largest_step [tokens]
        missed_decodes [tokens]: Decode tokens that were due in these steps and not computed.
        decode_tokens [tokens]: Computed in these steps for the requests that were there before.
    """
    _check(decodes, prompt, budget, threshold, chunked)
    engine = ctx.core(
        max_num_seqs=decodes + 1,
        max_num_batched_tokens=budget,
        max_model_len=1_000_000 if chunked else budget,
        long_prefill_token_threshold=threshold,
        enable_chunked_prefill=chunked,
        traced=True,
    )
    for index in range(decodes):
        engine.add(Ask(f"d{index}", 1, 1 + WARM_STEPS + 2 * prompt if chunked else min(budget - 1, 64)))
    for _ in range(WARM_STEPS if decodes else 0):
        engine.step()
    before = engine.num_steps
    engine.add(Ask("long", prompt, 1))
    while engine.outcomes["long"].finished is None:
        engine.step()
    engine.close()
    steps = engine.steps[before:]
    chunks = [step.rows["long"][1] for step in steps if "long" in step.rows]
    computed = sum(len(step.rows) - ("long" in step.rows) for step in steps)
    return Result(
        chunks=chunks,
        steps_to_first_token=len(steps),
        step_tokens=[step.num_tokens for step in steps],
        largest_step=max(step.num_tokens for step in steps),
        missed_decodes=decodes * len(steps) - computed,
        decode_tokens=computed,
    )


def _check(decodes: int, prompt: int, budget: int, threshold: int, chunked: bool) -> None:
    left = budget - decodes
    if left < 1:
        raise BadArguments(
            f"{decodes} decodes leave nothing of a budget of {budget}: raise budget above decodes"
        )
    if not chunked and prompt >= left:
        raise BadArguments(
            f"without chunks a prompt of {prompt} tokens needs a budget above {prompt + decodes}, not {budget}"
        )
    chunk = min(left, threshold or left)
    if -(-prompt // chunk) * (decodes + 1) > MOST_ROWS:
        raise BadArguments(
            f"{-(-prompt // chunk)} steps of {decodes + 1} rows take too long here: raise budget"
        )
