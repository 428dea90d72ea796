"""Every field of an adapter_config.json: read, harmless, or refused unless it has the value that we compute.

    READ       this file computes with it, after a check of its type
    HARMLESS   the adapter's product does not depend on it: names, training, and settings of what NEUTRAL refuses
    NEUTRAL    other values change more than y += s B A x

A field that PEFT does not know is ignored with a warning, as PEFT ignores it; one that by its name switches on a
variant (`use_...`, `..._config`) is refused when it is set: it comes from a newer PEFT.

Source: peft tuners/lora/config.py and tuners_utils.py (check_target_module_exists); vLLM lora/peft_helper.py.
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

from engine.lora.request import LoRAError
from prep_common.patterns import pattern_fault

logger = logging.getLogger(__name__)

READ = (
    "peft_type", "r", "lora_alpha", "target_modules", "exclude_modules", "layers_to_transform", "rank_pattern",
    "alpha_pattern", "use_rslora", "base_model_name_or_path", "init_lora_weights",
)  # fmt: skip
HARMLESS = frozenset(
    "task_type auto_mapping peft_version revision inference_mode lora_dropout loftq_config eva_config corda_config "
    "lora_ga_config velora_config qalora_group_size runtime_config megatron_config megatron_core".split()
)
"""VeLoRA changes the backward pass only; the settings of a way to initialise have no effect after it."""
NEUTRAL: dict[str, tuple[tuple[Any, ...], str]] = {
    "bias": (("none", None), "only adapters without biases can be served"),
    "use_dora": (
        (False, None),
        "DoRA scales every column of the merged matrix, which cannot be added beside it",
    ),
    "modules_to_save": ((None, []), "whole modules are replaced, and only low-rank matrices are added here"),
    "fan_in_fan_out": ((False, None), "its matrices are stored the other way round"),
    "lora_bias": ((False, None), "it adds a bias"),
    "use_qalora": ((False, None), "its inputs are pooled"),
    "use_bdlora": ((False, None), "its matrices are block-diagonal"),
    "layer_replication": ((None, []), "it changes the number of layers"),
    "layers_pattern": (
        (None, "", [], "layers", ["layers"]),
        "the layers of every model here are called layers",
    ),
    "target_parameters": ((None, []), "it changes parameters that are no matrix of a linear layer"),
    "trainable_token_indices": ((None, [], {}), "it changes the embedding"),
    "alora_invocation_tokens": ((None, []), "it begins in the middle of a prompt"),
    "arrow_config": ((None,), "it mixes several adapters, with weights for each token"),
    "kasa_config": ((None,), "it removes parts of the base, and scales between A and B"),
    "monteclora_config": ((None,), "its matrices are drawn at random"),
    "ensure_weight_tying": ((False, None), "adapters of the embedding and of the output head are not served"),
}
"""PEFT's options that load with these values only, and why other values do not."""

PLAIN_INITS = (True, False, None, "gaussian", "eva", "orthogonal", "mica")
"""Values of `init_lora_weights` that leave the base as it is. PiSSA, OLoRA, CorDA and LoftQ take a part out of the
base's weights, and so does LoRA-GA before training: the saved matrices fit the changed base only. PEFT changes the base
again while it loads an adapter, except for LoRA-GA; vLLM refuses the same values, except for that one."""


@dataclass(frozen=True, slots=True)
class AdapterConfig:
    """The fields that an adapter's matrices depend on."""

    rank: int
    alpha: float
    target_modules: tuple[str, ...] | str  # Ends of names, or a regular expression
    use_rslora: bool = False
    rank_pattern: Mapping[str, int] | None = None
    """Keys are regular expressions for the end of a module's name."""
    alpha_pattern: Mapping[str, float] | None = None
    exclude_modules: tuple[str, ...] | str = ()
    layers: tuple[int, ...] | None = None  # None: all
    base_model: str = ""

    def rank_of(self, name: str) -> int:
        """Return the rank of the matrix `name`."""
        return _of_pattern(self.rank_pattern, name, self.rank)

    def scaling_of(self, name: str) -> float:
        """Return s in y += s B A x."""
        rank = self.rank_of(name)
        return _of_pattern(self.alpha_pattern, name, self.alpha) / (
            math.sqrt(rank) if self.use_rslora else rank
        )

    def names(self, name: str) -> bool:
        """Whether `target_modules` names this matrix, by PEFT's rule."""
        modules, excluded = self.target_modules, self.exclude_modules
        if _is_named(name, excluded):
            return False
        if modules == "all-linear":
            return True
        layer = re.match(r".*?\.[^.]*\.(\d+)\.", name)
        is_in_layer = self.layers is None or (layer is not None and int(layer[1]) in self.layers)
        return is_in_layer and _is_named(name, modules)


