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

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields
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
    builder.steps()
    builder.requests()
    with ThreadPoolExecutor(1) as second:  # most of the time is spent in numpy, which releases the GIL
        rows = second.submit(builder.rows)
        builder.events()
        builder.intervals()
        rows.result()
    counters: Counter[str] = Counter()
    reasons: dict[str, list[int]] = {}
    for scan in scans:
        counters.update(scan.counters)
        for reason, steps in scan.reasons.items():
            reasons.setdefault(reason, []).extend(steps)
    last = scans[-1]
    facts = {
        "header": header,
        "adds": builder.adds,
        "aborts": builder.aborts,
        "finish_reasons": builder.finish_reasons,
        "rekeyed": builder.joined("rekeyed"),
        "counters": dict(sorted(counters.items())),
        "reasons": reasons,
        "errors": builder.joined("errors"),
        "notes": last.notes,
        "is_complete": last.is_complete,
        "damage": last.damage,
        "read_to": last.last_offset,
        "num_text_bytes": sum(scan.num_bytes for scan in scans),
        "problems": builder.problems(),
    }
    return Columns(facts, **{f.name: getattr(builder, f.name) for f in fields(Columns) if f.name != "facts"})


def states(ref: Ints, hashed: NDArray[Any]) -> NDArray[np.uint8]:
    """Block states from reference counts and published hashes."""
    idle = np.where(hashed, CACHED, FREE)
    return np.where(ref == 0, idle, np.where(ref == 1, USED, SHARED)).astype(np.uint8)


def _starts(counts: Any) -> Longs:
    """Turn counts into ranges: [2, 0, 3] -> [0, 2, 2, 5]."""
    return np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])


def _table(entries: Any, *places: int) -> list[Ints]:
    return [np.array([entry[place] for entry in entries], np.int32) for place in places]


def _demand(condition: Any, what: str) -> None:
    if not condition:
        raise ContradictionError(what)


