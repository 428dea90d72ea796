"""The gateway's own metrics: what clients were answered, what backends did, and their levels at the scrape.

    error rate      sum(rate(gateway_responses_total{status="5xx"}[5m])) / sum(rate(gateway_responses_total[5m]))
    timeout rate    sum(rate(gateway_attempts_total{outcome="timeout"}[5m])) / sum(rate(gateway_attempts_total[5m]))
    availability    avg_over_time(gateway_backend_up[30d])

An attempt is a request at one backend; a request that was tried again is several. Its outcome `broken` is an answer
that is not whole, and no answer at all. A stream counts at its end, in both.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from prometheus_client import CollectorRegistry, Counter, Metric
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from engine.gateway.backend import UNSUPPORTED, Backend

OUTCOMES = ("ok", "client_error", "server_error", "timeout", "broken", "client_left")


class GatewayMetrics:
    """Counters of a gateway. `registry` is what /metrics shows."""

    def __init__(self, backends: Sequence[Backend], fallback: str | None = None) -> None:
        self.registry = CollectorRegistry()
        self.responses = Counter(
            "gateway_responses",
            "Answers to clients by the class of their status, 5xx for a stream that ended with an error event.",
            ["tenant", "status"],
            registry=self.registry,
        )
        self.attempts = Counter(
            "gateway_attempts",
            "Requests at a backend by their end.",
            ["backend", "outcome"],
            registry=self.registry,
        )
        self.tokens = Counter(
            "gateway_tokens",
            "Prompt and output tokens by the usage in the answers.",
            ["tenant"],
            registry=self.registry,
        )
        self.retries = Counter(
            "gateway_retries", "Requests that another backend was asked for.", registry=self.registry
        )
        self.fallbacks = Counter(
            "gateway_fallbacks", "Requests that the fallback was asked for.", registry=self.registry
        )
        self.canary_rollbacks = Counter(
            "gateway_canary_rollbacks",
            "Canaries whose share became 0 because they were worse.",
            registry=self.registry,
        )
        for name in [*(backend.name for backend in backends), *([] if fallback is None else [fallback])]:
            self.add(name)
        self.registry.register(_Levels(backends))

    def add(self, backend: str) -> None:
        """Show a backend's counters from 0 on."""
        for outcome in OUTCOMES:
            self.attempts.labels(backend, outcome)

    def end(self, backend: str, how: str) -> None:
        """An attempt has ended. how: as in `Decision.ended`."""
        self.attempts.labels(backend, outcome(how)).inc()


class _Levels(Collector):
    """State of the backends now."""

    def __init__(self, backends: Sequence[Backend]) -> None:
        self._backends = backends

    def collect(self) -> Iterator[Metric]:
        up = GaugeMetricFamily(
            "gateway_backend_up", "1: healthy, and its breaker is closed.", labels=["backend"]
        )
        load = GaugeMetricFamily("gateway_backend_load", "Requests under way.", labels=["backend"])
        for backend in self._backends:
            if not backend.is_draining:  # its end is wanted, and no alert
                up.add_metric([backend.name], backend.is_healthy and backend.breaker.state == "closed")
            load.add_metric([backend.name], backend.load)
        yield up
        yield load


def status_class(status: int) -> str:
    """Return "2xx", "4xx" or "5xx". 501 is the client's: it asks for what no backend has."""
    return "4xx" if status == UNSUPPORTED else f"{status // 100}xx"


def outcome(how: str) -> str:
    """Return the outcome of an attempt that ended like this: "HTTP 404" -> "client_error"."""
    if how in ("ok", "client left"):
        return how.replace(" ", "_")
    if how.startswith("HTTP "):
        return "client_error" if status_class(int(how[5:8])) == "4xx" else "server_error"
    return "timeout" if how.endswith("Timeout") else "broken"
