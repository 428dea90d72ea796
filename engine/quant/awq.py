"""AWQ checkpoints as AutoAWQ writes them (version "gemm").

    qweight  int32 [K, N / 8]        along the outputs, in an order of their own (`packing.AWQ_ORDER`)
    qzeros   int32 [K / G, N / 8]    the same order
    scales   fp16  [K / G, N]        weight[n, k] = (q - zero) * scale

The scales that activation-aware search folds into the layer before are in its weights already: nothing is left to do
for an engine. Sources: AWQ (Lin et al. 2023); vLLM model_executor/layers/quantization/auto_awq.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from engine.config import ConfigError
from engine.layers.linear import Linear, LinearMethod
from engine.quant.base import HEAD, UNQUANTIZED, all_or_none, group_size, require, resolved_group
from engine.quant.int4 import Int4LinearMethod, Int4Weight
from engine.quant.packing import AWQ_ORDER, PER_WORD, pack_words, unpack_words


@dataclass(frozen=True)
class AWQLayout:
    """AutoAWQ's tensors of one matrix."""

    group_size: int

    def empty(self, rows: int, columns: int) -> dict[str, Tensor]:
        groups = columns // self.group_size
        return {
            "qweight": torch.empty(columns, rows // PER_WORD, dtype=torch.int32),
            "qzeros": torch.empty(groups, rows // PER_WORD, dtype=torch.int32),
            "scales": torch.empty(groups, rows),
        }

    def pack(self, steps: Tensor, scale: Tensor, zero: Tensor) -> dict[str, Tensor]:
        """Steps uint8 [N, K] with scale and zero [N, K / G] as AutoAWQ stores them."""
        return {
            "qweight": pack_words(_to_awq_order(steps.T)),
            "qzeros": pack_words(_to_awq_order(zero.T)),
            "scales": scale.to(torch.float16).T.contiguous(),
        }

    def unpack(self, tensors: dict[str, Tensor], rows: int, columns: int) -> Int4Weight:
        steps = _from_awq_order(unpack_words(tensors["qweight"], rows)).T
        zero = _from_awq_order(unpack_words(tensors["qzeros"], rows)).T
        return Int4Weight.pack(steps, tensors["scales"].T, zero)


def _to_awq_order(columns: Tensor) -> Tensor:
    """[..., N] -> the same with each eight columns as they go into a word."""
    return columns.unflatten(-1, (-1, PER_WORD))[..., list(AWQ_ORDER)].flatten(-2)


def _from_awq_order(columns: Tensor) -> Tensor:
    back = [AWQ_ORDER.index(column) for column in range(PER_WORD)]
    return columns.unflatten(-1, (-1, PER_WORD))[..., back].flatten(-2)


@dataclass(frozen=True)
class AWQConfig:
    """`quant_method: awq`."""

    group_size: int
    not_converted: tuple[str, ...] = ()
    """Parts of names of modules that stay float."""

    @classmethod
    def from_config(cls, raw: dict[str, Any]) -> AWQConfig:
        require({"quant_method": "awq", "bits": raw.get("bits", raw.get("w_bit"))}, "bits", (4,))
        require({**raw, "version": str(raw.get("version", "gemm")).lower()}, "version", ("gemm",))
        require(raw, "zero_point", (True,), default=True)
        require(raw, "lm_head", (False,), default=False)
        group = group_size(raw, "q_group_size" if "q_group_size" in raw else "group_size")
        return cls(group, tuple(raw.get("modules_to_not_convert") or ()))

    def linear_method(self, name: str, layer: Linear) -> LinearMethod:
        skipped = (any(part in each for part in self.not_converted) for each in layer.part_names(name))
        if name == HEAD or all_or_none(name, layer, skipped):
            return UNQUANTIZED
        for part, rows in zip(layer.part_names(name), layer.parts.values(), strict=True):
            if rows % PER_WORD:
                raise ConfigError(
                    f"{part} has {rows} outputs; AWQ packs them in eights and needs a multiple of 8"
                )
        return Int4LinearMethod(AWQLayout(resolved_group(self.group_size, layer.in_features, name)))
