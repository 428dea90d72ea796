"""Find the line of code behind a decision of a step.

    deciding_line(reader, 418)
    -> engine/core/scheduler.py:227 in Scheduler._make_room:  self._preempt(victim)

Each `Anchor` names a function and an expression in it, no line number. The expression is looked up in the
parsed source (`ast`) on each call: a moved line is found, and a removed one is an error, not a wrong line.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any, Literal, NamedTuple

from engine.core.sched_output import Reason
from engine.trace.format import TraceError
from engine.trace.header import code_revision
from engine.trace.history import RequestHistory
from engine.trace.protocol import Trace
from engine.trace.sentence import evicted_blocks, main_kind
from engine.trace.why import victim_rule

ROOT = Path(__file__).resolve().parents[2]
OURS = "engine.core.scheduler:Scheduler"
CONTEXT = 4
"""Lines shown before and after."""

Place = Literal["running", "victim", "waiting", "rest"]
"""The request's situation: running without a share of the step, preempted in it, considered in the queue, or
behind those in the queue."""


class Anchor(NamedTuple):
    """A decision in the code."""

    file: str
    """Relative to the checkout."""
    function: str
    """Class.method, or a function's name."""
    expression: str
    """Python; the line is the first equal expression in the function."""
    why: str
    """A sentence about what the line decides."""


@dataclass(frozen=True)
class SourceLine:
    """A line of source and what it decides."""

    file: str
    line: int
    """From 1."""
    function: str
    code: str
    """Without a trailing comment; `context` has the full lines."""
    why: str
    context: tuple[tuple[int, str], ...]
    """(line number, text) of the surrounding lines, including the line itself."""
    note: str = ""
    """A caveat: another version of the code ran, or another scheduler."""


_SCHEDULER = "engine/core/scheduler.py"
_BLOCKS = "engine/core/blocks.py"
_KV = "engine/core/kv_manager.py"
_STOPPING = "engine/core/stopping.py"
_RUN, _ROOM = "Scheduler._schedule_running", "Scheduler._make_room"
_CLOSED, _ADMIT = "Scheduler._why_closed", "Scheduler._admit"
_FILES = {
    "PassedOver.refusal": "engine/core/passed_over.py",
    "GrammarWait.why_not": "engine/core/resources.py",
    "KVTransfers._wait": "engine/core/kv_transfers.py",
    "LoRASlots.why_not": "engine/core/lora_slots.py",
}
"""Functions that report reasons outside the scheduler."""

_REASONS: dict[tuple[Reason, Place], tuple[str, str]] = {
    (Reason.BUDGET_EXHAUSTED, "running"): (
        _RUN, "Earlier running requests used up the step's token budget."),
    (Reason.BUDGET_EXHAUSTED, "waiting"): (
        _ADMIT, "Without chunked prefill a prompt starts only if all of it fits into the rest of the budget."),
    (Reason.BUDGET_EXHAUSTED, "rest"): (
        _CLOSED, "No request is admitted once the token budget is used up."),
    (Reason.MAX_NUM_SEQS, "rest"): (
        _CLOSED, "No request is admitted while max_num_seqs requests run."),
    (Reason.NO_BLOCKS, "victim"): (
        _ROOM, "The request that needs blocks is itself the least important one."),
    (Reason.NO_BLOCKS, "waiting"): (
        _ADMIT, "A request starts only if blocks for all its known tokens are free."),
    (Reason.BEHIND_IN_QUEUE, "rest"): (
        "PassedOver.refusal", "A request ahead could not start: it may not be overtaken, or keeps a seat and blocks."),
    (Reason.LOWER_PRIORITY, "victim"): (
        _ROOM, "Another request needed blocks, and the victim is the least important running request."),
    (Reason.PREFIX_IN_FLIGHT, "waiting"): (
        _ADMIT, "Another request of this step computes the first block it needs: waiting a step avoids computing it "
        "twice."),
    (Reason.GRAMMAR_COMPILING, "waiting"): (
        "GrammarWait.why_not", "Its grammar is being compiled; other requests may start."),
    (Reason.KV_TRANSFER, "waiting"): (
        "KVTransfers._wait", "The KV of its prefix is being loaded from another engine."),
    (Reason.OTHER_BATCH, "running"): (
        _RUN, "With several steps in flight each request belongs to one of them."),
    (Reason.OTHER_BATCH, "rest"): (
        _CLOSED, "With several steps in flight each takes a share of the requests, and this one has its share."),
    (Reason.NO_LORA_SLOT, "waiting"): (
        "LoRASlots.why_not", "Its adapter is not on the device, and no slot there is available."),
    (Reason.PREEMPTING, "rest"): (
        _CLOSED, "A step that preempts admits no request: an admitted one would be the next victim."),
}  # fmt: skip
REASONS = {
    key: Anchor(_FILES.get(function, _SCHEDULER), function, f"Reason.{key[0].name}", why)
    for key, (function, why) in _REASONS.items()
}
"""The line that reports each reason."""

