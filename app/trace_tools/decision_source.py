"""The line of code that decided: what a step did, found in the source by the expression that did it.

    deciding_line(reader, 418)
    -> engine/core/scheduler.py:227 in Scheduler._make_room:  self._preempt(victim)

Nothing here knows a line number. Each `Anchor` names a function and an expression in it; the expression
is looked up in the parsed source (`ast`) whenever somebody asks, so that a line that moved is still found
and one that is gone is an error, not a wrong line.
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

ROOT = Path(__file__).resolve().parents[2]
OURS = "engine.core.scheduler:Scheduler"
CONTEXT = 4
"""Lines shown before and after."""

Place = Literal["running", "victim", "waiting", "rest"]
"""Where a reason met a request: it ran and got nothing, it just lost its blocks, it was looked at in the
queue, or it stood behind those."""


class Anchor(NamedTuple):
    """A decision in the code."""

    file: str
    """Relative to the checkout."""
    function: str
    """Class.method, or a function's name."""
    expression: str
    """Python; the first place in the function that means the same is the line."""
    why: str
    """What the line decides, in a sentence."""


@dataclass(frozen=True)
class SourceLine:
    """A line of source and what it decides."""

    file: str
    line: int
    """From 1."""
    function: str
    code: str
    """Without a comment behind it; `context` has the lines as they are."""
    why: str
    context: tuple[tuple[int, str], ...]
    """(line number, text) of the lines around it, itself included."""
    note: str = ""
    """What to know before trusting it: another version of the code ran, or another scheduler."""


_SCHEDULER = "engine/core/scheduler.py"
_BLOCKS = "engine/core/blocks.py"
_KV = "engine/core/kv_manager.py"
_OUTCOMES = "engine/core/apply_result.py"
_RUN, _ROOM = "Scheduler._schedule_running", "Scheduler._make_room"
_CLOSED, _ADMIT = "Scheduler._why_closed", "Scheduler._admit"

_REFUSALS: tuple[tuple[Reason, Place, str, str, str], ...] = (
    (
        Reason.BUDGET_EXHAUSTED,
        "running",
        _SCHEDULER,
        _RUN,
        "Running requests behind the one that used the last token of the budget get nothing in this step.",
    ),
    (
        Reason.BUDGET_EXHAUSTED,
        "waiting",
        _SCHEDULER,
        _ADMIT,
        "Without chunked prefill a prompt starts only where all of it fits into what is left of the budget.",
    ),
    (
        Reason.BUDGET_EXHAUSTED,
        "rest",
        _SCHEDULER,
        _CLOSED,
        "The queue is not looked at once the step's token budget is used up.",
    ),
    (
        Reason.MAX_NUM_SEQS,
        "rest",
        _SCHEDULER,
        _CLOSED,
        "Nobody is admitted while as many requests run as max_num_seqs allows.",
    ),
    (
        Reason.NO_BLOCKS,
        "victim",
        _SCHEDULER,
        _ROOM,
        "The request that lacks blocks is itself the least important one: it gives up its own.",
    ),
    (
        Reason.NO_BLOCKS,
        "waiting",
        _SCHEDULER,
        _ADMIT,
        "A request starts only when blocks for all its known tokens are free.",
    ),
    (
        Reason.BEHIND_IN_QUEUE,
        "rest",
        "engine/core/passed_over.py",
        "PassedOver.refusal",
        "A request ahead could not start: it may not be overtaken, or keeps a seat and blocks.",
    ),
    (
        Reason.LOWER_PRIORITY,
        "victim",
        _SCHEDULER,
        _ROOM,
        "The victim is the least important running request, and another one lacked blocks.",
    ),
    (
        Reason.PREFIX_IN_FLIGHT,
        "waiting",
        _SCHEDULER,
        _ADMIT,
        "Another request of this step computes the block that this one would start with: waiting one step "
        "saves doing it twice.",
    ),
    (
        Reason.GRAMMAR_COMPILING,
        "waiting",
        "engine/core/grammar_wait.py",
        "GrammarWait.why_not",
        "Its grammar is still being compiled, and others may go on.",
    ),
    (
        Reason.KV_TRANSFER,
        "waiting",
        "engine/core/kv_transfers.py",
        "KVTransfers._wait",
        "KV that it can start with is on its way from another engine.",
    ),
    (
        Reason.OTHER_BATCH,
        "running",
        _SCHEDULER,
        _RUN,
        "With several steps under way each request is computed in one of them.",
    ),
    (
        Reason.OTHER_BATCH,
        "rest",
        _SCHEDULER,
        _CLOSED,
        "With several steps under way each takes its share of the requests, and this one has its share.",
    ),
    (
        Reason.NO_LORA_SLOT,
        "waiting",
        "engine/core/lora_slots.py",
        "LoRASlots.why_not",
        "Its adapter is not on the device, and every slot there is in use.",
    ),
    (
        Reason.PREEMPTING,
        "rest",
        _SCHEDULER,
        _CLOSED,
        "A step that took blocks from somebody admits nobody: the newcomer would be the next victim.",
    ),
)

