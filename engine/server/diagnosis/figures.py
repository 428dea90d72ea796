"""Figures of a window: what the looks at a server say, as numbers. None: nothing happened that could be measured."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, median, pstdev

from engine.server.diagnosis.evidence import Answer, Evidence, Gateway, Look
from engine.server.scrape import Scrape, quantile


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
        before, after = (each.buckets.get(histogram, {}) for each in (self._first, self._last))
        return quantile(
            {bound: max(0.0, count - before.get(bound, 0.0)) for bound, count in after.items()}, share
        )

    def tail(self, histogram: str, share: float) -> float | None:
        """Return a quantile; the mean if it lies in the first bucket, in which nothing tells values apart."""
        found, mean = self.quantile(histogram, share), self.mean(histogram)
        lowest = min(self._last.buckets.get(histogram, {}), default=0.0)
        return mean if found is not None and found <= lowest else found

    def labelled(self, of: Callable[[Scrape], Mapping[str, float]]) -> dict[str, float]:
        before, after = of(self._first), of(self._last)
        return {name: count - before.get(name, 0.0) for name, count in after.items()}


@dataclass(frozen=True)
class Figures:
    """Levels, increases and times over a window. Times in seconds, lengths in tokens."""

    seconds: float
    num_looks: int
    running: float
    running_max: float
    waiting: float
    waiting_growth: float
    """Waiting requests in the last third of the looks minus those in the first third."""
    stuck: float
    """Share of the looks in which requests waited, none ran, and no token came since the look before."""
    arrivals: float
    """Requests per second that came: ended, rejected, and more than before under way."""
    kv: float
    kv_max: float
    kv_unowned: float | None
    """Mean KV usage in looks in which nothing ran; None: there was none."""
    kv_least: float
    """Least KV usage in the last third of the looks."""
    prompt_tokens: float
    output_tokens: float
    ended: Mapping[str, float]
    responses: Mapping[str, float]
    rejections: float
    preemptions: float
    hit_rate: float | None
    hit_tokens: float
    caching: bool | None
    num_blocks: float | None
    block_size: float | None
    ttft: float | None
    ttft_p50: float | None
    ttft_p99: float | None
    ttft_early: float | None
    """Mean in the first third of the window."""
    ttft_late: float | None
    queue: float | None
    prefill: float | None
    e2e: float | None
    itl: float | None
    itl_p99: float | None
    itl_spread: float | None
    """Standard deviation over mean of the ITL of the pairs of looks."""
    steps: float
    step_tokens: float | None
    step_tokens_max: float | None
    """Upper bound of the largest step's bucket."""
    prompt_len: float | None
    output_len: float | None
    acceptance: float | None
    lora_slots: float | None
    lora_wanted: float | None
    """Most adapters of running and waiting requests at one look."""
    lora_waits: float
    """Share of the looks in which an adapter waited."""
    answer: float | None
    """Mean seconds until GET /health was answered."""
    answer_max: float | None
    cpu: float | None
    """Processor time of the process that speaks HTTP, per second."""
    clock: float | None
    negative: tuple[str, ...]
    """Durations that are negative or longer than the whole request."""

    @property
    def num_ended(self) -> float:
        return sum(self.ended.values())

    def end_share(self, reason: str) -> float | None:
        return self.ended.get(reason, 0.0) / self.num_ended if self.num_ended else None

    @property
    def rest(self) -> float | None:
        """Part of TTFT outside queue and prefill."""
        if self.ttft is None or self.queue is None or self.prefill is None:
            return None
        return max(0.0, self.ttft - self.queue - self.prefill)

    def of_ttft(self, part: float | None) -> float | None:
        return None if part is None or not self.ttft else min(1.0, part / self.ttft)

    @property
    def pool(self) -> float | None:
        """Tokens that the KV pool holds."""
        return self.num_blocks * self.block_size if self.num_blocks and self.block_size else None

    @property
    def fits(self) -> float | None:
        """Requests of the mean length that the KV pool holds."""
        length = (self.prompt_len or 0.0) + (self.output_len or 0.0)
        return self.pool / length if self.pool and length else None

    @classmethod
    def of(cls, looks: Sequence[Look]) -> Figures:
        """Read the looks of a window; two at least."""
        scrapes = [look.scrape for look in looks]
        span = Between(scrapes[0], scrapes[-1])
        third = max(1, len(scrapes) // 3)

        def level(name: str) -> list[float]:
            return [scrape.values.get(name, 0.0) for scrape in scrapes[1:]]

        running, waiting = level("num_requests_running"), level("num_requests_waiting")
        kv = level("kv_cache_usage_perc")
        unowned = [usage for usage, number in zip(kv, running, strict=True) if not number]
        cache = scrapes[-1].infos.get("cache_config_info", {})
        answers = [look.answer_s for look in looks if look.answer_s is not None]
        clocks = [look.clock_s for look in looks if look.clock_s is not None]
        early, late = Between(scrapes[0], scrapes[third]), Between(scrapes[-1 - third], scrapes[-1])
        slots, adapters, lora_waits = _adapters(scrapes[1:])
        return cls(
            seconds=span.seconds,
            num_looks=len(looks),
            running=fmean(running),
            running_max=max(running),
            waiting=fmean(waiting),
            waiting_growth=fmean(waiting[-third:]) - fmean(waiting[:third]),
            stuck=fmean(map(_is_stuck, pairwise(scrapes))),
            arrivals=_arrivals(span) / max(span.seconds, 1e-9),
            kv=fmean(kv),
            kv_max=max(kv),
            kv_unowned=fmean(unowned) if unowned else None,
            kv_least=min(kv[-third:]),
            prompt_tokens=span.more("prompt_tokens_total"),
            output_tokens=span.more("generation_tokens_total"),
            ended=span.labelled(lambda scrape: scrape.ended),
            responses=span.labelled(lambda scrape: scrape.responses),
            rejections=span.more("admission_rejections_total"),
            preemptions=span.more("num_preemptions_total"),
            hit_rate=span.share("prefix_cache_hits_total", "prefix_cache_queries_total"),
            hit_tokens=span.more("prefix_cache_hits_total"),
            caching={"True": True, "False": False}.get(cache.get("enable_prefix_caching", "")),
            num_blocks=_number(cache.get("num_gpu_blocks")),
            block_size=_number(cache.get("block_size")),
            ttft=span.mean("time_to_first_token_seconds"),
            ttft_p50=span.quantile("time_to_first_token_seconds", 0.5),
            ttft_p99=span.quantile("time_to_first_token_seconds", 0.99),
            ttft_early=early.mean("time_to_first_token_seconds"),
            ttft_late=late.mean("time_to_first_token_seconds"),
            queue=span.mean("request_queue_time_seconds"),
            prefill=span.mean("request_prefill_time_seconds"),
            e2e=span.mean("e2e_request_latency_seconds"),
            itl=span.mean("inter_token_latency_seconds"),
            itl_p99=span.tail("inter_token_latency_seconds", 0.99),
            itl_spread=_spread(scrapes),
            steps=span.more("iteration_tokens_total_count"),
            step_tokens=span.mean("iteration_tokens_total"),
            step_tokens_max=span.quantile("iteration_tokens_total", 1.0),
            prompt_len=span.mean("request_prompt_tokens"),
            output_len=span.mean("request_generation_tokens"),
            acceptance=span.share(
                "spec_decode_num_accepted_tokens_total", "spec_decode_num_draft_tokens_total"
            ),
            lora_slots=slots,
            lora_wanted=adapters,
            lora_waits=lora_waits,
            answer=fmean(answers) if answers else None,
            answer_max=max(answers) if answers else None,
            cpu=None
            if "process_cpu_seconds_total" not in scrapes[-1].values
            else span.more("process_cpu_seconds_total") / max(span.seconds, 1e-9),
            clock=median(clocks) if clocks else None,
            negative=_impossible(span, scrapes[-1]),
        )


def _is_stuck(pair: tuple[Scrape, Scrape]) -> bool:
    values, moved = pair[1].values, Between(*pair).more("generation_tokens_total")
    return bool(values.get("num_requests_waiting") and not values.get("num_requests_running") and not moved)


def _arrivals(span: Between) -> float:
    names = (
        "num_requests_running",
        "num_requests_waiting",
        "request_success_total",
        "admission_rejections_total",
    )
    return sum(map(span.more, names))


def _number(text: str | None) -> float | None:
    try:
        return float(text) if text is not None else None
    except ValueError:
        return None


def _spread(scrapes: Sequence[Scrape]) -> float | None:
    means = [
        mean
        for one, two in pairwise(scrapes)
        if (mean := Between(one, two).mean("inter_token_latency_seconds")) is not None
    ]
    return pstdev(means) / fmean(means) if len(means) >= 4 and fmean(means) > 0 else None


def _adapters(scrapes: Sequence[Scrape]) -> tuple[float | None, float | None, float]:
    """Return LoRA slots, the most adapters wanted at once, and the share of looks in which one waited."""
    found = [info for scrape in scrapes if (info := scrape.infos.get("lora_requests_info"))]
    if not found:
        return None, None, 0.0

    def names(info: Mapping[str, str], which: str) -> set[str]:
        return set(info.get(f"{which}_lora_adapters", "").split(",")) - {""}

    wanted = max(len(names(info, "running") | names(info, "waiting")) for info in found)
    waits = fmean([bool(names(info, "waiting")) for info in found])
    return _number(found[-1].get("max_lora")), float(wanted), waits


TIMES = ("time_to_first_token", "request_queue_time", "request_prefill_time", "request_decode_time",
         "e2e_request_latency", "inter_token_latency")  # fmt: skip
ABSURD_S = 1e7
"""A duration above 4 months is no duration but a time of day, or a difference of two clocks."""


def _impossible(span: Between, last: Scrape) -> tuple[str, ...]:
    """Return the histograms whose durations cannot be: negative, or far longer than any request."""
    found = []
    for name in TIMES:
        sum_s, count = span.more(f"{name}_seconds_sum"), span.more(f"{name}_seconds_count")
        if sum_s < 0 or (count > 0 and sum_s / count > ABSURD_S):
            found.append(name)
    ttft, e2e = span.mean("time_to_first_token_seconds"), span.mean("e2e_request_latency_seconds")
    queue = span.mean("request_queue_time_seconds")
    if (
        not found
        and e2e is not None
        and queue is not None
        and ttft is not None
        and queue > 3 * max(e2e, ttft)
    ):
        found.append("request_queue_time")
    return tuple(found)


@dataclass(frozen=True)
class LogFigures:
    """Figures of a request log's lines."""

    num: int
    distinct_heads: float
    """Distinct first blocks per request."""
    most_common_head: float
    """Share of the requests with the most frequent first block."""
    hits: float
    """Mean share of the prompt that was cached."""
    hit_tokens: float
    """Median cached tokens of a prompt."""
    again: float
    """Share of the requests whose prompt came before and was aborted then."""
    aborted: float
    heaviest: str
    heaviest_share: float
    """Share of all tokens that belong to the heaviest group: model and priority, or prefix."""
    skew: float
    """Seconds by which the log's newest end lies after the window, or (negative) before it."""
    texts: bool

    @classmethod
    def of(cls, lines: Sequence[Mapping[str, object]], ended_at: float, seconds: float) -> LogFigures:
        """Read the lines; one at least. The window's end is a time of day of this machine."""
        heads = Counter(line.get("prefix") for line in lines)
        weights: Counter[str] = Counter()
        aborted: set[object] = set()
        again = 0
        for line in lines:
            size = _float(line.get("prompt")) + _float(line.get("output"))
            weights[f"{line.get('model')} with priority {line.get('priority', 0)}"] += int(size)
            key = (line.get("prefix"), line.get("prompt"))
            again += key in aborted
            if line.get("finish_reason") == "abort":
                aborted.add(key)
        heaviest, tokens = weights.most_common(1)[0]
        newest = max(_float(line.get("arrival")) + _float(line.get("E2EMs")) / 1000 for line in lines)
        skew = max(0.0, newest - ended_at) or min(0.0, newest - (ended_at - seconds))
        return cls(
            num=len(lines),
            distinct_heads=len(heads) / len(lines),
            most_common_head=heads.most_common(1)[0][1] / len(lines),
            hits=fmean(
                [_float(line.get("prefix_len")) / max(1.0, _float(line.get("prompt"))) for line in lines]
            ),
            hit_tokens=median([_float(line.get("prefix_len")) for line in lines]),
            again=again / len(lines),
            aborted=fmean([line.get("finish_reason") == "abort" for line in lines]),
            heaviest=heaviest if len(weights) > 1 else "",
            heaviest_share=tokens / max(1, weights.total()),
            skew=skew,
            texts=any("prompt_text" in line for line in lines),
        )


def _float(value: object) -> float:
    return float(value) if isinstance(value, int | float) else 0.0


@dataclass(frozen=True)
class ProbeFigures:
    """Figures of the probe's requests as clients saw them, beside the server."""

    ttft_ids: float | None
    ttft_text: float | None
    itl: float | None
    ends: float | None
    """Share of the chat answers that ended by themselves."""
    differs: bool | None
    """Whether one prompt got other tokens through the shared cache than with a salt of its own."""
    failed: float
    said: str

    @classmethod
    def of(cls, answers: Sequence[Answer]) -> ProbeFigures:
        good = [answer for answer in answers if not answer.error]

        def middle(kind: str) -> float | None:
            times = [answer.ttft for answer in good if answer.kind == kind]
            return median(times) if times else None

        chats = [answer for answer in good if answer.kind == "chat"]
        pairs = [[answer.text for answer in good if answer.kind == kind] for kind in ("shared", "salted")]
        gaps = [answer.itl for answer in good if answer.kind == "long"]
        return cls(
            ttft_ids=middle("ids"),
            ttft_text=middle("text"),
            itl=median(gaps) if gaps else None,
            ends=fmean([answer.finish_reason == "stop" for answer in chats]) if chats else None,
            differs=any(one != two for one, two in zip(*pairs, strict=False)) if all(pairs) else None,
            failed=1 - len(good) / len(answers) if answers else 0.0,
            said=next((answer.error for answer in answers if answer.error), ""),
        )


@dataclass(frozen=True)
class GatewayFigures:
    """A comparison of the replicas behind a gateway."""

    affinity: bool
    num_replicas: int
    hit_rate: float | None
    """The rate of all replicas together."""
    least_hits: float | None
    most_hits: float | None
    attempts_per_response: float | None
    retries: float
    tenant: str
    tenant_share: float
    num_tenants: int
    canary: str
    canary_failed: float | None
    other_failed: float | None
    canary_ttft: float | None
    other_ttft: float | None
    canary_itl: float | None
    other_itl: float | None

    @classmethod
    def of(cls, gateway: Gateway) -> GatewayFigures:
        spans = {
            each.name: Between(each.looks[0].scrape, each.looks[-1].scrape)
            for each in gateway.replicas
            if len(each.looks) > 1
        }
        rates = [
            rate for span in spans.values()
            if (rate := span.share("prefix_cache_hits_total", "prefix_cache_queries_total")) is not None
        ]  # fmt: skip
        queries = sum(span.more("prefix_cache_queries_total") for span in spans.values())
        hits = sum(span.more("prefix_cache_hits_total") for span in spans.values())
        version = str((gateway.canary or {}).get("version", ""))
        total = sum(gateway.tenants.values())
        tenant = max(gateway.tenants, key=lambda name: gateway.tenants[name]) if gateway.tenants else ""

        def failed(is_canary: bool) -> float | None:
            ours = [each for each in gateway.replicas if (each.version == version) == is_canary]
            sent = sum(each.num_requests for each in ours)
            return sum(each.num_failed for each in ours) / sent if sent else None

        def mean(is_canary: bool, name: str) -> float | None:
            ours = [each.name for each in gateway.replicas if (each.version == version) == is_canary]
            count = sum(spans[each].more(f"{name}_count") for each in ours if each in spans)
            return (
                sum(spans[each].more(f"{name}_sum") for each in ours if each in spans) / count
                if count
                else None
            )

        ttft, itl = "time_to_first_token_seconds", "inter_token_latency_seconds"
        has = bool(version)
        return cls(
            affinity=any(word in gateway.policy for word in ("affinity", "hash", "bounded")),
            num_replicas=len(gateway.replicas),
            hit_rate=hits / queries if queries else None,
            least_hits=min(rates, default=None),
            most_hits=max(rates, default=None),
            attempts_per_response=gateway.num_attempts / gateway.num_responses
            if gateway.num_responses
            else None,
            retries=gateway.num_retries,
            tenant=tenant,
            tenant_share=gateway.tenants[tenant] / total if total else 0.0,
            num_tenants=len(gateway.tenants),
            canary=version,
            canary_failed=failed(True) if has else None,
            other_failed=failed(False) if has else None,
            canary_ttft=mean(True, ttft) if has else None,
            other_ttft=mean(False, ttft) if has else None,
            canary_itl=mean(True, itl) if has else None,
            other_itl=mean(False, itl) if has else None,
        )


@dataclass(frozen=True)
class Case:
    """All figures of a diagnosis; None: that input was not given."""

    now: Figures
    log: LogFigures | None = None
    probe: ProbeFigures | None = None
    gateway: GatewayFigures | None = None
    was: Figures | None = None
    was_log: LogFigures | None = None

    @classmethod
    def of(cls, evidence: Evidence, baseline: Evidence | None = None) -> Case:
        def log(of: Evidence | None) -> LogFigures | None:
            if of is None or not of.log:
                return None
            seconds = of.looks[-1].scrape.when - of.looks[0].scrape.when
            return LogFigures.of(of.log, of.ended_at, seconds)

        return cls(
            now=Figures.of(evidence.looks),
            log=log(evidence),
            probe=ProbeFigures.of(evidence.probe) if evidence.probe else None,
            gateway=GatewayFigures.of(evidence.gateway) if evidence.gateway is not None else None,
            was=Figures.of(baseline.looks) if baseline is not None and len(baseline.looks) > 1 else None,
            was_log=log(baseline),
        )
