"""`prep demo`: one minute with the live engine.

naive.py   part 1: a token at a time without and with a KV cache
pool.py    part 2: six requests in a block pool that is too small
drawing.py what both look like on a terminal
tour.py    runs the parts and tells the story
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from app.cli import terminal

app = terminal.command_app()


@app.command()
def demo(
    fast: Annotated[bool, typer.Option("--fast", help="Do not slow down for the eye.")] = False,
    svg: Annotated[
        Path | None, typer.Option("--svg", help="Also save the moment of the first preemption as a picture.")
    ] = None,
    open_run: Annotated[
        bool, typer.Option("--open", help="Record part 2, and open it in the browser where memory runs out.")
    ] = False,
) -> None:
    """A tour of the live engine: under a minute, no input needed.

    \b
    1  the same tokens with and without a KV cache
    2  six requests in a block pool that is too small: a prefix hit, a preemption, who waits for what
    3  the figures, and why they are what they are

    Everything is computed while you watch. Ctrl-C leaves.

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
    terminal.next_command("prep chat shop", "talk to the model yourself")


def _new_recording() -> Path:
    """A file among the user's runs. Refused now rather than after the tour if there is nothing to open it with."""
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
