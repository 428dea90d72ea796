import statistics

from quizzes.experiments import Context, Result, arg, experiment


@experiment("E39", seconds=60, megabytes=2500, determinism="statistical")
def lengths(
    ctx: Context,
    cold: float = arg(0.3, 0, 5),
    hot: float = arg(2.0, 0, 5),
    samples: int = arg(12, 4, 32),
    max_tokens: int = arg(96, 16, 128),
) -> Result:
    """Compare the spread of answer lengths of the shop model at two temperatures.

    Returns:
        Lengths of `samples` answers to each of a few shop questions; spreads are means over the questions.
        cold_spread [tokens]: Standard deviation at the lower temperature.
        hot_spread, cold_mean, hot_mean [tokens]
        cold_cut, hot_cut [share]: Answers that reached max_tokens.
    """
    from engine import SamplingParams
    from engine.zoo.corpus import draw_cases

    prompts = [case.prompt for case in draw_cases(60, seed=3) if case.language == "en"][:6]
    with ctx.llm(max_num_seqs=64) as llm:

        def measure(temperature: float) -> tuple[float, float, float]:
            seeds = [
                SamplingParams(temperature=temperature, seed=s, max_tokens=max_tokens) for s in range(samples)
            ]
            pairs = [(prompt, params) for prompt in prompts for params in seeds]
            outputs = llm.generate(*map(list, zip(*pairs, strict=True)), use_tqdm=False)
            sizes = [len(output.outputs[0].token_ids) for output in outputs]
            groups = [sizes[i : i + samples] for i in range(0, len(sizes), samples)]
            spread = statistics.fmean(statistics.pstdev(group) for group in groups)
            return spread, statistics.fmean(sizes), sum(size == max_tokens for size in sizes) / len(sizes)

        (cold_spread, cold_mean, cold_cut), (hot_spread, hot_mean, hot_cut) = measure(cold), measure(hot)
    return Result(
        cold_spread=cold_spread,
        hot_spread=hot_spread,
        cold_mean=cold_mean,
        hot_mean=hot_mean,
        cold_cut=cold_cut,
        hot_cut=hot_cut,
    )
