"""Two numbers of 4 bits to a byte, the lower half first."""

from __future__ import annotations

import torch
from torch import Tensor

NIBBLE_MAX = 15


def pack_int4(nibbles: Tensor) -> Tensor:
    """uint8 [..., K] of values 0 to 15 -> uint8 [..., K / 2]."""
    return nibbles[..., 0::2] | (nibbles[..., 1::2] << 4)


def unpack_int4(packed: Tensor) -> Tensor:
    """uint8 [..., K / 2] -> uint8 [..., K] of values 0 to 15."""
    return torch.stack((packed & NIBBLE_MAX, packed >> 4), dim=-1).flatten(-2)
