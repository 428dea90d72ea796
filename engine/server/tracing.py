"""One OpenTelemetry span per request, with its phases as children: `prep serve --otlp-traces-endpoint URL`.

    llm_request    arrival ................................................. finished
      queue            queued .. scheduled
      prefill                    scheduled .. first token
      decode                                  first token .. last token
      detokenize                                             last token .. finished

A request with a `traceparent` header belongs to its caller's trace. Name and attributes of the span are vLLM's
(tracing/utils.py; v1/engine/output_processor.py, do_tracing); the children are ours, of the same times. The protocol
is gRPC, or what OTEL_EXPORTER_OTLP_TRACES_PROTOCOL says: http/protobuf.
"""

from __future__ import annotations

import os
import time

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.trace import SpanKind, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from engine.frontend.parallel_sampling import SubmittedRequest
from engine.outputs import RequestMetrics, RequestOutput
from engine.server.ended_requests import EndedRequests

PROTOCOL_VARIABLE = "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"


class RequestTracer(EndedRequests):
    """A StatLogger that exports the spans of requests as they end, in a thread of its own."""

    def __init__(self, endpoint: str, model: str) -> None:
        """Raises ValueError for an unknown protocol."""
        super().__init__()
        names = {} if "OTEL_SERVICE_NAME" in os.environ else {"service.name": "prep"}
        self._provider = TracerProvider(resource=Resource.create(names))
        self._provider.add_span_processor(BatchSpanProcessor(_exporter(endpoint)))
        self._tracer = self._provider.get_tracer("prep.engine.server")
        self._model = model

    def close(self) -> None:
        """Send what has not been sent yet."""
        self._provider.shutdown()

    def ended(self, submitted: SubmittedRequest, output: RequestOutput) -> None:
        metrics = output.metrics
        end = metrics.finished_time or time.monotonic()
        context = TraceContextTextMapPropagator().extract(submitted.trace_headers or {})
        request = self._tracer.start_span(
            "llm_request",
            context,
            SpanKind.SERVER,
            attributes=self._attributes(submitted, output, end),
            start_time=self._ns(submitted.arrival_time),
        )
        inside = set_span_in_context(request)
        for name, (begin, finish) in phases(metrics, end).items():
            span = self._tracer.start_span(name, inside, start_time=self._ns(begin))
            span.end(self._ns(finish))
        request.end(self._ns(end))

    def _ns(self, seconds: float) -> int:
        """Return the time of day, in nanoseconds, of a value of time.monotonic."""
        return int(1e9 * (self._epoch + seconds))

    def _attributes(
        self, submitted: SubmittedRequest, output: RequestOutput, end: float
    ) -> dict[str, str | int | float]:
        metrics, params = output.metrics, submitted.params
        adapter = submitted.lora_request
        attributes: dict[str, str | int | float | None] = {
            "gen_ai.request.id": output.request_id,
            "gen_ai.response.model": self._model if adapter is None else adapter.lora_name,
            "gen_ai.request.max_tokens": params.max_tokens,
            "gen_ai.request.temperature": params.temperature,
            "gen_ai.request.top_p": params.top_p,
            "gen_ai.request.n": params.n,
            "gen_ai.usage.prompt_tokens": len(output.prompt_token_ids),
            "gen_ai.usage.completion_tokens": metrics.num_generation_tokens,
            "gen_ai.latency.e2e": end - submitted.arrival_time,
        }
        if metrics.scheduled_ts:
            attributes["gen_ai.latency.time_in_queue"] = metrics.queued_time
        if metrics.first_token_ts:
            attributes["gen_ai.latency.time_to_first_token"] = metrics.first_token_latency
            attributes["gen_ai.latency.time_in_model_prefill"] = metrics.prefill_time
            attributes["gen_ai.latency.time_in_model_decode"] = metrics.decode_time
            attributes["gen_ai.latency.time_in_model_inference"] = metrics.inference_time
        return {name: value for name, value in attributes.items() if value is not None}


def phases(metrics: RequestMetrics, end: float) -> dict[str, tuple[float, float]]:
    """Return the start and end of each phase that began; one that an abort cut ends at `end`."""
    starts = {
        "queue": metrics.queued_ts,
        "prefill": metrics.scheduled_ts,
        "decode": metrics.first_token_ts,
        "detokenize": metrics.finished_time and metrics.last_token_ts,
    }
    begun = [(name, start) for name, start in starts.items() if start]
    ends = [*(start for _, start in begun[1:]), end]
    return {name: (start, finish) for (name, start), finish in zip(begun, ends, strict=True)}


def _exporter(endpoint: str) -> SpanExporter:
    protocol = os.environ.get(PROTOCOL_VARIABLE, "grpc")
    if protocol == "grpc":
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as OverGRPC

        return OverGRPC(endpoint=endpoint, insecure=True)
    if protocol == "http/protobuf":
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as OverHTTP

        return OverHTTP(endpoint=endpoint)
    raise ValueError(f"{PROTOCOL_VARIABLE} must be grpc or http/protobuf, got {protocol!r}")
