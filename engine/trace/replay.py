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
from functools import cached_property
from typing import Any, NamedTuple

from engine.trace.format import BLOCK_EVENTS, HASH_BYTES, RequestState, state_crc

NOBODY = -1
"""In place of a request number: a block without owner, or owned by a transfer of the KV connector."""
NULL_BLOCK = 0
"""The block that is never handed out."""

_KIND_CODES = {kind: code for code, kind in enumerate(BLOCK_EVENTS)}
_SEAL, _EVICT = _KIND_CODES["seal"], _KIND_CODES["evict"]


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
    """What the trace says about one request."""

    number: int
    request_id: str
    key: tuple[float, ...]
    """At its arrival. Running and waiting requests are in the order of their keys: `key_at`."""
    record: dict[str, Any]
    """The `add` record: prompt, params, priority, arrival, seed, lora, salt."""
    num_prompt_tokens: int
    added: int
    """The step before which it arrived."""
    added_s: float
    ended: int | None = None
    """The step in which it finished, or before which it was aborted."""
    ended_s: float | None = None
    finish_reason: str | None = None
    aborted: bool = False
    """Ended from outside, between two steps: by a client, or by a stop string in the text."""
    aborted_late: bool = False
    """While a step was in flight, not before it was planned."""
    rekeyed: list[tuple[int, tuple[float, ...]]] = field(default_factory=list)
    """(step, key): from that step on its place was another."""
    stays: list[Stay] = field(default_factory=list)
    preempted: list[int] = field(default_factory=list)
    """Steps."""
    num_computed: int = 0
    """After the last step in which it was scheduled."""
    tokens: array[int] = field(default_factory=lambda: array("i"))
    """Accepted output."""
    row_steps: array[int] = field(default_factory=lambda: array("i"))
    """The steps in which it was scheduled, and per such step what was true after it:"""
    row_computed: array[int] = field(default_factory=lambda: array("i"))
    row_outputs: array[int] = field(default_factory=lambda: array("i"))

    @property
    def num_cached_tokens(self) -> int:
        """Prefix-cache hit at first admission, in tokens; 0 before."""
        return self.stays[0].start if self.stays else 0

    def last_stay(self, step: int) -> Stay | None:
        """The stay that had begun by a step, whether or not it is over."""
        for stay in reversed(self.stays):
            if stay.admitted <= step:
                return stay
        return None

    def stay_at(self, step: int) -> Stay | None:
        """The stay that covers the state at a step, if it runs then."""
        for stay in reversed(self.stays):
            if stay.admitted <= step:
                return stay if stay.left is None or step < stay.left else None
        return None

    def lives_at(self, step: int) -> bool:
        return self.added <= step and (self.ended is None or step < self.ended)

    def key_at(self, step: int) -> tuple[float, ...]:
        for since, key in reversed(self.rekeyed):
            if since <= step:
                return key
        return self.key

    def row_before(self, step: int) -> int:
        """Index of its last row up to a step; -1 if there is none."""
        return bisect_right(self.row_steps, step) - 1

    def num_outputs_at(self, step: int) -> int:
        row = self.row_before(step)
        return self.row_outputs[row] if row >= 0 else 0


class BlockColumns:
    """What is known of blocks, one entry per block or per change of a block."""

    def __init__(self, ref: array[int], owner: array[int], hash: array[int], rank: array[int]) -> None:
        self.ref = ref
        self.owner = owner
        """Number of the request that has held it longest, or NOBODY."""
        self.hash = hash
        """The `HASH_BYTES` bytes as they are in memory; 0 without a hash."""
        self.rank = rank
        """Place in the free queue if the reference count is 0: the smallest is reused first."""

    @classmethod
    def fresh(cls, num_blocks: int) -> BlockColumns:
        """Nothing used, nothing cached, the free queue in the order of the ids."""
        nothing = array("i", [0]) * num_blocks
        nobody = array("i", [NOBODY]) * num_blocks
        return cls(nothing, nobody, array("Q", nothing), array("q", range(num_blocks)))

    def copy(self) -> BlockColumns:
        return BlockColumns(self.ref[:], self.owner[:], self.hash[:], self.rank[:])


class BlockChanges:
    """Every change of every block, in order: what happened, and what was true of the block after it."""

    def __init__(self) -> None:
        self.step = array("i")
        self.kind = array("b")
        """Index into BLOCK_EVENTS."""
        self.request = array("i")
        """Number of the request that the event names, or NOBODY."""
        self.block = array("i")
        self.after = BlockColumns(array("i"), array("i"), array("Q"), array("q"))

    def __len__(self) -> int:
        return len(self.block)


