"""E55: does a repair do what it must?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from quizzes.experiments import Context, experiment


@dataclass(frozen=True)
class Report:
    """By check, in the order in which they are written."""

    names: list[str]
    says: list[str]
    passed: list[bool]
    why: list[str]
    """What happened instead; "" where it passed."""
    num_passed: Annotated[int, "checks"]
    num_checks: Annotated[int, "checks"]


@experiment("E55", seconds=8)
def checks(
    ctx: Context,
    *,
    folder: str = "block_manager",
    source: Annotated[str, Field(max_length=100_000)] = "",
) -> Report:
    """Run all checks of a program on a repair.

    folder: a program in quizzes/autopsies. source: Python text; empty for the program as it is given.
    """
    from quizzes.autopsies.programs import read, run_checks

    results = run_checks(folder, source or read(folder))
    return Report(
        names=[result.name for result in results],
        says=[result.says for result in results],
        passed=[result.ok for result in results],
        why=[result.why for result in results],
        num_passed=sum(result.ok for result in results),
        num_checks=len(results),
    )
