"""Generate the same tokens twice: with full recomputation for each token, and with a KV cache."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter

from engine.core.request import Request
from engine.engine_core import EngineCore
from engine.sampling_params import SamplingParams

OnToken = Callable[[int, float], None]
"""Called after each token with the number of tokens and the seconds so far."""


@dataclass(frozen=True)
class Run:
    """One generation and its cost."""

    token_ids: list[int]
    seconds: float
    computed: int
    """Positions computed by the model."""


def with_cache(core: EngineCore, prompt: list[int], count: int, on_token: OnToken) -> Run:
    """Run one request: the prompt once, then one position per token."""
    token_ids, computed, start = [], 0, perf_counter()
    core.add_request(_request("with-cache", prompt, count))
    while core.has_unfinished():
        for output in core.step():
            token_ids += output.new_token_ids
        computed += core.scheduler.stats.num_scheduled_tokens
        on_token(len(token_ids), perf_counter() - start)
    return Run(token_ids, perf_counter() - start, computed)


def without_cache(core: EngineCore, prompt: list[int], count: int, on_token: OnToken) -> Run:
    """Run a new request for every token, with all tokens so far as its prompt.

    The engine must run with `enable_prefix_caching=False`, or it would reuse the KV.
    """
    token_ids: list[int] = []
    computed, start = 0, perf_counter()
    for number in range(count):
        core.add_request(_request(f"without-cache-{number}", prompt + token_ids, 1))
        while core.has_unfinished():
            for output in core.step():
                token_ids += output.new_token_ids
            computed += core.scheduler.stats.num_scheduled_tokens
        on_token(len(token_ids), perf_counter() - start)
    return Run(token_ids, perf_counter() - start, computed)


def _request(name: str, prompt: list[int], count: int) -> Request:
    params = SamplingParams(temperature=0, max_tokens=count, ignore_eos=True)
    return Request(name, prompt, params)
