"""The next step of a run, where the state that a page shows and the scheduler's rules determine it.

It is read from the run's record, not predicted. There is none where the step depends on data that no page shows
(future tokens, drafts, transfers, a user's policy), so a learner can answer every question about a `NextStep`.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from app.trace_tools.decision_source import OURS
from engine.core.sched_output import Reason
from engine.sampling_params import SamplingParams
from engine.trace.format import BLOCK_EVENTS
from engine.trace.history import RequestHistory
from engine.trace.protocol import Trace
from engine.trace.sentence import evicted_blocks

MAX_TOKENS = SamplingParams().max_tokens
"""Default of a request without max_tokens."""
REASON_WORDS = {
    Reason.NO_BLOCKS: "it needs more blocks than are free",
    Reason.MAX_NUM_SEQS: "max_num_seqs requests already run",
    Reason.BUDGET_EXHAUSTED: "the step's token budget is used up",
    Reason.BEHIND_IN_QUEUE: "a request ahead of it does not fit",
    Reason.PREEMPTING: "a request is preempted in this step",
    Reason.PREFIX_IN_FLIGHT: "its next block is being computed for another request",
}
"""The reasons to wait that follow from what a page shows."""


@dataclass(frozen=True)
class NextStep:
    """The decisions of a step and the state after it, by request id."""

    rows: dict[str, int]
    """Tokens to compute, in scheduling order."""
    losses: dict[str, tuple[Reason, dict[str, int]]]
    """Preempted request -> NO_BLOCKS if it lacked blocks itself, else LOWER_PRIORITY; figures `need` and `free`."""
    hits: dict[str, int]
    """Admitted or resumed request -> tokens of its prefix hit."""
    taken: dict[str, int]
    """Blocks allocated from the free queue."""
    evicted: list[int]
    """Cached blocks that are allocated, in order."""
    reasons: dict[str, tuple[Reason, dict[str, int]]]
    """Reason why each waiting request keeps waiting."""
    returned: dict[str, int]
    """Requests that reach their last token -> blocks that this frees."""
    held: dict[str, int]
    """Running requests after the step -> entries of their block tables."""
    arrivals: list[str]
    """Requests that arrive before the step; known from the run, not from the state."""
    free_before: int
    free_after: int

    @property
    def num_tokens(self) -> int:
        return sum(self.rows.values())

    def needy(self, running: list[str]) -> str:
        """The request that lacked blocks when the first one was preempted."""
        victim, (reason, _) = next(iter(self.losses.items()))
        free = self.free_before
        for name in running if reason is Reason.LOWER_PRIORITY else ():
            free -= self.taken.get(name, 0)
            if free < 0:
                return name
        return victim


def next_step(reader: Trace, step: int) -> NextStep | None:
    """Read step + 1; None if the state after `step` and the rules do not determine it."""
    if not 0 <= step < reader.num_steps - 1 or not _is_plain(reader):
        return None
    record, done, state = reader.record(step + 1), reader.step(step + 1), reader.state_at(step)
    arrivals = [name for name in done.added if not reader.find(name, step + 1).record.get("late")]
    why = {entry.request_id: (entry.reason, entry.details) for entry in done.not_scheduled}
    blocks: dict[str, Counter[str]] = {kind: Counter() for kind in BLOCK_EVENTS}
    for kind, number, ids, *_ in record.get("ev", ()):
        blocks[kind]["" if number is None else reader.requests[number].request_id] += len(ids)
    starts = [entry for key in ("new", "res") for entry in record.get(key, ())]
    hits = {reader.requests[number].request_id: start for number, start, *_ in starts}
    if not why.keys() >= {*done.preempted}:
        return None
    kept = [name for name in [*state.waiting, *arrivals] if name not in hits]
    plan = NextStep(
        rows={row.request_id: row.num_tokens for row in done.rows},
        losses={name: why[name] for name in done.preempted},
        hits=hits,
        taken=dict(blocks["alloc"]),
        evicted=[block for block, _ in evicted_blocks(record)],
        reasons={name: reason for name in kept if (reason := why.get(name, why.get(None)))},
        returned={name: blocks["free"][name] for name, _ in done.finished},
        held={name: len(table) for name, table in reader.state_at(step + 1).block_tables.items()},
        arrivals=arrivals,
        free_before=reader.series.free_blocks[step],
        free_after=done.num_free_blocks,
    )
    known = state.num_tokens | {name: reader.find(name, step + 1).num_prompt_tokens for name in arrivals}
    why_kept = {reason for reason, _ in plan.reasons.values()}
    is_determined = (
        not (done.aborted or done.copy_in or record.get("rekey") or done.counters.get("num_draft_tokens"))
        and len(plan.reasons) == len(kept)
        and why_kept <= REASON_WORDS.keys()
        and (Reason.BEHIND_IN_QUEUE not in why_kept or why_kept & {Reason.NO_BLOCKS, Reason.BUDGET_EXHAUSTED})
        and all(size * reader.block_size == hits[name] for name, size in blocks["ref"].items())
        and all(known[name] + 1 >= token_limit(reader, reader.find(name, step + 1)) for name in plan.returned)
        and blocks["evict"].total() == len(plan.evicted)  # else the prefix cache was reset
        and _spend_in_order(reader, plan.rows, known, state.num_computed | hits)
    )
    return plan if is_determined else None


def _spend_in_order(
    reader: Trace, rows: dict[str, int], known: dict[str, int], computed: dict[str, int]
) -> bool:
    """Whether each row took all its remaining tokens, as far as the budget reached."""
    scheduler = _settings(reader)[0]
    left: int = scheduler["max_num_batched_tokens"]
    for name, count in rows.items():
        rest = known[name] - computed[name]
        if count != min(rest, left, scheduler.get("long_prefill_token_threshold") or rest):
            return False
        left -= count
    return True


def _is_plain(reader: Trace) -> bool:
    """Whether the run used prep's scheduler, and only rules that a page can show."""
    scheduler, cache = _settings(reader)
    unseen = (
        reader.header.get("scheduler_cls", OURS) != OURS,
        not {"max_num_batched_tokens", "max_num_seqs", "max_model_len"} <= scheduler.keys(),
        scheduler.get("max_concurrent_batches", 1) > 1,
        scheduler.get("num_lookahead_tokens", 0) > 0,
        not scheduler.get("scheduler_reserve_full_isl", True),
        cache.get("sliding_window") is not None,
        cache.get("watermark", 0.0) > 0,
    )
    return not any(unseen)


def _settings(reader: Trace) -> tuple[dict[str, Any], dict[str, Any]]:
    config = reader.header.get("config", {})
    return config.get("scheduler", {}), config.get("cache", {})


def token_limit(reader: Trace, request: RequestHistory) -> int:
    """Maximum tokens of a request, prompt and output together."""
    longest: int = _settings(reader)[0]["max_model_len"]
    most = request.record["params"].get("max_tokens", MAX_TOKENS)
    return longest if most is None else min(request.num_prompt_tokens + most, longest)
