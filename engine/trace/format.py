"""Format of the `*.itrace` file, version 1: what one run of the engine did, step by step.

A trace is gzipped JSON lines. Each flush of the writer ends a gzip member, so the file of a killed engine
is valid up to its last flush, and `zcat run.itrace | head` reads it without prep.

Requests are numbered 0, 1, 2... in the order in which they arrive; `q` is that number everywhere but
in `add`, where `r` gives the name. Steps count from 0. Everything that happens between step i-1 and step
i (arrivals, aborts, cache resets) belongs to step i, and "the state at step i" is the state after it.

    hdr    v, model, config, blocks, block_size, seed, code_rev, machine, workload_hash, fingerprint,
               scheduler_cls, clock, fork
               first line; `workload_hash` is null when the workload was not known before the run
               (`Trace.workload_hash` computes it from the requests)
               config         {scheduler: {...}, cache: {...}, args: {...}}; the first two suffice to run the
                              scheduler again
               fingerprint    the model's, part of every block's hash
               scheduler_cls  module:Class
               clock          absent: seconds are wall time. steps: no clock ran, steps are a
                              millisecond apart and take no time
               fork           {of, at, set, before}: origin and changes of a run made by `prep trace fork`
    add    i, ts, q, r, key, prompt [token ids], params {sampling parameters that are not defaults},
               priority, arrival, seed, lora, salt, late
               key       [importance, arrival, order]: running and waiting requests are sorted by it
               late      true if step i was already planned and in flight; else absent
    abort  i, ts, q, why, late      why: abort, or stop when the frontend found a stop string
    step   i, ts, dur, run, wait, free, cached, kv, cnt, q, n, tok, new, res, slid,
               out, in, pre, fin, ev, why, rekey
               ts, dur   seconds since the trace began, and seconds spent in the step
               run, wait, free, cached, kv   after the step: running, waiting, free blocks, published
                         hashes, and tokens of running requests whose KV exists
               cnt       {counter: value} of what the step did, zeros left out (`stats.TRACED_COUNTERS`)
               q, n, tok the batch, one entry per row: request, tokens computed, and output accepted: a
                         token id, a list of several, or null. Columns compress to a third of the size
                         of rows
               new, res  [[q, start, behind], ...] admitted for the first time, and resumed after a preemption;
                         start is the length of the prefix hit in tokens, behind (absent if 0) the number of
                         its blocks behind the sliding window, which the null block replaces
               slid      [[q, behind], ...] requests whose `behind` grew in this step
               out, in   [[device block, host block], ...] and [[host block, device block], ...] that the
                         worker copies before the rows, first out, then in
               pre       preempted in this step
               fin       [[q, finish_reason], ...]
               ev        [[kind, q or null, [blocks]], ...] in order, consecutive events of one kind and
                         request merged; `seal` has a fourth member with the hashes (hex). q is null for
                         transfers of the KV connector
               why       [[q or null, reason, {figures}], ...]; null stands for all other waiting requests
               rekey     [[q, key], ...] before the step was planned: requests with a new sort key
    chk    i, crc, log   every 64 steps, after the step: CRC of the engine's state, and of all lines before
    error  i, ts, message, log   step i raised. If the engine dropped all requests and continues, a step
               without rows follows; otherwise the engine is dead and this is the last record
    end    i, ts, crc, log, ev, notes   the writer was closed before step i; `ev` holds the events since the
               last step; notes are sentences about the run as a whole

`step` omits empty lists. Block events (`ev`):

    alloc  q takes the block from the free queue: its reference count becomes 1
    ref    a prefix hit by q: count + 1            unref  q releases it, others hold it: count - 1
    free   q releases it as the last: count 0      seal   full and written: its hash is published
    evict  its hash leaves the prefix cache

From these lines alone `engine.trace.replay` rebuilds every block table, reference count, hash, queue and
`num_computed_tokens` at every step; `chk` verifies the result.
"""

from __future__ import annotations

import json
import sys
from array import array
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any
from zlib import crc32

