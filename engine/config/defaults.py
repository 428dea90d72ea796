"""Default sizes: max_num_seqs, max_num_batched_tokens, swap_space.

Source: get_batch_defaults in vllm/engine/arg_utils.py.
"""

from __future__ import annotations

from typing import NamedTuple

from common.text import GIB


class BatchSizes(NamedTuple):
    """Defaults of the token budget of a step and of the requests that may run in it."""

    max_num_batched_tokens: int
    max_num_seqs: int


ON_CPU = BatchSizes(max_num_batched_tokens=4096, max_num_seqs=256)
ON_GPU = BatchSizes(max_num_batched_tokens=8192, max_num_seqs=256)
ON_LARGE_GPU = BatchSizes(max_num_batched_tokens=16384, max_num_seqs=1024)
LARGE_GPU_BYTES = 70 * GIB

SWAP_SPACE_BYTES = 4 * GIB
"""Limited to a quarter of the free host memory."""


def default_batch_sizes(device: str, gpu_bytes: int = 0) -> BatchSizes:
    """Return max_num_batched_tokens and max_num_seqs for a device type; gpu_bytes: its total memory."""
    if device != "cuda":
        return ON_CPU
    return ON_LARGE_GPU if gpu_bytes >= LARGE_GPU_BYTES else ON_GPU
