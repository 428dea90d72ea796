"""Mutants as diffs of a solution: plausible but wrong versions, each with the check that must catch it.

    check_freeing_twice_is_refused: a second free is accepted
    -        if any(block.ref_count < 1 for block in table):
    +        if not table:
    @@
     the next hunk

@@ separates the hunks of a diff. The lines of each hunk that are not added occur once in the solution.
"""

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Mutant:
    """A plausible but wrong version, the check that must fail, and what is wrong with it."""

    check: str
    why: str
    source: str


def apply_diffs(text: str, solution: str) -> list[Mutant]:
    """Return the mutants that `text` describes. Raises ValueError if a diff does not fit the solution."""
    mutants = []
    for entry in re.split(r"^(?=check_)", text, flags=re.MULTILINE)[1:]:
        headline, _, diff = entry.partition("\n")
        check, _, why = headline.partition(": ")
        mutants.append(Mutant(check, why, apply_diff(solution, diff, headline)))
    return mutants


def apply_diff(source: str, diff: str, name: str) -> str:
    """Return the source after all hunks of a diff. Raises ValueError, which names the mutant, if one does not fit."""
    for hunk in diff.split("@@\n"):
        lines = [line if line.strip() else " \n" for line in hunk.splitlines(keepends=True)]
        old = "".join(line[1:] for line in lines if line[0] in " -")
        if source.count(old) != 1:
            raise ValueError(f"{name}: {old!r} occurs {source.count(old)} times in the solution")
        source = source.replace(old, "".join(line[1:] for line in lines if line[0] in " +"))
    return source