VERSION = 1
CHECK_EVERY = 64  # steps between two state checks in the file, and between two keyframes in the reader
FLUSH_EVERY = 256  # steps between two flushes: the most that a killed engine loses
HASH_BYTES = 8  # leading bytes of a block's hash that a trace keeps
NO_HASH = bytes(HASH_BYTES)

_MAX_BLOCKS = 1 << 24  # of a header: a damaged one must not make the reader allocate all memory

BLOCK_EVENTS = ("alloc", "ref", "unref", "free", "seal", "evict")
REQUEST_EVENTS = ("add", "admit", "hit", "preempt", "resume", "finish", "abort")


class TraceError(ValueError):
    """A trace cannot be written, read or used as asked. The message says what, why and what to do."""


def parse_line(line: bytes | str) -> Any:
    """The record of a line. Raises ValueError if it is not JSON, or JSON nested too deeply to be a record."""
    try:
        return json.loads(line)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def shown_name(request_id: str) -> str:
    """A request's id for people: control characters and those that turn the direction of text are escapes."""
    if request_id.isprintable():
        return request_id
    return "".join(
        character if character.isprintable() else ascii(character)[1:-1] for character in request_id
    )


TRUNCATED = "{} is truncated inside the header, or is not a trace"


def read_header(line: bytes, path: Path) -> dict[str, Any]:
    """The header, from the first line of a trace. Raises TraceError if the line is not one, or of a newer format."""
    try:
        header: dict[str, Any] = parse_line(line)
        version = header["v"]
        if header["t"] != "hdr" or not isinstance(version, int):
            raise ValueError("the first record is not a header")
        sizes = (header["blocks"], header["block_size"]) if version <= VERSION else ()
        if not all(isinstance(size, int) and 0 < size <= _MAX_BLOCKS for size in sizes):
            raise ValueError("the header has no sizes")
        config = header["config"] = header.get("config") or {}
        if version <= VERSION and not all(isinstance(part, dict) for part in (config, *config.values())):
            raise ValueError("the header's config is not an object")
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise TraceError(
            f"{path} is not a trace: its first line is not a trace header. `prep trace record` makes traces"
        ) from error
    if version > VERSION:
        raise TraceError(
            f"{path} has trace format {version}, and this prep reads up to {VERSION}: update prep, or record the run "
            "again with this one"
        )
    return header


def short_hash(block_hash: bytes | None) -> bytes:
    """The first `HASH_BYTES` bytes of a block's hash, by which a trace identifies its content."""
    return NO_HASH if block_hash is None else block_hash[:HASH_BYTES].ljust(HASH_BYTES, b"\0")


def short_hashes(block_hashes: Sequence[bytes | None]) -> bytes:
    """The `short_hash` of every block, joined."""
    hashes = b"".join([(block_hash or NO_HASH)[:HASH_BYTES] for block_hash in block_hashes])
    if len(hashes) == HASH_BYTES * len(block_hashes):
        return hashes
    return b"".join(map(short_hash, block_hashes))  # tests shorten digests to provoke collisions


def state_crc(
    refs: Iterable[int],
    hashes: bytes,
    running: Iterable[tuple[str, int, int, Sequence[int]]],
    waiting: Iterable[str],
) -> str:
    """The CRC-32 of the scheduler's state, as 8 hex digits.

    The writer calls it with the engine's objects, the replay with the state rebuilt from the records. It
    covers these bytes, all integers little-endian int32:

    1. the reference count of every block, by block id, the null block included;
    2. `HASH_BYTES` of every block's hash, by block id; zeros where it has none;
    3. per running request, ordered by `key`: its id in UTF-8 and a zero byte, num_computed_tokens,
       num_tokens (prompt and output), number of blocks, the block ids, which also cover the owners of
       each block;
    4. the number of waiting requests and the sum of the CRC-32 of their ids, modulo 2**32: a set,
       because the order follows from arrival and priority, and sorting 100,000 names costs more than a
       step.
    """
    crc = crc32(_int32(refs))
    crc = crc32(hashes, crc)
    for request_id, num_computed, num_tokens, blocks in running:
        crc = crc32(_bytes(request_id) + b"\0", crc)
        crc = crc32(_int32((num_computed, num_tokens, len(blocks), *blocks)), crc)
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
