from typing import Any

from quizzes.experiments import BadArguments, Context, Result, arg, experiment

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

    Random keys lie in scattered blocks. The last `chunk` positions of every row are queries (all positions of shorter
    rows).

    Returns:
        Largest absolute differences of outputs whose size is about 1.
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

    case = _Case(ctx, lens, chunk, block_size, heads, kv_heads, head_dim)
    paged = case.paged()
    dense = case.dense(case.keys_values)
    gathered = case.dense([case.gather(row, case.table[row]) for row in range(len(lens))])
    unmapped = case.dense(
        [case.gather(row, torch.arange(1, len(case.table[row]) + 1)) for row in range(len(lens))]
    )
    difference = float((paged - dense).abs().max())
    return Result(
        blocks=sum(case.num_blocks),
        difference=difference,
        is_equal=difference < SAME,
        gather_difference=float((gathered - dense).abs().max()),
        unmapped_difference=float((unmapped - dense).abs().max()),
        future_leak=case.leak(paged),
        copied_bytes=4 * 2 * kv_heads * head_dim * sum(lens),
    )


class _Case:
    """Keys and values of several rows, dense and in the blocks of a pool."""

    def __init__(
        self,
        ctx: Context,
        lens: list[int],
        chunk: int,
        block_size: int,
        heads: int,
        kv_heads: int,
        head_dim: int,
    ) -> None:
        import torch

        from kernels import ops

        generator = torch.Generator().manual_seed(ctx.seed)
        self.lens, self.block_size, self.scale = list(lens), block_size, head_dim**-0.5
        self.counts = [min(chunk, n) for n in lens]
        self.num_blocks = [-(-n // block_size) for n in lens]
        ids = list(range(1, sum(self.num_blocks) + 1))
        ctx.rng.shuffle(ids)
        if ids == sorted(ids) and len(ids) > 1:  # with a pool in order the table would have no effect
            ids.reverse()
        width = max(self.num_blocks)
        self.table = torch.zeros(len(lens), width, dtype=torch.int32)
        self.kv = torch.zeros(len(ids) + 1, 2, kv_heads, block_size, head_dim)
        self.keys_values, taken = [], 0
        for row, n in enumerate(lens):
            own = torch.tensor(ids[taken : taken + self.num_blocks[row]])
            taken += self.num_blocks[row]
            self.table[row, : len(own)] = own
            key, value = torch.randn(2, n, kv_heads, head_dim, generator=generator)
            positions = torch.arange(n)
            slots = own[positions // block_size] * block_size + positions % block_size
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
