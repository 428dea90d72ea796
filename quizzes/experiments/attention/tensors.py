"""Paged attention on real tensors: layout, equality, cost of look-ups."""

from collections.abc import Callable
from typing import Any

from quizzes.experiments import BadArguments, Context, NeedsHardware, Result, arg, experiment, paired_ratio

SAME = 1e-5
"""fp32 sums in another order differ by less."""


@experiment("E27")
def paged_vs_dense(
    ctx: Context,
    lens: list[int] = arg([37, 64, 5], 1, 2048, count=(1, 16)),
    chunk: int = arg(4, 1, 256),
    block_size: int = arg(16, 1, 128),
    heads: int = arg(8, 1, 32),
    kv_heads: int = arg(4, 1, 32),
    head_dim: int = arg(32, 8, 128, multiple_of=8),
) -> Result:
    """Compare the engine's paged attention with textbook attention on the same keys in contiguous memory.

    Random keys lie in scattered blocks. The last `chunk` positions of every row (or all of them) are queries.

    Returns: Largest absolute differences of outputs whose size is about 1.
        blocks [blocks]: Gathered, all rows together.
        difference: ops.paged_attention against softmax(q k^T / sqrt(d)) v over dense keys.
        is_equal
        gather_difference: Plain torch: index_select with the table, then torch's own attention, against the same.
        unmapped_difference: Keys read in the pool's order, the table ignored, against the same.
        future_leak: Change in a row's outputs before its last position, when the last position's key and value change.
        copied_bytes [B]: Bytes that the gather writes before attention reads them; a paged kernel writes none.
    """
    if heads % kv_heads:
        raise BadArguments(f"{heads} query heads cannot share {kv_heads} kv heads evenly; choose a divisor")
    import torch

    case = _Case(ctx, lens, chunk, (block_size, heads, kv_heads, head_dim))
    paged, dense = case.paged(), case.dense(case.keys_values)
    gathered = case.dense([case.gather(row, table) for row, table in enumerate(case.table)])
    in_order = torch.arange(1, case.table.shape[1] + 1)
    unmapped = case.dense([case.gather(row, in_order) for row in range(len(lens))])
    differences = [float((other - dense).abs().max()) for other in (paged, gathered, unmapped)]
    return Result(
        blocks=sum(case.num_blocks),
        difference=differences[0],
        is_equal=differences[0] < SAME,
        gather_difference=differences[1],
        unmapped_difference=differences[2],
        future_leak=case.leak(paged),
        copied_bytes=4 * 2 * kv_heads * head_dim * sum(lens),
    )


