"""Compare two runs: first divergence, cause, effect.

    found = diff(TraceReader("a.itrace"), TraceReader("b.itrace"))
    found.first.step, found.first.a, found.first.b      # the decisions, in words, with each side's reasons
    found.requests, found.figures                       # per request, and for the whole run

The decision of a step is which tokens it computes, which requests it preempts and how many blocks it copies between
device and host. Requests are matched by id; among requests with the same id, in order of arrival. Both runs are
compared step by step.
"""

from __future__ import annotations

from dataclasses import MISSING, dataclass, fields
from itertools import pairwise
from typing import Any, Literal

from engine.config import CacheConfig, SchedulerConfig, TierConfig
from engine.core.sched_output import Reason
from engine.trace.divergence import Divergence, describe, divergences_of, first_difference, join_names
from engine.trace.history import RequestHistory
from engine.trace.protocol import Trace
from engine.trace.run_totals import Clock, RunTotals, clock
from prep_common.percentile import percentile_or_none

Better = Literal["lower", "higher", ""]


@dataclass(frozen=True)
class RequestDelta:
    """One request in both runs. Pairs are (a, b); None: it did not happen, or the request is not in that run."""

    request_id: str
    first_token_step: tuple[int | None, int | None]
    end_step: tuple[int | None, int | None]
    waiting_steps: tuple[int, int]  # steps that it waited, before its start and after preemptions
    preemptions: tuple[int, int]
    cached_tokens: tuple[int, int]  # prefix hit at its first admission
    computed_tokens: tuple[int, int]  # tokens that its rows computed, including recomputed ones and drafts
    recomputed_tokens: tuple[int, int]
    output_tokens: tuple[int, int]
    tokens: str  # same, shorter (one is a prefix of the other), different at N, or missing in a or b
    ends: tuple[str, str]
    different_steps: list[tuple[int, int]]
    """(first, last) of the steps in which one run computed or preempted it and the other did not, or not alike."""

    @property
    def is_equal(self) -> bool:
        """Whether both runs did the same with it in every step."""
        return not self.different_steps and self.tokens == "same" and self.ends[0] == self.ends[1]


@dataclass(frozen=True)
class Figure:
    """One figure of both runs."""

    name: str
    unit: str
    a: float | None
    b: float | None
    better: Better  # the better direction; empty if it depends: fewer preemptions may come from longer waits

    @property
    def delta(self) -> float | None:
        return None if self.a is None or self.b is None else self.b - self.a


@dataclass
class TraceDiff:
    """The comparison of two runs. `describe` explains divergences after the first."""

    clocks: tuple[Clock, Clock]
    same_workload: bool
    workload_notes: list[str]  # sentences about how the workloads differ
    settings: list[tuple[str, Any, Any]]  # (name, a, b) of the scheduler's and cache's settings that differ
    divergences: list[int]
    """Steps of divergences: the first one, each preemption, swap-out or admission in one run alone, and each step with
    different rows or copies after a step with equal decisions."""
    num_different: int  # number of steps with different decisions
    first_blocks: int | None  # the first step whose block events differ; None: all are equal
    first: Divergence | None
    requests: list[RequestDelta]
    figures: list[Figure]
    waits: list[tuple[Reason, int]]
    """Reasons for which requests of the first run computed nothing, with the number of steps, most frequent first;
    without the requests that only waited behind another one."""

    def next_divergence(self, step: int) -> int | None:
        return next((divergence for divergence in self.divergences if divergence > step), None)

    def previous_divergence(self, step: int) -> int | None:
        return next((divergence for divergence in reversed(self.divergences) if divergence < step), None)


def diff(a: Trace, b: Trace) -> TraceDiff:
    """Compare two runs; differences are those of the second relative to the first."""
    one, other = RunTotals(a), RunTotals(b)
    divergences, num_different = divergences_of(one.decisions, other.decisions)
    return TraceDiff(
        clocks=(clock(a), clock(b)),
        same_workload=a.workload_hash == b.workload_hash,
        workload_notes=_workload_notes(one, other),
        settings=_settings(a, b),
        divergences=divergences,
        num_different=num_different,
        first_blocks=first_difference(one.blocks, other.blocks),
        first=describe(a, b, divergences[0]) if divergences else None,
        requests=request_deltas(one, other),
        figures=figures_of(one, other),
        waits=_waits(a),
    )


def _waits(reader: Trace) -> list[tuple[Reason, int]]:
    counts = {
        reason: len(reader.steps_with(reason)) for reason in Reason if reason is not Reason.BEHIND_IN_QUEUE
    }
    return sorted(((reason, count) for reason, count in counts.items() if count), key=lambda pair: -pair[1])


