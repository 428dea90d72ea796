"""Scrapes of a server's /metrics, and what happened between two of them. Works with any server that has vLLM's names.

Used by `prep top` and by the page Server of `prep app`.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from urllib.parse import urlsplit

import httpx
from prometheus_client.parser import text_string_to_metric_families

PREFIX = "vllm:"
OF_PROCESS = ("process_cpu_seconds_total", "process_start_time_seconds")
"""Figures of the process that speaks HTTP, kept beside vLLM's. vLLM has them, too."""
MEANS = ("kv_cache_usage_perc", *OF_PROCESS)
"""The mean over engines and servers. All other values add up."""
PERCENTILES = (50, 90, 99)
MAX_BYTES = 16 << 20
"""Largest accepted /metrics. vLLM's has about 100 kB per engine."""


class ScrapeError(Exception):
    """A server that cannot be watched: what is wrong, and the next step."""

    def __init__(self, message: str, next_step: str = "", *, is_down: bool = False) -> None:
        super().__init__(message)
        self.next_step = next_step
        self.is_down = is_down
        """Whether a later attempt may succeed: the server is absent or answers with status 5xx."""


def base_of(address: str) -> str:
    """Return the base URL of an address as users type it: no trailing slash, no /v1 or /metrics.

    Raises ScrapeError for other schemes, and for an address with a password, query or fragment: an address ends up in
    logs and in the browser's history, so a key does not belong there.
    """
    address = address.strip()
    text = address if "://" in address else f"http://{address}"
    example = "an address looks like http://127.0.0.1:8000"
    try:
        parts = urlsplit(text)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise ScrapeError(f"the address is not valid: {error}", example) from None
    if parts.scheme not in ("http", "https"):
        raise ScrapeError(f"an address begins with http:// or https://, not with {parts.scheme}://", example)
    if not host or not text.isprintable() or " " in text:
        raise ScrapeError(f"address {address!r} names no server", example)
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise ScrapeError(
            "the address contains a password, a query or a fragment", f"give the key separately; {example}"
        )
    path = parts.path.rstrip("/").removesuffix("/metrics").removesuffix("/v1")
    return f"{parts.scheme}://{parts.netloc}{path}"


def fetch(base: str, api_key: str = "", timeout: float = 10.0) -> Scrape:
    """Scrape a server once. Redirects are not followed, so the key reaches no other server. Raises ScrapeError."""
    return fetch_all([base], api_key, timeout)


def fetch_all(bases: Sequence[str], api_key: str = "", timeout: float = 10.0) -> Scrape:
    """Scrape several servers once, as if they were one. Raises ScrapeError."""
    texts = [_fetch_text(base, api_key, timeout) for base in bases]
    try:
        return Scrape.of("\n".join(texts))
    except ValueError as error:
        raise ScrapeError(
            f"{' and '.join(bases)}/metrics is not vLLM's: {error}",
            "prep serve shop   starts a server that has them",
        ) from None


def _fetch_text(base: str, api_key: str, timeout: float) -> str:
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    try:
        return _read(base, headers, timeout)
    except UnicodeEncodeError:
        raise ScrapeError("the key has characters that no HTTP header can contain", "use ASCII") from None
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise ScrapeError(
            f"no server at {base}: {error or type(error).__name__}",
            "prep serve shop   starts one",
            is_down=True,
        ) from None


