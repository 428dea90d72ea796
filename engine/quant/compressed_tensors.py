"""compressed-tensors checkpoints, as llm-compressor writes them: one file format, several schemes.

    format           weights                                                        scale            activations
    pack-quantized   weight_packed int32 [N, K / 8], each nibble holds q + 8 (with  [N, K / G], or   floats
                     8 bits [N, K / 4], each byte q + 128)
                     weight_zero_point int32 [N / 8, K / G] (asymmetric only)       [N, 1]
    int-quantized    weight int8 [N, K]                                             [N, 1] or [1]    int8, by token
    float-quantized  weight float8_e4m3fn [N, K]                                    [N, 1] or [1]    e4m3, by token or
                                                                                                     input_scale [1]

A scheme belongs to a group of modules (`targets`: a class, a name or `re:` and a pattern), less those in `ignore`.
Source: vLLM model_executor/layers/quantization/compressed_tensors/compressed_tensors.py.
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
from engine.quant.fp8 import FP8CheckpointMethod
from engine.quant.gptq import column_order
from engine.quant.int4 import Int4LinearMethod, Int4Weight
from engine.quant.int8 import Int8LinearMethod, use_int8
from engine.quant.packing import pack_words, unpack_words

SCHEMES = (
    "int4 and int8 weights by group or channel (pack-quantized), int8 weights with dynamic int8 activations "
    "(int-quantized), and fp8 weights with static or dynamic fp8 activations (float-quantized)"
)


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

    def pack(self, steps: Tensor, scale: Tensor, zero: Tensor) -> dict[str, Tensor]:
        """Steps uint8 [N, K] with scale and zero [N, K / G] as compressed-tensors stores them."""
        tensors = {
            "weight_packed": pack_words(steps, self.bits),
            "weight_scale": scale.contiguous(),
            "weight_shape": torch.tensor(steps.shape),
        }
        if not self.symmetric:
            tensors["weight_zero_point"] = pack_words(zero.T, self.bits).T.contiguous()
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
        permutation = column_order(tensors["weight_g_idx"], self.group_size) if self.has_g_idx else None
        if permutation is not None:
            steps = steps[:, permutation]
        pack = Int4Weight.pack if self.bits == 4 else Int4Weight.pack_int8
        return pack(steps, tensors["weight_scale"], zero, permutation)


class Int8CheckpointMethod(Int8LinearMethod):
    """int8 matrices with their scales in the checkpoint."""

    def __init__(self, *, per_channel: bool) -> None:
        self.per_channel = per_channel

    def create_weights(self, layer: Linear) -> None:
        for part, rows in layer.parts.items():
            layer.stored[part] = {
                "weight": torch.empty(rows, layer.in_features, dtype=torch.int8),
                "weight_scale": torch.empty((rows, 1) if self.per_channel else ()),
            }

    def process_weights_after_loading(self, layer: Linear) -> None:
        parts = list(zip(layer.stored.values(), layer.parts.values(), strict=True))
        scale = torch.cat([tensors["weight_scale"].reshape(-1).expand(rows) for tensors, rows in parts])
        use_int8(layer, torch.cat([tensors["weight"] for tensors, _ in parts]), scale)


@dataclass(frozen=True)
class Scheme:
    """How the modules of one group are stored."""

    targets: tuple[str, ...]
    weights: dict[str, Any]
    input_activations: dict[str, Any] | None

    @classmethod
    def from_group(cls, name: str, group: dict[str, Any]) -> Scheme:
        """Check that this is one of the schemes that exist here."""
        scheme = cls(
            tuple(group.get("targets") or ()),
            dict(group.get("weights") or {}),
            group.get("input_activations"),
        )
        if not (scheme.is_packed or scheme.is_int8 or scheme.is_fp8) or group.get("output_activations"):
            raise ConfigError(
                f"quantization_config (compressed-tensors): the scheme of {name} is not supported (weights "
                f"{_short(scheme.weights)}; activations {_short(scheme.input_activations or {})}); supported: {SCHEMES}"
            )
        return scheme

    @property
    def is_packed(self) -> bool:
        is_int = self._is("int", 4) or self._is("int", 8)
        by_group = self.weights.get("strategy") in ("group", "channel")
        return is_int and by_group and self.input_activations is None

    @property
    def is_int8(self) -> bool:
        x = self.input_activations or {}
        dynamic = x.get("dynamic") is True and x.get("strategy") == "token" and x.get("symmetric", True)
        return (
            self._is("int", 8)
            and self._by_row
            and dynamic
            and (x.get("type"), x.get("num_bits")) == ("int", 8)
        )

    @property
    def is_fp8(self) -> bool:
        x = self.input_activations or {}
        dynamic = x.get("dynamic") is True and x.get("strategy") == "token"
        static = not x.get("dynamic") and x.get("strategy") == "tensor"
        return (
            self._is("float", 8)
            and self._by_row
            and (dynamic or static)
            and (x.get("type"), x.get("num_bits")) == ("float", 8)
        )

    @property
    def _by_row(self) -> bool:
        return bool(self.weights.get("symmetric", True)) and self.weights.get("strategy") in (
            "channel",
            "tensor",
        )

    def _is(self, kind: str, bits: int) -> bool:
        return (self.weights.get("type"), self.weights.get("num_bits")) == (kind, bits)

    def matches(self, part: str) -> bool:
        return any(_matches(target, part, is_linear=part != HEAD) for target in self.targets)

    def method(self, name: str, layer: Linear) -> LinearMethod:
        per_channel = self.weights.get("strategy") == "channel"
        if self.is_int8:
            return Int8CheckpointMethod(per_channel=per_channel)
        if self.is_fp8:
            static = not (self.input_activations or {}).get("dynamic")
            return FP8CheckpointMethod(per_channel=per_channel, static_input=static)
        size = -1 if per_channel else group_size({**self.weights, "quant_method": "compressed-tensors"})
        symmetric = bool(self.weights.get("symmetric", True))
        has_g_idx = self.weights.get("actorder") == "group"
        return Int4LinearMethod(
            PackedLayout(
                resolved_group(size, layer.in_features, name), symmetric, has_g_idx, self.weights["num_bits"]
            )
        )


def _short(arguments: dict[str, Any]) -> str:
    keys = ("type", "num_bits", "strategy", "group_size", "symmetric", "dynamic")
    return ", ".join(f"{key} {arguments[key]}" for key in keys if arguments.get(key) is not None) or "none"


def _matches(target: str, part: str, *, is_linear: bool) -> bool:
    if target.startswith("re:"):
        return re.match(target.removeprefix("re:"), part) is not None
    return target == part or (target == "Linear" and is_linear)


@dataclass(frozen=True)
class CompressedTensorsConfig:
    """`quant_method: compressed-tensors`."""

    schemes: tuple[Scheme, ...]
    ignore: tuple[str, ...]

    @classmethod
    def from_config(cls, raw: dict[str, Any]) -> CompressedTensorsConfig:
        formats = ("pack-quantized", "int-quantized", "float-quantized", "naive-quantized", "mixed-precision")
        require(raw, "format", formats)
        require(raw, "quantization_status", ("compressed",), default="compressed")
        if (raw.get("sparsity_config") or {}).get("format", "dense") != "dense":
            raise ConfigError("quantization_config (compressed-tensors): sparse weights are not supported")
        groups = raw.get("config_groups") or {}
        if not groups:
            raise ConfigError("quantization_config (compressed-tensors) has no config_groups")
        schemes = tuple(Scheme.from_group(name, group) for name, group in groups.items())
        return cls(schemes, tuple(raw.get("ignore") or ()))

    def linear_method(self, name: str, layer: Linear) -> LinearMethod:
        chosen = {part: self._scheme(part) for part in layer.part_names(name)}
        if not all_or_none(name, layer, (scheme is not None for scheme in chosen.values())):
            return UNQUANTIZED
        schemes = [scheme for scheme in chosen.values() if scheme is not None]
        if any(scheme != schemes[0] for scheme in schemes[1:]):
            raise ConfigError(
                f"quantization_config: the parts of {name} are in different config_groups; they are computed as one "
                "product and need the same scheme"
            )
        return schemes[0].method(name, layer)

    def _scheme(self, part: str) -> Scheme | None:
        if any(_matches(pattern, part, is_linear=False) for pattern in self.ignore):
            return None
        return next((scheme for scheme in self.schemes if scheme.matches(part)), None)
