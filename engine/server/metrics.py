"""Prometheus metrics under vLLM's names, with vLLM's buckets, made from the engine's own events.

Counters and histograms of requests and tokens come from the outputs, levels from the figures of the last step.
Source: vLLM v1/metrics/loggers.py (PrometheusStatLogger), v1/metrics/buckets.py; the definitions of the intervals are
those of `engine.outputs.RequestMetrics`.
"""

from __future__ import annotations

import time
from collections import Counter as Count
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector

from engine.config import EngineConfig
from engine.core.sched_output import EngineCoreOutput
from engine.core.stats import StepStats
from engine.frontend.parallel_sampling import SubmittedRequest
from engine.outputs import RequestMetrics, RequestOutput
from engine.server.errors import is_of_the_request

LATENCY = (
    0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680,
)  # fmt: skip
FIRST_TOKEN = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560,
)  # fmt: skip
INTER_TOKEN = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80,
)  # fmt: skip
STEP_TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
COMPLETIONS = (1, 2, 5, 10, 20)
PREEMPTIONS = (1, 2, 3, 4, 5, 10, 20)
SOURCES = ("local_compute", "local_cache_hit", "external_kv_transfer")
CACHES = ("device", "host", "p2p", "disk", "external_unspecified")

GAUGES = {
    "num_requests_running": "Number of requests in model execution batches.",
    "num_requests_waiting": "Number of requests waiting to be processed.",
    "kv_cache_usage_perc": "KV-cache usage. 1 means 100 percent usage.",
}
COUNTERS = {
    "prefix_cache_queries": "Prefix cache queries, in terms of number of queried tokens.",
    "prefix_cache_hits": "Prefix cache hits, in terms of number of cached tokens.",
    "external_prefix_cache_queries": "External prefix cache queries, in terms of number of queried tokens.",
    "external_prefix_cache_hits": "External prefix cache hits, in terms of number of cached tokens.",
    "mm_cache_queries": "Multi-modal cache queries, in terms of number of queried items.",
    "mm_cache_hits": "Multi-modal cache hits, in terms of number of cached items.",
    "num_preemptions": "Cumulative number of preemption from the engine.",
    "prompt_tokens": "Number of prefill tokens processed.",
    "prompt_tokens_cached": "Number of cached prompt tokens (local + external).",
    "generation_tokens": "Number of generation tokens processed.",
    "spec_decode_num_drafts": "Number of spec decoding drafts.",
    "spec_decode_num_draft_tokens": "Number of draft tokens.",
    "spec_decode_num_accepted_tokens": "Number of accepted tokens.",
}
HISTOGRAMS = {
    "iteration_tokens_total": ("Histogram of number of tokens per engine_step.", STEP_TOKENS),
    "time_to_first_token_seconds": ("Histogram of time to first token in seconds.", FIRST_TOKEN),
    "inter_token_latency_seconds": ("Histogram of inter-token latency in seconds.", INTER_TOKEN),
    "request_time_per_output_token_seconds": (
        "Histogram of time_per_output_token_seconds per request.", INTER_TOKEN,
    ),
    "e2e_request_latency_seconds": ("Histogram of e2e request latency in seconds.", LATENCY),
    "request_queue_time_seconds": ("Histogram of time spent in WAITING phase for request.", LATENCY),
    "request_inference_time_seconds": ("Histogram of time spent in RUNNING phase for request.", LATENCY),
    "request_prefill_time_seconds": ("Histogram of time spent in PREFILL phase for request.", LATENCY),
    "request_decode_time_seconds": ("Histogram of time spent in DECODE phase for request.", LATENCY),
    "request_params_n": ("Histogram of the n request parameter.", COMPLETIONS),
    "request_num_preemptions": ("Histogram of the number of times a request was preempted.", PREEMPTIONS),
}  # fmt: skip
OF_TOKENS = {
    "request_prompt_tokens": "Number of prefill tokens processed.",
    "request_generation_tokens": "Number of generation tokens processed.",
    "request_max_num_generation_tokens": "Histogram of maximum number of requested generation tokens.",
    "request_params_max_tokens": "Histogram of the max_tokens request parameter.",
    "request_prefill_kv_computed_tokens": "Histogram of new KV tokens computed during prefill.",
}
"""Histograms with buckets 1, 2, 5, 10, 20, 50, ... up to max_model_len."""
OF_STATS = {
    "prefix_cache_queries": "prefix_cache_queries",
    "prefix_cache_hits": "prefix_cache_hits",
    "external_prefix_cache_queries": "external_prefix_cache_queries",
    "external_prefix_cache_hits": "external_prefix_cache_hits",
    "mm_cache_queries": "encoder_cache_queries",
    "mm_cache_hits": "encoder_cache_hits",
    "num_preemptions": "num_preempted",
    "spec_decode_num_drafts": "num_drafts",
    "spec_decode_num_draft_tokens": "num_draft_tokens",
    "spec_decode_num_accepted_tokens": "num_accepted_tokens",
}
"""Counter -> flow of StepStats that it adds up."""


