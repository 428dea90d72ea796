"""One call of an operation, and copies of it that keep strides and sharing."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any

import torch
from torch import Tensor

from kernels.attention_batch import AttentionBatch
from prep_common.dotted_path import load_object

WIDENED = (torch.float32, torch.float16, torch.bfloat16)


@dataclass(frozen=True, slots=True)
class Case:
    """A named call. The same (op, seed, size, dtype) gives the same case on every device."""

    op: str
    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any] = field(default_factory=dict)
    free_rows: frozenset[int] = frozenset()
    """Rows that hold NaN, where the contract leaves the result open; the other rows must not notice."""

    def arguments(self) -> dict[str, Any]:
        """Return all arguments by name, as in the signature in `ops.py`; a batch counts as its fields."""
        contract = load_object(
            f"kernels.ops:{self.op}"
        )  # by name: ops leads to the entries, and these to their cases
        bound = inspect.signature(contract).bind(*self.args, **self.kwargs).arguments
        batch = bound.pop("batch", None)
        return bound if batch is None else {**bound, **_fields(batch)}

    def describe(self) -> str:
        """Every argument on a line: enough to see what is special about the case."""
        lines = [f"{name:<16}{_describe(value)}" for name, value in self.arguments().items()]
        return "\n".join(lines)


def copy_of(case: Case, device: str | None = None) -> Case:
    """The same call on its own memory."""
    return _mapped(case, lambda storage: storage.to(device, copy=True) if device else storage.clone())


def widened(case: Case) -> Case:
    """The same call in float64. Integers and quantised values (fp8, int8) stay what they are."""
    return _mapped(case, lambda storage: storage.double() if storage.dtype in WIDENED else storage.clone())


def dtype_name(dtype: torch.dtype) -> str:
    """As people say it: fp32, bf16, fp8."""
    names = {
        torch.float32: "fp32",
        torch.float16: "fp16",
        torch.bfloat16: "bf16",
        torch.float8_e4m3fn: "fp8",
    }
    return names.get(dtype) or str(dtype).removeprefix("torch.")


def whole(tensor: Tensor) -> Tensor:
    """Everything in a tensor's memory, also what lies between the elements of a strided view."""
    length = tensor.untyped_storage().nbytes() // tensor.element_size()
    return tensor.as_strided((length,), (1,), 0)


def _mapped(case: Case, convert: Callable[[Tensor], Tensor]) -> Case:
    """Convert whole storages, then rebuild the views: strides, and tensors that share memory, stay."""
    done: dict[tuple[int, torch.dtype], Tensor] = {}

    def visit(value: Any) -> Any:
        if isinstance(value, (list, tuple)):
            return type(value)(visit(item) for item in value)
        if isinstance(value, AttentionBatch):
            return AttentionBatch(**{name: visit(item) for name, item in _fields(value).items()})
        if not isinstance(value, Tensor):
            return value
        key = (value.untyped_storage().data_ptr(), value.dtype)
        if key not in done or key[0] == 0:
            done[key] = convert(whole(value))
        return done[key].as_strided(value.shape, value.stride(), value.storage_offset())

    kwargs = {name: visit(value) for name, value in case.kwargs.items()}
    return Case(case.op, case.name, tuple(visit(arg) for arg in case.args), kwargs, case.free_rows)


def _fields(batch: Any) -> dict[str, Any]:
    return {field.name: getattr(batch, field.name) for field in fields(batch)}


def _describe(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_describe(item) for item in value) + "]"
    if not isinstance(value, Tensor):
        return repr(value)
    text = f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
    if not value.is_contiguous():
        text += f" strides {list(value.stride())}"
    if value.numel() <= 12 and not value.is_floating_point():
        text += f" = {value.tolist()}"
    return text