def _read(base: str, headers: dict[str, str], timeout: float) -> str:
    deadline = time.monotonic() + timeout
    with httpx.stream("GET", f"{base}/metrics", headers=headers, timeout=timeout) as response:
        if response.status_code in (401, 403):
            said = "refuses the key" if headers else "asks for a key"
            raise ScrapeError(
                f"{base}/metrics {said} (status {response.status_code})",
                "give the key that the server was started with (--api-key)",
            )
        if response.status_code != 200:
            raise ScrapeError(
                f"{base}/metrics answers with status {response.status_code}",
                "is this the address of a vLLM-compatible server?   prep serve shop   starts one",
                is_down=response.status_code >= 500,
            )
        parts: list[bytes] = []
        size = 0
        for part in response.iter_bytes():
            parts.append(part)
            size += len(part)
            if size > MAX_BYTES or time.monotonic() > deadline:
                limit = f"{MAX_BYTES >> 20} MiB" if size > MAX_BYTES else f"{timeout:g} s"
                raise ScrapeError(f"{base}/metrics does not end within {limit}", "is this a /metrics page?")
    text = b"".join(parts).decode(errors="replace")
    if "vllm:" in text and not text.endswith("\n"):  # a number that is cut reads as another one
        raise ScrapeError(f"{base}/metrics ended within a line", "did the server end while it answered?")
    return text


@dataclass(frozen=True)
class Scrape:
    """Figures of all engines and models of a server together."""

    when: float
    values: Mapping[str, float]
    buckets: Mapping[str, Mapping[float, float]]
    """Histogram -> upper bound -> cumulative count."""
    ended: Mapping[str, float] = field(default_factory=dict)
    """Finish reason -> completions."""
    models: tuple[str, ...] = ()
    http_errors: float | None = None
    """Responses with status 4xx or 5xx; None: the server does not count responses. vLLM does."""
    responses: Mapping[str, float] = field(default_factory=dict)
    """Class of a status, such as "4xx" -> responses to POST."""
    infos: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Metric whose labels are its content, such as cache_config_info -> labels of its newest series."""

    @classmethod
    def of(cls, text: str, when: float | None = None) -> Scrape:
        """Parse Prometheus's text format. Raises ValueError for anything else."""
        values: dict[str, float] = {}
        buckets: dict[str, dict[float, float]] = {}
        ended: dict[str, float] = {}
        models: dict[str, None] = {}
        num_samples: dict[str, int] = {}
        http_errors: float | None = None
        responses: dict[str, float] = {}
        infos: dict[str, dict[str, str]] = {}
        newest: dict[str, float] = {}

        def add(name: str, value: float) -> None:
            values[name] = values.get(name, 0.0) + value
            num_samples[name] = num_samples.get(name, 0) + 1

        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if sample.name == "http_requests_total":
                    is_error = sample.labels.get("status", "")[:1] in ("4", "5")
                    http_errors = (http_errors or 0.0) + sample.value * is_error
                    if sample.labels.get("method") == "POST":
                        status = sample.labels.get("status", "")
                        responses[status] = responses.get(status, 0.0) + sample.value
                if sample.name in OF_PROCESS:
                    add(sample.name, sample.value)
                if not sample.name.startswith(PREFIX):
                    continue
                name = sample.name.removeprefix(PREFIX)
                if model := sample.labels.get("model_name"):
                    models[model] = None
                if name.endswith("_bucket"):
                    bounds = buckets.setdefault(name.removesuffix("_bucket"), {})
                    bound = float(sample.labels.get("le", "inf"))
                    bounds[bound] = bounds.get(bound, 0.0) + sample.value
                    continue
                if name.endswith("_info") and sample.value >= newest.get(name, 0.0):
                    newest[name], infos[name] = sample.value, sample.labels
                add(name, sample.value)
                if name == "request_success_total":
                    reason = sample.labels.get("finished_reason", "")
                    ended[reason] = ended.get(reason, 0.0) + sample.value
        if not set(num_samples) - set(OF_PROCESS) and not buckets:
            raise ValueError(f"no metric begins with {PREFIX}")
        for name in MEANS:
            if name in values:
                values[name] /= num_samples[name]
        return cls(
            time.monotonic() if when is None else when,
            values,
            buckets,
            ended,
            tuple(models),
            http_errors,
            responses,
            infos,
        )


def is_restart(first: Scrape, second: Scrape) -> bool:
    """Whether a counter fell or the process started later, which only a new server process explains."""
    return any(
        second.values.get(name, 0.0) < value
        for name, value in first.values.items()
        if name.endswith(("_total", "_count"))
    )


