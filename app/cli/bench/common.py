"""Shared parts of `prep bench`: a benchmark's progress, the warning on a busy machine, its output and exit code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from app.bench.timing import Tell, watch_other_programs
from app.cli import terminal

BUSY_CORES = 0.25
"""Cores that other programs may use without a warning."""


def run(
    measure: Callable[[Tell], Any],
    show: Callable[[Any], None],
    *,
    json: bool,
    then: tuple[str, str],
    takes: str = "",
    as_json: Callable[[Any], Any] = lambda report: report,
    resume: Callable[[Any], str] = lambda report: "",
) -> Any:
    """Measure and print tables, or JSON. Raises Exit(130) if Ctrl-C, SIGTERM or SIGHUP interrupted the benchmark.

    then: the next command and why. takes: the usual duration with default sizes, shown at the start.
    resume: the command that continues an interrupted report, if there is one.
    """
    if takes:
        terminal.err().print(f"[dim]takes about {takes} with its default sizes on 2 idle cores[/]")
    other_cores = watch_other_programs()
    with terminal.signals_interrupt(), terminal.status() as tell:
        report = measure(tell)
    warn_if_busy(other_cores())
    if json:
        terminal.print_json(as_json(report))
    else:
        show(report)
    if report.interrupted:
        raise terminal.interrupted("measured", resume(report))
    if not json:
        terminal.next_command(*then)
    return report


def warn_if_busy(cores: float) -> None:
    """Print the effect of a busy machine if other programs used more than BUSY_CORES."""
    if cores > BUSY_CORES:
        terminal.note(
            f"[yellow]other programs used {cores:.1f} cores meanwhile: times are too high and vary from run to run. "
            "Close other programs and measure again[/]"
        )
