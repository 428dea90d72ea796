"""`prep trace diff` and `prep trace fork`: compare two runs; run a recorded workload again with changes."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from app.cli import terminal
from app.cli.options import JsonOption, argument, option
from app.debugger.fork_process import ForkOutcome, ForkProcess
from engine.trace.diff import Figure, RequestDelta, TraceDiff
from engine.trace.diff import diff as compare
from engine.trace.divergence import Divergence
from engine.trace.files import unused_path
from engine.trace.protocol import Trace
from engine.trace.reader import TraceReader
from prep_common.text import counted

SHOW_PROGRESS_AFTER_S = 2.0
MAX_ROWS = 12
"""Maximum rows of the request table, those with the largest changes."""


def open_trace(file: Path, quiet: bool = False) -> Trace:
    """Load a trace; its warnings go to stderr."""
    reader = TraceReader(file)
    for warning in reader.warnings if not quiet else ():
        terminal.note(f"{terminal.mark(None)} {terminal.literal(file)}: {terminal.literal(warning)}")
    return reader


def diff(
    a: Annotated[Path, argument("A trace (*.itrace).", metavar="A")],
    b: Annotated[Path, argument("Another trace, usually a fork of the first.", metavar="B")],
    json: JsonOption = False,
) -> None:
    """Compare two runs: first different decision, its reasons, and the effect per request and on the whole run.

    Example: prep trace diff run.itrace run-at40.itrace
    """
    one, other = open_trace(a, quiet=json), open_trace(b, quiet=json)
    difference = compare(one, other)
    if json:
        return terminal.print_json(plain(difference))
    print_diff(difference, a.name, b.name)
    terminal.next_command(f"prep app --trace {b}", "step through it; the page Compare shows both runs")


def fork(
    file: Annotated[Path, argument("A trace (*.itrace).", metavar="FILE")],
    at: Annotated[int, option("First step with the changes.", metavar="N")] = 0,
    change: Annotated[
        list[str] | None, option("KNOB=VALUE; may be repeated.", "--set", metavar="KNOB=VALUE")
    ] = None,
    scheduler: Annotated[str | None, option("Another scheduler class.", metavar="MODULE:CLASS")] = None,
    output: Annotated[Path | None, option("Trace file of the fork.", "-o", "--output")] = None,
    json: JsonOption = False,
) -> None:
    """Run a recorded workload again with other settings or another scheduler from a step on, and compare.

    No model is needed: each request outputs its recorded tokens. The scheduler is the real one. Without --set
    or --scheduler the fork repeats the recorded run.

    \b
    Knobs at any step: max_num_batched_tokens, max_num_seqs, long_prefill_token_threshold,
    enable_chunked_prefill, scheduling_policy, enable_prefix_caching, preemption_mode.
    Knobs at step 0: num_blocks, block_size, sliding_window, max_loras, num_host_blocks, swap_space.

    \b
    Examples:
      prep trace fork run.itrace --at 40 --set max_num_batched_tokens=256
      prep trace fork run.itrace --set num_blocks=200 --set preemption_mode=swap --set num_host_blocks=64
      prep trace fork run.itrace --at 40 --scheduler app.debugger.example_schedulers:ShortestFirst
    """
    if output is not None and output.exists():
        raise terminal.Problem(f"{output} exists", "give -o another name, or remove it first")
    out = output or unused_path(Path(f"{file.stem}-at{at}.itrace"))
    if not out.absolute().parent.is_dir():
        raise terminal.Problem(f"there is no folder {out.parent}", "create it, or choose another -o")
    recorded = open_trace(file, quiet=json)
    process = ForkProcess(file, out, at=at, changes=_changes(change or []), scheduler_cls=scheduler)
    outcome = _wait(process)
    difference = compare(recorded, open_trace(out, quiet=True))
    if json:
        terminal.print_json({"fork": {**asdict(outcome), "path": str(out)}, "diff": plain(difference)})
    else:
        _print_outcome(outcome)
        print_diff(difference, file.name, out.name)
        if change or scheduler:
            terminal.next_command(f"prep app --trace {out}", f"or prep trace diff {file} {out} --json")
        else:
            said = "Without --set or --scheduler a fork repeats the recorded run."
            terminal.note(f"{terminal.mark(None)} {said}")
            again = f"prep trace fork {file} --at {at} --set max_num_batched_tokens=64"
            terminal.next_command(again, "a fork that can differ")
    if outcome.failure:
        raise typer.Exit(terminal.CHECKS_FAILED)


def _changes(words: list[str]) -> dict[str, Any]:
    changes = {}
    for word in words:
        name, separator, value = word.partition("=")
        if not separator:
            raise terminal.Problem(f"--set {word} has no value", f"--set {name}=VALUE")
        changes[name.strip()] = value.strip()
    return changes


def _wait(process: ForkProcess) -> ForkOutcome:
    """Wait for the fork's end and show progress if that takes long. Ctrl-C removes its file."""
    began = time.monotonic()
    status = terminal.err().status("[dim]forking[/]")
    try:
        while (outcome := process.poll(0.1)) is None:
            if terminal.is_live(terminal.err()) and time.monotonic() - began >= SHOW_PROGRESS_AFTER_S:
                status.start()
                status.update(f"[dim]step {process.step:,} of about {process.of:,}[/]")
        return outcome
    except KeyboardInterrupt:
        process.cancel()
        raise
    finally:
        status.stop()


