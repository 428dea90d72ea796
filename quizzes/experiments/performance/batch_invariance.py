from typing import Any

from quizzes.experiments import Context, Result, arg, experiment, greedy


@experiment("E26", seconds=20)
def batch_invariance(
    ctx: Context,
    neighbours: int = arg(7, 1, 31),
    prompt: int = arg(40, 1, 500),
    generated: int = arg(12, 1, 32),
) -> Result:
    """Check whether a request's output depends on its batch: this engine's kernels against torch's matrix product.

    The model `shop` continues one prompt alone, and again beside requests of other lengths.

    Returns:
        engine_difference: Largest difference of a request's top log-probabilities alone and in the batch.
        is_same_bits: The difference is 0: the engine is batch invariant here.
        same_tokens
        int8_difference: The same of an int8 product: integer sums are exact in any order.
    """
    import torch

    from kernels import ops
    from kernels.ops import quantise_int8

    prompts = [[ctx.rng.randrange(10, 2000) for _ in range(prompt + 3 * i)] for i in range(neighbours + 1)]
    with ctx.llm(
        max_num_seqs=neighbours + 1, enable_prefix_caching=False, max_num_batched_tokens=8192
    ) as llm:
        alone = _first(llm, prompts[:1], generated)
        among = _first(llm, prompts, generated)
    pairs = zip(alone[1], among[1], strict=True)
    difference = max(abs(a[token] - b.get(token, float("inf"))) for a, b in pairs for token in a)
    generator = torch.Generator().manual_seed(ctx.seed)
    x, weight = (torch.randn(neighbours + 1, 256, generator=generator) for _ in range(2))
    matrix = quantise_int8(weight)
    int8 = (ops.int8_linear(x[:1], *matrix) - ops.int8_linear(x, *matrix)[:1]).abs().max()
    return Result(
        engine_difference=difference,
        is_same_bits=difference == 0,
        same_tokens=alone[0] == among[0],
        int8_difference=float(int8),
    )


def _first(llm: Any, prompts: list[list[int]], generated: int) -> tuple[list[int], list[dict[int, float]]]:
    """Tokens and top log-probabilities of the first prompt."""
    params = greedy(generated, logprobs=5)
    output = llm.generate([{"prompt_token_ids": tokens} for tokens in prompts], params, use_tqdm=False)[0]
    top = [{token: entry.logprob for token, entry in step.items()} for step in output.outputs[0].logprobs]
    return list(output.outputs[0].token_ids), top