def read_adapter_config(folder: Path, max_rank: int) -> AdapterConfig:
    """Read and check adapter_config.json. Raises LoRAError for an adapter that cannot be served."""
    path = folder / "adapter_config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise LoRAError(f"{folder} has no adapter_config.json; give the folder of an adapter") from None
    except (OSError, ValueError, RecursionError) as error:
        raise LoRAError(f"{path} cannot be read: {error}") from None
    if not isinstance(config, dict):
        raise LoRAError(f"{path} must hold a JSON object")
    check_fields(config, folder)
    rank: Any = config.get("r")
    alpha: Any = config.get("lora_alpha")
    for key, value, kind in (("r", rank, "integer"), ("lora_alpha", alpha, "number")):
        if not _is_number(value, kind == "integer") or value <= 0:
            raise LoRAError(f"{path}: {key} must be a positive {kind}, got {value!r}")
    if rank > max_rank:
        raise LoRAError(
            f"adapter {folder} has rank {rank}, and max_lora_rank is {max_rank}; start the engine with a larger one"
        )
    if not isinstance(rslora := config.get("use_rslora") or False, bool):
        raise LoRAError(f"{path}: use_rslora must be true or false, got {rslora!r}")
    layers = config.get("layers_to_transform")
    layers = [layers] if type(layers) is int else None if layers == [] else layers
    if layers is not None and not (isinstance(layers, list) and all(type(layer) is int for layer in layers)):
        raise LoRAError(
            f"{path}: layers_to_transform must be a layer's number or a list of them, got {layers!r}"
        )
    if not (modules := _modules(config, "target_modules", path)):
        raise LoRAError(
            f"{path}: target_modules must name the matrices that the adapter changes; it is empty or missing"
        )
    return AdapterConfig(
        rank,
        float(alpha),
        modules,
        rslora,
        _pattern(config, "rank_pattern", path, is_rank=True),
        _pattern(config, "alpha_pattern", path, is_rank=False),
        _modules(config, "exclude_modules", path),
        None if layers is None else tuple(layers),
        str(config.get("base_model_name_or_path") or ""),
    )


def check_fields(config: dict[str, Any], folder: Path) -> None:
    """Raise LoRAError for a field whose value the engine does not compute; warn of unknown fields."""
    if (kind := config.get("peft_type", "LORA")) != "LORA":
        raise LoRAError(f"adapter {folder} is of type {kind}; only LORA can be served")
    for option, (values, reason) in NEUTRAL.items():
        if option in config and config[option] not in values:
            value = config[option]
            raise LoRAError(
                f"adapter {folder} has {option}={value!r}: {reason}. Merge it into its base instead"
            )
    init = config.get("init_lora_weights", True)
    if (
        not isinstance(init, (bool, str, type(None)))
        or (init.lower() if isinstance(init, str) else init) not in PLAIN_INITS
    ):
        raise LoRAError(
            f"adapter {folder} has init_lora_weights={init!r}, which changes the weights of the base, so that it "
            "does not fit the base as it was published; save it with PEFT's path_initial_model_for_weight_conversion, "
            "or set init_lora_weights to true if the served base has the changed weights"
        )
    unknown = [name for name in config if name not in {*READ, *HARMLESS, *NEUTRAL}]
    for name in unknown:
        if config[name] not in (None, False) and (name.startswith("use_") or name.endswith("_config")):
            raise LoRAError(
                f"adapter {folder} has {name}={config[name]!r}, a variant of LoRA that this engine does not know; "
                "merge it into its base instead"
            )
    if unknown:
        logger.warning("adapter %s: unknown fields are ignored: %s", folder, ", ".join(unknown[:8]))


def _pattern(config: dict[str, Any], key: str, path: Path, *, is_rank: bool) -> dict[str, Any] | None:
    """Return a map of regular expressions to ranks or alphas, checked."""
    pattern = config.get(key)
    if pattern is None:
        return None
    expected = "positive integers" if is_rank else "numbers"
    if not isinstance(pattern, dict) or not all(
        _is_number(value, is_rank) and not (is_rank and value <= 0) for value in pattern.values()
    ):
        raise LoRAError(f"{path}: {key} must map names of modules to {expected}, got {pattern!r}")
    for name in pattern:
        _check_regex(rf"(.*\.)?({name})$", key, name, path)
    return pattern


def _modules(config: dict[str, Any], key: str, path: Path) -> tuple[str, ...] | str:
    """Return ends of names, or a regular expression; empty if the field is absent."""
    value = config.get(key) or ()
    if isinstance(value, str):
        _check_regex(value, key, value, path)
        return value
    if not isinstance(value, (list, tuple)) or not all(isinstance(name, str) for name in value):
        raise LoRAError(f"{path}: {key} must be a list of names or a regular expression, got {value!r}")
    return tuple(value)


def _check_regex(regex: str, key: str, given: str, path: Path) -> None:
    if fault := pattern_fault(regex):
        raise LoRAError(f"{path}: {key} holds {given!r}, which is {fault}")


def _is_named(name: str, modules: tuple[str, ...] | str) -> bool:
    if isinstance(modules, str):
        return re.fullmatch(modules, name) is not None
    return any(name == module or name.endswith(f".{module}") for module in modules)


def _is_number(value: Any, is_integer: bool) -> bool:
    if isinstance(value, bool) or not isinstance(value, int if is_integer else (int, float)):
        return False
    return abs(value) < 2**63 if isinstance(value, int) else math.isfinite(value)


def _of_pattern(pattern: Mapping[str, Any] | None, name: str, default: Any) -> Any:
    """Apply PEFT's rule: the first key that matches the end of the module's name."""
    matching = (value for key, value in (pattern or {}).items() if re.match(rf"(.*\.)?({key})$", name))
    return next(matching, default)
