"""The steps that a stop plays: the state of every block, owners as looks, the lives of requests, call-outs.

Nothing here knows Streamlit.
"""

from __future__ import annotations

from typing import Any

from app.debugger.mini_map import owner_looks
from app.debugger.runs import Run
from app.debugger.tour_view.callouts import callouts
from app.debugger.tours import Stop, step_of
from app.debugger.views.phases import PHASES, phases
from engine.trace.sentence import sentence

STEPS_BEFORE = 4
"""Steps before a stop that are played, unless the previous stop of the run is near."""
MOST_STEPS = 12
"""Steps of an animation."""


def first_step(stop: Stop, run: Run, before: Stop | None) -> int:
    """Return the step at which a stop's animation begins: the previous stop if that is near, else a little earlier."""
    step = step_of(stop, run)
    if before is not None and before.run == stop.run:
        earlier = step_of(before, run)
        if 0 < step - earlier < MOST_STEPS:
            return earlier
    return max(0, step - STEPS_BEFORE)


def animation(stop: Stop, run: Run, before: Stop | None = None) -> dict[str, Any]:
    """Return a stop for `tour_view.js`. Blocks are those except the null block; states are digits, one per block."""
    first, last = first_step(stop, run, before), step_of(stop, run)
    return {
        "run": stop.run,
        "first": first,
        "frames": [_frame(run, step) for step in range(first, last + 1)],
        "lanes": _lanes(run, first, last),
        "callouts": [
            {"text": callout.text, "blocks": list(callout.blocks), "lane": callout.lane}
            for callout in callouts(run, last, stop.request)
        ],
        "request": stop.request,
        "num_blocks": run.index.num_blocks - 1,
    }


def _frame(run: Run, step: int) -> dict[str, Any]:
    index, changes = run.index, run.index.block_changes(step, step + 1)
    return {
        "step": step,
        "states": "".join(map(str, index.block_states(step)[1:].tolist())),
        "owners": {str(block): looks for block, looks in owner_looks(run, step).items()},
        "changed": sorted({int(block) for block in changes.block}),
        "sentence": sentence(run.reader(step), step),
    }


def _lanes(run: Run, first: int, last: int) -> list[dict[str, Any]]:
    """Return the requests that live in these steps: name, look, whether they hold blocks after one of them, and
    the phase in each step (-1: none)."""
    lanes = []
    for summary in run.index.requests:
        spans = [span for span in phases(run.index, summary) if span.first <= last and span.last >= first]
        if spans:
            steps = [-1] * (last - first + 1)
            for span in spans:
                for step in range(max(first, span.first), min(last, span.last) + 1):
                    steps[step - first] = PHASES.index(span.phase)
            stays = run.reader(last).requests[summary.number].stays
            holds = any(stay.admitted <= last and (stay.left is None or stay.left > first) for stay in stays)
            look = run.index.looks[summary.number]
            lanes.append({"name": summary.request_id, "look": look, "holds": holds, "phases": steps})
    return lanes
