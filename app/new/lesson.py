"""`prep new lesson NAME`: the next lesson, with its eight parts and one exercise."""

from __future__ import annotations

from app.new import Taken
from lessons.course.lesson_files import lessons

NEXT = """\
lessons/FOLDER  in this order: solution.py, checks.py, mutants.py, meta.yaml, then the cells in lesson.py
a row in lessons/README.md, and its features in lessons/coverage.yaml
prep test --no-lint tests/lessons/test_lesson_files.py  names what is missing
prep lesson mutants FOLDER  wrong solutions that slip through
prep lesson run FOLDER --quick  execute it
prep lesson build FOLDER  write the notebook with its outputs"""

_META = """\
number: "{number}"
title: FILL IN the title
goal: FILL IN what the reader can do afterwards, in one sentence.
builds: FILL IN what the reader builds
minutes: 40
topics: []
unlocks: []
exercises:
  "{number}.1":
    title: FILL IN the task
    explain: "FILL IN why the solution is right"
    minutes: 8
    objects: [{name}]
    hints:
      - "FILL IN a hint that names the first step"
      - "FILL IN a stronger hint"
      - "FILL IN a hint that is nearly the solution"
say:
  prompt: "FILL IN what to explain aloud"
  probes:
    - q: "FILL IN a question with a computed answer"
      answer: 0
    - q: "FILL IN another question"
      answer: 0
"""
_CELLS = """\
# %% [markdown] name="why"
# # Lesson {number}: FILL IN the title
#
# ## Why an interviewer asks
#
# FILL IN the question, and its follow-ups.

# %% name="setup"
from lessons.course.notebook import open_lesson

this = open_lesson("{number}")

# %% [markdown] name="predict"
# ## Predict
#
# FILL IN the setting: all figures that the two predictions need.

# %% name="predict-first"
this.predict("first", ..., question="FILL IN the question")

# %% [markdown] name="first-piece"
# ## First piece
#
# **{number}.1** FILL IN the task.


# %% name="{number}.1" tags=["exercise"]
# exercise {number}.1
def {name}(size: int) -> int:
    \"\"\"FILL IN the contract.\"\"\"
    raise NotImplementedError("{number}.1: FILL IN the first step")


# %% name="check-{number}.1"
this.check("{number}.1")

# %% [markdown] name="run"
# ## Run it
#
# FILL IN what runs on the live engine. The next cell reveals the predictions: `this.reveal("first", ...)`.

# %% name="run-it"
{name} = this.piece("{number}.1")

# %% [markdown] name="plot"
# ## Plot
#
# FILL IN what the figure shows: `this.plot(drawing)`.

# %% [markdown] name="explore"
# ## Explore
#
# FILL IN a picture with controls: `this.explore(...)`.

# %% [markdown] name="build"
# ## Build
#
# FILL IN the other exercises.

# %% [markdown] name="break"
# ## Break it
#
# FILL IN what to break, and what happens then: `this.holds(sentence, fact)`.

# %% [markdown] name="say"
# ## Say it in 60 seconds
#
# Aloud first. The probes below test what you said; prose is not graded.

# %% name="say-it"
this.say()

# %% [markdown] name="now"
# ## What you can answer now

# %% name="questions"
this.questions()
"""
_SOLUTION = """\
\"\"\"Reference solutions of lesson {number}, one self-contained section per exercise.\"\"\"


# exercise {number}.1
def {name}(size: int) -> int:
    # FILL IN the solution
    return size
"""
_CHECKS = """\
\"\"\"Checks of lesson {number}.\"\"\"

from __future__ import annotations

from lessons.course.checking import Failed, Learner, check


@check("{number}.1")
def a_requirement(learner: Learner) -> None:
    \"\"\"FILL IN the requirement in one sentence.\"\"\"
    if learner.call("{name}", 1) != "FILL IN the expected result":
        raise Failed("FILL IN what is wrong", example="{name}(1)")
"""
_MUTANTS = """\
\"\"\"Plausible wrong solutions of lesson {number}, each with the check that must catch it.\"\"\"

MUTANTS = \"\"\"
{number}.1 a_requirement: FILL IN what is wrong
-    return size
+    return size + 1
\"\"\"
"""


def skeleton(name: str) -> dict[str, str]:
    """Return the files of the lesson after the last one. Raises Taken for a name of another."""
    for lesson in lessons():
        if lesson.folder.name.partition("_")[2] == name:
            raise Taken(f"there is a lesson {name}", f"lessons/{lesson.folder.name}")
    values = {"number": f"{1 + int(lessons()[-1].number):02}", "name": name}
    texts = {"meta.yaml": _META, "lesson.py": _CELLS, "solution.py": _SOLUTION, "checks.py": _CHECKS}
    return {
        f"lessons/l{values['number']}_{name}/{file}": text.format(**values)
        for file, text in {**texts, "mutants.py": _MUTANTS}.items()
    }