class Blocks:
    """All blocks at one moment: a keyframe and the changes since. A column is made when asked for."""

    def __init__(self, keyframe: BlockColumns, changes: BlockChanges, since: slice) -> None:
        self._keyframe = keyframe
        self._changes = changes
        self._since = since

    @cached_property
    def ref(self) -> array[int]:
        """Reference count, by block id."""
        return self._play(self._keyframe.ref[:], self._changes.after.ref)

    @cached_property
    def owner(self) -> array[int]:
        """Number of the request that has held it longest, or NOBODY, by block id."""
        return self._play(self._keyframe.owner[:], self._changes.after.owner)

    @cached_property
    def hash(self) -> array[int]:
        """By block id: 0 if no hash is published, else its first bytes; for comparing and as a key."""
        return self._play(self._keyframe.hash[:], self._changes.after.hash)

    def hash_hex(self, block: int) -> str | None:
        """The first bytes of a block's published hash."""
        value = self.hash[block]
        return value.to_bytes(HASH_BYTES, sys.byteorder).hex() if value else None

    def free_queue(self) -> list[int]:
        """The free blocks, the one that is reused next first. The null block is not among them."""
        rank = self._play(self._keyframe.rank[:], self._changes.after.rank)
        free = [block for block, ref in enumerate(self.ref) if ref == 0 and block != NULL_BLOCK]
        return sorted(free, key=rank.__getitem__)

    def _play(self, column: array[int], changes: array[int]) -> array[int]:
        for block, value in zip(self._changes.block[self._since], changes[self._since], strict=True):
            column[block] = value
        return column


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
        self._on_host: dict[int, int] = {}
        """Host block -> the hash that the device block had from which it was copied; 0 if it had none."""
        self.problems: list[Problem] = []
        self._last_good_check = -1
        self._first_rank = 0
        self._last_rank: int = self.num_blocks

    def add(self, record: dict[str, Any]) -> RequestHistory:
        if record["q"] != len(self.requests):
            message = f"request {record['r']!r} has number {record['q']}, {len(self.requests)} is due"
            self._object(self.num_steps, message)
        request = RequestHistory(
            number=len(self.requests),
            request_id=record["r"],
            key=tuple(record["key"]),
            record=record,
            num_prompt_tokens=len(record["prompt"]),
            added=record["i"],
            added_s=record["ts"],
        )
        self.requests.append(request)
        self.live[request.number] = request
        return request

    def abort(self, record: dict[str, Any]) -> RequestHistory:
        request: RequestHistory = self.requests[record["q"]]
        request.aborted = True
        request.aborted_late = record.get("late", False)
        self._end(request, record["i"], record["ts"], record["why"])
        return request

    def step(self, record: dict[str, Any]) -> None:
        """Play one step: admissions, then block events, then what the rows computed, then who left."""
        step = record["i"]
        for number, key in record.get("rekey", ()):
            self.requests[number].rekeyed.append((step, tuple(key)))
        for number, start, *behind in (*record.get("new", ()), *record.get("res", ())):
            self._admit(self.requests[number], step, start, *behind)
        came_back = self._copy(record)
        self.play_events(record.get("ev", ()), step)
        self._check_copies(step, came_back)
        for row in zip(record.get("q", ()), record.get("n", ()), record.get("tok", ()), strict=True):
            self._row(step, *row)
        for number, count in record.get("slid", ()):
            if number in self.running:
                self.running[number].behind_window.append((step, count))
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
            owner = NOBODY if number is None else number
            for block, content in zip(blocks, hashes, strict=True):
                if kind == "alloc" or kind == "ref":
                    self._take(block, owner, step)
                elif kind == "free" or kind == "unref":
                    self.owners[block].remove(owner)
                self._change(step, code, number, block, content)

    def check(self, record: dict[str, Any], log_crc: int) -> None:
        """Compare with what the writer saw: all lines before this one, and the engine's state if it says."""
        step = self.num_steps - 1
        since = self._last_good_check + 1
        if record["log"] != f"{log_crc:08x}":
            message = f"records were changed: between step {since} and {step} a line is not as written"
            self.problems.append(Problem(since, message))
        crc = self.crc()
        if record.get("crc", crc) != crc:
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
        order = sorted(self.running, key=lambda number: self.requests[number].key_at(self.num_steps))
        requests = [self.requests[number] for number in order]
        return state_crc(
            self.blocks.ref,
            self.blocks.hash.tobytes(),
            [
                RequestState(
                    request.request_id,
                    request.num_computed,
                    request.num_prompt_tokens + len(request.tokens),
                    self.running[request.number].table_at(self.num_steps),
                )
                for request in requests
            ],
            [request.request_id for number, request in self.live.items() if number not in self.running],
        )

    # ------------------------------------------------------------------ one change each

    def _copy(self, record: dict[str, Any]) -> dict[int, int]:
        """Before anything else happens to the blocks. Device block -> the hash of what is copied into it."""
        for block, host_block in record.get("out", ()):
            self._on_host[host_block] = self.blocks.hash[block]
        return {block: self._on_host.get(host_block, 0) for host_block, block in record.get("in", ())}

    def _admit(self, request: RequestHistory, step: int, start: int, behind: int = 0) -> None:
        stay = Stay(step, start, blocks=[NULL_BLOCK] * behind, block_steps=[step] * behind)
        request.stays.append(stay)
        request.num_computed = start
        self.running[request.number] = stay

    def _row(self, step: int, number: int, num_tokens: int, tokens: int | list[int] | None) -> None:
        request = self.requests[number]
        if number not in self.running:
            self._object(step, f"step {step} computes tokens of {request.request_id!r}, which does not run")
            return
        if tokens is None:
            request.num_computed += num_tokens
        else:
            if isinstance(tokens, int):
                request.tokens.append(tokens)
            else:
                request.tokens.extend(tokens)
            # All is computed but the newest token, however many drafts were among the scheduled ones.
            request.num_computed = request.num_prompt_tokens + len(request.tokens) - 1
        request.row_steps.append(step)
        request.row_computed.append(request.num_computed)
        request.row_outputs.append(len(request.tokens))

    def _take(self, block: int, number: int, step: int) -> None:
        self.owners[block].append(number)
        stay = self.running.get(number)
        if stay is not None:  # not so if it was aborted while the step was in flight
            stay.blocks.append(block)
            stay.block_steps.append(step)

    def _change(self, step: int, code: int, number: int | None, block: int, content: str | None) -> None:
        blocks, owners = self.blocks, self.owners[block]
        if code == _SEAL or code == _EVICT:
            value = 0 if content is None else int.from_bytes(bytes.fromhex(content), sys.byteorder)
            self.num_cached += 1 if code == _SEAL else -1
            blocks.hash[block] = value
        else:
            self.num_free += (not owners) - (blocks.ref[block] == 0)
            blocks.ref[block] = len(owners)
            blocks.owner[block] = owners[0] if owners else NOBODY
            if not owners:
                blocks.rank[block] = self._next_rank(to_back=blocks.hash[block] != 0)
        changes, after = self.changes, self.changes.after
        changes.step.append(step)
        changes.kind.append(code)
        changes.request.append(NOBODY if number is None else number)
        changes.block.append(block)
        after.ref.append(blocks.ref[block])
        after.owner.append(blocks.owner[block])
        after.hash.append(blocks.hash[block])
        after.rank.append(blocks.rank[block])

    def _next_rank(self, to_back: bool) -> int:
        """A place in the free queue: cached blocks join at the back, the others at the front."""
        if to_back:
            self._last_rank += 1
            return self._last_rank
        self._first_rank -= 1
        return self._first_rank

    def _end(self, request: RequestHistory, step: int, seconds: float, reason: str) -> None:
        del self.live[request.number]
        request.ended, request.ended_s, request.finish_reason = step, seconds, reason
        stay = self.running.pop(request.number, None)
        if stay is not None:
            stay.left = step

    # ------------------------------------------------------------------ contradictions

    def _compare(self, step: int, record: dict[str, Any]) -> None:
        """Every step carries five counts; they find a wrong step before the next CRC does."""
        replayed = {
            "run": len(self.running),
            "wait": len(self.live) - len(self.running),
            "free": self.num_free,
            "cached": self.num_cached,
            "kv": sum(self.requests[number].num_computed for number in self.running),
        }
        for name, count in replayed.items():
            if record[name] != count:
                self._object(
                    step, f"after step {step} the records give {name}={count}, the engine had {record[name]}"
                )

    def _check_copies(self, step: int, came_back: dict[int, int]) -> None:
        """What comes back from the host is published under the hash under which it went."""
        for block, content in came_back.items():
            published = self.blocks.hash[block]
            if content and published and published != content:
                self._object(
                    step, f"step {step} copies into block {block} and publishes something else there"
                )

    def _object(self, step: int, message: str) -> None:
        self.problems.append(Problem(step, message))
