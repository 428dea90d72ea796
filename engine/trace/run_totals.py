"""Read a run in one pass for comparisons: its decisions, block events, and totals per request."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from engine.trace.protocol import Trace
from engine.trace.script import WalkedRow, walk

Clock = Literal["wall", "steps"]


class Copies(NamedTuple):
    """Blocks that a step copies between device and host."""

    swapped_out: int  # of preempted requests
    kept: int  # evicted from the device, copied to the host
    copied_in: int


class Mark(NamedTuple):
    """A step's decision in a form that can only be compared: all rows of a long run would not fit into memory."""

    rows: int  # sum of the hashes of the rows; 0 without rows
    admitted: frozenset[str]
    preempted: frozenset[str]
    copies: Copies


@dataclass
class RequestTotals:
    """Totals of one request's rows."""

    computed: int = 0
    recomputed: int = 0
    reached: int = 0  # largest number of tokens whose KV it had at any time
    token_steps: list[int] = field(default_factory=list)
    acts: dict[int, int] = field(default_factory=dict)  # step -> hash of its row, or of its preemption


_NONE: frozenset[str] = frozenset()


class RunTotals:
    """The decisions, block events and totals of a whole run."""

    def __init__(self, reader: Trace) -> None:
        self.reader = reader
        self.keys = keys_of(reader)
        self.prompts = [request.num_prompt_tokens for request in reader.requests]
        self.lives = [RequestTotals() for _ in self.prompts]
        self.decisions: list[Mark] = []
        self.blocks: list[int] = []  # per step, a hash of its block events, in order
        self.busy_steps = 0
        self.budget_offered = 0
        self.found_again = 0  # tokens found cached by resumed requests
        budgets = budgets_of(reader)
        for step, record, rows in walk(reader):
            self._take(step, record, rows)
            if rows:
                self.busy_steps += 1
                self.budget_offered += budgets(step)

    def _take(self, step: int, record: dict[str, Any], rows: list[WalkedRow]) -> None:
        keys = self.keys
        numbers = [number for number, *_ in (*record.get("new", ()), *record.get("res", ()))]
        self.found_again += sum(start for _, start, *_ in record.get("res", ()))
        copies = copies_of(record)
        for number in record.get("pre", ()):
            self.lives[number].acts[step] = hash((-1, copies.swapped_out))
        marks = sum(hash((keys[row.number], row.start, row.num_tokens)) for row in rows)
        admitted = frozenset(keys[number] for number in numbers) if numbers else _NONE
        preempted = frozenset(keys[number] for number in record["pre"]) if "pre" in record else _NONE
        self.decisions.append(Mark(marks, admitted, preempted, copies))
        events = record.get("ev", ())
        named = ((kind, None if q is None else keys[q], *map(tuple, rest)) for kind, q, *rest in events)
        self.blocks.append(hash(tuple(named)))
        for row in rows:
            life, end = self.lives[row.number], row.start + row.num_tokens
            life.computed += row.num_tokens
            life.recomputed += max(0, min(end, life.reached) - row.start)
            known = self.prompts[row.number] + row.num_outputs + len(row.tokens)
            life.reached = max(life.reached, min(end, known))
            life.token_steps += [step] * len(row.tokens)
            life.acts[step] = hash((row.start, row.num_tokens))


_NO_COPIES = Copies(0, 0, 0)


def copies_of(record: dict[str, Any]) -> Copies:
    """The copies of a step's record."""
    counters = record.get("cnt")
    if not counters:
        return _NO_COPIES
    names = ("num_blocks_swapped_out", "num_blocks_offloaded", "num_blocks_copied_in")
    return Copies(*(counters.get(name, 0) for name in names))


def clock(reader: Trace) -> Clock:
    """The clock of a trace's seconds. "steps": no model ran, and no step took time."""
    return "wall" if reader.header.get("clock") != "steps" and any(reader.series.duration_s) else "steps"


def budgets_of(reader: Trace) -> Callable[[int], int]:
    """A function from step to max_num_batched_tokens; 0 if the file does not hold it."""
    fork = reader.header.get("fork") or {}

    def of(config: Any) -> int:
        return int(((config or {}).get("scheduler") or {}).get("max_num_batched_tokens") or 0)

    after, before = of(reader.header.get("config")), of(fork.get("before"))
    return lambda step: before if fork and step < fork.get("at", 0) else after


def keys_of(reader: Trace) -> list[str]:
    """Per request number, a unique key: the id, with #2, #3 for later requests with the same id."""
    seen: dict[str, int] = {}
    keys = []
    for request in reader.requests:
        seen[request.request_id] = count = seen.get(request.request_id, 0) + 1
        keys.append(request.request_id if count == 1 else f"{request.request_id}#{count}")
    return keys


def keys_by_name(reader: Trace, step: int) -> dict[str, str]:
    """Request id -> key of the request that has the id in a step."""
    keys = {}
    for request, key in zip(reader.requests, keys_of(reader), strict=True):
        if request.added <= step and (request.ended is None or request.ended >= step):
            if request.row_before(step) >= 0 or request.request_id not in keys:
                keys[request.request_id] = key
    return keys


def name_of(key: str) -> str:
    name, separator, count = key.rpartition("#")
    return name if separator and count.isdigit() else key
