"""Read an adapter in PEFT's format and check that it fits the model.

    adapter_config.json          r, lora_alpha, target_modules, ...
    adapter_model.safetensors    base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight   [r, in]
                                 base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight   [out, r]

    y = W x + s B A x            s = alpha / r, or alpha / sqrt(r) with rsLoRA (Kalajdzievski 2023)

Every check of an adapter is here, before it is kept, so that no step fails on it.
Source: LoRA (Hu et al. 2021); vLLM lora/peft_helper.py and lora_model.py.
"""

from __future__ import annotations

import json
import logging
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from engine.lora.request import LoRAError

logger = logging.getLogger(__name__)

Halves = dict[str, dict[str, Tensor]]  # {matrix: {"A": ..., "B": ...}}, in fp32
_PREFIX = "base_model.model."
_HALF = re.compile(r"(?P<module>.+)\.lora_(?P<half>[AB])(?:\.default)?\.weight")
_REFUSED = {
    "use_dora": "DoRA scales every column of the merged matrix, which cannot be added beside it",
    "modules_to_save": "whole modules are replaced, and only low-rank matrices are added here",
    "fan_in_fan_out": "its matrices are stored the other way round",
    "lora_bias": "it adds a bias",
    "use_qalora": "its inputs are pooled",
    "layer_replication": "it changes the number of layers",
    "trainable_token_indices": "it changes the embedding",
    "alora_invocation_tokens": "it begins in the middle of a prompt",
}
"""PEFT options that change more than y += s B A x, with the reason why they are not supported."""


@dataclass(frozen=True, slots=True)
class Target:
    """A matrix of the model that adapters may change."""

    in_features: int
    out_features: int


@dataclass(frozen=True, slots=True)
class LowRank:
    """The part of an adapter for one matrix, on the host."""

    a: Tensor  # fp32 [rank, in]
    b: Tensor  # fp32 [out, rank], scaling included


@dataclass(frozen=True, slots=True)
class Adapter:
    """Parts of an adapter, by the name of their matrix in the base checkpoint."""

    parts: dict[str, LowRank]
    rank: int  # Largest rank of its parts

    @property
    def num_bytes(self) -> int:
        return sum(part.a.nbytes + part.b.nbytes for part in self.parts.values())


def load_adapter(folder: Path, targets: Mapping[str, Target], max_rank: int, base_model: str = "") -> Adapter:
    """Read a PEFT folder for a model with these matrices, or raise LoRAError.

    base_model: name or path of the running model. An adapter that names another base but fits is accepted with a
    warning, because a base has many names.
    """
    config = _read_config(folder, max_rank)
    halves = _read_halves(folder)
    asked = str(config.get("base_model_name_or_path") or "")
    try:
        parts = _pair(folder, config, halves, targets)
    except LoRAError as error:
        belongs = f" (it was made for {asked!r}, this is {base_model!r})" if asked else ""
        raise LoRAError(f"{error}{belongs}") from None
    rank = max(part.a.shape[0] for part in parts.values())
    if rank > max_rank:
        raise LoRAError(f"adapter {folder} has rank {rank}, and max_lora_rank is {max_rank}; raise it")
    if asked and Path(asked).name != Path(base_model).name:
        logger.warning(
            "adapter %s was made for %s; it fits %s, but its outputs may be wrong", folder, asked, base_model
        )
    return Adapter(parts, rank)


def _read_config(folder: Path, max_rank: int) -> dict[str, Any]:
    path = folder / "adapter_config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise LoRAError(f"{folder} is no adapter: it has no adapter_config.json") from None
    except (OSError, ValueError) as error:
        raise LoRAError(f"{path} cannot be read: {error}") from None
    if not isinstance(config, dict):
        raise LoRAError(f"{path} must hold a JSON object")
    if (kind := config.get("peft_type", "LORA")) != "LORA":
        raise LoRAError(f"adapter {folder} is of type {kind}; only LORA can be served")
    for option, reason in _REFUSED.items():
        if config.get(option):
            raise LoRAError(f"adapter {folder} has {option}: {reason}. Merge it into its base instead")
    if (bias := config.get("bias", "none")) != "none":
        raise LoRAError(f"adapter {folder} has bias={bias!r}; only adapters without biases can be served")
    for key in ("r", "lora_alpha"):
        value = config.get(key)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or value <= 0:
            raise LoRAError(f"adapter {folder}: {key} in adapter_config.json must be positive, got {value!r}")
    if config["r"] > max_rank:
        raise LoRAError(
            f"adapter {folder} has rank {config['r']}, and max_lora_rank is {max_rank}; start the engine with a "
            "larger one"
        )
    return config


