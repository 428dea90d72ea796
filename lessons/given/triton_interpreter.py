"""In a guest: Triton's interpreter, which runs a kernel's programs one after the other with numpy. Import it first.

`watched` calls a function and finds results that no kernel of the file stored, or what a GPU would punish or leave
undefined: accesses beside the tensors of the launch, and lanes that a mask switches off and that have no `other`.
"""

import os

os.environ["TRITON_INTERPRET"] = "1"

from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl
from triton.runtime import interpreter

__all__ = ["tl", "torch", "triton"]

Range = tuple[int, int]
"""First address of a tensor, and the one behind its last."""


class Watch:
    """The launches of one call."""

    def __init__(self, has_walls: bool) -> None:
        self.has_walls, self.num_programs = has_walls, 0
        self.tensors: list[Range] = []
        """Tensors of the present launch."""
        self.stored: list[tuple[Any, int]] = []
        """Addresses of each store, and the bytes of a number."""

    def inside(self, what: str, addresses: Any, number_bytes: int) -> None:
        """Raise IndexError if an address lies outside of all tensors of the launch."""
        if not self.has_walls:
            return
        good = np.zeros(addresses.shape, bool)
        for first, end in self.tensors:
            good |= (addresses >= first) & (addresses + np.uint64(number_bytes) <= end)
        if not good.all():
            beside = int(addresses[~good][0])
            first, end = min(self.tensors, key=lambda each: min(abs(each[0] - beside), abs(each[1] - beside)))
            place = f"{(beside - end) // number_bytes + 1} numbers behind the end"
            if beside < first:
                place = f"{(first - beside) // number_bytes} numbers before the start"
            raise IndexError(f"this {what} needs a mask: one lane is {place} of the nearest tensor")


_watch: Watch | None = None


def _span(tensor: Any) -> Range:
    last = sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr(), tensor.data_ptr() + (last + 1) * tensor.element_size() * (tensor.numel() > 0)


_load, _store, _launch = (
    interpreter.InterpreterBuilder.create_masked_load,
    interpreter.InterpreterBuilder.create_masked_store,
    interpreter.GridExecutor.__call__,
)


def _bools(mask: Any) -> Any:
    """Return a mask of bools: the interpreter of Triton 3.9 refuses (i < n) & (slot >= 0), which compiles."""
    return interpreter.TensorHandle(np.broadcast_to(mask.data, mask.data.shape).astype(bool), tl.int1)


def _masked_load(self: Any, ptrs: Any, mask: Any, other: Any, *options: Any) -> Any:
    mask = _bools(mask)
    if _watch is not None:
        of = ptrs.get_element_ty().primitive_bitwidth // 8
        _watch.inside("load", np.asarray(ptrs.data)[mask.data], max(1, of))
    found = _load(self, ptrs, mask, other, *options)
    if _watch is not None and _watch.has_walls and other is None and not mask.data.all():
        found.data = np.array(found.data)
        kind = found.data.dtype.kind
        found.data[~mask.data] = (
            np.nan if kind == "f" else np.iinfo(found.data.dtype).max if kind in "iu" else 0
        )
    return found


def _masked_store(self: Any, ptrs: Any, value: Any, mask: Any, *options: Any) -> Any:
    mask = _bools(mask)
    if _watch is not None:
        addresses = np.asarray(ptrs.data)[mask.data]
        of = max(1, ptrs.get_element_ty().primitive_bitwidth // 8)
        _watch.inside("store", addresses, of)
        _watch.stored.append((addresses.copy(), of))
    return _store(self, ptrs, value, mask, *options)


def _watched_launch(self: Any, *args: Any, **keywords: Any) -> Any:
    if _watch is not None:
        _watch.tensors = [
            _span(each) for each in (*args, *keywords.values()) if isinstance(each, torch.Tensor)
        ]
        grid = self.grid if not callable(self.grid) else None
        _watch.num_programs += int(np.prod(grid)) if grid is not None else 1
    return _launch(self, *args, **keywords)


interpreter.InterpreterBuilder.create_masked_load = _masked_load
interpreter.InterpreterBuilder.create_masked_store = _masked_store
interpreter.GridExecutor.__call__ = _watched_launch


def watched(function: Any, args: list[Any], has_walls: bool) -> Any:
    """Call a function with tensors; return what it returns, or a sentence in a tuple: ("wrong", why).

    has_walls: an access beside the tensors raises IndexError, and hidden lanes are NaN. Otherwise each number that the
    function returns, or changes in its arguments, must have been stored by a kernel.
    """
    global _watch
    _watch = watch = Watch(has_walls)
    tensors = [each for each in args if isinstance(each, torch.Tensor)]
    before = [each.clone() for each in tensors]
    try:
        found = function(*args)
    finally:
        _watch = None
    if has_walls:
        return found
    results = list(found) if isinstance(found, tuple | list) else [found]
    changed = [
        (each, ~torch.eq(each, old) & ~(torch.isnan(each) & torch.isnan(old)))
        for each, old in zip(tensors, before, strict=True)
    ]
    changed += [
        (each, torch.ones_like(each, dtype=torch.bool)) for each in results if isinstance(each, torch.Tensor)
    ]
    if not watch.num_programs:
        return "wrong", "it launches no kernel: the functions with @triton.jit compute the result, not torch"
    stored = np.unique(np.concatenate([each for each, _ in watch.stored] or [np.zeros(0, np.uint64)]))
    for tensor, which in changed:
        if which.any() and not np.isin(_addresses(tensor)[which.numpy()], stored).all():
            return "wrong", "it returns or changes numbers that no kernel of the file has stored"
    return found


def _addresses(tensor: Any) -> Any:
    """Return the address of each number."""
    places = np.full(tensor.shape, tensor.data_ptr(), np.uint64)
    for axis, (size, step) in enumerate(zip(tensor.shape, tensor.stride(), strict=True)):
        shape = [1] * tensor.dim()
        shape[axis] = size
        places += (np.arange(size, dtype=np.uint64) * np.uint64(step * tensor.element_size())).reshape(shape)
    return places
