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

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from engine.config import ConfigError, RopeConfig
from engine.models.fields import Fields, is_number

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
    fields: Fields, *, head_dim: int, positions: int, max_model_len: int | None
) -> tuple[RopeConfig, int]:
    """Return the rule in config.json (either style; the newer wins) and the positions that it serves.

    positions is max_position_embeddings, max_model_len the length asked for, if any. Raises ConfigError for rules that
    are incomplete or not supported.
    """
    source = fields.source
    parameters = {**fields.object("rope_scaling"), **fields.object("rope_parameters")}
    if any(isinstance(value, dict) for value in parameters.values()):
        raise ConfigError(
            f"{source}: rope_parameters per layer type are not supported, only one rule for all layers"
        )
    theta = parameters.pop("rope_theta", None)
    theta = fields.get("rope_theta", default=1e4) if theta is None else theta
    partial = parameters.pop("partial_rotary_factor", None) or fields.get("partial_rotary_factor", 1.0)
    if partial != 1.0:
        raise ConfigError(
            f"{source}: partial_rotary_factor {partial!r} is not supported, heads rotate as a whole"
        )
    rope_type = parameters.pop("type", None)
    rope_type = parameters.pop("rope_type", None) or rope_type or "default"
    original = fields.optional_count(ORIGINAL)
    if not is_number(theta) or theta <= 1:
        raise ConfigError(f"{source}: rope_theta is {theta!r}, expected a number above 1; correct the file")
    if rope_type == "default":
        return RopeConfig(float(theta)), positions
    if not isinstance(rope_type, str) or rope_type not in _NEEDED:
        raise ConfigError(
            f"{source}: rope_type {rope_type!r} is not supported; supported: default, {', '.join(_NEEDED)}"
        )
    if rope_type == "dynamic":
        parameters[ORIGINAL] = positions
    elif rope_type in ("llama3", "yarn", "longrope"):
        parameters[ORIGINAL] = original or parameters.get(ORIGINAL) or positions
    _check_numbers(parameters, rope_type, (ORIGINAL,) if ORIGINAL in parameters else (), source)
    if rope_type in ("yarn", "longrope") and parameters.get("factor") is None:
        parameters["factor"] = positions / parameters[ORIGINAL]
    needed = _NEEDED[rope_type]
    options = [key for key in _OPTIONAL.get(rope_type, ()) if parameters.get(key) is not None]
    _check_numbers(parameters, rope_type, needed, source)
    for key in options:
        value = parameters[key]
        if not (isinstance(value, bool) if key == "truncate" else is_number(value) and value >= 0):
            expected = "true or false" if key == "truncate" else "a number of at least 0"
            raise ConfigError(f"{source}: {key} of rope is {value!r}, expected {expected}; correct the file")
    lists = _LISTS.get(rope_type, ())
    if wrong := [key for key in lists if not _is_list_of_numbers(parameters.get(key), head_dim // 2)]:
        raise ConfigError(
            f"{source}: rope_type {rope_type!r} needs {' and '.join(wrong)} with {head_dim // 2} numbers, one for "
            "each pair of dimensions of a head"
        )
    scaling = {"rope_type": rope_type, **{key: parameters[key] for key in (*needed, *options, *lists)}}
    _check_formula(scaling, head_dim, source)
    return _for_length(RopeConfig(float(theta), scaling), positions, max_model_len)


def _check_numbers(
    parameters: dict[str, Any], rope_type: str, names: Iterable[str], source: Path | str
) -> None:
    """Raise ConfigError for the parameters that are no positive numbers."""
    for name in names:
        value: Any = parameters.get(name)
        if not is_number(value) or value <= 0:
            missing = [key for key in names if parameters.get(key) is None]
            given = f", and {name} is {value!r}" if value is not None else ""
            raise ConfigError(
                f"{source}: rope_type {rope_type!r} needs the number {', '.join(missing or [name])}{given}; each is "
                "above 0. Correct the file or fetch it again"
            )


def _check_formula(scaling: dict[str, Any], head_dim: int, source: Path | str) -> None:
    """Raise ConfigError for numbers at which a rule divides by zero."""
    rope_type, original = scaling["rope_type"], scaling.get(ORIGINAL, 2)
    problem = ""
    if rope_type == "llama3" and scaling["low_freq_factor"] >= scaling["high_freq_factor"]:
        problem = "needs a low_freq_factor below high_freq_factor"
    elif rope_type == "dynamic" and head_dim == 2:
        problem = "needs heads of more than 2 dimensions"
    elif rope_type == "longrope" and original < 2:
        problem = f"needs {ORIGINAL} of at least 2"
    elif not math.isfinite(scaling.get("factor", 1.0) * original):
        problem = "needs a smaller factor"
    if problem:
        raise ConfigError(f"{source}: rope_type {rope_type!r} {problem}; correct the file or fetch it again")


def _is_list_of_numbers(value: Any, length: int) -> bool:
    is_list = isinstance(value, list) and len(value) == length
    return is_list and all(is_number(number) and number > 0 for number in value)


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
