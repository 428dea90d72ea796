"""Claims that a waiting request keeps when the scheduler passes over it.

A request is passed over if what it lacks comes by itself: its prefix is in flight, its grammar compiles, an adapter
slot falls idle, KV arrives. Requests behind it may start meanwhile, but they must leave what it will need:

    it waits for            equals behind it must leave      less important requests must leave
    a prefix in flight      a seat, its blocks, budget       the same
    anything else           nothing                          a seat, its blocks

A prefix in flight is a hit in the next step, so a claim against equals idles a seat for one step; a request that cannot
finish its prompt in this step would take the next step's budget, and waits too. All other waits may last for many
steps: idle seats would cost equals more than they save, but a less important request (a larger first element of the
sort key: its priority) must not delay a more important one.

vLLM registers hashes while it schedules, so it needs no claim for a prefix in flight; its other waiting requests keep
nothing.
"""

from __future__ import annotations

from engine.config import SchedulerConfig
from engine.core.kv_manager import KVManager
from engine.core.request import Request
from engine.core.sched_output import PASSED_OVER, NotScheduled, Reason


class PassedOver:
    """Waiting requests that could not start in this step, and what they keep from those behind them."""

    def __init__(self, config: SchedulerConfig, kv: KVManager) -> None:
        self._config = config
        self._kv = kv
        self.requests: list[Request] = []
        """In queue order."""
        self.is_blocked = False
        """The last of them may not be overtaken."""
        self._num_seats = 0
        self._holds_budget = False
        self._against_lesser: list[Request] = []
        """Requests without a claim against the one looked at last."""

    def add(self, request: Request, reason: Reason) -> None:
        """Note that a request could not start, and why."""
        self.requests.append(request)
        self.is_blocked = reason not in PASSED_OVER
        if reason is Reason.PREFIX_IN_FLIGHT:
            self._holds_budget = True
            self._claim(request)
        elif not self.is_blocked:
            self._against_lesser.append(request)

    def face(self, request: Request) -> None:
        """Count the claims that hold against the next request of the queue. `kv.num_claimed` counts the blocks."""
        while self._against_lesser and self._against_lesser[0].sort_key[0] < request.sort_key[0]:
            self._claim(self._against_lesser.pop(0))

    def _claim(self, request: Request) -> None:
        self._num_seats += 1
        self._kv.num_claimed += self._kv.num_to_start(request, self._config.max_num_batched_tokens)

    def forbid(self, num_running: int, is_prompt_cut: bool) -> bool:
        """Whether they claim the last seat, or the budget that a cut prompt would take in the next step."""
        if num_running + self._num_seats >= self._config.max_num_seqs:
            return True
        return self._holds_budget and is_prompt_cut and not self._config.long_prefill_token_threshold

    def refusal(self, request_id: str | None) -> NotScheduled:
        """Refuse a request behind them; None stands for all that still wait."""
        return NotScheduled(request_id, Reason.BEHIND_IN_QUEUE, {"passed": len(self.requests)})
