"""Choose what every request computes in the next step.

Source: vLLM v1/core/sched/scheduler.py. Two rules keep this file short: `running` is sorted by importance and the
scheduler preempts from its tail, so a request already chosen in a step is never preempted in that step; and a request
starts only when blocks for all its known tokens are allocated (with a sliding window: for the tokens of this step), so
a prompt never stops half-way for lack of memory.
"""

from __future__ import annotations

import time
from bisect import bisect_left, insort
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import count
from operator import attrgetter

from engine.config import CacheConfig, SchedulerConfig
from engine.core.admission_checks import check_can_run, max_num_tokens
from engine.core.admission_resource import AdmissionResource
from engine.core.blocks import OnBlockEvent
from engine.core.errors import IntegrityError, RequestRejected
from engine.core.integrity import find_problems
from engine.core.kv_manager import KVManager, PrefixHit
from engine.core.micro_batches import most_rows
from engine.core.passed_over import PassedOver
from engine.core.queues import POLICIES, HeapQueue, SortKey
from engine.core.request import Request, RequestStatus
from engine.core.resources import default_resources
from engine.core.row_output import last_output, make_output
from engine.core.sched_output import (
    EngineCoreOutput,
    ModelRunnerOutput,
    NotScheduled,
    Reason,
    RequestInit,
    Scheduled,
    SchedulerOutput,
)
from engine.core.stats import StepStats
from engine.core.stopping import append_sampled, usable_drafts

MAX_DEFERRED_PER_STEP = 64
"""Upper bound on the waiting requests that one step passes over: a step must not cost more in a longer queue."""

RUNNING = RequestStatus.RUNNING
"""A local name: loops over rows avoid lookups of enum members and properties, so they use len(request.token_ids)."""

_importance: Callable[[Request], SortKey] = attrgetter("sort_key")


@dataclass(slots=True)
class StepPlan:
    """A step while it is being planned."""

    budget_left: int
    most_running: int
    most_rows: int
    """Upper bounds on the rows of requests that already run, and on all rows."""
    passed: PassedOver
    rows: list[Scheduled] = field(default_factory=list)
    preempted: list[str] = field(default_factory=list)
    not_scheduled: list[NotScheduled] = field(default_factory=list)

    def refuse(self, request_id: str, reason: Reason, details: dict[str, int]) -> None:
        self.not_scheduled.append(NotScheduled(request_id, reason, details))


