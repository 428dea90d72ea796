"""Padded and packed batches of the model."""

from random import Random

from quizzes.experiments import Context, Result, arg, experiment, generate, greedy, worker_of


@experiment("E29")
def packed_forward(
    ctx: Context,
    lens: list[int] = arg([7, 90, 33, 150, 1], 1, 300, count=(1, 12)),
    output: int = arg(6, 1, 16),
) -> Result:
    """Record the shapes of the live engine's forward passes, and check that outputs do not depend on the batch.

    Prompts of different lengths share one step, greedy; then each runs alone. A hook on the model records the shape of
    the token ids of every forward pass.

    Returns: Figures of the first step, which holds all prompts.
        input_shape: Shape of the token ids that the model gets.
        forward_tokens [tokens]
        padded_tokens [tokens]: Tokens of a rectangle of rows x longest.
        forward_passes [passes]: Forward passes of the first step: one, whatever the lengths are.
        equal_outputs [requests]: Requests whose output in the batch equals their output alone.
        requests [requests]
    """
    rng = Random(1)
    prompts = [[rng.randrange(300, 2000) for _ in range(length)] for length in lens]
    shapes: list[tuple[int, ...]] = []
    """Shapes of the token ids that the model gets, in order."""
    with ctx.llm(enable_prefix_caching=False, enforce_eager=True) as llm:
        model = worker_of(llm).runner.model
        model.register_forward_pre_hook(lambda _, args: shapes.append(tuple(args[0].shape)))
        together = [answer.token_ids for answer in generate(llm, prompts, greedy(output))]
        first = shapes[: len(shapes) - (output - 1)]
        alone = [generate(llm, [prompt], greedy(output))[0].token_ids for prompt in prompts]
    return Result(
        input_shape=list(first[0]),
        forward_tokens=sum(shape[0] for shape in first),
        padded_tokens=len(lens) * max(lens),
        forward_passes=len(first),
        equal_outputs=sum(list(a) == list(b) for a, b in zip(together, alone, strict=True)),
        requests=len(lens),
    )


@experiment("E29")
def padded_attention(
    lens: list[int] = arg([7, 90, 33, 150], 1, 512, count=(1, 16)),
    heads: int = arg(2, 1, 8),
    head_dim: int = arg(32, 4, 64),
) -> Result:
    """Compute contiguous attention over a padded rectangle with a mask; check it and count the padding.

    Returns: Causal fp32 attention of PyTorch, without paging: each row of the padded batch against the row alone.
        max_difference [absolute]
        right_rows [rows]: Within 1e-5 of the row alone.
        rows [rows]
        padded_pairs [pairs]: (query, key) pairs of the rectangle.
        useful_pairs [pairs]: Pairs of the rectangle that the causal rows need.
        waste [share]
    """
    import torch
    from torch.nn.functional import scaled_dot_product_attention as attend

    generator = torch.Generator().manual_seed(0)
    rows, longest = len(lens), max(lens)
    q, k, v = (torch.randn(rows, heads, longest, head_dim, generator=generator) for _ in range(3))
    visible = torch.arange(longest)[None, :] < torch.tensor(lens)[:, None]
    mask = visible[:, None, None, :] & torch.ones(longest, longest, dtype=torch.bool).tril()
    together = attend(q, k, v, attn_mask=mask)
    differences = []
    for row, length in enumerate(lens):
        alone = attend(q[row, :, :length], k[row, :, :length], v[row, :, :length], is_causal=True)
        differences.append(float((together[row, :, :length] - alone).abs().max()))
    useful, rectangle = sum(length * (length + 1) // 2 for length in lens), rows * longest * longest
    return Result(
        max_difference=max(differences),
        right_rows=sum(difference < 1e-5 for difference in differences),
        rows=rows,
        padded_pairs=rectangle,
        useful_pairs=useful,
        waste=1 - useful / rectangle,
    )