EVENTS: dict[str, Anchor] = {
    "preempt": Anchor(
        _SCHEDULER, _ROOM, "self._preempt(victim)", "No block is free: the least important request is preempted."
    ),
    "evict": Anchor(
        _BLOCKS, "BlockPool.take", "self._forget(block)",
        "The block at the front of the free queue is allocated, so its cached content is evicted.",
    ),
    "alloc": Anchor(
        _BLOCKS, "BlockPool.take", "self.free.pop_front()", "Blocks are taken from the front of the free queue."
    ),
    "ref": Anchor(
        _BLOCKS, "BlockPool.touch", "block.ref_count += 1", "A prefix hit adds an owner to a cached block."
    ),
    "unref": Anchor(
        _BLOCKS, "BlockPool.release", "block.ref_count -= 1", "A request releases a block that others still hold."
    ),
    "free": Anchor(
        _BLOCKS, "BlockPool.release", "self._enqueue(block)",
        "The last owner released the block: it joins the free queue, at the back if its content is cached.",
    ),
    "seal": Anchor(
        _BLOCKS, "BlockPool.register", "self.cached[block_hash] = block",
        "The block is full and written: other requests can now hit it.",
    ),
    "add": Anchor(_SCHEDULER, "Scheduler.add", "self.waiting.push(request)", "A request joins the queue."),
    "admit": Anchor(
        _SCHEDULER, _ADMIT, "self._start(request, start, hit)",
        "Budget, max_num_seqs and blocks for all its known tokens suffice: the request runs.",
    ),
    "resume": Anchor(
        _SCHEDULER, _ADMIT, "self._start(request, start, hit)",
        "A preempted request is admitted like any waiting request and starts after its cached prefix.",
    ),
    "hit": Anchor(
        _KV, "KVManager.match", "hit.device.append(block)",
        "Blocks are matched from the start of the prompt up to the first hash that is not cached.",
    ),
    "prefill": Anchor(
        _SCHEDULER, "Scheduler._num_new_tokens", "min(num_tokens, plan.budget_left, longest_chunk)",
        "A prompt uses at most the rest of the budget.",
    ),
    "decode": Anchor(
        _SCHEDULER, "Scheduler._num_new_tokens", "return 1",
        "A request with one uncomputed token uses one token of the budget.",
    ),
    "length": Anchor(
        _STOPPING, "_status_after", "num_tokens >= request.max_num_tokens",
        "The request has reached its maximum number of tokens.",
    ),
    "stop": Anchor(
        _STOPPING, "_status_after", "token_id in request.eos_token_ids and not params.ignore_eos",
        "The model ended the text.",
    ),
    "stop_token": Anchor(
        _STOPPING, "_status_after", "params.stop_token_ids and token_id in params.stop_token_ids",
        "The newest token is one of the request's stop tokens.",
    ),
    "error": Anchor(
        _SCHEDULER, "Scheduler._fail", "self._finish(request, RequestStatus.FINISHED_ERROR)",
        "A request that fails ends alone; other requests are not affected.",
    ),
    "abort": Anchor(
        _SCHEDULER, "Scheduler.abort", "self._finish(request, RequestStatus.FINISHED_ABORTED)",
        "A client may abort a request at any time; its blocks are released.",
    ),
    "reset": Anchor(
        _KV, "KVManager.reset_prefix_cache", "self.pool.reset()", "All cached prefixes are dropped."
    ),
    "idle": Anchor(
        _SCHEDULER, "Scheduler._schedule_waiting", "self._why_closed(plan)",
        "No request runs, and none in the queue can start.",
    ),
}  # fmt: skip


