"""`prep demo`: one minute with the live engine.

naive.py   part 1: decoding without and with a KV cache
pool.py    part 2: six requests in a block pool that is too small
drawing.py drawing on the terminal
tour.py    runs the parts and explains them
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from app.cli import terminal

app = terminal.command_app()


@app.command()
def demo(
    fast: Annotated[bool, typer.Option("--fast", help="Run at full speed, without pauses.")] = False,
    svg: Annotated[Path | None, typer.Option("--svg", help="Save a picture of the first preemption.")] = None,
    open_run: Annotated[
        bool, typer.Option("--open", help="Record part 2 and open it in the browser at the first preemption.")
    ] = False,
) -> None:
    """Tour the live engine in under a minute, without input.

    \b
    1  the same tokens with and without a KV cache
    2  six requests in a block pool that is too small: prefix hits, preemption, waiting
    3  the figures and their explanation

    All figures are computed live. Ctrl-C quits.

    \b
    Examples:
      prep demo
      prep demo --open          the same, then forwards and backwards in the debugger
    """
    trace = _new_recording() if open_run else None
    console = terminal.out()
    live = terminal.is_live(console)
    with terminal.loading("the shipped model"):
        from app.cli.demo.tour import Tour

        tour = Tour(console, live=live, pace=1.0 if live and not fast else 0.0, svg=svg, trace=trace)
    tour.run()
    if trace is not None:
        _open(trace)
        return
    terminal.next_command("prep chat shop", "chat with the model")


def _new_recording() -> Path:
    """Return a new file among the user's runs. Raises now, not after the tour, if the debugger is not installed."""
    from app.cli.app import check_installed
    from app.debugger.own_runs import new_path

    check_installed()
    return new_path("demo")


def _open(trace: Path) -> None:
    from app.cli.app import serve
    from engine.trace.reader import TraceReader

    terminal.err().print(f"[dim]recorded {terminal.literal(trace)}[/]", soft_wrap=True)
    first = TraceReader(trace).next_event("preempt", -1)
    serve({"run": f"mine:{trace.stem}", "step": str(first.step if first else 0)}, "step", 0, browser=True)
