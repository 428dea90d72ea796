"""Shared parts of `prep bench`: options, run times, the warning on a busy machine, and exit codes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from app.cli import terminal
from app.cli.bench.against import as_json, show_comparison

if TYPE_CHECKING:
    from app.bench.against import Comparison
    from app.bench.timing import Tell

Model = Annotated[str, typer.Argument(help="A shipped model, a folder, or a Hugging Face id.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")]


BUSY_CORES = 0.25
"""Cores that other programs may use without a warning."""


@contextmanager
def measuring(takes: str = "") -> Iterator[Tell]:
    """Show the progress of a benchmark; warn at its end if other programs used the machine.

    takes: its usual duration with default sizes, shown at the start.
    """
    from app.bench.timing import watch_other_programs

    if takes:
        terminal.err().print(f"[dim]takes about {takes} with its default sizes on 2 idle cores[/]")
    other_cores = watch_other_programs()
    with terminal.status() as tell:
        yield tell
    warn_if_busy(other_cores())


def warn_if_busy(cores: float) -> None:
    """Print the effect of a busy machine if other programs used more than BUSY_CORES."""
    if cores > BUSY_CORES:
        terminal.err().print(
            f"[yellow]other programs used {cores:.1f} cores meanwhile: times are too high and vary from run to run. "
            "Close other programs and measure again[/]",
            soft_wrap=True,
        )


def finish(report: Any, *, as_json: bool, next_command: str, why: str, printed: bool = False) -> None:
    """Print JSON if requested, else the closing line. Raises Exit(130) if the benchmark was interrupted."""
    if as_json and not printed:
        terminal.print_json(report)
    if report.interrupted:
        terminal.err().print("[yellow]interrupted: only the results so far[/]")
        raise typer.Exit(terminal.INTERRUPTED)
    if not as_json:
        terminal.next_command(next_command, why)


def finish_comparison(report: Comparison, *, json: bool, next_command: str, why: str) -> None:
    if json:
        terminal.print_json(as_json(report))
    else:
        show_comparison(report)
    finish(report, as_json=json, next_command=next_command, why=why, printed=True)
