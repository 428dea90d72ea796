"""Count what a preemption cost, from the block events and rows of a trace."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from engine.trace.format import TraceError
from engine.trace.history import RequestHistory
from engine.trace.protocol import Trace

FREEING = ("free", "unref")  # block events by which a request releases blocks


@dataclass(frozen=True)
class PreemptionCost:
    """The tokens and blocks lost by a preemption, and the tokens found cached at the resumption."""

    request_id: str
    step: int  # the step that preempted it
    blocks: int  # entries of its block table that it released
    blocks_shared: int  # released blocks that other requests still held, which are not free now
    tokens_lost: int  # tokens whose KV had been computed
    tokens_found: int | None  # not computed again: a prefix hit, or copied from the host; None: not resumed
    tokens_swapped_in: int | None  # the part of `tokens_found` that was copied from the host
    steps_waited: int | None  # from the preemption to the step that resumed it; None: it has not resumed

    @property
    def tokens_recomputed(self) -> int | None:
        """Tokens computed twice. A hit is longer than `tokens_lost` if others computed more of the prefix."""
        return None if self.tokens_found is None else max(0, self.tokens_lost - self.tokens_found)


def preemption_cost(reader: Trace, request_id: str, step: int) -> PreemptionCost:
    """The cost of a preemption. Raises TraceError if the request was not preempted in that step."""
    request = reader.find(request_id, step)
    record = reader.record(step)
    if request.number not in record.get("pre", ()):
        raise TraceError(f"{request_id} was not preempted in step {step}")
    return cost_of(reader, request, step, record)


def cost_of(reader: Trace, request: RequestHistory, step: int, record: dict[str, Any]) -> PreemptionCost:
    blocks, shared = released(record, request.number)
    lost = request.position_before(step)
    back = next((later for later in request.stays if later.admitted > step), None)
    resumed: tuple[int, int, int] | tuple[None, None, None] = (None, None, None)
    if back is not None:
        copied = {block for _, block in reader.record(back.admitted).get("in", ())}
        swapped_in = sum(block in copied for block in back.table_at(back.admitted)) * reader.block_size
        resumed = back.start, swapped_in, back.admitted - step
    return PreemptionCost(request.request_id, step, blocks, shared, lost, *resumed)


def released(record: dict[str, Any], number: int) -> tuple[int, int]:
    """Blocks that a request released in a step: (all, those that other requests still hold)."""
    counts = dict.fromkeys(FREEING, 0)
    for kind, owner, blocks, *_ in record.get("ev", ()):
        if owner == number and kind in counts:
            counts[kind] += len(blocks)
    return sum(counts.values()), counts["unref"]
