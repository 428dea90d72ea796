"""Block tables, chunks of a prompt and the KV cache, counted on the scheduler or from shapes."""

from itertools import pairwise
from typing import Any

from engine.sim.cost import CostModel, StepLoad, pairs_of
from engine.sim.models import get_model
from engine.sim.precision import get_precision, kv_bytes
from quizzes.experiments import Ask, BadArguments, Context, Result, arg, deploy, experiment
from quizzes.experiments.core_engine import StepView

OUTPUT = 8
"""Long enough that no request has finished when the last one arrives."""


@experiment("E27")
def block_lookup(
    ctx: Context,
    prompts: list[int] = arg([40, 70, 33], 1, 4000, count=(1, 32)),
    finished: list[int] = arg([0], 0, 31, count=(0, 31)),
    last: int = arg(60, 1, 4000),
    block_size: int = arg(16, 1, 256),
    num_blocks: int = arg(256, 1, 10_000),
    position: int = arg(37, 0, 4000),
) -> Result:
    """Look up a position in a block table: block = table[i // block_size], offset = i % block_size.

    Several requests start together. After their first step the requests listed in `finished` are aborted, in that
    order; then the last one arrives and its table is read. Prefix caching is off: freed blocks are reused in order.

    Returns:
        table [block ids]: The last request's table: entry j holds the positions from j * block_size on.
        logical_block, physical_block; offset [slots]
        slot [slot]: physical_block * block_size + offset: what slot_mapping holds for this position.
        is_contiguous: Whether the table's blocks lie side by side, in order.
    """
    if position >= last:
        raise BadArguments(f"position {position} is beyond the last request's {last} tokens")
    engine = ctx.core(
        num_blocks=num_blocks,
        block_size=block_size,
        enable_prefix_caching=False,
        max_num_batched_tokens=200_000,
    )
    for index, prompt in enumerate(prompts):
        engine.add(Ask(f"r{index}", prompt, output=OUTPUT))
    engine.step()
    engine.abort(*(f"r{index}" for index in finished))
    request = engine.add(Ask("last", last, output=OUTPUT))
    engine.step()
    table = [block.block_id for block in request.blocks]
    if not table:
        raise BadArguments(f"the last request does not fit into {num_blocks} blocks beside the others")
    logical, offset = divmod(position, block_size)
    return Result(
        table=table,
        logical_block=logical,
        physical_block=table[logical],
        offset=offset,
        slot=table[logical] * block_size + offset,
        is_contiguous=all(after == before + 1 for before, after in pairwise(table)),
    )


ENTRY_BYTES = 4
"""int32, as in engine/attention/backend.py."""


