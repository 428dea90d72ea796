"""Explain why a request did or did not run in a step: the scheduler's reason, its figures, and a sentence.

For every request and step there is exactly one answer: the request had not arrived, was scheduled, had ended,
or was not scheduled for one `Reason`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from engine.core.sched_output import PASSED_OVER, NotScheduled, Reason
from engine.trace.adapters import why_no_slot
from engine.trace.history import RequestHistory
from engine.trace.protocol import Trace
from engine.trace.records import Row, StepRecord
from prep_common.text import counted

Answer = Literal["not_arrived", "scheduled", "not_scheduled", "finished", "aborted"]


@dataclass(frozen=True)
class Why:
    """The answer for a request and a step."""

    request_id: str
    step: int
    answer: Answer
    sentence: str
    reason: Reason | None = None  # of `not_scheduled`; None if it arrived while the step ran
    details: dict[str, int] | None = None  # the scheduler's figures for the reason
    position: int | None = None  # in the waiting queue after the step, 1 is the head; None: it does not wait
    num_waiting: int = 0


@dataclass(frozen=True)
class WhySpan:
    """Consecutive steps with the same answer."""

    first: int
    last: int
    why: Why  # the answer for the first step


def why(reader: Trace, request_id: str, step: int) -> Why:
    """The one answer for a request and a step."""
    return _why(reader, reader.find(request_id, step), reader.step(step))


def why_spans(reader: Trace, request_id: str, step: int | None = None) -> list[WhySpan]:
    """All steps of a request as spans of one answer and reason each. Of several requests with the id, the last that
    had arrived at `step`."""
    request = reader.find(request_id, step)
    last = reader.num_steps - 1 if request.ended is None else min(request.ended, reader.num_steps - 1)
    scheduled = set(request.row_steps)
    spans: list[WhySpan] = []
    before: tuple[str, Reason | None] | None = None
    for step in range(request.added, last + 1):
        kind: tuple[str, Reason | None] = ("scheduled" if step in scheduled else "ended", None)
        if step not in scheduled and request.lives_at(step):
            entry = _entry_for(request, step, reader.reasons(step))
            kind = ("not_scheduled", entry.reason if entry else None)
        if kind == before:
            spans[-1] = WhySpan(spans[-1].first, step, spans[-1].why)
        else:
            spans.append(WhySpan(step, step, _why(reader, request, reader.step(step))))
        before = kind
    return spans


def _why(reader: Trace, request: RequestHistory, record: StepRecord) -> Why:
    step, name = record.step, request.request_id
    if step < request.added:
        sentence = f"Request {name} arrives later, just before step {request.added}."
        return Why(name, step, "not_arrived", sentence)
    row = next((row for row in record.rows if row.request_id == name), None)
    if row is not None:
        return Why(name, step, "scheduled", _describe_row(request, row, record))
    if not request.lives_at(step):
        if request.aborted:
            return Why(name, step, "aborted", f"Request {name} was aborted before step {request.ended}.")
        sentence = f"Request {name} finished in step {request.ended} ({request.finish_reason})."
        return Why(name, step, "finished", sentence)
    return _why_not(reader, request, record)


def _describe_row(request: RequestHistory, row: Row, record: StepRecord) -> str:
    if row.phase == "decode":
        work = f"computed its newest token, at position {row.start}"
    else:
        work = f"computed {counted(row.num_tokens, 'token')} from position {row.start}"
    share = f"{row.num_tokens} of the step's {record.num_tokens} tokens"
    behind = "its recomputation" if request.num_outputs_at(record.step - 1) else "its prompt"
    output = (
        f" and produced {counted(len(row.tokens), 'token')}" if row.tokens else f"; {behind} is not finished"
    )
    return singular(f"Request {row.request_id} was scheduled: it {work} ({share}){output}.")


def _why_not(reader: Trace, request: RequestHistory, record: StepRecord) -> Why:
    name, step = request.request_id, record.step
    waiting = [] if request.stay_at(step) else reader.state_at(step).waiting
    position = waiting.index(name) + 1 if waiting else None
    entry = _entry_for(request, step, record.not_scheduled)
    if entry is None:
        sentence = f"Request {name} arrived while step {step} ran, too late to be scheduled in it."
        return Why(name, step, "not_scheduled", sentence, None, None, position, len(waiting))
    cause = _fill(_CAUSES[entry.reason], entry.details)
    if entry.reason is Reason.NO_BLOCKS and name in record.preempted:
        cause = _fill(_PREEMPTED_ITSELF, entry.details)
    if name in record.preempted and (rule := victim_rule(reader, step)):
        cause = f"{cause} ({rule})"
    if entry.reason is Reason.BEHIND_IN_QUEUE:
        cause = _name_the_head(reader, record, cause)
    if entry.reason is Reason.NO_LORA_SLOT:
        cause = why_no_slot(reader, request, record) or cause
    verb = "waits" if waiting else "did not run"
    place = "" if position is None else f" Queue position: {position} of {len(waiting)}."
    sentence = f"Request {name} {verb} because {cause}.{place}"
    return Why(name, step, "not_scheduled", sentence, entry.reason, entry.details, position, len(waiting))


def victim_rule(reader: Trace, step: int) -> str:
    """The policy by which the scheduler chose the request to preempt; empty if a user's class chose it."""
    header = reader.header
    if header.get("scheduler_cls") not in (None, "engine.core.scheduler:Scheduler"):
        return ""
    fork = header.get("fork") or {}
    config = fork.get("before") if fork and step < fork.get("at", 0) else header.get("config")
    policy = ((config or {}).get("scheduler") or {}).get("policy")
    return _LEAST_IMPORTANT.get(str(policy), "")


