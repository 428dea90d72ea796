"""Figures of a window: what the looks at a server say, as numbers. None: nothing happened that could be measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from statistics import fmean, median

from engine.server.diagnosis.evidence import Look
from engine.server.scrape import Scrape, quantile

TTFT, ITL, E2E = "time_to_first_token_seconds", "inter_token_latency_seconds", "e2e_request_latency_seconds"
QUEUE, PREFILL = "request_queue_time_seconds", "request_prefill_time_seconds"
TIMES = (TTFT, QUEUE, PREFILL, "request_decode_time_seconds", E2E, ITL)
ABSURD_S = 1e7
"""A duration above 4 months is no duration but a time of day, or a difference of two clocks."""


class Between:
    """Increases from one scrape to a later one."""

    def __init__(self, first: Scrape, last: Scrape) -> None:
        self._first, self._last = first, last
        self.seconds = last.when - first.when

    def more(self, name: str) -> float:
        return self._last.values.get(name, 0.0) - self._first.values.get(name, 0.0)

    def share(self, part: str, whole: str) -> float | None:
        return self.more(part) / self.more(whole) if self.more(whole) > 0 else None

    def mean(self, histogram: str) -> float | None:
        return self.share(f"{histogram}_sum", f"{histogram}_count")

    def quantile(self, histogram: str, share: float) -> float | None:
        before, after = (scrape.buckets.get(histogram, {}) for scrape in (self._first, self._last))
        return quantile(
            {bound: max(0.0, count - before.get(bound, 0.0)) for bound, count in after.items()}, share
        )

    def tail(self, histogram: str, share: float) -> float | None:
        """Return a quantile; the mean if it lies in the first bucket, in which nothing tells values apart."""
        value, mean = self.quantile(histogram, share), self.mean(histogram)
        lowest = min(self._last.buckets.get(histogram, {}), default=0.0)
        return mean if value is not None and value <= lowest else value

    def labelled(self, of: Callable[[Scrape], Mapping[str, float]]) -> dict[str, float]:
        before, after = of(self._first), of(self._last)
        return {name: count - before.get(name, 0.0) for name, count in after.items()}


class Figures:
    """Levels, increases and times over a window, each computed when it is first read.

    Times in seconds, lengths in tokens.
    """

    def __init__(self, looks: Sequence[Look], **given: object) -> None:
        """Read the looks of a window; two at least. given: figures to take as they are."""
        self._looks, self._scrapes = looks, [look.scrape for look in looks]
        self._span = Between(self._scrapes[0], self._scrapes[-1])
        self._third = max(1, len(looks) // 3)
        self._given = given
        vars(self).update(given)

    def but(self, **given: object) -> Figures:
        """Return the same figures except for these."""
        return Figures(self._looks, **self._given | given)

    def _level(self, name: str) -> list[float]:
        return [scrape.values.get(name, 0.0) for scrape in self._scrapes[1:]]

    # Requests

    @cached_property
    def running_max(self) -> float:
        return max(self._level("num_requests_running"))

    @cached_property
    def waiting(self) -> float:
        return fmean(self._level("num_requests_waiting"))

    @cached_property
    def waiting_growth(self) -> float:
        """Waiting requests in the last third of the looks minus those in the first third."""
        waiting = self._level("num_requests_waiting")
        return fmean(waiting[-self._third :]) - fmean(waiting[: self._third])

    @cached_property
    def stuck(self) -> float:
        """Share of the looks in which requests waited, none ran, and no token came since the look before."""
        return fmean(map(_is_stuck, pairwise(self._scrapes)))

    @cached_property
    def arrivals(self) -> float:
        """Requests per second that came: ended, rejected, and more than before under way."""
        names = ("num_requests_running", "num_requests_waiting", "request_success_total")
        came = sum(map(self._span.more, names)) + self.rejections
        return came / max(self._span.seconds, 1e-9)

    @cached_property
    def ended(self) -> Mapping[str, float]:
        """Finish reason -> requests."""
        return self._span.labelled(lambda scrape: scrape.ended)

    @property
    def num_ended(self) -> float:
        return sum(self.ended.values())

    def end_share(self, reason: str) -> float | None:
        return self.ended.get(reason, 0.0) / self.num_ended if self.num_ended else None

    @cached_property
    def responses(self) -> Mapping[str, float]:
        """Class of a status, such as "4xx" -> responses."""
        return self._span.labelled(lambda scrape: scrape.responses)

    @cached_property
    def rejections(self) -> float:
        return self._span.more("admission_rejections_total")

    @cached_property
    def prompt_len(self) -> float | None:
        return self._span.mean("request_prompt_tokens")

    @cached_property
    def output_len(self) -> float | None:
        return self._span.mean("request_generation_tokens")

    # KV cache

    @cached_property
    def kv_max(self) -> float:
        return max(self._level("kv_cache_usage_perc"))

    @cached_property
    def kv_unowned(self) -> float | None:
        """Mean KV usage in looks in which nothing ran; None: there was none."""
        pairs = zip(self._level("kv_cache_usage_perc"), self._level("num_requests_running"), strict=True)
        unowned = [usage for usage, number in pairs if not number]
        return fmean(unowned) if unowned else None

    @cached_property
    def kv_least(self) -> float:
        """Least KV usage in the last third of the looks."""
        return min(self._level("kv_cache_usage_perc")[-self._third :])

    @cached_property
    def preemptions(self) -> float:
        return self._span.more("num_preemptions_total")

    @cached_property
    def num_blocks(self) -> float | None:
        return _number(self._cache.get("num_gpu_blocks"))

    @cached_property
    def block_size(self) -> float | None:
        return _number(self._cache.get("block_size"))

    @property
    def pool(self) -> float | None:
        """Tokens that the KV pool holds."""
        return self.num_blocks * self.block_size if self.num_blocks and self.block_size else None

    @property
    def fits(self) -> float | None:
        """Requests of the mean length that the KV pool holds."""
        length = (self.prompt_len or 0.0) + (self.output_len or 0.0)
        return self.pool / length if self.pool and length else None

    @property
    def _cache(self) -> Mapping[str, str]:
        return self._scrapes[-1].infos.get("cache_config_info", {})

    # Prefix cache, drafts, adapters

    @cached_property
    def caching(self) -> bool | None:
        return {"True": True, "False": False}.get(self._cache.get("enable_prefix_caching", ""))

    @cached_property
    def hit_rate(self) -> float | None:
        return self._span.share("prefix_cache_hits_total", "prefix_cache_queries_total")

    @cached_property
    def acceptance(self) -> float | None:
        return self._span.share("spec_decode_num_accepted_tokens_total", "spec_decode_num_draft_tokens_total")

    @cached_property
    def lora_slots(self) -> float | None:
        return _number(self._adapters[-1].get("max_lora")) if self._adapters else None

    @cached_property
    def lora_wanted(self) -> float | None:
        """Most adapters of running and waiting requests at one look."""
        wanted = [_names(info, "running") | _names(info, "waiting") for info in self._adapters]
        return float(max(map(len, wanted))) if wanted else None

    @cached_property
    def lora_waits(self) -> float:
        """Share of the looks in which an adapter waited."""
        return fmean([bool(_names(info, "waiting")) for info in self._adapters]) if self._adapters else 0.0

    @cached_property
    def _adapters(self) -> list[Mapping[str, str]]:
        return [info for scrape in self._scrapes[1:] if (info := scrape.infos.get("lora_requests_info"))]

    # Times and steps

    @cached_property
    def ttft(self) -> float | None:
        return self._span.mean(TTFT)

    @cached_property
    def ttft_early(self) -> float | None:
        """Mean in the first third of the window."""
        return self._thirds[0].mean(TTFT)

    @cached_property
    def ttft_fell(self) -> float | None:
        """TTFT in the first third of the window over that in the last."""
        return self._fell(TTFT)

    @cached_property
    def itl_fell(self) -> float | None:
        return self._fell(ITL)

    @cached_property
    def hits_rose(self) -> float:
        """Hit rate in the last third of the window, less that in the first."""
        early, late = (
            third.share("prefix_cache_hits_total", "prefix_cache_queries_total") for third in self._thirds
        )
        return (late or 0.0) - (early or 0.0)

    @cached_property
    def load_fell(self) -> float | None:
        """First tokens in the first third of the window over those in the last."""
        early, late = (third.more(f"{TTFT}_count") for third in self._thirds)
        return early / late if late else None

    @property
    def _thirds(self) -> tuple[Between, Between]:
        """The first and the last third of the window."""
        first = Between(self._scrapes[0], self._scrapes[self._third])
        return first, Between(self._scrapes[-1 - self._third], self._scrapes[-1])

    def _fell(self, histogram: str) -> float | None:
        early, late = (third.mean(histogram) for third in self._thirds)
        return early / late if early is not None and late else None

    @cached_property
    def queue(self) -> float | None:
        return self._span.mean(QUEUE)

    @cached_property
    def prefill(self) -> float | None:
        return self._span.mean(PREFILL)

    def of_ttft(self, part: float | None) -> float | None:
        return None if part is None or not self.ttft else min(1.0, part / self.ttft)

    @cached_property
    def itl(self) -> float | None:
        return self._span.mean(ITL)

    @cached_property
    def itl_p50(self) -> float | None:
        return self._span.tail(ITL, 0.5)

    @cached_property
    def itl_p99(self) -> float | None:
        return self._span.tail(ITL, 0.99)

    @cached_property
    def step_tokens_max(self) -> float | None:
        """Upper bound of the largest step's bucket."""
        return self._span.quantile("iteration_tokens_total", 1.0)

    # The process that speaks HTTP, and its clock

    @cached_property
    def answer(self) -> float | None:
        """Mean seconds until GET /health was answered."""
        answers = [look.answer_s for look in self._looks if look.answer_s is not None]
        return fmean(answers) if answers else None

    @cached_property
    def cpu(self) -> float | None:
        """Processor time of the process that speaks HTTP, per second."""
        if "process_cpu_seconds_total" not in self._scrapes[-1].values:
            return None
        return self._span.more("process_cpu_seconds_total") / max(self._span.seconds, 1e-9)

    @cached_property
    def clock(self) -> float | None:
        """The server's clock minus this machine's."""
        clocks = [look.clock_s for look in self._looks if look.clock_s is not None]
        return median(clocks) if clocks else None

    @cached_property
    def negative(self) -> tuple[str, ...]:
        """Durations that are negative, longer than 4 months, or longer than the whole request."""
        span = self._span
        names = [
            name for name in TIMES if span.more(f"{name}_sum") < 0 or (span.mean(name) or 0.0) > ABSURD_S
        ]
        whole = max(span.mean(E2E) or 0.0, self.ttft or 0.0)
        if not names and span.mean(E2E) is not None and (self.queue or 0.0) > 3 * whole:
            names.append(QUEUE)
        return tuple(name.removesuffix("_seconds") for name in names)


def _is_stuck(pair: tuple[Scrape, Scrape]) -> bool:
    values, moved = pair[1].values, Between(*pair).more("generation_tokens_total")
    return bool(values.get("num_requests_waiting") and not values.get("num_requests_running") and not moved)


def _names(info: Mapping[str, str], which: str) -> set[str]:
    return set(info.get(f"{which}_lora_adapters", "").split(",")) - {""}


def _number(text: str | None) -> float | None:
    try:
        return float(text) if text is not None else None
    except ValueError:
        return None