def _read_halves(folder: Path) -> Halves:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    path = folder / "adapter_model.safetensors"
    if not path.exists():
        hint = "; pickled weights are not read, save it as safetensors" if any(folder.glob("*.bin")) else ""
        raise LoRAError(f"{folder} has no adapter_model.safetensors{hint}")
    try:
        stored = load_file(str(path))
    except (OSError, SafetensorError) as error:
        raise LoRAError(f"{path} cannot be read: {error}") from None
    halves: Halves = {}
    for name, tensor in stored.items():
        match = _HALF.fullmatch(name.removeprefix(_PREFIX))
        if match is None:
            raise LoRAError(f"{path} holds {name}, which is no lora_A or lora_B of a linear layer")
        if tensor.ndim != 2 or not tensor.is_floating_point():
            shape = list(tensor.shape)
            raise LoRAError(f"{path}: {name} must be a floating-point matrix, it is {tensor.dtype} {shape}")
        halves.setdefault(match["module"], {})[match["half"]] = tensor.to(torch.float32)
    if not halves:
        raise LoRAError(f"{path} holds no tensors")
    return halves


def _pair(
    folder: Path, config: dict[str, Any], halves: Halves, targets: Mapping[str, Target]
) -> dict[str, LowRank]:
    incomplete = {name for name, pair in halves.items() if pair.keys() != {"A", "B"}}
    absent = _expected(config, targets) - halves.keys()
    for names, problem in (
        (halves.keys() - targets.keys(), "changes {}, which this model does not have or does not adapt"),
        (incomplete, "has only one of lora_A and lora_B for {}"),
        (absent, "says in target_modules that it changes {}, and holds nothing for it"),
    ):
        if names:
            first, *others = sorted(names)
            listed = f"{first} and {len(others)} more" if others else first
            raise LoRAError(f"adapter {folder} {problem.format(listed)}")
    parts = {}
    for name, pair in halves.items():
        a, b, target = pair["A"], pair["B"], targets[name]
        rank = _of_pattern(config.get("rank_pattern"), name, config["r"])
        shapes = [list(a.shape), list(b.shape)]
        wanted = [[rank, target.in_features], [target.out_features, rank]]
        if shapes != wanted:
            raise LoRAError(f"adapter {folder}: A and B of {name} are {shapes}, this model needs {wanted}")
        if not (torch.isfinite(a).all() and torch.isfinite(b).all()):
            raise LoRAError(f"adapter {folder}: {name} holds NaN or infinity")
        alpha = _of_pattern(config.get("alpha_pattern"), name, config["lora_alpha"])
        parts[name] = LowRank(a, b * (alpha / (math.sqrt(rank) if config.get("use_rslora") else rank)))
    return parts


def _expected(config: dict[str, Any], targets: Mapping[str, Target]) -> set[str]:
    """Return the matrices that `target_modules` names; none if it is a pattern or covers only some layers."""
    modules = config.get("target_modules")
    if not isinstance(modules, list) or config.get("layers_to_transform") is not None:
        return set()
    excluded = config.get("exclude_modules") or []
    if isinstance(excluded, str):
        return set()

    def is_named(target: str, names: list[str]) -> bool:
        return any(target == name or target.endswith(f".{name}") for name in names)

    return {target for target in targets if is_named(target, modules) and not is_named(target, excluded)}


def _of_pattern(pattern: dict[str, Any] | None, name: str, default: Any) -> Any:
    """Apply PEFT's rule: the first key that matches the end of the module's name."""
    matching = (value for key, value in (pattern or {}).items() if re.match(rf"(.*\.)?({key})$", name))
    return next(matching, default)