class Scheduler:
    """Continuous batching over a paged KV cache.

    There is no prefill phase and no decode phase. Every request has known tokens, some of which have KV. Each step
    computes more of the missing ones, within one token budget:

        token_ids  [ computed ........ | known, not computed .. ] + drafts
                                       ^ start                           num_tokens = what the budget allows

    That one rule gives prefill, chunked prefill, prefix hits (start after the hit), decode (one token), speculation
    (one token and its drafts) and recomputation after a preemption.
    """

    kv_class: Callable[..., KVManager] = KVManager
    """Override it to manage memory in another way."""

    def __init__(
        self,
        config: SchedulerConfig,
        cache_config: CacheConfig,
        *,
        model_fingerprint: str = "",
        clock: Callable[[], float] = time.monotonic,
        on_event: OnBlockEvent | None = None,
        make_resources: Callable[[SchedulerConfig, KVManager], list[AdmissionResource]] = default_resources,
    ) -> None:
        self.config = config
        self.cache_config = cache_config
        self.kv = self.kv_class(cache_config, model_fingerprint=model_fingerprint, on_event=on_event)
        self.resources = make_resources(config, self.kv)
        """Resources that requests need besides budget, a batch row and blocks."""
        self.clock = clock
        self.requests: dict[str, Request] = {}
        """All unfinished requests by id, waiting and running."""
        self.waiting = HeapQueue()
        self.running: list[Request] = []
        """Most important first, always sorted."""
        self.stats = StepStats()
        self._order = count()
        self._step = count()
        self._finished_ids: list[str] = []

    # -- requests arrive and end

    def add(self, request: Request) -> None:
        """Queue a request, or raise RequestRejected if it could never finish."""
        if request.request_id in self.requests:
            raise RequestRejected(request.request_id, "duplicate_id", "it is unfinished; use another id")
        check_can_run(request, self.config, self.cache_config)
        request.max_num_tokens = max_num_tokens(request, self.config.max_model_len)
        request.sort_key = self.sort_key(request, next(self._order))
        self.kv.add(request)
        self.requests[request.request_id] = request
        self.waiting.push(request)
        for resource in self.resources:
            resource.add(request)
        self._record(request, "QUEUED")

    def sort_key(self, request: Request, order: int) -> SortKey:
        """Return a request's place among all others; smaller is more important. Override it for another policy."""
        return POLICIES[self.config.policy](request, order)

    def abort(self, request_ids: Iterable[str]) -> list[EngineCoreOutput]:
        """End requests at any moment, even while a step computes them.

        Returns the last output of each; unknown and finished ids are ignored.
        """
        outputs: list[EngineCoreOutput] = []
        for request_id in request_ids:
            if (request := self.requests.get(request_id)) is not None:
                self._finish(request, RequestStatus.FINISHED_ABORTED)
                outputs.append(last_output(request))
        return outputs

    def has_unfinished(self) -> bool:
        """Whether a step has something to do."""
        return bool(self.requests) or self.has_leftovers()

    def has_leftovers(self) -> bool:
        """Whether a resource has work left from requests that have ended, such as KV to hand over."""
        return any(resource.num_unfinished for resource in self.resources)

    def check_integrity(self) -> None:
        """Raise IntegrityError, with every violation, if an invariant of the core is broken."""
        if problems := find_problems(self):
            raise IntegrityError("the core is inconsistent:\n  " + "\n  ".join(problems))

    def reset_prefix_cache(self) -> bool:
        """Forget all cached prefixes. False, with nothing changed, while any request holds blocks."""
        return self.kv.reset_prefix_cache()

    # -- schedule

    def schedule(self) -> SchedulerOutput:
        """Choose what every request computes in this step.

        Running requests go first, most important first. A step that preempts a request admits none: a request
        admitted now would be preempted next.
        """
        passed = PassedOver(self.config, self.kv)
        bounds = most_rows(self.config, self.running, len(self.requests))
        plan = StepPlan(self.config.max_num_batched_tokens, *bounds, passed)
        self.stats = StepStats(step=next(self._step))
        self.kv.begin_step()
        if self.config.max_concurrent_batches > 1:
            for request in self.running:  # what other steps compute now is not computed again
                if request.in_flight_step >= 0:
                    self.kv.mark_in_flight(request, request.num_computed_tokens, request.num_tokens)
        for resource in self.resources:
            resource.begin_step()
        self._schedule_running(plan)
        self._schedule_waiting(plan)
        return self._close(plan)

    def _schedule_running(self, plan: StepPlan) -> None:
        index = 0
        while index < len(self.running) and plan.budget_left:
            request = self.running[index]
            if request.in_flight_step >= 0 or len(plan.rows) >= plan.most_running:
                plan.refuse(request.request_id, Reason.OTHER_BATCH, {"most": plan.most_running})
                index += 1
                continue
            start = request.num_computed_tokens
            num_tokens = self._num_new_tokens(request, start, plan)
            if request.spec_token_ids and not self.kv.has_room(request, start + num_tokens):
                request.spec_token_ids = []  # do not preempt a request to make room for drafts
                num_tokens = self._num_new_tokens(request, start, plan)
            new_block_ids = self._make_room(request, start + num_tokens, plan)
            if new_block_ids is None:
                break  # the request itself was the least important and was preempted
            self._add_row(plan, request, num_tokens, new_block_ids)
            index += 1
        for request in self.running[index:]:
            details = {"need": request.num_tokens - request.num_computed_tokens, "left": plan.budget_left}
            plan.refuse(request.request_id, Reason.BUDGET_EXHAUSTED, details)

    def _make_room(self, request: Request, num_tokens: int, plan: StepPlan) -> list[int] | None:
        """Allocate blocks for `num_tokens` tokens, preempting the least important; None if that is `request`."""
        while (new_block_ids := self.kv.allocate(request, num_tokens)) is None:
            victim = self.running[-1]
            reason = Reason.NO_BLOCKS if victim is request else Reason.LOWER_PRIORITY
            plan.refuse(victim.request_id, reason, self.kv.lack_of_blocks(request, num_tokens))
            plan.preempted.append(victim.request_id)
            self._preempt(victim)
            if victim is request:
                return None
        return new_block_ids

    def _preempt(self, victim: Request) -> None:
        """Free all blocks of the least important running request. It waits, then recomputes KV that no cache keeps."""
        self.running.pop()
        self.kv.swap_out(victim)
        self.kv.free(victim)
        for resource in self.resources:
            resource.release(victim)
        victim.num_computed_tokens = 0
        victim.in_flight_step = -1
        victim.spec_token_ids = []
        victim.status = RequestStatus.PREEMPTED
        victim.num_preemptions += 1
        self.stats.num_preempted += 1
        self.waiting.push(victim)
        self._record(victim, "PREEMPTED")

    def _schedule_waiting(self, plan: StepPlan) -> None:
        """Admit waiting requests in queue order until the budget, the batch rows or the blocks run out.

        No request overtakes one that lacks blocks or budget, or a large request could wait for ever. A request that
        waits for a prefix in flight, a grammar, a LoRA slot or a KV transfer is passed over, and what it will need
        stays reserved (`engine/core/passed_over.py`). A waiting request never preempts a running one.
        """
        rest: NotScheduled | None = None
        while self.waiting and (rest := self._why_closed(plan)) is None:
            request = self.waiting.pop()
            refusal = self._admit(request, plan)
            if refusal is not None:
                plan.not_scheduled.append(refusal)
                plan.passed.add(request, refusal.reason)
        # Preempted ones have a reason already.
        if rest is not None and len(self.waiting) > len(plan.preempted):
            plan.not_scheduled.append(rest)
        for request in plan.passed.requests:
            self.waiting.push(request)

    def _why_closed(self, plan: StepPlan) -> NotScheduled | None:
        """Return why no further request can be admitted in this step: the shared reason of all that still wait."""
        if plan.preempted:
            return NotScheduled(None, Reason.PREEMPTING, {"preempted": len(plan.preempted)})
        if plan.budget_left == 0:
            need = self.waiting.peek().num_tokens
            return NotScheduled(None, Reason.BUDGET_EXHAUSTED, {"need": need, "left": 0})
        if len(self.running) >= self.config.max_num_seqs:
            return NotScheduled(None, Reason.MAX_NUM_SEQS, {"running": len(self.running)})
        if len(plan.rows) >= plan.most_rows:
            return NotScheduled(None, Reason.OTHER_BATCH, {"most": plan.most_rows})
        if plan.passed.is_blocked or len(plan.passed.requests) >= MAX_DEFERRED_PER_STEP:
            return plan.passed.refusal(None)
        return None

    def _admit(self, request: Request, plan: StepPlan) -> NotScheduled | None:
        """Start a waiting request, or return why not.

        It starts with blocks for all its known tokens; with a sliding window (blocks behind it become free again) or
        without `scheduler_reserve_full_isl`, for those of this step.
        """
        plan.passed.face(request)
        for resource in self.resources:
            if (refusal := resource.why_not(request, self.stats)) is not None:
                return refusal
        hit = self.kv.match(request)
        if self.kv.in_flight_for(request, hit) is not None:
            return NotScheduled(request.request_id, Reason.PREFIX_IN_FLIGHT, {"block": hit.num_blocks})
        start = hit.num_blocks * self.kv.block_size
        num_tokens = self._num_new_tokens(request, start, plan)
        need = request.num_tokens - start
        if num_tokens < need and not self.config.enable_chunked_prefill:
            details = {"need": need, "left": plan.budget_left}
            return NotScheduled(request.request_id, Reason.BUDGET_EXHAUSTED, details)
        if plan.passed.forbid(len(self.running), is_prompt_cut=num_tokens < need):
            return plan.passed.refusal(request.request_id)
        reserves_all = self.config.scheduler_reserve_full_isl and self.kv.sliding_window is None
        reserve = request.num_tokens if reserves_all else start + num_tokens
        block_ids = self.kv.admit(request, hit, reserve)
        if block_ids is None:
            details = self.kv.lack_of_blocks(request, reserve, hit)
            if details["need"] <= details["free"]:
                return plan.passed.refusal(request.request_id)  # passed-over requests reserved the blocks
            return NotScheduled(request.request_id, Reason.NO_BLOCKS, details)
        self._start(request, start, hit)
        self._add_row(plan, request, num_tokens, block_ids, is_new=True)
        return None

    def _start(self, request: Request, num_hit_tokens: int, hit: PrefixHit) -> None:
        if request.num_cached_tokens < 0:
            request.num_cached_tokens = num_hit_tokens
            if self.kv.reads_cache(request):
                self.kv.count_hit(request, hit, self.stats)
        request.num_computed_tokens = num_hit_tokens
        request.status = RUNNING
        for resource in self.resources:
            resource.acquire(request)
        insort(self.running, request, key=_importance)
        self.stats.num_admitted += 1
        self._record(request, "SCHEDULED")

    def _num_new_tokens(self, request: Request, start: int, plan: StepPlan) -> int:
        """Return how many tokens a request computes in this step: at least 1 while budget is left."""
        num_tokens = len(request.token_ids) + len(request.spec_token_ids) - start
        if num_tokens == 1:
            return 1  # the fast path: most rows decode
        longest_chunk = self.config.long_prefill_token_threshold or num_tokens
        return min(num_tokens, plan.budget_left, longest_chunk)

    def _add_row(
        self,
        plan: StepPlan,
        request: Request,
        num_tokens: int,
        new_block_ids: list[int],
        is_new: bool = False,
    ) -> None:
        start = request.num_computed_tokens
        num_known = len(request.token_ids) - start
        drafts = request.spec_token_ids
        if drafts:
            drafts = drafts[: max(0, num_tokens - num_known)]
            request.spec_token_ids = []
        init = RequestInit.of(request) if is_new else None
        row = Scheduled(request.request_id, start, num_tokens, new_block_ids, drafts, init)
        plan.rows.append(row)
        plan.budget_left -= num_tokens
        request.in_flight_step = self.stats.step
        self.kv.mark_in_flight(request, start, start + num_tokens)
        if num_known == 1 and len(request.token_ids) > len(request.prompt_token_ids):
            self.stats.num_decode_tokens += num_tokens
            self.stats.num_draft_tokens += len(drafts)
        else:
            self.stats.num_prefill_tokens += num_tokens

    def _close(self, plan: StepPlan) -> SchedulerOutput:
        stats = self.stats
        stats.num_scheduled_tokens = stats.num_prefill_tokens + stats.num_decode_tokens
        if self.config.num_lookahead_tokens:
            self._look_ahead(plan.rows)
        finished, self._finished_ids = self._finished_ids, []
        copies = self.kv.close_step(stats)
        out = SchedulerOutput(stats.step, plan.rows, finished, plan.preempted, plan.not_scheduled, *copies)
        for resource in self.resources:
            resource.close_step(out, stats)
        return out

    def _look_ahead(self, rows: list[Scheduled]) -> None:
        """After every row has its blocks, allocate those that a drafter writes to, as far as free blocks remain."""
        for row in rows:
            request = self.requests[row.request_id]
            end = row.start + row.num_tokens
            if end >= len(request.token_ids):
                end = min(end + self.config.num_lookahead_tokens, request.max_num_tokens)
                row.new_block_ids += self.kv.allocate(request, end) or []

    # -- update

    def update(self, out: SchedulerOutput, result: ModelRunnerOutput) -> list[EngineCoreOutput]:
        """Apply what the worker computed: append tokens and drafts, publish blocks, finish requests."""
        self.kv.end_step(out.step)
        outputs: list[EngineCoreOutput] = []
        for row in out.scheduled:
            request = self.requests.get(row.request_id)
            if request is None or request.in_flight_step != out.step:
                continue  # aborted or preempted while its step was in flight
            request.in_flight_step = -1
            if (output := self._update_request(request, row, result)) is not None:
                outputs.append(output)
        for resource in self.resources:
            outputs += [self._fail(*failed) for failed in resource.end_step(result, self.stats)]
        self.stats.num_collectives = result.num_collectives
        self.stats.collective_bytes = result.collective_bytes
        self.fill_levels(self.stats)
        return outputs

    def _update_request(
        self, request: Request, row: Scheduled, result: ModelRunnerOutput
    ) -> EngineCoreOutput | None:
        """Apply one row's result. The request's KV counts as computed up to the last accepted token."""
        if result.errors and (error := result.errors.get(row.request_id)) is not None:
            return self._fail(request, error)
        sampled = result.sampled_token_ids.get(row.request_id) or []
        num_rejected = len(row.spec_token_ids) + 1 - len(sampled) if sampled else 0
        if sampled and len(request.token_ids) == len(request.prompt_token_ids):
            self._record(request, "FIRST_TOKEN")
        status, new_token_ids = append_sampled(request, row, sampled)
        if status is RequestStatus.FINISHED_ERROR:
            forbidden = sampled[len(new_token_ids)]
            return self._fail(request, f"structured_outputs: token {forbidden} is not allowed here")
        num_computed = row.start + row.num_tokens - num_rejected
        request.num_computed_tokens = min(num_computed, len(request.token_ids))
        self.kv.publish(request)
        if self.kv.sliding_window is not None:
            self.stats.num_blocks_behind_window += self.kv.free_behind_window(request)
        if status is not RUNNING:
            self._finish(request, status)
            self.stats.num_finished += 1
        if (output := make_output(request, row, result, new_token_ids)) is None:
            return None
        if result.draft_token_ids and status is RUNNING:
            drafts = result.draft_token_ids.get(request.request_id, [])
            request.spec_token_ids = usable_drafts(request, drafts)
        self.stats.num_generated_tokens += len(new_token_ids)
        if row.spec_token_ids and sampled:
            self.stats.count_drafts(len(sampled) - 1)
        return output

    def _fail(self, request: Request, error: str) -> EngineCoreOutput:
        """End a request that cannot go on. What this step computed for it is not published."""
        self._finish(request, RequestStatus.FINISHED_ERROR)
        self.stats.num_finished += 1
        return last_output(request, error=error)

    def _finish(self, request: Request, status: RequestStatus) -> None:
        """End a request. Every request leaves the scheduler here, from every state."""
        if request.status is RUNNING:
            del self.running[bisect_left(self.running, request.sort_key, key=_importance)]
            self._finished_ids.append(request.request_id)
            for resource in self.resources:
                resource.release(request)
        else:
            self.waiting.remove(request)
        request.status = status
        for resource in self.resources:
            resource.finish(request)
        self.kv.forget(request)
        del self.requests[request.request_id]
        self._record(request, "FINISHED")

    def fill_levels(self, stats: StepStats) -> StepStats:
        """Set the levels of now, and return the figures."""
        stats.num_running, stats.num_waiting = len(self.running), len(self.waiting)
        self.kv.describe(stats)
        return stats

    def _record(self, request: Request, event: str) -> None:
        request.events.append((event, self.clock()))
