"""Sampling noise that depends on nothing but who asks for it: hash(seed, position, token id) -> Gumbel.

A generator with a state would make a request's tokens depend on what else is in the batch and on
how often it was preempted. Here the noise is a pure function of the request's seed, the position
that is being filled and the candidate token, so a seed gives the same tokens alone, in a batch,
chunked, resumed or drafted ahead.

The Gumbel-max trick turns noise into a sample: with independent g_i ~ Gumbel(0, 1),

    argmax_i (logit_i + g_i)   is distributed as   softmax(logit)

Source: the idea of vLLM v1/worker/gpu/sample/gumbel.py; the finalisers are those of splitmix64
(Steele, Lea, Flood 2014) and murmur3 (Appleby 2011).
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

_TOKEN_STRIDE = 0x9E3779B1
_MURMUR_1 = 0x85EBCA6B
_MURMUR_2 = 0xC2B2AE35
_UNIFORM_SCALE = np.float32(2**-32 * (1 - 2**-24))
"""Maps (hash + 0.5) to a float32 in (0, 1), both ends excluded even after rounding."""


def row_keys(seeds: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """Mix each row's seed with the position to fill: int64 [S], int64 [S] -> uint32 [S, 2]."""
    with np.errstate(over="ignore"):
        keys = _splitmix64(_splitmix64(seeds.astype(np.uint64)) + positions.astype(np.uint64))
    return keys.view(np.uint32).reshape(-1, 2)


def gumbel_noise(keys: np.ndarray, vocab_size: int) -> np.ndarray:
    """Gumbel noise for every token of every row, on the CPU: uint32 [S, 2] -> float32 [S, V].

    Each of the S x V values comes from its own 32-bit hash, so a row's bits do not depend on the
    other rows. Values lie in [-2.9, 23]: the largest has a probability of 2**-33.
    """
    first, second = keys[:, :1], keys[:, 1:]
    with np.errstate(over="ignore"):
        bits = first ^ _token_lane(vocab_size)
        bits ^= bits >> np.uint32(16)
        bits *= np.uint32(_MURMUR_1)
        bits ^= bits >> np.uint32(13)
        bits += second
        bits *= np.uint32(_MURMUR_2)
        bits ^= bits >> np.uint32(16)
    return gumbel_from_bits(bits)


def gumbel_from_bits(bits: np.ndarray) -> np.ndarray:
    """-log(-log(1 - u)) with u = bits / 2**32: uint32 -> float32 of the same shape.

    log1p keeps the precision of small u, where the winners come from.
    """
    noise = bits.astype(np.float32)
    noise += np.float32(0.5)
    noise *= -_UNIFORM_SCALE
    np.log1p(noise, out=noise)
    np.negative(noise, out=noise)
    np.log(noise, out=noise)
    np.negative(noise, out=noise)
    return noise


def gumbel_noise_torch(keys: Tensor, vocab_size: int) -> Tensor:
    """The same noise on any device: int32 [S, 2] (the bits of `row_keys`) -> float32 [S, V].

    The hashes are those of `gumbel_noise` bit for bit; the two logarithms may round differently.
    """
    first, second = keys[:, :1], keys[:, 1:]
    tokens = torch.arange(vocab_size, dtype=torch.int32, device=keys.device)
    bits = first ^ (tokens * _as_int32(_TOKEN_STRIDE))
    bits = (bits ^ _shift_right(bits, 16)) * _as_int32(_MURMUR_1)
    bits = ((bits ^ _shift_right(bits, 13)) + second) * _as_int32(_MURMUR_2)
    bits = bits ^ _shift_right(bits, 16)
    unsigned = bits.to(torch.int64) & 0xFFFFFFFF
    noise = (unsigned.to(torch.float32) + 0.5) * -float(_UNIFORM_SCALE)
    return noise.log1p_().neg_().log_().neg_()


def _splitmix64(values: np.ndarray) -> np.ndarray:
    values = values + np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


@lru_cache(maxsize=4)
def _token_lane(vocab_size: int) -> np.ndarray:
    """Every token id, spread over 32 bits: uint32 [V]."""
    return np.arange(vocab_size, dtype=np.uint32) * np.uint32(_TOKEN_STRIDE)


def _shift_right(bits: Tensor, count: int) -> Tensor:
    """Logical shift: torch's `>>` on int32 drags the sign along."""
    return (bits >> count) & ((1 << (32 - count)) - 1)


def _as_int32(value: int) -> int:
    return value - (1 << 32) if value >= 1 << 31 else value
