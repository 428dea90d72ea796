"""What all benchmarks of `prep bench` share: their options, the line that says what is measured, and how they end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from app.cli import terminal
from app.cli.bench.against import as_json, show_comparison

if TYPE_CHECKING:
    from app.bench.against import Comparison

Model = Annotated[str, typer.Argument(help="A shipped model, a folder, or a Hugging Face id.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")]


def finish(report: Any, *, as_json: bool, next_command: str, why: str, printed: bool = False) -> None:
    """JSON if asked for, the closing line otherwise, and the exit code of a benchmark that was cut short."""
    if as_json and not printed:
        terminal.print_json(report)
    if report.interrupted:
        terminal.err().print("[yellow]interrupted: only what was measured until then[/]")
        raise typer.Exit(terminal.INTERRUPTED)
    if not as_json:
        terminal.next_command(next_command, why)


def finish_comparison(report: Comparison, *, json: bool, next_command: str, why: str) -> None:
    if json:
        terminal.print_json(as_json(report))
    else:
        show_comparison(report)
    finish(report, as_json=json, next_command=next_command, why=why, printed=True)
