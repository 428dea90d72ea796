"""Memory traffic of an elementwise chain, computed operator by operator and in one fused kernel."""

from collections.abc import Iterable
from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from kernels import ops, registry
from quizzes.experiments import Result, arg, experiment
from quizzes.experiments.charts import vega

Op = Literal["fused_add_rms_norm", "rms_norm", "silu_and_mul", "rotary_embedding"]


class CountTraffic(TorchDispatchMode):
    """Counts the operators that run, and the bytes of the tensors that each reads and writes. Views move nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.operators: list[str] = []
        self.bytes_read = self.bytes_written = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        read, written = list(_tensors(args)), list(_tensors([result]))
        known = {tensor.untyped_storage().data_ptr() for tensor in read}
        is_view = all(tensor.untyped_storage().data_ptr() in known for tensor in written)
        if is_view and not func._schema.is_mutable:
            return result
        self.operators.append(func._schema.name.removeprefix("aten::"))
        self.bytes_read += sum(map(_num_bytes, read))
        self.bytes_written += sum(map(_num_bytes, written))
        return result


def _tensors(values: Iterable[Any]) -> Iterable[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, tuple | list):
            yield from _tensors(value)


def _num_bytes(tensor: Tensor) -> int:
    """Return the bytes of the elements that exist: a broadcast dimension counts once."""
    sizes = [size for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if stride]
    return int(torch.Size(sizes).numel()) * tensor.element_size()


def _arguments(op: str, tokens: int, width: int, dtype: torch.dtype) -> tuple[Any, ...]:
    random = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=random).to(dtype)

    if op == "silu_and_mul":
        return (normal(tokens, 2 * width),)
    if op == "rotary_embedding":
        head_dim = 64
        angles = torch.rand(tokens, head_dim // 2, generator=random)
        return normal(tokens, max(1, width // head_dim), head_dim), angles.cos(), angles.sin()
    inputs = [normal(tokens, width)] * (1 + (op == "fused_add_rms_norm"))
    return *(each.clone() for each in inputs), normal(width), 1e-5


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
    arguments = _arguments(op, tokens, width, getattr(torch, dtype))
    with CountTraffic() as traffic:
        expected = registry.get(op, "reference").load()(*arguments)
    found = getattr(ops, op)(*arguments)
    pairs = zip(_tensors([expected]), _tensors([found]), strict=True)
    read = sum(map(_num_bytes, _tensors(arguments)))
    written = sum(map(_num_bytes, _tensors([found])))
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
