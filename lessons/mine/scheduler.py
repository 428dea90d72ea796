"""The learner's `schedule` behind the engine's scheduler.

    engine's requests --> lists of Seq --> learner's schedule() --> Plan --> rules --> carried out by the engine

The plan is carried out with the engine's own methods, so traces, reasons, statistics and resources are the same as
always. The engine holds back an admission that the learner cannot judge: a prefix that this step computes for another
request, a grammar, an adapter slot. If a victim shares blocks with other requests, it frees fewer than it holds; the
engine then preempts one more.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from engine.config import ConfigError
from engine.core.kv_manager import KVManager
from engine.core.request import Request, RequestStatus
from engine.core.sched_output import NotScheduled, Reason
from engine.core.scheduler import MAX_DEFERRED_PER_STEP, Scheduler, StepPlan
from lessons.given.scheduling import Seq
from lessons.mine.errors import PieceError, ask
from lessons.mine.memory import MineKV
from lessons.mine.pieces import Pieces
from lessons.mine.plan_rules import BrokenRule, Situation, check_plan
from lessons.mine.workspace import current


class MineScheduler(Scheduler):
    """The engine's scheduler with the learner's decisions and memory, as far as they exist."""

    def __init__(self, *args: Any, pieces: Pieces | None = None, **settings: Any) -> None:
        self.pieces = current() if pieces is None else pieces
        self.kv_class: Callable[..., KVManager] = partial(MineKV, pieces=self.pieces)
        super().__init__(*args, **settings)
        if self.config.max_concurrent_batches > 1:
            raise ConfigError("your scheduler plans one step at a time; leave pipeline_parallel_size at 1")
        self._piece = self.pieces["scheduler"]
        self._planned: dict[str, int] = {}
        """Tokens of each row of the learner's plan."""
        self._mine: Any = None
        if self._piece.item is not None:
            limits = (self.config.max_num_seqs, self.config.max_num_batched_tokens, self.kv.block_size)
            self._mine = ask(self._piece.says, "making it", self._piece.item, *limits)

    def _schedule_running(self, plan: StepPlan) -> None:
        if self._mine is None:
            return super()._schedule_running(plan)
        self._drop_drafts_without_room()
        rows, preempted = self._ask(plan)
        self._planned = dict(rows)
        self._preempt_all(preempted, rows, plan)
        for request in list(self.running):  # most important first: `_make_room` preempts none that has a row
            if request.request_id not in self._planned or request.status is not RequestStatus.RUNNING:
                continue
            num_tokens = self._num_new_tokens(request, request.num_computed_tokens, plan)
            end = request.num_computed_tokens + num_tokens
            if (new_block_ids := self._make_room(request, end, plan)) is not None:
                self._add_row(plan, request, num_tokens, new_block_ids)
        for request in self.running:
            if request.request_id not in self._planned:
                need = request.num_tokens - request.num_computed_tokens
                details = {"need": need, "left": plan.budget_left}
                plan.refuse(request.request_id, Reason.BUDGET_EXHAUSTED, details)

    def _ask(self, plan: StepPlan) -> tuple[list[tuple[str, int]], list[str]]:
        """Return rows and victims of the learner's plan. Raises PieceError if it breaks a rule."""
        step, config = self.stats.step, self.config
        running = [
            Seq(r.request_id, len(r.token_ids) + len(r.spec_token_ids), r.num_computed_tokens, len(r.blocks))
            for r in self.running
        ]
        waiting = [self._as_waiting(request) for request in self._candidates()]
        if not running and not waiting:
            return [], []
        free = len(self.kv.pool.free)
        answer = ask(self._piece.says, f"in step {step}", self._mine.schedule, running, waiting, free)
        limits = (config.max_num_batched_tokens, config.max_num_seqs, self.kv.block_size)
        try:
            return check_plan(answer, Situation(running, waiting, free, *limits))
        except BrokenRule as broken:
            rule, detail = broken.args
            raise PieceError(self._piece.says, rule, f"{detail} (step {step})") from None

    def _candidates(self) -> list[Request]:
        """Return the waiting requests that this step could admit, in queue order."""
        seats = self.config.max_num_seqs - len(self.running)
        return self.waiting.first(min(seats + 1, MAX_DEFERRED_PER_STEP))  # one too many: it must stop itself

    def _as_waiting(self, request: Request) -> Seq:
        hit = self.kv.match(request)
        shared = len(hit.device) - self.kv.num_revived(hit)
        return Seq(request.request_id, len(request.token_ids), hit.num_blocks * self.kv.block_size, shared)

    def _drop_drafts_without_room(self) -> None:
        """Drafts never cost another request its blocks: without room for all, this step checks none."""
        drafting = [request for request in self.running if request.spec_token_ids]
        ends = [(r, len(r.token_ids) + len(r.spec_token_ids)) for r in drafting]
        if sum(max(0, self.kv.num_missing(*end)) for end in ends) > len(self.kv.pool.free) - len(
            self.running
        ):
            for request in drafting:
                request.spec_token_ids = []

    def _preempt_all(self, preempted: list[str], rows: list[tuple[str, int]], plan: StepPlan) -> None:
        by_id = {request.request_id: request for request in self.running}
        takers = [(by_id[name], by_id[name].num_computed_tokens + n) for name, n in rows if name in by_id]
        taker = next((each for each in takers if not self.kv.has_room(*each)), None)
        for _ in preempted:
            victim = self.running[-1]
            reason = Reason.NO_BLOCKS if taker is None else Reason.LOWER_PRIORITY
            lacking = taker or (victim, victim.num_tokens)
            plan.refuse(victim.request_id, reason, self.kv.lack_of_blocks(*lacking))
            plan.preempted.append(victim.request_id)
            self._preempt(victim)

    def _num_new_tokens(self, request: Request, start: int, plan: StepPlan) -> int:
        most = super()._num_new_tokens(request, start, plan)
        return most if self._mine is None else min(most, self._planned.get(request.request_id, most))

    def _why_closed(self, plan: StepPlan) -> NotScheduled | None:
        """Return why no further request is admitted: the engine's reasons, or it is not in the learner's plan."""
        rest = super()._why_closed(plan)
        if rest is not None or self._mine is None:
            return rest
        head = self.waiting.peek()
        if head.request_id in self._planned:
            return None
        hit = self.kv.match(head)
        lack = self.kv.lack_of_blocks(head, head.num_tokens, hit)
        if lack["need"] > lack["free"]:
            return NotScheduled(None, Reason.NO_BLOCKS, lack)
        need = head.num_tokens - hit.num_blocks * self.kv.block_size
        return NotScheduled(None, Reason.BUDGET_EXHAUSTED, {"need": need, "left": plan.budget_left})