@experiment("E27")
def table_traffic(
    model: str = "llama-3-8b",
    context: int = arg(4096, 1, 10_000_000),
    block_size: int = arg(16, 1, 1024),
    kv_cache_dtype: str = "bfloat16",
    reserved: int = arg(0, 0, 10_000_000),
) -> Result:
    """Compare the bytes of the block table with the bytes of KV in one decode step.

    The contiguous cache used for comparison reads the larger of `reserved` and `context` positions; with 0 its kernel
    knows each row's length, otherwise it reads padding as padded batches do.

    Returns: One row, one decode step, all layers.
        kv_bytes [B]
        entries [entries]: Entries of the row's table.
        table_bytes [B]: Worst case: the program of each layer and KV head reads the table from memory.
        table_share [share]: Table over table and KV.
        table_once_bytes [B]: The table itself: what has to fit into a cache.
        paged_bytes [B]: KV and table: what paged attention reads.
        contiguous_bytes [B]: Bytes that attention over contiguous positions reads.
        bytes_per_entry [B]: KV that one look-up leads to: keys and values of a block, one layer, one kv head.
    """
    shape = get_model(model)
    width = kv_bytes(kv_cache_dtype, get_precision("bfloat16"))
    heads = 1 if shape.mla is not None else shape.num_kv_heads
    total = context * shape.kv_elements_per_token() * width
    entries = -(-context // block_size)
    table = entries * ENTRY_BYTES * shape.num_layers * heads
    per_entry = shape.kv_elements_per_token() * width * block_size / shape.num_layers / heads
    return Result(
        kv_bytes=total,
        entries=entries,
        table_bytes=table,
        table_share=table / (table + total),
        table_once_bytes=entries * ENTRY_BYTES,
        paged_bytes=total + table,
        contiguous_bytes=max(context, reserved) * total / context,
        bytes_per_entry=per_entry,
    )


@experiment("E30")
def chunked_cost(
    ctx: Context,
    prompt: int = arg(4000, 1, 200_000),
    chunk: int = arg(512, 1, 200_000),
    model: str = "llama-3-8b",
    hardware: str = "h100",
    block_size: int = arg(16, 1, 256),
) -> Result:
    """Price a prompt cut into chunks: each chunk reads the weights once, and the earlier KV again.

    Returns: The prompt runs alone on the engine, with a token budget of `chunk` per step.
        chunks [steps]: Forward passes over the weights for this prompt.
        kv_reads [positions]: Positions whose KV attention reads, once per chunk: each chunk's own and all before it.
        kv_factor [x]: kv_reads over the prompt's length; 1 for a prompt in one piece.
        computed [tokens]: Positions that went through the model.
        pairs [pairs]: (query, key) pairs: the arithmetic of attention.
        largest_step [tokens]
        blocks_at_end [blocks]: Blocks held after the prompt, which do not depend on the chunks.
        seconds_ratio [x]: Prefill time over that of one piece, by the simulator's cost model for this device.
    """
    engine = ctx.core(max_num_batched_tokens=chunk, num_blocks=200_000, block_size=block_size, traced=True)
    request = engine.add(Ask("r", prompt, output=2))
    while not engine.outcomes["r"].token_steps:
        engine.step()
    rows = [step.rows["r"] for step in engine.steps]
    blocks = len(request.blocks)
    engine.close()
    cost = CostModel(deploy(model, hardware, holds=prompt))

    def seconds(start: int, count: int) -> float:
        end, pairs = start + count, pairs_of(start, count, None)
        return cost.seconds(StepLoad(1, count, int(end == prompt), prefill_pairs=pairs, prefill_context=end))

    reads = sum(start + count for start, count in rows)
    return Result(
        chunks=len(rows),
        kv_reads=reads,
        kv_factor=reads / prompt,
        computed=sum(count for _, count in rows),
        pairs=sum(pairs_of(start, count, None) for start, count in rows),
        largest_step=max(count for _, count in rows),
        blocks_at_end=blocks,
        seconds_ratio=sum(seconds(*row) for row in rows) / seconds(0, prompt),
    )


@experiment("E25")
def kv_cache_on_off(
    ctx: Context,
    prompt: int = arg(100, 1, 5000),
    generated: int = arg(50, 1, 2000),
    model: str = "llama-2-7b",
) -> Result:
    """Count positions, attention pairs and arithmetic of one request with the KV cache and without it.

    Without a cache each token is a separate request whose prompt is everything before it; prefix caching is off.

    Returns: Counted by the scheduler; arithmetic from the model's shape (linear layers, head, attention).
        with_cache, without_cache [positions]: Positions computed, prompt included.
        position_ratio [x]
        pairs_with, pairs_without [pairs]: (query, key) pairs of attention, one head and layer.
        flop_with, flop_without [GFLOP]; flop_ratio [x]
        last_token_ratio [x]: Arithmetic of the last token alone: without over with.
        kv_mb [MB]: KV held at the end.
    """
    settings: dict[str, Any] = {"max_num_batched_tokens": 100_000, "num_blocks": 20_000}
    cached = ctx.core(enable_prefix_caching=False, **settings).run([Ask("r", prompt, generated)])
    alone = [Ask(f"r{i}", prompt + i, 1) for i in range(generated)]
    bare = ctx.core(max_num_seqs=1, enable_prefix_caching=False, **settings).run(alone)
    shape = get_model(model)
    head = 2 * shape.vocab_size * shape.hidden_size
    linear = 2 * (shape.common_params + shape.active_routed_params)

    def pairs(steps: list[StepView]) -> int:
        return sum(pairs_of(*chunk, None) for step in steps for chunk in step.rows.values())

    def flops(steps: list[StepView]) -> float:
        """Return the arithmetic of steps of one chunk, each followed by one row of logits."""
        tokens = sum(step.num_tokens for step in steps)
        return tokens * linear + pairs(steps) * shape.attention_flops_per_pair + head * len(steps)

    kept, again = cached.computed_tokens, bare.computed_tokens
    return Result(
        with_cache=kept,
        without_cache=again,
        position_ratio=again / kept,
        pairs_with=pairs(cached.steps),
        pairs_without=pairs(bare.steps),
        flop_with=flops(cached.steps) / 1e9,
        flop_without=flops(bare.steps) / 1e9,
        flop_ratio=flops(bare.steps) / flops(cached.steps),
        last_token_ratio=flops(bare.steps[-1:]) / flops(cached.steps[-1:]),
        kv_mb=kept * shape.kv_elements_per_token() * 2 / 1e6,
    )
