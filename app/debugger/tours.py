"""Tours: steps of the recorded runs with captions whose figures are computed from the run (`tours.yaml`).

A place is named by what happens there, and a figure by an expression over the state, so neither can grow stale.
Nothing here knows Streamlit.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict

from app.debugger.catalogue import Look
from app.debugger.runs import Run
from app.debugger.trace_columns import CACHED, SHARED
from engine.trace.preemption_cost import preemption_cost
from engine.trace.why import why
from prep_common.text import join_and
from quizzes.expressions import evaluate

FILE = Path(__file__).with_name("tours.yaml")
_PLACEHOLDER = re.compile(r"\{([^{}]+)\}")


class Stop(BaseModel):
    """One stop of a tour."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    run: str
    at: Look
    after: int = 0
    """Steps after that event; negative: before it."""
    request: str | None = None
    """The request selected on the page Step; its blocks are outlined."""
    caption: str
    """Markdown; {expressions} over `facts` are computed."""


class Tour(BaseModel):
    """An idea in a few stops."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: str
    title: str
    about: str
    topics: list[str]
    stops: list[Stop]


@cache
def load_tours() -> dict[str, Tour]:
    """The tours by id, in reading order."""
    tours = yaml.safe_load(FILE.read_text(encoding="utf-8"))
    return {tour.id: tour for tour in map(Tour.model_validate, tours)}


def step_of(stop: Stop, run: Run) -> int:
    """The step of a stop in its run. Raises LookupError if its event does not happen there."""
    step = stop.at.step(run.index)
    if step is None or not 0 <= step + stop.after < run.index.num_steps:
        raise LookupError(f"{stop.run} has no such stop: {stop.at}, {stop.after} steps later")
    return step + stop.after


def caption(stop: Stop, run: Run) -> str:
    """A stop's caption with its figures. Raises ExpressionError if one cannot be computed."""
    step = step_of(stop, run)
    names = facts(run, step)

    def figure(match: re.Match[str]) -> str:
        value = evaluate(match[1], names)
        return f"{value:,}" if isinstance(value, int) else str(value)

    return _PLACEHOLDER.sub(figure, stop.caption)


def facts(run: Run, step: int) -> dict[str, Any]:
    """The names that captions may use, from the state after the step. Values per request are mappings from its id."""
    reader, index = run.reader(step), run.index
    state, record = reader.state_at(step), reader.step(step)
    scheduler = reader.header.get("config", {}).get("scheduler", {})
    block_states = index.block_states(step)
    live = [*state.running, *state.waiting]
    names: dict[str, Any] = {
        "step": step,
        "num_blocks": index.num_blocks - 1,
        "block_size": index.block_size,
        "budget": scheduler.get("max_num_batched_tokens"),
        "max_num_seqs": scheduler.get("max_num_seqs"),
        "free": record.num_free_blocks,
        "used": index.num_blocks - 1 - record.num_free_blocks,
        "cached": int((block_states == CACHED).sum()),
        "shared": int((block_states == SHARED).sum()),
        "running": record.num_running,
        "waiting": record.num_waiting,
        "num_tokens": record.num_tokens,
        "rows": {row.request_id: row.num_tokens for row in record.rows},
        "blocks": {name: len(table) for name, table in state.block_tables.items()},
        "computed": state.num_computed,
        "known": state.num_tokens,
        "prompt": {name: reader.find(name, step).num_prompt_tokens for name in live},
        "hit": {name: reader.find(name, step).num_cached_tokens for name in live},
        "counters": dict.fromkeys(("num_draft_tokens", "num_accepted_tokens", "num_evictions"), 0)
        | record.counters,
        "why": {name: why(reader, name, step).sentence for name in state.waiting},
    }
    if record.resumed:
        again = [reader.find(name, step) for name in record.resumed]
        stays = [request.last_stay(step) for request in again]
        names |= {
            "resumed": join_and(record.resumed),
            "tokens_found": sum(stay.start for stay in stays if stay is not None),
            "tokens_known": sum(
                request.num_prompt_tokens + request.num_outputs_at(step - 1) for request in again
            ),
        }
    if record.preempted:
        victim = record.preempted[0]
        cost = preemption_cost(reader, victim, step)
        figures = (
            "blocks",
            "blocks_shared",
            "tokens_lost",
            "tokens_found",
            "tokens_recomputed",
            "steps_waited",
        )
        names |= {"victim": victim, "cost": {name: getattr(cost, name) for name in figures}}
    return names
