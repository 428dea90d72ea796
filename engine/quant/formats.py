"""Formats of quantised checkpoints: read the rules in a `quantization_config`, reject what is not supported."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from engine.config import ConfigError
from engine.layers.linear import Linear, LinearMethod
from engine.quant.base import (
    HEAD,
    UNQUANTIZED,
    check_pattern,
    group_size,
    names_in,
    object_in,
    require,
    resolved_group,
)
from engine.quant.layouts import PER_WORD, AWQLayout, ByteLayout, GPTQLayout, PackedLayout
from engine.quant.matrices import E4M3, CheckpointMethod, Layout

SCHEMES = (
    "int4 and int8 weights by group or channel (pack-quantized), int8 weights with dynamic int8 activations "
    "(int-quantized), and fp8 weights with static or dynamic fp8 activations (float-quantized)"
)


@dataclass(frozen=True)
class CheckpointRules:
    """Rules of a checkpoint: the modules that are quantised, and how."""

    scheme_of: Callable[[str], Any]  # Name of a module -> its scheme; None if it stays float
    layout: Callable[[Any, str, Linear], Layout]  # (scheme, name, layer) -> how its matrices are stored

    def linear_method(self, name: str, layer: Linear) -> LinearMethod:
        schemes = {part: self.scheme_of(part) for part in layer.part_names(name)}
        first, *others = schemes.values()
        if all(scheme is None for scheme in schemes.values()):
            return UNQUANTIZED
        if None in schemes.values():
            listed = ", ".join(f"{part}: {'yes' if scheme else 'no'}" for part, scheme in schemes.items())
            raise ConfigError(
                f"quantization_config: {name} is computed as one product, but only some of its parts are "
                f"quantised ({listed}); quantise all of them or none"
            )
        if any(scheme != first for scheme in others):
            raise ConfigError(
                f"quantization_config: the parts of {name} are in different config_groups; they are computed as one "
                "product and need the same scheme"
            )
        return CheckpointMethod(self.layout(first, name, layer))


def awq(raw: dict[str, Any]) -> CheckpointRules:
    """`quant_method: awq`."""
    require({"quant_method": "awq", "bits": raw.get("bits", raw.get("w_bit"))}, "bits", (4,))
    require({**raw, "version": str(raw.get("version", "gemm")).lower()}, "version", ("gemm",))
    require(raw, "zero_point", (True,), default=True)
    require(raw, "lm_head", (False,), default=False)
    group = group_size(raw, "q_group_size" if "q_group_size" in raw else "group_size")
    floats = (HEAD, *names_in(raw, "modules_to_not_convert"))  # parts of names

    def layout(_: Any, name: str, layer: Linear) -> AWQLayout:
        for part, rows in zip(layer.part_names(name), layer.parts.values(), strict=True):
            if rows % PER_WORD:
                raise ConfigError(
                    f"{part} has {rows} outputs; AWQ packs them in eights and needs a multiple of 8"
                )
        return AWQLayout(resolved_group(group, layer.in_features, name))

    return CheckpointRules(lambda name: None if any(part in name for part in floats) else "awq", layout)


def gptq(raw: dict[str, Any]) -> CheckpointRules:
    """`quant_method: gptq`."""
    bits = require(raw, "bits", (4, 8))
    require(raw, "lm_head", (False,), default=False)
    version = require(raw, "checkpoint_format", ("gptq", "gptq_v2"), default="gptq")
    rules, group = object_in(raw, "dynamic"), group_size(raw)
    if not all(rule.startswith("-:") for rule in rules):
        raise ConfigError(
            "quantization_config (gptq): 'dynamic' rules that change bits or groups of single modules are not "
            "supported; supported: '-:pattern', modules that stay float"
        )
    floats = [rule.removeprefix("-:") for rule in rules]  # regular expressions
    for pattern in floats:
        check_pattern(pattern, "dynamic")

    def layout(_: Any, name: str, layer: Linear) -> GPTQLayout:
        for part, rows in zip(layer.part_names(name), layer.parts.values(), strict=True):
            if rows % PER_WORD or layer.in_features % PER_WORD:
                raise ConfigError(
                    f"{part} has {layer.in_features} inputs and {rows} outputs; GPTQ packs both in eights and needs "
                    "multiples of 8"
                )
        return GPTQLayout(resolved_group(group, layer.in_features, name), version == "gptq", bits)

    def scheme_of(name: str) -> str | None:
        return None if name == HEAD or any(re.match(pattern, name) for pattern in floats) else "gptq"

    return CheckpointRules(scheme_of, layout)


def fp8(raw: dict[str, Any]) -> CheckpointRules:
    """`quant_method: fp8`: one weight scale per matrix; `activation_scheme` static or dynamic."""
    if raw.get("weight_block_size") is not None:
        raise ConfigError(
            f"quantization_config (fp8): weight_block_size = {raw['weight_block_size']} is not supported; "
            "supported: one scale for each matrix (fp8) or each output channel (compressed-tensors)"
        )
    require(raw, "fmt", ("e4m3", "float8_e4m3fn"), default="e4m3")
    is_static = require(raw, "activation_scheme", ("static", "dynamic")) == "static"
    floats = (HEAD, *(names_in(raw, "ignored_layers") or names_in(raw, "modules_to_not_convert")))
    stored = ByteLayout(E4M3, per_channel=False, static_input=is_static)
    return CheckpointRules(lambda name: None if name in floats else "fp8", lambda *_: stored)


def compressed_tensors(raw: dict[str, Any]) -> CheckpointRules:
    """`quant_method: compressed-tensors`.

    A scheme belongs to a group of modules (`targets`: a class, a name or `re:` and a pattern), less those in `ignore`.
    """
    formats = ("pack-quantized", "int-quantized", "float-quantized", "naive-quantized", "mixed-precision")
    require(raw, "format", formats)
    require(raw, "quantization_status", ("compressed",), default="compressed")
    if object_in(raw, "sparsity_config").get("format", "dense") != "dense":
        raise ConfigError("quantization_config (compressed-tensors): sparse weights are not supported")
    if raw.get("transform_config"):
        raise ConfigError(
            "quantization_config (compressed-tensors): transform_config is not supported: inputs are not rotated"
        )
    groups, ignored = object_in(raw, "config_groups"), names_in(raw, "ignore")
    if not groups:
        raise ConfigError("quantization_config (compressed-tensors) has no config_groups")
    for name in groups:
        _check_group(name, object_in(groups, name))

    def scheme_of(part: str) -> dict[str, Any] | None:
        if any(_matches(pattern, part, is_linear=False) for pattern in ignored):
            return None
        for group in groups.values():
            if any(_matches(target, part, is_linear=part != HEAD) for target in names_in(group, "targets")):
                return group
        return None

    return CheckpointRules(scheme_of, _compressed_layout)


def _matches(target: str, part: str, *, is_linear: bool) -> bool:
    if target.startswith("re:"):
        return re.match(target.removeprefix("re:"), part) is not None
    return target == part or (target == "Linear" and is_linear)


def _check_group(name: str, group: dict[str, Any]) -> None:
    """Check that the scheme of a group is one of SCHEMES."""
    names_in(group, "targets")
    weights, x = object_in(group, "weights"), group.get("input_activations")
    x = None if x is None else object_in(group, "input_activations")
    kind, strategy, symmetric = _type(weights), weights.get("strategy"), weights.get("symmetric", True)
    if x is None:
        is_known = kind in (("int", 4), ("int", 8)) and strategy in ("group", "channel")
    else:
        is_dynamic = x.get("dynamic") is True and x.get("strategy") == "token"
        is_static = not x.get("dynamic") and x.get("strategy") == "tensor"
        is_int8 = kind == ("int", 8) and is_dynamic and x.get("symmetric", True)
        is_fp8 = kind == ("float", 8) and (is_dynamic or is_static)
        by_row = symmetric and strategy in ("channel", "tensor")
        is_known = by_row and (is_int8 or is_fp8) and _type(x) == kind
    if strategy == "group":
        group_size({**weights, "quant_method": "compressed-tensors"})
    if not is_known or group.get("output_activations"):
        raise ConfigError(
            f"quantization_config (compressed-tensors): the scheme of {name} is not supported (weights "
            f"{_short(weights)}; activations {_short(x or {})}); supported: {SCHEMES}"
        )


def _type(arguments: dict[str, Any]) -> tuple[Any, Any]:
    return arguments.get("type"), arguments.get("num_bits")


def _short(arguments: dict[str, Any]) -> str:
    keys = ("type", "num_bits", "strategy", "group_size", "symmetric", "dynamic")
    return ", ".join(f"{key} {arguments[key]}" for key in keys if arguments.get(key) is not None) or "none"


def _compressed_layout(group: dict[str, Any], name: str, layer: Linear) -> Layout:
    weights, x = group["weights"], group.get("input_activations")
    per_channel = weights.get("strategy") == "channel"
    if x is not None:
        is_int8 = weights["type"] == "int"
        return ByteLayout(torch.int8 if is_int8 else E4M3, per_channel, not is_int8 and not x.get("dynamic"))
    size = -1 if per_channel else group_size({**weights, "quant_method": "compressed-tensors"})
    has_g_idx = weights.get("actorder") == "group"
    size = resolved_group(size, layer.in_features, name)
    return PackedLayout(size, bool(weights.get("symmetric", True)), has_g_idx, weights["num_bits"])
