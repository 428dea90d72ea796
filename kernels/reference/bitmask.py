"""Forbidding tokens by a packed mask, as a grammar compiler produces it."""

from __future__ import annotations

import torch
from torch import Tensor


def apply_token_bitmask(logits: Tensor, bitmask: Tensor) -> None:
    bits = torch.arange(32, device=bitmask.device, dtype=torch.int32)
    allowed = ((bitmask[..., None] >> bits) & 1).flatten(-2).bool()
    logits.masked_fill_(~allowed[:, : logits.shape[1]], -torch.inf)
