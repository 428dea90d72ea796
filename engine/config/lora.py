"""LoRA slots: how many adapters a step may use, how large, and where their weights are kept."""

from __future__ import annotations

from dataclasses import dataclass

from engine.config.errors import ConfigError, require_at_least

RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""Allowed values of `max_lora_rank`, as in vLLM."""
_DTYPES = ("auto", "float32", "bfloat16", "float16")


@dataclass(frozen=True)
class LoRAConfig:
    """Slots for adapters on the device, and a cache of their weights in host memory."""

    max_loras: int = 1
    max_lora_rank: int = 16
    max_cpu_loras: int = 1
    """At least `max_loras`. Adapters beyond it are read from their folder again."""
    lora_dtype: str = "auto"
    """Dtype of the weights on the device; auto: the model's. On a CPU bfloat16 is faster, and exact for adapters that
    were saved so with a scaling that is a power of two."""

    def __post_init__(self) -> None:
        require_at_least(1, max_loras=self.max_loras)
        if self.max_lora_rank not in RANKS:
            raise ConfigError(
                f"max_lora_rank must be one of {', '.join(map(str, RANKS))}, got {self.max_lora_rank!r}"
            )
        if self.max_cpu_loras < self.max_loras:
            raise ConfigError(
                f"max_cpu_loras={self.max_cpu_loras} is less than max_loras={self.max_loras}: adapters on the device "
                "are kept in host memory too; raise the first or lower the second"
            )
        if self.lora_dtype not in _DTYPES:
            raise ConfigError(f"lora_dtype must be one of {', '.join(_DTYPES)}, got {self.lora_dtype!r}")
