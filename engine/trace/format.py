"""The `*.itrace` file, version 1: what one run of the engine did, step by step.

A trace is gzipped JSON lines. Each flush of the writer ends a gzip member, so a file whose writer was
killed is a valid file up to its last flush, and `zcat run.itrace | head` reads it without prep.

Requests are numbered 0, 1, 2... in the order in which they arrive; `q` is that number everywhere but
in `add`, where `r` gives the name. Steps count from 0. Everything that happens between step i-1 and step
i (arrivals, aborts, cache resets) belongs to step i, and "the state at step i" is the state after it.

    hdr    v, model, config, blocks, block_size, seed, code_rev, machine, workload_hash, fingerprint,
               scheduler_cls, clock, fork
               first line; `workload_hash` is null when the workload was not known before the run
               (`TraceReader.workload_hash` computes it from what arrived)
               config         {scheduler: {...}, cache: {...}, args: {...}}; the first two suffice to run the
                              scheduler again
               fingerprint    of the model, part of every block's hash
               scheduler_cls  module:Class
               clock          left out: seconds are wall time. steps: no clock ran, steps are a
                              millisecond apart and take no time
               fork           {of, at, set, before}: made by `prep trace fork`, and from what
    add    i, ts, q, r, key, prompt [token ids], params {sampling parameters that are not defaults},
               priority, arrival, seed, lora, salt, late
               key       [importance, arrival, order]: running and waiting requests are sorted by it
               late      true if step i was planned already and is in flight; else left out
    abort  i, ts, q, why, late      why: abort, or stop when the frontend found a stop string
    step   i, ts, dur, run, wait, free, cached, kv, cnt, q, n, tok, new, res, slid,
               out, in, pre, fin, ev, why, rekey
               ts, dur   seconds since the trace began, and seconds spent in the step
               run, wait, free, cached, kv   after the step: running, waiting, free blocks, published
                         hashes, and tokens of running requests whose KV exists
               cnt       {counter: value} of what the step did, zeros left out (`stats.TRACED_COUNTERS`)
               q, n, tok the batch, one entry per row: request, tokens computed, and output accepted: a
                         token id, a list of several, or null. Columns, because gzip finds them again in
                         the next step: a third of the size of rows
               new, res  [[q, start, behind], ...] admitted for the first time, and again after a preemption;
                         start is the length of the prefix hit in tokens, behind (left out if 0) how many of
                         its blocks lie behind the sliding window: the null block stands for them
               slid      [[q, behind], ...] the same after the step, of those for whom it grew
               out, in   [[device block, host block], ...] and [[host block, device block], ...] that the
                         worker copies before the rows, first out, then in
               pre       lost their blocks in this step
               fin       [[q, finish_reason], ...]
               ev        [[kind, q or null, [blocks]], ...] in the order in which they happened, runs of
                         one kind and request together; `seal` has a fourth member with the hashes
                         (hex). Where q is null a transfer of the KV connector takes and lets go
               why       [[q or null, reason, {figures}], ...]; null stands for all other waiting requests
               rekey     [[q, key], ...] before the step was planned: requests whose place has changed
    chk    i, crc, log   every 64 steps, after the step: CRC of the engine's state, and of all lines before
    error  i, ts, message, log   step i raised. If all requests were dropped and the engine goes on, a step
               without rows follows; otherwise the engine is dead and this is the last record
    end    i, ts, crc, log, ev, notes   the writer was closed before step i; `ev` is what happened since the
               last; notes are sentences about the run as a whole

Empty lists are left out of `step`. Block events (`ev`):

    alloc  taken from the free queue by q: its reference count becomes 1
    ref    a prefix hit by q: count + 1            unref  q lets go, others hold it: count - 1
    free   q lets go and was the last: count 0     seal   full and written: its hash is published
    evict  its hash leaves the prefix cache

From these lines alone `trace_replay` rebuilds every block table, reference count, hash, queue and
`num_computed_tokens` at every step. Whether it did so right is what `chk` says.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable, Sequence
from typing import NamedTuple
from zlib import crc32

VERSION = 1
CHECK_EVERY = 64
"""Steps between two state checks in the file, and between two keyframes in the reader."""
FLUSH_EVERY = 256
"""Steps between two flushes: what a killed engine loses at most."""
HASH_BYTES = 8
"""Of a block's hash, the leading bytes that a trace keeps."""
NO_HASH = bytes(HASH_BYTES)

BLOCK_EVENTS = ("alloc", "ref", "unref", "free", "seal", "evict")
REQUEST_EVENTS = ("add", "admit", "hit", "preempt", "resume", "finish", "abort")


class TraceError(ValueError):
    """A trace that cannot be written, read or used as asked: says what, why and what to do."""


def short_hash(block_hash: bytes | None) -> bytes:
    """The `HASH_BYTES` bytes by which a trace knows a block's content."""
    return NO_HASH if block_hash is None else block_hash[:HASH_BYTES].ljust(HASH_BYTES, b"\0")


class RequestState(NamedTuple):
    """What a state check covers of one running request."""

    request_id: str
    num_computed: int
    num_tokens: int
    blocks: Sequence[int]
    """Block ids in table order."""


def state_crc(
    refs: Iterable[int], hashes: bytes, running: Iterable[RequestState], waiting: Iterable[str]
) -> str:
    """The CRC-32 of the scheduler's state, as 8 hex digits.

    Writer and replay both call this, the one with the engine's own objects, the other with what the
    records say. It runs over these bytes, all integers little-endian int32:

    1. the reference count of every block, by block id, the null block included;
    2. `HASH_BYTES` of every block's hash, by block id; zeros where it has none;
    3. per running request, ordered by `key`: its id in UTF-8 and a zero byte, num_computed_tokens,
       num_tokens (prompt and output), number of blocks, the block ids. With it the owners of each
       block are covered, because an owner is a table that holds the block;
    4. of the waiting requests their number and the sum of the CRC-32 of their ids, modulo 2**32: a
       set, because the order follows from arrival and priority, and sorting 100,000 names costs more
       than a step.
    """
    crc = crc32(_int32(refs))
    crc = crc32(hashes, crc)
    for request in running:
        crc = crc32(_bytes(request.request_id) + b"\0", crc)
        figures = (request.num_computed, request.num_tokens, len(request.blocks))
        crc = crc32(_int32((*figures, *request.blocks)), crc)
    names = [_bytes(name) for name in waiting]
    queue = sum(map(crc32, names)) & 0xFFFFFFFF
    crc = crc32(len(names).to_bytes(4, "little") + queue.to_bytes(4, "little"), crc)
    return f"{crc:08x}"


def _bytes(name: str) -> bytes:
    return name.encode("utf-8", "surrogatepass")


def _int32(values: Iterable[int]) -> bytes:
    numbers = array("i", values)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers.tobytes()