@dataclass(frozen=True)
class Activity:
    """Levels at the second scrape, and rates per second since the first. None: nothing happened."""

    seconds: float
    running: float
    waiting: float
    kv_cache_usage: float
    prompt_tokens_per_s: float
    output_tokens_per_s: float
    requests_per_s: float
    preemptions_per_s: float
    errors_per_s: float
    rejections_per_s: float
    prefix_hit_rate: float | None
    draft_acceptance: float | None
    ttft_p50: float | None
    ttft_p90: float | None
    ttft_p99: float | None
    itl_p50: float | None
    itl_p90: float | None
    itl_p99: float | None
    e2e_p50: float | None
    e2e_p90: float | None
    e2e_p99: float | None
    totals: dict[str, float] = field(default_factory=dict)
    """Since the server's start: requests, prompt_tokens, output_tokens, preemptions, errors, rejections;
    http_errors, if the server counts them."""

    @classmethod
    def between(cls, first: Scrape, second: Scrape) -> Activity:
        """A server that was restarted in between begins at 0."""
        seconds = max(second.when - first.when, 1e-9)
        if is_restart(first, second):
            first = Scrape(first.when, {}, {})

        def more(name: str) -> float:
            return second.values.get(name, 0.0) - first.values.get(name, 0.0)

        def share(part: str, whole: str) -> float | None:
            return more(part) / more(whole) if more(whole) else None

        def times(short: str, name: str) -> dict[str, float | None]:
            before, after = first.buckets.get(name, {}), second.buckets.get(name, {})
            counts = {bound: max(0.0, count - before.get(bound, 0.0)) for bound, count in after.items()}
            return {f"{short}_p{percent}": quantile(counts, percent / 100) for percent in PERCENTILES}

        level = second.values.get
        return cls(
            seconds=seconds,
            running=level("num_requests_running", 0.0),
            waiting=level("num_requests_waiting", 0.0),
            kv_cache_usage=level("kv_cache_usage_perc", 0.0),
            prompt_tokens_per_s=more("prompt_tokens_total") / seconds,
            output_tokens_per_s=more("generation_tokens_total") / seconds,
            requests_per_s=more("request_success_total") / seconds,
            preemptions_per_s=more("num_preemptions_total") / seconds,
            errors_per_s=(second.ended.get("error", 0.0) - first.ended.get("error", 0.0)) / seconds,
            rejections_per_s=more("admission_rejections_total") / seconds,
            prefix_hit_rate=share("prefix_cache_hits_total", "prefix_cache_queries_total"),
            draft_acceptance=share(
                "spec_decode_num_accepted_tokens_total", "spec_decode_num_draft_tokens_total"
            ),
            **times("ttft", "time_to_first_token_seconds"),
            **times("itl", "inter_token_latency_seconds"),
            **times("e2e", "e2e_request_latency_seconds"),
            totals={
                "requests": level("request_success_total", 0.0),
                "prompt_tokens": level("prompt_tokens_total", 0.0),
                "output_tokens": level("generation_tokens_total", 0.0),
                "preemptions": level("num_preemptions_total", 0.0),
                "errors": second.ended.get("error", 0.0),
                "rejections": level("admission_rejections_total", 0.0),
            }
            | ({} if second.http_errors is None else {"http_errors": second.http_errors}),
        )


def quantile(counts: Mapping[float, float], share: float) -> float | None:
    """Return a quantile of a histogram, interpolated in its bucket as Prometheus's `histogram_quantile` does.

    counts: upper bound -> cumulative count, with infinity. None without observations.
    """
    bounds = sorted(counts)
    total = counts[bounds[-1]] if bounds else 0.0
    if not total:
        return None
    rank, below, lower = share * total, 0.0, 0.0
    for bound in bounds:
        if counts[bound] >= rank:
            if bound == inf:
                return lower
            return lower + (bound - lower) * (rank - below) / max(counts[bound] - below, 1e-12)
        below, lower = counts[bound], bound
    return lower
