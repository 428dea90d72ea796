"""Reject requests that can never finish, before they are queued: the step loop has no case for them."""

from __future__ import annotations

from engine.config import CacheConfig, SchedulerConfig
from engine.core.errors import RequestRejected
from engine.core.kv_manager import max_blocks_held
from engine.core.request import Request
from prep_common.text import counted


def max_num_tokens(request: Request, max_model_len: int) -> int:
    """Return the length at which a request ends at the latest, prompt and output together."""
    max_tokens = request.sampling_params.max_tokens
    if max_tokens is None:
        return max_model_len
    return min(request.num_prompt_tokens + max_tokens, max_model_len)


def check_can_run(request: Request, config: SchedulerConfig, cache: CacheConfig) -> None:
    """Raise RequestRejected unless the request would finish if it ran alone on an empty cache."""
    request_id, num_prompt = request.request_id, request.num_prompt_tokens
    max_model_len = config.max_model_len
    if num_prompt == 0:
        raise RequestRejected(request_id, "empty_prompt", "the prompt has no tokens; send at least one")
    if num_prompt >= max_model_len:
        raise RequestRejected(
            request_id,
            "prompt_too_long",
            f"the prompt has {counted(num_prompt, 'token')} and max_model_len is {max_model_len}, which leaves no room "
            "for output; shorten the prompt or raise max_model_len",
        )
    # The last token is sampled and never computed, so it needs no slot.
    num_slots = max_num_tokens(request, max_model_len) - 1
    usable = cache.num_blocks - 1  # without the null block
    need = max_blocks_held(num_slots, config.max_num_batched_tokens, cache.block_size, cache.sliding_window)
    if need > usable:
        raise RequestRejected(
            request_id,
            "exceeds_cache",
            f"prompt and max_tokens may grow to {num_slots} cached tokens, which need "
            f"{counted(need, 'block')}, and the "
            f"whole KV cache has {usable}; lower max_tokens or give the cache more memory",
        )
