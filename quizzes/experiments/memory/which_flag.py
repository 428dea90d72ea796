from typing import Any, Literal

from quizzes.experiments import Context, Result, experiment, worker_of
from quizzes.experiments.memory._shapes import KvDtype


@experiment("E35")
def which_flag(
    ctx: Context,
    quantization: Literal["none", "rtn", "int8", "int8_weight_only", "fp8"] = "none",
    kv_cache_dtype: KvDtype = "auto",
) -> Result:
    """Measure weight and KV bytes of a live engine with `quantization` and with `kv_cache_dtype`.

    Returns:
        The model `shop`; on a CPU it computes in float32, so unquantised numbers have 4 bytes.
        matrix_bytes [B]: Bytes of all linear layers in memory, scales included.
        kv_bytes_per_token [B]
        matrix_ratio, kv_ratio [x]: Bytes without any setting over bytes with it.
    """
    matrix, kv = _bytes(ctx, quantization, kv_cache_dtype)
    plain_matrix, plain_kv = _bytes(ctx, "none", "auto")
    return Result(
        matrix_bytes=matrix, kv_bytes_per_token=kv, matrix_ratio=plain_matrix / matrix, kv_ratio=plain_kv / kv
    )


def _bytes(ctx: Context, quantization: str, kv_cache_dtype: str) -> tuple[int, int]:
    from engine.quant.size import weight_bytes

    settings: dict[str, Any] = {} if quantization == "none" else {"quantization": quantization}
    with ctx.llm(kv_cache_dtype=kv_cache_dtype, num_gpu_blocks_override=64, **settings) as llm:
        worker = worker_of(llm)
        return weight_bytes(worker.model)[0], worker.block_bytes() // 16