# ---------------------------------------------------------------------- print


def plain(difference: TraceDiff) -> dict[str, Any]:
    """A comparison as JSON values."""
    return {
        **asdict(difference),
        "settings": [{"name": name, "a": a, "b": b} for name, a, b in difference.settings],
        "figures": [{**asdict(figure), "delta": figure.delta} for figure in difference.figures],
    }


def print_diff(difference: TraceDiff, a: str, b: str) -> None:
    out = terminal.out()
    terminal.say(f"[bold]A[/] {terminal.literal(a)}   [bold]B[/] {terminal.literal(b)}", whole=True)
    if difference.same_workload:
        out.print("[dim]same workload[/]")
    else:
        notes = "; ".join(difference.workload_notes) or "the recorded requests differ"
        terminal.say(
            f"{terminal.mark(None)} the workloads differ: {terminal.literal(notes)}. Requests are matched by id"
        )
    for name, *values in difference.settings:
        one, other = ("-" if value is None else terminal.literal(value) for value in values)
        terminal.say(f"[dim]{name}[/]  A {one}, B {other}")
    out.print()
    if difference.first is None:
        from app.debugger.views.compare import summary  # it imports numpy, which a help page does not need

        terminal.say(summary(difference), whole=True)
        return
    print_divergence(difference.first)
    more = len(difference.divergences) - 1
    rest = f"; {counted(more, 'later divergence')}" if more else ""
    steps = "1 step decides" if difference.num_different == 1 else f"{difference.num_different} steps decide"
    out.print(f"[dim]{steps} differently{rest}[/]\n")
    _print_figures(difference.figures, difference.clocks)
    _print_requests(difference.requests)


def print_divergence(divergence: Divergence) -> None:
    terminal.say(f"[bold]First different decision: step {divergence.step}[/] ({', '.join(divergence.kinds)})")
    for name, side in (("A", divergence.a), ("B", divergence.b)):
        terminal.say(f"  [bold]{name}[/] {terminal.literal(side.decided)}")
        for reason in side.reasons:
            terminal.say(f"    [dim]{terminal.literal(reason)}[/]")


def _print_figures(figures: list[Figure], clocks: tuple[str, str]) -> None:
    table = terminal.table("whole run", "A", "B", "B - A", "unit", left=("unit",))
    for figure in figures:
        delta = figure.delta
        colour = ""
        if delta and figure.better:
            colour = "green" if (delta < 0) == (figure.better == "lower") else "yellow"
        shown = "-" if delta is None else f"{delta:+,.6g}" if delta else "0"
        shown = f"[{colour}]{shown}[/]" if colour else shown
        table.add_row(figure.name, _number(figure.a), _number(figure.b), shown, figure.unit)
    label = "wall clock" if clocks == ("wall", "wall") else "clock: steps; a fork has no wall clock"
    terminal.show(f"Figures [dim]({label})[/]", table)


def _print_requests(requests: list[RequestDelta]) -> None:
    headings = ("request", "first token", "end", "waited", "preempted", "hit", "computed", "tokens")
    table = terminal.table(*headings, left=("tokens",))
    ranked = sorted(requests, key=_change, reverse=True)
    for delta in ranked[:MAX_ROWS]:
        counts = (delta.waiting_steps, delta.preemptions, delta.cached_tokens, delta.computed_tokens)
        pairs = map(_pair, (delta.first_token_step, delta.end_step, *counts))
        table.add_row(terminal.literal(delta.request_id), *pairs, delta.tokens)
    terminal.show("Requests, largest change of the last step first [dim](steps and tokens, A → B)[/]", table)
    if len(ranked) > MAX_ROWS:
        terminal.out().print(f"and {len(ranked) - MAX_ROWS} more; --json lists them")


def _change(delta: RequestDelta) -> tuple[int, int]:
    def distance(pair: tuple[int | None, int | None]) -> int:
        one, other = pair
        return 0 if one == other else 10**9 if one is None or other is None else abs(other - one)

    return distance(delta.end_step), distance(delta.first_token_step)


def _print_outcome(outcome: ForkOutcome) -> None:
    if outcome.failure:
        terminal.note(f"{terminal.mark(False)} {terminal.literal(outcome.failure)}")
        terminal.note(f"[dim]the run up to the failure: {terminal.literal(outcome.path)}[/]")
    else:
        terminal.note(
            f"{terminal.mark(True)} {counted(outcome.num_steps, 'step')} in {terminal.literal(outcome.path)}"
        )
    for note in outcome.notes:
        terminal.note(f"{terminal.mark(None)} {terminal.literal(note)}")


def _pair(pair: tuple[int | None, int | None]) -> str:
    one, other = ("-" if value is None else str(value) for value in pair)
    arrow = "→" if terminal.unicode_ok() else "->"
    return one if one == other else f"{one} {arrow} {other}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.6g}"
