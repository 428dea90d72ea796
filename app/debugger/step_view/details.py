"""Details of single steps: the batch, the queue and its reasons, arrivals, ends, and preemptions with their costs.

A chunk holds some tens of consecutive steps as plain data (`chunk`), small enough to compute on demand.
`step_state.js` reads it.
"""

from __future__ import annotations

from typing import Any

from app.debugger.runs import RECORDED
from app.debugger.step_view.block_texts import block_texts
from app.debugger.trace_index import TraceIndex
from app.debugger.views.phases import PHASES, phases
from app.debugger.views.texts import speller, visible
from app.trace_tools.decision_source import deciding_line
from engine.trace.adapters import adapter_of
from engine.trace.format import TraceError
from engine.trace.history import RequestHistory, Stay
from engine.trace.preemption_cost import preemption_cost
from engine.trace.protocol import Trace
from engine.trace.records import Row, StepRecord, TraceState
from engine.trace.sentence import sentence

ROWS_PER_CHUNK = 4_096
MAX_CHUNK = 256
"""Steps."""
MIN_CHUNK = 16
MOST_SPANS = 200
"""Phases of a request that are drawn: of one preempted more often, the first ones."""
QUEUE_SHOWN = 50
"""Maximum waiting requests that are listed; the others are only counted."""


def chunk_steps(mean_rows: float) -> int:
    """Steps per chunk, a power of two, for a run with `mean_rows` requests per batch."""
    size = MAX_CHUNK
    while size > MIN_CHUNK and size * mean_rows > ROWS_PER_CHUNK:
        size //= 2
    return size


def chunk(reader: Trace, index: TraceIndex, first: int, last: int) -> dict[str, Any]:
    """Steps first .. last - 1, the block tables of all requests that ran in them, and the lives of these and of those
    that waited."""
    stays: dict[int, tuple[RequestHistory, Stay]] = {}
    seen: dict[int, str] = {}
    steps = []
    for step in range(first, last):
        state = reader.state_at(step)
        steps.append(_step(reader, reader.step(step), state))
        for name in state.running:
            request = reader.find(name, step)
            seen.setdefault(request.number, name)
            stay = request.stay_at(step)
            if stay is not None:
                stays.setdefault(id(stay), (request, stay))
        for name in state.waiting[:QUEUE_SHOWN]:
            seen.setdefault(reader.find(name, step).number, name)
    texts = block_texts(reader, first, last)
    return {
        "first": first,
        "last": last,
        "steps": steps,
        "stays": [_stay(request, stay, last) for request, stay in stays.values()],
        "text": _text(reader, steps, texts["tokens"]),
        **texts,
        "lanes": [_lane(reader, index, number) for number in sorted(seen)],
    }


def _lane(reader: Trace, index: TraceIndex, number: int) -> list[Any]:
    """request, look, [[phase, first step, last step], ...] of its whole life, adapter ("" without)."""
    summary = index.requests[number]
    spans = phases(index, summary)[:MOST_SPANS]
    return [
        summary.request_id,
        index.looks[number],
        [[PHASES.index(span.phase), span.first, span.last] for span in spans],
        adapter_of(reader.requests[number]),
    ]


def _text(reader: Trace, steps: list[dict[str, Any]], tokens: dict[int, list[int]]) -> dict[int, str]:
    """The new tokens of the steps and those in blocks as text, if the model's tokenizer is installed."""
    spell = speller(reader.header)
    if spell is None:
        return {}
    made = {token for step in steps for row in step.get("rows", ()) for token in row[-1]}
    return {token: visible(spell(token)) for token in sorted(made.union(*tokens.values()))}


def _step(reader: Trace, record: StepRecord, state: TraceState) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "rows": [_row(reader, record, state, row) for row in record.rows],
        "order": state.running,
        "queue": state.waiting[:QUEUE_SHOWN],
        "waiting": record.num_waiting,
        "why": [[entry.request_id, entry.reason, entry.details] for entry in record.not_scheduled],
        "admitted": record.admitted,
        "resumed": [[name, _hit(reader, name, record.step)] for name in record.resumed],
        "hits": [[name, _hit(reader, name, record.step)] for name in record.admitted],
        "preempted": [_cost(reader, name, record.step) for name in record.preempted],
        "finished": record.finished,
        "added": record.added,
        "aborted": record.aborted,
        "out": record.copy_out,
        "in": record.copy_in,
        "sentence": (told := sentence(reader, record.step)),
        "so_far": so_far if (so_far := sentence(reader, record.step, ahead=False)) != told else None,
        "source": _source(reader, record.step),
        "time": record.time_s,
        "seconds": record.duration_s,
    }
    scheduled = {row.request_id for row in record.rows}
    entry["idle"] = [
        [name, state.num_computed[name], state.num_tokens[name]]
        for name in state.running
        if name not in scheduled
    ]
    return {name: value for name, value in entry.items() if value not in ([], None)}


def _source(reader: Trace, step: int) -> list[str] | None:
    """File and line of the decision, its code, what it decides, and a caveat (often empty); None if it is not found."""
    try:
        line = deciding_line(reader, step)
    except TraceError:
        return None
    # No caveat for the shipped runs: tests record them again and compare every decision.
    note = "" if reader.path.parent == RECORDED else line.note
    return [f"{line.file}:{line.line}", line.code.strip(), line.why, note]


def _row(reader: Trace, record: StepRecord, state: TraceState, row: Row) -> list[Any]:
    """request, phase, tokens computed, first position; after the step: computed, known, outputs; new tokens."""
    request = reader.find(row.request_id, record.step)
    mark = request.row_before(record.step)
    computed, outputs = request.row_computed[mark], request.row_outputs[mark]
    total = request.num_prompt_tokens + outputs
    return [row.request_id, row.phase, row.num_tokens, row.start, computed, total, outputs, list(row.tokens)]


def _hit(reader: Trace, name: str, step: int) -> int:
    """Tokens that an admission found in the prefix cache."""
    stay = reader.find(name, step).last_stay(step)
    return 0 if stay is None else stay.start


def _stay(request: RequestHistory, stay: Stay, last: int) -> list[Any]:
    """request, admitted, left or null, block ids, [[step, table length from then on], ...], behind the window."""
    growth: list[list[int]] = []
    for length, step in enumerate(stay.block_steps, start=1):
        if step >= last:
            break
        if growth and growth[-1][0] == step:
            growth[-1][1] = length
        else:
            growth.append([step, length])
    known = growth[-1][1] if growth else 0
    left = None if stay.left is None or stay.left >= last else stay.left
    behind = [[step, count] for step, count in stay.behind_window if step < last]
    return [request.request_id, stay.admitted, left, stay.blocks[:known], growth, behind]


def _cost(reader: Trace, name: str, step: int) -> dict[str, Any]:
    """The cost of a preemption. None: the request has not resumed in this trace."""
    cost = preemption_cost(reader, name, step)
    return {
        "request": name,
        "blocks": cost.blocks,
        "shared": cost.blocks_shared,
        "computed": cost.tokens_lost,
        "found": cost.tokens_found,
        "again": cost.tokens_recomputed,
        "waited": cost.steps_waited,
        "ended": reader.find(name, step).ended,
    }
