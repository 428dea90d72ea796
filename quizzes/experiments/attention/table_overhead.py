from quizzes.experiments import Context, NeedsHardware, Result, arg, experiment
from quizzes.experiments.measure import paired_ratio


@experiment("E27", determinism="statistical", seconds=60, device="cuda")
def table_overhead(
    ctx: Context, rows: int = arg(32, 1, 256), context: int = arg(4096, 256, 32_768)
) -> Result:
    """Time decode attention on a GPU through a shuffled block table and through one in order.

    The shape is Llama-3-8B's (32 heads, 8 KV heads of 128) in bf16.

    Returns:
        Ratios of times with 95 % intervals.
        shuffled [x]: Blocks scattered over the pool against blocks in order, the same block size.
        lo, hi
        small_blocks [x]: Blocks of 16 against blocks of 256, both scattered: sixteen times as many look-ups.
        small_lo, small_hi
    """
    import torch

    if not torch.cuda.is_available():
        raise NeedsHardware("the cost of a look-up beside HBM traffic shows on a GPU only")
    from kernels import ops

    heads, kv_heads, head_dim = 32, 8, 128
    query = torch.randn(rows, heads, head_dim, device="cuda", dtype=torch.bfloat16)
    starts = torch.arange(rows + 1, device="cuda", dtype=torch.int32)
    lens = torch.full((rows,), context, device="cuda", dtype=torch.int32)

    def step(block_size: int, shuffled: bool) -> object:
        width = -(-context // block_size)
        ids = list(range(1, rows * width + 1))
        if shuffled:
            ctx.rng.shuffle(ids)
        table = torch.tensor(ids, device="cuda", dtype=torch.int32).view(rows, width)
        pool = torch.randn(
            rows * width + 1, 2, kv_heads, block_size, head_dim, device="cuda", dtype=torch.bfloat16
        )

        batch = ops.AttentionBatch(starts, lens, table, max_query_len=1)

        def run() -> None:
            for _ in range(20):
                ops.paged_attention(query, pool, batch, scale=head_dim**-0.5)
            torch.cuda.synchronize()

        return run

    scattered = step(16, True)
    order = paired_ratio(scattered, step(16, False))  # type: ignore[arg-type]
    small = paired_ratio(scattered, step(256, True))  # type: ignore[arg-type]
    return Result(
        shuffled=order.median,
        lo=order.lo,
        hi=order.hi,
        small_blocks=small.median,
        small_lo=small.lo,
        small_hi=small.hi,
    )