def _workload_notes(a: RunTotals, b: RunTotals) -> list[str]:
    """Differences of the workloads, request by request."""
    ours, theirs = (dict(zip(run.keys, run.reader.requests, strict=True)) for run in (a, b))
    notes = []
    if only := [key for key in ours if key not in theirs]:
        notes.append(f"only A has {join_names(only)}")
    if only := [key for key in theirs if key not in ours]:
        notes.append(f"only B has {join_names(only)}")
    for name, words in _WORKLOAD_FIELDS.items():
        other = [k for k, r in ours.items() if k in theirs and r.record[name] != theirs[k].record[name]]
        if other:
            notes.append(f"{join_names(other)} {'has' if len(other) == 1 else 'have'} {words}")
    moved = [key for key, request in ours.items() if key in theirs and request.added != theirs[key].added]
    if moved:
        notes.append(f"{join_names(moved)} arrived before another step")
    return notes


_WORKLOAD_FIELDS = {
    "prompt": "another prompt",
    "params": "other sampling parameters",
    "priority": "another priority",
    "lora": "another adapter",
    "salt": "another cache salt",
}


def _settings(a: Trace, b: Trace) -> list[tuple[str, Any, Any]]:
    """A setting that one file lacks is newer than that run, which had its default; one without a default is left
    out."""
    ours, theirs = _flat(a), _flat(b)
    values = [
        (n, ours.get(n, _DEFAULTS.get(n, _NEW)), theirs.get(n, _DEFAULTS.get(n, _NEW)))
        for n in {**ours, **theirs}
    ]
    return [(name, one, other) for name, one, other in values if one != other and _NEW not in (one, other)]


_NEW = object()
"""In place of a setting that a file does not know and that has no default."""


def _flat(reader: Trace) -> dict[str, Any]:
    """The settings of scheduler and cache, and the model, scheduler class and fork step, as one dictionary."""
    config = reader.header.get("config") or {}
    flat: dict[str, Any] = {}
    for part in (config.get("scheduler") or {}, config.get("cache") or {}):
        for name, value in part.items():
            if isinstance(value, dict):
                flat.update({f"{name}.{inner}": entry for inner, entry in value.items()})
            else:
                flat[name] = value
    flat["num_blocks"], flat["block_size"] = reader.num_blocks, reader.block_size
    flat |= {name: reader.header.get(name) for name in ("model", "scheduler_cls")}
    fork = reader.header.get("fork")
    return flat | {"changed from step": fork["at"] if fork and fork["at"] else None}


def _defaults() -> dict[str, Any]:
    """Settings of scheduler and cache with a default, named as in `_flat`."""
    defaults = {}
    for config, prefix in ((SchedulerConfig, ""), (CacheConfig, ""), (TierConfig, "tiers.")):
        defaults.update(
            {
                f"{prefix}{field.name}": field.default
                for field in fields(config)
                if field.default is not MISSING
            }
        )
    return defaults


_DEFAULTS = _defaults()


def request_deltas(a: RunTotals, b: RunTotals) -> list[RequestDelta]:
    """Compare all requests, in the order of arrival in the first run, then those that only the second run has."""
    ours, theirs = ({key: n for n, key in enumerate(run.keys)} for run in (a, b))
    return [_delta(key, a, ours.get(key), b, theirs.get(key)) for key in dict.fromkeys((*ours, *theirs))]


def _delta(key: str, a: RunTotals, number_a: int | None, b: RunTotals, number_b: int | None) -> RequestDelta:
    one, other = (None if n is None else run.reader.requests[n] for run, n in ((a, number_a), (b, number_b)))
    *numbers, ends = zip(_figures_of_request(a, one), _figures_of_request(b, other), strict=True)
    acts = [{} if n is None else run.lives[n].acts for run, n in ((a, number_a), (b, number_b))]
    values: list[Any] = [*numbers, _compare_tokens(one, other), ends, _different_steps(*acts)]
    return RequestDelta(key, *values)


def _different_steps(a: dict[int, int], b: dict[int, int]) -> list[tuple[int, int]]:
    spans: list[tuple[int, int]] = []
    for step in sorted({step for step, _ in a.items() ^ b.items()}):
        if spans and spans[-1][1] == step - 1:
            spans[-1] = (spans[-1][0], step)
        else:
            spans.append((step, step))
    return spans


