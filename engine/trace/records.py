"""The types of a reader's answers: events, the rows of a step, the figures of all steps, the state after a step."""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from engine.core.sched_output import NotScheduled
from engine.trace.blocks import Blocks
from engine.trace.history import RequestHistory


class Event(NamedTuple):
    """One event of a block or a request."""

    step: int
    kind: str  # one of BLOCK_EVENTS or REQUEST_EVENTS
    request_id: str | None
    block: int | None  # None for REQUEST_EVENTS


class Content(NamedTuple):
    """The content of a block."""

    request: int  # number of the request that computed it
    hash_hex: str  # the first bytes of the hash


class Row(NamedTuple):
    """One row of a step's batch."""

    request_id: str
    start: int
    num_tokens: int
    phase: str  # decode: the newest token and its drafts; prefill: prompt or recomputation
    tokens: tuple[int, ...]  # output accepted in this step


@dataclass(frozen=True)
class StepRecord:
    """One step. Counts are those after it."""

    step: int
    time_s: float  # start, in seconds since the trace began
    duration_s: float
    rows: list[Row]
    admitted: list[str]  # admitted for the first time
    resumed: list[str]
    preempted: list[str]
    finished: list[tuple[str, str]]  # (request id, finish reason)
    added: list[str]  # arrived since the step before
    aborted: list[str]  # aborted since the step before
    num_running: int
    num_waiting: int
    num_free_blocks: int
    num_cached_blocks: int
    num_kv_tokens: int  # tokens of running requests whose KV exists
    not_scheduled: list[NotScheduled]
    counters: dict[str, int]  # the nonzero `StepStats` fields named in `stats.TRACED_COUNTERS`
    copy_out: list[tuple[int, int]]  # (device block, host block): copied before copy_in and the rows
    copy_in: list[tuple[int, int]]  # (host block, device block)

    @property
    def num_tokens(self) -> int:
        """Tokens computed in this step; they count against the budget."""
        return sum(row.num_tokens for row in self.rows)


class StepSeries:
    """One column per figure, for charts: index i belongs to step i. Counts are those after the step."""

    def __init__(self) -> None:
        self.time_s, self.duration_s = array("d"), array("d")  # start, in seconds since the trace began
        self.num_tokens = array("i")  # computed in the step
        self.running, self.waiting = array("i"), array("i")
        self.free_blocks, self.cached_blocks = array("i"), array("i")
        self.kv_tokens = array("q")  # tokens of running requests whose KV exists

    def append(self, record: dict[str, Any]) -> None:
        self.time_s.append(record["ts"])
        self.duration_s.append(record["dur"])
        self.num_tokens.append(sum(record.get("n", ())))
        self.running.append(record["run"])
        self.waiting.append(record["wait"])
        self.free_blocks.append(record["free"])
        self.cached_blocks.append(record["cached"])
        self.kv_tokens.append(record["kv"])


class TraceState:
    """The engine's state after a step. Properties are computed on first use."""

    def __init__(self, step: int, blocks: Blocks, live: list[RequestHistory]) -> None:
        self.step = step
        self.blocks = blocks  # columns with one entry per block id: `ref`, `owner` (a request number), `hash`
        stays = [(request, request.stay_at(step)) for request in live]
        self._stays = [(request, stay) for request, stay in stays if stay is not None]
        self._waiting = [request for request, stay in stays if stay is None]

    @cached_property
    def running(self) -> list[str]:
        """Most important first."""
        return [request.request_id for request, _ in self._stays]

    @cached_property
    def waiting(self) -> list[str]:
        """Head of the queue first."""
        return [request.request_id for request in self._waiting]

    @cached_property
    def block_tables(self) -> dict[str, list[int]]:
        """Block ids of the running requests; waiting requests have none."""
        return {request.request_id: stay.table_at(self.step) for request, stay in self._stays}

    @cached_property
    def num_computed(self) -> dict[str, int]:
        """Tokens whose KV exists, of all live requests."""
        computed = {r.request_id: r.row_computed[r.row_before(self.step)] for r, _ in self._stays}
        return computed | dict.fromkeys(self.waiting, 0)

    @cached_property
    def num_tokens(self) -> dict[str, int]:
        """Prompt and output, of all live requests."""
        live = [request for request, _ in self._stays] + self._waiting
        return {r.request_id: r.num_prompt_tokens + r.num_outputs_at(self.step) for r in live}

    @cached_property
    def owners(self) -> dict[int, list[str]]:
        """block -> the running requests that hold it, most important first."""
        owners: dict[int, list[str]] = {}
        for request_id, table in self.block_tables.items():
            for block in table:
                owners.setdefault(block, []).append(request_id)
        return owners


def accepted_tokens(value: int | list[int] | None) -> tuple[int, ...]:
    """The output of one row, from its entry in a step's `tok`."""
    return () if value is None else (value,) if isinstance(value, int) else tuple(value)