def deciding_line(reader: Trace, step: int) -> SourceLine:
    """The line behind the first event of the step's sentence (`engine.trace.sentence`)."""
    return _located(reader, _main_decision(reader, reader.record(step), step))


def event_line(reader: Trace, kind: str) -> SourceLine:
    """The line that causes events of a kind, a key of EVENTS. Raises TraceError for an unknown kind."""
    if kind not in EVENTS:
        raise TraceError(f"no line is known for {kind!r}: {', '.join(EVENTS)}")
    return _located(reader, EVENTS[kind])


# ---------------------------------------------------------------------- which decision


def _main_decision(reader: Trace, record: dict[str, Any], step: int) -> Anchor:
    kind = main_kind(reader, step)
    if kind == "evict" and not list(evicted_blocks(record)):
        kind = "reset"
    if kind == "finish":
        return _finish_anchor(reader, *record["fin"][0])
    if kind == "preempt" and (rule := victim_rule(reader, step)):
        return EVENTS[kind]._replace(why=f"{EVENTS[kind].why.rstrip('.')} ({rule}).")
    return EVENTS[kind] if kind in EVENTS and kind != "idle" else _why_none_ran(reader, record, step)


def _finish_anchor(reader: Trace, number: int, reason: str) -> Anchor:
    request = reader.requests[number]
    stop_ids = request.record.get("params", {}).get("stop_token_ids") or ()
    if reason == "stop" and request.tokens and request.tokens[-1] in stop_ids:
        return EVENTS["stop_token"]
    return EVENTS.get(reason, EVENTS["abort"])


def _why_none_ran(reader: Trace, record: dict[str, Any], step: int) -> Anchor:
    for number, reason, _ in record.get("why", ()):
        if number is None:
            return _any_place(Reason(reason), "rest")
        return _reason_anchor(reader, reader.requests[number], step, Reason(reason))
    return EVENTS["idle"]


def _reason_anchor(reader: Trace, request: RequestHistory, step: int, reason: Reason) -> Anchor:
    if request.number in reader.record(step).get("pre", ()):
        return _any_place(reason, "victim")
    return _any_place(reason, "waiting" if request.stay_at(step) is None else "running")


def _any_place(reason: Reason, place: Place) -> Anchor:
    """Our line for a reason; for a place that only a user's scheduler reports, another place of the same reason."""
    exact = REASONS.get((reason, place))
    return exact or next(anchor for (known, _), anchor in REASONS.items() if known is reason)


# ---------------------------------------------------------------------- source lines


def _located(reader: Trace, anchor: Anchor) -> SourceLine:
    """The anchor's line, in the user's scheduler if the run used one that overrides the function."""
    line = find_line(anchor)
    notes = []
    recorded, here = reader.header.get("code_rev"), _revision()
    if recorded != here:
        notes.append(f"as in this checkout; the run was recorded with {recorded or 'an unknown revision'}")
    path = reader.header.get("scheduler_cls") or OURS
    if path != OURS and anchor.file == _SCHEDULER:
        own, note = _own_line(str(path), anchor)
        line = own or line
        notes += [note] if note else []
    return replace(line, note="; ".join(notes)) if notes else line


def find_line(anchor: Anchor) -> SourceLine:
    """The anchor's line in this checkout. Raises TraceError if the expression is not there."""
    path, mtime_ns = _stamp(ROOT / anchor.file)
    line = _find_in(path, mtime_ns, anchor.function, anchor.expression)
    if line is None:
        raise TraceError(
            f"{anchor.file} has no {anchor.expression!r} in {anchor.function}: the code has changed"
        )
    return _source_line(path, line, anchor)


