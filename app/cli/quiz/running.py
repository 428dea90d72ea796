"""Run an experiment during a dialogue: told before, timed after, stopped by Ctrl-C."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from quizzes.experiments.runner import Outcome, RunFailed, Runner

if TYPE_CHECKING:
    from rich.console import Console

    from app.cli.quiz.dialogue import Dialogue


def run_told(
    runner: Runner,
    dialogue: Dialogue,
    name: str,
    args: dict[str, Any],
    *,
    where: Console | None,
    told: str = "committed. Running {} …",
) -> Outcome:
    """Run an experiment and print progress. Ctrl-C stops only the run and raises RunFailed; else as Runner.run.

    Keys typed during the run are discarded: they must not answer the next prompt.
    """
    if where is not None:
        where.print(f" [dim]{told.format(name)}[/]", end="")
    result = ""
    try:
        outcome = runner.run(name, args)
        result = "known" if outcome.cached else f"{outcome.seconds:.1f} s"
    except KeyboardInterrupt:
        raise RunFailed("the run was interrupted") from None
    finally:
        if where is not None:
            where.print(f" [dim]{result}[/]")
        dialogue.drain()
    return outcome
