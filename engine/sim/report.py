"""Results of a run. Scripts read the field names in JSON: add fields, never rename them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from math import fsum

from engine.sim.recorder import Recorder, RequestRecord
from prep_common.percentile import percentile


@dataclass(frozen=True)
class Percentiles:
    """Summary of a time in seconds; the percentiles are those of `prep_common.percentile`."""

    count: int
    mean: float
    p50: float
    p90: float
    p95: float
    p99: float
    max: float


def percentiles(values: Sequence[float], counts: Sequence[int] | None = None) -> Percentiles | None:
    """Summarise values, the i-th repeated `counts[i]` times (default once). Return None without values."""
    if not values:
        return None
    pairs = sorted(zip(values, counts or [1] * len(values), strict=True))
    ordered = _Repeated(pairs)
    mean = fsum(value * count for value, count in pairs) / len(ordered)
    p50, p90, p95, p99 = (percentile(ordered, percent) for percent in (50, 90, 95, 99))
    return Percentiles(len(ordered), mean, p50, p90, p95, p99, pairs[-1][0])


class _Repeated:
    """View of (value, count) pairs as a sequence with every value repeated `count` times."""

    def __init__(self, pairs: Sequence[tuple[float, int]]) -> None:
        self._pairs = pairs
        self._ends = list(accumulate(count for _, count in pairs))

    def __len__(self) -> int:
        return self._ends[-1]

    def __getitem__(self, index: int) -> float:
        return self._pairs[bisect_right(self._ends, index)][0]


@dataclass
class RunReport:
    """Results of one run. Seconds are virtual, shares are 0 to 1."""

    num_requests: int
    num_finished: int
    num_rejected: int
    rejected_because: str | None
    seconds: float  # time from the first arrival to the last token
    requests_per_s: float
    output_tokens_per_s: float
    total_tokens_per_s: float
    prompt_tokens: int
    output_tokens: int
    ttft: Percentiles | None
    itl: Percentiles | None
    tpot: Percentiles | None
    e2e: Percentiles | None
    queue: Percentiles | None
    num_steps: int
    mean_step_seconds: float
    busy_share: float  # share of the time spent in steps
    prefill_tokens: int  # computed: prompts less prefix hits, plus recomputation after preemptions
    num_preemptions: int
    mean_running: float  # mean while busy, as for the next fields
    peak_running: int
    mean_waiting: float
    peak_waiting: int
    mean_kv_cache_usage: float
    peak_kv_cache_usage: float
    prefix_cache_hit_rate: float
    host_bytes: int  # bytes of KV copied between a device and its host
    config: dict[str, object] = field(default_factory=dict)  # settings of the run


def summarise(
    recorders: Sequence[Recorder],
    num_blocks: int,
    rejected: Sequence[tuple[object, str]],
    finished: Sequence[RequestRecord] | None = None,
) -> RunReport:
    """Summarise the records of one or several engines. `num_blocks`: usable blocks of each engine.

    finished: the whole requests, if each ran on several engines.
    """
    if finished is None:
        finished = [record for recorder in recorders for record in recorder.finished]
    gaps = [gap for recorder in recorders for gap in recorder.gaps]
    counts = [count for recorder in recorders for count in recorder.gap_counts]
    start = min((record.arrival for record in finished), default=0.0)
    seconds = max((record.last_token for record in finished), default=0.0) - start
    output_tokens = sum(record.num_tokens for record in finished)
    prompt_tokens = sum(record.request.prompt_len for record in finished)
    busy = fsum(recorder.step_seconds for recorder in recorders)
    queries = sum(recorder.prefix_queries for recorder in recorders)
    num_steps = sum(recorder.num_steps for recorder in recorders)
    return RunReport(
        num_requests=len(finished) + len(rejected),
        num_finished=len(finished),
        num_rejected=len(rejected),
        rejected_because=rejected[0][1] if rejected else None,
        seconds=seconds,
        requests_per_s=_over(len(finished), seconds),
        output_tokens_per_s=_over(output_tokens, seconds),
        total_tokens_per_s=_over(output_tokens + prompt_tokens, seconds),
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        ttft=percentiles([record.ttft for record in finished]),
        itl=percentiles(gaps, counts),
        tpot=percentiles([record.tpot for record in finished if record.num_tokens > 1]),
        e2e=percentiles([record.e2e for record in finished]),
        queue=percentiles([record.queue_time for record in finished]),
        num_steps=num_steps,
        mean_step_seconds=_over(busy, num_steps),
        busy_share=_over(busy, seconds * len(recorders)),
        prefill_tokens=sum(recorder.num_prefill_tokens for recorder in recorders),
        num_preemptions=sum(recorder.num_preemptions for recorder in recorders),
        mean_running=_over(fsum(recorder.running_seconds for recorder in recorders), busy),
        peak_running=max((recorder.peak_running for recorder in recorders), default=0),
        mean_waiting=_over(fsum(recorder.waiting_seconds for recorder in recorders), busy),
        peak_waiting=max((recorder.peak_waiting for recorder in recorders), default=0),
        mean_kv_cache_usage=_over(fsum(r.used_block_seconds for r in recorders), busy * num_blocks),
        peak_kv_cache_usage=_over(max((r.peak_used_blocks for r in recorders), default=0), num_blocks),
        prefix_cache_hit_rate=_over(sum(recorder.prefix_hits for recorder in recorders), queries),
        host_bytes=sum(recorder.host_bytes for recorder in recorders),
    )


def _over(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
