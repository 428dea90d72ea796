"""E39: how far apart the lengths of answers lie when the same prompts are sampled colder and hotter."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from quizzes.experiments import Context, experiment


@dataclass(frozen=True)
class Lengths:
    """Lengths of `samples` answers to each of a few shop questions; spreads are means over the questions."""

    cold_spread: Annotated[float, "tokens"]
    """Standard deviation at the lower temperature."""
    hot_spread: Annotated[float, "tokens"]
    cold_mean: Annotated[float, "tokens"]
    hot_mean: Annotated[float, "tokens"]
    cold_cut: Annotated[float, "share"]
    """Answers that reached max_tokens."""
    hot_cut: Annotated[float, "share"]


@experiment("E39", seconds=60, megabytes=2500, determinism="statistical")
def lengths(
    ctx: Context,
    *,
    cold: Annotated[float, Field(ge=0, le=5)] = 0.3,
    hot: Annotated[float, Field(ge=0, le=5)] = 2.0,
    samples: Annotated[int, Field(ge=4, le=32)] = 12,
    max_tokens: Annotated[int, Field(ge=16, le=128)] = 96,
) -> Lengths:
    """Sample answers of the shop model at two temperatures and compare how much their lengths vary."""
    from engine import SamplingParams
    from engine.zoo.evaluate import draw_cases

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
    return Lengths(cold_spread, hot_spread, cold_mean, hot_mean, cold_cut, hot_cut)
