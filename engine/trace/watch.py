"""The rules that every scheduler must keep, checked during a scripted run. A broken rule is named, with the step."""

from __future__ import annotations

from typing import Any, Literal

from engine.core.integrity import find_problems
from engine.core.sched_output import Scheduled, SchedulerOutput
from engine.core.scheduler import Scheduler
from engine.trace.script import Script
from prep_common.text import counted

PATIENCE = 200  # steps without a row, while requests wait and none will arrive, until it counts as stuck
CHECKED_EACH_STEP = 1_000  # blocks; a larger pool is checked less often: checking costs more than the step
OURS_CHECKED_EVERY = 64  # our own scheduler is checked this many times less often: it has other tests

What = Literal["stuck", "budget", "rows", "blocks", "state"]


class Breach(Exception):
    """A scheduler broke a rule."""

    def __init__(self, what: What, rule: str, sentence: str) -> None:
        super().__init__(sentence)
        self.what, self.rule, self.sentence = what, rule, sentence


class Watch:
    """Checks every plan and every state of one run."""

    def __init__(self, scheduler: Any, script: Script, is_ours: bool) -> None:
        self._num_idle = 0
        self._last_check = -1
        self._check_every = max(1, len(scheduler.kv.pool.blocks) // CHECKED_EACH_STEP)
        self._check_every *= OURS_CHECKED_EVERY if is_ours else 1
        tokens = sum(request.history.num_prompt_tokens + len(request.tokens) for request in script.requests)
        self._most_steps = 1000 + 20 * script.num_steps + 4 * tokens

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
        budget, seqs = scheduler.config.max_num_batched_tokens, scheduler.config.max_num_seqs
        if (over := out.num_scheduled_tokens - budget) > 0:
            rule = f"a step computes at most max_num_batched_tokens ({budget}) tokens"
            said = f"scheduled {counted(out.num_scheduled_tokens, 'token')}, {over} over the budget"
            raise Breach("budget", rule, said)
        if len(names) > max(seqs, num_running):
            rule = f"at most max_num_seqs ({seqs}) requests run"
            raise Breach("rows", rule, f"scheduled {counted(len(names), 'request')}")
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
            when = f" (checked every {counted(self._check_every, 'step')})" if self._check_every > 1 else ""
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
        unfinished = len(scheduler.requests)
        if self._num_idle >= PATIENCE:
            rule = "while requests are unfinished, one of them is eventually scheduled"
            said = f"has scheduled no request for {counted(PATIENCE, 'step')}, with {unfinished} unfinished"
            raise Breach("stuck", rule, said)
        if step >= self._most_steps:
            said = f"has not ended after {step + 1} steps, with {unfinished} requests unfinished"
            raise Breach("stuck", "a finite workload ends", said)


def _check_row(scheduler: Any, row: Scheduled) -> None:
    """Check one row: its request is unfinished, it starts where the KV ends, and it fits the request's blocks."""
    name, end = row.request_id, row.start + row.num_tokens
    request = scheduler.requests.get(name)
    if request is None:
        said = f"scheduled {name!r}, which has ended or never arrived"
        raise Breach("rows", "only unfinished requests are scheduled", said)
    if row.num_tokens < 1:
        said = f"scheduled {counted(row.num_tokens, 'token')} of {name}"
        raise Breach("rows", "a row computes at least one token", said)
    computed, num_blocks = request.num_computed_tokens, len(request.blocks)
    if row.start != computed:
        said = f"scheduled {name} from position {row.start}, but {computed} tokens are computed"
        raise Breach("rows", "a row starts where its request's KV ends", said)
    if end > request.num_tokens + len(row.spec_token_ids):
        said = f"scheduled {name} up to position {end}, but it has {counted(request.num_tokens, 'token')}"
        raise Breach("rows", "a row computes tokens that are known or drafted", said)
    if end > (room := num_blocks * scheduler.kv.block_size):
        said = f"scheduled {name} up to position {end}, but its {num_blocks} blocks hold {room} tokens"
        raise Breach("blocks", "a row's tokens fit its request's blocks", said)
