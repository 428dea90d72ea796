"""Rebuild the engine's state from the records of a trace alone (format: `engine.trace.format`).

`Replay` plays records forward and keeps what any earlier state needs:

    changes    one entry per change of a block, with the block's state after it       (BlockChanges)
    requests   a stay per admission with its growing block table, a mark per row      (RequestHistory)

At the end it also knows where the records contradict themselves or the engine's checks.
"""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

from engine.trace.blocks import NO_REQUEST, NULL_BLOCK, BlockChanges, BlockColumns
from engine.trace.format import BLOCK_EVENTS, state_crc
from engine.trace.history import RequestHistory, Stay

_KIND_CODES = {kind: code for code, kind in enumerate(BLOCK_EVENTS)}
_SEAL, _EVICT = _KIND_CODES["seal"], _KIND_CODES["evict"]


class Problem(NamedTuple):
    """A place where a trace differs from what the engine did."""

    step: int  # the first step whose state is wrong or unknown
    message: str


class Replay:
    """Replays records in file order. `problems` lists contradictions."""

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
        self._num_aborts = 0
        self._on_host: dict[int, int] = {}  # host block -> hash of the device block copied there; 0: none
        self.problems: list[Problem] = []
        self._last_good_check = -1
        self._first_rank = 0
        self._last_rank: int = self.num_blocks

    def add(self, record: dict[str, Any]) -> RequestHistory:
        if record["q"] != len(self.requests):
            message = f"request {record['r']!r} has number {record['q']} instead of {len(self.requests)}"
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
        request.abort_order, self._num_aborts = self._num_aborts, self._num_aborts + 1
        self._end(request, record["i"], record["ts"], record["why"])
        return request

    def step(self, record: dict[str, Any]) -> None:
        """Replay one step: admissions, block events, rows, then requests that stopped running."""
        step = record["i"]
        for number, key in record.get("rekey", ()):
            self.requests[number].rekeyed.append((step, tuple(key)))
        for number, start, *rest in (*record.get("new", ()), *record.get("res", ())):
            request, behind = self.requests[number], rest[0] if rest else 0
            stay = Stay(step, start, blocks=[NULL_BLOCK] * behind, block_steps=[step] * behind)
            request.stays.append(stay)
            request.num_computed = start
            self.running[number] = stay
        copied_in = self._copy(record)
        self.play_events(record.get("ev", ()), step)
        self._check_copies(step, copied_in)
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
            owner = NO_REQUEST if number is None else number
            for block, content in zip(blocks, hashes, strict=True):
                if kind == "alloc" or kind == "ref":
                    self.owners[block].append(owner)
                    stay = self.running.get(owner)
                    if stay is not None:  # None: it was aborted while the step was in flight
                        stay.blocks.append(block)
                        stay.block_steps.append(step)
                elif kind == "free" or kind == "unref":
                    self.owners[block].remove(owner)
                self._change(step, code, number, block, content)

    def check(self, record: dict[str, Any], log_crc: int) -> None:
        """Compare with the writer's checksums: of all lines before this one, and of the engine's state if given."""
        step = self.num_steps - 1
        since = self._last_good_check + 1
        where = f"between steps {since} and {step}"
        if record["log"] != f"{log_crc:08x}":
            self._object(since, f"records were changed: a line {where} differs from what was written")
        crc = self.crc()
        if record.get("crc", crc) != crc:
            engines = record["crc"]
            self._object(
                since,
                f"the state after step {step} has CRC {crc}, the engine's had {engines}: they diverge {where}",
            )
        if not self.problems:
            self._last_good_check = step

    def crc(self) -> str:
        """`state_crc` of the replayed state."""
        order = sorted(self.running, key=lambda number: self.requests[number].key_at(self.num_steps))
        requests = [self.requests[number] for number in order]
        running = [
            (r.request_id, r.num_computed, r.num_prompt_tokens + len(r.tokens), self._table(r.number))
            for r in requests
        ]
        waiting = [request.request_id for number, request in self.live.items() if number not in self.running]
        return state_crc(self.blocks.ref, self.blocks.hash.tobytes(), running, waiting)

    def _table(self, number: int) -> list[int]:
        return self.running[number].table_at(self.num_steps)

    def _copy(self, record: dict[str, Any]) -> dict[int, int]:
        """Replay the step's copies, which precede its block events. Returns device block -> hash copied into it."""
        for block, host_block in record.get("out", ()):
            self._on_host[host_block] = self.blocks.hash[block]
        return {block: self._on_host.get(host_block, 0) for host_block, block in record.get("in", ())}

    def _row(self, step: int, number: int, num_tokens: int, tokens: int | list[int] | None) -> None:
        request = self.requests[number]
        if number not in self.running:
            self._object(step, f"step {step} computes tokens of {request.request_id!r}, which does not run")
            return
        if tokens is None:
            request.num_computed += num_tokens
        else:
            request.tokens.extend([tokens] if isinstance(tokens, int) else tokens)
            # All is computed but the newest token, however many drafts were among the scheduled ones.
            request.num_computed = request.num_prompt_tokens + len(request.tokens) - 1
        request.row_steps.append(step)
        request.row_computed.append(request.num_computed)
        request.row_outputs.append(len(request.tokens))

    def _change(self, step: int, code: int, number: int | None, block: int, content: str | None) -> None:
        blocks, owners = self.blocks, self.owners[block]
        if code == _SEAL or code == _EVICT:
            value = 0 if content is None else int.from_bytes(bytes.fromhex(content), sys.byteorder)
            self.num_cached += 1 if code == _SEAL else -1
            blocks.hash[block] = value
        else:
            self.num_free += (not owners) - (blocks.ref[block] == 0)
            blocks.ref[block] = len(owners)
            blocks.owner[block] = owners[0] if owners else NO_REQUEST
            if not owners and blocks.hash[block]:  # cached blocks join the free queue at the back
                self._last_rank = blocks.rank[block] = self._last_rank + 1
            elif not owners:  # others at the front
                self._first_rank = blocks.rank[block] = self._first_rank - 1
        changes, after = self.changes, self.changes.after
        changes.step.append(step)
        changes.kind.append(code)
        changes.request.append(NO_REQUEST if number is None else number)
        changes.block.append(block)
        after.ref.append(blocks.ref[block])
        after.owner.append(blocks.owner[block])
        after.hash.append(blocks.hash[block])
        after.rank.append(blocks.rank[block])

    def _end(self, request: RequestHistory, step: int, seconds: float, reason: str) -> None:
        del self.live[request.number]
        request.ended, request.ended_s, request.finish_reason = step, seconds, reason
        stay = self.running.pop(request.number, None)
        if stay is not None:
            stay.left = step

    def _compare(self, step: int, record: dict[str, Any]) -> None:
        """Compare five counts of every step: they reveal a wrong step before the next CRC does."""
        replayed = {
            "run": len(self.running),
            "wait": len(self.live) - len(self.running),
            "free": self.num_free,
            "cached": self.num_cached,
            "kv": sum(self.requests[number].num_computed for number in self.running),
        }
        for name, count in replayed.items():
            if record[name] != count:
                engines = f"the engine had {record[name]}"
                self._object(step, f"after step {step} the replay has {name}={count}, {engines}")

    def _check_copies(self, step: int, copied_in: dict[int, int]) -> None:
        """Check that blocks copied in from the host are published under the hash they were copied out with."""
        for block, content in copied_in.items():
            published = self.blocks.hash[block]
            if content and published and published != content:
                self._object(step, f"step {step} copies into block {block} and publishes another hash for it")

    def _object(self, step: int, message: str) -> None:
        self.problems.append(Problem(step, message))
