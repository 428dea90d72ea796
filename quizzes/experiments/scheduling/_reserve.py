"""Admission rules on top of the real scheduler: blocks that must be free before a request starts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from engine.core.request import Request
from engine.core.sched_output import NotScheduled, Reason
from engine.core.scheduler import Scheduler


class ReservingScheduler(Scheduler):
    """Admits a request only if all running ones can still reach their max_tokens, so that none is preempted."""

    def _admit(self, request: Request, plan: Any) -> NotScheduled | None:
        promised = sum(self._most_blocks(other) for other in self.running)
        if promised + self._most_blocks(request) > self.kv.pool.num_usable:
            details = {"need": self._most_blocks(request), "free": self.kv.pool.num_usable - promised}
            return NotScheduled(request.request_id, Reason.NO_BLOCKS, details)
        return super()._admit(request, plan)

    def _most_blocks(self, request: Request) -> int:
        """Blocks for its prompt and all of max_tokens; the last token is sampled and never computed."""
        return -(-(request.max_num_tokens - 1) // self.kv.block_size)


def watermark(share: float) -> Callable[..., Scheduler]:
    """A scheduler that keeps `share` of the blocks free whenever it admits, as vLLM's `watermark` does."""

    class WatermarkScheduler(Scheduler):
        def _admit(self, request: Request, plan: Any) -> NotScheduled | None:
            need = -(-request.num_tokens // self.kv.block_size)
            keep = int(share * self.kv.pool.num_usable)
            free = len(self.kv.pool.free)
            if self.running and free - need < keep:
                details = {"need": need + keep, "free": free}
                return NotScheduled(request.request_id, Reason.NO_BLOCKS, details)
            return super()._admit(request, plan)

    return WatermarkScheduler
