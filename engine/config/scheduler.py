"""Limits of a step (token budget, requests, sequence length), and their defaults."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from engine.config.combinations import check_combinations
from engine.config.settings import ConfigError, require_at_least
from prep_common.text import GIB


class BatchSizes(NamedTuple):
    """Defaults of the token budget of a step and of the requests that may run in it."""

    max_num_batched_tokens: int
    max_num_seqs: int


ON_CPU = BatchSizes(max_num_batched_tokens=4096, max_num_seqs=256)
ON_GPU = BatchSizes(max_num_batched_tokens=8192, max_num_seqs=256)
ON_LARGE_GPU = BatchSizes(max_num_batched_tokens=16384, max_num_seqs=1024)
LARGE_GPU_BYTES = 70 * GIB


def default_batch_sizes(device: str, gpu_bytes: int = 0, gpu_name: str = "") -> BatchSizes:
    """Return the defaults for a device type; gpu_bytes: its total memory. A large A100 gets those of a small card.

    Source: get_batch_defaults in vllm/engine/arg_utils.py, the values of its offline class.
    """
    if device != "cuda":
        return ON_CPU
    is_large = gpu_bytes >= LARGE_GPU_BYTES and "a100" not in gpu_name.lower()
    return ON_LARGE_GPU if is_large else ON_GPU


@dataclass(frozen=True)
class SchedulerConfig:
    """Limits of one step."""

    max_num_batched_tokens: int
    max_num_seqs: int
    max_model_len: int
    policy: Literal["fcfs", "priority"] = "fcfs"
    enable_chunked_prefill: bool = True
    long_prefill_token_threshold: int = 0
    """Maximum tokens of a prompt per step; 0: limited by the budget alone."""
    scheduler_reserve_full_isl: bool = True
    """Start a request only with blocks for all its known tokens. False: for its first chunk; later ones may preempt."""
    max_concurrent_batches: int = 1
    """Steps under way at once (pipeline parallelism); requests are divided among them."""
    max_loras: int = 0
    """Adapters that running requests may use together; 0: no limit, adapter keys only separate cached prefixes."""
    max_cpu_loras: int = 0
    """Adapters in host memory; 0: as many as max_loras."""
    lora_prefetch: int = 0
    """Adapters of waiting requests to fetch ahead (`engine/core/lora_host.py`)."""
    encoder_cache_size: int = 0
    """Image embeddings to keep, in tokens; 0: as many as the token budget."""
    num_lookahead_tokens: int = 0
    """Positions after a request's last token that also get blocks: drafters write KV there."""

    def __post_init__(self) -> None:
        budget, max_model_len = self.max_num_batched_tokens, self.max_model_len
        require_at_least(1, max_num_batched_tokens=budget, max_num_seqs=self.max_num_seqs)
        require_at_least(2, max_model_len=max_model_len)
        require_at_least(1, max_concurrent_batches=self.max_concurrent_batches)
        at_least_0 = (
            "long_prefill_token_threshold",
            "num_lookahead_tokens",
            "max_loras",
            "max_cpu_loras",
            "lora_prefetch",
        )
        for name in at_least_0:
            require_at_least(0, **{name: getattr(self, name)})
        if self.policy not in ("fcfs", "priority"):
            raise ConfigError(f"scheduling policy {self.policy!r} does not exist; choose fcfs or priority")
        check_combinations(
            whole_prompts=not self.enable_chunked_prefill,
            long_prefill_token_threshold=self.long_prefill_token_threshold,
        )
        # A prompt, with its output after a preemption, must fit into one step.
        if not self.enable_chunked_prefill and budget < max_model_len:
            raise ConfigError(
                f"enable_chunked_prefill=False computes every prompt in one step, but max_num_batched_tokens "
                f"({budget}) is less than max_model_len ({max_model_len}), so the longest prompt could never run; "
                "raise max_num_batched_tokens, lower max_model_len or allow chunked prefill"
            )
