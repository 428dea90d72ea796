"""Prompts that are partly computed at the same time."""

from statistics import fmean
from typing import Any

from quizzes.experiments import Ask, Context, Result, arg, experiment


@experiment("E15")
def partial_prefills(
    ctx: Context,
    thresholds: list[int] = arg([0, 1024, 512], 0, 65_536, count=(1, 6)),
    longs: int = arg(2, 1, 16),
    long_prompt: int = arg(16_384, 2, 60_000),
    shorts: int = arg(6, 1, 64),
    short_prompt: int = arg(256, 1, 8000),
    budget: int = arg(2048, 16, 65_536),
) -> Result:
    """Let short prompts overtake long ones with long_prefill_token_threshold, and count the partial prefills.

    The long prompts are first in the queue, the short ones right behind; all are there at the start. 0: no threshold.
    Every prompt asks for one token. vLLM 0.32 has no limit on the number of prompts that are partly computed at once
    (V0's max_num_partial_prefills is gone): the budget and the threshold decide how many there are.

    Returns: By threshold, in the order given.
        most_partial [requests]: Maximum of prompts that are begun and not finished after a step.
        short_ttft, long_ttft [steps]: Steps to the first token, mean of the class.
        short_tokens, long_tokens [tokens]: Tokens that the engine computed until then, mean: time at full load.
        overtaking [requests]: Short requests with their first token before that of the first long one.
        steps [steps]: Until all have finished.
        unused [tokens]: Budget that steps left unused while requests waited or ran, all steps but the last.
    """
    names = [f"long{i}" for i in range(longs)] + [f"short{i}" for i in range(shorts)]
    columns: dict[str, list[Any]] = {}

    def note(**figures: Any) -> None:
        for name, value in figures.items():
            columns.setdefault(name, []).append(value)

    for threshold in thresholds:
        engine = ctx.core(
            num_blocks=-(-longs * long_prompt // 16) + -(-shorts * short_prompt // 16) + len(names) + 1,
            max_num_batched_tokens=budget,
            long_prefill_token_threshold=threshold,
            traced=threshold == thresholds[-1],
        )
        engine.run(Ask(name, long_prompt if "long" in name else short_prompt) for name in names)
        first = {name: engine.outcomes[name].token_steps[0] for name in names}
        done = [
            sum(step.num_tokens for step in engine.steps[: index + 1]) for index in range(engine.num_steps)
        ]
        begun = {name: engine.outcomes[name].admitted for name in names}
        ones = {kind: [name for name in names if kind in name] for kind in ("long", "short")}
        note(
            most_partial=max(
                sum(begun[name] <= index < first[name] for name in names) for index in range(engine.num_steps)
            ),
            overtaking=sum(first[name] < first["long0"] for name in ones["short"]),
            steps=engine.num_steps,
            unused=sum(budget - step.num_tokens for step in engine.steps[:-1]),
            **{f"{kind}_ttft": fmean(first[name] + 1 for name in group) for kind, group in ones.items()},
            **{f"{kind}_tokens": fmean(done[first[name]] for name in group) for kind, group in ones.items()},
        )
    return Result(**columns)
