"""An adapter beside a linear layer: y += s B A x, with A and B chosen by each token's slot.

    token_adapter     0   0  -1   2           slots of the device; -1: no adapter
    stacks            A [parts, slots, rank, in]       one part for each projection that the layer merges
                      B part by part [slots, out, rank]

Slots hold matrices of rank `max_lora_rank`; smaller ranks are padded with zeros, which add nothing. B includes the
scaling. Source: Punica (Chen et al. 2023); vLLM lora/layers/base_linear.py.
"""

from __future__ import annotations

import torch
from torch import Tensor

from engine.attention.forward_context import get_forward_context
from engine.layers.linear import Linear
from engine.lora.adapter import LowRank
from kernels import ops


class LoRALayer:
    """The slots of one linear layer, in `Linear.lora`."""

    def __init__(
        self, linear: Linear, num_slots: int, rank: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        sizes = list(linear.parts.values())
        self.lora_a = _zeros(len(sizes), num_slots, rank, linear.in_features, dtype=dtype, device=device)
        self.lora_b = [_zeros(num_slots, size, rank, dtype=dtype, device=device) for size in sizes]
        self._scaling = torch.ones(num_slots, device=device)

    def add(self, y: Tensor, x: Tensor) -> None:
        """Add s B A x of each token's adapter to y [T, out] in place; x [T, in]. No-op for batches without adapters."""
        token_adapter = get_forward_context().token_adapter
        if token_adapter is not None:
            shrunk = ops.lora_shrink(x, self.lora_a, token_adapter)
            ops.lora_expand(shrunk, self.lora_b, token_adapter, y, self._scaling)

    def fill(self, slot: int, part: int, weights: LowRank) -> None:
        """Write the matrices of one projection into a slot; call `clear` first."""
        rank = weights.a.shape[0]
        self.lora_a[part, slot, :rank] = weights.a
        self.lora_b[part][slot, :, :rank] = weights.b

    def clear(self, slot: int) -> None:
        self.lora_a[:, slot] = 0
        for part in self.lora_b:
            part[slot] = 0

    @property
    def num_bytes(self) -> int:
        return self.lora_a.nbytes + sum(part.nbytes for part in self.lora_b)


def _zeros(*shape: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Allocate matrices [..., out, in]; on a CPU transposed in memory, which `lora.cpp` reads fastest."""
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    *outer, size_out, size_in = shape
    return torch.zeros(*outer, size_in, size_out, dtype=dtype).transpose(-2, -1)
