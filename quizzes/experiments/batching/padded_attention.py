from quizzes.experiments import Context, Result, arg, experiment


@experiment("E29")
def padded_attention(
    ctx: Context,
    lens: list[int] = arg([7, 90, 33, 150], 1, 512, count=(1, 16)),
    heads: int = arg(2, 1, 8),
    head_dim: int = arg(32, 4, 64),
) -> Result:
    """Compute contiguous attention over a padded rectangle with a mask; check it and count the padding.

    Causal attention in fp32 with PyTorch's own kernel, without paging: once padded with a mask, once row by row.

    Returns:
        Compares each row of the padded batch with the same row alone.
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
    lengths = torch.tensor(lens)
    visible = torch.arange(longest)[None, :] < lengths[:, None]
    mask = visible[:, None, None, :] & torch.ones(longest, longest, dtype=torch.bool).tril()
    together = attend(q, k, v, attn_mask=mask)
    differences = []
    for row, length in enumerate(lens):
        alone = attend(q[row, :, :length], k[row, :, :length], v[row, :, :length], is_causal=True)
        differences.append(float((together[row, :, :length] - alone).abs().max()))
    useful = sum(length * (length + 1) // 2 for length in lens)
    rectangle = rows * longest * longest
    return Result(
        max_difference=max(differences),
        right_rows=sum(difference < 1e-5 for difference in differences),
        rows=rows,
        padded_pairs=rectangle,
        useful_pairs=useful,
        waste=1 - useful / rectangle,
    )