REASONS = {
    (reason, place): Anchor(file, function, f"Reason.{reason.name}", why)
    for reason, place, file, function, why in _REFUSALS
}
"""The line that gives each reason."""

EVENTS: dict[str, Anchor] = {
    "preempt": Anchor(
        _SCHEDULER,
        _ROOM,
        "self._preempt(victim)",
        "No block is free: the least important running request gives back all of its own.",
    ),
    "evict": Anchor(
        _BLOCKS,
        "BlockPool.take",
        "self._forget(block)",
        "The block at the front of the free queue is handed out, and what it held can no longer be hit.",
    ),
    "alloc": Anchor(
        _BLOCKS,
        "BlockPool.take",
        "self.free.pop_front()",
        "Blocks are taken from the front of the free queue.",
    ),
    "ref": Anchor(
        _BLOCKS, "BlockPool.touch", "block.ref_count += 1", "A prefix hit adds an owner to a cached block."
    ),
    "unref": Anchor(
        _BLOCKS,
        "BlockPool.release",
        "block.ref_count -= 1",
        "A request lets go of a block that others still hold.",
    ),
    "free": Anchor(
        _BLOCKS,
        "BlockPool.release",
        "self._enqueue(block)",
        "The last owner left: the block joins the free queue, at the back if its content can be hit again.",
    ),
    "seal": Anchor(
        _BLOCKS,
        "BlockPool.register",
        "self.cached[block_hash] = block",
        "The block is full and written: from now on others can hit it.",
    ),
    "add": Anchor(_SCHEDULER, "Scheduler.add", "self.waiting.push(request)", "A request joins the queue."),
    "admit": Anchor(
        _SCHEDULER,
        _ADMIT,
        "self._start(request, start, hit)",
        "Budget, a seat and blocks for all its known tokens were there: the request runs.",
    ),
    "resume": Anchor(
        _SCHEDULER,
        _ADMIT,
        "self._start(request, start, hit)",
        "A preempted request comes back like any other that waits, behind what is still cached of it.",
    ),
    "hit": Anchor(
        _KV,
        "KVManager.match",
        "hit.device.append(block)",
        "Block by block from the start of the prompt: the hit ends at the first hash that is not cached.",
    ),
    "prefill": Anchor(
        _SCHEDULER,
        "Scheduler._num_new_tokens",
        "min(num_tokens, plan.budget_left, longest_chunk)",
        "A prompt takes what is left of the budget, at most.",
    ),
    "decode": Anchor(
        _SCHEDULER,
        "Scheduler._num_new_tokens",
        "return 1",
        "A request that knows one token more than it has computed takes one token of the budget.",
    ),
    "length": Anchor(
        _OUTCOMES,
        "_status_after",
        "num_tokens >= request.max_num_tokens",
        "The request has as many tokens as it may have.",
    ),
    "stop": Anchor(
        _OUTCOMES,
        "_status_after",
        "token_id in request.eos_token_ids and not params.ignore_eos",
        "The model ended the text.",
    ),
    "stop_token": Anchor(
        _OUTCOMES,
        "_status_after",
        "params.stop_token_ids and token_id in params.stop_token_ids",
        "The newest token is one of the request's stop tokens.",
    ),
    "error": Anchor(
        _SCHEDULER,
        "Scheduler._fail",
        "self._finish(request, RequestStatus.FINISHED_ERROR)",
        "A request that cannot go on ends alone; the others do not notice.",
    ),
    "abort": Anchor(
        _SCHEDULER,
        "Scheduler.abort",
        "self._finish(request, RequestStatus.FINISHED_ABORTED)",
        "A request can be ended from outside at any moment, and gives back all it holds.",
    ),
    "reset": Anchor(
        _KV, "KVManager.reset_prefix_cache", "self.pool.reset()", "All cached prefixes are forgotten."
    ),
    "idle": Anchor(
        _SCHEDULER,
        "Scheduler._schedule_waiting",
        "self._why_closed(plan)",
        "Nobody runs, and nobody in the queue can start.",
    ),
}


