"""The line that the server logs now and then, with the numbers of /metrics. Its wording is vLLM's.

Source: LoggingStatLogger in vLLM v1/metrics/loggers.py; an idle server logs one line and then none.
"""

from __future__ import annotations

import asyncio
import logging
import time

from prometheus_client import CollectorRegistry

logger = logging.getLogger(__name__)


class StatLine:
    """Rates since the last line, and levels of now."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self._when = time.monotonic()
        self._before = self._totals()
        self._was_idle = True

    def next(self, now: float) -> str | None:
        """Return the line for the time since the last call; None for a server that has been idle twice.

        now: seconds of time.monotonic.
        """
        totals, seconds = self._totals(), max(now - self._when, 1e-9)
        grown = {name: totals[name] - self._before[name] for name in totals}
        self._when, self._before = now, totals
        is_idle = not (grown["prompt_tokens_by_source"] or grown["generation_tokens"])
        is_silent, self._was_idle = is_idle and self._was_idle, is_idle
        if is_silent:
            return None
        parts = [
            f"Avg prompt throughput: {grown['prompt_tokens_by_source'] / seconds:.1f} tokens/s",
            f"Avg generation throughput: {grown['generation_tokens'] / seconds:.1f} tokens/s",
            f"Running: {self._sum('num_requests_running'):.0f} reqs",
            f"Waiting: {self._sum('num_requests_waiting'):.0f} reqs",
        ]
        if grown["num_preemptions"]:
            parts.append(f"Preemptions: {grown['num_preemptions']:.0f}")
        parts.append(f"KV cache usage: {self._sum('kv_cache_usage_perc'):.1%}")
        if grown["prefix_cache_queries"]:
            rate = grown["prefix_cache_hits"] / grown["prefix_cache_queries"]
            parts.append(f"Prefix cache hit rate: {rate:.1%}")
        return ", ".join(parts)

    def _totals(self) -> dict[str, float]:
        names = ("generation_tokens", "num_preemptions", "prefix_cache_queries", "prefix_cache_hits")
        computed = self._sum("prompt_tokens_by_source", "_total", source="local_compute")
        return {name: self._sum(name, "_total") for name in names} | {"prompt_tokens_by_source": computed}

    def _sum(self, name: str, ending: str = "", **labels: str) -> float:
        """Return the value of a metric, summed over its series with these labels."""
        name = f"vllm:{name}"
        return sum(
            sample.value
            for metric in self._registry.collect()
            if metric.name == name
            for sample in metric.samples
            if sample.name == name + ending and labels.items() <= sample.labels.items()
        )


async def log_stats(registry: CollectorRegistry, every_s: float) -> None:
    """Log a line every so many seconds, until cancelled."""
    line = StatLine(registry)
    while True:
        await asyncio.sleep(every_s)
        if (text := line.next(time.monotonic())) is not None:
            logger.info(text)
