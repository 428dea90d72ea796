"""The recorded history of one request: its arrival, the periods in which it ran, its rows and its output."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from dataclasses import dataclass, field
from typing import Any

from engine.trace.blocks import NULL_BLOCK


@dataclass(slots=True)
class Stay:
    """One period in which a request ran: from its admission to its preemption or end."""

    admitted: int  # step
    start: int  # tokens found in the prefix cache
    left: int | None = None  # step of its preemption or end; None while it runs
    blocks: list[int] = field(default_factory=list)  # the block table, which only grows
    block_steps: list[int] = field(default_factory=list)  # the step in which each entry of `blocks` was added
    behind_window: list[tuple[int, int]] = field(default_factory=list)
    """(step, n): from that step on, the first n entries of the table are the null block."""

    def table_at(self, step: int) -> list[int]:
        table = self.blocks[: bisect_right(self.block_steps, step)]
        if self.behind_window:
            behind = max((n for when, n in self.behind_window if when <= step), default=0)
            table[:behind] = [NULL_BLOCK] * behind
        return table


@dataclass(slots=True)
class RequestHistory:
    """Everything a trace records about one request."""

    number: int
    request_id: str
    key: tuple[float, ...]  # sort key at its arrival; running and waiting requests are sorted by `key_at`
    record: dict[str, Any]  # the `add` record: prompt, params, priority, arrival, seed, lora, salt
    num_prompt_tokens: int
    added: int  # the step before which it arrived
    added_s: float
    ended: int | None = None  # the step in which it finished, or before which it was aborted
    ended_s: float | None = None
    finish_reason: str | None = None
    aborted: bool = False  # ended between two steps: by a client, or by a stop string in the text
    aborted_late: bool = False  # aborted while a step was in flight, not before it was planned
    abort_order: int = 0  # number of aborts before its own
    rekeyed: list[tuple[int, tuple[float, ...]]] = field(default_factory=list)  # (step, key): later sort keys
    stays: list[Stay] = field(default_factory=list)
    preempted: list[int] = field(default_factory=list)  # steps
    num_computed: int = 0  # tokens whose KV existed after the last step in which it was scheduled
    tokens: array[int] = field(default_factory=lambda: array("i"))  # accepted output
    row_steps: array[int] = field(default_factory=lambda: array("i"))  # the steps in which it was scheduled
    row_computed: array[int] = field(default_factory=lambda: array("i"))  # per row, `num_computed`
    row_outputs: array[int] = field(default_factory=lambda: array("i"))  # per row, output tokens

    @property
    def num_cached_tokens(self) -> int:
        """Prefix-cache hit at its first admission, in tokens; 0 before."""
        return self.stays[0].start if self.stays else 0

    def last_stay(self, step: int) -> Stay | None:
        """The stay that had begun by a step, whether or not it is over."""
        return next((stay for stay in reversed(self.stays) if stay.admitted <= step), None)

    def stay_at(self, step: int) -> Stay | None:
        """The stay after a step; None if the request does not run then."""
        stay = self.last_stay(step)
        return stay if stay and (stay.left is None or step < stay.left) else None

    def arrived_during(self, step: int) -> bool:
        """Whether it arrived while the step ran, too late to be scheduled in it."""
        return self.added == step and bool(self.record.get("late"))

    def lives_at(self, step: int) -> bool:
        return self.added <= step and (self.ended is None or step < self.ended)

    def key_at(self, step: int) -> tuple[float, ...]:
        return next((key for since, key in reversed(self.rekeyed) if since <= step), self.key)

    def row_before(self, step: int) -> int:
        """Index of its last row up to a step; -1 if there is none."""
        return bisect_right(self.row_steps, step) - 1

    def position_before(self, step: int) -> int:
        """Tokens whose KV existed just before its row of a step was computed."""
        stay = self.last_stay(step)
        if stay is None:
            return 0
        row = self.row_before(step - 1)
        ran = row >= 0 and self.row_steps[row] >= stay.admitted
        return self.row_computed[row] if ran else stay.start

    def num_outputs_at(self, step: int) -> int:
        row = self.row_before(step)
        return self.row_outputs[row] if row >= 0 else 0