def _figures_of_request(run: RunTotals, request: RequestHistory | None) -> tuple[Any, ...]:
    """The figures of one run, in the order of the pairs of RequestDelta."""
    if request is None:
        return (None, None, 0, 0, 0, 0, 0, 0, "missing")
    life = run.lives[request.number]
    return (
        life.token_steps[0] if life.token_steps else None,
        request.ended,
        _waiting_steps(run, request),
        len(request.preempted),
        request.num_cached_tokens,
        life.computed,
        life.recomputed,
        len(request.tokens),
        request.finish_reason or "unfinished",
    )


def _waiting_steps(run: RunTotals, request: RequestHistory) -> int:
    """Steps that a request waited."""
    last = run.reader.num_steps if request.ended is None else min(request.ended, run.reader.num_steps)
    ran = sum((last if stay.left is None else min(stay.left, last)) - stay.admitted for stay in request.stays)
    return max(0, last - request.added - ran)


def _compare_tokens(a: RequestHistory | None, b: RequestHistory | None) -> str:
    if a is None or b is None:
        return f"missing in {'a' if a is None else 'b'}"
    for index, (one, other) in enumerate(zip(a.tokens, b.tokens, strict=False)):
        if one != other:
            return f"different at {index}"
    return "same" if len(a.tokens) == len(b.tokens) else "shorter"


def figures_of(a: RunTotals, b: RunTotals) -> list[Figure]:
    ours, theirs = _sums(a), _sums(b)
    if clock(a.reader) == clock(b.reader) == "wall":
        ours, theirs = ours | _times(a), theirs | _times(b)
    return [Figure(*key[:2], ours[key], theirs[key], key[2]) for key in ours]


Figures = dict[tuple[str, str, Better], float | None]
"""(name, unit, better direction) -> figure of one run."""


def _sums(run: RunTotals) -> Figures:
    reader, lives = run.reader, run.lives
    with_output = zip(lives, reader.requests, strict=True)
    first = sorted(life.token_steps[0] - r.added + 1 for life, r in with_output if life.token_steps)
    between = sorted(later - earlier for life in lives for earlier, later in pairwise(life.token_steps))
    computed, busy = sum(life.computed for life in lives), run.busy_steps
    return {
        ("steps", "steps", ""): reader.num_steps,
        ("steps with rows", "steps", ""): busy,
        ("computed", "tokens", ""): computed,
        ("recomputed", "tokens", "lower"): sum(life.recomputed for life in lives),
        ("output", "tokens", ""): sum(len(request.tokens) for request in reader.requests),
        ("preemptions", "", ""): sum(len(decision.preempted) for decision in run.decisions),
        ("evictions", "blocks", ""): len(reader.events("evict")),
        ("prefix hits", "tokens", ""): sum(request.num_cached_tokens for request in reader.requests),
        ("found on resume", "tokens", ""): run.found_again,
        ("most waiting", "requests", ""): max(reader.series.waiting, default=0),
        ("running, mean", "requests", ""): round(sum(reader.series.running) / busy, 2) if busy else 0,
        ("budget used", "%", ""): (
            round(100 * computed / run.budget_offered, 1) if run.budget_offered else None
        ),
        ("first token, p50", "steps", "lower"): percentile_or_none(first, 50),
        ("first token, p99", "steps", "lower"): percentile_or_none(first, 99),
        ("between tokens, p50", "steps", "lower"): percentile_or_none(between, 50),
        ("between tokens, p99", "steps", "lower"): percentile_or_none(between, 99),
        ("finished", "requests", "higher"): sum(
            request.finish_reason in ("stop", "length") for request in reader.requests
        ),
    }


def _times(run: RunTotals) -> Figures:
    """Times of a run with a wall clock, in milliseconds. None is better: each is of one run, on a machine that may have
    had other work; steps tell more."""
    series, requests = run.reader.series, run.reader.requests
    ends = [begin + duration for begin, duration in zip(series.time_s, series.duration_s, strict=True)]
    first, between = [], []
    for life, request in zip(run.lives, requests, strict=True):
        if life.token_steps:
            first.append(1e3 * (ends[life.token_steps[0]] - request.added_s))
        between += [1e3 * (ends[later] - ends[earlier]) for earlier, later in pairwise(life.token_steps)]
    times: dict[str, float | None] = {"whole run": 1e3 * run.reader.duration_s}
    for name, values in (("TTFT", sorted(first)), ("ITL", sorted(between))):
        times |= {f"{name}, p{percent}": percentile_or_none(values, percent) for percent in (50, 99)}
    rounded = {name: None if value is None else round(value, 3) for name, value in times.items()}
    return {(name, "ms", ""): value for name, value in rounded.items()}
