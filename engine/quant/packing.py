"""Eight nibbles in an int32, as every public 4-bit format stores them: the first in the lowest bits.

int32   | 7 | 6 | 5 | 4 | 3 | 2 | 1 | 0 |      AWQ puts column ORDER[i] of each eight into nibble i
"""

from __future__ import annotations

import torch
from torch import Tensor

PER_WORD = 8
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


def pack_words(nibbles: Tensor) -> Tensor:
    """[..., n] of 0 to 15 -> int32 [..., ceil(n / 8)]; what is missing in the last word is 0."""
    missing = -nibbles.shape[-1] % PER_WORD
    padded = torch.nn.functional.pad(nibbles.long(), (0, missing)).unflatten(-1, (-1, PER_WORD))
    words = (padded << _shifts(nibbles)).sum(-1)
    return words.to(torch.int32)  # wraps: the sign bit is the highest nibble's


def unpack_words(words: Tensor, count: int) -> Tensor:
    """int32 [..., n / 8] -> uint8 [..., count] of 0 to 15."""
    nibbles = (words.long()[..., None] >> _shifts(words)) & 15
    return nibbles.to(torch.uint8).flatten(-2)[..., :count]


def _shifts(like: Tensor) -> Tensor:
    return torch.arange(0, 4 * PER_WORD, 4, device=like.device)
