"""E27 on a GPU: decode attention through a shuffled block table against one whose blocks lie in order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from quizzes.experiments import Context, experiment
from quizzes.experiments.registry import NeedsHardware


@dataclass(frozen=True)
class Overhead:
    """Time of the first over the second, 95 % interval."""

    shuffled: Annotated[float, "x"]
    """Blocks scattered over the pool against blocks in order, the same block size."""
    lo: float
    hi: float
    small_blocks: Annotated[float, "x"]
    """Blocks of 16 against blocks of 256, both scattered: sixteen times as many look-ups."""
    small_lo: float
    small_hi: float


@experiment("E27", determinism="statistical", seconds=60, device="cuda")
def table_overhead(
    ctx: Context,
    *,
    rows: Annotated[int, Field(ge=1, le=256)] = 32,
    context: Annotated[int, Field(ge=256, le=32768)] = 4096,
) -> Overhead:
    """A decode step of Llama-3-8B's attention shape (32 heads, 8 kv heads of 128) in bf16."""
    import torch

    if not torch.cuda.is_available():
        raise NeedsHardware("the cost of a look-up beside HBM traffic shows on a GPU only")
    from kernels import ops
    from quizzes.experiments.measure import paired_ratio

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
    return Overhead(order.median, order.lo, order.hi, small.median, small.lo, small.hi)
