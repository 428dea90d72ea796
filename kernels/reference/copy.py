"""Copying blocks of the cache: fork, swap out, swap in."""

from __future__ import annotations

from torch import Tensor


def copy_blocks(source: Tensor, target: Tensor, block_pairs: Tensor) -> None:
    for origin, destination in block_pairs.tolist():
        target[destination].copy_(source[origin])
