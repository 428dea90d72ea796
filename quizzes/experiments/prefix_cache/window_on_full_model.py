"""E57: a window forced on a model that was trained to see everything: what its outputs become."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field

from quizzes.experiments import Context, experiment
from quizzes.experiments.prefix_cache._live import Watched


@dataclass(frozen=True)
class ForcedWindow:
    """Full attention against the same weights with a window."""

    same_tokens: bool
    """Greedy answers are equal."""
    first_difference: Annotated[int, "position"]
    """First output position that differs; -1 if none does."""
    logprob_change: Annotated[float, "nats"]
    """Largest difference of a prompt token's log probability."""
    window_blocks: Annotated[int, "blocks"]
    """Held by the request at the end, with the window."""
    full_blocks: Annotated[int, "blocks"]


@experiment("E57", seconds=20)
def window_on_full_model(
    ctx: Context,
    *,
    window: Annotated[int, Field(ge=8, le=2048)] = 64,
    prompt: Annotated[int, Field(ge=8, le=1000)] = 300,
    answer: Annotated[int, Field(ge=2, le=32)] = 12,
) -> ForcedWindow:
    """The shipped model, trained with full attention, with and without a sliding window of `window` positions."""
    full = _answer(ctx, None, prompt, answer)
    cut = _answer(ctx, window, prompt, answer)
    differs = [a != b for a, b in zip(full[0], cut[0], strict=True)]
    return ForcedWindow(
        same_tokens=not any(differs),
        first_difference=differs.index(True) if any(differs) else -1,
        logprob_change=max(abs(a - b) for a, b in zip(full[1], cut[1], strict=True)),
        window_blocks=cut[2],
        full_blocks=full[2],
    )


def _answer(ctx: Context, window: int | None, prompt: int, answer: int) -> tuple[list[int], list[float], int]:
    """(answer, log probabilities of the prompt's tokens, blocks held before the last token)."""
    from engine.sampling_params import SamplingParams

    settings: dict[str, Any] = {"max_model_len": prompt + answer + 16}
    if window is not None:
        settings["hf_overrides"] = {"architectures": ["MistralForCausalLM"], "sliding_window": window}
    params = SamplingParams(max_tokens=answer, temperature=0, ignore_eos=True, prompt_logprobs=0)
    with ctx.llm(**settings) as llm:
        watched = Watched(llm)
        (output,) = llm.generate(
            [{"prompt_token_ids": [3 + 7 * i % 2000 for i in range(prompt)]}], params, use_tqdm=False
        )
    chosen = [
        entry[token].logprob
        for token, entry in zip(output.prompt_token_ids, output.prompt_logprobs or [], strict=True)
        if entry is not None
    ]
    return list(output.outputs[0].token_ids), chosen, watched.blocks[-1]
