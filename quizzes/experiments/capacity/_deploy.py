"""Argument types of the sizing experiments."""

from __future__ import annotations

from typing import Literal

Gpu = Literal["a10g", "l4", "a100-40", "a100-80", "h100", "h200", "b200"]
Dtype = Literal["float32", "bfloat16", "float16", "fp8", "int8", "int4"]
KvDtype = Literal["auto", "bfloat16", "fp8", "int8_per_token_head"]
Parallel = Literal[1, 2, 4, 8, 16]