class _Case:
    """Keys and values of several rows, dense and in the blocks of a pool."""

    def __init__(self, ctx: Context, lens: list[int], chunk: int, shape: tuple[int, int, int, int]) -> None:
        """shape: block size, query heads, kv heads, head dimension."""
        import torch

        from kernels import ops

        self.block_size, heads, kv_heads, head_dim = shape
        generator = torch.Generator().manual_seed(ctx.seed)
        self.lens, self.scale = list(lens), head_dim**-0.5
        self.counts = [min(chunk, n) for n in lens]
        self.num_blocks = [-(-n // self.block_size) for n in lens]
        ids = list(range(1, sum(self.num_blocks) + 1))
        ctx.rng.shuffle(ids)
        if ids == sorted(ids) and len(ids) > 1:  # with a pool in order the table would have no effect
            ids.reverse()
        self.table = torch.zeros(len(lens), max(self.num_blocks), dtype=torch.int32)
        self.kv = torch.zeros(len(ids) + 1, 2, kv_heads, self.block_size, head_dim)
        self.keys_values = []
        for row, own in enumerate(torch.tensor(ids).split(self.num_blocks)):
            self.table[row, : len(own)] = own
            key, value = torch.randn(2, lens[row], kv_heads, head_dim, generator=generator)
            positions = torch.arange(lens[row])
            slots = own[positions // self.block_size] * self.block_size + positions % self.block_size
            ops.reshape_and_cache(key, value, self.kv, slots)
            self.keys_values.append((key, value))
        self.query: Any = torch.randn(sum(self.counts), heads, head_dim, generator=generator)

    def paged(self) -> Any:
        import torch

        from kernels import ops

        starts = torch.tensor([0, *self.counts]).cumsum(0).int()
        batch = ops.AttentionBatch(starts, torch.tensor(self.lens).int(), self.table)
        return ops.paged_attention(self.query, self.kv, batch, scale=self.scale)

    def gather(self, row: int, blocks: Any) -> tuple[Any, Any]:
        """Keys and values [n, kv_heads, head_dim] of a row, copied out of these blocks."""
        pages = self.kv.index_select(0, blocks[: self.num_blocks[row]].long())
        flat = pages.permute(1, 0, 3, 2, 4).flatten(1, 2)[:, : self.lens[row]]
        return flat[0], flat[1]

    def dense(self, keys_values: list[tuple[Any, Any]]) -> Any:
        """softmax(q k^T / sqrt(d)) v with a causal mask, one row after the other, in float64."""
        import torch

        outputs = []
        for query, (key, value) in zip(self.query.split(self.counts), keys_values, strict=True):
            group = query.shape[1] // key.shape[1]
            k, v = (x.double().repeat_interleave(group, dim=1).transpose(0, 1) for x in (key, value))
            scores = query.double().transpose(0, 1) @ k.transpose(1, 2) * self.scale
            num_queries, num_keys = scores.shape[1:]
            seen = torch.ones(num_queries, num_keys).tril(num_keys - num_queries).bool()
            outputs.append((scores.masked_fill(~seen, -torch.inf).softmax(-1) @ v).transpose(0, 1))
        return torch.cat(outputs).float()

    def leak(self, before: Any) -> float:
        """Change the last key and value of every row; return the largest change of earlier queries."""
        for row, n in enumerate(self.lens):
            block, offset = divmod(n - 1, self.block_size)
            self.kv[self.table[row, block].long(), :, :, offset] += 10
        changes = (self.paged() - before).abs().split(self.counts)
        return max((float(change[:-1].max()) for change in changes if len(change) > 1), default=0.0)


LANES, SECTOR = 32, 32


@experiment("E27")
def kv_layout(
    num_layers: int = arg(32, 1, 128),
    kv_heads: int = arg(8, 1, 128),
    block_size: int = arg(16, 1, 256),
    head_dim: int = arg(128, 32, 256, multiple_of=32),
    bytes_per_number: int = arg(2, 1, 4),
) -> Result:
    """Show the strides of the KV cache and the memory sectors that one warp's loads touch along either axis.

    Reads the strides of `engine/attention/backend.py` from a tensor that takes no memory.

    Returns: One layer's cache, [num_blocks, 2, kv_heads, block_size, head_dim] with a stride between blocks.
        block_bytes [B]: Distance between two blocks; all layers lie between.
        token_stride [numbers]: Distance between two positions of a block.
        head_stride, key_to_value [numbers]
        sectors_along_dim [sectors]: 32-byte sectors when 32 lanes load neighbouring numbers of one key.
        sectors_along_tokens [sectors]: The same when 32 lanes load one dimension of 32 positions in order.
    """
    import torch

    from engine.attention.backend import kv_cache_shape

    shape = kv_cache_shape(64, num_layers, kv_heads, block_size, head_dim)
    view = torch.empty(shape, device="meta")[:, 0]
    block, part, head, token, _ = view.stride()

    def sectors(numbers: list[int]) -> int:
        return len({number * bytes_per_number // SECTOR for number in numbers})

    along_tokens = [i // block_size * block + i % block_size * token for i in range(LANES)]
    return Result(
        block_bytes=block * bytes_per_number,
        token_stride=token,
        head_stride=head,
        key_to_value=part,
        sectors_along_dim=sectors(list(range(LANES))),
        sectors_along_tokens=sectors(along_tokens),
    )


@experiment("E27", determinism="statistical", seconds=60, device="cuda")
def table_overhead(
    ctx: Context, rows: int = arg(32, 1, 256), context: int = arg(4096, 256, 32_768)
) -> Result:
    """Time decode attention on a GPU through a shuffled block table and through one in order.

    Returns: Ratios of times with 95 % intervals, for Llama-3-8B's shape (32 heads, 8 KV heads of 128) in bf16.
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

    def steps(block_size: int, shuffled: bool) -> Callable[[], None]:
        width = -(-context // block_size)
        ids = list(range(1, rows * width + 1))
        if shuffled:
            ctx.rng.shuffle(ids)
        table = torch.tensor(ids, device="cuda", dtype=torch.int32).view(rows, width)
        shape = (len(ids) + 1, 2, kv_heads, block_size, head_dim)
        pool = torch.randn(shape, device="cuda", dtype=torch.bfloat16)
        batch = ops.AttentionBatch(starts, lens, table, max_query_len=1)

        def run() -> None:
            for _ in range(20):
                ops.paged_attention(query, pool, batch, scale=head_dim**-0.5)
            torch.cuda.synchronize()

        return run

    scattered = steps(16, True)
    order, small = (paired_ratio(scattered, steps(*other)) for other in ((16, False), (256, True)))
    return Result(
        shuffled=order.median,
        **order.interval,
        small_blocks=small.median,
        **{f"small_{end}": value for end, value in small.interval.items()},
    )
