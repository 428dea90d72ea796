"""GPTQ checkpoints as AutoGPTQ and GPTQModel write them, with and without act-order.

    qweight  int32 [K / 8, N]        along the inputs (K / 4 with 8 bits)
    qzeros   int32 [K / G, N / 8]    along the outputs; format "gptq" (v1) stores zero - 1, "gptq_v2" the zero itself
    scales   fp16  [K / G, N]        weight[n, k] = (q - zero) * scale of group g_idx[k]
    g_idx    int32 [K]               k // G, unless the columns were quantised by importance (desc_act)

Version 1 stores a zero of 0 as 15 (255 with 8 bits), and reading wraps it around again, as AutoGPTQ does.

Sources: GPTQ (Frantar et al. 2022); vLLM model_executor/layers/quantization/auto_gptq.py.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from engine.config import ConfigError
from engine.layers.linear import Linear, LinearMethod
from engine.quant.base import HEAD, UNQUANTIZED, all_or_none, group_size, require, resolved_group
from engine.quant.int4 import Int4LinearMethod, Int4Weight
from engine.quant.packing import PER_WORD, pack_words, unpack_words


@dataclass(frozen=True)
class GPTQLayout:
    """AutoGPTQ's tensors of one matrix."""

    group_size: int
    zero_offset: int
    """Subtracted from the zero points before they were stored: 1 in version 1, 0 in version 2."""
    bits: int = 4

    def empty(self, rows: int, columns: int) -> dict[str, Tensor]:
        groups, per_word = columns // self.group_size, 32 // self.bits
        return {
            "qweight": torch.empty(columns // per_word, rows, dtype=torch.int32),
            "qzeros": torch.empty(groups, rows // per_word, dtype=torch.int32),
            "scales": torch.empty(groups, rows),
            "g_idx": torch.empty(columns, dtype=torch.int32),
        }

    def pack(self, steps: Tensor, scale: Tensor, zero: Tensor, g_idx: Tensor) -> dict[str, Tensor]:
        """Steps uint8 [N, K] with scale and zero [N, K / G], column k in group g_idx[k], as AutoGPTQ stores them."""
        return {
            "qweight": pack_words(steps, self.bits).T.contiguous(),
            "qzeros": pack_words((zero.T.to(torch.int16) - self.zero_offset) & self._largest, self.bits),
            "scales": scale.to(torch.float16).T.contiguous(),
            "g_idx": g_idx.to(torch.int32),
        }

    def unpack(self, tensors: dict[str, Tensor], rows: int, columns: int) -> Int4Weight:
        steps = unpack_words(tensors["qweight"].T, columns, self.bits)
        zero = (unpack_words(tensors["qzeros"], rows, self.bits).T + self.zero_offset) & self._largest
        permutation = column_order(tensors["g_idx"], self.group_size)
        if permutation is not None:
            steps = steps[:, permutation]
        pack = Int4Weight.pack if self.bits == 4 else Int4Weight.pack_int8
        return pack(steps, tensors["scales"].T, zero, permutation)

    @property
    def _largest(self) -> int:
        return 2**self.bits - 1


def column_order(g_idx: Tensor, group_size: int) -> Tensor | None:
    """The columns sorted by group, int64 [K]; None if they lie in groups already. Groups must be full."""
    columns = len(g_idx)
    in_order = torch.arange(columns, device=g_idx.device) // group_size
    if torch.equal(g_idx.long(), in_order):
        return None
    if not torch.equal(g_idx.long().sort().values, in_order):
        raise ConfigError(
            f"g_idx of a GPTQ checkpoint does not put {group_size} of {columns} columns into each group; "
            "the file is damaged, or group_size in config.json is not the one it was made with"
        )
    return g_idx.long().argsort(stable=True)


@dataclass(frozen=True)
class GPTQConfig:
    """`quant_method: gptq`."""

    group_size: int
    zero_offset: int
    bits: int = 4
    not_quantised: tuple[str, ...] = ()
    """Regular expressions of modules that stay float."""

    @classmethod
    def from_config(cls, raw: dict[str, Any]) -> GPTQConfig:
        bits = require(raw, "bits", (4, 8))
        require(raw, "lm_head", (False,), default=False)
        version = require(raw, "checkpoint_format", ("gptq", "gptq_v2"), default="gptq")
        rules = raw.get("dynamic") or {}
        if not all(rule.startswith("-:") for rule in rules):
            raise ConfigError(
                "quantization_config (gptq): 'dynamic' rules that change bits or groups of single modules are not "
                "supported; supported: '-:pattern', modules that stay float"
            )
        return cls(group_size(raw), version == "gptq", bits, tuple(rule.removeprefix("-:") for rule in rules))

    def linear_method(self, name: str, layer: Linear) -> LinearMethod:
        names = layer.part_names(name)
        skipped = (any(re.match(pattern, part) for pattern in self.not_quantised) for part in names)
        if name == HEAD or all_or_none(name, layer, skipped):
            return UNQUANTIZED
        for part, rows in zip(names, layer.parts.values(), strict=True):
            if rows % PER_WORD or layer.in_features % PER_WORD:
                raise ConfigError(
                    f"{part} has {layer.in_features} inputs and {rows} outputs; GPTQ packs both in eights and needs "
                    "multiples of 8"
                )
        group = resolved_group(self.group_size, layer.in_features, name)
        return Int4LinearMethod(GPTQLayout(group, self.zero_offset, self.bits))
