"""The limits of one step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from engine.config.combinations import check_combinations
from engine.config.errors import ConfigError, require_at_least


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
    max_concurrent_batches: int = 1
    """Steps that are under way at once (pipeline parallelism). Requests are shared out among so many."""
    max_loras: int = 0
    """Adapters that the running requests may use together; 0: they take no place, a key only parts the caches."""
    encoder_cache_size: int = 0
    """Image embeddings to keep, in tokens; 0: as many as a step's budget."""

    num_lookahead_tokens: int = 0
    """Positions behind a request's last token for which free blocks are handed out too: drafters write there."""

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
        """Without chunked prefill a prompt, or one that resumes with its output, must fit into one step."""
        if self.max_num_batched_tokens < self.max_model_len:
            raise ConfigError(
                f"enable_chunked_prefill=False computes every prompt in one step, but max_num_batched_tokens "
                f"({self.max_num_batched_tokens}) is less than max_model_len ({self.max_model_len}), so the "
                "longest could never run; raise max_num_batched_tokens, lower max_model_len or allow chunked "
                "prefill"
            )
