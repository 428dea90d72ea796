"""A whole run as columns of numbers, the data of `column_index` and `column_reader`.

Nothing is replayed. A block event has a position in the run, and the state between two events is an interval of
positions:

    holding       request q holds block b from its allocation to its release
    publication   block b has a published hash from its seal to its eviction
    freeing       block b joined the free queue, at a place

The state after step s is the one at the position where step s + 1 begins. Any state costs a few comparisons of columns,
and no keyframes are needed.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.debugger.trace_scan import KIND_CODES, NO_REQUEST, ContradictionError, Scan

Ints = NDArray[np.int32]
Longs = NDArray[np.int64]
Floats = NDArray[np.float64]

STILL = np.iinfo(np.int32).max
"""The end of an interval that is open at the end of the run."""
NEVER = -1
"""In place of a step."""
FREE, CACHED, USED, SHARED = range(4)
"""State of a block: free and uncached; free and cached; held by one request; held by several."""

ALLOC, REF, UNREF, RELEASE, SEAL, EVICT = (
    KIND_CODES[kind] for kind in ("alloc", "ref", "unref", "free", "seal", "evict")
)
REF_CHANGE = np.array([1, 1, -1, -1, 0, 0], np.int32)
"""Change of a block's reference count, by kind of event."""
SEAL_CHANGE = np.array([0, 0, 0, 0, 1, -1], np.int32)
"""Change of the number of its hashes (0 or 1), by kind of event."""


@dataclass
class Columns:
    """One run. Range columns such as `event_start` have one entry more than the table they divide."""

    facts: dict[str, Any]
    """Data that is not stored as columns: header, `adds` and `finish_reasons` by request number, counters, ..."""

    # By step
    time_s: Floats
    duration_s: Floats
    num_tokens: Ints
    running: Ints
    waiting: Ints
    free_blocks: Ints
    cached_blocks: Ints
    kv_tokens: Longs
    line_member: Longs
    line_start: Longs
    event_start: Longs
    """The events of step s have the positions [event_start[s], event_start[s + 1])."""
    held_start: Longs
    """The holdings that begin in step s: [held_start[s], held_start[s + 1]); likewise the next two columns."""
    sealed_start: Longs
    freed_start: Longs

    # By position
    event_step: Ints
    event_kind: NDArray[np.int8]
    """Index into BLOCK_EVENTS."""
    event_request: Ints
    event_block: Ints
    event_state: NDArray[np.uint8]
    """State of the event's block after it: FREE, CACHED, USED or SHARED."""

    # Holdings, publications and freeings, in order of their beginning
    held_from: Ints
    held_to: Ints
    held_block: Ints
    held_request: Ints
    sealed_from: Ints
    sealed_to: Ints
    sealed_block: Ints
    sealed_hash: NDArray[np.uint64]
    freed_block: Ints
    freed_rank: Ints
    """Place in the free queue: the smallest is reused first."""

    # By request number
    added: Ints
    admitted: Ints
    first_token: Ints
    """Step, or NEVER."""
    ended: Ints
    added_s: Floats
    ended_s: Floats
    """NaN if it did not end."""
    num_prompt_tokens: Ints
    num_outputs: Ints
    num_preemptions: Ints
    aborted: NDArray[np.uint8]
    row_start: Longs
    token_start: Longs
    stay_start: Longs
    slide_start: Longs

    # Rows, output tokens, stays and slides, by request and then in order
    row_step: Ints
    row_computed: Ints
    """num_computed_tokens after the step."""
    row_outputs: Ints
    """Output tokens after the step."""
    token: Ints
    stay_admitted: Ints
    stay_first: Ints
    """Tokens found in the prefix cache."""
    stay_behind: Ints
    """Blocks of the prefix hit that lie behind the sliding window."""
    stay_left: Ints
    """Step of the preemption or end, or NEVER."""
    slide_step: Ints
    slide_behind: Ints

    # Events of requests, in order
    preempt_step: Ints
    preempt_request: Ints
    finish_step: Ints
    finish_request: Ints
    admission_step: Ints
    admission_request: Ints
    admission_first: Ints
    admission_is_resumption: NDArray[np.uint8]

    @property
    def num_steps(self) -> int:
        return len(self.time_s)

    def position_after(self, step: int) -> int:
        """The number of block events up to the end of a step."""
        return int(self.event_start[step + 1])

    def live_at(self, step: int) -> Ints:
        """Numbers of the requests that run or wait after a step."""
        num_added = int(np.searchsorted(self.added, step, "right"))
        ended = self.ended[:num_added]
        return np.flatnonzero((ended == NEVER) | (ended > step)).astype(np.int32)


