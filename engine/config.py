"""Configuration: what a user may ask for (`EngineArgs`) and what the engine runs with.

Names and defaults are vLLM's (vllm/engine/arg_utils.py, vllm/config/); a default of None is resolved
when the model and the machine are known, in `EngineArgs.resolve_*`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal

DType = Literal["auto", "float32", "bfloat16", "float16"]


class ConfigError(ValueError):
    """A setting that cannot work: says what, why and what to do instead."""


@dataclass(frozen=True)
class RopeConfig:
    """Rotary position embedding: base frequency and, if any, the checkpoint's scaling rule."""

    theta: float
    scaling: dict[str, Any] | None = None
    """`rope_scaling` as in config.json, with the key `rope_type`; None means plain rope."""


@dataclass(frozen=True)
class ModelConfig:
    """A decoder-only transformer as read from a Hugging Face config.json."""

    model: str
    """What the user asked for."""
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
    """Per layer: how many positions back a token sees, itself included; None means all."""
    eos_token_ids: tuple[int, ...] = ()
    bos_token_id: int | None = None
    load_format: str = "auto"
    seed: int = 0
    """Of the random weights when `load_format` is dummy."""
    fingerprint: str = ""
    """Identity of the weights: part of every prefix-cache key."""


@dataclass(frozen=True)
class CacheConfig:
    """The paged KV cache. Sizes in tokens and blocks."""

    num_blocks: int
    """Including block 0, the null block that is never handed out."""
    block_size: int = 16
    enable_prefix_caching: bool = True
    kv_cache_dtype: str = "auto"
    """auto: the model's dtype."""
    detect_hash_collisions: bool = False
    """Remember what every block hash stands for, and fail when two prefixes share one. For debugging."""

    def __post_init__(self) -> None:
        _require_at_least(1, block_size=self.block_size)
        _require_at_least(2, num_blocks=self.num_blocks)


@dataclass(frozen=True)
class SchedulerConfig:
    """What one step may hold."""

    max_num_batched_tokens: int
    max_num_seqs: int
    max_model_len: int
    policy: Literal["fcfs", "priority"] = "fcfs"
    enable_chunked_prefill: bool = True
    long_prefill_token_threshold: int = 0
    """Most tokens of one prompt in one step; 0 means no limit but the budget."""

    def __post_init__(self) -> None:
        _require_at_least(1, max_num_batched_tokens=self.max_num_batched_tokens)
        _require_at_least(1, max_num_seqs=self.max_num_seqs)
        _require_at_least(2, max_model_len=self.max_model_len)
        _require_at_least(0, long_prefill_token_threshold=self.long_prefill_token_threshold)
        if self.policy not in ("fcfs", "priority"):
            raise ConfigError(f"scheduling policy {self.policy!r} does not exist; choose fcfs or priority")
        if not self.enable_chunked_prefill:
            self._check_whole_prompts()

    def _check_whole_prompts(self) -> None:
        """Without chunked prefill a prompt, or one that resumes with its output, must fit into one step."""
        if self.max_num_batched_tokens < self.max_model_len:
            raise ConfigError(
                f"enable_chunked_prefill=False computes every prompt in one step, but max_num_batched_tokens "
                f"({self.max_num_batched_tokens}) is less than max_model_len ({self.max_model_len}), so the "
                "longest could never run; raise max_num_batched_tokens, lower max_model_len or allow chunked "
                "prefill"
            )
        if self.long_prefill_token_threshold:
            raise ConfigError(
                "long_prefill_token_threshold cuts prompts into chunks and enable_chunked_prefill=False "
                "forbids it; set only one of them"
            )


def _require_at_least(least: int, **settings: int) -> None:
    for name, value in settings.items():
        if value < least:
            raise ConfigError(f"{name} must be at least {least}, got {value}")


@dataclass(frozen=True)
class EngineConfig:
    """Everything resolved: the one object the engine's parts are built from."""

    model: ModelConfig
    cache: CacheConfig
    scheduler: SchedulerConfig
    args: EngineArgs = field(repr=False)


@dataclass(frozen=True)
class EngineArgs:
    """What a user may set, with vLLM's names and defaults. Use `EngineArgs.create` for keyword input."""

    model: str = "shop"
    tokenizer: str | None = None
    skip_tokenizer_init: bool = False
    dtype: DType = "auto"
    seed: int = 0
    max_model_len: int | None = None
    load_format: Literal["auto", "safetensors", "dummy"] = "auto"
    hf_overrides: dict[str, Any] = field(default_factory=dict)
    revision: str | None = None
    download_dir: str | None = None
    device: Literal["auto", "cpu", "cuda"] = "auto"
    block_size: int = 16
    gpu_memory_utilization: float = 0.92
    """Share of the device's memory that the engine may use, weights included. On a CPU, of what is free."""
    kv_cache_memory_bytes: int | None = None
    num_gpu_blocks_override: int | None = None
    kv_cache_dtype: str = "auto"
    enable_prefix_caching: bool = True
    enable_chunked_prefill: bool = True
    max_num_batched_tokens: int | None = None
    max_num_seqs: int | None = None
    long_prefill_token_threshold: int = 0
    scheduling_policy: Literal["fcfs", "priority"] = "fcfs"
    scheduler_cls: str | type | None = None
    """A class or a dotted path `package.module:Class` that takes the default scheduler's place."""
    attention_backend: str | None = None
    """cpu, sdpa, triton, cuda or reference; None picks the fastest that works here."""
    logits_processors: list[str | type] | None = None
    max_logprobs: int = 20
    enforce_eager: bool = False
    """Never replay recorded decode steps (`engine/worker/decode_graphs.py`)."""
    disable_log_stats: bool = False
    trace: str | None = None
    """Write a step trace to this file (`prep trace`)."""
    debug_checks: bool = False
    """Check the cache's invariants after every step and every block hash for collisions: slow, for tests
    and hunting bugs."""

    @classmethod
    def create(cls, **kwargs: Any) -> EngineArgs:
        """Build from keywords, refusing names that do not exist with the closest one that does."""
        known = [f.name for f in fields(cls)]
        for name in kwargs:
            if name not in known:
                close = get_close_matches(name, known, n=1)
                hint = f"; did you mean {close[0]!r}?" if close else ""
                raise ConfigError(f"unknown engine argument {name!r}{hint}")
        return cls(**kwargs)
