"""Read an adapter in PEFT's format and check that it fits the model.

    adapter_config.json          r, lora_alpha, target_modules, ... (adapter_config.py)
    adapter_model.safetensors    base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight   [r, in]
                                 base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight   [out, r]

    y = W x + s B A x            s = alpha / r, or alpha / sqrt(r) with rsLoRA (Kalajdzievski 2023)

Every check of an adapter is here, before it is kept, so that no step fails on it.
Source: LoRA (Hu et al. 2021); vLLM lora/peft_helper.py and lora_model.py.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from engine.lora.adapter_config import AdapterConfig, read_adapter_config
from engine.lora.request import LoRAError

logger = logging.getLogger(__name__)

Halves = dict[str, dict[str, Tensor]]  # {matrix: {"A": ..., "B": ...}}, in fp32
_PREFIX = "base_model.model."
_HALF = re.compile(r"(?P<module>.+)\.lora_(?P<half>[AB])(?:\.default)?\.weight")


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
    config = read_adapter_config(folder, max_rank)
    halves = _read_halves(folder)
    asked = config.base_model
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
            raise LoRAError(f"{path} holds {name}, which is not a lora_A or lora_B of a linear layer")
        if tensor.ndim != 2 or not tensor.is_floating_point():
            shape = list(tensor.shape)
            raise LoRAError(f"{path}: {name} must be a floating-point matrix, it is {tensor.dtype} {shape}")
        halves.setdefault(match["module"], {})[match["half"]] = tensor.to(torch.float32)
    if not halves:
        raise LoRAError(f"{path} holds no tensors")
    return halves


def _pair(
    folder: Path, config: AdapterConfig, halves: Halves, targets: Mapping[str, Target]
) -> dict[str, LowRank]:
    incomplete = {name for name, pair in halves.items() if pair.keys() != {"A", "B"}}
    named = {name for name in targets if config.names(name)}
    absent = named - halves.keys()
    for names, problem in (
        (halves.keys() - targets.keys(), "changes {}, which this model does not have or does not adapt"),
        (incomplete, "has only one of lora_A and lora_B for {}"),
        (absent, "says in target_modules that it changes {}, and holds nothing for it"),
        (
            halves.keys() - named,
            "holds weights for {}, which its target_modules do not name, so PEFT ignores them",
        ),
    ):
        if names:
            first, *others = sorted(names)
            listed = f"{first} and {len(others)} more" if others else first
            raise LoRAError(f"adapter {folder} {problem.format(listed)}")
    parts = {}
    for name, pair in halves.items():
        a, b, target = pair["A"], pair["B"], targets[name]
        rank = config.rank_of(name)
        shapes = [list(a.shape), list(b.shape)]
        wanted = [[rank, target.in_features], [target.out_features, rank]]
        if shapes != wanted:
            raise LoRAError(f"adapter {folder}: A and B of {name} are {shapes}, this model needs {wanted}")
        b = b * config.scaling_of(name)
        if not (torch.isfinite(a).all() and torch.isfinite(b).all()):
            raise LoRAError(
                f"adapter {folder}: {name} holds NaN or infinity, or is too large after its scaling"
            )
        parts[name] = LowRank(a, b)
    return parts
