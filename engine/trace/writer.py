"""Write a step trace while the engine runs (format: `engine.trace.format`).

A step costs the engine the creation of one record. Records become compressed JSON lines a few at a time, so that no
step pays for many others, and reach the disk every 256 steps. Without a writer the engine pays for `is None`.
"""

from __future__ import annotations

import atexit
import json
import logging
import os
import time
import zlib
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from engine.core.blocks import Block, add_listener, remove_listener
from engine.core.observer import StepObserver
from engine.core.request import Request, RequestStatus
from engine.core.sched_output import EngineCoreOutput, ModelRunnerOutput, Scheduled, SchedulerOutput
from engine.core.scheduler import Scheduler
from engine.core.stats import TRACED_COUNTERS
from engine.trace.files import open_for_writing
from engine.trace.format import (
    CHECK_EVERY,
    FLUSH_EVERY,
    VERSION,
    TraceError,
    short_hash,
    short_hashes,
    state_crc,
)
from engine.trace.header import changed_fields, class_path, machine, plain, settings_of

FLUSH_SECONDS = 2.0  # a slow engine also flushes after this time
ENCODE_EVERY = 16
"""Records encoded together: encoding each step's record alone costs a small step four times as much because of cold
caches; encoding 256 would be a noticeable pause."""
COMPRESSION = 1  # zlib level: level 6 makes files a seventh smaller and takes four times as long

logger = logging.getLogger(__name__)


class Tap(Protocol):
    """Receives every record immediately, also as a line of the file, and why no record will follow."""

    def take(self, record: dict[str, Any], line: bytes) -> None: ...
    def end(self, why: str) -> None: ...


