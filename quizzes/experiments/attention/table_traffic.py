from engine.sim.models import get_model
from engine.sim.precision import get_precision, kv_bytes
from quizzes.experiments import Context, Result, arg, experiment

ENTRY_BYTES = 4
"""int32, as in engine/attention/backend.py."""


@experiment("E27")
def table_traffic(
    ctx: Context,
    model: str = "llama-3-8b",
    context: int = arg(4096, 1, 10_000_000),
    block_size: int = arg(16, 1, 1024),
    kv_cache_dtype: str = "bfloat16",
    reserved: int = arg(0, 0, 10_000_000),
) -> Result:
    """Compare the bytes of the block table with the bytes of KV in one decode step.

    The contiguous cache used for comparison reads the larger of `reserved` and `context` positions; with 0 its kernel
    knows each row's length, otherwise it reads padding as padded batches do.

    Returns:
        One row, one decode step, all layers.
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
