"""E07: time to the first token of a live engine, cold against warm, and whether the answer stays the same."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from quizzes.experiments import Context, experiment
from quizzes.experiments.measure import paired_ratio


@dataclass(frozen=True)
class CachedTTFT:
    """Cold over warm; above 1 the cache helps."""

    speedup: Annotated[float, "x"]
    lo: Annotated[float, "x"]
    hi: Annotated[float, "x"]
    """Bootstrap 95 % interval."""
    computed_cold: Annotated[int, "tokens"]
    computed_warm: Annotated[int, "tokens"]
    tokens_equal: bool
    """The greedy answer behind a hit is that of a full prefill, token for token."""
    repeats: int


@experiment("E07", determinism="statistical", seconds=30)
def cached_ttft(
    ctx: Context,
    *,
    prompt: Annotated[int, Field(ge=32, le=1500)] = 800,
    answer: Annotated[int, Field(ge=1, le=32)] = 12,
) -> CachedTTFT:
    """The shipped model, one prompt of `prompt` tokens again and again: prefix cache emptied before, or left warm."""
    from engine.sampling_params import SamplingParams

    with ctx.llm(max_model_len=prompt + answer + 16) as llm:
        tokens = [3 + 7 * i % 2000 for i in range(prompt)]
        ask = {"prompt_token_ids": tokens}
        first = SamplingParams(max_tokens=1, temperature=0, ignore_eos=True)
        whole = SamplingParams(max_tokens=answer, temperature=0, ignore_eos=True)

        def cold() -> None:
            llm.reset_prefix_cache()
            llm.generate([ask], first, use_tqdm=False)

        def warm() -> None:
            llm.generate([ask], first, use_tqdm=False)

        ratio = paired_ratio(cold, warm, seconds=4.0)
        llm.reset_prefix_cache()
        (computed,) = llm.generate([ask], whole, use_tqdm=False)
        (hit,) = llm.generate([ask], whole, use_tqdm=False)
    return CachedTTFT(
        speedup=ratio.median,
        lo=ratio.lo,
        hi=ratio.hi,
        computed_cold=prompt - computed.num_cached_tokens,
        computed_warm=prompt - hit.num_cached_tokens,
        tokens_equal=computed.outputs[0].token_ids == hit.outputs[0].token_ids,
        repeats=ratio.repeats,
    )