class TraceWriter(StepObserver):
    """Records one scheduler from its first step on.

        tracer = TraceWriter("run.itrace", trace_header(config), scheduler)
        scheduler.add(request);          tracer.add(request)
        aborted = scheduler.abort(ids);  tracer.abort(ids)
        tracer.step(out, result, outs, duration_s)       # after scheduler.update
        tracer.close()

    A trace never stops the engine: if it cannot be written, it ends with one warning, and everything flushed
    stays readable.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None,
        header: dict[str, Any],
        scheduler: Scheduler,
        *,
        tap: Tap | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """path: the file to write; None: no file, only a `tap`."""
        if not hasattr(getattr(scheduler, "kv", None), "pool"):
            raise TraceError(
                f"{type(scheduler).__name__} cannot be traced: it has no kv.pool, the BlockPool whose events a trace "
                "records. Run without a trace, or keep the blocks in a KVManager"
            )
        if scheduler.requests or scheduler.kv.pool.cached:
            raise TraceError(
                "tracing must start with a fresh scheduler, but this one has requests or cached blocks: create the "
                "TraceWriter right after the scheduler"
            )
        self.path = None if path is None else Path(path)
        self._tap = tap
        self._scheduler = scheduler
        self._pool = scheduler.kv.pool
        self._clock = clock
        self._began = clock()
        self._flushed_at = self._began
        self._encode = json.JSONEncoder(separators=(",", ":"), default=plain).encode
        self._compressor = _new_member()
        self._compressed: list[bytes] = []
        self._records: list[dict[str, Any]] = []  # records that are not encoded yet
        self._log_crc = 0
        self._steps = 0
        self._numbers: dict[str, int] = {}  # live requests: id -> q
        self._num_requests = 0
        self._aborted = False  # a request was aborted since the last step, maybe while the next was in flight
        self._preempted: set[int] = set()
        self._rekeyed: list[tuple[int, Any]] = []  # requests with a new sort key since the last step: q, key
        self._slides = getattr(scheduler.kv, "sliding_window", None) is not None
        self._behind_window: dict[int, int] = {}  # request number -> blocks behind it, as last written
        self._events: list[tuple[str, int | None, int, str | None]] = []  # kind, q, block, hash
        self._file = None if self.path is None else open_for_writing(self.path)
        self.active = True
        add_listener(self._pool, self._on_event)
        atexit.register(self.close)
        defaults: dict[str, Any] = dict.fromkeys(("model", "seed", "code_rev", "workload_hash"))
        defaults["machine"] = machine()
        defaults["fingerprint"] = getattr(getattr(scheduler.kv, "hasher", None), "model_fingerprint", "")
        defaults["scheduler_cls"] = class_path(type(scheduler))
        config = {**settings_of(scheduler), **header.get("config", {})}
        pool = {"blocks": len(self._pool.blocks), "block_size": scheduler.kv.block_size}
        self._write({"t": "hdr", "v": VERSION, **defaults, **header, "config": config, **pool})
        self.flush()

    # ------------------------------------------------------------------ what the engine calls

    def add(self, request: Request) -> None:
        """Record a request that the scheduler accepted."""
        if not self.active:
            return
        self._numbers[request.request_id] = self._num_requests
        self._record(
            "add",
            q=self._num_requests,
            r=request.request_id,
            key=request.sort_key,
            arrival=request.arrival_time,
            prompt=request.prompt_token_ids,
            params=changed_fields(request.sampling_params),
            priority=request.priority,
            seed=request.seed,
            lora=request.lora_key,
            salt=request.cache_salt,
            **self._late(),
        )
        self._num_requests += 1

    def abort(self, request_ids: Iterable[str], why: str = "abort") -> None:
        """Record requests that were aborted between two steps. Unknown ids are ignored."""
        if not self.active:
            return
        for request_id in request_ids:
            number = self._numbers.pop(request_id, None)
            if number is not None:
                self._aborted = True
                self._record("abort", q=number, why=why, **self._late())

    def rekey(self, requests: Iterable[Request]) -> None:
        """Record live requests whose sort keys change from the next step on."""
        if self.active:
            self._rekeyed += [(self._numbers[request.request_id], request.sort_key) for request in requests]

    def step(
        self, out: SchedulerOutput, result: ModelRunnerOutput, outs: list[EngineCoreOutput], duration_s: float
    ) -> None:
        """Record a step after `scheduler.update` has returned `outs`. Call it for every step, also for idle ones.

        `result`, the worker's output, is unused: the records hold only the tokens that the scheduler accepted.
        """
        if not self.active:
            return
        if out.step != self._steps:
            self._stop(f"step {out.step} followed step {self._steps - 1}: a step was not recorded")
            return
        try:
            record = self._step_record(out, outs, duration_s)
        except KeyError as error:
            self._stop(f"request {error} is not in the trace: TraceWriter.add was not called for it")
            return
        self._write(record)
        self._steps += 1
        if self._steps % CHECK_EVERY == 0:
            self._write({"t": "chk", "i": self._steps - 1, **self._checks()})
        if self._steps % FLUSH_EVERY == 0 or self._clock() - self._flushed_at > FLUSH_SECONDS:
            self.flush()

    def error(self, error: BaseException) -> None:
        """Record that a step raised.

        An engine that aborted all its requests is in a known state and may continue: the trace counts the step
        as one that computed nothing. Otherwise the engine died within a step, in a state that no record
        describes, and the trace ends.
        """
        if not self.active:
            return
        message = f"{type(error).__name__}: {error}"
        self._record("error", message=message, log=self._log())
        if self._numbers:
            self.flush()
            self._detach(f"the engine died: {message}")
        else:
            self.step(SchedulerOutput(self._steps), ModelRunnerOutput(), [], 0.0)
            self.flush()

    def flush(self) -> None:
        """Write everything recorded so far to the file, as a complete gzip member."""
        if not self.active:
            return
        self._encode_records()
        data = b"".join([*self._compressed, self._compressor.flush()])
        self._compressor, self._compressed = _new_member(), []
        self._flushed_at = self._clock()
        if self._file is None:
            return
        start = self._file.tell()
        try:
            view = memoryview(data)
            while view:
                view = view[self._file.write(view) :]
        except OSError as error:
            with suppress(OSError):  # readers skip what cannot be removed
                self._file.truncate(start)
            self._stop(f"{error.strerror or error}. Free some space or record to another disk")

    def close(self, notes: Iterable[str] = ()) -> None:
        """Write the end record and detach from the scheduler. A second call does nothing.

        notes: sentences about the run as a whole.
        """
        if not self.active:
            return
        sentences = list(notes)
        said = {"notes": sentences} if sentences else {}
        self._record("end", **self._checks(), ev=self._event_runs(), **said)
        self.flush()
        if self.active:
            self._detach("the engine was shut down")

    def __enter__(self) -> TraceWriter:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        self.close()

    # ------------------------------------------------------------------ records

    def _record(self, kind: str, **fields: Any) -> None:
        self._write({"t": kind, "i": self._steps, "ts": self._now(), **fields})

    def _late(self) -> dict[str, bool]:
        """The mark of events while a step is in flight: planned, and not yet complete."""
        planned = getattr(getattr(self._scheduler, "stats", None), "step", -1)
        return {"late": True} if planned == self._steps else {}

    def _on_event(self, kind: str, block: Block, request_id: str | None) -> None:
        number = None if request_id is None else self._numbers.get(request_id)
        content = short_hash(block.block_hash).hex() if kind == "seal" else None
        self._events.append((kind, number, block.block_id, content))

    def _step_record(
        self, out: SchedulerOutput, outs: list[EngineCoreOutput], took_s: float
    ) -> dict[str, Any]:
        numbers = self._numbers
        accepted: dict[str, int | list[int]] = {}
        finished: list[tuple[int, str]] = []
        for output in outs:
            tokens = output.new_token_ids
            if tokens:
                accepted[output.request_id] = tokens[0] if len(tokens) == 1 else tokens
            if output.finish_reason is not None:
                finished.append((numbers[output.request_id], output.finish_reason))
        rows, preempted_names, not_scheduled = out.scheduled, out.preempted_request_ids, out.not_scheduled
        if self._aborted:
            self._aborted = False
            rows = [row for row in rows if self._is_meant(row.request_id)]
            preempted_names = [name for name in preempted_names if self._is_meant(name)]
            not_scheduled = [e for e in not_scheduled if e.request_id is None or e.request_id in numbers]
        preempted = [numbers[name] for name in preempted_names]
        started = [row for row in rows if row.init is not None]
        admitted = {numbers[row.request_id]: (row.start, *self._behind_at_start(row)) for row in started}
        rekeyed, self._rekeyed = self._rekeyed, []
        lists = {
            "rekey": rekeyed,
            "q": [numbers[row.request_id] for row in rows],
            "n": [row.num_tokens for row in rows],
            "tok": [accepted.get(row.request_id) for row in rows],
            "new": [(number, *start) for number, start in admitted.items() if number not in self._preempted],
            "res": [(number, *start) for number, start in admitted.items() if number in self._preempted],
            "slid": self._slid(),
            "out": out.copy_out,
            "in": out.copy_in,
            "pre": preempted,
            "fin": finished,
            "ev": self._event_runs(),
            "why": [
                (None if entry.request_id is None else numbers[entry.request_id], entry.reason, entry.details)
                for entry in not_scheduled
            ],
        }
        self._preempted.difference_update(admitted)
        self._preempted.update(preempted)
        for output in outs:
            if output.finish_reason is not None:
                del numbers[output.request_id]
        return {
            "t": "step",
            "i": self._steps,
            "ts": round(self._now() - took_s, 6),
            "dur": round(took_s, 6),
            "run": len(self._scheduler.running),
            "wait": len(self._scheduler.waiting),
            "free": len(self._pool.free),
            "cached": len(self._pool.cached),
            "kv": sum([request.num_computed_tokens for request in self._scheduler.running]),
            **self._counters(),
            **{name: entries for name, entries in lists.items() if entries},
        }

    def _behind_at_start(self, row: Scheduled) -> tuple[int, ...]:
        """The number of null blocks at the start of a hit; empty for none."""
        behind = next((n for n, block in enumerate(row.new_block_ids) if block), len(row.new_block_ids))
        self._behind_window[self._numbers[row.request_id]] = behind
        return (behind,) if behind else ()

    def _slid(self) -> list[tuple[int, int]]:
        """Running requests that freed blocks behind their sliding window in this step."""
        if not self._slides:
            return []
        slid = []
        for request in self._scheduler.running:
            number, behind = self._numbers[request.request_id], request.num_blocks_behind_window
            if behind != self._behind_window.get(number, 0):
                self._behind_window[number] = behind
                if behind:
                    slid.append((number, behind))
        return slid

    def _counters(self) -> dict[str, dict[str, int]]:
        stats = getattr(self._scheduler, "stats", None)  # a user's scheduler may keep none
        counters = {name: value for name in TRACED_COUNTERS if (value := getattr(stats, name, 0))}
        return {"cnt": counters} if counters else {}

    def _is_meant(self, request_id: str) -> bool:
        """Whether the step's plan still refers to this request. It does not if the request was aborted while the
        step was in flight, also if a new waiting request has its id."""
        if request_id not in self._numbers:
            return False
        request = self._scheduler.requests.get(request_id)
        return request is None or request.status not in (RequestStatus.WAITING, RequestStatus.WAITING_GRAMMAR)

    def _event_runs(self) -> list[list[Any]]:
        """The events since the last call; consecutive events of one kind and request are one entry."""
        runs: list[list[Any]] = []
        for kind, number, block, content in self._events:
            if not runs or runs[-1][0] != kind or runs[-1][1] != number:
                runs.append([kind, number, []] if content is None else [kind, number, [], []])
            runs[-1][2].append(block)
            if content is not None:
                runs[-1][3].append(content)
        self._events.clear()
        return runs

    def _checks(self) -> dict[str, str]:
        running = sorted(self._scheduler.running, key=lambda request: request.sort_key)
        live = {request.request_id for request in running}
        blocks = self._pool.blocks
        hashes = short_hashes([block.block_hash for block in blocks])
        states = [
            (r.request_id, r.num_computed_tokens, r.num_tokens, [block.block_id for block in r.blocks])
            for r in running
        ]
        waiting = [name for name in self._scheduler.requests if name not in live]
        crc = state_crc([block.ref_count for block in blocks], hashes, states, waiting)
        return {"crc": crc, "log": self._log()}

    def _log(self) -> str:
        """The CRC of all lines so far."""
        self._encode_records()
        return f"{self._log_crc:08x}"

    # ------------------------------------------------------------------ file

    def _write(self, record: dict[str, Any]) -> None:
        """Take a record. A tap gets it at once: a debugger of a paused engine must see its last step."""
        self._records.append(record)
        if self._tap is not None or len(self._records) >= ENCODE_EVERY:
            self._encode_records()

    def _encode_records(self) -> None:
        records, self._records = self._records, []
        lines = [(self._encode(record) + "\n").encode() for record in records]
        data = b"".join(lines)
        self._log_crc = zlib.crc32(data, self._log_crc)
        if self._file is not None:
            self._compressed.append(self._compressor.compress(data))
        if self._tap is not None:
            for record, line in zip(records, lines, strict=True):
                self._tap.take(record, line)

    def _now(self) -> float:
        return round(self._clock() - self._began, 6)

    def _stop(self, cause: str) -> None:
        logger.warning(
            "tracing to %s stopped at step %d: %s. The engine continues without a trace of later steps",
            self.path or "the debug port",
            self._steps,
            cause,
        )
        self._detach(f"tracing stopped at step {self._steps}: {cause}")

    def _detach(self, why: str) -> None:
        self.active = False
        remove_listener(self._pool, self._on_event)
        if self._file is not None:
            self._file.close()
        if self._tap is not None:
            self._tap.end(why)
        atexit.unregister(self.close)


def _new_member() -> Any:
    return zlib.compressobj(COMPRESSION, zlib.DEFLATED, 16 + zlib.MAX_WBITS)
