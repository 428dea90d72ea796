"""Read a checkpoint's rope rule, and how many positions it serves.

    rope_type         positions                                            frequencies
    default           max_position_embeddings
    linear, llama3    max_position_embeddings                              slowed down
    yarn              factor * original, or max_position_embeddings        slowed down
    dynamic           max_position_embeddings                              those of default
                      up to factor times as many, if max_model_len asks    larger base, for max_model_len
    longrope          original                                             divided by short_factor
                      max_position_embeddings, if max_model_len asks       divided by long_factor

    original = original_max_position_embeddings, the context length of pre-training

transformers chooses the frequencies of dynamic and longrope anew for the longest sequence of each batch. A paged cache
cannot: its keys are rotated already. So max_model_len decides once for the engine, and a request's output depends
neither on the batch nor on what the prefix cache holds. Up to the original length, which is the default, the logits are
those of transformers. Source: vLLM model_executor/layers/rotary_embedding, transformers modeling_rope_utils.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from engine.config import ConfigError, RopeConfig

ORIGINAL = "original_max_position_embeddings"
_NEEDED: dict[str, tuple[str, ...]] = {
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", ORIGINAL),
    "yarn": ("factor", ORIGINAL),
    "dynamic": ("factor", ORIGINAL),
    "longrope": ("factor", ORIGINAL),
}
_OPTIONAL: dict[str, tuple[str, ...]] = {
    "yarn": ("attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate"),
    "longrope": ("attention_factor",),
}
_LISTS = {"longrope": ("short_factor", "long_factor")}


def parse_rope(
    raw: dict[str, Any], source: Path | str, *, head_dim: int, positions: int, max_model_len: int | None
) -> tuple[RopeConfig, int]:
    """Return the rule in `raw` (config.json, either style; the newer wins) and the positions that it serves.

    positions is max_position_embeddings, max_model_len the length asked for, if any. Raises ConfigError, which names
    `source`, for rules that are incomplete or not supported.
    """
    parameters = {**(raw.get("rope_scaling") or {}), **(raw.get("rope_parameters") or {})}
    if any(isinstance(value, dict) for value in parameters.values()):
        raise ConfigError(
            f"{source}: rope_parameters per layer type are not supported, only one rule for all layers"
        )
    theta = float(parameters.pop("rope_theta", None) or raw.get("rope_theta") or 10000.0)
    rope_type = parameters.pop("type", None)
    rope_type = parameters.pop("rope_type", None) or rope_type or "default"
    partial = parameters.pop("partial_rotary_factor", None) or raw.get("partial_rotary_factor") or 1.0
    if partial != 1.0:
        raise ConfigError(
            f"{source}: partial_rotary_factor {partial} is not supported, heads rotate as a whole"
        )
    if rope_type == "default":
        return RopeConfig(theta), positions
    if rope_type not in _NEEDED:
        raise ConfigError(
            f"{source}: rope_type {rope_type!r} is not supported; supported: default, {', '.join(_NEEDED)}"
        )
    if rope_type == "dynamic":
        parameters[ORIGINAL] = positions
    elif rope_type in ("llama3", "yarn", "longrope"):
        parameters[ORIGINAL] = raw.get(ORIGINAL) or parameters.get(ORIGINAL) or positions
    if rope_type in ("yarn", "longrope") and parameters.get("factor") is None:
        parameters["factor"] = positions / parameters[ORIGINAL]
    needed = _NEEDED[rope_type]
    if missing := [key for key in needed if not isinstance(parameters.get(key), (int, float))]:
        raise ConfigError(f"{source}: rope_type {rope_type!r} needs the number {', '.join(missing)}")
    lists = _LISTS.get(rope_type, ())
    if wrong := [key for key in lists if not _is_list_of_numbers(parameters.get(key), head_dim // 2)]:
        raise ConfigError(
            f"{source}: rope_type {rope_type!r} needs {' and '.join(wrong)} with {head_dim // 2} numbers, one for "
            "each pair of dimensions of a head"
        )
    options = [key for key in _OPTIONAL.get(rope_type, ()) if parameters.get(key) is not None]
    scaling = {"rope_type": rope_type, **{key: parameters[key] for key in (*needed, *options, *lists)}}
    return _for_length(RopeConfig(theta, scaling), positions, max_model_len)


def _is_list_of_numbers(value: Any, length: int) -> bool:
    is_list = isinstance(value, list) and len(value) == length
    return is_list and all(isinstance(each, (int, float)) for each in value)


def _for_length(rope: RopeConfig, positions: int, max_model_len: int | None) -> tuple[RopeConfig, int]:
    """Extend the positions, or the rule, to the length asked for."""
    scaling = rope.scaling or {}
    original = int(scaling.get(ORIGINAL, positions))
    longest = int(scaling["factor"] * original)
    is_extended = max_model_len is not None and max_model_len > original
    match scaling["rope_type"]:
        case "yarn":
            return rope, max(positions, longest)
        case "dynamic" if is_extended:
            served = max(original, min(max_model_len or 0, longest))
            return RopeConfig(rope.theta, {**scaling, "served_length": served}), served
        case "longrope":
            served = positions if is_extended else original
            return RopeConfig(rope.theta, {**scaling, "is_long": is_extended}), served
    return rope, positions
