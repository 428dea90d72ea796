"""`ModelArgs`: the model to load. `ModelConfig`: its shape as its config.json describes it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

DType = Literal["auto", "float32", "bfloat16", "float16"]

CHECKPOINT_FORMATS = ("awq", "gptq", "fp8", "compressed-tensors")
"""Quantised checkpoints: `quant_method` in the `quantization_config` of a config.json."""
ONLINE_SCHEMES = ("rtn", "int8", "int8_weight_only", "fp8", "llm_int8", "mxfp4", "nvfp4")
"""Values of `EngineArgs.quantization` for a float checkpoint (`engine/quant/online.py`); the last two are emulated."""


@dataclass(frozen=True)
class ModelArgs:
    """The engine arguments that decide which model is loaded, and how."""

    model: str = "shop"
    dtype: DType = "auto"
    seed: int = 0
    load_format: Literal["auto", "safetensors", "dummy"] = "auto"
    hf_overrides: dict[str, Any] = field(default_factory=dict)
    max_model_len: int | None = None
    """None: all positions of the model; for longrope those of pre-training (`engine/models/rope_config.py`)."""
    revision: str | None = None
    download_dir: str | None = None
    device: Literal["auto", "cpu", "cuda"] = "auto"
    quantization: str | None = None
    """None: the checkpoint's own."""
    tensor_parallel_size: int = 1
    enable_expert_parallel: bool = False


@dataclass(frozen=True)
class RopeConfig:
    """Rotary position embedding: base frequency and, if any, the checkpoint's scaling rule."""

    theta: float
    scaling: dict[str, Any] | None = None
    """`rope_scaling` as in config.json, with the key `rope_type` and what follows from max_model_len
    (`engine/models/rope_config.py`); None means plain rope."""


@dataclass(frozen=True)
class ExpertNames:
    """Names of the parts of a mixture of experts in the checkpoints of a model family."""

    block: str
    gate: str
    up: str
    down: str


@dataclass(frozen=True)
class MoEConfig:
    """The layers whose MLP is a mixture of experts."""

    num_experts: int
    num_experts_per_tok: int
    intermediate_size: int
    """Intermediate size of one expert."""
    norm_topk_prob: bool
    """Normalise the weights of a token's experts to sum to one."""
    layers: tuple[bool, ...]
    """True for layers with experts; the others have a plain MLP."""
    names: ExpertNames
    expert_parallel: bool = False
    """Tensor ranks hold whole experts instead of a part of each."""


@dataclass(frozen=True)
class MedusaConfig:
    """Medusa heads as read from their config.json (`engine/models/medusa.py`)."""

    model: str
    """The name, folder or Hub id that the user gave."""
    path: Path
    dtype: str
    """The target's."""
    hidden_size: int
    vocab_size: int
    num_heads: int
    num_layers: int
    """Layers of a head's residual block."""
    bias: bool
    num_tables: int
    """Output tables in the checkpoint: one per head, 1 for all heads, or 0: the heads use the target's."""
    load_format: str = "safetensors"
    seed: int = 0
    architecture: str = "MedusaModel"


@dataclass(frozen=True)
class ModelConfig:
    """A decoder-only transformer as read from a Hugging Face config.json."""

    model: str
    """The name, folder or Hub id that the user gave."""
    path: Path
    """Folder with config.json, safetensors and tokenizer."""
    architecture: str
    dtype: str
    """float32, bfloat16 or float16: resolved, never auto."""
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rms_norm_eps: float
    rope: RopeConfig
    max_position_embeddings: int
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    """Bias on the q, k and v projections (Qwen2; Llama if configured)."""
    attention_output_bias: bool = False
    """Bias on the o projection (Llama with attention_bias=True)."""
    mlp_bias: bool = False
    qk_norm: bool = False
    """RMSNorm on every query and key head (Qwen3)."""
    sliding_window: tuple[int | None, ...] = ()
    """Positions that a token sees in each layer, its own included; None means all."""
    moe: MoEConfig | None = None
    extras: dict[str, Any] = field(default_factory=dict)
    """Values that only the module of its family reads (`engine/models/families`)."""
    eos_token_ids: tuple[int, ...] = ()
    bos_token_id: int | None = None
    quantization: dict[str, Any] | None = None
    """`quantization_config` of the checkpoint, or the scheme by which `engine/quant` rounds a float one while it
    loads. None: floating point."""
    load_format: str = "auto"
    seed: int = 0
    """Seed of the random weights when `load_format` is dummy."""
    fingerprint: str = ""
    """Identity of the weights, part of every prefix-cache key."""
