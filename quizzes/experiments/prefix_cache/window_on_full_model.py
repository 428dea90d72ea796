from typing import Any

from quizzes.experiments import Context, Result, arg, experiment, greedy
from quizzes.experiments.prefix_cache._live import Watched


@experiment("E57", seconds=20)
def window_on_full_model(
    ctx: Context,
    window: int = arg(64, 8, 2048),
    prompt: int = arg(300, 8, 1000),
    answer: int = arg(12, 2, 32),
) -> Result:
    """Force a sliding window on the shipped model, which was trained with full attention, and compare its outputs.

    Returns:
        Full attention against the same weights with a window.
        same_tokens: Greedy answers are equal.
        first_difference [position]: First output position that differs; -1 if none does.
        logprob_change [nats]: Largest difference of a prompt token's log probability.
        window_blocks, full_blocks [blocks]: Blocks of the request at the end, with the window and without.
    """
    full = _answer(ctx, None, prompt, answer)
    cut = _answer(ctx, window, prompt, answer)
    differs = [a != b for a, b in zip(full[0], cut[0], strict=True)]
    return Result(
        same_tokens=not any(differs),
        first_difference=differs.index(True) if any(differs) else -1,
        logprob_change=max(abs(a - b) for a, b in zip(full[1], cut[1], strict=True)),
        window_blocks=cut[2],
        full_blocks=full[2],
    )


def _answer(ctx: Context, window: int | None, prompt: int, answer: int) -> tuple[list[int], list[float], int]:
    """(answer, log probabilities of the prompt's tokens, blocks held before the last token)."""
    settings: dict[str, Any] = {"max_model_len": prompt + answer + 16}
    if window is not None:
        settings["hf_overrides"] = {"architectures": ["MistralForCausalLM"], "sliding_window": window}
    params = greedy(answer, prompt_logprobs=0)
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