def make_columns(scans: list[Scan], header: dict[str, Any]) -> Columns:
    """Compute the columns of a run. Raises ContradictionError if its records contradict each other."""
    builder = _Builder(scans, header["blocks"])
    columns = builder.steps() | builder.requests()
    with ThreadPoolExecutor(1) as second:  # most of the time is spent in numpy, which releases the GIL
        rows = second.submit(builder.rows)
        columns |= builder.events() | builder.intervals()
        columns |= rows.result()
    last = scans[-1]
    facts = {
        "header": header,
        "adds": builder.adds,
        "aborts": builder.aborts,
        "finish_reasons": builder.finish_reasons,
        "rekeyed": _joined(scans, "rekeyed"),
        "counters": _totals(scan.counters for scan in scans),
        "reasons": _steps_by_reason(scan.reasons for scan in scans),
        "errors": _joined(scans, "errors"),
        "notes": last.notes,
        "is_complete": last.is_complete,
        "damage": last.damage,
        "read_to": last.last_offset,
        "num_text_bytes": sum(scan.num_bytes for scan in scans),
        "problems": builder.problems(columns),
    }
    return Columns(facts, **columns)


def _joined(scans: list[Scan], name: str) -> list[Any]:
    return list(chain.from_iterable(getattr(scan, name) for scan in scans))


def _column(scans: list[Scan], name: str, kind: type) -> Any:
    parts = [np.frombuffer(getattr(scan, name), np.dtype(getattr(scan, name).typecode)) for scan in scans]
    return np.concatenate(parts).astype(kind, copy=False)


def _totals(counters: Any) -> dict[str, int]:
    totals: dict[str, int] = {}
    for name, value in chain.from_iterable(each.items() for each in counters):
        totals[name] = totals.get(name, 0) + value
    return dict(sorted(totals.items()))


def _steps_by_reason(reasons: Any) -> dict[str, list[int]]:
    steps: dict[str, list[int]] = {}
    for reason, where in chain.from_iterable(each.items() for each in reasons):
        steps.setdefault(reason, []).extend(where)
    return steps


def _starts(counts: Any) -> Longs:
    """Turn counts into ranges: [2, 0, 3] -> [0, 2, 2, 5]."""
    return np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])


def _demand(condition: Any, what: str) -> None:
    if not condition:
        raise ContradictionError(what)


