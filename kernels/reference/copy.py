"""Copying blocks of the cache: fork, swap out, swap in."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import Tensor


def copy_blocks(source: Tensor, target: Tensor, block_pairs: Tensor) -> None:
    for origin, destination in block_pairs.tolist():
        target[destination].copy_(source[origin])


def copy_between_devices(source: Tensor, target: Tensor, block_pairs: Tensor) -> None:
    """Copy pairs whose blocks follow each other on both sides at once: (3, 7) (4, 8) (1, 2) are 3..4 to 7..8, 1 to 2.

    Between a GPU and the CPU the link decides (PCIe 5 x16: about 55 GB/s), and a copy engine fills it without an SM.
    What costs is the number of copies. Pinned memory on the CPU side makes them asynchronous: they are queued on the
    current stream, so wait for it before the host reads its side. Source: transformers' continuous batching.
    """
    for origin, destination, length in contiguous_runs(block_pairs.tolist()):
        blocks = source[origin : origin + length]
        target[destination : destination + length].copy_(blocks, non_blocking=True)


def contiguous_runs(block_pairs: Sequence[Sequence[int]]) -> Iterator[tuple[int, int, int]]:
    """(first source, first target, length) of runs of pairs that advance by one on both sides, in their order."""
    start = 0
    for end in range(1, len(block_pairs) + 1):
        origin, destination = block_pairs[start]
        length = end - start
        if end == len(block_pairs) or list(block_pairs[end]) != [origin + length, destination + length]:
            yield origin, destination, length
            start = end
