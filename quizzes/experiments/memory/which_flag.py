"""E35: which setting makes which bytes smaller, on a live engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from quizzes.experiments import Context, experiment
from quizzes.experiments.memory._shapes import KvDtype


@dataclass(frozen=True)
class Flags:
    """Of the model `shop`; on a CPU it computes in float32, so unquantised numbers have 4 bytes."""

    matrix_bytes: Annotated[int, "B"]
    """Of all linear layers, as they lie in memory, scales included."""
    kv_bytes_per_token: Annotated[int, "B"]
    matrix_ratio: Annotated[float, "x"]
    """How many times smaller than without any setting."""
    kv_ratio: Annotated[float, "x"]


@experiment("E35")
def which_flag(
    ctx: Context,
    *,
    quantization: Literal["none", "rtn", "int8", "int8_weight_only", "fp8"] = "none",
    kv_cache_dtype: KvDtype = "auto",
) -> Flags:
    """Weight bytes and KV bytes of a live engine with `quantization` and `kv_cache_dtype`."""
    matrix, kv = _bytes(ctx, quantization, kv_cache_dtype)
    plain_matrix, plain_kv = _bytes(ctx, "none", "auto")
    return Flags(matrix, kv, plain_matrix / matrix, plain_kv / kv)


def _bytes(ctx: Context, quantization: str, kv_cache_dtype: str) -> tuple[int, int]:
    from engine.quant.size import weight_bytes

    settings = {} if quantization == "none" else {"quantization": quantization}
    with ctx.llm(kv_cache_dtype=kv_cache_dtype, num_gpu_blocks_override=64, **settings) as llm:
        worker = llm.llm_engine.engine_core.executor.worker
        return weight_bytes(worker.model)[0], worker.block_bytes() // 16
