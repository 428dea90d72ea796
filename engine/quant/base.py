"""Choose a LinearMethod for each layer of a model from `quantization_config` in config.json.

    {"quant_method": "awq", "gptq", "fp8" or "compressed-tensors", ...}    formats.py: a checkpoint's own matrices
    {"quant_method": "online", "scheme": "rtn", ...}                       online.py: floats, rounded while loading

A format is read here and nowhere else. Whatever cannot be right is a ConfigError before a single weight is read.
Source: vLLM model_executor/layers/quantization/base_config.py.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Protocol

from engine.config import ConfigError
from engine.config.model import CHECKPOINT_FORMATS
from engine.layers.linear import Linear, LinearMethod, UnquantizedLinearMethod
from prep_common.dotted_path import load_object
from prep_common.patterns import pattern_fault

FORMATS = {
    "awq": "engine.quant.formats:awq",
    "gptq": "engine.quant.formats:gptq",
    "fp8": "engine.quant.formats:fp8",
    "compressed-tensors": "engine.quant.formats:compressed_tensors",
    "online": "engine.quant.online:OnlineConfig.from_config",
}
"""`quant_method` -> the function that reads a `quantization_config`."""

HEAD = "lm_head"
UNQUANTIZED = UnquantizedLinearMethod()


class QuantizationConfig(Protocol):
    """A format's rules for one checkpoint."""

    def linear_method(self, name: str, layer: Linear) -> LinearMethod:
        """Return the method that stores and multiplies the layer that the model calls `name`."""
        ...


def parse_quantization(raw: dict[str, Any]) -> QuantizationConfig:
    """The rules in a `quantization_config`, or a ConfigError that lists what is supported."""
    method = raw.get("quant_method")
    if not isinstance(method, str) or method not in FORMATS:
        raise ConfigError(
            f"quantization_config: quant_method {method!r} is not supported; supported are checkpoints of "
            f"{', '.join(CHECKPOINT_FORMATS)}. Otherwise load the original and quantise it: quantization='rtn'"
        )
    rules: QuantizationConfig = load_object(FORMATS[method])(raw)
    return rules


def require(raw: dict[str, Any], key: str, choices: Collection[Any], *, default: Any = None) -> Any:
    """The value of a key, which must be one of `choices`; a ConfigError names key, value and choices."""
    value = raw.get(key, default)
    if value not in choices:
        listed = ", ".join(repr(choice) for choice in choices)
        raise ConfigError(
            f"quantization_config ({raw.get('quant_method')}): {key} = {value!r} is not supported; supported: {listed}"
        )
    return value


def names_in(raw: dict[str, Any], key: str) -> list[str]:
    """Return a list of names or patterns (`re:...`), checked; empty if the key is absent."""
    names = raw.get(key)
    if not isinstance(names or [], list) or not all(isinstance(name, str) for name in names or ()):
        raise wrong_type(raw, key, "a list of names")
    for name in names or ():
        check_pattern(name.removeprefix("re:") if name.startswith("re:") else "", key)
    return names or []


def object_in(raw: dict[str, Any], key: str) -> dict[str, Any]:
    """Return an object, checked; empty if the key is absent."""
    value = raw.get(key)
    if value is not None and not isinstance(value, dict):
        raise wrong_type(raw, key, "an object")
    return value or {}


def check_pattern(pattern: str, key: str) -> None:
    """Raise ConfigError if a pattern is not a regular expression."""
    if fault := pattern_fault(pattern):
        raise ConfigError(f"quantization_config: {key} holds {pattern!r}, which is {fault}")


def wrong_type(raw: dict[str, Any], key: str, expected: str) -> ConfigError:
    """Return the error for a value of another type than `expected`."""
    return ConfigError(
        f"quantization_config: {key} = {raw.get(key)!r}, expected {expected}; fetch the file again"
    )


def group_size(raw: dict[str, Any], key: str = "group_size") -> int:
    """Columns that share a scale: an even number, or -1 for a whole row."""
    value = raw.get(key, -1)
    if value is None:
        return -1
    if not isinstance(value, int) or isinstance(value, bool) or (value != -1 and (value < 2 or value % 2)):
        raise ConfigError(
            f"quantization_config ({raw.get('quant_method')}): {key} = {value!r} is not supported; "
            "supported: even numbers such as 32, 64 and 128, and -1 for one group over the whole row"
        )
    return value


def resolved_group(group: int, columns: int, name: str) -> int:
    """`group`, with -1 made the whole row; a ConfigError if it does not divide the layer's columns."""
    group = columns if group == -1 else group
    if columns % group:
        raise ConfigError(
            f"{name} has {columns} input columns, which groups of {group} do not divide; "
            "use a smaller group_size, or -1 for one group over the whole row"
        )
    return group
