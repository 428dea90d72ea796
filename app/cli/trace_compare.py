"""`prep trace diff` and `prep trace fork`: two runs beside each other, and a run once more with something changed."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from app.cli import terminal

if TYPE_CHECKING:
    from app.debugger.fork_process import ForkOutcome, ForkProcess
    from engine.trace.diff import TraceDiff
    from engine.trace.divergence import Divergence
    from engine.trace.run_figures import Figure, RequestDelta

SHOW_PROGRESS_AFTER_S = 2.0
MAX_ROWS = 12
"""Of the request table: those with the largest changes."""


def diff(
    a: Annotated[Path, typer.Argument(help="A trace: *.itrace.", metavar="A")],
    b: Annotated[Path, typer.Argument(help="Another, usually a fork of the first.", metavar="B")],
    json: Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")] = False,
) -> None:
    """Compare two runs: the first decision that differs, with both reasons; per request; and in all.

    Example: prep trace diff run.itrace run-at40.itrace
    """
    from app.cli.trace import open_trace
    from engine.trace.diff import diff as compare

    one, other = open_trace(a, quiet=json), open_trace(b, quiet=json)
    found = compare(one, other)
    if json:
        terminal.print_json(plain(found))
        return
    print_diff(found, a.name, b.name)
    terminal.next_command(f"prep app --trace {b}", "step through it; the page Compare has both")


def fork(
    file: Annotated[Path, typer.Argument(help="The recorded run.", metavar="FILE")],
    at: Annotated[int, typer.Option("--at", help="First step that decides otherwise.", metavar="N")] = 0,
    change: Annotated[
        list[str] | None, typer.Option("--set", help="KNOB=VALUE; may be repeated.", metavar="KNOB=VALUE")
    ] = None,
    scheduler: Annotated[
        str | None, typer.Option("--scheduler", help="A scheduler of your own.", metavar="MODULE:CLASS")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Where the fork's trace goes.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")] = False,
) -> None:
    """Run a recorded workload again, with other settings or another scheduler from a step on, and compare.

    No model is needed: each request says what it said in the recording. The scheduler is the real one. With
    nothing changed the fork is the recorded run again.

    \b
    At any step: max_num_batched_tokens, max_num_seqs, long_prefill_token_threshold, enable_chunked_prefill,
    scheduling_policy, enable_prefix_caching, preemption_mode. At step 0 also: num_blocks, block_size,
    sliding_window, max_loras, num_host_blocks, swap_space.

    \b
    Examples:
      prep trace fork run.itrace --at 40 --set max_num_batched_tokens=256
      prep trace fork run.itrace --set num_blocks=200 --set preemption_mode=swap --set num_host_blocks=64
      prep trace fork run.itrace --at 40 --scheduler app.debugger.example_schedulers:ShortestFirst
    """
    from app.cli.trace import open_trace
    from app.debugger.fork_process import ForkProcess
    from engine.trace.diff import diff as compare
    from engine.trace.files import unused_path

    if output is not None and output.exists():
        raise terminal.Problem(f"{output} exists", next_step="give -o another name, or remove it first")
    out = output or unused_path(Path(f"{file.stem}-at{at}.itrace"))
    if not out.absolute().parent.is_dir():
        raise terminal.Problem(
            f"there is no folder {out.parent}", next_step="create it, or choose another -o"
        )
    recorded = open_trace(file, quiet=json)
    process = ForkProcess(file, out, at=at, changes=_changes(change or []), scheduler_cls=scheduler)
    outcome = _wait(process)
    found = compare(recorded, open_trace(out, quiet=True))
    if json:
        terminal.print_json({"fork": {**asdict(outcome), "path": str(out)}, "diff": plain(found)})
    else:
        _print_outcome(outcome)
        print_diff(found, file.name, out.name)
        terminal.next_command(f"prep app --trace {out}", f"or prep trace diff {file} {out} --json")
    if outcome.failure:
        raise typer.Exit(terminal.CHECKS_FAILED)


def _changes(words: list[str]) -> dict[str, Any]:
    changes = {}
    for word in words:
        name, separator, value = word.partition("=")
        if not separator:
            raise terminal.Problem(f"--set {word} has no value", next_step=f"--set {name}=VALUE")
        changes[name.strip()] = value.strip()
    return changes


def _wait(process: ForkProcess) -> ForkOutcome:
    """Until the fork is over; progress where it takes longer than a moment. Ctrl-C leaves nothing behind."""
    console, began = terminal.err(), time.monotonic()
    status = console.status("[dim]forking[/]") if terminal.is_live(console) else None
    is_shown = False
    try:
        while (outcome := process.poll(0.1)) is None:
            if status is None or time.monotonic() - began < SHOW_PROGRESS_AFTER_S:
                continue
            if not is_shown:
                status.start()
                is_shown = True
            status.update(f"[dim]step {process.step:,} of about {process.of:,}[/]")
        return outcome
    except KeyboardInterrupt:
        process.cancel()
        raise
    finally:
        if status is not None and is_shown:
            status.stop()


# ---------------------------------------------------------------------- print


def plain(found: TraceDiff) -> dict[str, Any]:
    """As JSON."""
    return {
        **asdict(found),
        "settings": [{"name": name, "a": a, "b": b} for name, a, b in found.settings],
        "figures": [{**asdict(figure), "delta": figure.delta} for figure in found.figures],
    }


def print_diff(found: TraceDiff, a: str, b: str) -> None:
    out = terminal.out()
    out.print(f"[bold]A[/] {_escape(a)}   [bold]B[/] {_escape(b)}", soft_wrap=True)
    if found.same_workload:
        out.print("[dim]asked the same[/]")
    else:
        said = "; ".join(found.workload_notes) or "requests differ in what the trace keeps of them"
        out.print(
            f"{terminal.mark(None)} not asked the same: {_escape(said)}. Compared by request id",
            soft_wrap=True,
        )
    for name, one, other in found.settings:
        out.print(f"[dim]{name}[/]  A {_escape(_word(one))}, B {_escape(_word(other))}", soft_wrap=True)
    out.print()
    if found.first is None:
        same = "nothing, block ids included" if found.first_blocks is None else "no decision"
        out.print(f"They differ in {same}." if found.first_blocks is None else "They decide the same.")
        if found.first_blocks is not None:
            out.print(f"Blocks change differently from step {found.first_blocks} on.")
        return
    print_divergence(found.first)
    more = len(found.divergences) - 1
    rest = f", and part anew in {more} later ones" if more else ""
    out.print(f"[dim]{found.num_different} steps decide differently{rest}[/]\n")
    _print_figures(found.figures, found.clocks)
    _print_requests(found.requests)


def print_divergence(found: Divergence) -> None:
    out = terminal.out()
    out.print(
        f"[bold]First different decision: step {found.step}[/] ({', '.join(found.kinds)})", soft_wrap=True
    )
    for name, side in (("A", found.a), ("B", found.b)):
        out.print(f"  [bold]{name}[/] {_escape(side.decided)}", soft_wrap=True)
        for reason in side.reasons:
            out.print(f"    [dim]{_escape(reason)}[/]", soft_wrap=True)


def _print_figures(figures: list[Figure], clocks: tuple[str, str]) -> None:
    table = terminal.table("in all", "A", "B", "B - A", "unit", left=("unit",))
    for figure in figures:
        delta = figure.delta
        colour = ""
        if delta and figure.better:
            colour = "green" if (delta < 0) == (figure.better == "lower") else "yellow"
        shown = "-" if delta is None else f"{delta:+,.6g}" if delta else "0"
        table.add_row(
            figure.name,
            _number(figure.a),
            _number(figure.b),
            f"[{colour}]{shown}[/]" if colour else shown,
            figure.unit,
        )
    label = "wall clock" if clocks == ("wall", "wall") else "clock: steps; a fork has no other"
    terminal.show(f"Figures [dim]({label})[/]", table)


def _print_requests(requests: list[RequestDelta]) -> None:
    headings = ("request", "first token", "end", "waited", "preempted", "hit", "computed", "tokens")
    table = terminal.table(*headings, left=("tokens",))
    ranked = sorted(requests, key=_change, reverse=True)
    for delta in ranked[:MAX_ROWS]:
        pairs = (
            delta.first_token_step,
            delta.end_step,
            delta.waiting_steps,
            delta.preemptions,
            delta.cached_tokens,
            delta.computed_tokens,
        )
        table.add_row(_escape(delta.request_id), *map(_pair, pairs), delta.tokens)
    terminal.show("Requests, largest change of their end first [dim](steps and tokens, A → B)[/]", table)
    if len(ranked) > MAX_ROWS:
        terminal.out().print(f"and {len(ranked) - MAX_ROWS} more: --json lists them")


def _change(delta: RequestDelta) -> tuple[int, int]:
    def distance(pair: tuple[int | None, int | None]) -> int:
        one, other = pair
        return 0 if one == other else 10**9 if one is None or other is None else abs(other - one)

    return distance(delta.end_step), distance(delta.first_token_step)


def _print_outcome(outcome: ForkOutcome) -> None:
    out = terminal.err()
    if outcome.failure:
        out.print(f"{terminal.mark(False)} {_escape(outcome.failure)}", soft_wrap=True)
        out.print(f"[dim]the run up to there is {_escape(str(outcome.path))}[/]", soft_wrap=True)
    else:
        out.print(
            f"{terminal.mark(True)} {outcome.num_steps} steps in {_escape(str(outcome.path))}", soft_wrap=True
        )
    for note in outcome.notes:
        out.print(f"{terminal.mark(None)} {_escape(note)}", soft_wrap=True)


def _pair(pair: tuple[int | None, int | None]) -> str:
    one, other = ("-" if value is None else str(value) for value in pair)
    arrow = "→" if terminal.unicode_ok() else "->"
    return one if one == other else f"{one} {arrow} {other}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.6g}"


def _word(value: Any) -> str:
    return "-" if value is None else str(value)


def _escape(text: str) -> str:
    from rich.markup import escape

    return escape(text)
