"""Rebuilding the engine's state from the records of a trace, and nothing else (format: `trace_format`).

`Replay` plays records forward and keeps what it passes, so that any earlier state can be read back:

    blocks     one entry per change, with everything about the block after it        (BlockChanges)
    requests   a stay per admission with its growing block table; a mark per row     (RequestHistory)

Played to the end, it also knows where the records contradict themselves or the engine's checks.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_right
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from engine.core.trace_format import BLOCK_EVENTS, RequestState, state_crc

NOBODY = -1
"""In place of a request number: a block without owner."""

_KIND_CODES = {kind: code for code, kind in enumerate(BLOCK_EVENTS)}


class Problem(NamedTuple):
    """A place where a trace is not what the engine did."""

    step: int
    """The first step whose state is wrong or unknown."""
    message: str


@dataclass(slots=True)
class Stay:
    """One time that a request ran: from its admission to its preemption or end."""

    admitted: int
    """Step."""
    start: int
    """Tokens found in the prefix cache."""
    left: int | None = None
    """Step after which it runs no more; None while it runs."""
    blocks: list[int] = field(default_factory=list)
    """The block table, which only grows."""
    block_steps: list[int] = field(default_factory=list)
    """The step in which each entry of `blocks` came."""

    def table_at(self, step: int) -> list[int]:
        return self.blocks[: bisect_right(self.block_steps, step)]


@dataclass(slots=True)
class RequestHistory:
    """What the trace says about one request."""

    number: int
    request_id: str
    key: tuple[float, ...]
    """Running and waiting requests are in the order of their keys."""
    record: dict[str, Any]
    """The `add` record: prompt, params, priority, arrival, seed, lora, salt."""
    added: int
    """The step before which it arrived."""
    added_s: float
    ended: int | None = None
    """The step in which it finished, or before which it was aborted."""
    ended_s: float | None = None
    finish_reason: str | None = None
    stays: list[Stay] = field(default_factory=list)
    preempted: list[int] = field(default_factory=list)
    """Steps."""
    tokens: array[int] = field(default_factory=lambda: array("i"))
    """Accepted output."""
    row_steps: array[int] = field(default_factory=lambda: array("i"))
    """The steps in which it was scheduled, and per such step what was true after it:"""
    row_computed: array[int] = field(default_factory=lambda: array("i"))
    row_outputs: array[int] = field(default_factory=lambda: array("i"))

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.record["prompt"])

    @property
    def num_cached_tokens(self) -> int:
        """Prefix-cache hit at first admission, in tokens; 0 before."""
        return self.stays[0].start if self.stays else 0

    def stay_at(self, step: int) -> Stay | None:
        """The stay that covers the state at `step`, if it runs then."""
        for stay in reversed(self.stays):
            if stay.admitted <= step:
                return stay if stay.left is None or step < stay.left else None
        return None

    def lives_at(self, step: int) -> bool:
        return self.added <= step and (self.ended is None or step < self.ended)

    def num_computed_at(self, step: int) -> int:
        """Tokens whose KV exists; 0 unless it runs."""
        stay = self.stay_at(step)
        if stay is None:
            return 0
        row = bisect_right(self.row_steps, step) - 1
        return self.row_computed[row]

    def num_outputs_at(self, step: int) -> int:
        row = bisect_right(self.row_steps, step) - 1
        return self.row_outputs[row] if row >= 0 else 0

    def num_tokens_at(self, step: int) -> int:
        """Prompt and output."""
        return self.num_prompt_tokens + self.num_outputs_at(step)


class BlockChanges:
    """Every change of every block, in order: `step` to `block` say what happened in entry n, `ref` to `rank`
    what was true of the block after it."""

    def __init__(self) -> None:
        self.step = array("i")
        self.kind = array("b")
        """Index into BLOCK_EVENTS."""
        self.request = array("i")
        """The request's number, or NOBODY."""
        self.block = array("i")
        self.ref = array("i")
        self.owner = array("i")
        """The request that has held it longest, or NOBODY."""
        self.hash = array("Q")
        """`HASH_BYTES` bytes as they are in memory; 0 without a hash."""
        self.rank = array("q")
        """Place in the free queue once the reference count is 0: the smallest is reused first."""

    def __len__(self) -> int:
        return len(self.block)


