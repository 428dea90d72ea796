"""Keys of the sampling noise, a pure function: hash(seed, position, token id) -> Gumbel.

With a stateful generator a request's tokens would depend on the batch and on its preemptions. Here noise depends only
on the request's seed, the position and the candidate token, so a seed gives the same tokens alone, in a batch, chunked,
resumed or drafted. This file hashes seed and position; `ops.sample` hashes in the token and makes the noise
(kernels/reference/sampling.py).

Source: the idea of vLLM v1/worker/gpu/sample/gumbel.py; the mixer is that of splitmix64 (Steele, Lea, Flood 2014).
"""

from __future__ import annotations

import numpy as np


def row_keys(seeds: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """Mix each row's seed with its position: int64 [S], int64 [S] -> int32 [S, 2], all bits of them random."""
    with np.errstate(over="ignore"):
        keys = _splitmix64(_splitmix64(seeds.astype(np.uint64)) + positions.astype(np.uint64))
    return keys.view(np.int32).reshape(-1, 2)


def _splitmix64(values: np.ndarray) -> np.ndarray:
    values = values + np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
