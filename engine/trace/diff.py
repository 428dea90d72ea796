"""Compare two runs: first divergence, cause, effect.

    found = diff(TraceReader("a.itrace"), TraceReader("b.itrace"))
    found.first.step, found.first.a, found.first.b      # the decisions, in words, with each side's reasons
    found.requests, found.figures                       # per request, and for the whole run

The decision of a step is which tokens it computes and which requests it preempts. Requests are matched by id; among
requests with the same id, in order of arrival. Both runs are compared step by step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from engine.trace.divergence import Divergence, describe, divergences_of, first_difference, join_names
from engine.trace.protocol import Trace
from engine.trace.run_figures import Figure, RequestDelta, figures_of, request_deltas
from engine.trace.run_totals import Clock, RunTotals, clock


@dataclass
class TraceDiff:
    """The comparison of two runs. `describe` explains divergences after the first."""

    clocks: tuple[Clock, Clock]
    same_workload: bool
    workload_notes: list[str]  # sentences about how the workloads differ
    settings: list[tuple[str, Any, Any]]  # (name, a, b) of the scheduler's and cache's settings that differ
    divergences: list[int]
    """Steps of divergences: the first one, each preemption or admission in one run alone, and each step with different
    rows after a step with equal decisions."""
    num_different: int  # number of steps with different decisions
    first_blocks: int | None  # the first step whose block events differ; None: all are equal
    first: Divergence | None
    requests: list[RequestDelta]
    figures: list[Figure]

    def next_divergence(self, step: int) -> int | None:
        return next((found for found in self.divergences if found > step), None)

    def previous_divergence(self, step: int) -> int | None:
        return next((found for found in reversed(self.divergences) if found < step), None)


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
    )


def _workload_notes(a: RunTotals, b: RunTotals) -> list[str]:
    """How the workloads differ, request by request."""
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
    ours, theirs = _flat(a), _flat(b)
    values = [(name, ours.get(name), theirs.get(name)) for name in {**ours, **theirs}]
    return [(name, one, other) for name, one, other in values if one != other]


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