def _own_line(path: str, anchor: Anchor) -> tuple[SourceLine | None, str]:
    """The line in a user's scheduler, and a caveat."""
    module, _, name = path.replace(":", ".").rpartition(".")
    file = _file_of(module) if module else None
    used = f"the run used the scheduler {path}"
    if file is None:
        return None, f"{used}, whose source was not found: this is prep's scheduler"
    method = f"{name}.{anchor.function.rpartition('.')[2]}"
    defined = _definitions(*_stamp(file))
    if method in defined:
        number = _find_in(*_stamp(file), method, anchor.expression) or defined[method].lineno
        where = f"in the run's own scheduler {path}"
        return replace(_source_line(file, number, anchor), function=method), where
    owner = defined.get(name)
    if not isinstance(owner, ast.ClassDef):
        return None, f"{used}, which {file.name} does not define: this is prep's scheduler"
    if owner.bases:
        return None, f"{path} inherits this"
    line = replace(_source_line(file, owner.lineno, anchor), function=name)
    return line, f"the run's own scheduler {path} begins here; it has no {method.rpartition('.')[2]}"


def _file_of(module: str) -> Path | None:
    """A module's file, without running any of its code."""
    search: Sequence[str] | None = None
    spec = None
    parts = module.split(".")
    for depth, part in enumerate(parts):
        try:
            spec = PathFinder.find_spec(".".join(parts[: depth + 1]), search)
        except KeyError:  # a folder without __init__.py, below a package that is not imported
            search = [str(Path(place, part)) for place in search or ()]
            continue
        if spec is None:
            return None
        search = spec.submodule_search_locations
    return Path(spec.origin) if spec is not None and spec.origin and spec.origin.endswith(".py") else None


@cache
def _find_in(path: Path, mtime_ns: int, function: str, expression: str) -> int | None:
    """The first line of an expression or statement in a function."""
    node = _definitions(path, mtime_ns).get(function)
    if node is None:
        return None
    wanted: ast.AST = ast.parse(expression).body[0]
    if isinstance(wanted, ast.Expr):
        wanted = wanted.value
    form = ast.dump(wanted)
    lines = [
        part.lineno
        for part in ast.walk(node)
        if isinstance(part, (ast.expr, ast.stmt)) and type(part) is type(wanted) and ast.dump(part) == form
    ]
    return min(lines, default=None)


def _source_line(path: Path, line: int, anchor: Anchor) -> SourceLine:
    lines = _text(*_stamp(path))
    first, last = max(1, line - CONTEXT), min(len(lines), line + CONTEXT)
    return SourceLine(
        file=str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else path.name,
        line=line,
        function=anchor.function,
        code=lines[line - 1].partition("  # ")[0].strip(),
        why=anchor.why,
        context=tuple((number, lines[number - 1]) for number in range(first, last + 1)),
    )


def _stamp(path: Path) -> tuple[Path, int]:
    """A file and its version, as a cache key."""
    try:
        return path, path.stat().st_mtime_ns
    except OSError as error:
        raise TraceError(f"cannot read {path.name}: {error.strerror or error}") from error


@cache
def _text(path: Path, mtime_ns: int) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines()


@cache
def _definitions(path: Path, mtime_ns: int) -> dict[str, ast.FunctionDef | ast.ClassDef]:
    """Functions, classes and methods, keyed by name or Class.method."""
    try:
        tree = ast.parse("\n".join(_text(path, mtime_ns)))
    except SyntaxError as error:
        raise TraceError(f"{path.name} cannot be parsed by this Python: {error}") from error
    return dict(_named(tree, ""))


def _named(
    node: ast.Module | ast.ClassDef, prefix: str
) -> Iterator[tuple[str, ast.FunctionDef | ast.ClassDef]]:
    for child in node.body:
        if isinstance(child, ast.FunctionDef | ast.ClassDef):
            yield prefix + child.name, child
        if isinstance(child, ast.ClassDef):
            yield from _named(child, f"{prefix}{child.name}.")


_revision = cache(code_revision)
