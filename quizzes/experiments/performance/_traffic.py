"""Operators that run on real tensors, and the bytes that they move."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode


class CountTraffic(TorchDispatchMode):
    """Counts the operators that run, and the bytes of the tensors that each reads and writes. Views move nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.operators: list[str] = []
        self.bytes_read = self.bytes_written = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        read, written = list(tensors(args)), list(tensors([result]))
        known = {tensor.untyped_storage().data_ptr() for tensor in read}
        is_view = all(tensor.untyped_storage().data_ptr() in known for tensor in written)
        if is_view and not func._schema.is_mutable:
            return result
        self.operators.append(func._schema.name.removeprefix("aten::"))
        self.bytes_read += sum(map(num_bytes, read))
        self.bytes_written += sum(map(num_bytes, written))
        return result


def tensors(values: Iterable[Any]) -> Iterable[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, tuple | list):
            yield from tensors(value)


def num_bytes(tensor: Tensor) -> int:
    """Return the bytes of the elements that exist: a broadcast dimension counts once."""
    sizes = [size for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if stride]
    return int(torch.Size(sizes).numel()) * tensor.element_size()


def arguments_of(op: str, tokens: int, width: int, dtype: torch.dtype) -> tuple[Any, ...]:
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
    return *(tensor.clone() for tensor in inputs), normal(width), 1e-5
