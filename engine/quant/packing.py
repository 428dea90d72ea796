"""Eight nibbles or four bytes in an int32, as the public formats store them: the first in the lowest bits.

int32   | 7 | 6 | 5 | 4 | 3 | 2 | 1 | 0 |      AWQ puts column ORDER[i] of each eight into nibble i
"""

from __future__ import annotations

import torch
from torch import Tensor

PER_WORD = 8
"""Nibbles."""
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


def pack_words(values: Tensor, bits: int = 4) -> Tensor:
    """[..., n] of 0 to 2**bits - 1 -> int32 [..., ceil(n * bits / 32)]; what is missing in the last word is 0."""
    missing = -values.shape[-1] % (32 // bits)
    padded = torch.nn.functional.pad(values.long(), (0, missing)).unflatten(-1, (-1, 32 // bits))
    words = (padded << _shifts(values, bits)).sum(-1)
    return words.to(torch.int32)  # wraps: the sign bit is the highest of the last value


def unpack_words(words: Tensor, count: int, bits: int = 4) -> Tensor:
    """int32 [..., n * bits / 32] -> uint8 [..., count] of 0 to 2**bits - 1."""
    values = (words.long()[..., None] >> _shifts(words, bits)) & (2**bits - 1)
    return values.to(torch.uint8).flatten(-2)[..., :count]


def _shifts(like: Tensor, bits: int) -> Tensor:
    return torch.arange(0, 32, bits, device=like.device)
