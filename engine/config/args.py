"""The engine arguments that a user may set.

Names and defaults are vLLM's (vllm/engine/arg_utils.py). `engine/resolve.py` replaces a default of None when the model
and the device are known; `engine/config/scheduler.py` holds those of max_num_seqs and max_num_batched_tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from engine.config.model import ModelArgs
from engine.config.settings import check_names


@dataclass(frozen=True)
class EngineArgs(ModelArgs):
    """Every engine argument. Use `EngineArgs.create` for keyword input. Nothing below `resolve` sees them."""

    tokenizer: str | None = None
    skip_tokenizer_init: bool = False
    block_size: int = 16
    gpu_memory_utilization: float = 0.92
    """Share of the device's memory that the engine may use, weights included; on a CPU, of the free memory."""
    kv_cache_memory_bytes: int | None = None
    num_gpu_blocks_override: int | None = None
    kv_cache_dtype: str = "auto"
    """auto: the model's; fp8 (= fp8_e4m3), fp8_e5m2, int8_per_token_head, a float type (`engine/quant/kv_cache.py`)."""
    enable_prefix_caching: bool = True
    enable_chunked_prefill: bool = True
    max_num_batched_tokens: int | None = None
    max_num_seqs: int | None = None
    long_prefill_token_threshold: int = 0
    scheduler_reserve_full_isl: bool = True
    watermark: float = 0.0
    scheduling_policy: Literal["fcfs", "priority"] = "fcfs"
    scheduler_cls: str | type | None = None
    """A class, or its path `package.module:Class`, that replaces the default scheduler."""
    attention_backend: str | None = None
    """cpu, sdpa, triton, cuda or reference; None: the fastest that serves the model on this machine."""
    logits_processors: list[str | type] | None = None
    max_logprobs: int = 20
    enforce_eager: bool = False
    """Never replay recorded decode steps (`engine/worker/decode_graphs.py`)."""

    enable_lora: bool = False
    max_loras: int = 1
    """LoRA slots on the device: adapters that one step may use."""
    max_lora_rank: int = 16
    max_cpu_loras: int | None = None
    """Adapters kept in host memory; None: as many as `max_loras`."""
    lora_prefetch: int = 0
    """Adapters of waiting requests that are read from disk while earlier steps run; 0: each in the step that first
    uses it, as in vLLM, which has no such setting."""
    lora_dtype: str = "auto"

    speculative_config: dict[str, Any] | str | None = None
    """`method` (ngram, suffix, draft_model, eagle, medusa), `num_speculative_tokens`, `model`, ...: a dict or JSON."""
    structured_outputs_config: dict[str, Any] | str | None = None
    """`backend`: auto, xgrammar or dfa."""

    preemption_mode: Literal["recompute", "swap"] | None = None
    """Recompute the KV of a preempted request, or swap it to host memory (`swap_space`).
    None: swap if swap_space is given."""
    swap_space: float | None = None
    """GiB of host memory for blocks of preempted requests. With preemption_mode="swap", None means 4 GiB or a
    quarter of the free memory, whichever is less."""
    kv_offloading_size: float | None = None
    """GiB for blocks that the device's prefix cache evicts; None: they are dropped."""
    kv_offloading_backend: str = "native"
    """native: host memory. disk:FOLDER: files that a later engine finds again (`engine/transfer/disk.py`), as with
    the DiskConnector in `kv_transfer_config`."""
    kv_transfer_config: dict[str, Any] | str | None = None
    """`kv_connector`, `kv_role`, `kv_connector_extra_config`, `kv_load_failure_policy`: a dict or its JSON."""

    kv_events_config: dict[str, Any] | str | None = None
    """`publisher` (memory, file), `path`, `max_queue_size`: publish changes of the prefix cache. A dict or its
    JSON."""

    pipeline_parallel_size: int = 1
    data_parallel_size: int = 1
    distributed_executor_backend: str | type | None = None
    """uni, mp, ray, or an Executor class; None: uni for one worker, else mp."""

    limit_mm_per_prompt: dict[str, int] = field(default_factory=dict)
    disable_log_stats: bool = False
    trace: str | None = None
    """Write a step trace to this file (`prep trace`)."""
    debug_port: int | None = None
    """Serve the debug port on this port of 127.0.0.1, with a token that is printed; 0: any free port; None: no debug
    port (`engine/debug`)."""
    debug_wait: bool = False
    """Run no step until a debugger that is attached to the debug port says so."""
    debug_checks: bool = False
    """Check the cache's invariants after every step and every block hash for collisions. Slow: for tests and bug
    hunts."""

    @classmethod
    def create(cls, **kwargs: Any) -> EngineArgs:
        """Build from keywords. Raises ConfigError for an unknown name, with the closest known one."""
        check_names(kwargs, cls, "unknown engine argument", "prep serve --help lists them")
        return cls(**kwargs)