class _Builder:
    """Turns scans into columns, table by table; later tables use earlier ones."""

    def __init__(self, scans: list[Scan], num_blocks: int) -> None:
        self.scans = scans
        self.num_blocks = num_blocks
        for scan in scans:
            _demand(not scan.malformed, scan.malformed)
        _demand(not any(scan.is_complete for scan in scans[:-1]), "records follow the end record")
        self.num_steps = sum(len(scan.step) for scan in scans)
        self.adds = [dict(add) for add in _joined(scans, "adds")]
        self.aborts = _joined(scans, "aborts")
        self.num_requests = len(self.adds)
        self.finish_reasons: list[str | None] = [None] * self.num_requests

    def column(self, name: str, kind: type = np.int32) -> Any:
        return _column(self.scans, name, kind)

    # ------------------------------------------------------------------ steps

    def steps(self) -> dict[str, Any]:
        _demand(np.array_equal(self.column("step"), np.arange(self.num_steps)), "a step is missing")
        names = ("num_tokens", "running", "waiting", "free_blocks", "cached_blocks")
        self.time_s, self.duration_s = (
            self.column("time_s", np.float64),
            self.column("duration_s", np.float64),
        )
        longs = ("kv_tokens", "line_member", "line_start")
        return {
            "time_s": self.time_s,
            "duration_s": self.duration_s,
            **{name: self.column(name) for name in names},
            **{name: self.column(name, np.int64) for name in longs},
        }

    # ------------------------------------------------------------------ requests

    def requests(self) -> dict[str, Any]:
        """Arrivals, stays and ends, from aborts, admissions, preemptions and ends in the order of the records."""
        n = self.num_requests
        self.added = np.array([add["i"] for add in self.adds], np.int32)
        _demand([add["q"] for add in self.adds] == list(range(n)), "request numbers are not in order")
        _demand(not n or np.all(np.diff(self.added) >= 0), "requests are not in order of arrival")
        admissions, preempted = _joined(self.scans, "admissions"), _joined(self.scans, "preempted")
        finished = _joined(self.scans, "finished")
        events = [(record["i"], 0, record["q"], record) for record in self.aborts]
        events += [(entry[0], 1, entry[1], entry) for entry in admissions]
        events += [(step, 2, number, None) for step, number in preempted]
        events += [(step, 3, number, reason) for step, number, reason in finished]
        events.sort(key=lambda event: event[:2])
        stays: list[list[list[int]]] = [[] for _ in range(n)]
        self.ended, self.ended_s = np.full(n, NEVER, np.int32), np.full(n, np.nan)
        self.aborted = np.zeros(n, np.uint8)
        runs = np.zeros(n, bool)
        for step, phase, number, what in events:
            _demand(0 <= number < n and self.ended[number] == NEVER, f"step {step} names an unknown request")
            if phase == 1:
                _demand(not runs[number], f"step {step} admits a request that runs")
                runs[number] = True
                stays[number].append([step, what[2], what[3], NEVER, what[4]])
                continue
            _demand(phase != 2 or runs[number], f"step {step} preempts a request that does not run")
            if runs[number]:
                stays[number][-1][3] = step
                runs[number] = False
            if phase == 0:
                self._end(number, step, what["ts"], what["why"])
                self.aborted[number] = 1
            elif phase == 3:
                self._end(number, step, float(self.time_s[step] + self.duration_s[step]), what)
        return self._request_columns(stays, admissions, preempted, finished)

    def _end(self, number: int, step: int, seconds: float, reason: str) -> None:
        self.ended[number], self.ended_s[number], self.finish_reasons[number] = step, seconds, reason

    def _request_columns(
        self, stays: list[list[list[int]]], admissions: Any, preempted: Any, finished: Any
    ) -> dict[str, Any]:
        def table(entries: Any, *places: int) -> list[Ints]:
            return [np.array([entry[place] for entry in entries], np.int32) for place in places]

        every = list(chain.from_iterable(stays))
        self.stay_start = _starts([len(each) for each in stays])
        admitted, first, behind, self.stay_left = table(every, 0, 1, 2, 3)
        self.stay_first = first
        slides = sorted(_joined(self.scans, "slides"), key=lambda entry: entry[1])
        slide_step, slide_request, slide_behind = table(slides, 0, 1, 2)
        preempt_step, preempt_request = table(preempted, 0, 1)
        finish_step, finish_request = table(finished, 0, 1)
        admission_step, admission_request, admission_first, resumed = table(admissions, 0, 1, 2, 5)
        self.num_prompt_tokens = np.array([add["num_prompt_tokens"] for add in self.adds], np.int32)
        return {
            "added": self.added,
            "admitted": np.array([each[0][0] if each else NEVER for each in stays], np.int32),
            "ended": self.ended,
            "added_s": np.array([add["ts"] for add in self.adds], np.float64),
            "ended_s": self.ended_s,
            "num_prompt_tokens": self.num_prompt_tokens,
            "num_preemptions": self._per_request(preempt_request).astype(np.int32),
            "aborted": self.aborted,
            "stay_start": self.stay_start,
            "slide_start": _starts(self._per_request(slide_request)),
            "stay_admitted": admitted,
            "stay_first": first,
            "stay_behind": behind,
            "stay_left": self.stay_left,
            "slide_step": slide_step,
            "slide_behind": slide_behind,
            "preempt_step": preempt_step,
            "preempt_request": preempt_request,
            "finish_step": finish_step,
            "finish_request": finish_request,
            "admission_step": admission_step,
            "admission_request": admission_request,
            "admission_first": admission_first,
            "admission_is_resumption": resumed.astype(np.uint8),
        }

    def _per_request(self, numbers: Ints) -> Any:
        return np.bincount(numbers, minlength=self.num_requests)

    # ------------------------------------------------------------------ rows

    def rows(self) -> dict[str, Any]:
        """The rows of each request in order, and its computed tokens after each."""
        request = self.column("row_request")
        is_known = not len(request) or 0 <= request.min() <= request.max() < self.num_requests
        _demand(is_known, "a row of an unknown request")
        order = _sorting(request, self.num_requests)
        step = np.repeat(np.arange(self.num_steps, dtype=np.int32), self.column("num_rows"))[order]
        outputs = self.column("row_outputs")
        accepted = np.maximum(outputs, 0)
        tokens = self.column("tokens")[_sorting(np.repeat(request, accepted), self.num_requests)]
        outputs, accepted, request = outputs[order], accepted[order], request[order]
        self.row_start = _starts(self._per_request(request))
        stay = self._stay_of_rows(order, request, step)
        total = np.cumsum(accepted, dtype=np.int64)
        before = np.concatenate([[0], total])[self.row_start]
        row_outputs = (total - before[request]).astype(np.int32)
        num_outputs = np.diff(before).astype(np.int32)
        first_token = np.full(self.num_requests, NEVER, np.int32)
        firsts = np.flatnonzero((row_outputs > 0) & (row_outputs == accepted))[::-1]
        first_token[request[firsts]] = step[firsts]
        computed = self._computed(self.column("row_num_tokens")[order], outputs, row_outputs, request, stay)
        self.row_step, self.row_stay, self.row_computed = step, stay, computed
        return {
            "first_token": first_token,
            "num_outputs": num_outputs,
            "row_start": self.row_start,
            "token_start": _starts(num_outputs),
            "row_step": step,
            "row_computed": computed,
            "row_outputs": row_outputs,
            "token": tokens,
        }

    def _stay_of_rows(self, order: Any, request: Ints, step: Ints) -> Any:
        """The stay of each row; a stay begins with the row of its admission."""
        offsets = _starts([len(scan.row_request) for scan in self.scans])
        admission_offset = np.repeat(offsets[:-1], [len(scan.admissions) for scan in self.scans])
        rows = (
            np.array([entry[4] for entry in _joined(self.scans, "admissions")], np.int64) + admission_offset
        )
        begins = np.zeros(len(order), np.int8)
        begins[rows] = 1
        stay = np.cumsum(begins[order], dtype=np.int64) - 1
        if len(order):
            _demand(stay[0] >= 0 and np.all(stay >= self.stay_start[request]), "a row before its admission")
            left = self.stay_left[stay]
            after = (step > left) | (
                (step == left) & (self.aborted[request] == 1) & (self.ended[request] == step)
            )
            _demand(not np.any(after & (left != NEVER)), "a row of a request that does not run")
        return stay

    def _computed(self, n: Ints, outputs: Ints, row_outputs: Ints, request: Ints, stay: Any) -> Ints:
        """num_computed_tokens after each row.

        After a row with output everything but the newest token is computed. A row without output adds its tokens to
        those computed before: by the last row with output, or the prefix hit at the admission.
        """
        index = np.arange(len(n))
        first = np.ones(len(n), bool)
        first[1:] = stay[1:] != stay[:-1]
        known = np.where(
            outputs >= 0, self.num_prompt_tokens[request] + row_outputs - 1, self.stay_first[stay] + n
        )
        anchor = np.maximum.accumulate(np.where(first | (outputs >= 0), index, 0))
        summed = np.cumsum(n, dtype=np.int64)
        return np.asarray(known[anchor] + summed - summed[anchor]).astype(np.int32)

    # ------------------------------------------------------------------ events

    def events(self) -> dict[str, Any]:
        """Every block event, and the state of its block after it."""
        lengths = self.column("run_length")
        self.kind = np.repeat(self.column("run_kind", np.int8), lengths)
        self.request = np.repeat(self.column("run_request"), lengths)
        self.block = block = self.column("event_block")
        fits = not len(block) or 0 <= block.min() <= block.max() < self.num_blocks
        _demand(fits, f"a block that is not one of the {self.num_blocks}")
        in_reach = (
            not len(block) or NO_REQUEST <= self.request.min() <= self.request.max() < self.num_requests
        )
        _demand(in_reach, "a block event of an unknown request")
        counts = np.append(self.column("num_events"), self.scans[-1].num_end_events)
        self.event_start = _starts(counts)
        _demand(self.event_start[-1] == len(block), "block events outside of steps")
        self.order = order = _sorting(block, self.num_blocks)
        self.refs = self._running_count(REF_CHANGE, order)
        self.seals = self._running_count(SEAL_CHANGE, order)
        _demand(np.all(self.refs >= 0), "a block is released that no request holds")
        _demand(np.all((self.seals == 0) | (self.seals == 1)), "a hash is published or evicted twice")
        idle = np.where(self.seals, CACHED, FREE)
        state = np.where(self.refs == 0, idle, np.where(self.refs == 1, USED, SHARED)).astype(np.uint8)
        return {
            "event_start": self.event_start,
            "event_step": np.repeat(np.arange(self.num_steps + 1, dtype=np.int32), counts),
            "event_kind": self.kind,
            "event_request": self.request,
            "event_block": block,
            "event_state": state,
        }

    def _running_count(self, change: Ints, order: Any) -> Ints:
        """Per event, the sum of `change` over its block's events up to it; `order` sorts the events by block."""
        sums = np.cumsum(change[self.kind[order]], dtype=np.int64)
        blocks = self.block[order]
        first = np.ones(len(blocks), bool)
        first[1:] = blocks[1:] != blocks[:-1]
        starts = np.flatnonzero(first)
        before = np.concatenate([[0], sums])[starts]
        counts = np.empty(len(blocks), np.int32)
        counts[order] = sums - np.repeat(before, np.diff(np.append(starts, len(blocks))))
        return counts

    # ------------------------------------------------------------------ intervals

    def intervals(self) -> dict[str, Any]:
        return {**self._holdings(), **self._publications(), **self._freeings()}

    def _holdings(self) -> dict[str, Any]:
        """Pair each allocation of a block with its release; for one request and block in order."""
        key = self.block.astype(np.int64) * (self.num_requests + 1) + self.request + 1
        taken = np.flatnonzero(self.kind <= REF)
        let_go = np.flatnonzero((self.kind == UNREF) | (self.kind == RELEASE))
        taken = taken[np.argsort(key[taken], kind="stable")]
        let_go = let_go[np.argsort(key[let_go], kind="stable")]
        release_keys, take_keys = key[let_go], key[taken]
        nth = np.arange(len(let_go)) - np.searchsorted(release_keys, release_keys, "left")
        partner = np.searchsorted(take_keys, release_keys, "left") + nth
        message = "a block is released by a request that does not hold it"
        _demand(not len(partner) or partner.max() < len(taken), message)
        fits = (take_keys[partner] == release_keys) & (taken[partner] < let_go)
        _demand(np.all(fits), message)
        end = np.full(len(self.kind), STILL, np.int32)
        end[taken[partner]] = let_go
        taken_in_order: Ints = np.flatnonzero(self.kind <= REF).astype(np.int32)
        return {
            "held_start": self._start_by_step(taken_in_order),
            "held_from": taken_in_order,
            "held_to": end[taken_in_order],
            "held_block": self.block[taken_in_order],
            "held_request": self.request[taken_in_order],
        }

    def _publications(self) -> dict[str, Any]:
        """Pair each seal with the next eviction of the block."""
        there = self.order[self.kind[self.order] >= SEAL]
        end = np.full(len(self.kind), STILL, np.int32)
        pairs = np.flatnonzero(
            (self.block[there[1:]] == self.block[there[:-1]]) & (self.kind[there[:-1]] == SEAL)
        )
        end[there[pairs]] = there[pairs + 1]
        sealed = np.flatnonzero(self.kind == SEAL).astype(np.int32)
        hashes = np.frombuffer(b"".join(bytes(scan.seal_hash) for scan in self.scans), np.uint64)
        _demand(len(hashes) == len(sealed) and np.all(hashes != 0), "a block is published without a hash")
        return {
            "sealed_start": self._start_by_step(sealed),
            "sealed_from": sealed,
            "sealed_to": end[sealed],
            "sealed_block": self.block[sealed],
            "sealed_hash": hashes,
        }

    def _freeings(self) -> dict[str, Any]:
        """Cached blocks join the free queue at its back, the others at its front."""
        freed = np.flatnonzero((REF_CHANGE[self.kind] != 0) & (self.refs == 0)).astype(np.int32)
        to_back = self.seals[freed] == 1
        rank = np.where(to_back, self.num_blocks + np.cumsum(to_back), -np.cumsum(~to_back))
        return {
            "freed_start": self._start_by_step(freed),
            "freed_block": self.block[freed],
            "freed_rank": rank.astype(np.int32),
        }

    def _start_by_step(self, positions: Ints) -> Longs:
        return np.searchsorted(positions, self.event_start.astype(np.int32))

    # ------------------------------------------------------------------ contradictions

    def problems(self, columns: dict[str, Any]) -> list[tuple[int, str]]:
        """Compare the five counts of every step with the columns: (step, message) where they differ."""
        steps = self.num_steps
        ends = self.event_start[1 : steps + 1]

        def after_events(changes: Any) -> Any:
            return np.concatenate([[0], np.cumsum(changes, dtype=np.int64)])[ends]

        change = REF_CHANGE[self.kind]
        freed = (change != 0) & (self.refs == 0)
        taken = (change > 0) & (self.refs == 1)
        replayed = {
            "run": self._count(columns["stay_admitted"]) - self._count(self.stay_left),
            "free": self.num_blocks - 1 + after_events(freed.astype(np.int8) - taken.astype(np.int8)),
            "cached": after_events(SEAL_CHANGE[self.kind]),
            "kv": self._kv(),
        }
        replayed["wait"] = self._count(self.added) - self._count(self.ended) - replayed["run"]
        written = {
            "run": columns["running"],
            "wait": columns["waiting"],
            "free": columns["free_blocks"],
            "cached": columns["cached_blocks"],
            "kv": columns["kv_tokens"],
        }
        return sorted(
            (
                int(step),
                f"after step {step} the replay has {name}={replayed[name][step]}, the engine had {counts[step]}",
            )
            for name, counts in written.items()
            for step in np.flatnonzero(replayed[name] != counts)[:100]
        )

    def _count(self, steps: Ints, weights: Any = None) -> Any:
        """Per step, the number of `steps` at or before it."""
        there = (steps != NEVER) & (steps < self.num_steps)
        weights = None if weights is None else weights[there]
        return np.cumsum(np.bincount(steps[there], weights, self.num_steps)).astype(np.int64)

    def _kv(self) -> Any:
        """Per step, the tokens of running requests whose KV exists."""
        computed = self.row_computed.astype(np.int64)
        gained = computed.copy()
        gained[1:] -= np.where(self.row_stay[1:] == self.row_stay[:-1], computed[:-1], 0)
        last_row = np.searchsorted(self.row_stay, np.arange(len(self.stay_left)), "right") - 1
        return self._count(self.row_step, gained) - self._count(self.stay_left, computed[last_row])


def _sorting(values: Ints, limit: int) -> Any:
    """The indices that sort values in [0, limit), equal ones in their order."""
    if limit <= 1 << 16:
        return np.argsort(values.astype(np.uint16), kind="stable")  # a radix sort: numpy has it for 16 bits
    order = np.argsort((values & 0xFFFF).astype(np.uint16), kind="stable")
    return order[np.argsort((values >> 16).astype(np.uint16)[order], kind="stable")]
