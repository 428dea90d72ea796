from typing import Any, Literal

from quizzes.experiments import Context, Result, arg, experiment
from quizzes.experiments.memory._shapes import KvDtype


@experiment("E01")
def real_pool(
    ctx: Context,
    kv_dtype: KvDtype = "auto",
    num_blocks: int = arg(64, 4, 4096),
    block_size: Literal[8, 16, 32, 64, 128] = 16,
    draft: bool = False,
) -> Result:
    """Measure the KV cache that a live engine with the model `shop` (6 layers, 4 KV heads of 32) allocates.

    draft: also load `shop-draft` (3 layers, 4 KV heads of 32) for speculative decoding. On a CPU the model computes in
    float32, so `auto` is 4 bytes.

    Returns:
        Read from the cache's tensor and from the block pool.
        pool_bytes, block_bytes, token_bytes [B]
        num_blocks [blocks]
        usable_blocks [blocks]: Blocks without the null block, which padding refers to.
        usable_tokens [tokens]
        kv_shape: [num_blocks, layers, 2, kv_heads, block_size, head_dim]
    """
    settings: dict[str, Any] = {}
    if draft:
        settings["speculative_config"] = {"model": "shop-draft", "num_speculative_tokens": 3}
    with ctx.llm(
        block_size=block_size,
        num_gpu_blocks_override=num_blocks,
        kv_cache_dtype=kv_dtype,
        max_model_len=min(256, (num_blocks - 1) * block_size),
        **settings,
    ) as llm:
        core = llm.llm_engine.engine_core
        worker = core.executor.worker
        cache = worker.runner.kv_cache
        usable = core.scheduler.kv.pool.num_usable
        return Result(
            pool_bytes=cache.blocks.nbytes,
            block_bytes=worker.block_bytes(),
            token_bytes=worker.block_bytes() / block_size,
            num_blocks=len(cache.blocks),
            usable_blocks=usable,
            usable_tokens=usable * block_size,
            kv_shape=list(cache.kv.shape),
        )
