"""`prep new lab NAME`: a lab in Python with one check and one wrong file."""

from __future__ import annotations

from app.new import Taken
from lessons.course.lesson_files import HUNTS, TRACKS, labs

FORMS = tuple(track for track in TRACKS if track not in (HUNTS, "kernels"))
FORM = "track"
NEXT = """\
lessons/labs/NAME  in this order: solution.py, checks.py, mutants.py, contract.yaml, follow_ups.md, meta.yaml
prep test --no-lint tests/lessons/test_labs.py tests/lessons/test_lab_contracts.py -m "slow or not slow" -k HYPHENED
prep lab check HYPHENED --solution  the checks of the solution, one by one
PYTHON -m lessons.course.contracts HYPHENED  the overlaps, for contract.yaml
race.py  if there is something to choose: lessons/labs/README.md"""

_META = """\
track: {track}
order: {order}
title: FILL IN what the learner writes
goal: FILL IN the goal in one sentence.
topics: []
unlocks: []
exercise:
  minutes: 30
  objects: [{title}]
  hints:
    - "FILL IN a hint that names the first step"
    - "FILL IN a stronger hint"
    - "FILL IN a hint that is nearly the solution"
probes: []
"""
_SOLUTION = '''\
"""Lab {hyphened}: FILL IN what the learner writes, in one line.

FILL IN the seam in the engine, and the sources.
"""

from __future__ import annotations


class {title}:
    """FILL IN what it is."""

    def __init__(self, size: int) -> None:
        """FILL IN the arguments. Raises ValueError unless size >= 1."""
        if size < 1:
            raise ValueError(f"size must be at least 1, got {{size}}")
        self.size = size  # FILL IN the solution
'''
_CHECKS = '''\
"""Checks of the lab {hyphened}: FILL IN the second opinion that they compare with."""

from __future__ import annotations

from lessons.course.checking import Failed, Learner, check, refused

LAB = "{hyphened}"


@check(LAB)
def no_size_is_refused(learner: Learner) -> None:
    """A size below 1 raises ValueError."""
    for size in (0, -1):
        refused(f"{title}({{size}})", learner.new, "{title}", size)


@check(LAB)
def a_requirement(learner: Learner) -> None:
    """FILL IN the requirement in one sentence."""
    learner.new("{title}", 1)
    raise Failed("FILL IN what is wrong", example="{title}(1)")
'''
_MUTANTS = '''\
"""Plausible wrong files of the lab {hyphened}, each with the check that must reject it."""

MUTANTS = """
{hyphened} no_size_is_refused: any size
-        if size < 1:
+        if size is None:
"""
'''
_CONTRACT = """\
# Sentences of the stub, by their first words, and the wrong files that break them: lessons/course/contracts.py.
demands:
  Raises ValueError unless size >= 1.: [any size]
explains: []
overlaps: {}
"""
_FOLLOW_UPS = """\
# FILL IN the title: what an interviewer asks next

1. **FILL IN a question?** FILL IN the answer.
"""


def skeleton(name: str, form: str = FORMS[0]) -> dict[str, str]:
    """Return the files of a new lab of a track. Raises Taken if there is one of this name."""
    hyphened = name.replace("_", "-")
    if hyphened in [lab.number for lab in labs()]:
        raise Taken(f"there is a lab {hyphened}", f"lessons/labs/{name}")
    values = {
        "track": form,
        "order": 1 + max(lab.order for lab in labs() if lab.track == form),
        "hyphened": hyphened,
        "title": "".join(word.capitalize() for word in name.split("_")),
    }
    texts = {"meta.yaml": _META, "solution.py": _SOLUTION, "checks.py": _CHECKS, "mutants.py": _MUTANTS}
    files = {file: text.format(**values) for file, text in texts.items()}
    files |= {"contract.yaml": _CONTRACT, "follow_ups.md": _FOLLOW_UPS}
    return {f"lessons/labs/{name}/{file}": text for file, text in files.items()}
