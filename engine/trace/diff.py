"""Two runs beside each other: where they first decide differently and why, and what became of it.

    found = diff(TraceReader("a.itrace"), TraceReader("b.itrace"))
    found.first.step, found.first.a, found.first.b      # the decision, in words, with each side's reasons
    found.requests, found.figures                       # per request, and for the run as a whole

A decision is who computes which tokens in a step and who loses its blocks. Requests are matched by name; of several
that bore one, the first with the first. Steps count from 0, and both runs are compared step by step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Literal, NamedTuple

from common.percentile import percentile_or_none
from engine.trace.format import TraceError
from engine.trace.reader import TraceReader
from engine.trace.replay import RequestHistory
from engine.trace.script import WalkedRow, walk
from engine.trace.why import why

MOST_REASONS = 4
"""Requests whose reasons a divergence tells: those whose blocks were taken first, then newcomers."""

Clock = Literal["wall", "steps"]
Better = Literal["lower", "higher", ""]


class Decision(NamedTuple):
    """What one step decided, by request key (`_key_of`)."""

    rows: dict[str, tuple[int, int]]
    """(first token computed, how many)"""
    admitted: frozenset[str]
    preempted: frozenset[str]


class _Mark(NamedTuple):
    """A decision to compare and not to read: of a long run, all rows would not fit into memory."""

    rows: int
    """Sum of the hashes of who computes what; 0 without rows."""
    admitted: frozenset[str]
    preempted: frozenset[str]


@dataclass(frozen=True)
class Side:
    """What one run did in a step in which the other did something else."""

    decided: str
    """One sentence on what only this run did; says so if that is nothing."""
    reasons: list[str]
    """Of the requests concerned, in the same order on both sides: why they ran or did not."""


@dataclass(frozen=True)
class Divergence:
    """A step in which two runs decide differently."""

    step: int
    kinds: list[str]
    """What differs: rows, admitted, preempted, end (one run is over)."""
    requests: list[str]
    """Those concerned."""
    a: Side
    b: Side


@dataclass(frozen=True)
class RequestDelta:
    """One request in both runs. Pairs are (a, b); None: it never came to that, or is not in that run."""

    request_id: str
    first_token_step: tuple[int | None, int | None]
    end_step: tuple[int | None, int | None]
    waiting_steps: tuple[int, int]
    """Steps that it lived and did not run, before its start and after preemptions."""
    preemptions: tuple[int, int]
    cached_tokens: tuple[int, int]
    """Prefix hit at its first start."""
    computed_tokens: tuple[int, int]
    """Tokens that its rows computed, recomputed ones and drafts included."""
    recomputed_tokens: tuple[int, int]
    output_tokens: tuple[int, int]
    tokens: str
    """same, shorter (one is the other's beginning), different at N, or missing in a or b."""
    ends: tuple[str, str]


@dataclass(frozen=True)
class Figure:
    """One figure of both runs."""

    name: str
    unit: str
    a: float | None
    b: float | None
    better: Better
    """Which way is better, if one can say."""

    @property
    def delta(self) -> float | None:
        return None if self.a is None or self.b is None else self.b - self.a


@dataclass
class TraceDiff:
    """Everything that is compared. Divergences after the first are told by `describe`."""

    clocks: tuple[Clock, Clock]
    same_workload: bool
    workload_notes: list[str]
    """What one run was asked and the other not, in sentences."""
    settings: list[tuple[str, Any, Any]]
    """(name, a, b) of the scheduler's and cache's settings that differ."""
    divergences: list[int]
    """Steps where the runs part anew: the first one, each preemption or admission of one run alone, and each step
    that computes differently after one that did not."""
    num_different: int
    """Steps in which they decide differently, in all."""
    first_blocks: int | None
    """The first step in which blocks change differently, whatever was decided; None: never."""
    first: Divergence | None
    requests: list[RequestDelta]
    figures: list[Figure]

    def next_divergence(self, step: int) -> int | None:
        return next((found for found in self.divergences if found > step), None)

    def previous_divergence(self, step: int) -> int | None:
        return next((found for found in reversed(self.divergences) if found < step), None)


def diff(a: TraceReader, b: TraceReader) -> TraceDiff:
    """Compare two runs; the second is told relative to the first."""
    one, other = _Walk(a), _Walk(b)
    divergences, num_different = _divergences(one.decisions, other.decisions)
    notes = _workload_notes(one, other)
    return TraceDiff(
        clocks=(clock(a), clock(b)),
        same_workload=a.workload_hash == b.workload_hash,
        workload_notes=notes,
        settings=_settings(a, b),
        divergences=divergences,
        num_different=num_different,
        first_blocks=_first_difference(one.blocks, other.blocks),
        first=describe(a, b, divergences[0]) if divergences else None,
        requests=_requests(one, other),
        figures=_figures(one, other),
    )


def clock(reader: TraceReader) -> Clock:
    """What the seconds of a trace are. In a scripted run no model runs, and no step takes time."""
    return "wall" if reader.header.get("clock") != "steps" and any(reader.series.duration_s) else "steps"


def describe(a: TraceReader, b: TraceReader, step: int) -> Divergence:
    """What two runs decided in a step, and both sides' reasons. Both may well have decided the same."""
    one, other = decision_at(a, step), decision_at(b, step)
    if one is None or other is None:
        sides = [_over(a, one, step), _over(b, other, step)]
        return Divergence(step, ["end"], [], sides[0], sides[1])
    concerned = _concerned(one, other)
    kinds = [name for name in ("preempted", "admitted", "rows") if getattr(one, name) != getattr(other, name)]
    told = concerned[:MOST_REASONS]
    return Divergence(
        step,
        kinds,
        concerned,
        Side(_decided(one, other, _budgets(a)(step)), [_reason(a, key, step) for key in told]),
        Side(_decided(other, one, _budgets(b)(step)), [_reason(b, key, step) for key in told]),
    )


def decision_at(reader: TraceReader, step: int) -> Decision | None:
    """What a step decided; None after the end of the run."""
    if step >= reader.num_steps:
        return None
    record = reader.step(step)
    keys = _keys_by_name(reader, step)
    return Decision(
        {keys[row.request_id]: (row.start, row.num_tokens) for row in record.rows},
        frozenset(keys[name] for name in (*record.admitted, *record.resumed)),
        frozenset(keys[name] for name in record.preempted),
    )


# ---------------------------------------------------------------------- reading a run once


@dataclass
class _Life:
    """What one request's rows add up to."""

    computed: int = 0
    recomputed: int = 0
    reached: int = 0
    """Most tokens whose KV it had at any time."""
    token_steps: list[int] = field(default_factory=list)


_NOBODY: frozenset[str] = frozenset()


class _Walk:
    """A whole run in one pass: its decisions, block events, and sums."""

    def __init__(self, reader: TraceReader) -> None:
        self.reader = reader
        self.keys = _keys(reader)
        self.prompts = [request.num_prompt_tokens for request in reader.requests]
        self.lives = [_Life() for _ in self.prompts]
        self.decisions: list[_Mark] = []
        self.blocks: list[int] = []
        """Per step, a hash of what happened to blocks, in order."""
        self.busy_steps = 0
        self.budget_offered = 0
        self.found_again = 0
        """Tokens that preempted requests found when they came back."""
        budgets = _budgets(reader)
        for step, record, rows in walk(reader):
            self._take(step, record, rows)
            if rows:
                self.busy_steps += 1
                self.budget_offered += budgets(step)

    def _take(self, step: int, record: dict[str, Any], rows: list[WalkedRow]) -> None:
        keys = self.keys
        admitted = [number for number, *_ in (*record.get("new", ()), *record.get("res", ()))]
        self.found_again += sum(start for _, start, *_ in record.get("res", ()))
        self.decisions.append(
            _Mark(
                sum(hash((keys[row.number], row.start, row.num_tokens)) for row in rows),
                frozenset(keys[number] for number in admitted) if admitted else _NOBODY,
                frozenset(keys[number] for number in record["pre"]) if "pre" in record else _NOBODY,
            )
        )
        events = [
            (kind, None if number is None else keys[number], *map(tuple, rest))
            for kind, number, *rest in record.get("ev", ())
        ]
        self.blocks.append(hash(tuple(events)))
        for row in rows:
            life, end = self.lives[row.number], row.start + row.num_tokens
            life.computed += row.num_tokens
            life.recomputed += max(0, min(end, life.reached) - row.start)
            known = self.prompts[row.number] + row.num_outputs + len(row.tokens)
            life.reached = max(life.reached, min(end, known))
            life.token_steps += [step] * len(row.tokens)


def _budgets(reader: TraceReader) -> Any:
    """step -> max_num_batched_tokens; 0 if the file does not say."""
    fork = reader.header.get("fork") or {}

    def of(config: Any) -> int:
        return int(((config or {}).get("scheduler") or {}).get("max_num_batched_tokens") or 0)

    after, before = of(reader.header.get("config")), of(fork.get("before"))
    return lambda step: before if fork and step < fork.get("at", 0) else after


def _keys(reader: TraceReader) -> list[str]:
    """By number: the name, with #2, #3 for later requests of the same name."""
    seen: dict[str, int] = {}
    keys = []
    for request in reader.requests:
        seen[request.request_id] = count = seen.get(request.request_id, 0) + 1
        keys.append(request.request_id if count == 1 else f"{request.request_id}#{count}")
    return keys


def _keys_by_name(reader: TraceReader, step: int) -> dict[str, str]:
    """Name -> key of whoever bears it in a step."""
    keys = {}
    for request, key in zip(reader.requests, _keys(reader), strict=True):
        if request.added <= step and (request.ended is None or request.ended >= step):
            if request.row_before(step) >= 0 or request.request_id not in keys:
                keys[request.request_id] = key
    return keys


def _name_of(key: str) -> str:
    name, separator, count = key.rpartition("#")
    return name if separator and count.isdigit() else key


# ---------------------------------------------------------------------- where they part


def _divergences(a: Sequence[_Mark], b: Sequence[_Mark]) -> tuple[list[int], int]:
    steps, num_different, was_same = [], 0, True
    for step in range(max(len(a), len(b))):
        if step >= min(len(a), len(b)):
            longer = a if len(a) > len(b) else b
            left = [later for later in range(step, len(longer)) if longer[later].rows]
            if left:
                steps.append(left[0])
            return steps, num_different + len(left)
        one, other = a[step], b[step]
        if one == other:
            was_same = True
            continue
        num_different += 1
        if was_same or one.preempted != other.preempted or one.admitted != other.admitted:
            steps.append(step)
        was_same = False
    return steps, num_different


def _first_difference(a: Sequence[Any], b: Sequence[Any]) -> int | None:
    for step, (one, other) in enumerate(zip(a, b, strict=False)):
        if one != other:
            return step
    return None


def _concerned(a: Decision, b: Decision) -> list[str]:
    """Those of whom the runs decided differently: victims, newcomers, then rows, in the order of the batch."""
    rows = [key for key in {**a.rows, **b.rows} if a.rows.get(key) != b.rows.get(key)]
    parts = (sorted(a.preempted ^ b.preempted), sorted(a.admitted ^ b.admitted), rows)
    return list(dict.fromkeys(key for part in parts for key in part))


def _decided(mine: Decision, other: Decision, budget: int) -> str:
    """What only one run did, and how full its step was."""
    said = []
    if lost := sorted(mine.preempted - other.preempted):
        said.append(f"preempted {_list(lost)}")
    if began := sorted(mine.admitted - other.admitted):
        said.append(f"started {_list([f'{key} ({_tokens(mine.rows.get(key))})' for key in began])}")
    shorter = [
        f"{key} ({_tokens(row)} instead of {_tokens(other.rows[key])})"
        for key, row in mine.rows.items()
        if key in other.rows and row != other.rows[key]
    ]
    if shorter:
        said.append(f"computed {_list(shorter)}")
    alone = [key for key in mine.rows if key not in other.rows and key not in mine.admitted]
    if alone:
        said.append(f"computed {_list([f'{key} ({_tokens(mine.rows[key])})' for key in alone])}")
    left_out = [key for key in other.rows if key not in mine.rows and key not in mine.preempted]
    if left_out:
        said.append(f"left out {_list(left_out)}")
    total = sum(num_tokens for _, num_tokens in mine.rows.values())
    words = "; ".join(said) or "did nothing that the other did not"
    share = f"{total} of at most {budget} tokens" if budget else f"{total} tokens"
    return f"{words[:1].upper()}{words[1:]}. {len(mine.rows)} rows, {share}."


def _tokens(row: tuple[int, int] | None) -> str:
    if row is None:
        return "no tokens"
    start, count = row
    return f"{count} token{'' if count == 1 else 's'} from position {start}"


def _list(words: Sequence[str], most: int = 4) -> str:
    more = f" and {len(words) - most} more" if len(words) > most else ""
    return ", ".join(words[:most]) + more


def _reason(reader: TraceReader, key: str, step: int) -> str:
    try:
        return why(reader, _name_of(key), step).sentence
    except TraceError:
        return f"{key} is not in this run."


def _over(reader: TraceReader, decision: Decision | None, step: int) -> Side:
    if decision is None:
        failed = f": {reader.error}" if reader.error else ""
        return Side(f"This run is over since step {reader.num_steps - 1}{failed}.", [])
    total = sum(num_tokens for _, num_tokens in decision.rows.values())
    return Side(f"Goes on: {_list(list(decision.rows))} compute {total} tokens in step {step}.", [])


# ---------------------------------------------------------------------- what was asked


def _workload_notes(a: _Walk, b: _Walk) -> list[str]:
    """How the workloads differ, request by request."""
    ours = dict(zip(a.keys, a.reader.requests, strict=True))
    theirs = dict(zip(b.keys, b.reader.requests, strict=True))
    notes = []
    if only := [key for key in ours if key not in theirs]:
        notes.append(f"only A was asked {_list(only)}")
    if only := [key for key in theirs if key not in ours]:
        notes.append(f"only B was asked {_list(only)}")
    for name, words in _ASKED.items():
        other = [k for k, r in ours.items() if k in theirs and r.record[name] != theirs[k].record[name]]
        if other:
            notes.append(f"{_list(other)} {'has' if len(other) == 1 else 'have'} {words}")
    moved = [key for key, request in ours.items() if key in theirs and request.added != theirs[key].added]
    if moved:
        notes.append(f"{_list(moved)} came before another step")
    return notes


_ASKED = {
    "prompt": "another prompt",
    "params": "other sampling parameters",
    "priority": "another priority",
    "lora": "another adapter",
    "salt": "another cache salt",
}


def _settings(a: TraceReader, b: TraceReader) -> list[tuple[str, Any, Any]]:
    ours, theirs = _flat(a), _flat(b)
    names = list(dict.fromkeys((*ours, *theirs)))
    return [(name, ours.get(name), theirs.get(name)) for name in names if ours.get(name) != theirs.get(name)]


def _flat(reader: TraceReader) -> dict[str, Any]:
    """The scheduler's and the cache's settings, and what stands beside them."""
    config = reader.header.get("config") or {}
    flat: dict[str, Any] = {}
    for part in (config.get("scheduler") or {}, config.get("cache") or {}):
        for name, value in part.items():
            if isinstance(value, dict):
                flat.update({f"{name}.{inner}": entry for inner, entry in value.items()})
            else:
                flat[name] = value
    flat["num_blocks"], flat["block_size"] = reader.num_blocks, reader.block_size
    for name in ("model", "scheduler_cls"):
        flat[name] = reader.header.get(name)
    fork = reader.header.get("fork")
    flat["changed from step"] = fork["at"] if fork and fork["at"] else None
    return flat


# ---------------------------------------------------------------------- figures


def _requests(a: _Walk, b: _Walk) -> list[RequestDelta]:
    """In the order of arrival in the first run, then those that only the second has."""
    ours, theirs = ({key: n for n, key in enumerate(run.keys)} for run in (a, b))
    return [_delta(key, a, ours.get(key), b, theirs.get(key)) for key in dict.fromkeys((*ours, *theirs))]


def _delta(key: str, a: _Walk, number_a: int | None, b: _Walk, number_b: int | None) -> RequestDelta:
    (one, life_a), (other, life_b) = _find(a, number_a), _find(b, number_b)
    return RequestDelta(
        key,
        (_first(life_a), _first(life_b)),
        (one.ended if one else None, other.ended if other else None),
        (_waiting_steps(a, one), _waiting_steps(b, other)),
        (len(one.preempted) if one else 0, len(other.preempted) if other else 0),
        (one.num_cached_tokens if one else 0, other.num_cached_tokens if other else 0),
        (life_a.computed, life_b.computed),
        (life_a.recomputed, life_b.recomputed),
        (len(one.tokens) if one else 0, len(other.tokens) if other else 0),
        _compare_tokens(one, other),
        (_end(one), _end(other)),
    )


def _find(run: _Walk, number: int | None) -> tuple[RequestHistory | None, _Life]:
    return (None, _Life()) if number is None else (run.reader.requests[number], run.lives[number])


def _first(life: _Life) -> int | None:
    return life.token_steps[0] if life.token_steps else None


def _end(request: RequestHistory | None) -> str:
    return "missing" if request is None else (request.finish_reason or "unfinished")


def _waiting_steps(run: _Walk, request: RequestHistory | None) -> int:
    """Steps after which it lived and did not run."""
    if request is None:
        return 0
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


def _figures(a: _Walk, b: _Walk) -> list[Figure]:
    ours, theirs = _sums(a), _sums(b)
    figures = [Figure(name, unit, ours[name], theirs[name], better) for name, unit, better in _FIGURES]
    if clock(a.reader) == clock(b.reader) == "wall":
        times = (_times(a), _times(b))
        figures += [Figure(name, "ms", times[0][name], times[1][name], "lower") for name in times[0]]
    return figures


_FIGURES: tuple[tuple[str, str, Better], ...] = (
    ("steps", "steps", "lower"),
    ("steps with rows", "steps", "lower"),
    ("computed", "tokens", "lower"),
    ("recomputed", "tokens", "lower"),
    ("output", "tokens", "higher"),
    ("preemptions", "", "lower"),
    ("evictions", "blocks", "lower"),
    ("prefix hits", "tokens", "higher"),
    ("found again", "tokens", "higher"),
    ("most waiting", "requests", "lower"),
    ("running, mean", "requests", ""),
    ("budget used", "%", "higher"),
    ("first token, p50", "steps", "lower"),
    ("first token, p99", "steps", "lower"),
    ("between tokens, p50", "steps", "lower"),
    ("between tokens, p99", "steps", "lower"),
    ("finished", "requests", "higher"),
)


def _sums(run: _Walk) -> dict[str, float | None]:
    reader = run.reader
    series = reader.series
    first = sorted(
        life.token_steps[0] - request.added + 1
        for life, request in zip(run.lives, reader.requests, strict=True)
        if life.token_steps
    )
    between = sorted(later - earlier for life in run.lives for earlier, later in pairwise(life.token_steps))
    computed = sum(life.computed for life in run.lives)
    return {
        "steps": reader.num_steps,
        "steps with rows": run.busy_steps,
        "computed": computed,
        "recomputed": sum(life.recomputed for life in run.lives),
        "output": sum(len(request.tokens) for request in reader.requests),
        "preemptions": sum(len(decision.preempted) for decision in run.decisions),
        "evictions": len(reader.events("evict")),
        "prefix hits": sum(request.num_cached_tokens for request in reader.requests),
        "found again": run.found_again,
        "most waiting": max(series.waiting, default=0),
        "running, mean": round(sum(series.running) / run.busy_steps, 2) if run.busy_steps else 0,
        "budget used": round(100 * computed / run.budget_offered, 1) if run.budget_offered else None,
        "first token, p50": percentile_or_none(first, 50),
        "first token, p99": percentile_or_none(first, 99),
        "between tokens, p50": percentile_or_none(between, 50),
        "between tokens, p99": percentile_or_none(between, 99),
        "finished": sum(request.finish_reason in ("stop", "length") for request in reader.requests),
    }


def _times(run: _Walk) -> dict[str, float | None]:
    """Milliseconds of a run with a wall clock."""
    series, requests = run.reader.series, run.reader.requests
    ends = [begin + duration for begin, duration in zip(series.time_s, series.duration_s, strict=True)]
    first, between = [], []
    for life, request in zip(run.lives, requests, strict=True):
        if life.token_steps:
            first.append(1e3 * (ends[life.token_steps[0]] - request.added_s))
        between += [1e3 * (ends[later] - ends[earlier]) for earlier, later in pairwise(life.token_steps)]
    first.sort()
    between.sort()
    rounded = {
        "whole run": 1e3 * run.reader.duration_s,
        "TTFT, p50": percentile_or_none(first, 50),
        "TTFT, p99": percentile_or_none(first, 99),
        "ITL, p50": percentile_or_none(between, 50),
        "ITL, p99": percentile_or_none(between, 99),
    }
    return {name: None if value is None else round(value, 3) for name, value in rounded.items()}
