"""Parallel sampling (n > 1, best_of): several completions of one prompt.

Each completion is a request of the core with its own noise. They share one prefill because the scheduler lets a request
wait while another one computes its prefix. Source: vLLM v1/engine/parallel_sampling.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from engine.core.request import Request
from engine.lora.request import LoRARequest
from engine.sampling_params import SamplingParams

NUM_SEEDS = 2**63  # Modulus of seeds, so that they are non-negative and fit in int64


@dataclass(slots=True)
class SubmittedRequest:
    """A validated request, ready to be queued."""

    request_id: str
    prompt: str | None  # Text of the prompt, if the caller gave one
    prompt_token_ids: list[int]
    params: SamplingParams  # Parameters of the caller; the children's have n = 1 and all limits resolved
    arrival_time: float
    children: list[Request]  # Requests of the core, one per completion, by index
    lora_request: LoRARequest | None = None
    trace_headers: Mapping[str, str] | None = None  # The caller's span, in W3C's headers
    rest: Iterator[Request] = field(default_factory=lambda: iter(()))
    """Further children, each made when it is read: `LLMEngine.add_in_parts` moves them to `children`."""


def fan_out(request: Request, n: int) -> Iterator[Request]:
    """Yield the requests that compute n completions: the request itself, or n children of it.

    Only the first child reports the prompt's log-probabilities: they are the same for all, and a
    request that needs them cannot use the prefix cache.
    """
    if n == 1:
        yield request
        return
    params = request.sampling_params
    later = replace(params, prompt_logprobs=None, skip_reading_prefix_cache=None)
    for index in range(n):
        yield Request(
            request_id=f"{index}_{request.request_id}",
            prompt_token_ids=request.prompt_token_ids,
            sampling_params=later if index and params.prompt_logprobs is not None else params,
            arrival_time=request.arrival_time,
            priority=request.priority,
            eos_token_ids=request.eos_token_ids,
            seed=(request.seed + index) % NUM_SEEDS,
            lora_key=request.lora_key,
            cache_salt=request.cache_salt,
            mm_features=request.mm_features,
        )
