"""Memory traffic of an elementwise chain, computed operator by operator and in one fused kernel."""

from typing import Any, Literal

from quizzes.experiments import Result, arg, experiment
from quizzes.experiments.charts import vega

Op = Literal["fused_add_rms_norm", "rms_norm", "silu_and_mul", "rotary_embedding"]


@experiment("E65", "E27")
def fusion(
    op: Op = "fused_add_rms_norm",
    tokens: int = arg(256, 1, 4096),
    width: int = arg(1024, 64, 8192, multiple_of=64),
    dtype: Literal["float32", "bfloat16"] = "bfloat16",
    gb_per_s: int = arg(3350, 1, 20_000),
    launch_us: float = arg(3.0, 0, 50),
) -> Result:
    """Count the bytes that an operation moves operator by operator and as one fused kernel, from real tensors.

    The unfused form is the definition in plain torch; each of its operators reads its inputs from memory and writes its
    result there. The fused form is the engine's kernel: it reads the arguments and writes the results once. Times are
    those of memory alone on a device of `gb_per_s`, and `launch_us` per kernel.

    Returns: Bytes of one call.
        operators: The unfused form's operators, in order; views move nothing and are left out.
        launches [kernels]: Their number; the fused form has 1.
        unfused_read, unfused_written, fused_read, fused_written [B]
        traffic_ratio [x]: Unfused over fused bytes, read and written.
        unfused_us, fused_us [us]: Bytes over bandwidth, and launches.
        max_error: Largest difference between the two results.
    """
    import torch

    from kernels import ops, registry
    from quizzes.experiments.performance._traffic import CountTraffic, arguments_of, num_bytes, tensors

    arguments = arguments_of(op, tokens, width, getattr(torch, dtype))
    unfused = registry.get(
        op, "reference"
    ).load()  # in plain torch: each operator is a kernel of its own on a GPU
    with CountTraffic() as traffic:
        expected = unfused(*arguments)
    out = getattr(ops, op)(*arguments)
    pairs = zip(tensors([expected]), tensors([out]), strict=True)
    read = sum(map(num_bytes, tensors(arguments)))
    written = sum(map(num_bytes, tensors([out])))
    moved = traffic.bytes_read + traffic.bytes_written
    per_us = gb_per_s * 1e3
    return Result(
        operators=traffic.operators,
        launches=len(traffic.operators),
        unfused_read=traffic.bytes_read,
        unfused_written=traffic.bytes_written,
        fused_read=read,
        fused_written=written,
        traffic_ratio=moved / (read + written),
        unfused_us=moved / per_us + launch_us * len(traffic.operators),
        fused_us=(read + written) / per_us + launch_us,
        max_error=max(float((a.float() - b.float()).abs().max()) for a, b in pairs),
    )


def fusion_chart(result: Result) -> dict[str, Any]:
    """Bytes read and written by both forms."""
    rows = {
        "form": ["unfused", "unfused", "fused", "fused"],
        "what": ["read", "written"] * 2,
        "bytes": [result.unfused_read, result.unfused_written, result.fused_read, result.fused_written],
    }
    return vega(rows, "bar", x="bytes:Q", y="form:N", color="what:N")
