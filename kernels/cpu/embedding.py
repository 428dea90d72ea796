"""Looking up rows of a table in C++, see `embedding.cpp`."""

from __future__ import annotations

from torch import Tensor

from kernels.cpu.build import function
from kernels.cpu.memory import empty

_embedding = function("embedding", "pppll")


def embedding(table: Tensor, ids: Tensor) -> Tensor:
    y = empty((ids.shape[0], table.shape[1]), table.dtype)
    _embedding(table.data_ptr(), ids.data_ptr(), y.data_ptr(), ids.shape[0], table.shape[1] * table.itemsize)
    return y


def unsupported_embedding(table: Tensor, ids: Tensor) -> str | None:
    return None if table.is_contiguous() else "the table is not contiguous"