def deciding_line(reader: Trace, step: int) -> SourceLine:
    """The line behind what `trace_sentence.sentence` tells first."""
    return _located(reader, _main_decision(reader, reader.record(step), step))


def reason_line(reader: Trace, request_id: str, step: int) -> SourceLine | None:
    """The line that left a request out of a step; None if it has no reason there."""
    request, rest = reader.find(request_id, step), None
    for number, reason, _ in reader.record(step).get("why", ()):
        if number == request.number:
            return _located(reader, _reason_anchor(reader, request, step, Reason(reason)))
        if number is None:
            rest = Reason(reason)
    if rest is None or not request.lives_at(step) or request.stay_at(step) is not None:
        return None
    return _located(reader, _any_place(rest, "rest"))


def event_line(reader: Trace, kind: str) -> SourceLine:
    """The line that makes events of a kind happen: a key of EVENTS."""
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
    return EVENTS[kind] if kind in EVENTS and kind != "idle" else _why_nobody_ran(reader, record, step)


def _finish_anchor(reader: Trace, number: int, reason: str) -> Anchor:
    request = reader.requests[number]
    stop_ids = request.record.get("params", {}).get("stop_token_ids") or ()
    if reason == "stop" and request.tokens and request.tokens[-1] in stop_ids:
        return EVENTS["stop_token"]
    return EVENTS.get(reason, EVENTS["abort"])


def _why_nobody_ran(reader: Trace, record: dict[str, Any], step: int) -> Anchor:
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
    """Of a reason that a scheduler of one's own gave at another place, the line of ours."""
    found = REASONS.get((reason, place))
    return found or next(anchor for (known, _), anchor in REASONS.items() if known is reason)


# ---------------------------------------------------------------------- where it stands


def _located(reader: Trace, anchor: Anchor) -> SourceLine:
    """The anchor's line, in the user's own scheduler if the run used one that overrides the function."""
    line = find_line(anchor)
    notes = []
    recorded, here = reader.header.get("code_rev"), _revision()
    if recorded != here:
        notes.append(
            f"as in this checkout; the run was recorded with {recorded or 'code of no known version'}"
        )
    path = reader.header.get("scheduler_cls") or OURS
    if path != OURS and anchor.file == _SCHEDULER:
        own, note = _own_line(str(path), anchor)
        line = own or line
        notes += [note] if note else []
    return replace(line, note="; ".join(notes)) if notes else line


def find_line(anchor: Anchor) -> SourceLine:
    """The anchor's line in this checkout. Raises TraceError if the expression is not there."""
    return _find_line(anchor, *_stamp(ROOT / anchor.file))


