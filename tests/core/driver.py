"""A scheduler and a worker that always samples the same token, to test one decision at a time."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from engine.config import CacheConfig, SchedulerConfig, TierConfig
from engine.core.request import Request
from engine.core.resources import default_resources
from engine.core.sched_output import EngineCoreOutput, ModelRunnerOutput, SchedulerOutput
from engine.core.scheduler import Scheduler
from engine.sampling_params import SamplingParams

NO_TIERS = TierConfig()
DULL_TOKEN = 1
"""Sampled unless a test says otherwise; never an eos or stop id."""


def make_request(
    request_id: str,
    prompt: int | list[int] = 8,
    *,
    max_tokens: int | None = 4,
    priority: int = 0,
    arrival: float = 0.0,
    eos: tuple[int, ...] = (),
    lora_key: str | None = None,
    cache_salt: str | None = None,
    **params: Any,
) -> Request:
    """Make a request. A prompt given as a length gets tokens that no other request id has."""
    if isinstance(prompt, int):
        prompt = [hash_free_token(request_id, i) for i in range(prompt)]
    return Request(
        request_id,
        prompt,
        SamplingParams(max_tokens=max_tokens, **params),
        arrival_time=arrival,
        priority=priority,
        eos_token_ids=frozenset(eos),
        lora_key=lora_key,
        cache_salt=cache_salt,
    )


def hash_free_token(request_id: str, position: int) -> int:
    return 1000 * (1 + sum(request_id.encode())) + position


class Driver:
    """Steps a scheduler and records its plans and outputs."""

    def __init__(
        self,
        *,
        num_blocks: int = 100,
        block_size: int = 4,
        caching: bool = True,
        budget: int = 64,
        max_num_seqs: int = 8,
        max_model_len: int = 1000,
        policy: Any = "fcfs",
        chunked: bool = True,
        long_prefill: int = 0,
        detect_collisions: bool = False,
        tiers: TierConfig = NO_TIERS,
        max_loras: int = 0,
        max_cpu_loras: int = 0,
        lora_prefetch: int = 0,
        reserve_full: bool = True,
        lookahead: int = 0,
        watermark: float = 0.0,
        resources: dict[str, Any] | None = None,
        **options: Any,
    ) -> None:
        """num_blocks: the usable ones, without the null block. resources: options of `default_resources`."""
        self.scheduler = Scheduler(
            SchedulerConfig(
                budget,
                max_num_seqs,
                max_model_len,
                policy,
                chunked,
                long_prefill,
                reserve_full,
                max_loras=max_loras,
                max_cpu_loras=max_cpu_loras,
                lora_prefetch=lora_prefetch,
                num_lookahead_tokens=lookahead,
            ),
            CacheConfig(
                num_blocks + 1,
                block_size,
                caching,
                detect_hash_collisions=detect_collisions,
                tiers=tiers,
                watermark=watermark,
            ),
            make_resources=partial(default_resources, **(resources or {})),
            **options,
        )
        self.sample: Callable[[Request], list[int]] = lambda request: [DULL_TOKEN]
        self.drafts: dict[str, list[int]] = {}
        self.outputs: dict[str, list[EngineCoreOutput]] = {}
        self.steps: list[SchedulerOutput] = []

    def add(self, request_id: str, prompt: int | list[int] = 8, **options: Any) -> Request:
        request = make_request(request_id, prompt, **options)
        self.scheduler.add(request)
        return request

    def schedule(self) -> SchedulerOutput:
        out = self.scheduler.schedule()
        self.steps.append(out)
        return out

    def update(self, out: SchedulerOutput) -> list[EngineCoreOutput]:
        result = ModelRunnerOutput(draft_token_ids=dict(self.drafts))
        for row in out.scheduled:
            request = self.scheduler.requests.get(row.request_id)
            if request is not None and row.start + row.num_tokens >= request.num_tokens:
                result.sampled_token_ids[row.request_id] = self.sample(request)
        outputs = self.scheduler.update(out, result)
        for output in outputs:
            self.outputs.setdefault(output.request_id, []).append(output)
        self.scheduler.check_integrity()
        return outputs

    def step(self) -> SchedulerOutput:
        out = self.schedule()
        self.update(out)
        return out

    def run(self, most: int = 1000) -> None:
        """Step until all requests have finished."""
        self.run_until(lambda: not self.scheduler.has_unfinished(), most)

    def run_until(self, reached: Callable[[], bool], most: int = 1000) -> SchedulerOutput | None:
        """Step until `reached()`; return the last plan."""
        for _ in range(most):
            if reached():
                return self.steps[-1] if self.steps else None
            self.step()
        raise AssertionError(f"not reached after {most} steps")

    def preempts(self) -> bool:
        """Whether the last step preempted a request."""
        return bool(self.steps and self.steps[-1].preempted_request_ids)

    def tokens(self, request_id: str) -> list[int]:
        return [token for output in self.outputs.get(request_id, []) for token in output.new_token_ids]

    def finish_reason(self, request_id: str) -> str | None:
        return self.outputs[request_id][-1].finish_reason


def rows(out: SchedulerOutput) -> dict[str, tuple[int, int]]:
    """request id -> (start, num_tokens)."""
    return {row.request_id: (row.start, row.num_tokens) for row in out.scheduled}
