"""Bytes and arithmetic of each dtype.

Weights may be narrower than the arithmetic: int4 checkpoints (AWQ, GPTQ) are unpacked to 16 bits in the kernel, so
they save memory traffic, not arithmetic. fp8 and int8 multiply in their type where the device can.
"""

from __future__ import annotations

from dataclasses import dataclass

from engine.config import ConfigError
from engine.sim.hardware import Hardware, look_up


@dataclass(frozen=True)
class Precision:
    """Storage and arithmetic of the linear layers. Embeddings and the output head stay in 16 or 32 bits."""

    name: str
    weight_bytes: float  # bytes per parameter of a linear layer, including scales
    other_bytes: int  # bytes per parameter of embeddings, and per activation
    computes_in: tuple[str, ...]  # types of arithmetic, best first: the device's first match is used

    def compute_dtype(self, hardware: Hardware) -> str:
        for dtype in self.computes_in:
            if dtype in hardware.flops:
                return dtype
        raise ConfigError(
            f"{hardware.name} cannot compute a model in {self.name}: it has {', '.join(hardware.flops)}; "
            "choose another --dtype"
        )


_SIXTEEN = ("bfloat16", "float16", "float32")

PRECISIONS = {
    "float32": Precision("float32", 4, 4, ("float32",)),
    "bfloat16": Precision("bfloat16", 2, 2, _SIXTEEN),
    "float16": Precision("float16", 2, 2, _SIXTEEN),
    "fp8": Precision("fp8", 1, 2, ("fp8", *_SIXTEEN)),
    "int8": Precision("int8", 1, 2, ("int8", *_SIXTEEN)),
    # Groups of 128 with a 16-bit scale and a 4-bit zero point: 4 + 20 / 128 bits.
    "int4": Precision("int4", (4 + 20 / 128) / 8, 2, _SIXTEEN),
}

KV_BYTES = {
    **{"float32": 4, "bfloat16": 2, "float16": 2},
    **{"fp8": 1, "fp8_e4m3": 1, "fp8_e5m2": 1, "int8_per_token_head": 1},
}

KV_SCALE_BYTES = {"int8_per_token_head": 4}  # per key or value of a token and head (engine/quant/kv_cache.py)


SHORT_NAMES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}


def get_precision(name: str) -> Precision:
    """Return a precision by its name or short name. Raises ConfigError for an unknown one."""
    return look_up("dtype", SHORT_NAMES.get(name, name), PRECISIONS)


def kv_bytes(kv_cache_dtype: str, precision: Precision) -> int:
    """Return bytes of one number in the KV cache; auto: those of the activations."""
    if kv_cache_dtype == "auto":
        return precision.other_bytes
    return look_up("kv_cache_dtype", kv_cache_dtype, KV_BYTES)
