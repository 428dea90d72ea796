"""`prep trace`: record a run, show it, explain it, verify it and export it."""

from __future__ import annotations

import os
import signal
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from app.cli import terminal
from app.cli.options import JsonOption, argument, option
from app.cli.trace_compare import diff, fork, open_trace
from app.trace_tools.perfetto import export_perfetto
from engine.trace.files import unused_path
from engine.trace.history import RequestHistory
from engine.trace.protocol import Trace
from engine.trace.why import Why, why_spans
from engine.trace.why import why as explain
from prep_common.child_process import PYTHON_M, ChildProcess
from prep_common.paths import why_unwritable
from prep_common.text import counted

File = Annotated[Path, argument("A trace (*.itrace).", metavar="FILE")]

MAX_ROWS = 40
"""Maximum rows of the request table without --all."""


@terminal.context(ignore_unknown_options=True, allow_interspersed_args=False)
def record(
    command: Annotated[list[str], argument("A prep command, or any program.", metavar="CMD")],
    output: Annotated[
        Path | None, option("Trace file; by default run.itrace, run-2.itrace, …", "-o", "--output")
    ] = None,
) -> None:
    """Run a command with tracing on and pass on its exit code. Options of `record` come before the command.

    Every engine that the command starts writes a trace: the first to FILE, others to FILE-2, FILE-3.

    \b
    Examples:
      prep trace record generate shop --chat -p "What do you recommend?"
      prep trace record -o tour.itrace demo
      prep trace record python my_script.py
    """
    if output is not None and output.exists():
        raise terminal.Problem(f"{output} exists", "give -o another name, or remove it first")
    path = (output or unused_path("run.itrace")).absolute()
    if not path.parent.is_dir():
        raise terminal.Problem(f"there is no folder {path.parent}", "create it, or choose another -o")
    before = set(path.parent.iterdir())
    code = _run(_program(command), path)
    new = sorted(set(path.parent.iterdir()) - before, key=lambda file: (len(file.stem), file))
    written = [file for file in new if _is_numbered(file, path)]
    cause = why_unwritable(path.parent)
    if not written:
        path.unlink(missing_ok=True)  # empty, if an engine could not write to it
        terminal.tell_error(f"no trace was written: {cause or f'{command[0]} started no engine'}")
        raise typer.Exit(code or (terminal.ENVIRONMENT if cause else terminal.CHECKS_FAILED))
    for file in written:
        reader = open_trace(file, quiet=True)
        shown = terminal.literal(terminal.shown(file))
        if reader.is_complete:
            terminal.note(f"recorded {shown}")
            continue
        why = cause or reader.error or "the engine ended without closing it"
        terminal.tell_error(f"{shown} has {counted(reader.num_steps, 'step')} and is cut off: {why}")
        code = code or (terminal.ENVIRONMENT if cause else terminal.CHECKS_FAILED)
    terminal.next_command(f"prep trace info {terminal.shown(written[0])}", "what happened")
    if code:
        raise typer.Exit(code)


def info(
    file: File,
    all_requests: Annotated[bool, option("List every request.", "--all")] = False,
    json: JsonOption = False,
) -> None:
    """Show the figures of a run: steps, tokens, preemptions, prefix hits, evictions, and every request.

    Example: prep trace info run.itrace
    """
    reader = open_trace(file)
    if not reader.num_steps and not reader.is_complete:
        raise terminal.Problem(f"no step of {file} is readable", f"prep trace verify {file}")
    summary = summarise(reader)
    if json:
        return terminal.print_json(summary)
    _print_info(reader, summary, MAX_ROWS if not all_requests else len(reader.requests))
    waited = max(reader.requests, key=lambda request: len(request.preempted), default=None)
    if waited is not None:
        terminal.next_command(f"prep trace why {file} {waited.request_id}", "why it ran or waited, by steps")


def why(
    file: File,
    request: Annotated[str, argument("Request id, as prep trace info lists it.", metavar="REQ")],
    step: Annotated[int | None, option("One step; all steps by default.")] = None,
    json: JsonOption = False,
) -> None:
    """Explain why a request did or did not run: the scheduler's reason, its figures, and a sentence.

    \b
    Examples:
      prep trace why run.itrace 3 --step 418
      prep trace why run.itrace 3
    """
    reader = open_trace(file)
    if step is not None:
        answer = explain(reader, request, step)
        if json:
            terminal.print_json(_plain(answer))
        else:
            what = answer.reason.value if answer.reason else answer.answer
            terminal.say(f"[bold]{what}[/]  {terminal.literal(answer.sentence)}")
        return
    spans = why_spans(reader, request)
    if json:
        return terminal.print_json([{"first": s.first, "last": s.last, **_plain(s.why)} for s in spans])
    headings = ("steps", "what", "explanation of the first step")
    table = terminal.table(*headings, left=headings)
    for span in spans:
        steps = str(span.first) if span.first == span.last else f"{span.first}-{span.last}"
        what = span.why.reason.value if span.why.reason else span.why.answer
        table.add_row(steps, what, terminal.literal(span.why.sentence))
    terminal.show(f"Request {terminal.literal(request)}, step by step", table)