@dataclass
class BlockColumns:
    """All blocks at one moment, one entry per block id; the columns are those of BlockChanges."""

    ref: array[int]
    owner: array[int]
    hash: array[int]
    rank: array[int]

    @classmethod
    def fresh(cls, num_blocks: int) -> BlockColumns:
        """Nothing used, nothing cached, the free queue in the order of the ids."""
        return cls(
            ref=array("i", [0]) * num_blocks,
            owner=array("i", [NOBODY]) * num_blocks,
            hash=array("Q", [0]) * num_blocks,
            rank=array("q", range(num_blocks)),
        )

    def copy(self) -> BlockColumns:
        return BlockColumns(self.ref[:], self.owner[:], self.hash[:], self.rank[:])

    def apply(self, changes: BlockChanges, first: int, last: int) -> None:
        """Play changes[first:last]."""
        span = slice(first, last)
        blocks = changes.block[span]
        for column, values in (
            (self.ref, changes.ref),
            (self.owner, changes.owner),
            (self.hash, changes.hash),
            (self.rank, changes.rank),
        ):
            for block, value in zip(blocks, values[span], strict=True):
                column[block] = value


class Replay:
    """Plays records in file order. `problems` says where they do not fit together."""

    def __init__(self, header: dict[str, Any]) -> None:
        self.num_blocks: int = header["blocks"]
        self.block_size: int = header["block_size"]
        self.requests: list[RequestHistory] = []
        self.live: dict[int, RequestHistory] = {}
        self.running: dict[int, Stay] = {}
        self.blocks = BlockColumns.fresh(self.num_blocks)
        self.changes = BlockChanges()
        self.owners: list[list[int]] = [[] for _ in range(self.num_blocks)]
        self.num_free = self.num_blocks - 1
        self.num_cached = 0
        self.num_steps = 0
        self.problems: list[Problem] = []
        self._last_good_check = -1
        self._next_front = -1
        self._next_back = self.num_blocks

    def add(self, record: dict[str, Any]) -> RequestHistory:
        if record["q"] != len(self.requests):
            self._object(f"request {record['r']!r} is number {record['q']}, {len(self.requests)} expected")
        request = RequestHistory(
            len(self.requests), record["r"], tuple(record["key"]), record, record["i"], record["ts"]
        )
        self.requests.append(request)
        self.live[request.number] = request
        return request

    def abort(self, record: dict[str, Any]) -> RequestHistory:
        request: RequestHistory = self.requests[record["q"]]
        self._end(request, record["i"], record["ts"], record["why"])
        return request

    def step(self, record: dict[str, Any]) -> None:
        """Play one step: admissions, then block events, then what the rows computed, then who left."""
        step = record["i"]
        starts = {row[0]: row[1] for row in record.get("rows", ())}
        for number in (*record.get("new", ()), *record.get("res", ())):
            stay = Stay(step, starts[number])
            self.requests[number].stays.append(stay)
            self.running[number] = stay
        self.play_events(record.get("ev", ()), step)
        for number, start, num_tokens, *tokens in record.get("rows", ()):
            self._row(self.requests[number], step, start, num_tokens, tokens)
        for number in record.get("pre", ()):
            self.requests[number].preempted.append(step)
            self.running.pop(number).left = step
        for number, reason in record.get("fin", ()):
            self._end(self.requests[number], step, record["ts"] + record["dur"], reason)
        self.num_steps = step + 1
        self._compare(step, record)

    def play_events(self, runs: Any, step: int) -> None:
        for kind, number, blocks, *contents in runs:
            code = _KIND_CODES[kind]
            hashes = contents[0] if kind == "seal" else [None] * len(blocks)
            for block, content in zip(blocks, hashes, strict=True):
                if kind == "alloc" or kind == "ref":
                    self._take(block, number, step)
                elif kind == "free" or kind == "unref":
                    self._release(block, number)
                else:
                    self._set_hash(block, content)
                self._note(step, code, number, block)

    def check(self, record: dict[str, Any], log_crc: int) -> None:
        """Compare with what the writer saw: the engine's state, and all lines before this one."""
        step = record["i"] if record["t"] == "chk" else record["i"] - 1
        since = self._last_good_check + 1
        if record["log"] != f"{log_crc:08x}":
            message = f"records were changed: between step {since} and {step} a line is not as written"
            self.problems.append(Problem(since, message))
        crc = self.crc()
        if record["crc"] != crc:
            self.problems.append(
                Problem(
                    since,
                    f"the state after step {step} has CRC {crc}, the engine's had {record['crc']}: they part "
                    f"between step {since} and {step}",
                )
            )
        if not self.problems:
            self._last_good_check = step

    def crc(self) -> str:
        """`state_crc` of the state that the records lead to."""
        order = sorted(self.running, key=lambda number: self.requests[number].key)
        requests = [self.requests[number] for number in order]
        return state_crc(
            self.blocks.ref,
            self.blocks.hash.tobytes(),
            [
                RequestState(
                    request.request_id,
                    request.row_computed[-1],
                    request.num_prompt_tokens + len(request.tokens),
                    self.running[request.number].blocks,
                )
                for request in requests
            ],
            [request.request_id for number, request in self.live.items() if number not in self.running],
        )

    # ------------------------------------------------------------------ one change each

    def _row(
        self, request: RequestHistory, step: int, start: int, num_tokens: int, tokens: list[int]
    ) -> None:
        stay = self.running.get(request.number)
        if stay is None:
            self._object(f"step {step} computes tokens of {request.request_id!r}, which does not run")
            return
        expected = stay.start if stay.admitted == step else request.row_computed[-1]
        if start != expected:
            self._object(f"step {step} starts {request.request_id!r} at token {start}, not at {expected}")
        request.tokens.extend(tokens)
        request.row_steps.append(step)
        request.row_outputs.append(len(request.tokens))
        # With output, all but the newest token is computed, whatever was drafted; without, all scheduled.
        num_known = request.num_prompt_tokens + len(request.tokens)
        request.row_computed.append(num_known - 1 if tokens else start + num_tokens)

    def _take(self, block: int, number: int, step: int) -> None:
        if self.blocks.ref[block] == 0:
            self.num_free -= 1
        self.blocks.ref[block] += 1
        self.owners[block].append(number)
        stay = self.running.get(number)
        if stay is not None:  # not so if it was aborted while the step was in flight
            stay.blocks.append(block)
            stay.block_steps.append(step)

    def _set_hash(self, block: int, content: str | None) -> None:
        value = 0 if content is None else int.from_bytes(bytes.fromhex(content), sys.byteorder)
        self.num_cached += (value != 0) - (self.blocks.hash[block] != 0)
        self.blocks.hash[block] = value

    def _release(self, block: int, number: int) -> None:
        self.blocks.ref[block] -= 1
        self.owners[block].remove(number)
        if self.blocks.ref[block] == 0:
            self.num_free += 1
            if self.blocks.hash[block]:
                self.blocks.rank[block] = self._next_back
                self._next_back += 1
            else:
                self.blocks.rank[block] = self._next_front
                self._next_front -= 1

    def _note(self, step: int, code: int, number: int | None, block: int) -> None:
        owners = self.owners[block]
        self.blocks.owner[block] = owners[0] if owners else NOBODY
        changes, blocks = self.changes, self.blocks
        changes.step.append(step)
        changes.kind.append(code)
        changes.request.append(NOBODY if number is None else number)
        changes.block.append(block)
        changes.ref.append(blocks.ref[block])
        changes.owner.append(blocks.owner[block])
        changes.hash.append(blocks.hash[block])
        changes.rank.append(blocks.rank[block])

    def _end(self, request: RequestHistory, step: int, seconds: float, reason: str) -> None:
        del self.live[request.number]
        request.ended, request.ended_s, request.finish_reason = step, seconds, reason
        stay = self.running.pop(request.number, None)
        if stay is not None:
            stay.left = step

    # ------------------------------------------------------------------ contradictions

    def _compare(self, step: int, record: dict[str, Any]) -> None:
        """Every step carries four counts; they find a wrong step before the next CRC does."""
        replayed = {
            "run": len(self.running),
            "wait": len(self.live) - len(self.running),
            "free": self.num_free,
            "cached": self.num_cached,
        }
        for name, count in replayed.items():
            if record[name] != count:
                self._object(f"after step {step} the records give {name}={count}, the engine {record[name]}")

    def _object(self, message: str) -> None:
        self.problems.append(Problem(self.num_steps, message))
