"""The rules that every scheduler must keep, checked during a scripted run. A broken rule is named, with the step."""

from __future__ import annotations

from typing import Any, Literal

from engine.core.integrity import find_problems
from engine.core.sched_output import Scheduled, SchedulerOutput
from engine.core.scheduler import Scheduler
from engine.trace.script import Script

PATIENCE = 200
"""Steps without a row, while requests wait and none will arrive, after which a scheduler counts as stuck."""
CHECKED_EACH_STEP = 1_000
"""Blocks. A larger pool is checked less often, because checking every block costs more than the step."""
OURS_CHECKED_EVERY = 64
"""Our own scheduler is checked this many times less often: it has other tests."""

What = Literal["stuck", "budget", "rows", "blocks", "state"]


class Breach(Exception):
    """A scheduler broke a rule."""

    def __init__(self, what: What, rule: str, sentence: str) -> None:
        super().__init__(sentence)
        self.what = what
        self.rule = rule
        self.sentence = sentence


class Watch:
    """Checks every plan and every state of one run."""

    def __init__(self, scheduler: Any, script: Script, is_ours: bool) -> None:
        self._num_idle = 0
        self._last_check = -1
        self._check_every = max(1, len(scheduler.kv.pool.blocks) // CHECKED_EACH_STEP)
        if is_ours:
            self._check_every *= OURS_CHECKED_EVERY
        self._most_steps = (
            1000
            + 20 * script.num_steps
            + 4 * sum(request.history.num_prompt_tokens + len(request.tokens) for request in script.requests)
        )

    def check_plan(self, scheduler: Any, out: Any, step: int, num_running: int) -> None:
        """Check the plan of a step before it is computed. `num_running`: running requests before planning."""
        if not isinstance(out, SchedulerOutput):
            raise Breach("rows", "schedule() returns a SchedulerOutput", f"returned a {type(out).__name__}")
        if out.step != step:
            raise Breach("rows", "steps count 0, 1, 2, ...", f"called its plan step {out.step}")
        names = [row.request_id for row in out.scheduled]
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise Breach("rows", "a request has one row in a step", f"scheduled {twice} twice")
        budget = scheduler.config.max_num_batched_tokens
        if out.num_scheduled_tokens > budget:
            raise Breach(
                "budget",
                f"a step computes at most max_num_batched_tokens ({budget}) tokens",
                f"scheduled {out.num_scheduled_tokens} tokens, {out.num_scheduled_tokens - budget} over the budget",
            )
        most = max(scheduler.config.max_num_seqs, num_running)
        if len(names) > most:
            raise Breach(
                "rows",
                f"at most max_num_seqs ({scheduler.config.max_num_seqs}) requests run",
                f"scheduled {len(names)} requests",
            )
        for row in out.scheduled:
            _check_row(scheduler, row)

    def check_state(self, scheduler: Any, step: int, num_running: int) -> None:
        """Check the invariants after a step; for a large pool, not after every step."""
        if step - self._last_check < self._check_every and scheduler.requests:
            return
        if isinstance(scheduler, Scheduler):
            problems = find_problems(scheduler, max_running=num_running)
        else:
            problems = list(scheduler.kv.pool.check_integrity())
            used = scheduler.kv.pool.num_used
            if used and not scheduler.requests:
                problems.append(f"{used} blocks are in use without a request")
        if problems:
            when = f" (checked every {self._check_every} steps)" if self._check_every > 1 else ""
            more = f"; and {len(problems) - 2} more" if len(problems) > 2 else ""
            said = f"left the core inconsistent: {'; '.join(problems[:2])}{more}{when}"
            if any("owners" in problem or "in use" in problem for problem in problems):
                raise Breach("blocks", "every block in use belongs to a running request", said)
            raise Breach("state", "the rules of engine/core/integrity.py hold after every step", said)
        self._last_check = step

    def check_progress(self, scheduler: Any, out: SchedulerOutput, step: int, all_arrived: bool) -> None:
        """Check that some request is scheduled, and that the run ends."""
        idle = not out.scheduled and bool(scheduler.requests) and all_arrived
        self._num_idle = self._num_idle + 1 if idle else 0
        if self._num_idle >= PATIENCE:
            raise Breach(
                "stuck",
                "while requests are unfinished, one of them is eventually scheduled",
                f"has scheduled no request for {PATIENCE} steps, with {len(scheduler.requests)} unfinished",
            )
        if step >= self._most_steps:
            raise Breach(
                "stuck",
                "a finite workload ends",
                f"has not ended after {step + 1} steps, with {len(scheduler.requests)} requests unfinished",
            )


def _check_row(scheduler: Any, row: Scheduled) -> None:
    """Check one row: its request is unfinished, it starts where the KV ends, and it fits the request's blocks."""
    name = row.request_id
    request = scheduler.requests.get(name)
    if request is None:
        raise Breach(
            "rows",
            "only unfinished requests are scheduled",
            f"scheduled {name!r}, which has ended or never arrived",
        )
    if row.num_tokens < 1:
        raise Breach(
            "rows", "a row computes at least one token", f"scheduled {row.num_tokens} tokens of {name}"
        )
    if row.start != request.num_computed_tokens:
        raise Breach(
            "rows",
            "a row starts where its request's KV ends",
            f"scheduled {name} from position {row.start}, but {request.num_computed_tokens} tokens are computed",
        )
    end = row.start + row.num_tokens
    if end > request.num_tokens + len(row.spec_token_ids):
        raise Breach(
            "rows",
            "a row computes tokens that are known or drafted",
            f"scheduled {name} up to position {end}, but it has {request.num_tokens} tokens",
        )
    room = len(request.blocks) * scheduler.kv.block_size
    if end > room:
        raise Breach(
            "blocks",
            "a row's tokens fit its request's blocks",
            f"scheduled {name} up to position {end}, but its {len(request.blocks)} blocks hold {room} tokens",
        )