def _entry_for(request: RequestHistory, step: int, entries: list[NotScheduled]) -> NotScheduled | None:
    """The request's own entry, or the one for all requests not named; None if it arrived while the step ran."""
    if request.arrived_during(step):
        return None
    own = next((entry for entry in entries if entry.request_id == request.request_id), None)
    return own or next((entry for entry in entries if entry.request_id is None), None)


def _name_the_head(reader: Trace, record: StepRecord, cause: str) -> str:
    """Add the first request of the queue that could not start, and why."""
    named = [entry for entry in record.not_scheduled if entry.request_id is not None]
    ahead = [entry for entry in named if entry.reason is Reason.NO_BLOCKS]
    ahead += [entry for entry in named if entry.reason in PASSED_OVER]
    if not ahead:
        return cause
    return f"{cause}. Request {ahead[0].request_id} waits because {_fill(_CAUSES[ahead[0].reason], ahead[0].details)}"


def _fill(sentence: str, figures: dict[str, int]) -> str:
    return singular(sentence.format_map(Figures(figures)))


def singular(sentence: str) -> str:
    """Replace "1 blocks" with "1 block"."""
    return re.sub(r"(?<![\d,.])1 (more )?(block|token|load|request)s\b", r"1 \1\2", sentence)


class Figures(dict[str, int]):
    """Fills in ? for a figure that a user's scheduler did not report."""

    def __missing__(self, key: str) -> str:
        return "?"


_CAUSES = {
    Reason.BUDGET_EXHAUSTED: "the step's token budget ran out: {need} to compute, {left} left",
    Reason.MAX_NUM_SEQS: "max_num_seqs ({running}) requests already run",
    Reason.NO_BLOCKS: "it needs {need} more blocks with {free} free ({evictable} of these still cached)",
    Reason.BEHIND_IN_QUEUE: "a request ahead of it in the queue could not start and keeps its place",
    Reason.LOWER_PRIORITY: (
        "it was preempted in this step for a more important request, which needed {need} blocks with {free} free: "
        "it was the least important one that ran"
    ),
    Reason.PREFIX_IN_FLIGHT: (
        "block {block} of its tokens was being computed or copied in for another request in this step: "
        "in the next step it is a prefix hit"
    ),
    Reason.GRAMMAR_COMPILING: "the grammar of its output is still being compiled",
    Reason.KV_TRANSFER: "the KV of its prefix is being loaded from another engine ({loads} loads are unfinished)",
    Reason.OTHER_BATCH: "another step in flight computes it; each step has at most {most} requests",
    Reason.NO_LORA_SLOT: ("no slot of its adapter is available: {running} requests use the {slots} slots"),
    Reason.PREEMPTING: ("this step preempted {preempted} requests and therefore admits none"),
}
_PREEMPTED_ITSELF = (
    "it was preempted: it needed {need} blocks with {free} free, and it was the least important one that ran"
)
_LEAST_IMPORTANT = {
    "fcfs": "policy fcfs: the last to arrive",
    "priority": "policy priority: the lowest priority, among equals the last to arrive",
}
