"""`prep demo`: one minute with the live engine.

pool.py    part 2: six requests in a block pool that is too small
drawing.py drawing on the terminal
tour.py    part 1: decoding without and with a KV cache; runs the parts and explains them
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from app.cli import terminal
from app.cli.app import check_installed, serve
from app.cli.options import make_folder_of, option
from engine.trace.reader import TraceReader


def demo(
    fast: Annotated[bool, option("Run at full speed, without pauses.", "--fast")] = False,
    svg: Annotated[Path | None, option("Save a picture of the first preemption.")] = None,
    open_run: Annotated[
        bool, option("Record part 2 and open it in the browser at the first preemption.", "--open")
    ] = False,
) -> None:
    """Tour the live engine in under a minute, without input.

    \b
    1  the same tokens with and without a KV cache
    2  six requests in a block pool that is too small: hits, preemption, waiting
    3  the figures and their explanation

    All figures are computed live. Ctrl-C quits.

    \b
    Examples:
      prep demo
      prep demo --open          the same, then step by step in the debugger
    """
    make_folder_of(svg)
    trace = None
    if open_run:
        from app.debugger.own_runs import new_path

        check_installed()  # now, not after the tour
        trace = new_path("demo")
    console = terminal.out()
    live = terminal.is_live(console)
    with terminal.loading("the shipped model"):
        from app.cli.demo.tour import Tour

        tour = Tour(console, live=live, pace=1.0 if live and not fast else 0.0, svg=svg, trace=trace)
    tour.run()
    if trace is not None:
        terminal.note(f"[dim]recorded {terminal.literal(trace)}[/]")
        first = TraceReader(trace).next_event("preempt", -1)
        parameters = {"run": f"mine:{trace.stem}", "step": str(first.step if first else 0)}
        return serve(parameters, "step", 0, browser=True)
    terminal.next_command("prep chat shop", "chat with the model")