def verify(file: File, json: JsonOption = False) -> None:
    """Replay a trace and compare it with the engine's checks; exit code 1 if they differ.

    The checks are a CRC of all records, five counts per step, and a CRC of the whole state every 64 steps.

    Example: prep trace verify run.itrace
    """
    reader = open_trace(file, quiet=json)
    problems = reader.problems
    if json:
        terminal.print_json(
            {
                "ok": not problems,
                "steps": reader.num_steps,
                "complete": reader.is_complete,
                "warnings": reader.warnings,
                "first_bad_step": min((problem.step for problem in problems), default=None),
                "problems": [problem._asdict() for problem in problems],
            }
        )
    elif problems:
        first = min(problems)
        where = f"{terminal.literal(file)}: first bad step {first.step}"
        terminal.say(f"{terminal.mark(False)} {where}", whole=True)
        for problem in problems[:5]:
            terminal.say(f"  {terminal.literal(problem.message)}")
        if len(problems) > 5:
            terminal.out().print(f"  and {len(problems) - 5} consequences of these")
    else:
        terminal.say(
            f"{terminal.mark(True)} {file}: {counted(reader.num_steps, 'step')} replayed; all states match "
            "the engine's checks",
            whole=True,
        )
    if problems:
        raise typer.Exit(terminal.CHECKS_FAILED)


