"""n > 1 and best_of: one prompt, several completions.

Each completion is a request of its own in the core, with its own noise. The scheduler's rule that a
request waits a step while another one computes the prefix it needs makes them share one prefill.
Source: vLLM v1/engine/parallel_sampling.py.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from engine.core.request import Request
from engine.lora.request import LoRARequest
from engine.sampling_params import SamplingParams

NUM_SEEDS = 2**63
"""Seeds are counted modulo this, so that they are non-negative and fit in int64."""


@dataclass(slots=True)
class SubmittedRequest:
    """What a caller asked for, checked and ready to be queued."""

    request_id: str
    prompt: str | None
    """The text, if the caller gave one."""
    prompt_token_ids: list[int]
    params: SamplingParams
    """As the caller gave them; the children's have n = 1 and every limit filled in."""
    arrival_time: float
    children: list[Request]
    """One request for the core per completion, by index."""
    lora_request: LoRARequest | None = None


def fan_out(request: Request, n: int) -> list[Request]:
    """The requests that compute n completions: the request itself, or n children of it.

    Only the first child reports the prompt's log-probabilities: they are the same for all, and a
    request that needs them cannot use the prefix cache.
    """
    if n == 1:
        return [request]
    without_prompt_logprobs = replace(
        request.sampling_params, prompt_logprobs=None, skip_reading_prefix_cache=None
    )
    asks = request.sampling_params.prompt_logprobs is not None
    return [
        Request(
            request_id=f"{index}_{request.request_id}",
            prompt_token_ids=request.prompt_token_ids,
            sampling_params=without_prompt_logprobs if asks and index else request.sampling_params,
            arrival_time=request.arrival_time,
            priority=request.priority,
            eos_token_ids=request.eos_token_ids,
            seed=(request.seed + index) % NUM_SEEDS,
            lora_key=request.lora_key,
            cache_salt=request.cache_salt,
            mm_features=request.mm_features,
        )
        for index in range(n)
    ]
