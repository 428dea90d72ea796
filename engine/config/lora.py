"""How many adapters, how large, and where they are kept."""

from __future__ import annotations

from dataclasses import dataclass

from engine.config.args import EngineArgs
from engine.config.errors import ConfigError, require_at_least

RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""What `max_lora_rank` may be, as in vLLM."""
_DTYPES = ("auto", "float32", "bfloat16", "float16")


@dataclass(frozen=True)
class LoRAConfig:
    """Room for adapters: slots on the device, and a cache of weights in host memory behind them."""

    max_loras: int = 1
    max_lora_rank: int = 16
    max_cpu_loras: int = 1
    """At least `max_loras`. What falls out is read from its folder again."""
    lora_dtype: str = "auto"
    """Of the weights on the device; auto: the model's. On a CPU bfloat16 is faster, and exact for adapters that were
    saved so with a scaling that is a power of two."""

    @classmethod
    def from_args(cls, args: EngineArgs) -> LoRAConfig | None:
        """None unless `enable_lora`; ConfigError for what cannot work."""
        if not args.enable_lora:
            return None
        require_at_least(1, max_loras=args.max_loras)
        if args.max_lora_rank not in RANKS:
            raise ConfigError(
                f"max_lora_rank must be one of {', '.join(map(str, RANKS))}, got {args.max_lora_rank!r}"
            )
        max_cpu_loras = args.max_loras if args.max_cpu_loras is None else args.max_cpu_loras
        if max_cpu_loras < args.max_loras:
            raise ConfigError(
                f"max_cpu_loras={max_cpu_loras} is less than max_loras={args.max_loras}: what is on the device is "
                "kept in host memory too; raise the first or lower the second"
            )
        if args.lora_dtype not in _DTYPES:
            raise ConfigError(f"lora_dtype must be one of {', '.join(_DTYPES)}, got {args.lora_dtype!r}")
        if args.tensor_parallel_size * args.pipeline_parallel_size > 1:
            raise ConfigError(
                "enable_lora works with one worker per engine: with tensor_parallel_size or pipeline_parallel_size "
                "above 1 no worker has the matrices that an adapter belongs to; set both to 1"
            )
        return cls(args.max_loras, args.max_lora_rank, max_cpu_loras, args.lora_dtype)
