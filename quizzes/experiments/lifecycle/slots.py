from quizzes.experiments import Ask, Context, Result, arg, experiment


@experiment("E14")
def slots(
    ctx: Context,
    slots: int = arg(4, 1, 32),
    lens: list[int] = arg([10, 1, 2, 10, 4, 6, 5], 1, 500, count=(1, 64)),
    prompt: int = arg(1, 1, 2000),
    budget: int = arg(8192, 1, 8192),
    num_blocks: int = arg(10_000, 2, 10_000),
) -> Result:
    """Show the batch of every step while requests finish and others wait for a slot.

    Requests have prompts of `prompt` tokens and `lens` output tokens; at most `slots` run at once.

    Returns:
        Requests are numbered from 0, iterations from 1.
        batches: By iteration: the requests that computed in it.
        admitted_in [iteration]: By request: the iteration that ran it first.
        finished_in [iteration]
        total [iterations]
        tokens_per_request_and_step [tokens]: The most output that one request got in one iteration.
        idle_gaps [iterations]: Iterations with a free slot and a waiting request.
        tokenless_rows [rows]: Rows that computed without giving a token: chunks of unfinished prompts.
    """
    engine = ctx.core(
        max_num_seqs=slots,
        max_num_batched_tokens=budget,
        num_blocks=num_blocks,
        enable_prefix_caching=False,
        traced=True,
    )
    engine.run([Ask(f"r{i}", prompt, n) for i, n in enumerate(lens)])
    outcomes = [engine.outcomes[f"r{i}"] for i in range(len(lens))]
    batches = [[int(name[1:]) for name in step.rows] for step in engine.steps]
    waiting = [sum(o.admitted > index for o in outcomes) for index in range(engine.num_steps)]
    return Result(
        batches=batches,
        admitted_in=[o.admitted + 1 for o in outcomes],
        finished_in=[o.finished + 1 for o in outcomes],
        total=engine.num_steps,
        tokens_per_request_and_step=max(
            o.token_steps.count(step) for o in outcomes for step in o.token_steps
        ),
        idle_gaps=sum(
            len(batch) < slots and waits > 0 for batch, waits in zip(batches, waiting, strict=True)
        ),
        tokenless_rows=sum(len(batch) for batch in batches) - sum(len(o.token_steps) for o in outcomes),
    )
