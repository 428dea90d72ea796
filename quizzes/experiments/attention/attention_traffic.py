from quizzes.experiments import Context, Result, arg, experiment


@experiment("E28")
def attention_traffic(
    ctx: Context,
    queries: int = arg(4096, 1, 65_536),
    keys: int = arg(4096, 1, 1_000_000),
    head_dim: int = arg(128, 8, 512),
    tile: int = arg(128, 1, 1024),
    bytes_per_number: int = arg(2, 1, 4),
) -> Result:
    """Count bytes between memory and chip: textbook attention against tiles that stay on the chip (FlashAttention).

    Returns:
        One head, `queries` queries over `keys` keys, no mask.
        textbook [B]: Three kernels: scores are written, read and written by softmax, and read again.
        fused [B]: FlashAttention: for each tile of queries, all keys and values once; scores stay on the chip.
        ratio [x]
        score_bytes [B]: Bytes of the whole score matrix, which the textbook version must hold.
        flops [FLOP]: The same for both.
    """
    row = head_dim * bytes_per_number
    scores = queries * keys * bytes_per_number
    textbook = (queries + keys) * row + scores  # scores = q k^T
    textbook += scores + scores  # softmax
    textbook += scores + keys * row + queries * row  # probabilities times values
    fused = 0
    for start in range(0, queries, tile):
        fused += 2 * min(tile, queries - start) * row  # queries in, outputs out
        fused += 2 * keys * row
    return Result(
        textbook=textbook,
        fused=fused,
        ratio=textbook / fused,
        score_bytes=scores,
        flops=4 * queries * keys * head_dim,
    )