OF_CACHE = {
    "block_size": "block_size",
    "num_blocks": "num_gpu_blocks",
    "enable_prefix_caching": "enable_prefix_caching",
    "kv_cache_dtype": "cache_dtype",
    "sliding_window": "sliding_window",
}
"""Field of CacheConfig -> label of cache_config_info."""


@dataclass
class _Tracked:
    """An unfinished request."""

    submitted: SubmittedRequest
    num_known: int = 0
    """Its children that `_owner` has."""
    last_token: dict[str, float] = field(default_factory=dict)
    """Completion -> when its last token came."""
    num_generated: Count[str] = field(default_factory=Count)
    ended: set[int] = field(default_factory=set)


START = "prep:startup_seconds"
"""Timeline of a cold start, read by `prep fleet`. vLLM has no such metric."""


class PrometheusLogger:
    """A StatLogger that keeps vLLM's metrics. The engine thread writes, any thread scrapes `registry`."""

    def __init__(self, model_name: str, config: EngineConfig) -> None:
        self.registry = CollectorRegistry()
        self._requests: dict[str, _Tracked] = {}
        self._owner: dict[str, _Tracked] = {}
        """Request by the engine's id of a completion."""
        names, self._labels = ["model_name", "engine"], {"model_name": model_name, "engine": "0"}
        buckets = token_buckets(config.scheduler.max_model_len)
        histograms = HISTOGRAMS | {name: (help, buckets) for name, help in OF_TOKENS.items()}
        common: dict[str, Any] = {"labelnames": names, "registry": self.registry}
        self._gauges = {
            name: Gauge(f"vllm:{name}", help, **common).labels(**self._labels)
            for name, help in GAUGES.items()
        }
        self._counters = {
            name: Counter(f"vllm:{name}", help, **common).labels(**self._labels)
            for name, help in COUNTERS.items()
        }
        self._histograms = {
            name: Histogram(f"vllm:{name}", help, buckets=bounds, **common).labels(**self._labels)
            for name, (help, bounds) in histograms.items()
        }
        ProcessCollector(registry=self.registry)
        self._start = Gauge(START, "Seconds of the start by stage.", ["stage"], registry=self.registry)
        self._waiting = Gauge(
            "vllm:num_requests_waiting_by_reason", "Waiting requests: deferred ones wait for KV or a grammar.",
            [*names, "reason"], registry=self.registry,
        )  # fmt: skip
        for reason in ("capacity", "deferred"):
            self._waiting.labels(**self._labels, reason=reason)
        self._by_cache = Counter(
            "vllm:prompt_tokens_cached_by_source", "Cached prompt tokens by the place where they were.",
            [*names, "source"], registry=self.registry,
        )  # fmt: skip
        for source in CACHES:
            self._by_cache.labels(**self._labels, source=source)
        self.responses = Counter(
            "http_requests", "Responses by path and class of their status.",
            ["method", "status", "handler"], registry=self.registry,
        )  # fmt: skip
        settings = {name: str(getattr(config.cache, name)) for name in OF_CACHE}
        Gauge(
            "vllm:cache_config_info",
            "Settings of the KV cache.",
            ["engine", *OF_CACHE.values()],
            registry=self.registry,
        ).labels("0", *settings.values()).set(1)
        self._success = Counter(
            "vllm:request_success", "Count of successfully processed requests.",
            [*names, "finished_reason"], registry=self.registry,
        )  # fmt: skip
        for reason in ("stop", "length", "abort", "error"):
            self._success.labels(**self._labels, finished_reason=reason)
        self._by_source = Counter(
            "vllm:prompt_tokens_by_source", "Number of prompt tokens by source.",
            [*names, "source"], registry=self.registry,
        )  # fmt: skip
        for source in SOURCES:
            self._by_source.labels(**self._labels, source=source)
        self._per_position = Counter(
            "vllm:spec_decode_num_accepted_tokens_per_pos", "Accepted tokens per draft position.",
            [*names, "position"], registry=self.registry,
        )  # fmt: skip
        self._rejections = Counter(
            "vllm:admission_rejections", "Number of admission attempts rejected by a queue limit, by reason.",
            ["model_name", "reason"], registry=self.registry,
        )  # fmt: skip
        self._rejections.labels(model_name=model_name, reason="max_num_queued_reqs")
        self._adapters = Gauge(
            "vllm:lora_requests_info", "Running stats on lora requests.",
            ["max_lora", "waiting_lora_adapters", "running_lora_adapters"], registry=self.registry,
        )  # fmt: skip
        self._sleep = Gauge(
            "vllm:engine_sleep_state", "awake = 1, or the level of sleep.", [*names, "sleep_state"],
            registry=self.registry,
        )  # fmt: skip
        self.tell_sleep(0)
        self._max_loras = 0 if config.lora is None else config.lora.max_loras

    def tell_start(self, stages: dict[str, float]) -> None:
        """Show the seconds of the start by stage."""
        for name, seconds in stages.items():
            self._start.labels(name).set(seconds)

    def add(self, submitted: SubmittedRequest) -> None:
        """A request was queued, or more of its children were."""
        tracked = self._requests.setdefault(submitted.request_id, _Tracked(submitted))
        for child in submitted.children[tracked.num_known :]:
            self._owner[child.request_id] = tracked
        tracked.num_known = len(submitted.children)

    def tell_sleep(self, level: int) -> None:
        """Set the state of the engine. level: 0 is awake."""
        for number, state in enumerate(("awake", "weights_offloaded", "discard_all")):
            self._sleep.labels(**self._labels, sleep_state=state).set(number == level)

    def reject(self, model_name: str) -> None:
        """A request met a full queue."""
        self._rejections.labels(model_name=model_name, reason="max_num_queued_reqs").inc()

    def step(
        self,
        stats: StepStats | None,
        when: float,
        core_outputs: Sequence[EngineCoreOutput],
        outputs: Sequence[RequestOutput],
    ) -> None:
        """A step has ended, or an abort."""
        if stats is not None:
            self._count_step(stats)
        for core_output in core_outputs:
            self._count_tokens(core_output, when)
        for output in outputs:
            self._count_ends(output)
        if stats is not None and self._max_loras:
            self._tell_adapters()

    def _count_step(self, stats: StepStats) -> None:
        deferred = min(stats.num_waiting, stats.num_kv_waits + stats.num_grammar_waits)
        self._count_levels(stats.num_running, stats.num_waiting, deferred)
        self._gauges["kv_cache_usage_perc"].set(stats.kv_cache_usage)
        for name, flow in OF_STATS.items():
            if (number := getattr(stats, flow)) > 0:
                self._counters[name].inc(number)
        for position, number in enumerate(stats.num_accepted_tokens_per_pos):
            self._per_position.labels(**self._labels, position=str(position)).inc(number)
        if stats.num_scheduled_tokens:
            self._histograms["iteration_tokens_total"].observe(stats.num_scheduled_tokens)

    def _count_levels(self, running: int, waiting: int, deferred: int) -> None:
        self._gauges["num_requests_running"].set(running)
        self._gauges["num_requests_waiting"].set(waiting)
        self._waiting.labels(**self._labels, reason="deferred").set(deferred)
        self._waiting.labels(**self._labels, reason="capacity").set(waiting - deferred)

    def _count_tokens(self, output: EngineCoreOutput, when: float) -> None:
        tracked = self._owner.get(output.request_id)
        if tracked is None or not output.new_token_ids:
            return
        number, before = len(output.new_token_ids), tracked.last_token.get(output.request_id)
        if before is None:
            self._histograms["time_to_first_token_seconds"].observe(when - tracked.submitted.arrival_time)
            self._count_prompt(tracked, output)
        else:
            self._histograms["inter_token_latency_seconds"].observe(when - before)
        tracked.last_token[output.request_id] = when
        tracked.num_generated[output.request_id] += number
        self._counters["generation_tokens"].inc(number)

    def _count_prompt(self, tracked: _Tracked, output: EngineCoreOutput) -> None:
        num_prompt, num_cached = len(tracked.submitted.prompt_token_ids), output.num_cached_tokens
        num_local = output.cached_tokens_by_source.get("device", 0) + output.cached_tokens_by_source.get(
            "host", 0
        )
        num_local = min(num_local, num_cached) if output.cached_tokens_by_source else num_cached
        self._counters["prompt_tokens"].inc(num_prompt)
        self._counters["prompt_tokens_cached"].inc(num_cached)
        by_place = output.cached_tokens_by_source or {"device": num_cached}
        for place, number in by_place.items():
            known = place if place in CACHES else "external_unspecified"
            self._by_cache.labels(**self._labels, source=known).inc(number)
        numbers = (num_prompt - num_cached, num_local, num_cached - num_local)
        for source, number in zip(SOURCES, numbers, strict=True):
            self._by_source.labels(**self._labels, source=source).inc(number)

    def _count_ends(self, output: RequestOutput) -> None:
        tracked = self._requests.get(output.request_id)
        if tracked is None:
            return
        is_refused = output.error is not None and is_of_the_request(
            output.error
        )  # as those with another status 400
        for completion in () if is_refused else output.outputs:
            if completion.finish_reason is not None and completion.index not in tracked.ended:
                tracked.ended.add(completion.index)
                self._success.labels(**self._labels, finished_reason=completion.finish_reason).inc()
        if output.finished:
            del self._requests[output.request_id]
            for child in tracked.submitted.children:
                self._owner.pop(child.request_id, None)
            self._count_request(tracked, output)
            if not self._requests:  # after an abort the next figures of the core come a little later
                self._count_levels(0, 0, 0)

    def _count_request(self, tracked: _Tracked, output: RequestOutput) -> None:
        metrics, params, histograms = output.metrics, tracked.submitted.params, self._histograms
        num_prompt = len(output.prompt_token_ids)
        values: dict[str, float] = {
            "request_prompt_tokens": num_prompt,
            "request_generation_tokens": sum(tracked.num_generated.values()),
            "request_max_num_generation_tokens": max(tracked.num_generated.values(), default=0),
            "request_params_n": params.n,
            "request_prefill_kv_computed_tokens": num_prompt - output.num_cached_tokens,
            "request_num_preemptions": metrics.num_preemptions,
            "e2e_request_latency_seconds": (metrics.finished_time or time.monotonic()) - metrics.arrival_time,
        }
        if params.max_tokens is not None:
            values["request_params_max_tokens"] = params.max_tokens
        values |= intervals(metrics)
        for name, value in values.items():
            histograms[name].observe(value)

    def _tell_adapters(self) -> None:
        """Set the one series of the adapters in use; vLLM's label values are lists of names."""
        running: set[str] = set()
        waiting: set[str] = set()
        for tracked in self._requests.values():
            if (adapter := tracked.submitted.lora_request) is not None:
                (running if tracked.last_token else waiting).add(adapter.lora_name)
        self._adapters.clear()
        labels = (str(self._max_loras), ",".join(sorted(waiting)), ",".join(sorted(running)))
        self._adapters.labels(*labels).set(time.time())


def intervals(metrics: RequestMetrics) -> dict[str, float]:
    """Return the intervals of a request that reached them; an aborted one has none."""
    times = {}
    if metrics.queued_ts and metrics.scheduled_ts:
        times["request_queue_time_seconds"] = metrics.queued_time
    if metrics.first_token_ts and metrics.last_token_ts:
        times |= {
            "request_prefill_time_seconds": metrics.prefill_time,
            "request_decode_time_seconds": metrics.decode_time,
            "request_inference_time_seconds": metrics.inference_time,
            "request_time_per_output_token_seconds": metrics.time_per_output_token,
        }
    return times


def token_buckets(max_model_len: int) -> tuple[int, ...]:
    """Return 1, 2, 5, 10, 20, 50, ... up to max_model_len."""
    steps = (digit * 10**power for power in range(12) for digit in (1, 2, 5))
    return tuple(step for step in steps if step <= max_model_len)
