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

from app.cli import screen

app = screen.command_app()


@app.command()
def demo(
    fast: Annotated[bool, typer.Option("--fast", help="Do not slow down for the eye.")] = False,
    svg: Annotated[
        Path | None, typer.Option("--svg", help="Also save the moment of the first preemption as a picture.")
    ] = None,
) -> None:
    """A tour of the live engine: under a minute, no input needed.

    \b
    1  the same tokens with and without a KV cache
    2  six requests in a block pool that is too small: a prefix hit, a preemption, who waits for what
    3  the figures, and why they are what they are

    Everything is computed while you watch. Ctrl-C leaves.
    """
    console = screen.out()
    live = screen.is_live(console)
    with screen.loading("the shipped model"):
        from app.cli.demo.tour import Tour

        tour = Tour(console, live=live, pace=1.0 if live and not fast else 0.0, svg=svg)
    tour.run()
    screen.next_command("prep chat shop", "talk to the model yourself")
