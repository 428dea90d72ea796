"""KV cache and weights of a live engine, measured."""

from typing import Any, Literal

from quizzes.experiments import Context, Result, arg, experiment, generate, greedy, worker_of
from quizzes.experiments.memory.sizes import KvDtype


@experiment("E02")
def pool_lifetime(
    ctx: Context,
    requests: int = arg(4, 1, 16),
    output: int = arg(24, 1, 64),
    num_blocks: int = arg(128, 16, 1024),
) -> Result:
    """Check that a live engine's KV cache does not grow with the load.

    Returns: The cache's tensor and the pool's counters, for prompts of 40 tokens with `output` tokens each.
        bytes_before, bytes_after [B]
        same_memory: The tensor starts at the same address afterwards.
        used_before, peak_used, used_after [blocks]; generated [tokens]
    """
    with ctx.llm(num_gpu_blocks_override=num_blocks, max_model_len=256) as llm:
        core = llm.llm_engine.engine_core
        runner, pool = worker_of(llm).runner, core.scheduler.kv.pool
        cache, used = runner.kv_cache.blocks, [pool.num_used]
        before, address = cache.nbytes, cache.data_ptr()
        pool.on_event = lambda *event: used.append(pool.num_used)
        prompts = [{"prompt_token_ids": list(range(10 + i, 50 + i))} for i in range(requests)]
        answers = generate(llm, prompts, greedy(output))
        after = runner.kv_cache.blocks
        return Result(
            bytes_before=before,
            bytes_after=after.nbytes,
            same_memory=after.data_ptr() == address,
            used_before=used[0],
            peak_used=max(used),
            used_after=pool.num_used,
            generated=sum(len(answer.token_ids) for answer in answers),
        )


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

    Returns: Read from the cache's tensor and from the block pool.
        pool_bytes, block_bytes, token_bytes [B]; num_blocks [blocks]
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


@experiment("E35")
def which_flag(
    ctx: Context,
    quantization: Literal["none", "rtn", "int8", "int8_weight_only", "fp8"] = "none",
    kv_cache_dtype: KvDtype = "auto",
) -> Result:
    """Measure weight and KV bytes of a live engine with `quantization` and with `kv_cache_dtype`.

    Returns: The model `shop`; on a CPU it computes in float32, so unquantised numbers have 4 bytes.
        matrix_bytes [B]: Bytes of all linear layers in memory, scales included.
        kv_bytes_per_token [B]
        matrix_ratio, kv_ratio [x]: Bytes without any setting over bytes with it.
    """
    from engine.quant.size import weight_bytes

    def measure(quantization: str, kv_cache_dtype: str) -> tuple[int, int]:
        """Return the bytes of the matrices and of a token's KV."""
        settings: dict[str, Any] = {} if quantization == "none" else {"quantization": quantization}
        with ctx.llm(kv_cache_dtype=kv_cache_dtype, num_gpu_blocks_override=64, **settings) as llm:
            worker = worker_of(llm)
            return weight_bytes(worker.model)[0], worker.block_bytes() // 16

    (matrix, kv), (plain_matrix, plain_kv) = measure(quantization, kv_cache_dtype), measure("none", "auto")
    return Result(
        matrix_bytes=matrix, kv_bytes_per_token=kv, matrix_ratio=plain_matrix / matrix, kv_ratio=plain_kv / kv
    )