def export(
    file: File,
    perfetto: Annotated[
        Path | None,
        option("Chrome trace JSON for ui.perfetto.dev.", "--perfetto", "-o", "--output", metavar="OUT"),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Convert a trace into a timeline with a track per request, one for the steps, and counters.

    Example: prep trace export run.itrace --perfetto run.json
    """
    if perfetto is None:
        raise terminal.Problem(
            "prep trace export needs an output: --perfetto OUT",
            f"prep trace export {file} --perfetto {file.stem}.json",
        )
    reader = open_trace(file, quiet=json)
    count = export_perfetto(reader, perfetto)
    if json:
        return terminal.print_json({"file": str(perfetto), "events": count})
    terminal.note(f"wrote {counted(count, 'event')} to {perfetto}: open it at https://ui.perfetto.dev")


# ---------------------------------------------------------------------- record


def _program(command: list[str]) -> list[str]:
    """The program to start: a prep command in this Python, or the given command."""
    from app.cli.main import COMMANDS

    words = command[1:] if command[0] == "prep" and len(command) > 1 else command
    if words[0] in COMMANDS:
        return [*PYTHON_M, "app.cli.main", *words]
    if words[0] in ("python", "python3"):
        return [sys.executable, *words[1:]]
    return words


def _run(program: list[str], path: Path) -> int:
    """Run a program with PREP_TRACE set. Only the program handles Ctrl-C, because it must close its trace."""
    import app as package

    root = str(Path(package.__path__[0]).parent)
    paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {
        "PREP_TRACE": str(path),
        "PYTHONPATH": os.pathsep.join(paths),
        "PREP_HINTS": "0",
    }
    try:
        child = ChildProcess(
            program, name=program[0], environment=environment, own_group=False, stop_signal=signal.SIGTERM
        )
    except OSError as error:
        raise terminal.Problem(
            f"cannot run {program[0]}: {error.strerror}", "prep --help   lists the commands"
        ) from None
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    before_term = signal.signal(signal.SIGTERM, terminal.interrupt)  # `close` passes it on to the program
    try:
        return cast(int, child.exit_code(timeout=None))
    finally:
        child.close()
        signal.signal(signal.SIGINT, before)
        signal.signal(signal.SIGTERM, before_term)


def _is_numbered(file: Path, first: Path) -> bool:
    """Whether a file is an engine's trace: the first one, or one to whose name `unused_path` added a number."""
    prefix, _, number = file.stem.rpartition("-")
    is_further = (prefix, file.suffix) == (first.stem, first.suffix) and number.isdigit()
    # An engine that fails leaves the file empty.
    return (file == first or is_further) and file.stat().st_size > 0


# ---------------------------------------------------------------------- show


def summarise(reader: Trace) -> dict[str, Any]:
    """The figures of `prep trace info`."""
    series = reader.series
    requests = [_request_figures(reader, request) for request in reader.requests]
    names = ("model", "seed", "blocks", "block_size", "code_rev", "machine")
    return {
        "header": {name: reader.header.get(name) for name in names},
        "workload_hash": reader.workload_hash,
        "complete": reader.is_complete,
        "warnings": reader.warnings,
        "steps": reader.num_steps,
        "duration_s": round(reader.duration_s, 6),
        "step_time_s": round(sum(series.duration_s), 6),
        "computed_tokens": sum(series.num_tokens),
        "prompt_tokens": sum(request["prompt_tokens"] for request in requests),
        "output_tokens": sum(request["output_tokens"] for request in requests),
        "cached_tokens": sum(request["cached_tokens"] for request in requests),
        "hits": len(reader.events("hit")),
        "preemptions": len(reader.events("preempt")),
        "evictions": len(reader.events("evict")),
        "max_running": max(series.running, default=0),
        "max_waiting": max(series.waiting, default=0),
        "min_free_blocks": min(series.free_blocks, default=reader.num_blocks - 1),
        "counters": reader.counter_totals(),
        "requests": requests,
    }


def _request_figures(reader: Trace, request: RequestHistory) -> dict[str, Any]:
    admitted = request.stays[0].admitted if request.stays else None
    series = reader.series
    queued = None if admitted is None else max(0.0, series.time_s[admitted] - request.added_s)
    first = next((step for step, n in zip(request.row_steps, request.row_outputs, strict=True) if n), None)
    ttft = None if first is None else series.time_s[first] + series.duration_s[first] - request.added_s
    latency = None if request.ended_s is None else request.ended_s - request.added_s
    times = {"queued_s": queued, "ttft_s": ttft, "latency_s": latency}
    return {
        "request": request.request_id,
        "added": request.added,
        "admitted": admitted,
        **terminal.pick(request, "ended finish_reason"),
        "prompt_tokens": request.num_prompt_tokens,
        "cached_tokens": request.num_cached_tokens,
        "output_tokens": len(request.tokens),
        "preemptions": len(request.preempted),
        **{name: None if seconds is None else round(seconds, 6) for name, seconds in times.items()},
    }


def _print_info(reader: Trace, summary: dict[str, Any], max_rows: int) -> None:
    head, out = summary["header"], terminal.out()
    prompt, cached = summary["prompt_tokens"], summary["cached_tokens"]
    cache = f"{counted(head['blocks'], 'block')} of {head['block_size']} tokens"
    at_most = f"{summary['max_running']} running, {summary['max_waiting']} waiting"
    times = f"{summary['duration_s']:.3f} s, of which {summary['step_time_s']:.3f} s in steps"
    lines = {
        "model": f"{head['model']}, seed {head['seed']}, {cache}",
        "recorded on": f"{head['machine']}, code {head['code_rev'] or 'unknown'}",
        "steps": f"{summary['steps']} in {times}",
        "tokens": f"{summary['computed_tokens']} computed, {summary['output_tokens']} output",
        "prefix hits": f"{summary['hits']}, {cached} of {prompt} prompt tokens at first admission",
        "preemptions": str(summary["preemptions"]),
        "evictions": str(summary["evictions"]),
        "at most": at_most,
        "at least": f"{counted(summary['min_free_blocks'], 'block')} free",
    }
    for name, value in lines.items():
        terminal.say(f"[dim]{name:>12}[/]  {terminal.literal(value)}")
    if summary["counters"]:
        out.print()
        out.print("[dim]counters of all steps (engine/core/stats.py)[/]")
        for name, total in summary["counters"].items():
            out.print(f"{total:>14,}  [dim]{name}[/]")
    headings = ("request", "prompt", "cached", "output", "preempt", "queued", "TTFT", "total", "end")
    table = terminal.table(*headings, left=("end",))
    for request in summary["requests"][:max_rows]:
        names = ("prompt_tokens", "cached_tokens", "output_tokens", "preemptions")
        seconds = (request[name] for name in ("queued_s", "ttft_s", "latency_s"))
        cells = [str(request[name]) for name in names]
        cells += ["-" if second is None else f"{second * 1e3:.1f}" for second in seconds]
        table.add_row(terminal.literal(request["request"]), *cells, request["finish_reason"] or "unfinished")
    out.print()
    count = len(summary["requests"])
    terminal.show(f"{count} request{'s' * (count != 1)} [dim](tokens, preemptions, milliseconds)[/]", table)
    if count > max_rows:
        out.print(f"and {count - max_rows} more; --all or --json lists them")


def _plain(answer: Why) -> dict[str, Any]:
    return {**asdict(answer), "reason": answer.reason.value if answer.reason else None}


HELP = "Record what every step of a run did, and find out why."
trace = terminal.command_app(record, info, why, verify, export, diff, fork, help=HELP)
