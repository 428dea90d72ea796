"""Limits of a step: token budget, requests, sequence length."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from engine.config.combinations import check_combinations
from engine.config.errors import ConfigError, require_at_least


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
    max_concurrent_batches: int = 1
    """Steps under way at once (pipeline parallelism); requests are divided among them."""
    max_loras: int = 0
    """Adapters that running requests may use together; 0: no limit, adapter keys only separate cached prefixes."""
    encoder_cache_size: int = 0
    """Image embeddings to keep, in tokens; 0: as many as the token budget."""

    num_lookahead_tokens: int = 0
    """Positions after a request's last token that also get blocks: drafters write KV there."""

    def __post_init__(self) -> None:
        require_at_least(1, max_num_batched_tokens=self.max_num_batched_tokens)
        require_at_least(1, max_num_seqs=self.max_num_seqs)
        require_at_least(2, max_model_len=self.max_model_len)
        require_at_least(1, max_concurrent_batches=self.max_concurrent_batches)
        require_at_least(0, long_prefill_token_threshold=self.long_prefill_token_threshold)
        require_at_least(0, num_lookahead_tokens=self.num_lookahead_tokens)
        require_at_least(0, max_loras=self.max_loras)
        if self.policy not in ("fcfs", "priority"):
            raise ConfigError(f"scheduling policy {self.policy!r} does not exist; choose fcfs or priority")
        check_combinations(
            whole_prompts=not self.enable_chunked_prefill,
            long_prefill_token_threshold=self.long_prefill_token_threshold,
        )
        if not self.enable_chunked_prefill:
            self._check_whole_prompts()

    def _check_whole_prompts(self) -> None:
        """Without chunked prefill, a prompt (with its output, after preemption) must fit into one step."""
        if self.max_num_batched_tokens < self.max_model_len:
            raise ConfigError(
                f"enable_chunked_prefill=False computes every prompt in one step, but max_num_batched_tokens "
                f"({self.max_num_batched_tokens}) is less than max_model_len ({self.max_model_len}), so the "
                "longest prompt could never run; raise max_num_batched_tokens, lower max_model_len or allow chunked "
                "prefill"
            )