class _Builder:
    """Computes the columns, each an attribute with the name that it has in `Columns`; later ones use earlier ones."""

    def __init__(self, scans: list[Scan], num_blocks: int) -> None:
        self.scans = scans
        self.num_blocks = num_blocks
        for scan in scans:
            _demand(not scan.malformed, scan.malformed)
        _demand(not any(scan.is_complete for scan in scans[:-1]), "records follow the end record")
        self.num_steps = sum(len(scan.step) for scan in scans)
        self.adds = [dict(add) for add in self.joined("adds")]
        self.aborts = self.joined("aborts")
        self.num_requests = len(self.adds)
        self.finish_reasons: list[str | None] = [None] * self.num_requests

    def joined(self, name: str) -> list[Any]:
        return list(chain.from_iterable(getattr(scan, name) for scan in self.scans))

    def column(self, name: str, kind: type = np.int32) -> Any:
        parts = [getattr(scan, name) for scan in self.scans]
        arrays = [np.frombuffer(part, np.dtype(part.typecode)) for part in parts]
        return np.concatenate(arrays).astype(kind, copy=False)

    def steps(self) -> None:
        _demand(np.array_equal(self.column("step"), np.arange(self.num_steps)), "a step is missing")
        self.time_s, self.duration_s = (self.column(name, np.float64) for name in ("time_s", "duration_s"))
        self.num_tokens, self.running, self.waiting = map(self.column, ("num_tokens", "running", "waiting"))
        self.free_blocks, self.cached_blocks = map(self.column, ("free_blocks", "cached_blocks"))
        longs = ("kv_tokens", "line_member", "line_start")
        self.kv_tokens, self.line_member, self.line_start = (self.column(name, np.int64) for name in longs)

    def requests(self) -> None:
        """Arrivals, stays and ends, from aborts, admissions, preemptions and ends in the order of the records."""
        n = self.num_requests
        self.added = np.array([add["i"] for add in self.adds], np.int32)
        self.added_s = np.array([add["ts"] for add in self.adds], np.float64)
        self.num_prompt_tokens = np.array([add["num_prompt_tokens"] for add in self.adds], np.int32)
        _demand([add["q"] for add in self.adds] == list(range(n)), "request numbers are not in order")
        _demand(not n or np.all(np.diff(self.added) >= 0), "requests are not in order of arrival")
        self.ended, self.ended_s = np.full(n, NEVER, np.int32), np.full(n, np.nan)
        self.aborted = np.zeros(n, np.uint8)
        admissions, preempted = self.joined("admissions"), self.joined("preempted")
        stays = self._stays(admissions, preempted)
        every = list(chain.from_iterable(stays))
        self.stay_start = _starts([len(stay) for stay in stays])
        self.stay_admitted, self.stay_first, self.stay_behind, self.stay_left = _table(every, 0, 1, 2, 3)
        self.admitted = np.array([stay[0][0] if stay else NEVER for stay in stays], np.int32)
        slides = sorted(self.joined("slides"), key=lambda entry: entry[1])
        self.slide_step, slide_request, self.slide_behind = _table(slides, 0, 1, 2)
        self.slide_start = _starts(self._per_request(slide_request))
        self.preempt_step, self.preempt_request = _table(preempted, 0, 1)
        self.num_preemptions = self._per_request(self.preempt_request).astype(np.int32)
        self.finish_step, self.finish_request = _table(self.joined("finished"), 0, 1)
        self.admission_step, self.admission_request, self.admission_first = _table(admissions, 0, 1, 2)
        self.admission_is_resumption = _table(admissions, 5)[0].astype(np.uint8)

    def _stays(self, admissions: list[Any], preempted: list[Any]) -> list[list[list[int]]]:
        """Per request, [admitted, first, behind, left] of each stay. Sets how and when each request ended."""
        events = [(record["i"], 0, record["q"], record) for record in self.aborts]
        events += [(entry[0], 1, entry[1], entry) for entry in admissions]
        events += [(step, 2, number, None) for step, number in preempted]
        events += [(step, 3, number, reason) for step, number, reason in self.joined("finished")]
        events.sort(key=lambda event: event[:2])
        stays: list[list[list[int]]] = [[] for _ in range(self.num_requests)]
        runs = np.zeros(self.num_requests, bool)
        for step, phase, number, what in events:
            is_live = 0 <= number < self.num_requests and self.ended[number] == NEVER
            _demand(is_live, f"step {step} names an unknown request")
            if phase == 1:
                _demand(not runs[number], f"step {step} admits a request that runs")
                runs[number] = True
                stays[number].append([step, what[2], what[3], NEVER])
                continue
            _demand(phase != 2 or runs[number], f"step {step} preempts a request that does not run")
            if runs[number]:
                stays[number][-1][3] = step
                runs[number] = False
            if phase == 0:
                self.aborted[number] = 1
                seconds, reason = what["ts"], what["why"]
            elif phase == 3:
                seconds, reason = float(self.time_s[step] + self.duration_s[step]), what
            else:
                continue
            self.ended[number], self.ended_s[number], self.finish_reasons[number] = step, seconds, reason
        return stays

    def _per_request(self, numbers: Ints) -> Any:
        return np.bincount(numbers, minlength=self.num_requests)

    def rows(self) -> None:
        """The rows of each request in order, and its computed tokens after each."""
        request = self.column("row_request")
        is_known = not len(request) or 0 <= request.min() <= request.max() < self.num_requests
        _demand(is_known, "a row of an unknown request")
        order = _sorting(request, self.num_requests)
        self.row_step = np.repeat(np.arange(self.num_steps, dtype=np.int32), self.column("num_rows"))[order]
        outputs = self.column("row_outputs")
        accepted = np.maximum(outputs, 0)
        self.token = self.column("tokens")[_sorting(np.repeat(request, accepted), self.num_requests)]
        outputs, accepted, request = outputs[order], accepted[order], request[order]
        self.row_start = _starts(self._per_request(request))
        self.row_stay = self._stay_of_rows(order, request)
        before = _starts(accepted)[self.row_start]
        self.num_outputs = np.diff(before).astype(np.int32)
        self.token_start = _starts(self.num_outputs)
        self.row_outputs = (np.cumsum(accepted, dtype=np.int64) - before[request]).astype(np.int32)
        self.first_token = np.full(self.num_requests, NEVER, np.int32)
        firsts = np.flatnonzero((self.row_outputs > 0) & (self.row_outputs == accepted))[::-1]
        self.first_token[request[firsts]] = self.row_step[firsts]
        self.row_computed = self._computed(self.column("row_num_tokens")[order], outputs, request)

    def _stay_of_rows(self, order: Any, request: Ints) -> Any:
        """The stay of each row; a stay begins with the row of its admission."""
        offsets = _starts([len(scan.row_request) for scan in self.scans])
        admission_offset = np.repeat(offsets[:-1], [len(scan.admissions) for scan in self.scans])
        begins = np.zeros(len(order), np.int8)
        begins[np.array([entry[4] for entry in self.joined("admissions")], np.int64) + admission_offset] = 1
        stay = np.cumsum(begins[order], dtype=np.int64) - 1
        if len(order):
            _demand(stay[0] >= 0 and np.all(stay >= self.stay_start[request]), "a row before its admission")
            step, left = self.row_step, self.stay_left[stay]
            aborted_here = (self.aborted[request] == 1) & (self.ended[request] == step)
            after = (step > left) | ((step == left) & aborted_here)
            _demand(not np.any(after & (left != NEVER)), "a row of a request that does not run")
        return stay

    def _computed(self, n: Ints, outputs: Ints, request: Ints) -> Ints:
        """num_computed_tokens after each row.

        After a row with output everything but the newest token is computed. A row without output adds its tokens to
        those computed before: by the last row with output, or the prefix hit at the admission.
        """
        stay = self.row_stay
        first = np.ones(len(n), bool)
        first[1:] = stay[1:] != stay[:-1]
        with_output = self.num_prompt_tokens[request] + self.row_outputs - 1
        known = np.where(outputs >= 0, with_output, self.stay_first[stay] + n)
        anchor = np.maximum.accumulate(np.where(first | (outputs >= 0), np.arange(len(n)), 0))
        summed = np.cumsum(n, dtype=np.int64)
        return np.asarray(known[anchor] + summed - summed[anchor]).astype(np.int32)

    def events(self) -> None:
        """Every block event, and the state of its block after it."""
        lengths = self.column("run_length")
        self.event_kind = np.repeat(self.column("run_kind", np.int8), lengths)
        self.event_request = request = np.repeat(self.column("run_request"), lengths)
        self.event_block = block = self.column("event_block")
        fits = not len(block) or 0 <= block.min() <= block.max() < self.num_blocks
        _demand(fits, f"a block that is not one of the {self.num_blocks}")
        in_reach = not len(block) or NO_REQUEST <= request.min() <= request.max() < self.num_requests
        _demand(in_reach, "a block event of an unknown request")
        counts = np.append(self.column("num_events"), self.scans[-1].num_end_events)
        self.event_start = _starts(counts)
        _demand(self.event_start[-1] == len(block), "block events outside of steps")
        self.event_step = np.repeat(np.arange(self.num_steps + 1, dtype=np.int32), counts)
        self.order = order = _sorting(block, self.num_blocks)
        self.refs = self._running_count(REF_CHANGE, order)
        self.seals = self._running_count(SEAL_CHANGE, order)
        _demand(np.all(self.refs >= 0), "a block is released that no request holds")
        _demand(np.all((self.seals == 0) | (self.seals == 1)), "a hash is published or evicted twice")
        self.event_state = states(self.refs, self.seals)

    def _running_count(self, change: Ints, order: Any) -> Ints:
        """Per event, the sum of `change` over its block's events up to it; `order` sorts the events by block."""
        sums = np.cumsum(change[self.event_kind[order]], dtype=np.int64)
        blocks = self.event_block[order]
        first = np.ones(len(blocks), bool)
        first[1:] = blocks[1:] != blocks[:-1]
        starts = np.flatnonzero(first)
        before = np.concatenate([[0], sums])[starts]
        counts = np.empty(len(blocks), np.int32)
        counts[order] = sums - np.repeat(before, np.diff(np.append(starts, len(blocks))))
        return counts

    def intervals(self) -> None:
        self._holdings()
        self._publications()
        self._freeings()

    def _holdings(self) -> None:
        """Pair each allocation of a block with its release; for one request and block in order."""
        kind = self.event_kind
        key = self.event_block.astype(np.int64) * (self.num_requests + 1) + self.event_request + 1
        self.held_from = held = np.flatnonzero(kind <= REF).astype(np.int32)
        let_go = np.flatnonzero((kind == UNREF) | (kind == RELEASE))
        taken = held[np.argsort(key[held], kind="stable")]
        let_go = let_go[np.argsort(key[let_go], kind="stable")]
        release_keys, take_keys = key[let_go], key[taken]
        nth = np.arange(len(let_go)) - np.searchsorted(release_keys, release_keys, "left")
        partner = np.searchsorted(take_keys, release_keys, "left") + nth
        message = "a block is released by a request that does not hold it"
        _demand(not len(partner) or partner.max() < len(taken), message)
        _demand(np.all((take_keys[partner] == release_keys) & (taken[partner] < let_go)), message)
        end = np.full(len(kind), STILL, np.int32)
        end[taken[partner]] = let_go
        self.held_start = self._start_by_step(held)
        self.held_to, self.held_block, self.held_request = (
            end[held],
            self.event_block[held],
            self.event_request[held],
        )

    def _publications(self) -> None:
        """Pair each seal with the next eviction of the block."""
        kind, block = self.event_kind, self.event_block
        there = self.order[kind[self.order] >= SEAL]
        end = np.full(len(kind), STILL, np.int32)
        pairs = np.flatnonzero((block[there[1:]] == block[there[:-1]]) & (kind[there[:-1]] == SEAL))
        end[there[pairs]] = there[pairs + 1]
        self.sealed_from = sealed = np.flatnonzero(kind == SEAL).astype(np.int32)
        self.sealed_start = self._start_by_step(sealed)
        self.sealed_to, self.sealed_block = end[sealed], block[sealed]
        self.sealed_hash = np.frombuffer(b"".join(bytes(scan.seal_hash) for scan in self.scans), np.uint64)
        has_hash = len(self.sealed_hash) == len(sealed) and np.all(self.sealed_hash != 0)
        _demand(has_hash, "a block is published without a hash")

    def _freeings(self) -> None:
        """Cached blocks join the free queue at its back, the others at its front."""
        freed = np.flatnonzero((REF_CHANGE[self.event_kind] != 0) & (self.refs == 0)).astype(np.int32)
        to_back = self.seals[freed] == 1
        rank = np.where(to_back, self.num_blocks + np.cumsum(to_back), -np.cumsum(~to_back))
        self.freed_start, self.freed_block = self._start_by_step(freed), self.event_block[freed]
        self.freed_rank = rank.astype(np.int32)

    def _start_by_step(self, positions: Ints) -> Longs:
        return np.searchsorted(positions, self.event_start.astype(np.int32))

    def problems(self) -> list[tuple[int, str]]:
        """Compare the five counts of every step with the columns: (step, message) where they differ."""
        ends = self.event_start[1 : self.num_steps + 1]

        def after_events(changes: Any) -> Any:
            return _starts(changes)[ends]

        change = REF_CHANGE[self.event_kind]
        freed = (change != 0) & (self.refs == 0)
        taken = (change > 0) & (self.refs == 1)
        free = self.num_blocks - 1 + after_events(freed.astype(np.int8) - taken.astype(np.int8))
        running = self._count(self.stay_admitted) - self._count(self.stay_left)
        counts = {
            "run": (running, self.running),
            "wait": (self._count(self.added) - self._count(self.ended) - running, self.waiting),
            "free": (free, self.free_blocks),
            "cached": (after_events(SEAL_CHANGE[self.event_kind]), self.cached_blocks),
            "kv": (self._kv(), self.kv_tokens),
        }
        return sorted(
            (
                int(step),
                f"after step {step} the replay has {name}={ours[step]}, the engine had {written[step]}",
            )
            for name, (ours, written) in counts.items()
            for step in np.flatnonzero(ours != written)[:100]
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
