from random import Random
from typing import Any

from quizzes.experiments import Context, Result, arg, experiment, generate, greedy, paired_ratio


@experiment("E15", "E30", determinism="statistical", seconds=60)
def live_chunking(ctx: Context, prompt: int = arg(1024, 16, 1900), chunk: int = arg(64, 8, 1900)) -> Result:
    """Time one prompt on the live engine, whole and in chunks, in pairs.

    The shipped model runs the prompt alone until its first token, with budget `chunk` and with a budget for the whole
    prompt. Without prefix cache, so that every repeat computes everything.

    Returns: Time of the chunked prompt over that of the whole one; [lo, hi] is a 95 % interval.
        ratio, lo, hi [x]; repeats
        passes [passes]: Forward passes of the chunked prompt.
        same_token: Both say the same first token (greedy).
    """
    rng = Random(2)
    tokens = [rng.randrange(300, 2000) for _ in range(prompt)]

    def once(llm: Any) -> list[int]:
        return list(generate(llm, [tokens], greedy(1))[0].token_ids)

    settings: dict[str, Any] = {"enable_prefix_caching": False, "max_num_seqs": 1}
    with (
        ctx.llm(max_num_batched_tokens=chunk, **settings) as cut,
        ctx.llm(max_num_batched_tokens=2048, **settings) as whole,
    ):
        same = once(cut) == once(whole)
        measured = paired_ratio(lambda: once(cut), lambda: once(whole), seconds=4.0)
    return Result(
        ratio=measured.median,
        **measured.interval,
        repeats=measured.repeats,
        passes=-(-prompt // chunk),
        same_token=same,
    )
