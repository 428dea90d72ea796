"""Layouts of a matrix [N, K] in the public formats, and their meaning: weight[n, k] = (q - zero) * scale.

AWQ, as AutoAWQ writes it (version "gemm"):

    qweight  int32 [K, N / 8]        along the outputs, in an order of their own (AWQ_ORDER)
    qzeros   int32 [K / G, N / 8]    the same order
    scales   fp16  [K / G, N]

The scales that activation-aware search folds into the layer before are in its weights already: nothing is left to do.

GPTQ, as AutoGPTQ and GPTQModel write it, with and without act-order:

    qweight  int32 [K / 8, N]        along the inputs (K / 4 with 8 bits)
    qzeros   int32 [K / G, N / 8]    along the outputs; format "gptq" (v1) stores zero - 1, "gptq_v2" the zero itself
    scales   fp16  [K / G, N]        of group g_idx[k]
    g_idx    int32 [K]               k // G, unless the columns were quantised by importance (desc_act)

Version 1 stores a zero of 0 as 15 (255 with 8 bits), and reading wraps it around again, as AutoGPTQ does.

compressed-tensors, as llm-compressor writes it: one file format, several schemes.

    format           weights                                                        scale            activations
    pack-quantized   weight_packed int32 [N, K / 8], each nibble holds q + 8 (with  [N, K / G], or   floats
                     8 bits [N, K / 4], each byte q + 128)
                     weight_zero_point int32 [N / 8, K / G] (asymmetric only)       [N, 1]
    int-quantized    weight int8 [N, K]                                             [N, 1] or [1]    int8, by token
    float-quantized  weight float8_e4m3fn [N, K]                                    [N, 1] or [1]    e4m3, by token or
                                                                                                     input_scale [1]

The format "fp8" stores its matrices like float-quantized. Sources: AWQ (Lin et al. 2023); GPTQ (Frantar et al. 2022);
vLLM model_executor/layers/quantization: auto_awq.py, auto_gptq.py, compressed_tensors/compressed_tensors.py, fp8.py.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from engine.config import ConfigError
from engine.quant.matrices import ByteWeight, Int4Weight
from engine.quant.rounding import Rounded

PER_WORD = 8  # Nibbles
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
"""int32   | 7 | 6 | 5 | 4 | 3 | 2 | 1 | 0 |      AWQ puts column AWQ_ORDER[i] of each eight into nibble i"""


def pack_words(values: Tensor, bits: int = 4) -> Tensor:
    """[..., n] of 0 to 2**bits - 1 -> int32 [..., ceil(n * bits / 32)], the first in the lowest bits of a word; what is
    missing in the last word is 0."""
    missing = -values.shape[-1] % (32 // bits)
    padded = torch.nn.functional.pad(values.long(), (0, missing)).unflatten(-1, (-1, 32 // bits))
    words = (padded << torch.arange(0, 32, bits, device=values.device)).sum(-1)
    return words.to(torch.int32)  # wraps: the sign bit is the highest of the last value


def unpack_words(words: Tensor, count: int, bits: int = 4) -> Tensor:
    """int32 [..., n * bits / 32] -> uint8 [..., count] of 0 to 2**bits - 1."""
    shifts = torch.arange(0, 32, bits, device=words.device)
    values = (words.long()[..., None] >> shifts) & (2**bits - 1)
    return values.to(torch.uint8).flatten(-2)[..., :count]


def _reordered(columns: Tensor, order: list[int]) -> Tensor:
    """[..., N] -> the same with each eight columns in another order."""
    return columns.unflatten(-1, (-1, PER_WORD))[..., order].flatten(-2)


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

    def pack(self, rounded: Rounded) -> dict[str, Tensor]:
        return {
            "qweight": pack_words(_reordered(rounded.steps.T, list(AWQ_ORDER))),
            "qzeros": pack_words(_reordered(rounded.zero.T, list(AWQ_ORDER))),
            "scales": rounded.scale.to(torch.float16).T.contiguous(),
        }

    def unpack(self, tensors: dict[str, Tensor], rows: int, columns: int) -> Int4Weight:
        back = [AWQ_ORDER.index(column) for column in range(PER_WORD)]
        words = (tensors["qweight"], tensors["qzeros"])
        steps, zero = (_reordered(unpack_words(part, rows), back).T for part in words)
        return Int4Weight.pack(steps, tensors["scales"].T, zero)


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

    def pack(self, rounded: Rounded) -> dict[str, Tensor]:
        zero = (rounded.zero.T.to(torch.int16) - self.zero_offset) & (2**self.bits - 1)
        return {
            "qweight": pack_words(rounded.steps, self.bits).T.contiguous(),
            "qzeros": pack_words(zero, self.bits),
            "scales": rounded.scale.to(torch.float16).T.contiguous(),
            "g_idx": rounded.g_idx.to(torch.int32),
        }

    def unpack(self, tensors: dict[str, Tensor], rows: int, columns: int) -> Int4Weight:
        steps = unpack_words(tensors["qweight"].T, columns, self.bits)
        zero = (unpack_words(tensors["qzeros"], rows, self.bits).T + self.zero_offset) & (2**self.bits - 1)
        order = column_order(tensors["g_idx"], self.group_size)
        return Int4Weight.pack(steps, tensors["scales"].T, zero, order, bits=self.bits)


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
class PackedLayout:
    """Tensors of one matrix in the format pack-quantized."""

    group_size: int
    symmetric: bool
    has_g_idx: bool = False
    bits: int = 4

    def empty(self, rows: int, columns: int) -> dict[str, Tensor]:
        groups, per_word = columns // self.group_size, 32 // self.bits
        tensors = {
            "weight_packed": torch.empty(rows, -(-columns // per_word), dtype=torch.int32),
            "weight_scale": torch.empty(rows, groups),
            "weight_shape": torch.empty(2, dtype=torch.int64),
        }
        if not self.symmetric:
            tensors["weight_zero_point"] = torch.empty(-(-rows // per_word), groups, dtype=torch.int32)
        if self.has_g_idx:
            tensors["weight_g_idx"] = torch.empty(columns, dtype=torch.int32)
        return tensors

    def pack(self, rounded: Rounded) -> dict[str, Tensor]:
        tensors = {
            "weight_packed": pack_words(rounded.steps, self.bits),
            "weight_scale": rounded.scale.contiguous(),
            "weight_shape": torch.tensor(rounded.steps.shape),
        }
        if not self.symmetric:
            tensors["weight_zero_point"] = pack_words(rounded.zero.T, self.bits).T.contiguous()
        return tensors

    def unpack(self, tensors: dict[str, Tensor], rows: int, columns: int) -> Int4Weight:
        if tensors["weight_shape"].tolist() != [rows, columns]:
            raise ConfigError(
                f"a weight_shape of the checkpoint is {tensors['weight_shape'].tolist()}, the model's matrix is "
                f"[{rows}, {columns}]; check that weights and config.json belong together"
            )
        steps = unpack_words(tensors["weight_packed"], columns, self.bits)
        if self.symmetric:
            zero = torch.full_like(tensors["weight_scale"], 2 ** (self.bits - 1), dtype=torch.uint8)
        else:
            zero = unpack_words(tensors["weight_zero_point"].T, rows, self.bits).T
        order = column_order(tensors["weight_g_idx"], self.group_size) if self.has_g_idx else None
        return Int4Weight.pack(steps, tensors["weight_scale"], zero, order, bits=self.bits)


@dataclass(frozen=True)
class ByteLayout:
    """A matrix of int8 or e4m3 with one scale for the matrix or one per output channel."""

    dtype: torch.dtype
    per_channel: bool
    static_input: bool = False

    def empty(self, rows: int, columns: int) -> dict[str, Tensor]:
        tensors = {
            "weight": torch.empty(rows, columns, dtype=self.dtype),
            "weight_scale": torch.empty((rows, 1) if self.per_channel else ()),
        }
        return tensors | ({"input_scale": torch.empty(())} if self.static_input else {})

    def unpack(self, tensors: dict[str, Tensor], rows: int, columns: int) -> ByteWeight:
        scale = tensors["weight_scale"].reshape(-1).expand(rows).float()
        return ByteWeight(tensors["weight"], scale, tensors.get("input_scale"))
