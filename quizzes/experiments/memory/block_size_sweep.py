from typing import Any

from quizzes.experiments import Ask, Context, Result, arg, experiment
from quizzes.experiments.charts import LINE, vega


@experiment("E06")
def block_size_sweep(
    ctx: Context,
    lens: list[int] = arg([37, 120, 260, 75, 500, 18], 1, 20_000, count=(1, 64)),
    block_sizes: list[int] = arg([1, 8, 16, 32, 64, 128], 1, 1024, count=(1, 10)),
    shared: int = arg(30, 0, 20_000),
) -> Result:
    """Sweep the block size: empty slots in last blocks, block-table entries and prefix hits.

    shared: tokens that a later request has in common with the first one, at most that one's length.

    Returns:
        One list entry per block size.
        block_sizes
        blocks [blocks]: Blocks of all requests, which is also the number of block-table entries.
        wasted_slots [slots]
        waste [share]
        hit_tokens [tokens]: Tokens hit by a second request that shares `shared` tokens with the first of the list.
    """
    shared = min(shared, lens[0])
    rows = [_with(ctx, lens, block_size, shared) for block_size in block_sizes]
    total = sum(lens)
    slots = [blocks * size for (blocks, _), size in zip(rows, block_sizes, strict=True)]
    return Result(
        block_sizes=list(block_sizes),
        blocks=[blocks for blocks, _ in rows],
        wasted_slots=[taken - total for taken in slots],
        waste=[1 - total / taken for taken in slots],
        hit_tokens=[hit for _, hit in rows],
    )


def _with(ctx: Context, lens: list[int], block_size: int, shared: int) -> tuple[int, int]:
    total = sum(lens)
    engine = ctx.core(
        num_blocks=total + 4 * len(lens) + lens[0] + 4,
        block_size=block_size,
        max_num_batched_tokens=total + lens[0] + 2,
    )
    requests = [engine.add(Ask(f"r{i}", n, 3)) for i, n in enumerate(lens)]
    engine.step()
    blocks = sum(len(request.blocks) for request in requests)
    first = requests[0].prompt_token_ids
    engine.add(Ask("again", [*first[:shared], -1, -2], 2))
    engine.step()
    return blocks, engine.outcomes["again"].cached_tokens


def chart(result: Result) -> dict[str, Any]:
    """Waste by block size."""
    rows = [
        {"block size": size, "waste": waste}
        for size, waste in zip(result.block_sizes, result.waste, strict=True)
    ]
    return vega(
        rows,
        LINE,
        x=("block size:Q", {"scale": {"type": "log", "base": 2}}),
        y=("waste:Q", {"axis": {"format": "%"}}),
    )
