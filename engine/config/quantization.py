"""Names of quantised checkpoint formats and of schemes that round a float checkpoint while it loads."""

from __future__ import annotations

CHECKPOINT_FORMATS = ("awq", "gptq", "fp8", "compressed-tensors")
"""`quant_method` in the `quantization_config` of a config.json."""

ONLINE_SCHEMES = ("rtn", "int8", "int8_weight_only", "fp8", "llm_int8", "mxfp4", "nvfp4")
"""Values of `EngineArgs.quantization` for a float checkpoint (`engine/quant/online.py`); the last two are emulated."""
