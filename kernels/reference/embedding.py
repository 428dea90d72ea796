"""Looking up rows of a table."""

from __future__ import annotations

from torch import Tensor


def embedding(table: Tensor, ids: Tensor) -> Tensor:
    return table[ids]