@cache
def _find_line(anchor: Anchor, path: Path, mtime_ns: int) -> SourceLine:
    found = _find_in(path, mtime_ns, anchor.function, anchor.expression)
    if found is None:
        raise TraceError(
            f"{anchor.file} has no {anchor.expression!r} in {anchor.function}: the code has changed"
        )
    return _source_line(path, found, anchor)


def _own_line(path: str, anchor: Anchor) -> tuple[SourceLine | None, str]:
    """The line in a scheduler of the user's own, and what to say about it."""
    module, _, name = path.replace(":", ".").rpartition(".")
    file = _file_of(module) if module else None
    if file is None:
        return (
            None,
            f"the run used the scheduler {path}, whose source is not found from here: this is prep's own",
        )
    method = f"{name}.{anchor.function.rpartition('.')[2]}"
    function = _functions(*_stamp(file)).get(method)
    if function is not None:
        number = _find_in(*_stamp(file), method, anchor.expression) or function.lineno
        where = f"in the run's own scheduler {path}"
        return replace(_source_line(file, number, anchor), function=method), where
    owner = _classes(*_stamp(file)).get(name)
    if owner is None:
        return (
            None,
            f"the run used the scheduler {path}, which {file.name} does not define: this is prep's own",
        )
    if owner.bases:
        return None, f"{path} leaves this to the class it extends"
    line = replace(_source_line(file, owner.lineno, anchor), function=name)
    return line, f"the run's own scheduler {path} begins here; it has no {method.rpartition('.')[2]}"


def _file_of(module: str) -> Path | None:
    """A module's file, without running any of its code."""
    search: Sequence[str] | None = None
    spec = None
    parts = module.split(".")
    for depth in range(len(parts)):
        spec = PathFinder.find_spec(".".join(parts[: depth + 1]), search)
        if spec is None:
            return None
        search = spec.submodule_search_locations
    return Path(spec.origin) if spec is not None and spec.origin and spec.origin.endswith(".py") else None


def _find_in(path: Path, mtime_ns: int, function: str, expression: str) -> int | None:
    """The first line in a function where the expression, or statement, stands."""
    node = _functions(path, mtime_ns).get(function)
    if node is None:
        return None
    wanted: ast.AST = ast.parse(expression).body[0]
    if isinstance(wanted, ast.Expr):
        wanted = wanted.value
    form = ast.dump(wanted)
    lines = [
        each.lineno
        for each in ast.walk(node)
        if isinstance(each, (ast.expr, ast.stmt)) and type(each) is type(wanted) and ast.dump(each) == form
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
    """A file and its version: what is read from it is kept until it changes."""
    try:
        return path, path.stat().st_mtime_ns
    except OSError as error:
        raise TraceError(f"cannot read {path.name}: {error.strerror or error}") from error


@cache
def _text(path: Path, mtime_ns: int) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines()


@cache
def _tree(path: Path, mtime_ns: int) -> ast.Module:
    try:
        return ast.parse("\n".join(_text(path, mtime_ns)))
    except SyntaxError as error:
        raise TraceError(f"{path.name} is no Python that this interpreter can read: {error}") from error


@cache
def _functions(path: Path, mtime_ns: int) -> dict[str, ast.FunctionDef]:
    """By Class.method, or name."""
    return dict(_named(_tree(path, mtime_ns), ""))


def _classes(path: Path, mtime_ns: int) -> dict[str, ast.ClassDef]:
    return {node.name: node for node in _tree(path, mtime_ns).body if isinstance(node, ast.ClassDef)}


def _named(node: ast.Module | ast.ClassDef, prefix: str) -> Iterator[tuple[str, ast.FunctionDef]]:
    for child in node.body:
        if isinstance(child, ast.FunctionDef):
            yield prefix + child.name, child
        elif isinstance(child, ast.ClassDef):
            yield from _named(child, f"{prefix}{child.name}.")


@cache
def _revision() -> str | None:
    return code_revision()
