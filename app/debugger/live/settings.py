"""The settings of an engine that the page Live starts. Free of torch: the page creates them, the child process reads
them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

ADAPTERS = ("shop-lora-recommend", "shop-lora-support", "shop-lora-ja")
SPECULATION = ("none", "ngram", "suffix", "shop-draft", "shop-eagle", "shop-medusa")
QUANTIZATION = ("none", "int8", "rtn", "fp8", "llm_int8", "mxfp4", "nvfp4")
KV_DTYPES = ("auto", "fp8", "int8_per_token_head")
SWAP_GIB = 0.25


@dataclass(frozen=True)
class LiveSettings:
    """Engine settings; by default so small that memory runs out, which is the interesting case."""

    model: str = "shop"
    num_blocks: int = 40
    """Blocks of the device, including the null block."""
    block_size: int = 16
    max_num_batched_tokens: int = 128
    max_num_seqs: int = 8
    policy: str = "fcfs"
    prefix_caching: bool = True
    chunked_prefill: bool = True
    preemption: str = "recompute"
    adapters: Sequence[str] = ()
    """Loaded before the first step; the workload's requests take them in turn, the base model among them."""
    speculation: str = "none"
    num_drafts: int = 4
    quantization: str = "none"
    kv_cache_dtype: str = "auto"
    scheduler_cls: str = ""
    """`package.module:Class` in place of the engine's scheduler."""
    check: bool = True
    """Look for broken invariants after every step: leaked blocks, wrong counts."""
    seed: int = 0

    def engine_args(self) -> dict[str, Any]:
        """Keyword arguments for `EngineArgs.create`."""
        args: dict[str, Any] = {
            "model": self.model,
            "num_gpu_blocks_override": self.num_blocks,
            "block_size": self.block_size,
            "max_num_batched_tokens": self.max_num_batched_tokens,
            "max_num_seqs": self.max_num_seqs,
            "scheduling_policy": self.policy,
            "enable_prefix_caching": self.prefix_caching,
            "enable_chunked_prefill": self.chunked_prefill,
            "kv_cache_dtype": self.kv_cache_dtype,
            "debug_checks": self.check,
            "seed": self.seed,
            "debug_port": 0,
        }
        if self.preemption == "swap":
            args |= {"preemption_mode": "swap", "swap_space": SWAP_GIB}
        if self.adapters:
            args |= {"enable_lora": True, "max_loras": len(self.adapters)}
        if self.speculation != "none":
            drafter = "method" if self.speculation in ("ngram", "suffix") else "model"
            args["speculative_config"] = {
                drafter: self.speculation,
                "num_speculative_tokens": self.num_drafts,
            }
        if self.quantization != "none":
            args["quantization"] = self.quantization
        if self.scheduler_cls:
            args["scheduler_cls"] = self.scheduler_cls
        return args


class Arrival(NamedTuple):
    """A request of a workload, and when it comes."""

    step: int
    """Before this step at the latest; earlier if the engine has nothing else to do."""
    request_id: str
    wish: dict[str, Any]
    """As the debug port's `inject` takes it: messages or prompt, max_tokens, ignore_eos, priority, lora, ..."""
